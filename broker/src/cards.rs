//! The registry of cards of one session.
//!
//! The first answer wins and later ones are told by whom. A card that nobody
//! answers ends at its limit, as denied. A card that was
//! withdrawn stays known for a while, so that a late answer gets a reason
//! instead of "not found". Nothing here does I/O: the session actor, which owns
//! the registry, writes what is decided.

use std::collections::VecDeque;

use ade_protocol::card::{Answer, Card, CardKind, CardOutcome, Withdrawal};
use ade_protocol::{Generation, RequestId};

use crate::turn::Mono;

/// Settled cards that are remembered. Older ones are forgotten; an answer to
/// one of those gets "no such card".
const REMEMBERED: usize = 256;

/// Cards that may be open in one session. One more is denied at once.
pub const MAX_OPEN: usize = 64;

/// Why an answer did not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Somebody was faster.
    #[error("the card was already answered by {by}{}", value.as_ref().map(|v| format!(" with {v:?}")).unwrap_or_default())]
    AlreadyAnswered {
        /// Who.
        by: String,
        /// What, unless it was secret.
        value: Option<String>,
    },
    /// Nothing waits for an answer any more.
    #[error("the card is gone: {}", why_text(*why))]
    Gone {
        /// Why.
        why: Withdrawal,
    },
    /// There never was such a card, or it is long forgotten.
    #[error("there is no card {0}")]
    Unknown(RequestId),
    /// The value is none of those that the card offers.
    #[error("the card accepts only: {}", offered.join(", "))]
    NotOffered {
        /// What it accepts.
        offered: Vec<String>,
    },
}

/// A withdrawal in words.
#[must_use]
pub fn why_text(why: Withdrawal) -> &'static str {
    match why {
        Withdrawal::Aborted => "its turn was aborted",
        Withdrawal::TurnEnded => "its turn has ended",
        Withdrawal::WorkerGone => "its worker is gone",
        Withdrawal::Recycled => "its worker was replaced",
        Withdrawal::Cancelled => "the agent settled it itself",
        Withdrawal::TimedOut => "nobody answered in time",
        Withdrawal::Stopped => "its chat was stopped",
        Withdrawal::ShuttingDown => "the broker is stopping, or its chat is being deleted",
    }
}

/// An open card.
#[derive(Debug)]
struct Open {
    card: Card,
    /// When it has waited long enough.
    until: Mono,
}

/// Cards of one session.
#[derive(Debug, Default)]
pub struct Cards {
    open: Vec<Open>,
    settled: VecDeque<(RequestId, CardOutcome)>,
}

impl Cards {
    /// Open cards, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Card> {
        self.open.iter().map(|open| &open.card)
    }

    /// Whether a card of this name is open.
    #[must_use]
    pub fn is_open(&self, id: &RequestId) -> bool {
        self.open().any(|card| card.card_id == *id)
    }

    /// When [`Cards::expire`] is wanted next.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.open.iter().map(|open| open.until).min()
    }

    /// Adds a card that waits until then. False when it is a double or there is no room: it must be
    /// denied.
    pub fn add(&mut self, card: Card, until: Mono) -> bool {
        if self.is_open(&card.card_id) || self.open.len() >= MAX_OPEN {
            return false;
        }
        self.open.push(Open { card, until });
        true
    }

    /// Withdraws the cards that nobody answered until `now`.
    pub fn expire(&mut self, now: Mono) -> Vec<(Card, CardOutcome)> {
        let all = std::mem::take(&mut self.open);
        let (over, open): (Vec<_>, Vec<_>) = all.into_iter().partition(|open| open.until <= now);
        self.open = open;
        self.withdrawn(over, Withdrawal::TimedOut)
    }

    /// Settles a card by an answer. Only the first one gets here.
    ///
    /// # Errors
    /// [`AnswerError`] when the answer does not count; nothing changes then.
    pub fn answer(
        &mut self,
        id: &RequestId,
        answer: &Answer,
        by: &str,
    ) -> Result<(Card, CardOutcome), AnswerError> {
        let Some(index) = self.open().position(|card| card.card_id == *id) else {
            return Err(self.settled_error(id));
        };
        answer
            .fits(&self.open[index].card.payload)
            .map_err(|offered| AnswerError::NotOffered { offered })?;
        let Open { card, .. } = self.open.remove(index);
        let secret = card.payload.kind == CardKind::Secret;
        let value = if answer.ok && !secret {
            answer.value.clone()
        } else {
            None
        };
        let outcome = CardOutcome::Answered {
            by: by.to_owned(),
            value,
        };
        self.remember(card.card_id.clone(), outcome.clone());
        Ok((card, outcome))
    }

    fn settled_error(&self, id: &RequestId) -> AnswerError {
        match self
            .settled
            .iter()
            .rev()
            .find(|(other, _)| other == id)
            .map(|(_, outcome)| outcome)
        {
            Some(CardOutcome::Answered { by, value }) => AnswerError::AlreadyAnswered {
                by: by.clone(),
                value: value.clone(),
            },
            Some(CardOutcome::Withdrawn { why }) => AnswerError::Gone { why: *why },
            Some(CardOutcome::AllowedForSession) => AnswerError::AlreadyAnswered {
                by: "allow_session".into(),
                value: None,
            },
            None => AnswerError::Unknown(id.clone()),
        }
    }

    /// Withdraws one card of this generation, if it is open.
    pub fn withdraw(
        &mut self,
        id: &RequestId,
        generation: Generation,
        why: Withdrawal,
    ) -> Option<(Card, CardOutcome)> {
        let index = self
            .open()
            .position(|card| card.card_id == *id && card.generation == generation)?;
        let Open { card, .. } = self.open.remove(index);
        let outcome = CardOutcome::Withdrawn { why };
        self.remember(card.card_id.clone(), outcome.clone());
        Some((card, outcome))
    }

    /// Withdraws every open card.
    pub fn withdraw_all(&mut self, why: Withdrawal) -> Vec<(Card, CardOutcome)> {
        let cards = std::mem::take(&mut self.open);
        self.withdrawn(cards, why)
    }

    fn withdrawn(&mut self, cards: Vec<Open>, why: Withdrawal) -> Vec<(Card, CardOutcome)> {
        let outcome = CardOutcome::Withdrawn { why };
        cards
            .into_iter()
            .map(|Open { card, .. }| {
                self.remember(card.card_id.clone(), outcome.clone());
                (card, outcome.clone())
            })
            .collect()
    }

    /// Remembers how a card ended, for answers that come late.
    pub fn remember(&mut self, id: RequestId, outcome: CardOutcome) {
        if self.settled.len() == REMEMBERED {
            self.settled.pop_front();
        }
        self.settled.push_back((id, outcome));
    }
}

