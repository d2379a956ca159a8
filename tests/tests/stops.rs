//! Silence, crashes, stops and kills: every turn ends once, a message is sent
//! at most twice, and nothing that a session started stays alive.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Instant;

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, signal, started};
use ade_tests::rpc::{Deaf, Rpc, text_of};
use ade_tests::turns::{Tree, dones, ended, of_turn, of_type, yes};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

/// Rungs of the ladder that a stubborn host makes short work of.
const SHORT_LADDER: &str = "[worker]\neof_grace_ms = 300\n\n\
    [providers.scripted]\ndispose_grace_ms = 300\nterm_to_kill_ms = 300\n";

/// Workers that don't wait long for another broker.
const SHORT_GRACE: &str = "[worker]\norphan_idle_ms = 300\norphan_turn_ms = 300\n";

/// A chat whose watchdog barks after so many milliseconds.
fn chat(ade: &Ade, rpc: &mut Rpc, first_event_ms: u64) -> String {
    let lane = ade.lane("lane");
    let more = json!({"firstEventMs": first_event_ms});
    ade.chat(rpc, "scripted", &lane, more)
}

fn pid(info: &Value, name: &str) -> i32 {
    i32::try_from(info[name].as_i64().unwrap()).unwrap()
}

/// The messages of the notices.
fn notices(events: &[Value]) -> Vec<String> {
    let notices = of_type(events, "notice");
    let text = notices.iter().map(|n| n["message"].as_str().unwrap());
    text.map(str::to_owned).collect()
}

/// Asserts that the chat takes the next message, on its worker of this number.
#[track_caller]
fn goes_on(ade: &Ade, chat: &str, generation: u64) {
    let events = ade.turn(chat, "are you there?");
    assert_eq!(ended(&events), "completed");
    assert_eq!(text_of(&events), "You said: are you there?");
    assert_eq!(ade.session(chat)["generation"], generation);
    let _ = ade.checked_transcript(chat);
}

// ---- the watchdog

#[test]
fn a_silent_worker_is_replaced_once_and_the_message_is_sent_again_once() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 700);
    let events = ade.turn(&chat, "!hang-once\n!emit here I am");
    assert_eq!(ended(&events), "completed");
    assert_eq!(text_of(&events), "here I am");
    let notices = notices(&events);
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("stopped responding"), "{notices:?}");
    assert!(notices[0].contains("again"), "{notices:?}");
    assert_eq!(of_type(&events, "user_message").len(), 1);
    assert_eq!(of_type(&events, "error").len(), 0);
    goes_on(&ade, &chat, 2);
}

#[test]
fn after_a_second_silence_there_is_one_error_and_never_a_third_send() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 700);
    let (turn, after) = ade.send(&mut rpc, &chat, "!hang");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    watch.event("the notice", |e| e["event"]["type"] == "notice");
    wait_true("the message was sent again", || ade.sends(&chat) == 2);
    watch.until_done(&turn);
    let events = of_turn(&ade.checked_transcript(&chat), &turn);
    assert_eq!(ended(&events), "failed");
    assert_eq!(notices(&events).len(), 1);
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["category"], "timed_out");
    let message = errors[0]["message"].as_str().unwrap();
    assert!(message.contains("sent twice"), "{message}");
    assert_eq!(ade.session(&chat)["generation"], 2);
    goes_on(&ade, &chat, 3);
}

#[test]
fn a_host_that_dies_before_a_word_is_replaced_and_the_reason_is_told() {
    for (step, reason) in [("!crash-once 3", "exit code 3"), ("!kill-once", "SIGKILL")] {
        let (ade, mut rpc) = started("");
        let chat = chat(&ade, &mut rpc, 60_000);
        let events = ade.turn(&chat, &format!("{step}\n!emit back"));
        assert_eq!(
            (ended(&events), text_of(&events).as_str()),
            ("completed", "back")
        );
        let notices = notices(&events);
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].contains(reason), "{notices:?}");
        assert_eq!(of_type(&events, "error").len(), 0);
        goes_on(&ade, &chat, 2);
    }
}

