//! The cards of this worker: which are open, and what was allowed for the rest
//! of the session. Pure.
//!
//! Invariants:
//! - a card is answered at most once; what comes later, or for a card that was
//!   withdrawn, reaches nobody;
//! - an answer that was not offered is a denial;
//! - `allow_session` is remembered per tool and only for approval cards.

use std::collections::HashSet;

use ade_protocol::RequestId;
use ade_protocol::card::{CardKind, CardOrigin, Permission};
use ade_protocol::frame::{UiRequest, UiResponse};

/// Most cards open at once. Past it a card is denied at once: a host that asks
/// so much does not wait for answers.
pub(crate) const MAX_OPEN: usize = 256;

/// What becomes of a new card.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// It is open: tell the broker.
    Open,
    /// It is settled: tell the host. Nobody else needs to know.
    Settled(UiResponse),
}

/// Open cards and standing permissions.
#[derive(Debug, Default)]
pub(crate) struct Cards {
    open: Vec<UiRequest>,
    allowed: HashSet<String>,
}

impl Cards {
    /// Takes a card of the host.
    pub(crate) fn ask(&mut self, request: &UiRequest) -> Asked {
        let settled = |ok: bool, value: Option<&str>, error: Option<&str>| {
            Asked::Settled(UiResponse {
                request_id: request.request_id.clone(),
                ok,
                value: value.map(str::to_owned),
                error: error.map(str::to_owned),
            })
        };
        let payload = &request.payload;
        if payload.origin == CardOrigin::Approval
            && payload.kind == CardKind::Confirm
            && payload
                .source_id
                .as_ref()
                .is_some_and(|tool| self.allowed.contains(tool))
        {
            return settled(true, Some("allow_session"), None);
        }
        if self
            .open
            .iter()
            .any(|open| open.request_id == request.request_id)
        {
            return settled(false, None, Some("a question with this id is open already"));
        }
        if self.open.len() >= MAX_OPEN {
            return settled(false, None, Some("too many questions are open"));
        }
        self.open.push(request.clone());
        Asked::Open
    }

    /// Takes the broker's answer. `None`: the card is not open. Else what the
    /// host is told, and the answer itself where it is a secret.
    pub(crate) fn answer(&mut self, answer: UiResponse) -> Option<(UiResponse, Option<String>)> {
        let card = self.take(&answer.request_id)?;
        let payload = &card.payload;
        let declined = UiResponse {
            request_id: answer.request_id.clone(),
            ok: false,
            value: None,
            error: answer.error.clone(),
        };
        if !answer.ok || answer.answer().fits(payload).is_err() {
            return Some((declined, None));
        }
        if payload.kind == CardKind::Confirm {
            match answer.answer().permission() {
                Permission::No => return Some((declined, None)),
                Permission::Once => {}
                Permission::Session => {
                    if payload.origin == CardOrigin::Approval {
                        self.allowed.extend(payload.source_id.clone());
                    }
                }
            }
        }
        let secret = (payload.kind == CardKind::Secret)
            .then(|| answer.value.clone())
            .flatten();
        Some((answer, secret))
    }

    /// Closes one card without an answer; false when it was not open.
    pub(crate) fn withdraw(&mut self, id: &RequestId) -> bool {
        self.take(id).is_some()
    }

