//! The cards of the running turn: what the worker asks, what it is answered.
//!
//! Which answer counts is decided in [`crate::cards`]; here it is written down,
//! told to everybody and passed to the worker.

use ade_protocol::RequestId;
use ade_protocol::action::CardNotification;
use ade_protocol::card::{Answer, Card, CardOutcome, Withdrawal};
use ade_protocol::event::Event;
use ade_protocol::frame::{ToWorker, UiRequest, UiResponse};
use ade_protocol::rpc;

use super::actor::Actor;
use crate::cards::AnswerError;
use crate::clock;
use crate::state::Settled;
use crate::turn::{Input, State};

/// Answers that are kept: as many as cards may be open.
pub(super) const MAX_ANSWERS: usize = crate::cards::MAX_OPEN;

/// What a worker is told whose answer was a secret and is lost.
const LOST: &str = "the broker ended before the answer was passed on, and it keeps no secrets";

/// Answers that may wait for a worker that is being taken over.
pub(super) const MAX_DEFERRED: usize = 64;

impl Actor {
    pub(super) async fn card(&mut self, request: UiRequest) {
        let Some(generation) = self.machine.worker() else {
            return;
        };
        let card = Card {
            card_id: request.request_id,
            session_id: self.row.session_id.clone(),
            generation,
            turn_id: request.turn_id,
            opened_at: clock::timestamp(),
            payload: request.payload,
        };
        if self.cards.is_open(&card.card_id) || self.answer_again(&card.card_id) {
            // Announced again after a reconnect.
            return;
        }
        let accepted = self.machine.accepts(generation, card.turn_id.as_ref());
        let ended = self.machine.is_ended_by_user();
        if accepted && ended && self.machine.state() == State::Cancelling {
            // It shows that the run is alive. In this order: a host that hears the
            // denial first would go on with the turn.
            let turn = card.turn_id.clone();
            self.input(Input::Event(generation, turn)).await;
        }
        let wanted =
            accepted && !matches!(self.machine.state(), State::Interrupting | State::Stopping);
        let until = self.now() + self.shared.config.card_timeout();
        if !wanted || !self.cards.add(card.clone(), until) {
            let why = Withdrawal::TurnEnded;
            let outcome = CardOutcome::Withdrawn { why };
            self.write_answer(&card, &outcome, None);
            return;
        }
        let turn = card.turn_id.clone();
        self.card_opened(card).await;
        self.input(Input::CardOpened(generation, turn)).await;
    }

    /// A client's answer. It counts once it is on disk.
    pub(super) async fn answer_card(
        &mut self,
        id: &RequestId,
        answer: &Answer,
        by: &str,
    ) -> Result<(), AnswerError> {
        let (card, outcome) = self.cards.answer(id, answer, by)?;
        self.card_settled(&card, outcome, Some(answer)).await;
        self.cards_settled().await;
        self.flush();
        Ok(())
    }

    /// Cards that nobody answered in time are denied, and the turn goes on.
    pub(super) async fn expire_cards(&mut self) {
        for (card, outcome) in self.cards.expire(self.now()) {
            self.card_settled(&card, outcome, None).await;
        }
        self.cards_settled().await;
    }

    pub(super) async fn card_opened(&mut self, card: Card) {
        let (stored, now) = (card.clone(), clock::monotonic_ms());
        self.store("keep a card", move |state| state.put_card(&stored, now))
            .await;
        let turn = card.turn_id.clone();
        self.emit(
            turn.as_ref(),
            &Event::CardOpened {
                card: Box::new(card.clone()),
            },
        );
        self.announce(&card, None);
    }

    /// Tells everybody how a card ended, the worker too.
    pub(super) async fn card_settled(
        &mut self,
        card: &Card,
        outcome: CardOutcome,
        answer: Option<&Answer>,
    ) {
        self.record_end(card, &outcome, answer).await;
        self.write_answer(card, &outcome, answer);
    }

