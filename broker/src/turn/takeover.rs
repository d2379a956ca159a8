//! A turn that another broker had begun, and one that cannot be written down.

use ade_protocol::card::Withdrawal;
use ade_protocol::event::TurnStatus;
use ade_protocol::{Generation, TurnId};

use super::heard::Quiet;
use super::machine::{Machine, Running};
use super::{Adopted, Again, Effect, Failure, Legacy, Mono, Rules, State, texts};

impl Legacy {
    /// Whether the worker that the message went to was about to be replaced.
    fn is_given_up(&self) -> bool {
        self.noted && (self.resumable || self.evicted)
    }
}

impl Adopted {
    /// Whether anything of the turn was seen.
    fn is_heard(self) -> bool {
        matches!(self, Self::Has { seen, card } if seen || card)
    }
}

impl Machine {
    #[cfg(test)]
    pub(super) fn is_given_up(&self) -> bool {
        self.legacy.is_some_and(|legacy| legacy.is_given_up())
    }

    /// A session whose turn a broker that is gone had begun, and whose worker
    /// lives.
    #[must_use]
    pub fn attaching(rules: Rules, (id, prompt): (TurnId, String), legacy: Legacy) -> Self {
        let running = Running {
            sends: legacy.sends,
            again: legacy.again,
            ..Running::new(id, prompt)
        };
        Self {
            state: State::Attaching,
            running: Some(running),
            legacy: Some(legacy),
            ..Self::new(rules)
        }
    }

    /// A session whose turn a broker that is gone had begun, and that goes on
    /// with another worker, which the caller begins to have.
    #[must_use]
    pub fn resuming(rules: Rules, message: (TurnId, String), legacy: Legacy) -> Self {
        let mut machine = Self::attaching(rules, message, legacy);
        machine.resume();
        machine
    }

    /// The user had ended the turn when the other broker died.
    pub fn ended_by_user(&mut self) {
        if let Some(running) = &mut self.running {
            running.stop_requested = true;
        }
    }

