//! The machine itself: a turn from its message to its end.

use std::collections::VecDeque;

use ade_protocol::card::Withdrawal;
use ade_protocol::event::{Event, TurnStatus, Via};
use ade_protocol::{Generation, TurnId};

use super::heard::Quiet;
use super::waiting::dropped;
use super::{Again, Effect, Ending, Failure, Input, Legacy, Mono, Queued, Rules, State, texts};

/// The running turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Running {
    pub(super) id: TurnId,
    pub(super) prompt: String,
    pub(super) sends: u8,
    /// Something was seen of what was sent last.
    pub(super) seen: bool,
    pub(super) stop_requested: bool,
    /// How it goes on with another worker.
    pub(super) again: Option<Again>,
    /// A fresh agent was asked for because the old one is not there any more.
    pub(super) rotated: bool,
    /// It was silent for too long, its worker was told to end it, and then it was
    /// heard after all.
    pub(super) late: bool,
    /// A worker of another broker has shown that it was worked on, which may be all
    /// that is ever heard of it.
    pub(super) worked: bool,
    /// Why the turn is being recovered, or why it is not.
    pub(super) cause: Option<Failure>,
}

impl Running {
    pub(super) fn new(id: TurnId, prompt: String) -> Self {
        Self {
            id,
            prompt,
            sends: 0,
            seen: false,
            stop_requested: false,
            again: None,
            rotated: false,
            late: false,
            worked: false,
            cause: None,
        }
    }
}

/// Messages that an interrupt cleared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cleared {
    pub(super) rows: Vec<Queued>,
    pub(super) until: Mono,
}

/// The machine of one session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    pub(super) state: State,
    pub(super) running: Option<Running>,
    pub(super) queue: VecDeque<Queued>,
    /// The queue waits for the user's next message.
    pub(super) held: bool,
    pub(super) cleared: Option<Cleared>,
    pub(super) worker: Option<Generation>,
    /// The worker, if it is this one, serves no other turn.
    pub(super) outdated: Option<Generation>,
    pub(super) deadline: Option<Mono>,
    pub(super) quiet: Quiet,
    pub(super) rules: Rules,
    /// What a broker that is gone left of the running turn.
    pub(super) legacy: Option<Legacy>,
}

