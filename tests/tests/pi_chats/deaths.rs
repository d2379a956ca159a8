//! Deaths of every process in the middle of a command, and ordinary ends.

use std::path::PathBuf;
use std::time::Duration;

use ade_leases::lease;
use ade_leases::process::Signal;
use ade_tests::ade::signal;
use ade_tests::pi::{PiAde, answer, bash, error_of, next, next_card, one_branch, status_of};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::of_type;
use ade_tests::wait::wait_within;
use serde_json::json;

use crate::{DEAD_WITHIN, HELLO, SOON};

/// Starts a turn whose command leaves a child, a child in a session of its own,
/// and waits for a third.
fn busy(pi: &PiAde) -> (String, Rpc, String) {
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let command = "sleep 300 & (setsid sleep 301 &) ; sleep 302";
    let (rpc, turn) = pi.send(&chat, &bash(command));
    for sleep in ["sleep 300", "sleep 301", "sleep 302"] {
        pi.wait_command(sleep);
    }
    assert!(lease::is_held(&pi.ade.session_file(&chat)));
    (chat, rpc, turn)
}

/// The turn has ended once, the session is free, and the chat goes on.
#[track_caller]
fn goes_on(pi: &PiAde, chat: &str, status: &str) {
    let file = pi.ade.session_file(chat);
    assert!(!lease::is_held(&file), "the lease is free");
    assert_eq!(status_of(&pi.ade.transcript(chat)), status);
    assert_eq!(text_of(&pi.completed(chat, "hello")), HELLO);
    assert_eq!(pi.ade.session_file(chat), file);
    one_branch(&file, &pi.ade.lane("lane"));
}

#[test]
fn a_worker_that_is_told_to_end_takes_everything_along() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = busy(&pi);
    signal(pi.pid(&chat, "workerPid"), Signal::SIGTERM);
    pi.wait_only_broker(DEAD_WITHIN);
    let status = status_of(&rpc.until_done(&turn));
    assert_ne!(status, "completed");
    goes_on(&pi, &chat, &status);
}

/// One of a chat's two processes is killed in the middle of a turn.
#[track_caller]
fn killed_leaves_nothing(which: &str) {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = busy(&pi);
    signal(pi.pid(&chat, which), Signal::SIGKILL);
    pi.wait_only_broker(DEAD_WITHIN);
    let error = error_of(&rpc.until_done(&turn));
    assert_eq!(error["category"], "exited");
    let message = error["message"].as_str().expect("a sentence");
    assert!(message.contains("SIGKILL"), "{error}");
    goes_on(&pi, &chat, "failed");
}

#[test]
fn a_worker_that_is_killed_leaves_nothing() {
    killed_leaves_nothing("workerPid");
}

#[test]
fn a_host_that_is_killed_leaves_nothing() {
    killed_leaves_nothing("hostPid");
}

#[test]
fn workers_of_a_killed_broker_end_by_themselves() {
    let config = "[worker]\norphan_idle_ms = 500\norphan_turn_ms = 1000\n";
    let mut pi = PiAde::serve_with(config);
    let idle = pi.chat("lane", "fake/fake-text", "full-auto");
    pi.completed(&idle, "hello");
    let (chat, _rpc, _) = busy(&pi);
    let files = [&idle, &chat].map(|chat| pi.ade.session_file(chat));
    pi.ade.kill_broker();
    pi.wait_alone(None, Duration::from_secs(1) + DEAD_WITHIN);
    for file in &files {
        assert!(!lease::is_held(file), "{}", file.display());
    }
    pi.ade.serve();
    let error = error_of(&pi.ade.transcript(&chat));
    assert!(
        error["detail"]
            .as_str()
            .unwrap()
            .starts_with("kind: broker_ended"),
        "{error}"
    );
    goes_on(&pi, &chat, "failed");
    assert_eq!(text_of(&pi.completed(&idle, "hello")), HELLO);
}

