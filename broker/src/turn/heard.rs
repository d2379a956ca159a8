//! What is heard of the running turn, and its silence.

use ade_protocol::{Generation, TurnId};

use super::machine::Machine;
use super::{Effect, Mono, State};

/// Whether silence is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Quiet {
    /// It is not.
    Off,
    /// Something was heard then.
    Heard(Mono),
    /// Nothing was heard since then, and that was told.
    Told(Mono),
}

impl Machine {
    /// Since when nothing was heard of the turn, once that was told.
    #[must_use]
    pub fn quiet_since(&self) -> Option<Mono> {
        match self.quiet {
            Quiet::Told(since) => Some(since),
            Quiet::Off | Quiet::Heard(_) => None,
        }
    }

    pub(super) fn quiet_at(&self) -> Option<Mono> {
        match self.quiet {
            Quiet::Heard(last) => Some(last + self.rules.timing.quiet),
            Quiet::Off | Quiet::Told(_) => None,
        }
    }

    pub(super) fn seen(
        &mut self,
        generation: Generation,
        turn: Option<&TurnId>,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        let of_this_turn = turn.is_some() && self.turn() == turn;
        if self.worker != Some(generation) || !of_this_turn {
            return;
        }
        if let Some(running) = &mut self.running {
            running.seen = true;
        }
        match self.state {
            State::AwaitingFirstEvent => {
                self.state = State::Streaming;
                self.deadline = None;
            }
            State::Cancelling => self.go_on_late(now, out),
            _ => {}
        }
        if self.state == State::Streaming {
            self.quiet = Quiet::Heard(now);
        }
    }

    pub(super) fn card_opened(
        &mut self,
        generation: Generation,
        turn: Option<&TurnId>,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        self.seen(generation, turn, now, out);
        if self.accepts(generation, turn) && turn.is_some() && self.state == State::Streaming {
            self.state = State::AwaitingCard;
            self.quiet = Quiet::Off;
        }
    }

    pub(super) fn cards_settled(&mut self, generation: Generation, now: Mono) {
        if self.worker == Some(generation) && self.state == State::AwaitingCard {
            self.state = State::Streaming;
            self.quiet = Quiet::Heard(now);
        }
    }

    /// Tells of a silence that has become long: once.
    pub(super) fn tell_quiet(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if let (Quiet::Heard(since), Some(running)) = (self.quiet, &self.running)
            && self.quiet_at().is_some_and(|at| now >= at)
        {
            let turn = running.id.clone();
            out.push(Effect::Quiet { turn, since });
            self.quiet = Quiet::Told(since);
        }
    }
}
