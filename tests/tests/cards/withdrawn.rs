//! Cards that nobody can answer any more.

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, signal, wait_dead};
use ade_tests::cards::{allowed, resolution, withdrawn, yes};
use ade_tests::hosts::shell;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{ended, of_turn, of_type};
use serde_json::json;

use super::{GATED, asked, started};

#[test]
fn g01_an_abort_withdraws_the_card_for_everybody_and_a_late_answer_changes_nothing() {
    let (ade, mut rpc, chat) = started();
    let mut other = ade.rpc();
    other.subscribe(&chat, 0);
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    rpc.call("chat.abort", json!({"sessionId": chat}));
    for client in [&mut watch, &mut other] {
        let events = client.until_done(&turn);
        assert_eq!(ended(&events), "interrupted");
        assert_eq!(resolution(&events), withdrawn("aborted"));
    }
    let error = rpc.answer(&card, &yes("allow")).unwrap_err();
    assert_eq!(error.kind, "card_gone");
    assert!(error.message.contains("aborted"), "{}", error.message);
    // The turn ended there: a withdrawal is no denial that it goes on after.
    let lines = ade.checked_transcript(&chat);
    assert_eq!(text_of(&of_turn(&lines, &turn)), "");
    // The same worker goes on, and nothing was ever allowed.
    assert_eq!(ended(&ade.turn(&chat, "hello")), "completed");
    let lines = ade.checked_transcript(&chat);
    assert!(!allowed(&lines).contains(&true));
    assert_eq!(of_type(&lines, "card_resolved").len(), 1);
    assert_eq!(ade.session(&chat)["generation"], 1);
}

#[test]
fn a_card_of_a_chat_that_is_stopped_says_so() {
    let (ade, mut rpc, chat) = started();
    let (turn, _) = ade.send(&mut rpc, &chat, GATED);
    ade.wait_transcript(&chat, "the card", |lines| {
        !of_type(lines, "card_opened").is_empty()
    });
    rpc.call("chat.stop", json!({"sessionId": chat}));
    let events = of_turn(&ade.checked_transcript(&chat), &turn);
    assert_eq!(resolution(&events), withdrawn("stopped"));
}

#[test]
fn g05_what_nobody_answers_is_never_allowed_and_has_its_own_word() {
    let (mut ade, mut rpc, chat) = started();
    let (turn, _) = ade.send(&mut rpc, &chat, GATED);
    drop(rpc);
    // Nobody is connected: the card opens all the same, and stays.
    ade.wait_transcript(&chat, "the card", |lines| {
        !of_type(lines, "card_opened").is_empty()
    });
    assert_eq!(ade.stop_broker(), Some(0));
    let events = of_turn(&ade.checked_transcript(&chat), &turn);
    assert_eq!(resolution(&events), withdrawn("shutting_down"));
    assert_eq!(ended(&events), "interrupted");
    assert_eq!(text_of(&events), "");
    assert!(!allowed(&events).contains(&true));
    assert_eq!(ade.describe(), Vec::<String>::new());
}

#[test]
fn g05_a_card_of_a_worker_that_died_with_its_broker_is_withdrawn_by_the_next_one() {
    let (mut ade, mut rpc, chat) = started();
    let (turn, card, _) = asked(&ade, &mut rpc, &chat, GATED);
    let worker = ade.worker_of(&chat);
    ade.kill_broker();
    signal(worker, Signal::SIGKILL);
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(resolution(&events), withdrawn("worker_gone"));
    assert_eq!(ended(&events), "failed");
    assert!(!allowed(&events).contains(&true));
    let mut rpc = ade.rpc();
    assert_eq!(rpc.open_cards(), Vec::<String>::new());
    assert!(rpc.answer(&card, &yes("allow")).is_err());
}

#[test]
fn g09_a_dead_worker_withdraws_its_card_and_the_chat_takes_the_next_message() {
    let (ade, mut rpc, chat) = started();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    let worker = ade.worker_of(&chat);
    signal(worker, Signal::SIGKILL);
    let events = watch.until_done(&turn);
    assert_eq!(ended(&events), "failed");
    assert_eq!(resolution(&events), withdrawn("worker_gone"));
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0]["message"].as_str().unwrap().contains("SIGKILL"),
        "{errors:?}"
    );
    let error = rpc.answer(&card, &yes("allow")).unwrap_err();
    assert_eq!(error.kind, "card_gone");
    assert!(error.message.contains("worker"), "{}", error.message);
    assert_eq!(ended(&ade.turn(&chat, "next")), "completed");
    assert!(!allowed(&ade.checked_transcript(&chat)).contains(&true));
}

#[test]
fn a_card_whose_host_died_while_no_broker_was_there_is_withdrawn() {
    let (mut ade, mut rpc, chat) = started();
    let (turn, card, _) = asked(&ade, &mut rpc, &chat, GATED);
    let host = ade.host_of(&chat);
    ade.kill_broker();
    signal(host, Signal::SIGKILL);
    wait_dead(host);
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "failed");
    assert_eq!(resolution(&events), withdrawn("worker_gone"));
    let mut rpc = ade.rpc();
    assert_eq!(rpc.open_cards(), Vec::<String>::new());
    assert!(rpc.answer(&card, &yes("allow")).is_err());
    assert_eq!(ended(&ade.turn(&chat, "next")), "completed");
}

/// A chat whose host is this script.
fn started_with(script: &str) -> (Ade, Rpc, String) {
    let ade = Ade::new();
    let config = shell(ade.root(), script);
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    (ade, rpc, chat)
}

#[test]
fn a_card_that_the_agent_settles_itself_is_withdrawn_for_everybody() {
    let go = "while [ ! -e go ]; do sleep 0.02; done";
    let script =
        format!("start; message; card q1; {go}; cancel q1; text on; done_as completed; cat");
    let (ade, mut rpc, chat) = started_with(&script);
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, "ask me");
    std::fs::write(ade.lane("lane").join("go"), "").unwrap();
    let events = watch.until_done(&turn);
    assert_eq!(resolution(&events), withdrawn("cancelled"));
    let at = |kind: &str| {
        events
            .iter()
            .position(|event| event["event"]["type"] == kind)
    };
    assert!(
        at("card_resolved") < at("text"),
        "at once, not with the turn"
    );
    let error = rpc.answer(&card, &yes("x")).unwrap_err();
    assert_eq!(error.kind, "card_gone");
}

#[test]
fn what_is_asked_after_an_abort_is_denied_at_once_and_shown_to_nobody() {
    let script = "start; message; text on; hear; abort=$heard; card q1; hear
        case $line in *'\"ok\":false'*) ;; *) exit 9;; esac
        fine $abort; done_as interrupted; message; text again; done_as completed; cat";
    let (ade, mut rpc, chat) = started_with(script);
    let (turn, after) = ade.send(&mut rpc, &chat, "go");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    watch.event("a word", |envelope| envelope["event"]["type"] == "text");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let events = watch.until_done(&turn);
    assert_eq!(ended(&events), "interrupted");
    assert_eq!(of_type(&events, "card_opened").len(), 0);
    // It was told in time: nobody had to end it.
    assert_eq!(text_of(&ade.turn(&chat, "go on")), "again");
    assert_eq!(ade.session(&chat)["generation"], 1);
}