#[test]
fn a_new_broker_takes_over_what_a_killed_one_left() {
    let mut pi = PiAde::without_broker(&["--drip-ms", "20"]);
    pi.ade.serve();
    let (chat, _rpc, turn) = busy(&pi);
    let asking = pi.chat("lane", "fake/fake-text", "default");
    let (mut ask, _) = pi.send(&asking, &bash("touch allowed"));
    next_card(&mut ask);
    let telling = pi.chat("lane", "fake/fake-drip", "default");
    let (mut tell, told) = pi.send(&telling, "slowly");
    next(&mut tell, "text");
    let workers = [&chat, &asking, &telling].map(|chat| pi.pid(chat, "workerPid"));

    pi.ade.kill_broker();
    pi.ade.serve();
    let mut rpc = pi.ade.rpc();
    rpc.subscribe(&telling, 0);
    let events = rpc.until_done(&told);
    assert_eq!(status_of(&events), "completed");
    let words: String = (0..200).map(|n| format!("w{n} ")).collect();
    assert_eq!(text_of(&events), words, "nothing is lost and nothing twice");
    assert_eq!(pi.model.requests().len(), 3, "nothing was sent again");

    let cards = rpc.call("cards.list", json!({}))["cards"].clone();
    assert_eq!(cards.as_array().unwrap().len(), 1, "{cards}");
    rpc.subscribe(
        &asking,
        pi.ade.session(&asking)["lastSequence"].as_u64().unwrap(),
    );
    answer(&mut rpc, &cards[0], "allow");
    next(&mut rpc, "done");
    assert!(pi.ade.lane("lane").join("allowed").exists());
    assert_eq!(status_of(&pi.ade.transcript(&asking)), "completed");

    rpc.call("chat.abort", json!({"sessionId": chat, "turnId": turn}));
    rpc.subscribe(&chat, 0);
    assert_eq!(status_of(&rpc.until_done(&turn)), "interrupted");
    assert_eq!(
        workers,
        [&chat, &asking, &telling].map(|chat| pi.pid(chat, "workerPid"))
    );
    for chat in [&chat, &asking, &telling] {
        assert!(lease::is_held(&pi.ade.session_file(chat)));
        pi.stop(chat);
    }
    pi.wait_only_broker(DEAD_WITHIN);
    goes_on(&pi, &chat, "interrupted");
    pi.stop(&chat);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

#[test]
fn a_new_broker_ends_what_a_killed_worker_left() {
    let mut pi = PiAde::serve();
    let (chat, _rpc, _) = busy(&pi);
    let worker = pi.pid(&chat, "workerPid");
    pi.ade.kill_broker();
    signal(worker, Signal::SIGKILL);
    // The host follows its worker; what the command started has nobody now.
    pi.ade.serve();
    pi.wait_only_broker(DEAD_WITHIN);
    assert_eq!(pi.ade.session(&chat)["state"], "idle");
    let error = error_of(&pi.ade.transcript(&chat));
    assert_eq!(error["category"], "exited");
    goes_on(&pi, &chat, "failed");
    pi.stop(&chat);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

#[test]
fn stop_ends_every_turn_once() {
    let mut pi = PiAde::serve();
    let working = pi.chat("lane", "fake/fake-text", "full-auto");
    let asking = pi.chat("lane", "fake/fake-text", "default");
    let (_working, _) = pi.send(&working, &bash("sleep 300"));
    let (mut rpc, _) = pi.send(&asking, &bash("touch ran"));
    pi.wait_command("sleep 300");
    next_card(&mut rpc);
    pi.ade.expect_code(0, &["stop"]);
    assert_eq!(pi.ade.stop_broker(), Some(0));
    pi.wait_alone(None, Duration::from_secs(1));
    for chat in [&working, &asking] {
        assert_eq!(status_of(&pi.ade.transcript(chat)), "interrupted");
    }
    assert!(!pi.ade.lane("lane").join("ran").exists());
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
    let resolved = wait_within("the card's end", SOON, || {
        let transcript = pi.ade.transcript(&asking);
        of_type(&transcript, "card_resolved")
            .first()
            .map(|event| event["resolution"].clone())
    });
    assert_eq!(
        resolved,
        json!({"outcome": "withdrawn", "why": "shutting_down"})
    );
}

#[test]
fn what_a_command_leaves_behind_ends_with_the_chat() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let leaves = bash("(setsid sleep 300 >/dev/null 2>&1 &) ; nohup sleep 301 >/dev/null 2>&1 & ");
    pi.completed(&chat, &leaves);
    pi.wait_command("sleep 300");
    pi.wait_command("sleep 301");
    let much = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100";
    let events = pi.completed(&chat, &bash(much));
    let result = &of_type(&events, "tool_result")[0];
    assert_eq!(result["ok"], true);
    let length = result["text"].as_str().unwrap().len();
    assert!(
        (1_000..100_000).contains(&length),
        "Pi keeps the end: {length}"
    );
    pi.stop(&chat);
    pi.wait_only_broker(Duration::from_secs(1));
}
