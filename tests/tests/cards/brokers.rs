//! Cards and their answers over brokers that were killed.

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, signal};
use ade_tests::cards::{allowed, resolution, yes};
use ade_tests::rpc::text_of;
use ade_tests::turns::{ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

use super::{GATED, asked, started};

/// What a broker leaves that is killed between its database and the worker: the
/// card is settled, by an event that the transcript holds or not. Returns the
/// sequence of that event.
fn settle(ade: &Ade, chat: &str, card: &str, outcome: &Value, answer: &Value) -> u64 {
    let last = ade.transcript(chat).pop().unwrap();
    let sequence = last["sequence"].as_u64().unwrap() + 1;
    let db = rusqlite::Connection::open(ade.home().join("state.db")).unwrap();
    let settled = json!({"outcome": outcome, "answer": answer, "sequence": sequence});
    let sql = "UPDATE cards SET settled = ?1 WHERE card_id = ?2";
    let values = (settled.to_string(), card);
    assert_eq!(db.execute(sql, values).unwrap(), 1);
    sequence
}

fn answered(value: &Value) -> Value {
    json!({"outcome": "answered", "by": "another", "value": value})
}

/// Rows of cards on disk.
fn kept(ade: &Ade) -> i64 {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).unwrap();
    let count = db.query_row("SELECT count(*) FROM cards", [], |row| row.get(0));
    count.unwrap()
}

#[test]
fn an_answer_that_was_written_down_before_the_broker_died_counts_and_is_told_once() {
    for (word, told) in [("allow", false), ("allow", true), ("deny", false)] {
        let (mut ade, mut rpc, chat) = started();
        let (turn, card, _) = asked(&ade, &mut rpc, &chat, GATED);
        ade.kill_broker();
        let outcome = answered(&json!(word));
        let sequence = settle(&ade, &chat, &card, &outcome, &yes(word));
        if told {
            let last = ade.transcript(&chat).pop().unwrap();
            let line = json!({"sessionId": chat, "sequence": sequence, "turnId": turn,
                "timestamp": last["timestamp"],
                "event": {"type": "card_resolved", "cardId": card, "resolution": outcome}});
            let path = ade.transcript_path(&chat);
            let mut text = std::fs::read_to_string(&path).unwrap();
            text.push_str(&format!("{line}\n"));
            std::fs::write(&path, text).unwrap();
        }
        ade.serve();
        // Nobody is asked again.
        let mut rpc = ade.rpc();
        let late = rpc.answer(&card, &yes("allow")).unwrap_err();
        assert_eq!(late.kind, "already_answered", "{}", late.message);
        assert!(late.message.contains("another"), "{}", late.message);
        ade.wait_done(&chat, &turn);
        let events = of_turn(&ade.checked_transcript(&chat), &turn);
        assert_eq!(ended(&events), "completed");
        assert_eq!(of_type(&events, "card_opened").len(), 1);
        assert_eq!(resolution(&events), outcome);
        assert_eq!(allowed(&events), [word == "allow"]);
        assert_eq!(text_of(&events), "went on");
        wait_true("nothing is kept of it", || kept(&ade) == 0);
        assert_eq!(ade.births(&chat), 1);
    }
}

#[test]
fn an_answer_of_which_the_worker_never_heard_is_told_when_that_is_dead_too() {
    let (mut ade, mut rpc, chat) = started();
    let (turn, card, _) = asked(&ade, &mut rpc, &chat, GATED);
    let worker = ade.worker_of(&chat);
    ade.kill_broker();
    signal(worker, Signal::SIGKILL);
    let outcome = answered(&json!("allow"));
    settle(&ade, &chat, &card, &outcome, &yes("allow"));
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(resolution(&events), outcome);
    assert_eq!(ended(&events), "failed");
    assert_eq!(kept(&ade), 0);
}

#[test]
fn a_secret_that_was_lost_with_the_broker_is_a_no_and_never_asked_twice() {
    let (mut ade, mut rpc, chat) = started();
    let (turn, card, _) = asked(&ade, &mut rpc, &chat, "!secret The key?\n!emit over");
    ade.kill_broker();
    settle(&ade, &chat, &card, &answered(&Value::Null), &Value::Null);
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "completed");
    assert_eq!(of_type(&events, "card_opened").len(), 1);
    assert_eq!(resolution(&events)["outcome"], "answered");
    assert!(text_of(&events).ends_with("over"), "{}", text_of(&events));
    let notices = of_type(&events, "notice");
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0]["message"].as_str().unwrap().contains("secrets"));
}

#[test]
fn settled_cards_are_kept_until_the_turn_ends_and_no_more_than_can_be_open() {
    let (ade, mut rpc, chat) = started();
    let (turn, after) = ade.send(&mut rpc, &chat, &"!card Run? | make\n".repeat(80));
    rpc.subscribe(&chat, after);
    for _ in 0..79 {
        let card = rpc.card();
        rpc.answer(&card, &yes("allow")).unwrap();
    }
    let last = rpc.card();
    assert_eq!(kept(&ade), 64 + 1);
    rpc.answer(&last, &yes("allow")).unwrap();
    rpc.until_done(&turn);
    wait_true("nothing is kept", || kept(&ade) == 0);
    assert_eq!(
        of_type(&ade.checked_transcript(&chat), "card_resolved").len(),
        80
    );
}

#[test]
fn a_card_stays_open_over_a_broker_that_was_killed() {
    let (mut ade, mut rpc, chat) = started();
    let (turn, card, _) = asked(&ade, &mut rpc, &chat, GATED);
    ade.kill_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    wait_true("the card is listed", || rpc.open_cards() == [card.as_str()]);
    rpc.answer(&card, &yes("allow")).unwrap();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "completed");
    assert_eq!(of_type(&events, "card_opened").len(), 1);
    assert_eq!(resolution(&events)["outcome"], "answered");
    assert_eq!(allowed(&events), [true]);
    let _ = ade.checked_transcript(&chat);
}

#[test]
fn an_answered_card_is_no_card_of_the_next_broker() {
    let (mut ade, mut rpc, chat) = started();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    rpc.answer(&card, &yes("allow")).unwrap();
    watch.until_done(&turn);
    drop((rpc, watch));
    ade.kill_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    assert_eq!(rpc.open_cards(), Vec::<String>::new());
    assert_eq!(ended(&ade.turn(&chat, "hello")), "completed");
    let lines = ade.checked_transcript(&chat);
    assert_eq!(of_type(&lines, "card_resolved").len(), 1, "once only");
}
