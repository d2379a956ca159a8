//! How long a card is open at most.

use std::time::{Duration, Instant};

use ade_tests::cards::{allowed, resolution, withdrawn, yes};
use ade_tests::rpc::text_of;
use ade_tests::turns::{SILENT_MS, ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::json;

use super::{GATED, asked, configured};

fn limit(ms: u64) -> String {
    format!("[cards]\ntimeout_ms = {ms}\n")
}

/// Waits until so much time has passed.
fn passes(since: Instant, ms: u64) {
    wait_true("time passes", || {
        since.elapsed() >= Duration::from_millis(ms)
    });
}

#[test]
fn g05_a_card_that_nobody_answers_is_denied_at_its_limit_and_the_turn_goes_on() {
    let quiet = format!("{}[turns]\nquiet_ms = 100\n", limit(1_000));
    let (ade, mut rpc, _) = configured(&quiet);
    let watchdog = json!({"firstEventMs": SILENT_MS});
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), watchdog);
    let since = Instant::now();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    let events = watch.until_done(&turn);
    assert!(
        since.elapsed() >= Duration::from_secs(1),
        "before its limit"
    );
    assert_eq!(ended(&events), "completed");
    assert_eq!(resolution(&events), withdrawn("timed_out"));
    assert_eq!(allowed(&events), [false]);
    assert_eq!(text_of(&events), "went on");
    // While it was open nothing else fired.
    assert_eq!(of_type(&events, "notice").len(), 0);
    assert_eq!(ade.births(&chat), 1);
    let late = rpc.answer(&card, &yes("allow")).unwrap_err();
    assert_eq!(late.kind, "card_gone");
    assert!(late.message.contains("in time"), "{}", late.message);
    assert_eq!(rpc.open_cards(), Vec::<String>::new());
    assert_eq!(
        of_type(&ade.checked_transcript(&chat), "card_resolved").len(),
        1
    );
    let (doctor, _) = ade.expect_code(0, &["doctor"]);
    assert!(doctor.contains("cards.timeout_ms"), "{doctor}");
}

#[test]
fn a_late_answer_after_a_takeover_is_told_that_the_card_timed_out() {
    for replaced in [false, true] {
        let (mut ade, mut rpc, chat) = configured(&limit(300));
        let prompt = "!card Run it? | touch x | bash\n!delay 600000";
        let (_, card, mut watch) = asked(&ade, &mut rpc, &chat, prompt);
        watch.event("its end", |event| event["event"]["type"] == "card_resolved");
        drop((rpc, watch));
        if replaced {
            ade.replace();
        } else {
            ade.kill_broker();
            ade.serve();
        }
        let mut rpc = ade.rpc();
        for _ in ["at once", "and when the worker was taken over"] {
            let late = rpc.answer(&card, &yes("allow")).unwrap_err();
            assert_eq!(late.kind, "card_gone", "{}", late.message);
            assert!(late.message.contains("in time"), "{}", late.message);
            ade.wait_state(&chat, "streaming");
        }
    }
}

#[test]
fn of_an_answer_and_the_limit_in_the_same_moment_exactly_one_counts() {
    const ROUNDS: u64 = 40;
    const LIMIT: u64 = 60;
    let (ade, mut rpc, chat) = configured(&limit(LIMIT));
    let prompt = "!card Run? | make\n".repeat(usize::try_from(ROUNDS).unwrap());
    let (turn, after) = ade.send(&mut rpc, &chat, &prompt);
    rpc.subscribe(&chat, after);
    let mut counted = Vec::new();
    for round in 0..ROUNDS {
        let card = rpc.card();
        passes(Instant::now(), LIMIT - 10 + round % 12);
        counted.push(match rpc.answer(&card, &yes("allow")) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind, "card_gone");
                false
            }
        });
    }
    rpc.until_done(&turn);
    let lines = ade.checked_transcript(&chat);
    let said: Vec<bool> = of_type(&lines, "card_resolved")
        .iter()
        .map(|event| {
            let resolution = &event["resolution"];
            let answered = resolution["outcome"] == "answered";
            assert!(answered || *resolution == withdrawn("timed_out"), "{event}");
            answered
        })
        .collect();
    assert_eq!(said, counted);
    assert_eq!(allowed(&lines), counted, "the worker heard the same");
}

#[test]
fn a_cards_time_goes_on_over_a_broker_that_was_killed() {
    let (mut ade, mut rpc, chat) = configured(&limit(6_000));
    let (turn, _, _) = asked(&ade, &mut rpc, &chat, GATED);
    let since = Instant::now();
    ade.kill_broker();
    passes(since, 4_000);
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    let took = since.elapsed();
    assert_eq!(resolution(&events), withdrawn("timed_out"));
    assert_eq!(
        (allowed(&events), ended(&events)),
        (vec![false], "completed")
    );
    assert!(took >= Duration::from_millis(5_500), "{took:?}");
    assert!(took < Duration::from_secs(9), "it began anew: {took:?}");
}

#[test]
fn a_card_whose_time_ran_out_without_a_broker_is_denied_by_the_next_one() {
    let (mut ade, mut rpc, chat) = configured(&limit(1_000));
    let (turn, card, _) = asked(&ade, &mut rpc, &chat, GATED);
    let since = Instant::now();
    ade.kill_broker();
    passes(since, 1_200);
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(resolution(&events), withdrawn("timed_out"));
    assert_eq!(of_type(&events, "card_opened").len(), 1);
    assert_eq!(
        (allowed(&events), ended(&events)),
        (vec![false], "completed")
    );
    let late = ade.rpc().answer(&card, &yes("allow")).unwrap_err();
    assert_eq!(late.kind, "card_gone");
}
