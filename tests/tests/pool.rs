//! More chats than workers: the line, who makes room, and the start budget. On
//! the scripted provider.

use ade_tests::ade::{Ade, started};
use ade_tests::rpc::Rpc;
use ade_tests::wait::{wait_true, wait_until};
use serde_json::json;

fn chats(ade: &Ade, rpc: &mut Rpc, count: usize) -> Vec<String> {
    let lane = ade.lane("one");
    (0..count)
        .map(|_| ade.chat(rpc, "scripted", &lane, json!({})))
        .collect()
}

fn state(ade: &Ade, chat: &str) -> String {
    ade.session(chat)["state"]
        .as_str()
        .expect("a state")
        .to_owned()
}

#[test]
fn who_finds_no_place_waits_in_order_and_sees_where_it_stands() {
    let (ade, mut rpc) = started("[pool]\nmax_workers = 1\n");
    let chats = chats(&ade, &mut rpc, 3);
    ade.send(&mut rpc, &chats[0], "!emit x\n!hang");
    wait_true("the first streams", || {
        state(&ade, &chats[0]) == "streaming"
    });
    let turns: Vec<String> = chats[1..]
        .iter()
        .enumerate()
        .map(|(index, chat)| {
            let turn = ade.send(&mut rpc, chat, "!words 3 1").0;
            wait_true("it waits", || {
                let info = ade.session(chat);
                info["state"] == "waiting" && info["place"] == index + 1
            });
            turn
        })
        .collect();
    let (table, _) = ade.expect_code(0, &["ps"]);
    assert!(table.contains("waiting (place 2)"), "{table}");
    wait_true("the second is told", || {
        let lines = ade.transcript(&chats[2]);
        lines.iter().any(|line| line["event"]["type"] == "notice")
    });
    rpc.call("chat.abort", json!({"sessionId": chats[0]}));
    // The first is idle now, and nobody watches it: it makes room.
    for (chat, turn) in chats[1..].iter().zip(&turns) {
        let mut watcher = ade.rpc();
        watcher.subscribe(chat, 0);
        let events = watcher.until_done(turn);
        let told = events.iter().filter(|event| {
            let text = event["event"]["message"].as_str().unwrap_or_default();
            text.contains("in the line")
        });
        assert_eq!(told.count(), 1, "{events:?}");
        assert_eq!(
            events.last().expect("an event")["event"]["status"],
            "completed"
        );
    }
    // And comes back with its context.
    let events = ade.turn(&chats[0], "!recall");
    assert!(ade_tests::rpc::text_of(&events).contains("!hang"));
    assert_eq!(ade.session(&chats[0])["generation"], 2);
}

#[test]
fn the_least_recently_used_idle_worker_makes_room_and_a_watched_one_stays() {
    let (ade, mut rpc) = started("[pool]\nmax_workers = 3\n");
    let chats = chats(&ade, &mut rpc, 4);
    let mut watcher = ade.rpc();
    watcher.subscribe(&chats[0], 0);
    for chat in &chats[..3] {
        // Not through a subscription: it would watch them.
        let (turn, _) = ade.send(&mut rpc, chat, "hello");
        wait_true("the turn ends", || {
            ade.session(chat)["lastStatus"] == "completed" && !turn.is_empty()
        });
    }
    ade.send(&mut rpc, &chats[3], "hello");
    wait_true("the last one ends", || {
        ade.session(&chats[3])["lastStatus"] == "completed"
    });
    let lives: Vec<bool> = chats
        .iter()
        .map(|chat| ade.session(chat)["workerPid"].is_i64())
        .collect();
    assert_eq!(lives, [true, false, true, true]);
}