#[cfg(test)]
mod tests {
    use ade_protocol::SessionId;
    use ade_protocol::card::{CardOrigin, CardPayload};

    use super::*;

    const LATER: Mono = Mono::from_secs(60);

    fn card(id: &str, kind: CardKind) -> Card {
        Card {
            card_id: id.into(),
            session_id: SessionId::from("s"),
            generation: Generation(1),
            turn_id: None,
            opened_at: "now".into(),
            payload: CardPayload {
                origin: CardOrigin::Approval,
                kind,
                message: "?".into(),
                title: None,
                placeholder: None,
                default_value: None,
                options: Vec::new(),
                source_id: None,
                detail: None,
            },
        }
    }

    fn yes(value: &str) -> Answer {
        Answer {
            ok: true,
            value: Some(value.into()),
        }
    }

    /// Two clients in two threads, through the actor's way of taking turns: one
    /// after the other, in whichever order they come.
    #[test]
    fn of_two_answers_in_the_same_moment_exactly_one_counts_a_thousand_times() {
        use std::sync::{Barrier, Mutex};
        const ROUNDS: usize = 1_000;
        let cards = Mutex::new(Cards::default());
        let both = Barrier::new(2);
        let client = |name: &str, value: &str| -> Vec<Result<(), AnswerError>> {
            (0..ROUNDS)
                .map(|round| {
                    if name == "a" {
                        let card = card(&round.to_string(), CardKind::Confirm);
                        assert!(cards.lock().unwrap().add(card, LATER));
                    }
                    both.wait();
                    let id = RequestId::from(round.to_string());
                    let mut cards = cards.lock().unwrap();
                    let answered = cards.answer(&id, &yes(value), name).map(drop);
                    drop(cards);
                    both.wait();
                    answered
                })
                .collect()
        };
        let (a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| client("b", "deny"));
            (client("a", "allow"), other.join().unwrap())
        });
        for (a, b) in a.into_iter().zip(b) {
            let (by, value) = match (&a, &b) {
                (Ok(()), Err(_)) => ("a", "allow"),
                (Err(_), Ok(())) => ("b", "deny"),
                both => panic!("{both:?}"),
            };
            let late = AnswerError::AlreadyAnswered {
                by: by.into(),
                value: Some(value.into()),
            };
            assert_eq!(a.and(b), Err(late), "the other is told whose it was");
        }
        assert_eq!(cards.lock().unwrap().open().count(), 0);
    }

    #[test]
    fn the_first_answer_wins_and_later_ones_are_told() {
        let mut cards = Cards::default();
        assert!(cards.add(card("c", CardKind::Confirm), LATER));
        assert!(
            !cards.add(card("c", CardKind::Confirm), LATER),
            "a double is denied"
        );
        let id = RequestId::from("c");
        assert!(matches!(
            cards.answer(&id, &yes("maybe"), "a"),
            Err(AnswerError::NotOffered { .. })
        ));
        assert!(cards.answer(&id, &yes("allow"), "a").is_ok());
        let late = cards.answer(&id, &yes("deny"), "b").unwrap_err();
        assert_eq!(
            late,
            AnswerError::AlreadyAnswered {
                by: "a".into(),
                value: Some("allow".into())
            }
        );
        assert_eq!(
            late.to_string(),
            "the card was already answered by a with \"allow\""
        );
    }

    #[test]
    fn a_withdrawn_card_says_why() {
        let mut cards = Cards::default();
        cards.add(card("c", CardKind::Text), LATER);
        assert!(
            cards
                .withdraw(&"c".into(), Generation(2), Withdrawal::Cancelled)
                .is_none()
        );
        assert_eq!(cards.withdraw_all(Withdrawal::Aborted).len(), 1);
        cards.add(card("own", CardKind::Text), LATER);
        let own = cards.withdraw(&"own".into(), Generation(1), Withdrawal::Cancelled);
        assert!(own.is_some());
        let why = Withdrawal::Cancelled;
        let late = cards.answer(&"own".into(), &yes("x"), "a").unwrap_err();
        assert_eq!(late, AnswerError::Gone { why });
        let late = cards.answer(&"c".into(), &yes("x"), "a").unwrap_err();
        assert_eq!(
            late,
            AnswerError::Gone {
                why: Withdrawal::Aborted
            }
        );
        let never = cards.answer(&"d".into(), &yes("x"), "a").unwrap_err();
        assert!(matches!(never, AnswerError::Unknown(_)));
    }

    #[test]
    fn only_so_many_are_open_and_one_that_ends_makes_room() {
        let mut cards = Cards::default();
        for index in 0..MAX_OPEN {
            assert!(cards.add(card(&index.to_string(), CardKind::Text), LATER));
        }
        assert!(!cards.add(card("more", CardKind::Text), LATER));
        assert_eq!(cards.open().count(), MAX_OPEN);
        assert!(cards.answer(&"0".into(), &yes("x"), "a").is_ok());
        assert!(cards.add(card("more", CardKind::Text), LATER));
    }

    #[test]
    fn each_card_ends_at_its_own_limit_unless_it_was_answered_before() {
        let mut cards = Cards::default();
        let sooner = Mono::from_secs(10);
        cards.add(card("a", CardKind::Confirm), LATER);
        cards.add(card("b", CardKind::Confirm), sooner);
        cards.add(card("c", CardKind::Confirm), sooner);
        assert_eq!(cards.deadline(), Some(sooner));
        assert_eq!(cards.expire(sooner - Mono::from_nanos(1)), []);
        // Its time is over, and nobody has said so yet: the answer is first.
        assert!(cards.answer(&"b".into(), &yes("allow"), "a").is_ok());
        let over = cards.expire(sooner);
        let why = Withdrawal::TimedOut;
        assert_eq!(over.len(), 1, "{over:?}");
        assert_eq!(over[0].0.card_id, RequestId::from("c"));
        assert_eq!(over[0].1, CardOutcome::Withdrawn { why });
        let late = cards.answer(&"c".into(), &yes("allow"), "a").unwrap_err();
        assert_eq!(late, AnswerError::Gone { why });
        assert_eq!(
            late.to_string(),
            "the card is gone: nobody answered in time"
        );
        assert_eq!(cards.deadline(), Some(LATER));
        assert_eq!(cards.expire(LATER).len(), 1);
        assert_eq!(cards.deadline(), None);
    }

    /// What was typed and thought better of is nobody's.
    #[test]
    fn a_no_has_no_value() {
        let mut cards = Cards::default();
        cards.add(card("c", CardKind::Text), LATER);
        let no = Answer {
            ok: false,
            ..yes("typed")
        };
        let (_, outcome) = cards.answer(&"c".into(), &no, "a").unwrap();
        let (by, value) = ("a".to_owned(), None);
        assert_eq!(outcome, CardOutcome::Answered { by, value });
    }

    #[test]
    fn only_so_many_settled_cards_are_remembered() {
        let mut cards = Cards::default();
        for index in 0..=REMEMBERED {
            cards.add(card(&index.to_string(), CardKind::Text), LATER);
            cards.withdraw_all(Withdrawal::Aborted);
        }
        let mut late = |id: &str| cards.answer(&id.into(), &yes("x"), "a").unwrap_err();
        assert!(matches!(late("0"), AnswerError::Unknown(_)));
        assert!(matches!(late("1"), AnswerError::Gone { .. }));
    }

    #[test]
    fn a_secret_is_not_kept() {
        let mut cards = Cards::default();
        cards.add(card("c", CardKind::Secret), LATER);
        let (_, outcome) = cards.answer(&"c".into(), &yes("s3cr3t"), "a").unwrap();
        assert!(!format!("{outcome:?} {cards:?}").contains("s3cr3t"));
    }
}
