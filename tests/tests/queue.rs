//! Messages that wait: listed, changed, cancelled, interrupted, and kept over
//! the death of a broker. On the scripted provider.

use ade_tests::ade::Ade;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{ended, of_turn};
use ade_tests::wait::wait_until;
use serde_json::{Value, json};

fn started(config: &str) -> (Ade, Rpc, String) {
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    (ade, rpc, chat)
}

/// A chat whose turn hangs after a word, with these messages behind it.
fn waiting(config: &str, messages: &[&str]) -> (Ade, Rpc, String, String, Vec<String>) {
    let (ade, mut rpc, chat) = started(config);
    let (running, after) = ade.send(&mut rpc, &chat, "!emit begun\n!hang");
    rpc.subscribe(&chat, after);
    rpc.event("a word", |envelope| envelope["event"]["type"] == "text");
    let queued = messages
        .iter()
        .map(|message| ade.send(&mut rpc, &chat, message).0)
        .collect();
    (ade, rpc, chat, running, queued)
}

fn prompts(queue: &Value) -> Vec<&str> {
    let all = queue["messages"].as_array().expect("messages");
    all.iter()
        .filter_map(|message| message["prompt"].as_str())
        .collect()
}

/// The user's messages of a transcript, in order.
fn said(ade: &Ade, chat: &str) -> Vec<String> {
    ade.transcript(chat)
        .iter()
        .filter(|line| line["event"]["type"] == "user_message")
        .filter_map(|line| line["event"]["text"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn waiting_messages_are_listed_changed_and_cancelled_until_they_are_sent() {
    let (ade, mut rpc, chat, running, queued) = waiting("", &["one", "two", "three"]);
    let list = rpc.call("chat.queue", json!({"sessionId": chat}));
    assert_eq!(prompts(&list), ["one", "two", "three"]);
    let edited = json!({"sessionId": chat, "turnId": queued[1], "prompt": "changed"});
    rpc.call("chat.queue_edit", edited);
    let left = rpc.call(
        "chat.queue_cancel",
        json!({"sessionId": chat, "turnId": queued[0]}),
    );
    assert_eq!(prompts(&left), ["changed", "three"]);
    let events = rpc.until_done(&queued[0]);
    let done = events.last().expect("an event");
    assert_eq!(done["event"]["status"], "interrupted");
    for (turn, kind) in [(&running, "already_sending"), (&queued[0], "not_found")] {
        let refused = rpc
            .try_call(
                "chat.queue_cancel",
                json!({"sessionId": chat, "turnId": turn}),
            )
            .expect_err("it does not wait");
        assert_eq!(refused.kind, kind, "{refused:?}");
    }
    ade.expect_code(0, &["chat", "queue", "edit", &chat, &queued[2], "last"]);
    let (table, _) = ade.expect_code(0, &["chat", "queue", "list", &chat]);
    assert!(
        table.contains("changed") && table.contains("last"),
        "{table}"
    );
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&queued[2]);
    assert_eq!(said(&ade, &chat)[1..], ["changed", "last"]);
}

#[test]
fn a_full_queue_says_so_at_once() {
    let many: Vec<String> = (0..32).map(|n| format!("message {n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (_ade, mut rpc, chat, _, _) = waiting("", &many);
    let refused = rpc
        .try_call(
            "chat.send",
            json!({"sessionId": chat, "prompt": "too much"}),
        )
        .expect_err("the queue is full");
    assert_eq!(refused.kind, "queue_full");
    // However it is to get in: the agent takes no steer while its card is open
    // or after it was told to end, and a message in front is one more too.
    let asked = json!({"sessionId": chat, "prompt": "too much", "mode": "continue"});
    let refused = rpc.try_call("chat.interrupt", asked);
    assert_eq!(refused.expect_err("it is full").kind, "queue_full");
    let list = rpc.call("chat.queue", json!({"sessionId": chat}));
    assert_eq!(prompts(&list), many);
}

#[test]
fn a_steer_that_nobody_can_take_is_refused_when_the_queue_is_full() {
    let script = "start; message; text begun; cat";
    let ade = Ade::new();
    let config = ade_tests::hosts::shell(ade.root(), script);
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let (_, after) = ade.send(&mut rpc, &chat, "go");
    rpc.subscribe(&chat, after);
    rpc.event("a word", |envelope| envelope["event"]["type"] == "text");
    for number in 0..32 {
        let steer = json!({"sessionId": chat, "prompt": format!("steer {number}")});
        assert_eq!(rpc.call("chat.steer", steer)["outcome"], "queued");
    }
    let steer = json!({"sessionId": chat, "prompt": "too much"});
    let refused = rpc.try_call("chat.steer", steer).expect_err("it is full");
    assert_eq!(refused.kind, "queue_full");
    // This agent cannot go on after a stop, and says so before anything ends.
    let asked = json!({"sessionId": chat, "prompt": "x", "mode": "continue"});
    let refused = rpc
        .try_call("chat.interrupt", asked)
        .expect_err("it cannot");
    assert_eq!(refused.kind, "unsupported");
    assert_eq!(ade.session(&chat)["state"], "streaming");
}

#[test]
fn a_steer_that_died_with_its_worker_is_its_own_turn_behind_the_recovery() {
    let script = "start '\"steer\":true'; message
        [ -e ran ] || { touch ran; hear; exit 3; }
        text \"turn $id\"; done_as completed; message; text late; done_as completed; cat";
    let ade = Ade::new();
    let config = ade_tests::hosts::shell(ade.root(), script);
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 60_000}));
    let (turn, after) = ade.send(&mut rpc, &chat, "go");
    ade.wait_state(&chat, "awaiting_first_event");
    let steer = json!({"sessionId": chat, "prompt": "and this"});
    let steered = rpc.call("chat.steer", steer);
    assert_eq!(steered["outcome"], "queued", "{steered}");
    let own = steered["turnId"]
        .as_str()
        .expect("a turn of its own")
        .to_owned();
    rpc.subscribe(&chat, after);
    rpc.until_done(&turn);
    let events = rpc.until_done(&own);
    assert_eq!(
        events.last().expect("an end")["event"]["status"],
        "completed"
    );
    assert_eq!(said(&ade, &chat), ["go", "and this"]);
}

#[test]
fn a_message_that_goes_first_goes_first_for_the_next_broker_too() {
    let (mut ade, mut rpc, chat) = started("");
    // An agent that does not hear the request to stop.
    let (_, after) = ade.send(&mut rpc, &chat, "!emit begun\n!stop-reading\n!hang");
    rpc.subscribe(&chat, after);
    rpc.event("a word", |envelope| envelope["event"]["type"] == "text");
    ade.send(&mut rpc, &chat, "one");
    ade.send(&mut rpc, &chat, "two");
    let asked = json!({"sessionId": chat, "prompt": "rather this", "mode": "continue"});
    rpc.call("chat.interrupt", asked);
    drop(rpc);
    ade.kill_all_with_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    wait_until("the queue", || {
        let list = rpc.call("chat.queue", json!({"sessionId": chat}));
        (prompts(&list) == ["rather this", "one", "two"]).then_some(())
    });
}

#[test]
fn a_message_goes_before_the_queue_and_the_same_agent_goes_on() {
    let (ade, mut rpc, chat, running, queued) = waiting("", &["behind"]);
    let asked = json!({"sessionId": chat, "prompt": "rather this", "mode": "continue"});
    let done = rpc.call("chat.interrupt", asked);
    assert_eq!(done["ended"], running.as_str());
    rpc.until_done(&queued[0]);
    assert_eq!(said(&ade, &chat)[1..], ["rather this", "behind"]);
    assert_eq!(ade.session(&chat)["generation"], 1, "the same worker");
}

#[test]
fn a_cleared_queue_comes_back_for_a_moment_only() {
    let (ade, mut rpc, chat, _, queued) = waiting("", &["one", "two"]);
    let asked = json!({"sessionId": chat, "prompt": "!emit x\n!hang", "mode": "replace"});
    let done = rpc.call("chat.interrupt", asked.clone());
    assert_eq!(done["cleared"], 2);
    let back = rpc.call("chat.queue_recover", json!({"sessionId": chat}));
    assert_eq!(back["recovered"], 2, "{back}");
    let all = prompts(&back).len();
    assert!(all >= 2, "{back}");
    rpc.event("the new turn", |envelope| envelope["event"]["text"] == "x");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&queued[1]);
    assert_eq!(said(&ade, &chat)[2..], ["one", "two"]);
    drop(ade);

    let (_ade, mut rpc, chat, _, queued) = waiting("[turns]\nqueue_recovery_ms = 100\n", &["one"]);
    rpc.call("chat.interrupt", {
        let mut asked = asked;
        asked["sessionId"] = chat.as_str().into();
        asked
    });
    let events = rpc.until_done(&queued[0]);
    assert_eq!(
        events.last().expect("an event")["event"]["status"],
        "interrupted"
    );
    rpc.try_call("chat.queue_recover", json!({"sessionId": chat}))
        .expect_err("the moment is over");
}

