//! Cards and how they ended.

use ade_protocol::card::{Answer, CardOutcome};

use super::*;

#[test]
fn cards_are_questions_without_secrets() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let id = SessionId::from("s");
    state.insert_session(&session("s")).unwrap();
    let text = card("s", "1", CardKind::Text);
    let secret = card("s", "2", CardKind::Secret);
    state.put_card(&text, 1).unwrap();
    state.put_card(&secret, 7).unwrap();
    state.put_card(&text, 5).unwrap();
    let kept = state.cards().unwrap();
    let open = CardRow {
        card: text,
        opened_at_ms: 5,
        settled: None,
    };
    assert_eq!(kept[0], open);
    assert_eq!(kept[1].card.payload.default_value, None);
    assert_eq!((kept.len(), kept[1].opened_at_ms), (2, 7));
    assert!(!state.remove_card(&id, Generation(2), &"1".into()).unwrap());
    assert!(state.remove_card(&id, Generation(1), &"1".into()).unwrap());
    assert_eq!(state.remove_cards(&id).unwrap(), 1);
}

#[test]
fn how_a_card_ended_is_kept_and_a_secret_is_not() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let id = SessionId::from("s");
    state.insert_session(&session("s")).unwrap();
    let settled = Settled {
        outcome: CardOutcome::Answered {
            by: "a".into(),
            value: None,
        },
        answer: Some(Answer {
            ok: true,
            value: Some("canary".into()),
        }),
        sequence: Seq(9),
    };
    let (text, secret) = (
        card("s", "1", CardKind::Text),
        card("s", "2", CardKind::Secret),
    );
    for card in [&text, &secret] {
        state.put_card(card, 1).unwrap();
        state.settle_card(card, &settled).unwrap();
    }
    let kept = state.cards().unwrap();
    assert_eq!(kept[0].settled.as_ref(), Some(&settled));
    let ended = kept[1].settled.as_ref().unwrap();
    assert_eq!((&ended.answer, ended.sequence), (&None, Seq(9)));
    let other = card("s", "3", CardKind::Confirm);
    state.put_card(&other, 1).unwrap();
    assert_eq!(state.remove_settled(&id).unwrap(), 2);
    assert_eq!(state.cards().unwrap()[0].card, other);
    // One that asks again under the same name is open again.
    state.settle_card(&other, &settled).unwrap();
    state.put_card(&other, 2).unwrap();
    assert_eq!(state.cards().unwrap()[0].settled, None);
}
