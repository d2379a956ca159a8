//! Answers: which are taken, whose counts, and who is asked again.

use ade_tests::cards::{allowed, no, resolution, yes};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{dones, ended, of_turn, of_type};
use serde_json::{Value, json};

use super::{GATED, asked, started};

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
    assert_eq!(rpc.open_cards(), Vec::<String>::new());
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
    assert_eq!(rpc.open_cards(), [card.as_str()]);
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
