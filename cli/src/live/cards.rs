//! The cards of a session that is followed live: asked one after the other, or
//! answered without a person.

use ade_protocol::action::{CardAnswer, CardAnswered, CardNotification, name};
use std::time::Duration;

use ade_protocol::RequestId;
use ade_protocol::card::{Answer, Card, CardKind, CardOutcome};

use tokio::time::Instant;

use super::{Answers, Live, REMEMBERED};
use crate::ask;
use crate::client::{QUICK, card_is_settled};
use crate::error::CommandError;
use crate::output::Style;

/// How long a card waits for its event before it is asked all the same.
const PATIENCE: Duration = Duration::from_millis(500);

impl Live<'_> {
    pub(super) async fn card(&mut self, told: CardNotification) -> Result<(), CommandError> {
        if told.card.session_id != self.options.session {
            return Ok(());
        }
        match told.resolution {
            None => self.announced(told.card).await,
            Some(resolution) => {
                self.card_settled(&told.card.card_id, &resolution);
                Ok(())
            }
        }
    }

    /// A card is open. What the turn said before it is shown before it is asked:
    /// its own event is waited for, which may come behind this word.
    pub(super) async fn announced(&mut self, card: Card) -> Result<(), CommandError> {
        if self.opened.contains(&card.card_id) {
            return self.card_opened(card).await;
        }
        let known = self.announced.iter().any(|(_, known)| same(known, &card));
        if !known && card.session_id == self.options.session {
            self.announced.push_back((Instant::now() + PATIENCE, card));
        }
        Ok(())
    }

    /// Everything before a card was shown.
    pub(super) async fn card_event(&mut self, id: &RequestId) -> Result<(), CommandError> {
        self.hushed = false;
        if self.opened.len() == REMEMBERED {
            self.opened.pop_front();
        }
        self.opened.push_back(id.clone());
        let place = (self.announced.iter()).position(|(_, card)| card.card_id == *id);
        match place.and_then(|place| self.announced.remove(place)) {
            Some((_, card)) => self.card_opened(card).await,
            None => Ok(()),
        }
    }

    /// When the event of a card has been waited for long enough: it is older
    /// than what is followed here.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.announced.front().map(|(until, _)| *until)
    }

    pub(super) async fn overdue(&mut self) -> Result<(), CommandError> {
        match self.announced.pop_front() {
            Some((_, card)) => self.card_opened(card).await,
            None => Ok(()),
        }
    }

    /// A card is settled, by the word of its event or of its own notification,
    /// whichever comes first. A question that is shown is told of here; of
    /// others the event tells.
    pub(super) fn card_settled(&mut self, id: &RequestId, resolution: &CardOutcome) {
        self.announced.retain(|(_, card)| card.card_id != *id);
        let Some(place) = self.cards.iter().position(|card| card.card_id == *id) else {
            return;
        };
        let asked = place == 0 && self.asked;
        let Some(card) = self.cards.remove(place) else {
            return;
        };
        if asked {
            self.leave_question();
            let secret = card.payload.kind == CardKind::Secret;
            let text = crate::view::resolved(resolution, secret);
            self.context.out.note(Style::Dim, &text);
            self.remember(&card);
        }
    }

    pub(super) async fn card_opened(&mut self, card: Card) -> Result<(), CommandError> {
        let ours = card.session_id == self.options.session;
        if !ours || self.cards.iter().any(|known| same(known, &card)) || self.is_settled(&card) {
            return Ok(());
        }
        match self.options.answers {
            Answers::Person => self.cards.push_back(card),
            Answers::Allow | Answers::Decline => self.answer_unattended(card).await?,
            Answers::Elsewhere => {}
        }
        Ok(())
    }

    async fn answer_unattended(&mut self, card: Card) -> Result<(), CommandError> {
        let answer = ask::unattended(&card, self.options.answers == Answers::Allow);
        let subject = card.payload.title.as_ref().unwrap_or(&card.payload.message);
        let subject = crate::table::clipped(subject, 80);
        let text = match (answer.ok, self.options.answers) {
            (true, _) => format!("allowed because of --yes: {subject}"),
            (false, Answers::Allow) => {
                format!("declined, because --yes answers only permissions: {subject}")
            }
            (false, _) if card.payload.kind == CardKind::Confirm => {
                format!("denied, because nobody can be asked here (--yes allows): {subject}")
            }
            (false, _) => format!("declined, because nobody can be asked here: {subject}"),
        };
        self.context.out.must_note(Style::Warn, &text);
        self.send_answer(card, answer).await
    }

    /// Shows the first card's question if it is not shown.
    pub(super) fn put_question(&mut self) {
        if self.asked || self.hushed {
            return;
        }
        let Some(card) = self.cards.front() else {
            return;
        };
        let out = &self.context.out;
        // Of a question that was only talked over the last line is enough.
        if self.talked_over.take().as_ref() != Some(&card.card_id) {
            for (style, line) in ask::question(&card.payload) {
                out.must_note(style, &line);
            }
            self.early = self.input.arrived().or(self.early.take());
            self.input.forget_typed_ahead();
        }
        if card.payload.kind == CardKind::Secret {
            self.echo = self.input.without_echo();
        }
        out.prompt(Style::Accent, &ask::prompt(&card.payload));
        self.asked = true;
    }

    /// Something else is about to be shown: it gets lines of its own.
    pub(super) fn talk_over(&mut self) {
        if self.asked {
            self.talked_over = self.cards.front().map(|card| card.card_id.clone());
            self.leave_question();
        }
    }

    /// The question's line is left without an answer; it is put again if its
    /// card is still open.
    pub(super) fn leave_question(&mut self) {
        if self.asked {
            self.asked = false;
            self.echo = None;
            self.context.out.end_prompt();
        }
    }

    pub(super) async fn typed_answer(&mut self, line: Option<String>) -> Result<(), CommandError> {
        let Some(card) = self.cards.front() else {
            self.asked = false;
            return Ok(());
        };
        if self.echo.take().is_some() || line.is_none() {
            self.context.out.end_prompt();
        }
        self.asked = false;
        let answer = match &line {
            None => Answer::deny(),
            Some(line) => match ask::interpret(&card.payload, line) {
                Ok(answer) => answer,
                Err(help) => {
                    self.context
                        .out
                        .must_note(Style::Warn, &format!("  {help}"));
                    return Ok(());
                }
            },
        };
        if line.is_none() {
            // Nobody types any more: what comes later is declined at once.
            self.options.answers = Answers::Decline;
        }
        let card = self
            .cards
            .pop_front()
            .expect("it was the first a moment ago");
        self.send_answer(card, answer).await
    }

    async fn send_answer(&mut self, card: Card, answer: Answer) -> Result<(), CommandError> {
        self.remember(&card);
        self.spinner.restart(Instant::now());
        let arguments = CardAnswer {
            card_id: card.card_id,
            session_id: Some(card.session_id),
            answer,
        };
        let answered = self
            .calls
            .call::<_, CardAnswered>(name::CARDS_ANSWER, &arguments, QUICK);
        match answered.await {
            Ok(_) => Ok(()),
            Err(error) if card_is_settled(&error) => {
                self.context
                    .out
                    .note(Style::Dim, &format!("not needed any more: {error}"));
                Ok(())
            }
            // A card that cannot be answered is denied by the broker; the turn tells.
            Err(error) => {
                self.context
                    .out
                    .must_note(Style::Bad, &format!("the answer did not count: {error}"));
                Ok(())
            }
        }
    }

    fn remember(&mut self, card: &Card) {
        if self.settled.len() == REMEMBERED {
            self.settled.pop_front();
        }
        self.settled
            .push_back((card.generation, card.card_id.clone()));
    }

    fn is_settled(&self, card: &Card) -> bool {
        self.settled
            .iter()
            .any(|(generation, id)| *generation == card.generation && *id == card.card_id)
    }
}

fn same(a: &Card, b: &Card) -> bool {
    a.generation == b.generation && a.card_id == b.card_id
}
