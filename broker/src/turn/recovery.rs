//! A turn whose worker is replaced: how the old one is let go, and how the turn
//! goes on with the new one.

use ade_protocol::Generation;
use ade_protocol::card::Withdrawal;
use ade_protocol::event::{ErrorCategory, Event};

use super::heard::Quiet;
use super::machine::Machine;
use super::{Again, Effect, Failure, Mono, State, texts};

impl Machine {
    pub(super) fn worker_ready(
        &mut self,
        generation: Generation,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        self.worker = Some(generation);
        match self.state {
            State::Starting => self.write(now, out),
            State::Recovering => {
                let Some(running) = &self.running else {
                    return;
                };
                if running.stop_requested {
                    self.finish_interrupted(now, out);
                    return;
                }
                self.tell_recovery(out);
                self.write(now, out);
            }
            _ => {}
        }
    }

    /// Tells the user that the message is sent again, where that is to be told.
    pub(super) fn tell_recovery(&self, out: &mut Vec<Effect>) {
        if let Some(running) = &self.running
            && matches!(running.again, None | Some(Again::Resend))
        {
            let notice = texts::recovery_notice(running.cause.as_ref());
            out.push(Effect::Emit(running.id.clone(), notice));
        }
    }

    pub(super) fn worker_failed(&mut self, failure: Failure, now: Mono, out: &mut Vec<Effect>) {
        let may_rotate = self.may_rotate(&failure);
        let Some(running) = &mut self.running else {
            return;
        };
        match self.state {
            State::Recovering if running.stop_requested => self.finish_interrupted(now, out),
            State::Starting | State::Recovering if may_rotate => {
                running.rotated = true;
                arm(true, None, out);
                out.push(Effect::Acquire);
            }
            State::Starting => self.finish_failed(failure, now, out),
            State::Recovering => {
                let failure = texts::not_replaced(running.cause.as_ref(), failure);
                self.finish_failed(failure, now, out);
            }
            _ => {}
        }
    }

    /// Whether the agent that was to be resumed is gone and a fresh one can be
    /// told the chat instead: once, and not in the middle of an answer, which
    /// the fresh one would know nothing of.
    fn may_rotate(&self, failure: &Failure) -> bool {
        let continues = |again: Option<Again>| again == Some(Again::Continue);
        self.rules.recovery.fresh_agent
            && texts::is_agent_gone(failure)
            && (self.running.as_ref())
                .is_some_and(|running| !running.rotated && !continues(running.again))
    }

    /// Nothing of the turn was seen and its run has ended: replace the worker,
    /// and send again unless that happened before.
    pub(super) fn recover(&mut self, cause: Failure, now: Mono, out: &mut Vec<Effect>) {
        self.give_up(cause, out);
        self.replace(now, out);
    }

    /// The same for a run that may go on: it is to end first.
    pub(super) fn cancel_silent(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &self.running else { return };
        let turn = running.id.clone();
        let seconds = self.rules.timing.first_event.as_secs_f32();
        let message = format!("the agent sent nothing for {seconds} s");
        let cause = Failure::new("silent", ErrorCategory::TimedOut, message);
        self.give_up(cause, out);
        out.push(Effect::AbortSilent(turn));
        self.state = State::Cancelling;
        self.deadline = Some(now + self.rules.timing.cancel);
    }

    /// A worker that is to end its run has answered.
    pub(super) fn abort_answered(
        &mut self,
        generation: Generation,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        if self.state == State::Cancelling && self.worker == Some(generation) {
            self.replace_silent(now, out);
        }
    }

    /// Decides how the turn goes on, if it does, and puts it on disk. Nothing was
    /// seen of what was sent last.
    fn give_up(&mut self, cause: Failure, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let resend = running.sends < 2;
        running.again = resend.then_some(Again::Resend);
        running.cause = Some(match running.cause.take() {
            Some(first) if !resend => texts::failed_twice(&first, cause),
            _ => cause,
        });
        arm(self.rules.recovery.fresh_agent, running.again, out);
    }

    /// Evicts the worker. The turn goes on with another one, or ends.
    pub(super) fn replace(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        // Also when the worker has ended by itself: its last processes may not
        // have, and the next one waits for them.
        self.worker = None;
        out.push(Effect::Withdraw(Withdrawal::Recycled));
        out.push(Effect::Poison);
        out.push(Effect::TellSteers(running.id.clone()));
        self.deadline = None;
        self.quiet = Quiet::Off;
        if running.again.is_some() {
            running.seen = false;
            self.state = State::Recovering;
            out.push(Effect::Acquire);
        } else if running.stop_requested {
            self.finish_interrupted(now, out);
        } else if let Some(cause) = running.cause.take() {
            self.finish_failed(cause, now, out);
        }
    }

    /// Whether a failure is one of a login token that a new worker renews.
    pub(super) fn may_reconnect(&self, failure: &Failure) -> bool {
        self.rules.recovery.reconnects && texts::is_stale_token(failure)
    }

    /// The login token has expired: the same agent goes on with a new worker.
    /// A second time the user has to sign in again.
    pub(super) fn reconnect(&mut self, failure: &Failure, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.again = match running.sends {
            0 | 1 if running.seen => Some(Again::Continue),
            0 | 1 => Some(Again::Reconnect),
            _ => None,
        };
        let again = running.again;
        running.cause = Some(match again {
            Some(_) => texts::expired(failure),
            None => texts::signed_out(failure),
        });
        if again == Some(Again::Continue) {
            let text = texts::RECONNECTING.to_owned();
            out.push(Effect::Emit(running.id.clone(), Event::Activity { text }));
        }
        arm(false, again, out);
        self.replace(now, out);
    }
}

/// What the next start and the next send must do once, if anything.
fn arm(rotate: bool, again: Option<Again>, out: &mut Vec<Effect>) {
    if rotate || again.is_some() {
        out.push(Effect::Arm { rotate, again });
    }
}