    /// Whether the user has ended the turn that is started or recovered.
    #[must_use]
    pub fn is_ended_by_user(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.stop_requested)
    }

    /// Why the last broker went on with another worker.
    pub fn recall(&mut self, cause: Failure) {
        if let Some(running) = &mut self.running {
            running.cause = Some(cause);
        }
    }

    /// Why the running turn goes on with another worker, if it does.
    #[must_use]
    pub fn cause(&self) -> Option<&Failure> {
        self.running.as_ref()?.cause.as_ref()
    }

    pub(super) fn resume(&mut self) {
        self.legacy = None;
        let Some(running) = &mut self.running else {
            return;
        };
        self.state = if running.sends == 0 {
            State::Starting
        } else {
            State::Recovering
        };
    }

    /// A turn that another broker began goes on as if nothing had happened.
    pub(super) fn adopted(
        &mut self,
        generation: Generation,
        adopted: Adopted,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        self.worker = Some(generation);
        if self.running.is_none() {
            self.replace_outdated(out);
            return;
        }
        let legacy = self.legacy.take();
        let outdated = self.has_outdated_worker();
        let Some(running) = &mut self.running else {
            return;
        };
        match (self.state, legacy) {
            (State::Starting, _) if outdated => self.another_worker(out),
            // It came while the worker of the last turn was taken over.
            (State::Starting, _) => self.write(now, out),
            (State::Attaching, Some(legacy)) => match adopted {
                Adopted::Has { seen, card }
                    if legacy.is_given_up()
                        && running.again == Some(Again::Resend)
                        && !running.stop_requested =>
                {
                    running.sends += 1;
                    self.cancel_adopted(legacy, (seen, card), now, out);
                }
                // The other broker had given this worker up when its run had ended,
                // so that it has nothing to say any more.
                _ if legacy.is_given_up()
                    && (running.worked || adopted.is_heard())
                    && !running.stop_requested
                    && running.again != Some(Again::Continue) =>
                {
                    self.evict_worked(now, out);
                }
                _ if legacy.is_given_up() => {
                    running.sends += 1;
                    running.again.get_or_insert(Again::Resend);
                    self.replace(now, out);
                }
                Adopted::NeverSent if running.stop_requested => self.finish_interrupted(now, out),
                Adopted::NeverSent if outdated => self.another_worker(out),
                Adopted::NeverSent => {
                    if running.sends > 0 {
                        self.tell_recovery(out);
                    }
                    self.write(now, out);
                }
                Adopted::Has { seen, card } => {
                    running.seen = seen || card;
                    running.sends += 1;
                    let stop = running.stop_requested;
                    (self.state, self.deadline) = match (card, seen) {
                        (true, _) => (State::AwaitingCard, None),
                        (false, true) => (State::Streaming, None),
                        (false, false) => (State::AwaitingFirstEvent, Some(now + legacy.left)),
                    };
                    if self.state == State::Streaming {
                        self.quiet = Quiet::Heard(now);
                    }
                    if stop {
                        self.end_running(now + self.rules.timing.abort, now, out);
                    }
                }
            },
            _ => {}
        }
    }

    /// The worker that was taken over is not one that a message is written to.
    fn another_worker(&mut self, out: &mut Vec<Effect>) {
        self.worker = None;
        self.resume();
        out.push(Effect::Withdraw(Withdrawal::Recycled));
        out.push(Effect::Dispose);
        out.push(Effect::Acquire);
    }

    /// A turn whose message reached nobody, or was to be sent again, gets
    /// another worker; for any other nothing is done on a guess.
    pub(super) fn takeover_failed(&mut self, failure: Failure, now: Mono, out: &mut Vec<Effect>) {
        let resumable = self.legacy.is_some_and(|legacy| legacy.resumable);
        if self.state == State::Attaching {
            self.tell_steers(out);
        }
        let Some(running) = &self.running else { return };
        match self.state {
            State::Attaching if running.stop_requested => self.finish_interrupted(now, out),
            State::Attaching if resumable && running.worked => {
                self.legacy = None;
                self.held = true;
                self.finish_unknown(now, out);
            }
            State::Attaching if resumable => {
                self.count_noted();
                self.resume();
                out.push(Effect::Acquire);
            }
            State::Attaching => {
                self.count_noted();
                self.legacy = None;
                // The turn was lost with the other broker: what waits behind it
                // is held like any queue that a broker left.
                self.held = true;
                self.finish_failed(failure, now, out);
            }
            State::Starting | State::Recovering => out.push(Effect::Acquire),
            _ => {}
        }
    }

    /// Whether a message that was noted as sent got to its worker nobody can tell
    /// any more, so it counts.
    fn count_noted(&mut self) {
        if let (Some(legacy), Some(running)) = (self.legacy, &mut self.running) {
            running.sends += u8::from(legacy.noted);
        }
    }

    /// Nothing is begun any more, so what waits ends too.
    pub(super) fn unrecordable(&mut self, failure: &Failure, out: &mut Vec<Effect>) {
        out.push(Effect::Withdraw(Withdrawal::TurnEnded));
        self.evict(out);
        self.drop_cleared(out);
        let running = self.running.take();
        let running = running.map(|running| (running.id, failure.clone()));
        let queued = self.queue.drain(..);
        let queued = queued.map(|row| (row.turn, texts::unrecorded(failure, &row.prompt)));
        let ends = running.into_iter().chain(queued);
        out.extend(ends.map(|(turn, failure)| Effect::Finish {
            turn,
            status: TurnStatus::Failed,
            stop_reason: None,
            usage: None,
            failure: Some(failure),
        }));
        self.quiet = Quiet::Off;
        self.legacy = None;
        self.state = State::Idle;
        self.deadline = None;
    }
}