#[test]
fn what_was_cleared_when_a_broker_died_comes_back_or_ends() {
    for (config, wanted) in [("", true), ("[turns]\nqueue_recovery_ms = 1500\n", false)] {
        let (mut ade, mut rpc, chat, _, queued) = waiting(config, &["one", "two"]);
        let asked = json!({"sessionId": chat, "prompt": "!emit x\n!hang", "mode": "replace"});
        assert_eq!(rpc.call("chat.interrupt", asked)["cleared"], 2);
        drop(rpc);
        ade.kill_broker();
        ade.serve();
        let mut rpc = ade.rpc();
        if wanted {
            let back = rpc.call("chat.queue_recover", json!({"sessionId": chat}));
            let back = prompts(&back);
            assert_eq!(back[back.len() - 2..], ["one", "two"]);
            // The new turn may wait for the user: the one before it had ended.
            ade.send(&mut rpc, &chat, "go on");
            ade.wait_transcript(&chat, "the new turn", |lines| text_of(lines).contains('x'));
            rpc.call("chat.abort", json!({"sessionId": chat}));
        }
        // With nothing asked they end by themselves: nothing waits for ever.
        for turn in &queued {
            let lines = ade.wait_done(&chat, turn);
            let status = if wanted { "completed" } else { "interrupted" };
            assert_eq!(ended(&of_turn(&lines, turn)), status);
        }
        assert_eq!(said(&ade, &chat).contains(&"one".to_owned()), wanted);
    }
}