impl Machine {
    /// A session without a turn.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            state: State::Idle,
            running: None,
            queue: VecDeque::new(),
            held: false,
            cleared: None,
            worker: None,
            outdated: None,
            deadline: None,
            quiet: Quiet::Off,
            rules,
            legacy: None,
        }
    }

    /// Where the turn stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The running turn.
    #[must_use]
    pub fn turn(&self) -> Option<&TurnId> {
        self.running.as_ref().map(|running| &running.id)
    }

    /// The worker that is in use.
    #[must_use]
    pub fn worker(&self) -> Option<Generation> {
        self.worker
    }

    /// Whether nothing was seen of what was sent last for this turn, which runs: it
    /// may yet go on with another worker.
    #[must_use]
    pub fn is_unheard(&self, turn: &TurnId) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.id == *turn && !running.seen)
    }

    /// Whether the running turn's worker is being replaced.
    #[must_use]
    pub fn is_replacing(&self) -> bool {
        matches!(self.state, State::Cancelling | State::Recovering)
    }

    /// Whether the user is told nothing of that.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        let again = self.running.as_ref().and_then(|running| running.again);
        self.is_replacing() && matches!(again, Some(Again::Reconnect | Again::Continue))
    }

    /// When [`Input::Tick`] is wanted next.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        let cleared = self.cleared.as_ref().map(|cleared| cleared.until);
        [self.deadline, self.quiet_at(), cleared]
            .into_iter()
            .flatten()
            .min()
    }

    /// Sets the clock from `now` to `base`, so that a test can tell states apart
    /// by what is left of their bounds.
    #[cfg(test)]
    pub(super) fn rebase(&mut self, now: Mono, base: Mono) {
        let moved = |at: Mono| (at + base).saturating_sub(now);
        self.deadline = self.deadline.map(moved);
        if let Some(cleared) = &mut self.cleared {
            cleared.until = moved(cleared.until);
        }
        self.quiet = match self.quiet {
            Quiet::Off => Quiet::Off,
            Quiet::Heard(last) => Quiet::Heard(moved(last)),
            Quiet::Told(_) => Quiet::Told(Mono::ZERO),
        };
    }

    /// Whether an event of this turn and generation is to be shown.
    #[must_use]
    pub fn accepts(&self, generation: Generation, turn: Option<&TurnId>) -> bool {
        self.worker == Some(generation)
            && match turn {
                None => true,
                Some(turn) => self.turn() == Some(turn),
            }
    }

    /// Takes one input and says what is to be done, in order.
    pub fn on(&mut self, input: Input, now: Mono) -> Vec<Effect> {
        let mut out = Vec::new();
        match input {
            Input::Send { turn, prompt } => self.send(turn, prompt, now, &mut out),
            Input::Steer { turn, prompt } => self.steer(turn, prompt, now, &mut out),
            Input::Interrupt { turn, prompt, mode } => {
                self.interrupt(turn, prompt, mode, now, &mut out);
            }
            Input::EditQueued { turn, prompt } => self.edit(turn, prompt, &mut out),
            Input::CancelQueued { turn, by } => self.cancel(&turn, &by, &mut out),
            Input::RecoverQueue => self.recover_queue(now, &mut out),
            Input::Abort => self.abort(now, &mut out),
            Input::Stop => self.stop(now, &mut out),
            Input::PutAway => self.put_away(&mut out),
            Input::WorkerReady(generation) => self.worker_ready(generation, now, &mut out),
            Input::WorkerFailed(failure) => self.worker_failed(failure, now, &mut out),
            Input::WorkerExited(generation, failure) => {
                self.worker_exited(generation, failure, now, &mut out);
            }
            Input::Outdated(generation) => self.outdated(generation, &mut out),
            Input::Adopted(generation, adopted) => {
                self.adopted(generation, adopted, now, &mut out);
            }
            Input::TakeoverFailed(failure) => self.takeover_failed(failure, now, &mut out),
            Input::Unrecordable(failure) => self.unrecordable(&failure, &mut out),
            Input::AbortAnswered(generation) => self.abort_answered(generation, now, &mut out),
            Input::Worked(turn) => self.worked(&turn, now, &mut out),
            Input::Event(generation, turn) => {
                self.seen(generation, turn.as_ref(), now, &mut out);
            }
            Input::CardOpened(generation, turn) => {
                self.card_opened(generation, turn.as_ref(), now, &mut out);
            }
            Input::CardsSettled(generation) => self.cards_settled(generation, now),
            Input::Ended(generation, turn, ending) => {
                self.ended(generation, &turn, ending, now, &mut out);
            }
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    pub(super) fn begin(&mut self, id: TurnId, prompt: String, now: Mono, out: &mut Vec<Effect>) {
        let message = Event::UserMessage {
            text: prompt.clone(),
            via: Via::Send,
        };
        out.push(Effect::Emit(id.clone(), message));
        let status = TurnStatus::Started;
        out.push(Effect::Emit(id.clone(), Event::Status { status }));
        self.running = Some(Running::new(id, prompt));
        // The user is there again, also when nothing was held in the end: what comes
        // behind this turn waits for it only.
        self.held = false;
        if self.worker.is_some() {
            self.write(now, out);
        } else {
            self.state = State::Starting;
            out.push(Effect::Acquire);
        }
    }

    /// Writes the running turn's message and arms the watchdog.
    pub(super) fn write(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.sends += 1;
        running.late = false;
        let again = (running.sends > 1).then(|| running.again.unwrap_or(Again::Resend));
        let prompt = match again {
            Some(Again::Continue) => texts::CONTINUE.to_owned(),
            _ => running.prompt.clone(),
        };
        out.push(Effect::Send {
            turn: running.id.clone(),
            prompt,
            again,
        });
        self.state = State::AwaitingFirstEvent;
        self.deadline = Some(now + self.rules.timing.first_event);
    }

    pub(super) fn abort(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if matches!(self.state, State::Interrupting | State::Stopping) {
            return;
        }
        if let Some(id) = self.turn().cloned() {
            self.drop_steers(&id, texts::DROPPED_BY_ABORT, out);
        }
        self.end_running(now + self.rules.timing.abort, now, out);
    }

    /// The user ends the running turn, if one runs and is not ended already.
    pub(super) fn end_running(&mut self, until: Mono, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        match self.state {
            State::Starting => {
                // Nothing went to the worker yet. It may hang in its start, and
                // what comes next is not to wait for that.
                out.push(Effect::CancelStart);
                self.finish_interrupted(now, out);
            }
            State::AwaitingFirstEvent | State::Streaming | State::AwaitingCard => {
                // In this order: a host that hears the denial first would go
                // on with the turn.
                out.push(Effect::NoteEnd(running.id.clone()));
                out.push(Effect::Abort(running.id.clone()));
                out.push(Effect::Withdraw(Withdrawal::Aborted));
                self.state = State::Interrupting;
                self.deadline = Some(until);
                self.quiet = Quiet::Off;
            }
            State::Cancelling | State::Recovering | State::Attaching => {
                if !std::mem::replace(&mut running.stop_requested, true) {
                    out.push(Effect::NoteEnd(running.id.clone()));
                }
            }
            State::Idle | State::Interrupting | State::Stopping => {}
        }
    }

    pub(super) fn stop(&mut self, now: Mono, out: &mut Vec<Effect>) {
        self.drop_cleared(out);
        let rows = std::mem::take(&mut self.queue);
        out.extend(rows.into_iter().map(|row| dropped(row, texts::STOPPED)));
        // In this order: a host that hears the denial first would go on.
        out.push(Effect::Dispose);
        out.push(Effect::Withdraw(Withdrawal::ShuttingDown));
        self.quiet = Quiet::Off;
        match self.state {
            // The worker is on its way out: the next message needs another one.
            State::Idle => self.worker = None,
            State::Starting | State::Cancelling | State::Recovering | State::Attaching => {
                self.worker = None;
                self.finish_interrupted(now, out);
            }
            _ => {
                self.state = State::Stopping;
                self.deadline = Some(now + self.rules.timing.stop);
            }
        }
    }

    pub(super) fn put_away(&mut self, out: &mut Vec<Effect>) {
        if self.state == State::Idle && self.worker.take().is_some() {
            out.push(Effect::Withdraw(Withdrawal::ShuttingDown));
            out.push(Effect::Dispose);
        }
    }

    pub(super) fn worker_exited(
        &mut self,
        generation: Generation,
        failure: Failure,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        if self.worker != Some(generation) {
            return;
        }
        self.worker = None;
        match self.state {
            State::AwaitingFirstEvent => self.recover(failure, now, out),
            State::Cancelling => self.replace_silent(now, out),
            State::Streaming | State::AwaitingCard => {
                out.push(Effect::Withdraw(Withdrawal::WorkerGone));
                self.finish_failed(self.heard_late(failure), now, out);
            }
            State::Interrupting | State::Stopping => self.finish_interrupted(now, out),
            // A card of no turn may wait: a sign-in, for one.
            State::Idle => out.push(Effect::Withdraw(Withdrawal::WorkerGone)),
            State::Starting | State::Recovering | State::Attaching => {}
        }
    }

    pub(super) fn ended(
        &mut self,
        generation: Generation,
        turn: &TurnId,
        ending: Ending,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        if self.worker != Some(generation) || self.turn() != Some(turn) {
            return;
        }
        let (awaiting, stopping) = match self.state {
            State::AwaitingFirstEvent => (true, false),
            State::Streaming | State::AwaitingCard => (false, false),
            State::Interrupting | State::Stopping => (false, true),
            // It ends as it was told to: that it is replaced is decided.
            State::Cancelling if !ending.shows_work() => return,
            State::Cancelling => {
                self.disarm(out);
                (false, self.is_ended_by_user())
            }
            State::Idle | State::Starting | State::Recovering | State::Attaching => return,
        };
        if let Ending::Failed(failure) = &ending {
            if !stopping && self.may_reconnect(failure) {
                return self.reconnect(failure, now, out);
            }
            if awaiting && texts::may_resend(failure) {
                return self.recover(failure.clone(), now, out);
            }
        }
        out.push(Effect::Withdraw(Withdrawal::TurnEnded));
        match ending {
            Ending::Completed { stop_reason, usage } => {
                out.push(Effect::Finish {
                    turn: turn.clone(),
                    status: TurnStatus::Completed,
                    stop_reason,
                    usage,
                    failure: None,
                });
                self.next(now, out);
            }
            Ending::Failed(failure) => {
                // Whoever ended the turn, no other one is written to it.
                if self.state != State::Stopping && texts::ends_worker(&failure) {
                    self.evict(out);
                }
                if stopping {
                    self.finish_interrupted(now, out);
                } else {
                    self.finish_failed(self.heard_late(texts::told(failure)), now, out);
                }
            }
            Ending::Interrupted if !stopping && self.is_late() => {
                self.finish_failed(self.answered_late(), now, out);
            }
            Ending::Interrupted => self.finish_interrupted(now, out),
        }
    }

    pub(super) fn tick(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self
            .cleared
            .as_ref()
            .is_some_and(|cleared| now >= cleared.until)
        {
            self.drop_cleared(out);
        }
        self.tell_quiet(now, out);
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.state {
            State::AwaitingFirstEvent => self.cancel_silent(now, out),
            State::Cancelling => self.replace_silent(now, out),
            State::Interrupting => {
                self.evict(out);
                self.finish_interrupted(now, out);
            }
            State::Stopping => self.finish_interrupted(now, out),
            // They have none.
            _ => {}
        }
    }

    pub(super) fn evict(&mut self, out: &mut Vec<Effect>) {
        self.worker = None;
        out.push(Effect::Poison);
    }

    pub(super) fn finish_interrupted(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if let Some(running) = self.running.take() {
            out.push(Effect::Finish {
                turn: running.id,
                status: TurnStatus::Interrupted,
                stop_reason: None,
                usage: None,
                failure: None,
            });
        }
        self.next(now, out);
    }

    pub(super) fn finish_failed(&mut self, failure: Failure, now: Mono, out: &mut Vec<Effect>) {
        if let Some(running) = self.running.take() {
            let recovery = running.sends > 1 || self.state == State::Recovering;
            if recovery && !running.seen {
                self.drop_steers(&running.id, texts::DROPPED_BY_RECOVERY, out);
            }
            out.push(Effect::Finish {
                turn: running.id,
                status: TurnStatus::Failed,
                stop_reason: None,
                usage: None,
                failure: Some(failure),
            });
        }
        self.next(now, out);
    }

    /// No turn runs any more: the next message, if there is one and it may.
    pub(super) fn next(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let stopped = self.state == State::Stopping;
        if stopped {
            self.worker = None;
        }
        let idle = self.state == State::Idle;
        self.running = None;
        self.state = State::Idle;
        self.deadline = None;
        self.quiet = Quiet::Off;
        self.replace_outdated(out);
        if self.held && !idle {
            return;
        }
        if let Some(row) = self.queue.pop_front() {
            self.begin(row.turn, row.prompt, now, out);
        }
    }
}
