//! A run that was taken for silent and shows that it worked after all.
//!
//! The contract has a silent run ended by a best-effort abort before its worker is
//! replaced, and says nothing of what the agent says meanwhile. It may be slow and
//! not dead, or this process may have been stopped while it spoke. A message that
//! was carried out must not be carried out again, so whatever shows that it was,
//! or is being, forbids the second send:
//!
//! - an event or a card, from the worker that is to end the run: the turn goes on
//!   as if it had come in time, with that worker, and what was put on disk for its
//!   replacement is taken back. An agent that ignores the abort goes on to its
//!   end. One that obeys it has done part of the work: the turn fails, and the
//!   user is told why. Had the user ended the turn meanwhile, the run is now ended
//!   for them as any other;
//! - its completion: the turn has completed;
//! - the word of its host that the session file went on: the turn has failed with
//!   an unknown outcome;
//! - any of these from a worker that is evicted already ([`Input::Worked`]).
//!   Nothing of it is shown, for its turn has let go of it. But the message was
//!   delivered, and how far it got is unknown.
//!
//! A broker that dies while a run is to end leaves the rest of that time to the
//! next one, which hears the same. A worker that was heard between the two and of
//! which nothing comes any more has an unknown outcome at the end of it.
//!
//! An agent of which something was seen before, and that is told to go on, is no
//! such case: that is no second send of the message.
//!
//! What it cannot do: know of an agent that works and has said nothing. That is
//! what the host looks into the session file for.

use ade_protocol::TurnId;
use ade_protocol::card::Withdrawal;
use ade_protocol::event::ErrorCategory;

use super::machine::Machine;
use super::{Again, Effect, Ending, Failure, Legacy, Mono, State, texts};

impl Ending {
    /// Whether the agent must have worked on a message that ends so.
    #[must_use]
    pub fn shows_work(&self) -> bool {
        match self {
            Self::Completed { .. } => true,
            Self::Failed(failure) => texts::is_unknown_outcome(failure),
            Self::Interrupted => false,
        }
    }
}

impl Machine {
    /// Whether the running turn was heard only after its worker had been told to
    /// end it.
    pub(super) fn is_late(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.late)
    }

    /// The run is alive: it is not replaced.
    pub(super) fn go_on_late(&mut self, now: Mono, out: &mut Vec<Effect>) {
        self.disarm(out);
        self.state = State::Streaming;
        self.deadline = None;
        if self.is_ended_by_user() {
            self.end_running(now + self.rules.timing.abort, now, out);
        }
    }

    /// A run that another broker had told to end has what is left of its time, unless
    /// it is heard in it. It is told again, because the answer may have gone to
    /// nobody.
    pub(super) fn cancel_adopted(
        &mut self,
        legacy: Legacy,
        (seen, card): (bool, bool),
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.worked |= seen || card;
        if card {
            // It blocks on the user, so that nothing else may come of it.
            running.seen = true;
            self.disarm(out);
            (self.state, self.deadline) = (State::AwaitingCard, None);
            return;
        }
        if !running.worked {
            out.push(Effect::AbortSilent(running.id.clone()));
        }
        self.state = State::Cancelling;
        self.deadline = Some(now + legacy.cancel);
    }

    /// A run that was to end has had its time.
    pub(super) fn replace_silent(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let running = self.running.as_ref();
        let worked = running.is_some_and(|running| running.worked && !running.stop_requested);
        if worked {
            self.evict_worked(now, out);
        } else {
            self.replace(now, out);
        }
    }

    /// Takes back what was put on disk for the replacement of a worker that stays.
    pub(super) fn disarm(&mut self, out: &mut Vec<Effect>) {
        if let Some(running) = &mut self.running {
            (running.late, running.again, running.cause) = (true, None, None);
            running.worked = false;
            out.push(Effect::Disarm(running.id.clone()));
        }
    }

    /// A worker that is evicted shows that its agent worked on the message.
    pub(super) fn worked(&mut self, turn: &TurnId, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = self.running.as_mut().filter(|running| running.id == *turn) else {
            return;
        };
        let goes_on = running.again == Some(Again::Continue);
        match self.state {
            _ if running.stop_requested || goes_on => {}
            State::Attaching => running.worked = true,
            State::Recovering => {
                out.push(Effect::CancelStart);
                self.finish_unknown(now, out);
            }
            _ => {}
        }
    }

    /// The message was carried out, nobody knows how far: it is not sent again.
    pub(super) fn finish_unknown(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let (turn, cause) = (running.id.clone(), running.cause.take());
        self.drop_steers(&turn, texts::DROPPED_BY_RECOVERY, out);
        self.finish_failed(texts::worked(cause.as_ref()), now, out);
    }

    /// Another broker had given this worker up, and it shows that its agent had
    /// worked.
    pub(super) fn evict_worked(&mut self, now: Mono, out: &mut Vec<Effect>) {
        out.push(Effect::Withdraw(Withdrawal::Recycled));
        self.evict(out);
        self.tell_steers(out);
        self.finish_unknown(now, out);
    }

    /// The worker of the running turn is let go, if it is not gone already.
    pub(super) fn tell_steers(&self, out: &mut Vec<Effect>) {
        out.extend(self.turn().cloned().map(Effect::TellSteers));
    }

    /// The end of a run that obeyed the abort after it had been heard.
    pub(super) fn answered_late(&self) -> Failure {
        let message = texts::late(self.rules.timing.first_event);
        Failure::new("silent", ErrorCategory::TimedOut, message)
    }

    /// A failure of the running turn, with what else is to be known of it.
    pub(super) fn heard_late(&self, failure: Failure) -> Failure {
        if !self.is_late() {
            return failure;
        }
        let late = texts::late(self.rules.timing.first_event);
        let message = format!("{}; {late}", failure.message);
        Failure { message, ..failure }
    }
}