#[test]
fn what_waited_when_a_broker_died_is_neither_lost_nor_doubled() {
    let (mut ade, mut rpc, chat, _, queued) = waiting("", &["one", "second"]);
    let edited = json!({"sessionId": chat, "turnId": queued[1], "prompt": "two"});
    rpc.call("chat.queue_edit", edited);
    drop(rpc);
    ade.kill_all_with_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    let list = wait_until("the queue", || {
        let list = rpc.call("chat.queue", json!({"sessionId": chat}));
        let idle = ade.session(&chat)["state"] == "idle";
        (idle && list["messages"].as_array().map(Vec::len) == Some(2)).then_some(list)
    });
    assert_eq!(list["held"], true, "{list}");
    let (last, after) = ade.send(&mut rpc, &chat, "three");
    rpc.subscribe(&chat, after);
    rpc.until_done(&last);
    assert_eq!(said(&ade, &chat)[1..], ["one", "two", "three"]);
}

#[test]
fn a_message_that_runs_does_not_wait_any_more_for_the_next_broker() {
    let (mut ade, mut rpc, chat, _, queued) = waiting("", &["!emit mine\n!hang", "two"]);
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.event("its word", |envelope| envelope["event"]["text"] == "mine");
    drop(rpc);
    ade.kill_all_with_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    rpc.subscribe(&chat, 0);
    rpc.until_done(&queued[0]);
    let list = rpc.call("chat.queue", json!({"sessionId": chat}));
    assert_eq!(prompts(&list), ["two"]);
}

#[test]
fn what_waits_rides_behind_a_turn_that_the_next_broker_takes_over() {
    let (mut ade, rpc, chat, _, queued) = waiting("", &["one", "two"]);
    drop(rpc);
    ade.kill_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    wait_until("the turn goes on", || {
        (ade.session(&chat)["state"] == "streaming").then_some(())
    });
    rpc.subscribe(&chat, 0);
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&queued[1]);
    assert_eq!(said(&ade, &chat)[1..], ["one", "two"]);
    assert_eq!(ade.session(&chat)["generation"], 1);
}

#[test]
fn twenty_messages_at_once_start_one_worker() {
    let (ade, mut rpc, chat) = started("");
    let senders: Vec<_> = (0..20)
        .map(|n| {
            let (mut rpc, chat) = (ade.rpc(), chat.clone());
            std::thread::spawn(move || {
                let asked = json!({"sessionId": chat, "prompt": format!("message {n}")});
                rpc.call("chat.send", asked)["turnId"]
                    .as_str()
                    .map(str::to_owned)
            })
        })
        .collect();
    rpc.subscribe(&chat, 0);
    for sender in senders {
        sender.join().expect("a sender").expect("a turn");
    }
    for _ in 0..20 {
        rpc.event("the end of a turn", |envelope| {
            envelope["event"]["type"] == "done"
        });
    }
    assert_eq!(ade.session(&chat)["generation"], 1);
    assert_eq!(said(&ade, &chat).len(), 20);
}