#[test]
fn j09_a_host_that_dies_in_mid_turn_fails_it_at_once_with_exit_code_and_last_words() {
    let (ade, mut rpc) = started("");
    let other = chat(&ade, &mut rpc, 60_000);
    let (untouched, after) = ade.send(&mut rpc, &other, "!words 1000000 50");
    let chat = chat(&ade, &mut rpc, 60_000);
    let events = ade.turn(&chat, "!emit half an answ\n!stderr 300\n!crash 7");
    assert_eq!(
        (ended(&events), text_of(&events).as_str()),
        ("failed", "half an answ")
    );
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["category"], "exited");
    assert!(
        errors[0]["message"]
            .as_str()
            .unwrap()
            .contains("exit code 7"),
        "{errors:?}"
    );
    let detail = errors[0]["detail"].as_str().unwrap();
    assert!(detail.contains("noise on standard error"), "{detail}");
    // Something was seen: the message is never sent again.
    assert_eq!(notices(&events).len(), 0);
    assert_eq!(ade.session(&chat)["generation"], 1);
    goes_on(&ade, &chat, 2);

    let mut watch = ade.rpc();
    watch.subscribe(&other, after);
    watch.event("the other chat streams", |e| e["event"]["type"] == "text");
    assert_eq!(ade.session(&other)["generation"], 1);
    rpc.call("chat.abort", json!({"sessionId": other}));
    watch.until_done(&untouched);
}

#[test]
fn half_a_frame_and_too_much_nonsense_end_the_turn_once() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    let events = ade.turn(&chat, "!emit one\n!half");
    assert_eq!(
        (ended(&events), text_of(&events).as_str()),
        ("failed", "one")
    );
    assert_eq!(of_type(&events, "error").len(), 1);
    goes_on(&ade, &chat, 2);
    let events = ade.turn(&chat, "!emit one\n!malformed 25\n!hang");
    assert_eq!(ended(&events), "failed");
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["category"], "protocol");
    goes_on(&ade, &chat, 3);
}

#[test]
fn a_host_that_dies_at_each_start_is_given_up_until_the_user_says_so() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    for _ in 0..2 {
        let events = ade.turn(&chat, "!crash 9");
        assert_eq!(ended(&events), "failed");
    }
    let info = ade.wait_state(&chat, "failed");
    let generation = info["generation"].as_u64().unwrap();
    let refused = rpc.try_call("chat.send", json!({"sessionId": chat, "prompt": "x"}));
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, "start_budget");
    assert!(
        refused.message.contains("chat reset"),
        "{}",
        refused.message
    );
    rpc.call("chat.reset", json!({"sessionId": chat}));
    goes_on(&ade, &chat, generation + 1);
}

#[test]
fn what_is_stopped_on_purpose_is_no_death() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    for _ in 0..4 {
        // A turn that completes would wipe the deaths before it out.
        ade.send(&mut rpc, &chat, "!emit begun\n!hang");
        ade.wait_state(&chat, "streaming");
        rpc.call("chat.stop", json!({"sessionId": chat}));
    }
    goes_on(&ade, &chat, 5);
}

#[test]
fn what_is_not_the_agents_fault_does_not_use_its_starts_up() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    let lane = ade.lane("lane");
    std::fs::remove_dir_all(&lane).unwrap();
    for _ in 0..4 {
        let events = ade.turn(&chat, "are you there?");
        let errors = of_type(&events, "error");
        assert!(
            errors[0]["message"].as_str().unwrap().contains("lane"),
            "{errors:?}"
        );
    }
    assert_eq!(ade.session(&chat)["state"], "idle");
    std::fs::create_dir_all(&lane).unwrap();
    assert_eq!(ended(&ade.turn(&chat, "are you there?")), "completed");
}

