//! Cards: without a human's answer they are denied, an answer counts once, and
//! a card that nobody can answer any more is withdrawn for every client.

use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, signal};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{dones, ended, no, of_turn, of_type, yes};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

/// A gated call of `bash`, then a word.
const GATED: &str = "!card Run it? | touch x | bash\n!emit went on";

fn started() -> (Ade, Rpc, String) {
    configured("")
}

fn configured(config: &str) -> (Ade, Rpc, String) {
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    (ade, rpc, chat)
}

/// Sends a message and waits for its card: the turn, the card, the watcher.
fn asked(ade: &Ade, rpc: &mut Rpc, chat: &str, prompt: &str) -> (String, String, Rpc) {
    let (turn, after) = ade.send(rpc, chat, prompt);
    let mut watch = ade.rpc();
    watch.subscribe(chat, after);
    let card = watch.card();
    (turn, card, watch)
}

/// How the only card of some events ended.
fn resolution(events: &[Value]) -> Value {
    let resolved = of_type(events, "card_resolved");
    assert_eq!(resolved.len(), 1, "{resolved:?}");
    resolved[0]["resolution"].clone()
}

fn withdrawn(why: &str) -> Value {
    json!({"outcome": "withdrawn", "why": why})
}

/// The `ok` of every tool result.
fn allowed(events: &[Value]) -> Vec<bool> {
    let results = of_type(events, "tool_result");
    let ok = results.iter().map(|result| result["ok"].as_bool().unwrap());
    ok.collect()
}

#[test]
fn a_gated_call_runs_when_allowed_and_fails_when_denied_and_the_turn_goes_on() {
    let (ade, mut rpc, chat) = started();
    for (answer, ok, value) in [
        (yes("allow"), true, json!("allow")),
        (no(), false, Value::Null),
        (yes("deny"), false, json!("deny")),
    ] {
        let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
        assert_eq!(ade.session(&chat)["state"], "awaiting_card");
        rpc.answer(&card, &answer).unwrap();
        watch.until_done(&turn);
        let events = of_turn(&ade.checked_transcript(&chat), &turn);
        assert_eq!(ended(&events), "completed");
        assert_eq!(allowed(&events), [ok]);
        assert_eq!(text_of(&events), "went on");
        let resolution = resolution(&events);
        assert_eq!(resolution["outcome"], "answered");
        assert_eq!(resolution["by"], "a test");
        assert_eq!(resolution["value"], value);
    }
    assert_eq!(rpc.call("cards.list", json!({}))["cards"], json!([]));
}

#[test]
fn only_offered_words_are_taken_and_the_card_stays_open_for_another_try() {
    let (ade, mut rpc, chat) = started();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    for word in ["Allow", "yes", "true", "", " allow"] {
        let error = rpc.answer(&card, &yes(word)).unwrap_err();
        assert_eq!(error.kind, "invalid", "{word}");
    }
    let error = rpc.answer("no-such-card", &yes("allow")).unwrap_err();
    assert_eq!(error.kind, "not_found");
    rpc.answer(&card, &no()).unwrap();
    assert_eq!(allowed(&watch.until_done(&turn)), [false]);

    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, "!ask Which? | red, green");
    assert_eq!(rpc.answer(&card, &yes("blue")).unwrap_err().kind, "invalid");
    rpc.answer(&card, &yes("green")).unwrap();
    assert_eq!(text_of(&watch.until_done(&turn)), "answer: green");
}

