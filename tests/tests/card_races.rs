//! Two people answer each card at the same moment.

use std::collections::BTreeMap;
use std::sync::Barrier;

use ade_tests::ade::{Ade, report, started};
use ade_tests::cards::yes;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{ended, of_turn, of_type};
use serde_json::{Value, json};

const ROUNDS: usize = 1_000;

/// A person: a name, and the word that it gives to every card.
const PEOPLE: [(&str, &str); 2] = [("anna", "red"), ("bert", "blue")];

/// What came of an answer: `None` when it counted, otherwise the refusal.
type Tries = Vec<(String, Option<(String, String)>)>;

/// Answers each card as soon as it is seen; the other one has had its answer to
/// the card before by then.
fn answers(ade: &Ade, (name, word): (&str, &str), place: (&str, u64), round: &Barrier) -> Tries {
    let mut rpc = Rpc::connect(&ade.socket(), name);
    let (chat, after) = place;
    rpc.subscribe(chat, after);
    (0..ROUNDS)
        .map(|_| {
            let card = rpc.card();
            round.wait();
            let refusal = rpc.answer(&card, &yes(word)).err();
            round.wait();
            (card, refusal.map(|refusal| (refusal.kind, refusal.message)))
        })
        .collect()
}

#[test]
fn of_two_answers_to_a_card_exactly_one_counts_and_the_agent_gets_that_one() {
    let (ade, mut rpc) = started("");
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let script = "!ask Which? | red,blue\n".repeat(ROUNDS);
    let (turn, after) = ade.send(&mut rpc, &chat, &script);
    let round = Barrier::new(PEOPLE.len());
    let tries: Vec<Tries> = std::thread::scope(|scope| {
        let people = PEOPLE.map(|person| {
            let (ade, chat, round) = (&ade, &chat, &round);
            scope.spawn(move || answers(ade, person, (chat, after), round))
        });
        people.map(|person| person.join().unwrap()).into()
    });
    ade.wait_done(&chat, &turn);
    let events = of_turn(&ade.checked_transcript(&chat), &turn);
    assert_eq!(ended(&events), "completed");

    let mut resolved: BTreeMap<String, Value> = BTreeMap::new();
    for event in of_type(&events, "card_resolved") {
        let card = event["cardId"].as_str().unwrap().to_owned();
        let twice = resolved.insert(card, event["resolution"].clone());
        assert_eq!(twice, None, "a card ended twice");
    }
    assert_eq!(resolved.len(), ROUNDS);
    let mut wins = [0; 2];
    let mut counted = String::new();
    for (anna, bert) in tries[0].iter().zip(&tries[1]) {
        assert_eq!(anna.0, bert.0, "both saw the same card");
        let (winner, refusal) = match (&anna.1, &bert.1) {
            (None, Some(refusal)) => (0, refusal),
            (Some(refusal), None) => (1, refusal),
            both => panic!("{}: {both:?}", anna.0),
        };
        let (name, word) = PEOPLE[winner];
        wins[winner] += 1;
        let named = format!("already answered by {name} with {word:?}");
        assert_eq!(refusal.0, "already_answered");
        assert!(refusal.1.contains(&named), "{named}: {}", refusal.1);
        let told = &resolved[&anna.0];
        assert_eq!(told["outcome"], "answered", "{told}");
        assert_eq!((&told["by"], &told["value"]), (&json!(name), &json!(word)));
        counted += &format!("answer: {word}");
    }
    assert_eq!(text_of(&events), counted, "what the agent got");
    let [(anna, _), (bert, _)] = PEOPLE;
    report(&format!(
        "{ROUNDS} cards: {anna} was first {} times, {bert} {}",
        wins[0], wins[1]
    ));
    // The barrier keeps them at the same card, and neither is always late.
    assert!(wins.iter().all(|count| *count > 0), "{wins:?}");
}