#[test]
fn a_chat_that_was_given_up_is_so_for_the_next_broker_until_the_user_says_so() {
    let (mut ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    for _ in 0..2 {
        assert_eq!(ended(&ade.turn(&chat, "!crash 9")), "failed");
    }
    let reason = ade.wait_state(&chat, "failed")["lastError"].clone();
    drop(rpc);
    assert_eq!(ade.stop_broker(), Some(0));
    ade.serve();
    let mut rpc = ade.rpc();
    let info = ade.session(&chat);
    assert_eq!(
        (&info["state"], &info["lastError"]),
        (&json!("failed"), &reason)
    );
    let refused = rpc.try_call("chat.send", json!({"sessionId": chat, "prompt": "x"}));
    assert_eq!(refused.unwrap_err().kind, "start_budget");
    let retried = rpc.call(
        "chat.send",
        json!({"sessionId": chat, "prompt": "hello", "retry": true}),
    );
    let turn = retried["turnId"].as_str().unwrap();
    let events = of_turn(&ade.wait_done(&chat, turn), turn);
    assert_eq!(ended(&events), "completed");
}

// ---- aborts

#[test]
fn an_abort_ends_a_silent_turn_and_the_worker_goes_on() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!hang");
    ade.wait_state(&chat, "awaiting_first_event");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "interrupted");
    assert_eq!(of_type(&events, "error").len(), 0);
    goes_on(&ade, &chat, 1);
}

#[test]
fn an_abort_during_recovery_lets_it_finish_and_sends_nothing() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 500);
    // A host that climbs the whole ladder leaves time for the abort.
    let (turn, _) = ade.send(&mut rpc, &chat, "!ignore-term\n!hang");
    ade.wait_state(&chat, "recovering");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(ade.session(&chat)["state"], "recovering");
    assert_eq!(ade.sends(&chat), 1);
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "interrupted");
    assert_eq!(notices(&events).len(), 0, "nothing was sent again");
    assert_eq!(of_type(&events, "error").len(), 0);
    goes_on(&ade, &chat, 2);
}

#[test]
fn an_abort_while_the_worker_starts_ends_the_turn_at_once() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    // The answer to the message does not wait for the worker.
    let (turn, _) = ade.send(&mut rpc, &chat, "!hang");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let lines = ade.wait_done(&chat, &turn);
    assert_eq!(ended(&lines), "interrupted");
    let events = ade.turn(&chat, "and now?");
    assert_eq!(ended(&events), "completed");
    // The start that was given up may have had its number, and one more has.
    assert!(ade.session(&chat)["generation"].as_u64().unwrap() <= 2);
}

// ---- kills and stops in the middle of a turn

