//! Case G: cards, and who answers them when.

use std::sync::{Arc, Barrier};

use ade_tests::ade::started;
use ade_tests::cards::{allowed, resolution, withdrawn, yes};
use ade_tests::rpc::RpcFailure;
use ade_tests::turns::of_type;
use serde_json::{Value, json};

use super::play::{config, play};
use super::status;

fn kind(answer: &Result<Value, RpcFailure>) -> &str {
    match answer {
        Ok(_) => "ok",
        Err(failure) => &failure.kind,
    }
}

#[test]
fn g01_a_late_allow_after_an_abort_is_refused() {
    let play = play("G01", 1, &config(1));
    let events = play.turn("t1");
    assert_eq!(status(&events), "interrupted");
    assert_eq!(resolution(&events), withdrawn("aborted"));
    assert_eq!(kind(&play.answers[0]), "card_gone");
    assert!(!allowed(&events).contains(&true));
    play.goes_on();
}

#[test]
fn g02_a_double_click_counts_once() {
    let play = play("G02", 2, &config(1));
    let events = play.turn("t1");
    assert_eq!(status(&events), "completed");
    let kinds: Vec<&str> = play.answers.iter().map(kind).collect();
    assert_eq!(kinds, ["ok", "already_answered", "already_answered"]);
    assert_eq!(resolution(&events)["outcome"], "answered");
    assert_eq!(of_type(&events, "tool_result").len(), 1);
    play.goes_on();
}

#[test]
fn g05_silence_is_never_a_yes_and_no_no_of_a_user_either() {
    let mut play = play("G05", 3_600, &config(1));
    assert_eq!(play.cards().len(), 1, "it waits: nobody said no");
    assert_eq!(play.info()["state"], "awaiting_card");
    play.ade.stop_broker();
    let lines = play.ade.transcript(&play.chat);
    assert_eq!(resolution(&lines), withdrawn("shutting_down"));
    assert!(!allowed(&lines).contains(&true));
    assert_eq!(status(&lines), "interrupted");
}

#[test]
fn g07_who_comes_back_and_who_comes_late_can_answer() {
    let mut play = play("G07", 1, &config(1));
    let events = play.turn("t1");
    assert_eq!(status(&events), "completed");
    assert_eq!(kind(&play.answers[0]), "ok");
    for who in ["client:a", "client:b"] {
        let shown = play.client(who).card();
        assert_eq!(Some(&shown), play.card.as_ref(), "{who} was shown it");
    }
    play.goes_on();
}

#[test]
fn g08_a_message_while_a_card_is_open_waits_and_the_card_stays() {
    let play = play("G08", 1, &config(1));
    assert_eq!(kind(&play.answers[0]), "ok");
    assert_eq!(status(&play.turn("t1")), "completed");
    assert_eq!(status(&play.turn("t2")), "completed");
    assert_eq!(play.generation(), 1);
}

#[test]
fn g09_a_card_of_a_dead_worker_is_withdrawn_and_the_chat_goes_on() {
    let play = play("G09", 1, &config(1));
    let events = play.turn("t1");
    assert_eq!(status(&events), "failed");
    assert_eq!(resolution(&events), withdrawn("worker_gone"));
    assert_eq!(kind(&play.answers[0]), "card_gone");
    assert_eq!(status(&play.turn("t2")), "completed");
}

/// Two clients answer each card of a turn in the same moment.
#[test]
fn of_two_answers_in_the_same_moment_exactly_one_counts() {
    const ROUNDS: usize = 40;
    let (ade, mut rpc) = started("");
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let (turn, after) = ade.send(&mut rpc, &chat, &"!card Run? | make\n".repeat(ROUNDS));
    let both = Arc::new(Barrier::new(2));
    let clients: Vec<_> = ["allow", "deny"]
        .into_iter()
        .map(|word| {
            let (mut rpc, both, chat) = (ade.rpc(), Arc::clone(&both), chat.clone());
            std::thread::spawn(move || {
                rpc.subscribe(&chat, after);
                let mut kinds = Vec::new();
                for _ in 0..ROUNDS {
                    let card = rpc.card();
                    both.wait();
                    let answered = rpc.answer(&card, &yes(word));
                    kinds.push(kind(&answered).to_owned());
                }
                kinds
            })
        })
        .collect();
    let mut kinds = clients
        .into_iter()
        .map(|client| client.join().expect("a client"));
    let (allows, denies) = (kinds.next().expect("one"), kinds.next().expect("two"));
    rpc.subscribe(&chat, after);
    let events = rpc.until_done(&turn);
    let ran: Vec<bool> = of_type(&events, "tool_result")
        .iter()
        .map(|result| result["ok"] == true)
        .collect();
    assert_eq!((status(&events), ran.len()), ("completed", ROUNDS));
    for ((allow, deny), ran) in allows.iter().zip(&denies).zip(ran) {
        let mut both = [allow.as_str(), deny.as_str()];
        both.sort_unstable();
        assert_eq!(both, ["already_answered", "ok"]);
        assert_eq!(ran, allow == "ok", "the worker got the one that counted");
    }
}
