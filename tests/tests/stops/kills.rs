//! Kills of broker, worker and host in the middle of a turn, and the next
//! broker.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, signal, started};
use ade_tests::rpc::text_of;
use ade_tests::turns::{Tree, dones, ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

use super::notices;

/// Workers that don't wait long for another broker.
const SHORT_GRACE: &str = "[worker]\norphan_idle_ms = 300\norphan_turn_ms = 300\n";

/// Grows a tree, ends it in one of the ways, and checks that nothing is left.
#[track_caller]
fn ended_by(config: &str, end: impl Fn(&mut Ade, &Tree)) {
    let (mut ade, mut rpc) = started(config);
    let chat = ade.scripted_chat(&mut rpc, 60_000);
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
        ade.goes_on(&chat, 2);
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
    let chats: Vec<String> = (0..3)
        .map(|_| ade.scripted_chat(&mut rpc, 60_000))
        .collect();
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
        ade.goes_on(&chats[n], 2);
    }
    assert!(!ade.is_free(&files[2]));
    ade.wait_state(&chats[2], "streaming");
    assert_eq!(trees[2].alive(), trees[2].pids());
    ade.rpc().call("chat.stop", json!({"sessionId": chats[2]}));
    assert_eq!(trees[2].alive(), Vec::<i32>::new());
}

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
    let chat = ade.scripted_chat(&mut rpc, 60_000);
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
    ade.goes_on(&chat, 1);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert_eq!(tree.alive(), Vec::<i32>::new());
    assert!(ade.is_free(&file));
}

#[test]
fn a_taken_over_worker_that_is_killed_takes_its_tree_along() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
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
    ade.goes_on(&chat, 2);
}

#[test]
fn what_waited_when_broker_and_worker_were_killed_goes_first_with_the_next_message() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
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