#[test]
fn allow_session_is_remembered_for_that_tool_as_long_as_the_worker_lives() {
    let (ade, mut rpc, chat) = started();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    rpc.answer(&card, &yes("allow_session")).unwrap();
    assert_eq!(allowed(&watch.until_done(&turn)), [true]);

    // The next calls of that tool ask nobody, in this turn and in others.
    let again = ade.turn(&chat, &format!("{GATED}\n{GATED}"));
    assert_eq!(allowed(&again), [true, true]);
    assert_eq!(of_type(&again, "card_opened").len(), 0);

    // Another tool asks, and so does a new worker.
    let edit = "!card Edit it? | x | edit";
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, edit);
    rpc.answer(&card, &no()).unwrap();
    assert_eq!(allowed(&watch.until_done(&turn)), [false]);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    rpc.answer(&card, &no()).unwrap();
    assert_eq!(allowed(&watch.until_done(&turn)), [false]);
}

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
fn g02_the_first_answer_counts_and_later_ones_are_told_whose_it_was() {
    let (ade, mut rpc, chat) = started();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    // Many at once, from connections of their own; every second one says yes.
    let allows = |client: usize| client.is_multiple_of(2);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ade = &ade;
        let card = &card;
        let asking: Vec<_> = (0..6)
            .map(|n| {
                let answer = if allows(n) { yes("allow") } else { no() };
                scope.spawn(move || {
                    let mut client = Rpc::connect(&ade.socket(), &format!("client {n}"));
                    client.answer(card, &answer)
                })
            })
            .collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let winners: Vec<usize> = (0..6).filter(|n| answers[*n].is_ok()).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    let winner = winners[0];
    let events = watch.until_done(&turn);
    // Once more after the turn's end.
    let late = rpc.answer(&card, &yes("allow")).unwrap_err();
    let losers = answers.iter().filter_map(|answer| answer.as_ref().err());
    for error in losers.chain([&late]) {
        assert_eq!(error.kind, "already_answered");
        let by = format!("client {winner}");
        assert!(error.message.contains(&by), "{}", error.message);
        let what = error.message.contains("\"allow\"");
        assert_eq!(what, allows(winner), "{}", error.message);
    }
    let resolution = resolution(&events);
    assert_eq!(resolution["by"], format!("client {winner}"));
    assert_eq!(allowed(&events), [allows(winner)]);
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
    let worker = ade.session(&chat)["workerPid"].as_i64().unwrap();
    ade.kill_broker();
    signal(i32::try_from(worker).unwrap(), Signal::SIGKILL);
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(resolution(&events), withdrawn("worker_gone"));
    assert_eq!(ended(&events), "failed");
    assert!(!allowed(&events).contains(&true));
    let mut rpc = ade.rpc();
    assert_eq!(rpc.call("cards.list", json!({}))["cards"], json!([]));
    assert!(rpc.answer(&card, &yes("allow")).is_err());
}

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
    let watchdog = json!({"firstEventMs": 300});
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
    assert_eq!(rpc.call("cards.list", json!({}))["cards"], json!([]));
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

/// What a broker leaves that is killed between its database and the worker: the
/// card is settled, by an event that the transcript holds or not.
fn settle(ade: &Ade, card: &str, outcome: &Value, answer: &Value, sequence: u64) {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).unwrap();
    let settled = json!({"outcome": outcome, "answer": answer, "sequence": sequence});
    let sql = "UPDATE cards SET settled = ?1 WHERE card_id = ?2";
    let values = (settled.to_string(), card);
    assert_eq!(db.execute(sql, values).unwrap(), 1);
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
        let last = ade.transcript(&chat).pop().unwrap();
        let sequence = last["sequence"].as_u64().unwrap() + 1;
        let outcome = answered(&json!(word));
        settle(&ade, &card, &outcome, &yes(word), sequence);
        if told {
            let line = json!({"sessionId": chat, "sequence": sequence, "turnId": turn,
                "timestamp": last["timestamp"],
                "event": {"type": "card_resolved", "cardId": card, "resolution": outcome}});
            let path = ade
                .home()
                .join("transcripts/chat")
                .join(format!("{chat}.jsonl"));
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
    let worker = ade.session(&chat)["workerPid"].as_i64().unwrap();
    ade.kill_broker();
    signal(i32::try_from(worker).unwrap(), Signal::SIGKILL);
    let last = ade.transcript(&chat).pop().unwrap();
    let sequence = last["sequence"].as_u64().unwrap() + 1;
    let outcome = answered(&json!("allow"));
    settle(&ade, &card, &outcome, &yes("allow"), sequence);
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
    let last = ade.transcript(&chat).pop().unwrap();
    let sequence = last["sequence"].as_u64().unwrap() + 1;
    settle(&ade, &card, &answered(&Value::Null), &Value::Null, sequence);
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
    wait_true("the card is listed", || {
        rpc.call("cards.list", json!({}))["cards"][0]["cardId"] == card.as_str()
    });
    rpc.answer(&card, &yes("allow")).unwrap();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "completed");
    assert_eq!(of_type(&events, "card_opened").len(), 1);
    assert_eq!(resolution(&events)["outcome"], "answered");
    assert_eq!(allowed(&events), [true]);
    let _ = ade.checked_transcript(&chat);
}