    /// Writes down how a card ended, and tells everybody. In this order, so that
    /// a broker that comes in the middle tells it exactly once: what it was and
    /// where the transcript will tell it, then the transcript. The answer itself
    /// stays on disk until the worker is known to have it.
    pub(super) async fn record_end(
        &mut self,
        card: &Card,
        outcome: &CardOutcome,
        answer: Option<&Answer>,
    ) {
        let event = Event::CardResolved {
            card_id: card.card_id.clone(),
            resolution: outcome.clone(),
        };
        let settled = Settled {
            sequence: self.emit(card.turn_id.as_ref(), &event),
            outcome: outcome.clone(),
            answer: answer.cloned(),
        };
        let row = card.clone();
        self.store("keep how a card ended", move |state| {
            state.settle_card(&row, &settled)
        })
        .await;
        self.announce(card, Some(outcome.clone()));
        self.flush();
        self.keep(card).await;
    }

    /// Remembers that a settled card is on disk; the oldest is forgotten when
    /// there are too many.
    async fn keep(&mut self, card: &Card) {
        let name = (card.generation, card.card_id.clone());
        if self.kept.contains(&name) {
            return;
        }
        self.kept.push_back(name);
        if self.kept.len() > MAX_ANSWERS
            && let Some((generation, id)) = self.kept.pop_front()
        {
            let session = self.row.session_id.clone();
            self.store("drop a card", move |state| {
                state.remove_card(&session, generation, &id).map(drop)
            })
            .await;
        }
    }

    pub(super) async fn cards_settled(&mut self) {
        if self.cards.open().next().is_none()
            && let Some(generation) = self.machine.worker()
        {
            self.input(Input::CardsSettled(generation)).await;
        }
    }

    /// Passes a card's end to the worker: an answer, or a decline with the
    /// reason. Nothing reaches it twice.
    pub(super) fn write_answer(
        &mut self,
        card: &Card,
        outcome: &CardOutcome,
        answer: Option<&Answer>,
    ) {
        let settled_below = matches!(
            outcome,
            CardOutcome::Withdrawn {
                why: Withdrawal::Cancelled | Withdrawal::WorkerGone
            }
        );
        let Some(worker) = &mut self.worker else {
            return;
        };
        if settled_below || worker.generation != card.generation {
            return;
        }
        let error = match (outcome, answer) {
            (_, Some(_)) => None,
            (CardOutcome::Withdrawn { why }, None) => Some(crate::cards::why_text(*why).to_owned()),
            (_, None) => Some(LOST.to_owned()),
        };
        let (ok, value) = match answer {
            Some(answer) => (answer.ok, answer.value.clone()),
            None => (false, None),
        };
        let frame = UiResponse {
            request_id: card.card_id.clone(),
            ok,
            value,
            error,
        };
        if worker.answers.len() == MAX_ANSWERS {
            worker.answers.pop_front();
        }
        worker.answers.push_back(frame.clone());
        if !worker.link.send(&ToWorker::UiResponse(frame)) {
            tracing::warn!(session = %self.row.session_id, "an answer did not reach the worker");
        }
    }

    /// Says an answer again to a worker that asks again. False: there was none.
    pub(super) fn answer_again(&self, card: &RequestId) -> bool {
        let Some(worker) = &self.worker else {
            return false;
        };
        let answer = worker.answers.iter().find(|said| said.request_id == *card);
        // The first of two is the one that counts there too.
        answer.is_some_and(|answer| worker.link.send(&ToWorker::UiResponse(answer.clone())))
    }

    /// No card of a turn that has ended asks again.
    pub(super) async fn forget_answers(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.answers.clear();
        }
        if self.kept.is_empty() {
            return;
        }
        self.kept.clear();
        let session = self.row.session_id.clone();
        self.store("drop settled cards", move |state| {
            state.remove_settled(&session).map(drop)
        })
        .await;
    }

    fn announce(&mut self, card: &Card, resolution: Option<CardOutcome>) {
        let note = CardNotification {
            card: card.clone(),
            resolution,
        };
        let Ok(params) = serde_json::to_string(&note) else {
            return;
        };
        self.outbox.card(rpc::notification_line(rpc::CARD, &params));
        self.dirty = true;
    }

    /// Whether an answer has to wait until the worker has told which cards are
    /// open still. Past the bound it is refused as unknown.
    pub(super) fn awaits_legacy(&self, id: &RequestId) -> bool {
        self.deferred.len() < MAX_DEFERRED && self.legacy_cards.is_open(id)
    }
}