    /// Closes every card without an answer.
    pub(crate) fn withdraw_all(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.open)
            .into_iter()
            .map(|card| card.request_id)
            .collect()
    }

    /// The open cards, oldest first.
    pub(crate) fn open(&self) -> &[UiRequest] {
        &self.open
    }

    fn take(&mut self, id: &RequestId) -> Option<UiRequest> {
        let index = self.open.iter().position(|card| card.request_id == *id)?;
        Some(self.open.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ade_protocol::card::CardPayload;

    fn card(id: &str, kind: CardKind, tool: &str) -> UiRequest {
        UiRequest {
            request_id: id.into(),
            turn_id: Some("t1".into()),
            payload: CardPayload {
                origin: CardOrigin::Approval,
                kind,
                message: "Run it?".into(),
                title: None,
                placeholder: None,
                default_value: None,
                options: Vec::new(),
                source_id: Some(tool.into()),
                detail: None,
            },
        }
    }

    fn yes(id: &str, value: &str) -> UiResponse {
        UiResponse {
            request_id: id.into(),
            ok: true,
            value: Some(value.into()),
            error: None,
        }
    }

    #[test]
    fn the_first_answer_counts_and_no_other() {
        let mut cards = Cards::default();
        assert_eq!(
            cards.ask(&card("q1", CardKind::Confirm, "bash")),
            Asked::Open
        );
        assert_eq!(
            cards.answer(yes("q1", "allow")),
            Some((yes("q1", "allow"), None))
        );
        assert_eq!(cards.answer(yes("q1", "allow")), None);
        assert!(!cards.withdraw(&"q1".into()));
    }

    #[test]
    fn odd_words_deny() {
        for word in ["Allow", "yes", "", "deny"] {
            let mut cards = Cards::default();
            cards.ask(&card("q1", CardKind::Confirm, "bash"));
            assert!(!cards.answer(yes("q1", word)).unwrap().0.ok, "{word:?}");
        }
    }

    #[test]
    fn a_session_permission_is_for_one_tool() {
        let mut cards = Cards::default();
        cards.ask(&card("q1", CardKind::Confirm, "bash"));
        cards.answer(yes("q1", "allow_session"));
        let again = cards.ask(&card("q2", CardKind::Confirm, "bash"));
        assert!(matches!(again, Asked::Settled(answer) if answer.ok));
        assert_eq!(
            cards.ask(&card("q3", CardKind::Confirm, "edit")),
            Asked::Open
        );
        let mut question = card("q4", CardKind::Confirm, "bash");
        question.payload.origin = CardOrigin::Extension;
        assert_eq!(cards.ask(&question), Asked::Open);
        // What is no yes or no has no standing answer.
        assert_eq!(cards.ask(&card("q5", CardKind::Text, "bash")), Asked::Open);
    }

    #[test]
    fn a_session_permission_comes_from_an_approval_only() {
        let mut cards = Cards::default();
        let mut question = card("q1", CardKind::Confirm, "bash");
        question.payload.origin = CardOrigin::Extension;
        assert_eq!(cards.ask(&question), Asked::Open);
        assert!(cards.answer(yes("q1", "allow_session")).unwrap().0.ok);
        let gated = card("q2", CardKind::Confirm, "bash");
        assert_eq!(cards.ask(&gated), Asked::Open, "that was another question");
    }

    #[test]
    fn a_choice_that_was_not_offered_and_a_no_are_passed_on_without_a_value() {
        let mut cards = Cards::default();
        cards.ask(&card("q1", CardKind::Select, "x"));
        let (told, secret) = cards.answer(yes("q1", "odd")).unwrap();
        assert_eq!((told.ok, told.value, secret), (false, None, None));
        cards.ask(&card("q2", CardKind::Secret, "x"));
        let no = UiResponse {
            ok: false,
            ..yes("q2", "typed and thought better of")
        };
        let (told, _) = cards.answer(no).unwrap();
        assert_eq!((told.ok, told.value), (false, None));
    }

    #[test]
    fn secrets_are_handed_out_for_masking() {
        let mut cards = Cards::default();
        cards.ask(&card("q1", CardKind::Secret, "login"));
        assert_eq!(
            cards.answer(yes("q1", "hunter2")).unwrap().1.as_deref(),
            Some("hunter2")
        );
    }

    #[test]
    fn withdrawn_cards_cannot_be_answered() {
        let mut cards = Cards::default();
        cards.ask(&card("q1", CardKind::Confirm, "bash"));
        assert_eq!(cards.withdraw_all(), vec!["q1".into()]);
        assert_eq!(cards.answer(yes("q1", "allow")), None);
    }

    #[test]
    fn the_registry_has_a_bound() {
        let mut cards = Cards::default();
        for index in 0..MAX_OPEN {
            let card = card(&index.to_string(), CardKind::Text, "x");
            assert_eq!(cards.ask(&card), Asked::Open);
        }
        let refused = cards.ask(&card("more", CardKind::Text, "x"));
        assert!(matches!(refused, Asked::Settled(answer) if !answer.ok));
    }
}