#[test]
fn g07_a_client_that_comes_back_or_comes_late_sees_the_open_card() {
    let (ade, mut rpc, chat) = started();
    let (turn, card, first) = asked(&ade, &mut rpc, &chat, GATED);
    drop(first);
    let mut late = Vec::new();
    for _ in 0..2 {
        let mut client = ade.rpc();
        let subscribed = client.subscribe(&chat, 0);
        assert_eq!(subscribed["openCards"][0]["cardId"], card.as_str());
        let listed = client.call("cards.list", json!({}));
        assert_eq!(listed["cards"][0]["cardId"], card.as_str());
        assert_eq!(
            listed["cards"][0]["payload"]["sourceId"], "bash",
            "{listed}"
        );
        late.push(client);
    }
    late[1].answer(&card, &yes("allow")).unwrap();
    for client in &mut late {
        let events = client.until_done(&turn);
        assert_eq!(allowed(&events), [true]);
    }
}

#[test]
fn g08_a_message_while_a_card_is_open_waits_and_the_card_stays() {
    let (ade, mut rpc, chat) = started();
    let (first, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    let sent = rpc.call(
        "chat.send",
        json!({"sessionId": chat, "prompt": "use the other file"}),
    );
    assert_eq!(sent["place"], 1);
    let second = sent["turnId"].as_str().unwrap();
    let open = rpc.call("cards.list", json!({}));
    assert_eq!(open["cards"][0]["cardId"], card.as_str());
    assert_eq!(ade.session(&chat)["state"], "awaiting_card");
    rpc.answer(&card, &yes("allow")).unwrap();
    watch.until_done(second);
    let lines = ade.checked_transcript(&chat);
    let completed = "completed".to_owned();
    assert_eq!(
        dones(&lines),
        [(first, completed.clone()), (second.to_owned(), completed)]
    );
    assert_eq!(allowed(&lines), [true]);
}

#[test]
fn g09_a_dead_worker_withdraws_its_card_and_the_chat_takes_the_next_message() {
    let (ade, mut rpc, chat) = started();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, GATED);
    let worker = ade.session(&chat)["workerPid"].as_i64().unwrap();
    signal(i32::try_from(worker).unwrap(), Signal::SIGKILL);
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
fn a_secret_is_answered_and_stands_nowhere() {
    let secret = "CANARY-secret-4711-abcdef";
    let (ade, mut rpc, chat) = started();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, "!secret The key?");
    rpc.answer(&card, &yes(secret)).unwrap();
    let events = watch.until_done(&turn);
    assert_eq!(
        text_of(&events),
        format!("secret of {} characters", secret.len())
    );
    let resolution = resolution(&events);
    assert_eq!(resolution["value"], Value::Null, "{resolution}");
    let again = rpc.answer(&card, &yes(secret)).unwrap_err();
    assert!(!again.message.contains(secret), "{}", again.message);
    drop((rpc, watch));
    let found = ade.files_with(secret);
    assert_eq!(found, Vec::<std::path::PathBuf>::new());
}

/// The same with a host that is this script.
fn started_with(script: &str) -> (Ade, Rpc, String) {
    let ade = Ade::new();
    let config = ade_tests::hosts::shell(ade.root(), script);
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("lane");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 60_000}));
    (ade, rpc, chat)
}

#[test]
fn after_its_answer_a_turn_is_shown_as_streaming_again() {
    let (ade, mut rpc, chat) = started();
    let (turn, card, mut watch) = asked(&ade, &mut rpc, &chat, "!card Run it? | x\n!hang");
    ade.wait_state(&chat, "awaiting_card");
    rpc.answer(&card, &yes("allow")).unwrap();
    ade.wait_state(&chat, "streaming");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    watch.until_done(&turn);
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
    assert_eq!(rpc.call("cards.list", json!({}))["cards"], json!([]));
    assert_eq!(ended(&ade.turn(&chat, "hello")), "completed");
    let lines = ade.checked_transcript(&chat);
    assert_eq!(of_type(&lines, "card_resolved").len(), 1, "once only");
}

#[test]
fn a_card_whose_host_died_while_no_broker_was_there_is_withdrawn() {
    let (mut ade, mut rpc, chat) = started();
    let (turn, card, _) = asked(&ade, &mut rpc, &chat, GATED);
    let host = ade.session(&chat)["hostPid"].as_i64().unwrap();
    ade.kill_broker();
    signal(i32::try_from(host).unwrap(), Signal::SIGKILL);
    ade_tests::ade::wait_dead(i32::try_from(host).unwrap());
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "failed");
    assert_eq!(resolution(&events), withdrawn("worker_gone"));
    let mut rpc = ade.rpc();
    assert_eq!(rpc.call("cards.list", json!({}))["cards"], json!([]));
    assert!(rpc.answer(&card, &yes("allow")).is_err());
    assert_eq!(ended(&ade.turn(&chat, "next")), "completed");
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
