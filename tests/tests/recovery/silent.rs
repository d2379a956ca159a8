//! How the run of a silent worker is let go, over brokers that die too.

use std::time::{Duration, Instant};

use ade_tests::ade::Ade;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{SILENT_MS, dones, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

use super::{REPLAY, error, file, flags, goes_on, heard, standing, started, status, users};

#[test]
fn a_silent_run_has_its_moment_to_end_and_no_longer() {
    // One that answers costs nothing of a bound that is never reached.
    let (ade, _, chat) = started("[turns]\ncancel_ms = 600000\n");
    let events = ade.turn(&chat, "!hang-once\n!emit done");
    assert_eq!(status(&events), "completed");
    drop(ade);
    // One that reads nothing any more costs all of it.
    let (ade, _, chat) = started("[turns]\ncancel_ms = 2500\n");
    let begin = Instant::now();
    let events = ade.turn(&chat, "!stop-reading-once\n!hang-once\n!emit done");
    assert_eq!(status(&events), "completed", "{events:?}");
    let bounds = Duration::from_millis(SILENT_MS + 2500);
    assert!(begin.elapsed() >= bounds, "{:?}", begin.elapsed());
    goes_on(&ade, &chat);
}

#[test]
fn what_a_run_says_late_that_was_given_up_is_not_shown() {
    // It answers `interrupted` while the next worker is awaited; behind a word of
    // which nobody knows what else was done, or without one.
    for (word, expected) in [
        ("", ("completed", "done")),
        (" a late word", ("failed", "")),
    ] {
        let (ade, _, chat) = started("[turns]\ncancel_ms = 100\n");
        let script = format!("!slow-abort 600{word}\n!hang-once\n!emit done");
        let events = heard(&ade, &chat, &script);
        assert_eq!((status(&events), text_of(&events).as_str()), expected);
        if expected.0 == "failed" {
            let told = error(&events)["message"].as_str().expect("a sentence");
            assert!(told.starts_with("delivered, outcome unknown"), "{told}");
        }
        assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
        assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
    }
}

/// The one broker dies while a silent run ends; the other one finds that it had
/// worked after all.
#[test]
fn a_run_that_was_heard_between_two_brokers_is_not_sent_again() {
    let (mut ade, mut rpc, chat) = started("[turns]\ncancel_ms = 600000\n");
    let script = "!slow-abort 300 a late word\n!hang-once\n!emit done";
    let (turn, _) = ade.send(&mut rpc, &chat, script);
    ade.wait_state(&chat, "recovering");
    let file = file(&ade, &chat);
    drop(rpc);
    ade.kill_broker();
    wait_true("the run has ended", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains("a late word"))
    });
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(status(&events), "failed", "{events:?}");
    let told = error(&events)["message"].as_str().expect("a sentence");
    assert!(told.contains("it had been told to stop"), "{told}");
    assert!(told.contains("not sent again"), "{told}");
    assert_eq!(text_of(&events), "a late word");
    assert_eq!(ade.session(&chat)["generation"], 1, "the worker is kept");
    assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
}

/// A chat whose silent worker takes long to end its run.
fn cancelling(before: &str) -> (Ade, Rpc, String, String) {
    let (ade, mut rpc, chat) = started("[turns]\ncancel_ms = 600000\n");
    let script = format!("{before}!slow-abort 1200\n!hang-once\n!emit done");
    rpc.subscribe(&chat, 0);
    let (turn, _) = ade.send(&mut rpc, &chat, &script);
    ade.wait_state(&chat, "recovering");
    (ade, rpc, chat, turn)
}

#[test]
fn r15_a_stop_while_a_silent_run_ends_is_honoured() {
    let (ade, mut rpc, chat, turn) = cancelling("");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let events = rpc.until_done(&turn);
    assert_eq!(status(&events), "interrupted");
    assert_eq!(
        of_type(&events, "notice").len(),
        0,
        "nothing was sent again"
    );
    assert_eq!(text_of(&events), "");
    assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
    assert_eq!(
        ade.session(&chat)["generation"],
        2,
        "the recovery completes"
    );
    goes_on(&ade, &chat);
}

#[test]
fn r16_a_steer_while_a_silent_run_ends_is_a_turn_of_its_own_behind_it() {
    let (ade, mut rpc, chat, turn) = cancelling("");
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    let steered = rpc.call("chat.steer", asked);
    assert_eq!(steered["outcome"], "queued");
    let own = steered["turnId"].as_str().expect("a turn").to_owned();
    let events = rpc.until_done(&own);
    let all = dones(&events);
    let completed = |turn: &str| (turn.to_owned(), "completed".to_owned());
    assert_eq!(all, [completed(&turn), completed(&own)]);
    assert_eq!(text_of(&events), "doneYou said: and this");
    let cancelled = of_type(&events, "notice")
        .iter()
        .filter(|notice| {
            notice["message"]
                .as_str()
                .is_some_and(|text| text.contains("dropped:"))
        })
        .count();
    assert_eq!(cancelled, 0, "delivered, so not cancelled");
    goes_on(&ade, &chat);
}

#[test]
fn a_silent_run_that_was_given_up_stays_given_up_when_the_broker_dies() {
    let (mut ade, rpc, chat, turn) = cancelling("");
    drop(rpc);
    ade.kill_broker();
    assert_eq!(standing(&ade, &chat), "recovering");
    assert_eq!(flags(&ade, &chat), (false, true));
    // Its worker lives, and is about to say `interrupted`.
    ade.serve();
    let mut rpc = ade.rpc();
    rpc.subscribe(&chat, 0);
    let events = rpc.until_done(&turn);
    assert_eq!(
        (status(&events), text_of(&events).as_str()),
        ("completed", "done")
    );
    assert_eq!(users(&file(&ade, &chat)).len(), 1, "stands once");
    assert_eq!(ade.session(&chat)["generation"], 2);
    assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
    goes_on(&ade, &chat);
}

#[test]
fn why_a_message_was_sent_again_is_known_to_the_next_broker() {
    let config = "[turns]\ncancel_ms = 600000\n";
    let (mut ade, mut rpc, chat) = started(config);
    let (turn, _) = ade.send(&mut rpc, &chat, "!slow-abort 1200\n!hang");
    ade.wait_state(&chat, "recovering");
    drop(rpc);
    ade.kill_broker();
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    let told = error(&events)["message"].as_str().expect("a sentence");
    let first = "(first: the agent sent nothing for 0.7 s); the message was sent twice";
    assert!(told.contains(first), "{told}");
    goes_on(&ade, &chat);
}

/// That the user has ended a turn outlives the broker that was told so.
#[test]
fn a_turn_that_was_ended_in_its_recovery_is_not_sent_again_by_the_next_broker() {
    for config in ["", REPLAY] {
        let (mut ade, mut rpc, chat) = started(config);
        ade.turn(&chat, "hello");
        // It takes long to leave: time enough for the user and for the death.
        let (turn, _) = ade.send(&mut rpc, &chat, "!ignore-term\n!hang-once\n!emit again");
        ade.wait_state(&chat, "recovering");
        rpc.call("chat.abort", json!({"sessionId": chat}));
        drop(rpc);
        ade.kill_broker();
        ade.serve();
        let lines = ade.wait_done(&chat, &turn);
        let events = of_turn(&lines, &turn);
        assert_eq!(status(&events), "interrupted");
        assert_eq!(of_type(&events, "error"), Vec::<Value>::new());
        assert!(!text_of(&events).contains("again"), "{events:?}");
        goes_on(&ade, &chat);
        let _ = ade.checked_transcript(&chat);
    }
}