#[test]
fn an_idle_worker_is_put_away_unless_somebody_watches() {
    let (ade, mut rpc) = started("[providers.scripted]\nidle_put_away_ms = 200\n");
    let chats = chats(&ade, &mut rpc, 2);
    let mut watcher = ade.rpc();
    watcher.subscribe(&chats[0], 0);
    for chat in &chats {
        ade.send(&mut rpc, chat, "hello");
    }
    let put_away = |chat: &str| {
        wait_true("the other is put away", || {
            let info = ade.session(chat);
            info["lastStatus"] == "completed" && info["workerPid"].is_null()
        });
    };
    put_away(&chats[1]);
    let watched = ade.session(&chats[0])["workerPid"].clone();
    assert!(watched.is_i64(), "it is watched");
    // A whole idle time later too.
    ade.send(&mut rpc, &chats[1], "hello again");
    wait_true("the other works again", || {
        ade.session(&chats[1])["generation"] == 2
    });
    put_away(&chats[1]);
    let info = ade.session(&chats[0]);
    assert_eq!(
        (&info["workerPid"], &info["generation"]),
        (&watched, &json!(1))
    );
}

/// A host that ends at once, five messages: as many starts as the budget has,
/// with growing pauses, and each message fails with the reason.
#[test]
fn j10_a_host_that_ends_at_once_is_started_as_often_as_the_budget_says() {
    let config = "[providers.scripted]\nhost = \"/bin/false\"\n[pool]\npause_second_ms = 500\n";
    let (ade, mut rpc) = started(config);
    let chats = chats(&ade, &mut rpc, 2);
    let mut watcher = ade.rpc();
    watcher.subscribe(&chats[0], 0);
    let sent: Vec<String> = (0..5)
        .map(|n| ade.send(&mut rpc, &chats[0], &format!("message {n}")).0)
        .collect();
    let mut reasons = Vec::new();
    for turn in &sent {
        let events = watcher.until_done(turn);
        let error = events
            .iter()
            .find(|event| event["event"]["type"] == "error");
        let error = error.expect("a reason")["event"].clone();
        reasons.push(error["message"].as_str().expect("a text").to_owned());
    }
    assert_eq!(ade.session(&chats[0])["generation"], 3, "{reasons:?}");
    assert!(reasons[4].contains("3 times"), "{reasons:?}");
    assert_eq!(state(&ade, &chats[0]), "failed");
    let refused = rpc
        .try_call(
            "chat.send",
            json!({"sessionId": chats[0], "prompt": "more"}),
        )
        .expect_err("nothing is started");
    assert_eq!(refused.kind, "start_budget");
    // Another chat does not get three more: it is the agent that is broken.
    let events = ade.turn(&chats[1], "hello");
    let error = events
        .iter()
        .find(|event| event["event"]["type"] == "error");
    let error = error.expect("a reason")["event"].clone();
    assert!(
        error["detail"]
            .as_str()
            .unwrap_or_default()
            .contains("provider_start_budget")
    );
    assert_eq!(ade.session(&chats[1])["generation"], 0);
    // Until somebody says so.
    rpc.call("chat.reset", json!({"sessionId": chats[1]}));
    ade.turn(&chats[1], "hello");
    assert_eq!(ade.session(&chats[1])["generation"], 1);
    wait_until("nothing is left of them", || {
        let left: Vec<String> = ade.describe();
        left.iter().all(|line| line.contains("serve")).then_some(())
    });
}

/// A start that is cancelled takes a while to end: its agent is deaf. Whatever
/// comes next waits for that.
#[test]
fn a_start_that_was_cancelled_is_gone_before_the_next_one_begins() {
    let ade = Ade::new();
    let overlaps = "kill -0 $(cat first) 2> /dev/null && : > overlap";
    let host = ade_tests::hosts::deaf_at_first(ade.root(), overlaps);
    let config = format!("{host}dispose_grace_ms = 300\nterm_to_kill_ms = 300\n");
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    ade.send(&mut rpc, &chat, "one");
    wait_true("the first host runs", || lane.join("first").exists());
    let (mut other, session) = (ade.rpc(), chat.clone());
    let stop = std::thread::spawn(move || other.call("chat.stop", json!({"sessionId": session})));
    wait_true("its turn ends at once", || {
        ade.session(&chat)["lastStatus"] == "interrupted"
    });
    let (turn, after) = ade.send(&mut rpc, &chat, "two");
    rpc.subscribe(&chat, after);
    let events = rpc.until_done(&turn);
    assert_eq!(ade_tests::rpc::text_of(&events), "here", "{events:#?}");
    stop.join().expect("the answer to the stop");
    assert!(!lane.join("overlap").exists(), "two generations at once");
}