/// Grows a tree, ends it in one of the ways, and checks that nothing is left.
#[track_caller]
fn ended_by(config: &str, end: impl Fn(&mut Ade, &Tree)) {
    let (mut ade, mut rpc) = started(config);
    let chat = chat(&ade, &mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    let file = ade.session_file(&chat);
    drop(rpc);
    assert!(!ade.is_free(&file));
    end(&mut ade, &tree);
    let events = of_turn(&ade.wait_done(&chat, &tree.turn), &tree.turn);
    assert_ne!(ended(&events), "completed");
    wait_true("the lease is free", || ade.is_free(&file));
    let lines = ade.checked_transcript(&chat);
    assert_eq!(dones(&lines).len(), 1, "exactly one");
    // Only the broker, where there is one, is left of everything.
    if ade.has_broker() {
        wait_true("only the broker is left", || ade.processes().len() == 1);
        goes_on(&ade, &chat, 2);
        let mut rpc = ade.rpc();
        rpc.call("chat.stop", json!({"sessionId": chat}));
    } else {
        assert_eq!(ade.describe(), Vec::<String>::new());
    }
    wait_true("no litter", || ade.litter().is_empty());
}

#[test]
fn sigterm_to_the_worker_takes_the_tree_down() {
    ended_by("", |_, tree| {
        signal(tree.worker, Signal::SIGTERM);
        tree.wait_gone();
    });
}

#[test]
fn sigkill_to_the_worker_takes_the_tree_down() {
    ended_by("", |_, tree| {
        signal(tree.worker, Signal::SIGKILL);
        tree.wait_gone();
    });
}

#[test]
fn sigkill_to_the_host_takes_the_tree_down() {
    ended_by("", |_, tree| {
        signal(tree.host, Signal::SIGKILL);
        tree.wait_gone();
    });
}

#[test]
fn sigkill_to_worker_and_host_takes_the_tree_down() {
    ended_by("", |_, tree| {
        signal(tree.host, Signal::SIGKILL);
        signal(tree.worker, Signal::SIGKILL);
        tree.wait_gone();
    });
}

#[test]
fn sigterm_to_the_broker_takes_the_tree_down() {
    ended_by("", |ade, tree| {
        assert_eq!(ade.stop_broker(), Some(0));
        assert_eq!(tree.alive(), Vec::<i32>::new());
        assert!(!ade.socket().exists());
    });
}

#[test]
fn sigkill_to_the_broker_and_its_workers_stop_by_themselves() {
    ended_by(SHORT_GRACE, |ade, tree| {
        ade.kill_broker();
        tree.wait_gone();
        assert_eq!(ade.describe(), Vec::<String>::new());
        // The end of the turn is told by the next broker.
        ade.serve();
    });
}

#[test]
fn sigkill_to_broker_and_worker_is_swept_by_the_next_broker() {
    ended_by("", |ade, tree| {
        ade.kill_broker();
        signal(tree.worker, Signal::SIGKILL);
        // The host dies with its worker; what left its group is the sweep's.
        wait_true("the host is gone", || !is_alive(tree.host));
        ade.serve();
        tree.wait_gone();
    });
}

#[test]
fn h05_a_killed_broker_leaves_nothing_in_the_way_of_the_next() {
    let (mut ade, mut rpc) = started("");
    let chats: Vec<String> = (0..3).map(|_| chat(&ade, &mut rpc, 60_000)).collect();
    let trees: Vec<Tree> = chats.iter().map(|id| ade.grow(&mut rpc, id, "")).collect();
    let files: Vec<_> = chats.iter().map(|id| ade.session_file(id)).collect();
    // Two workers die with their broker; the third one lives.
    ade.kill_broker();
    for tree in &trees[..2] {
        signal(tree.worker, Signal::SIGKILL);
    }
    assert!(ade.socket().exists(), "a leftover");
    ade.serve();
    for n in 0..2 {
        trees[n].wait_gone();
        assert!(ade.is_free(&files[n]), "{}", files[n].display());
        let info = ade.session(&chats[n]);
        assert_eq!(
            (&info["state"], &info["workerPid"]),
            (&json!("idle"), &Value::Null)
        );
        assert_eq!(info["lastStatus"], "failed");
        assert_eq!(dones(&ade.checked_transcript(&chats[n])).len(), 1);
        goes_on(&ade, &chats[n], 2);
    }
    assert!(!ade.is_free(&files[2]));
    ade.wait_state(&chats[2], "streaming");
    assert_eq!(trees[2].alive(), trees[2].pids());
    ade.rpc().call("chat.stop", json!({"sessionId": chats[2]}));
    assert_eq!(trees[2].alive(), Vec::<i32>::new());
}

// ---- another broker

/// Words of a turn that `!words` streams, in order and without a gap.
#[track_caller]
fn assert_words(events: &[Value]) {
    let text = text_of(events);
    let (_, words) = text.split_once("word").expect("words");
    let words = format!("word{words}");
    for (n, word) in words.split_terminator(' ').enumerate() {
        assert_eq!(word, format!("word{}", n + 1));
    }
}

#[test]
fn sigkill_to_the_broker_and_the_next_one_takes_the_turn_over() {
    let (mut ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    let file = ade.session_file(&chat);
    drop(rpc);
    ade.kill_broker();
    // The worker keeps its turn and looks for a broker: here it finds us.
    let path = ade.home().join("run/workers.sock");
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let mut hello = String::new();
    BufReader::new(stream).read_line(&mut hello).unwrap();
    let hello: Value = serde_json::from_str(&hello).unwrap();
    assert_eq!(hello["type"], "hello");
    assert_eq!(hello["sessionKey"], tree.session.as_str());
    assert_eq!(hello["state"]["turnId"], tree.turn.as_str());
    assert_eq!(tree.alive(), tree.pids());
    drop(listener);

    let before = ade.transcript(&chat).len() as u64;
    ade.serve();
    let mut rpc = ade.rpc();
    rpc.subscribe(&chat, before);
    rpc.event("the turn streams on", |e| {
        e["event"]["type"] == "text" && e["turnId"] == tree.turn.as_str()
    });
    assert_eq!(tree.alive(), tree.pids());
    let info = ade.session(&chat);
    assert_eq!(
        (&info["state"], &info["generation"]),
        (&json!("streaming"), &json!(1))
    );
    assert_eq!(info["leaseHeld"], true);
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&tree.turn);
    let lines = ade.checked_transcript(&chat);
    assert_eq!(
        dones(&lines),
        [(tree.turn.clone(), "interrupted".to_owned())]
    );
    assert_words(&lines);
    goes_on(&ade, &chat, 1);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert_eq!(tree.alive(), Vec::<i32>::new());
    assert!(ade.is_free(&file));
}

#[test]
fn a_taken_over_worker_that_is_killed_takes_its_tree_along() {
    let (mut ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    let file = ade.session_file(&chat);
    drop(rpc);
    ade.kill_broker();
    ade.serve();
    ade.wait_state(&chat, "streaming");
    // It is no child of this broker any more.
    signal(tree.worker, Signal::SIGKILL);
    tree.wait_gone();
    let events = of_turn(&ade.wait_done(&chat, &tree.turn), &tree.turn);
    assert_eq!(ended(&events), "failed");
    assert_eq!(of_type(&events, "error").len(), 1);
    wait_true("the lease is free", || ade.is_free(&file));
    goes_on(&ade, &chat, 2);
}

#[test]
fn a_host_that_ignores_every_request_is_taken_down_rung_by_rung() {
    let (ade, mut rpc) = started(SHORT_LADDER);
    let chat = chat(&ade, &mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "!ignore-term\n");
    let file = ade.session_file(&chat);
    let begin = Instant::now();
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert_eq!(
        tree.alive(),
        Vec::<i32>::new(),
        "the answer comes after the death"
    );
    let took = begin.elapsed().as_millis();
    assert!(took >= 900, "no rung was left out: {took} ms");
    assert!(ade.is_free(&file));
    assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
    goes_on(&ade, &chat, 2);
}

#[test]
fn ade_stop_in_mid_turn_ends_each_turn_once_and_what_waits_behind_it() {
    let (mut ade, mut rpc) = started("");
    let mut chats = Vec::new();
    for prompt in [
        "!words 1000000 20",
        "!card Run it? | x",
        "!hang",
        "!long-tool 300000",
    ] {
        let chat = chat(&ade, &mut rpc, 60_000);
        let (turn, after) = ade.send(&mut rpc, &chat, prompt);
        let (queued, _) = ade.send(&mut rpc, &chat, "behind it");
        let seen = ["text", "card_opened", "status", "tool_call"];
        let mut watch = ade.rpc();
        watch.subscribe(&chat, after);
        watch.event("a sign of life", |e| {
            seen.contains(&e["event"]["type"].as_str().unwrap_or_default())
        });
        chats.push((chat, [turn, queued]));
    }
    ade.wait_state(&chats[2].0, "awaiting_first_event");
    ade.expect_code(0, &["stop"]);
    for (chat, turns) in &chats {
        let mut ended = dones(&ade.checked_transcript(chat));
        ended.sort();
        let interrupted = |turn: String| (turn, "interrupted".to_owned());
        let mut expected = turns.clone().map(interrupted);
        expected.sort();
        assert_eq!(ended, expected);
    }
    ade.expect_broker_ended(0);
    assert_eq!(ade.describe(), Vec::<String>::new());
    assert_eq!(ade.litter(), Vec::<std::path::PathBuf>::new());
    assert!(!ade.socket().exists());
}

#[test]
fn what_waited_when_broker_and_worker_were_killed_goes_first_with_the_next_message() {
    let (mut ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    let (queued, _) = ade.send(&mut rpc, &chat, "behind it");
    drop(rpc);
    ade.kill_broker();
    signal(tree.worker, Signal::SIGKILL);
    ade.serve();
    tree.wait_gone();
    ade.wait_done(&chat, &tree.turn);
    wait_true("the queue is restored", || {
        ade.session(&chat)["queued"] == 1
    });
    let notices = notices(&ade.transcript(&chat));
    assert!(
        notices.iter().any(|text| text.contains("waited")),
        "{notices:?}"
    );
    let (last, _) = ade.send(&mut ade.rpc(), &chat, "and you?");
    ade.wait_done(&chat, &last);
    let lines = ade.checked_transcript(&chat);
    let statuses: Vec<(String, String)> = [
        (tree.turn, "failed"),
        (queued, "completed"),
        (last, "completed"),
    ]
    .map(|(turn, status)| (turn, status.to_owned()))
    .to_vec();
    assert_eq!(dones(&lines), statuses);
}

#[test]
fn h14_sigterm_has_an_end_whatever_the_clients_and_agents_do() {
    let (mut ade, mut rpc) = started("");
    let idle = chat(&ade, &mut rpc, 60_000);
    ade.turn(&idle, "hello");
    let busy = chat(&ade, &mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &busy, "!ignore-term\n");
    let asking = chat(&ade, &mut rpc, 60_000);
    let (asked, after) = ade.send(&mut rpc, &asking, "!card Run it? | x");
    let mut watch = ade.rpc();
    watch.subscribe(&asking, after);
    let card = watch.card();
    // A client that never reads, with more to read than fits on the way.
    let flood = chat(&ade, &mut rpc, 60_000);
    let deaf = Deaf::subscribe(&ade.socket(), &flood, None);
    let (_, after) = ade.send(&mut rpc, &flood, "!events 2000 4000\n!hang");
    rpc.subscribe(&flood, after);
    let mut seen = 0;
    while seen < 2000 {
        rpc.event("the flood", |e| e["event"]["type"] == "text");
        seen += 1;
    }
    let begin = Instant::now();
    assert_eq!(ade.stop_broker(), Some(0));
    let took = begin.elapsed();
    assert!(took.as_secs() < 20, "the documented end: {took:?}");
    assert_eq!(tree.alive(), Vec::<i32>::new());
    assert_eq!(ade.describe(), Vec::<String>::new());
    assert!(!ade.socket().exists() && !ade.home().join("run/workers.sock").exists());
    assert_eq!(ade.litter(), Vec::<std::path::PathBuf>::new());
    let events = of_turn(&ade.checked_transcript(&asking), &asked);
    let resolved = &of_type(&events, "card_resolved")[0];
    assert_eq!(resolved["cardId"], card.as_str());
    assert_eq!(resolved["resolution"]["why"], "shutting_down");
    for chat in [&idle, &busy, &flood] {
        assert_eq!(dones(&ade.checked_transcript(chat)).len(), 1);
    }
    drop(deaf);
}

#[test]
fn h14_a_second_sigterm_shortens_the_grace() {
    // A ladder of three minutes, for a host that needs all of it.
    let config = "[worker]\neof_grace_ms = 60000\n\n\
        [providers.scripted]\ndispose_grace_ms = 60000\nterm_to_kill_ms = 60000\n";
    let (mut ade, mut rpc) = started(config);
    let chat = chat(&ade, &mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "!ignore-term\n");
    signal(ade.broker_pid(), Signal::SIGTERM);
    // A connection that was there before is served until the end.
    wait_true("the first signal is taken in", || {
        let list = rpc.call("sessions.list", json!({}));
        let info = &list["sessions"][0];
        info["state"] == "stopping" && info["stopStage"] == "dispose"
    });
    assert_eq!(ade.stop_broker(), Some(0), "the second signal");
    assert_eq!(tree.alive(), Vec::<i32>::new());
    assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
    assert_eq!(ade.litter(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_stopped_chat_answers_its_card_and_its_worker_is_away() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc, 60_000);
    let (turn, after) = ade.send(&mut rpc, &chat, "!card Run it? | x");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    let card = watch.card();
    let worker = pid(&ade.session(&chat), "workerPid");
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(!is_alive(worker));
    let events = watch.until_done(&turn);
    assert_eq!(ended(&events), "interrupted");
    assert_eq!(
        rpc.answer(&card, &yes("allow")).unwrap_err().kind,
        "card_gone"
    );
    goes_on(&ade, &chat, 2);
}

// ---- stops beside clients that go on

/// A turn whose host ignores every polite word, so that a stop takes a while.
const STUBBORN: &str = "!ignore-term\n!words 1000 50";

#[test]
fn a_stopping_broker_takes_nothing_new_and_leaves_nothing() {
    let (mut ade, mut rpc) = started(SHORT_LADDER);
    let talking = chat(&ade, &mut rpc, 60_000);
    let (turn, after) = ade.send(&mut rpc, &talking, STUBBORN);
    rpc.subscribe(&talking, after);
    rpc.event("a word", |e| e["event"]["type"] == "text");
    let mut other = ade.rpc();
    let stop = ade
        .command(&["stop"])
        .stdout(Stdio::null())
        .spawn()
        .expect("ade stop");
    // Until it takes nothing any more, messages are queued behind the turn and
    // end with it.
    let message = json!({"sessionId": talking, "prompt": STUBBORN});
    let mut taken = vec![turn];
    let refusal = loop {
        match other.try_call("chat.send", message.clone()) {
            Ok(sent) => taken.push(sent["turnId"].as_str().unwrap().to_owned()),
            Err(refusal) => break refusal,
        }
    };
    if refusal.kind != "queue_full" {
        assert_eq!(refusal.kind, "stopping", "{refusal:?}");
        let lane = ade.lane("late");
        let late = json!({"provider": "scripted", "lane": lane.display().to_string()});
        let refusal = other.try_call("chat.create", late).unwrap_err();
        assert_eq!(refusal.kind, "stopping", "{refusal:?}");
    }
    assert!(stop.wait_with_output().expect("ade stop").status.success());
    ade.expect_broker_ended(0);
    assert_eq!(ade.describe(), Vec::<String>::new());
    let lines = ade.checked_transcript(&talking);
    let mut ends: Vec<String> = dones(&lines).into_iter().map(|(turn, _)| turn).collect();
    ends.sort();
    taken.sort();
    assert_eq!(ends, taken, "every message that was taken has one end");
}

#[test]
fn a_stop_is_answered_although_a_message_comes_meanwhile() {
    let (ade, mut rpc) = started(SHORT_LADDER);
    let stubborn = chat(&ade, &mut rpc, 60_000);
    let (_, after) = ade.send(&mut rpc, &stubborn, STUBBORN);
    rpc.subscribe(&stubborn, after);
    rpc.event("a word", |e| e["event"]["type"] == "text");
    let before = pid(&ade.session(&stubborn), "workerPid");
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| {
            ade.rpc().call("chat.stop", json!({"sessionId": stubborn}));
        });
        wait_true("the stop has begun", || {
            !ade.session(&stubborn)["stopStage"].is_null()
        });
        ade.send(&mut rpc, &stubborn, "and now?");
        stopping.join().expect("an answer to the stop");
    });
    assert!(!is_alive(before));
    rpc.event("the answer", |e| e["event"]["type"] == "text");
    ade.rpc()
        .call("chat.delete", json!({"sessionId": stubborn}));
}

// ---- the start

/// A broker whose first agent never answers `init`, is deaf to polite words and
/// takes its time on SIGTERM; the others work. Each writes into the log when it
/// begins and ends, and `meets` when it finds an older one alive.
fn first_start_hangs() -> Ade {
    let ade = Ade::new();
    let root = ade.root().display().to_string();
    let script = format!(
        "for old in $(cat {root}/pids); do [ -d /proc/$old ] && echo meets >> {root}/log; done; \
         echo $$ >> {root}/pids; echo begins >> {root}/log; \
         mkdir {root}/hung || exec '{agent}'; \
         trap 'sleep 0.5; echo ends >> {root}/log; exit' TERM; while :; do sleep 0.05; done",
        agent = env!("CARGO_BIN_EXE_fake-agent"),
    );
    std::fs::write(ade.root().join("pids"), "").unwrap();
    let config = format!(
        "[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n\
         dispose_grace_ms = 300\nterm_to_kill_ms = 10000\n[worker]\neof_grace_ms = 300\n"
    );
    let mut ade = ade.with_config(&config);
    ade.serve();
    ade
}

/// The turn of a start that hangs ends at once, and the next message simply
/// works: if it waited for that start it would fail together with it.
#[test]
fn the_message_behind_an_abort_does_not_wait_for_a_start_that_hangs() {
    type Next = fn(&mut Rpc, &Ade, &str) -> String;
    let said_after: Next = |rpc, ade, chat| {
        rpc.call("chat.abort", json!({"sessionId": chat}));
        ade.send(rpc, chat, "emit works").0
    };
    let queued: Next = |rpc, ade, chat| {
        let (next, _) = ade.send(rpc, chat, "emit works");
        rpc.call("chat.abort", json!({"sessionId": chat}));
        next
    };
    let replace: Next = |rpc, _, chat| {
        let more = json!({"sessionId": chat, "prompt": "emit works", "mode": "replace"});
        let promise = rpc.call("chat.interrupt", more);
        promise["turnId"].as_str().unwrap().to_owned()
    };
    let go_on: Next = |rpc, _, chat| {
        let more = json!({"sessionId": chat, "prompt": "emit works", "mode": "continue"});
        let promise = rpc.call("chat.interrupt", more);
        promise["turnId"].as_str().unwrap().to_owned()
    };
    for next in [said_after, queued, replace, go_on] {
        let ade = first_start_hangs();
        let mut rpc = ade.rpc();
        let chat = chat(&ade, &mut rpc, 60_000);
        let (hangs, _) = ade.send(&mut rpc, &chat, "emit never");
        wait_true("the agent hangs", || ade.root().join("hung").exists());
        let works = next(&mut rpc, &ade, &chat);
        let lines = ade.wait_done(&chat, &works);
        assert_eq!(ended(&of_turn(&lines, &hangs)), "interrupted");
        let events = of_turn(&lines, &works);
        assert_eq!(
            (ended(&events), text_of(&events).as_str()),
            ("completed", "works")
        );
        let order = [(hangs, "interrupted"), (works, "completed")];
        assert_eq!(
            dones(&lines),
            order.map(|(turn, end)| (turn, end.to_owned()))
        );
        let log = std::fs::read_to_string(ade.root().join("log")).unwrap();
        assert_eq!(log, "begins\nends\nbegins\n", "two generations met");
        let _ = ade.checked_transcript(&chat);
    }
}
