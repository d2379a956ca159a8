//! The turn: a pure machine.
//!
//! Inputs and a monotonic `now` go in, effects come out; no clock, file or
//! socket is here. One machine serves one session and runs at most one turn.
//!
//! Invariants:
//! - each turn that was begun is ended by exactly one [`Effect::Finish`], and
//!   each message that never became one by exactly one [`Effect::Drop`];
//! - a message is written to a worker at most twice, the second time only after
//!   a recycle and only when nothing of the turn was seen;
//! - after a user's abort, stop or interrupt was accepted nothing is sent for
//!   that turn;
//! - an input of another generation or another turn changes nothing;
//! - every state but `Idle`, `Starting`, `Recovering`, `Attaching`, `Streaming` and
//!   `AwaitingCard` has a deadline. Those end by an input: tasks that start a
//!   worker or take one over answer in bounded time, and a turn that streams is
//!   the user's to abort.
//!
//! The first-event watchdog is armed when a message is written and disarmed by
//! the first event or card of the turn; it is never armed again in that turn,
//! because a tool may be silent for hours. Silence after that is only told.
//!
//! Messages that wait run in order when the turn before them has ended, however
//! it ended; a stop ends them all. Two kinds differ: a steer that found no worker to take it belongs
//! to the turn that ran then, and is dropped with one notice when that turn is
//! aborted or its recovery fails; and the queue that a broker which died left is
//! *held*: it goes on behind the user's next message, because the turn in front
//! of it was lost and nobody may be watching.

use std::collections::VecDeque;
use std::time::Duration;

use ade_protocol::card::Withdrawal;
use ade_protocol::event::{ErrorCategory, Event, NoticeLevel, TurnStatus, Via};
use ade_protocol::frame::code;
use ade_protocol::{Generation, TurnId};

/// Time since any fixed moment, on a clock that does not jump.
pub type Mono = Duration;

/// Messages that may wait behind a running turn. One more is refused at once
/// with `queue_full`.
pub const MAX_QUEUE: usize = 32;

/// Bounds of a turn's waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Silence after a send until the worker is replaced.
    pub first_event: Duration,
    /// Silence of a turn that was heard already until it is told. Nothing else
    /// happens then.
    pub quiet: Duration,
    /// How long `abort` may take before the worker is replaced. The worker
    /// itself gives its host 10 s; one more is for the way back.
    pub abort: Duration,
    /// The same when the same agent shall go on with another message.
    pub interrupt: Duration,
    /// How long a stop may take until the turn is ended whatever the worker
    /// says: the sum of the ladder's own bounds with room for a slow machine.
    pub stop: Duration,
    /// How long a cleared queue can be brought back.
    pub queue_recovery: Duration,
}

impl Timing {
    /// The contract's bounds with this watchdog.
    #[must_use]
    pub fn new(first_event: Duration) -> Self {
        Self {
            first_event,
            quiet: Duration::from_secs(60),
            abort: Duration::from_secs(11),
            interrupt: Duration::from_secs(30),
            stop: Duration::from_secs(10),
            queue_recovery: Duration::from_secs(8),
        }
    }
}

/// Why a turn, or a start, did not work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// A stable word: `held`, `host_exited`, …
    pub kind: String,
    /// Class of failure.
    pub category: ErrorCategory,
    /// One sentence.
    pub message: String,
    /// More, such as the end of the host's stderr.
    pub detail: Option<String>,
}

impl Failure {
    /// A failure without details.
    #[must_use]
    pub fn new(kind: &str, category: ErrorCategory, message: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            category,
            message: message.into(),
            detail: None,
        }
    }

    /// The same with details.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

/// How the worker ended a `send`.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The provider finished.
    Completed {
        /// The provider's own word.
        stop_reason: Option<String>,
        /// What it cost.
        usage: Option<serde_json::Value>,
    },
    /// It was aborted.
    Interrupted,
    /// It failed.
    Failed(Failure),
}

/// A message that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queued {
    /// The turn that it will be.
    pub turn: TurnId,
    /// The message.
    pub prompt: String,
    /// The turn that it was meant to go into, for a steer.
    pub steers: Option<TurnId>,
}

/// What becomes of the queue when a message takes the running turn's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// It rides through, behind the message.
    Continue,
    /// It is cleared, and can be brought back for a moment.
    Replace,
}

/// What happens to a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A user's message.
    Send {
        /// The turn that it becomes.
        turn: TurnId,
        /// The message.
        prompt: String,
    },
    /// A user's message for the running turn that no worker can take now.
    Steer {
        /// The turn that it becomes.
        turn: TurnId,
        /// The message.
        prompt: String,
    },
    /// A user's message that takes the running turn's place.
    Interrupt {
        /// The turn that it becomes.
        turn: TurnId,
        /// The message.
        prompt: String,
        /// What becomes of the queue.
        mode: Interrupt,
    },
    /// Another text for a message that waits.
    EditQueued {
        /// The message.
        turn: TurnId,
        /// Its new text.
        prompt: String,
    },
    /// A message that waits is not wanted any more.
    CancelQueued(TurnId),
    /// The messages that an interrupt cleared are wanted after all.
    RecoverQueue,
    /// The user ends the running turn.
    Abort,
    /// The session is stopped: the running turn and the queue end.
    Stop,
    /// The worker of an idle session is not worth its place.
    PutAway,
    /// A worker is there and its host has answered `init`.
    WorkerReady(Generation),
    /// No worker could be had.
    WorkerFailed(Failure),
    /// A worker process has ended.
    WorkerExited(Generation, Failure),
    /// A worker of a broker that is gone was taken over.
    Adopted(Generation, Adopted),
    /// The worker of a broker that is gone could not be taken over and is gone.
    TakeoverFailed(Failure),
    /// What happens can't be written down any more: the running turn and the
    /// queue end here and now.
    Unrecordable(Failure),
    /// An event frame.
    Event(Generation, Option<TurnId>),
    /// A card was opened.
    CardOpened(Generation, Option<TurnId>),
    /// The last open card was settled.
    CardsSettled(Generation),
    /// The response to `send`.
    Ended(Generation, TurnId, Ending),
    /// The deadline may have passed.
    Tick,
}

/// What a worker that was taken over knows of the turn that runs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It never got the message: the last broker died before it was written.
    NeverSent,
    /// It runs it, or ran it and is about to say how it ended.
    Has {
        /// Whether anything of it was seen.
        seen: bool,
        /// Whether a card of it is open.
        card: bool,
    },
}

/// What is on disk of a turn that a broker that is gone had begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Legacy {
    /// How often the message went to workers before the one that lives.
    pub sends: u8,
    /// Whether it was noted as sent to the one that lives.
    pub noted: bool,
    /// Whether it goes to another worker when that one can't be had: it was
    /// never sent, or it was to be sent again anyway.
    pub resumable: bool,
    /// What is left of the watchdog's time.
    pub left: Duration,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Get a worker; answer with `WorkerReady` or `WorkerFailed`. A departing
    /// one must be gone first.
    Acquire,
    /// Write the message to the worker.
    Send {
        /// The turn.
        turn: TurnId,
        /// The message.
        prompt: String,
        /// Whether this is the one automatic re-send.
        recovery: bool,
    },
    /// Write `abort` to the worker.
    Abort(TurnId),
    /// Put on disk that the next worker must not trust what this one left, then
    /// evict it whatever it does and stop it by the ladder.
    Recycle {
        /// Whether the message is sent again.
        resend: bool,
    },
    /// Evict the worker whatever it does and stop it by the ladder.
    Poison,
    /// Stop the worker politely.
    Dispose,
    /// Withdraw all open cards.
    Withdraw(Withdrawal),
    /// Write an event of the broker's own.
    Emit(TurnId, Event),
    /// Tell that nothing was heard of the turn since then.
    Quiet {
        /// The turn.
        turn: TurnId,
        /// When something was heard last.
        since: Mono,
    },
    /// Put a message on disk that waits.
    Enqueue {
        /// The message.
        row: Queued,
        /// Before all others instead of behind them.
        first: bool,
    },
    /// Change a message on disk that waits.
    Edit {
        /// The message.
        turn: TurnId,
        /// Its new text.
        prompt: String,
    },
    /// Take a message off the disk; it may come back.
    Dequeue(TurnId),
    /// A message ends without ever having been a turn: take it off the disk and
    /// write its terminal event.
    Drop {
        /// The turn that it would have been.
        turn: TurnId,
        /// Why, where the user did not ask for it.
        notice: Option<String>,
    },
    /// The turn has ended: the terminal event is to be written.
    Finish {
        /// The turn.
        turn: TurnId,
        /// Never `started`.
        status: TurnStatus,
        /// The provider's own word.
        stop_reason: Option<String>,
        /// What it cost.
        usage: Option<serde_json::Value>,
        /// Why it failed.
        failure: Option<Failure>,
    },
}

/// Where a session's turn stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// No turn runs.
    Idle,
    /// A worker is being had for the turn.
    Starting,
    /// The message was written; the watchdog is armed.
    AwaitingFirstEvent,
    /// Something of the turn was seen.
    Streaming,
    /// The turn blocks on a card.
    AwaitingCard,
    /// The worker is being replaced.
    Recovering,
    /// The user ended the turn; its end is awaited.
    Interrupting,
    /// The session is being stopped.
    Stopping,
    /// The worker of a broker that is gone is being taken over.
    Attaching,
}

impl State {
    /// The word that clients see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::AwaitingFirstEvent => "awaiting_first_event",
            Self::Streaming => "streaming",
            Self::AwaitingCard => "awaiting_card",
            Self::Recovering => "recovering",
            Self::Interrupting => "interrupting",
            Self::Stopping => "stopping",
            Self::Attaching => "attaching",
        }
    }
}

/// The running turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    id: TurnId,
    prompt: String,
    sends: u8,
    seen: bool,
    stop_requested: bool,
    /// Why the turn is being recovered, for the notice.
    cause: Option<Failure>,
}

/// Whether silence is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Quiet {
    /// It is not.
    Off,
    /// Something was heard then.
    Heard(Mono),
    /// Nothing was heard since then, and that was told.
    Told(Mono),
}

/// Messages that an interrupt cleared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cleared {
    rows: Vec<Queued>,
    until: Mono,
}

/// The machine of one session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    state: State,
    running: Option<Running>,
    queue: VecDeque<Queued>,
    /// The queue waits for the user's next message.
    held: bool,
    cleared: Option<Cleared>,
    worker: Option<Generation>,
    deadline: Option<Mono>,
    quiet: Quiet,
    timing: Timing,
    /// What a broker that is gone left of the running turn.
    legacy: Option<Legacy>,
}

impl Machine {
    /// A session without a turn.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self {
            state: State::Idle,
            running: None,
            queue: VecDeque::new(),
            held: false,
            cleared: None,
            worker: None,
            deadline: None,
            quiet: Quiet::Off,
            timing,
            legacy: None,
        }
    }

    /// A session whose turn a broker that is gone had begun, and whose worker
    /// lives.
    #[must_use]
    pub fn attaching(timing: Timing, (id, prompt): (TurnId, String), legacy: Legacy) -> Self {
        let running = Running {
            id,
            prompt,
            sends: legacy.sends,
            seen: false,
            stop_requested: false,
            cause: None,
        };
        Self {
            state: State::Attaching,
            running: Some(running),
            legacy: Some(legacy),
            ..Self::new(timing)
        }
    }

    /// A session whose turn a broker that is gone had begun, and that goes on
    /// with another worker, which the caller begins to have.
    #[must_use]
    pub fn resuming(timing: Timing, message: (TurnId, String), legacy: Legacy) -> Self {
        let mut machine = Self::attaching(timing, message, legacy);
        machine.resume();
        machine
    }

    fn resume(&mut self) {
        self.legacy = None;
        let sends = self.running.as_ref().map_or(0, |running| running.sends);
        self.state = if sends == 0 {
            State::Starting
        } else {
            State::Recovering
        };
    }

    /// Takes back the messages that a broker which is gone left waiting. They
    /// were never sent. Without a running turn they are held until the user's
    /// next message.
    pub fn restore_queue(&mut self, rows: impl IntoIterator<Item = (TurnId, String)>) {
        let rows = rows.into_iter().map(|(turn, prompt)| Queued {
            turn,
            prompt,
            steers: None,
        });
        self.queue.extend(rows);
        self.held = self.state == State::Idle;
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

    /// Messages that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The messages that wait, next one first.
    pub fn queue(&self) -> impl Iterator<Item = &Queued> {
        self.queue.iter()
    }

    /// Place of a message that waits, from 1; 0: it runs, or is not known.
    #[must_use]
    pub fn place(&self, turn: &TurnId) -> usize {
        self.queue
            .iter()
            .position(|row| row.turn == *turn)
            .map_or(0, |index| index + 1)
    }

    /// Whether the queue waits for the user's next message.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held && !self.queue.is_empty()
    }

    /// Messages that can be brought back.
    #[must_use]
    pub fn recoverable(&self) -> usize {
        self.cleared
            .as_ref()
            .map_or(0, |cleared| cleared.rows.len())
    }

    /// Since when nothing was heard of the turn, once that was told.
    #[must_use]
    pub fn quiet_since(&self) -> Option<Mono> {
        match self.quiet {
            Quiet::Told(since) => Some(since),
            Quiet::Off | Quiet::Heard(_) => None,
        }
    }

    /// The worker that is in use.
    #[must_use]
    pub fn worker(&self) -> Option<Generation> {
        self.worker
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
    fn rebase(&mut self, now: Mono, base: Mono) {
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

    fn quiet_at(&self) -> Option<Mono> {
        match self.quiet {
            Quiet::Heard(last) => Some(last + self.timing.quiet),
            Quiet::Off | Quiet::Told(_) => None,
        }
    }

    /// Whether another message fits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.queue.len() < MAX_QUEUE
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
            Input::CancelQueued(turn) => self.cancel(&turn, &mut out),
            Input::RecoverQueue => self.recover_queue(now, &mut out),
            Input::Abort => self.abort(now, &mut out),
            Input::Stop => self.stop(now, &mut out),
            Input::PutAway => self.put_away(&mut out),
            Input::WorkerReady(generation) => self.worker_ready(generation, now, &mut out),
            Input::WorkerFailed(failure) => self.worker_failed(failure, now, &mut out),
            Input::WorkerExited(generation, failure) => {
                self.worker_exited(generation, failure, now, &mut out);
            }
            Input::Adopted(generation, adopted) => {
                self.adopted(generation, adopted, now, &mut out);
            }
            Input::TakeoverFailed(failure) => self.takeover_failed(failure, now, &mut out),
            Input::Unrecordable(failure) => self.unrecordable(&failure, &mut out),
            Input::Event(generation, turn) => self.seen(generation, turn.as_ref(), now),
            Input::CardOpened(generation, turn) => self.card_opened(generation, turn.as_ref(), now),
            Input::CardsSettled(generation) => self.cards_settled(generation, now),
            Input::Ended(generation, turn, ending) => {
                self.ended(generation, &turn, ending, now, &mut out);
            }
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    fn send(&mut self, turn: TurnId, prompt: String, now: Mono, out: &mut Vec<Effect>) {
        if self.state == State::Idle && self.queue.is_empty() {
            self.begin(turn, prompt, now, out);
            return;
        }
        self.enqueue(turn, prompt, None, out);
        if self.state == State::Idle {
            // The user is there again: what was held goes first.
            self.next(now, out);
        }
    }

    fn steer(&mut self, turn: TurnId, prompt: String, now: Mono, out: &mut Vec<Effect>) {
        let into = match (self.state, &self.running) {
            // Said after the end was asked for: it is meant for what comes then.
            (State::Interrupting | State::Stopping, _) => None,
            (_, Some(running)) if !running.stop_requested => Some(running.id.clone()),
            _ => None,
        };
        match into {
            Some(into) => self.enqueue(turn, prompt, Some(into), out),
            None => self.send(turn, prompt, now, out),
        }
    }

    fn enqueue(
        &mut self,
        turn: TurnId,
        prompt: String,
        steers: Option<TurnId>,
        out: &mut Vec<Effect>,
    ) {
        let row = Queued {
            turn,
            prompt,
            steers,
        };
        out.push(Effect::Enqueue {
            row: row.clone(),
            first: false,
        });
        self.queue.push_back(row);
    }

    fn interrupt(
        &mut self,
        turn: TurnId,
        prompt: String,
        mode: Interrupt,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        if mode == Interrupt::Replace {
            self.clear_queue(now, out);
        }
        let row = Queued {
            turn,
            prompt,
            steers: None,
        };
        out.push(Effect::Enqueue {
            row: row.clone(),
            first: true,
        });
        self.queue.push_front(row);
        let within = match mode {
            Interrupt::Continue => self.timing.interrupt,
            Interrupt::Replace => self.timing.abort,
        };
        match self.state {
            State::Idle => self.next(now, out),
            _ => self.end_running(now + within, now, out),
        }
    }

    /// Takes every message out of the queue; they can be brought back for a
    /// moment.
    fn clear_queue(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.queue.is_empty() {
            return;
        }
        self.drop_cleared(out);
        let rows: Vec<Queued> = self.queue.drain(..).collect();
        out.extend(rows.iter().map(|row| Effect::Dequeue(row.turn.clone())));
        let until = now + self.timing.queue_recovery;
        self.cleared = Some(Cleared { rows, until });
        self.held = false;
    }

    /// The moment is over: the cleared messages end.
    fn drop_cleared(&mut self, out: &mut Vec<Effect>) {
        if let Some(cleared) = self.cleared.take() {
            out.extend(cleared.rows.into_iter().map(|row| dropped(row.turn, None)));
        }
    }

    fn recover_queue(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(cleared) = self.cleared.take() else {
            return;
        };
        for row in cleared.rows {
            if self.has_room() {
                // The turn that a steer was meant for is over.
                self.enqueue(row.turn, row.prompt, None, out);
            } else {
                out.push(dropped(row.turn, None));
            }
        }
        if self.state == State::Idle && !self.held {
            self.next(now, out);
        }
    }

    fn edit(&mut self, turn: TurnId, prompt: String, out: &mut Vec<Effect>) {
        if let Some(row) = self.queue.iter_mut().find(|row| row.turn == turn) {
            row.prompt.clone_from(&prompt);
            out.push(Effect::Edit { turn, prompt });
        }
    }

    fn cancel(&mut self, turn: &TurnId, out: &mut Vec<Effect>) {
        let before = self.queue.len();
        self.queue.retain(|row| row.turn != *turn);
        if self.queue.len() < before {
            out.push(dropped(turn.clone(), None));
        }
    }

    fn begin(&mut self, id: TurnId, prompt: String, now: Mono, out: &mut Vec<Effect>) {
        let message = Event::UserMessage {
            text: prompt.clone(),
            via: Via::Send,
        };
        out.push(Effect::Emit(id.clone(), message));
        let status = TurnStatus::Started;
        out.push(Effect::Emit(id.clone(), Event::Status { status }));
        self.running = Some(Running {
            id,
            prompt,
            sends: 0,
            seen: false,
            stop_requested: false,
            cause: None,
        });
        if self.worker.is_some() {
            self.write(now, out);
        } else {
            self.state = State::Starting;
            self.deadline = None;
            out.push(Effect::Acquire);
        }
    }

    /// Writes the running turn's message and arms the watchdog.
    fn write(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.sends += 1;
        out.push(Effect::Send {
            turn: running.id.clone(),
            prompt: running.prompt.clone(),
            recovery: running.sends > 1,
        });
        self.state = State::AwaitingFirstEvent;
        self.deadline = Some(now + self.timing.first_event);
    }

    fn abort(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if matches!(self.state, State::Interrupting | State::Stopping) {
            return;
        }
        if let Some(id) = self.turn().cloned() {
            self.drop_steers(&id, DROPPED_BY_ABORT, out);
        }
        self.end_running(now + self.timing.abort, now, out);
    }

    /// The user ends the running turn, if one runs and is not ended already.
    fn end_running(&mut self, until: Mono, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        match self.state {
            State::Starting => self.finish_interrupted(now, out),
            State::AwaitingFirstEvent | State::Streaming | State::AwaitingCard => {
                // In this order: a host that hears the denial first would go
                // on with the turn.
                out.push(Effect::Abort(running.id.clone()));
                out.push(Effect::Withdraw(Withdrawal::Aborted));
                self.state = State::Interrupting;
                self.deadline = Some(until);
                self.quiet = Quiet::Off;
            }
            State::Recovering | State::Attaching => running.stop_requested = true,
            State::Idle | State::Interrupting | State::Stopping => {}
        }
    }

    fn stop(&mut self, now: Mono, out: &mut Vec<Effect>) {
        self.drop_cleared(out);
        let rows = std::mem::take(&mut self.queue);
        out.extend(rows.into_iter().map(|row| dropped(row.turn, None)));
        self.held = false;
        // In this order: a host that hears the denial first would go on.
        out.push(Effect::Dispose);
        out.push(Effect::Withdraw(Withdrawal::ShuttingDown));
        self.quiet = Quiet::Off;
        match self.state {
            // The worker is on its way out: the next message needs another one.
            State::Idle => self.worker = None,
            State::Starting | State::Recovering | State::Attaching => {
                self.worker = None;
                self.finish_interrupted(now, out);
            }
            _ => {
                self.state = State::Stopping;
                self.deadline = Some(now + self.timing.stop);
            }
        }
    }

    fn put_away(&mut self, out: &mut Vec<Effect>) {
        if self.state == State::Idle && self.worker.take().is_some() {
            out.push(Effect::Withdraw(Withdrawal::ShuttingDown));
            out.push(Effect::Dispose);
        }
    }

    fn worker_ready(&mut self, generation: Generation, now: Mono, out: &mut Vec<Effect>) {
        self.worker = Some(generation);
        match self.state {
            State::Starting => self.write(now, out),
            State::Recovering => {
                let Some(running) = &mut self.running else {
                    return;
                };
                if running.stop_requested {
                    self.finish_interrupted(now, out);
                    return;
                }
                let notice = recovery_notice(running.cause.as_ref());
                out.push(Effect::Emit(running.id.clone(), notice));
                self.write(now, out);
            }
            _ => {}
        }
    }

    /// A turn that another broker began goes on as if nothing had happened.
    fn adopted(
        &mut self,
        generation: Generation,
        adopted: Adopted,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        self.worker = Some(generation);
        let Some(running) = &mut self.running else {
            return;
        };
        let legacy = self.legacy.take();
        match (self.state, legacy) {
            // It came while the worker of the last turn was taken over.
            (State::Starting, _) => self.write(now, out),
            (State::Attaching, Some(legacy)) => match adopted {
                Adopted::NeverSent if running.stop_requested => self.finish_interrupted(now, out),
                Adopted::NeverSent => {
                    if running.sends > 0 {
                        let notice = recovery_notice(None);
                        out.push(Effect::Emit(running.id.clone(), notice));
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
                        self.end_running(now + self.timing.abort, now, out);
                    }
                }
            },
            _ => {}
        }
    }

    /// A turn whose message reached nobody, or was to be sent again, gets
    /// another worker; for any other nothing is done on a guess.
    fn takeover_failed(&mut self, failure: Failure, now: Mono, out: &mut Vec<Effect>) {
        let resumable = self.legacy.is_some_and(|legacy| legacy.resumable);
        let Some(running) = &self.running else { return };
        match self.state {
            State::Attaching if running.stop_requested => self.finish_interrupted(now, out),
            State::Attaching if resumable => {
                // Whether it got there nobody can tell any more, so it counts.
                let noted = self.legacy.is_some_and(|legacy| legacy.noted);
                if let Some(running) = &mut self.running {
                    running.sends += u8::from(noted);
                }
                self.resume();
                out.push(Effect::Acquire);
            }
            State::Attaching => {
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

    /// Nothing is begun any more, so what waits ends too.
    fn unrecordable(&mut self, failure: &Failure, out: &mut Vec<Effect>) {
        out.push(Effect::Withdraw(Withdrawal::TurnEnded));
        self.evict(out);
        self.drop_cleared(out);
        let running = self.running.take().map(|running| running.id);
        let queued: Vec<TurnId> = self.queue.drain(..).map(|row| row.turn).collect();
        out.extend(queued.iter().cloned().map(Effect::Dequeue));
        out.extend(
            running
                .into_iter()
                .chain(queued)
                .map(|turn| Effect::Finish {
                    turn,
                    status: TurnStatus::Failed,
                    stop_reason: None,
                    usage: None,
                    failure: Some(failure.clone()),
                }),
        );
        self.quiet = Quiet::Off;
        self.held = false;
        self.legacy = None;
        self.state = State::Idle;
        self.deadline = None;
    }

    fn worker_failed(&mut self, failure: Failure, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &self.running else { return };
        match self.state {
            State::Starting => self.finish_failed(failure, now, out),
            State::Attaching => {
                // The turn was lost with the other broker: what waits behind it
                // is held like any queue that a broker left.
                self.held = true;
                self.finish_failed(failure, now, out);
            }
            State::Recovering if running.stop_requested => self.finish_interrupted(now, out),
            State::Recovering => {
                let failure = not_replaced(running.cause.as_ref(), failure);
                self.finish_failed(failure, now, out);
            }
            _ => {}
        }
    }

    fn worker_exited(
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
            State::Streaming | State::AwaitingCard => {
                out.push(Effect::Withdraw(Withdrawal::WorkerGone));
                self.finish_failed(failure, now, out);
            }
            State::Interrupting | State::Stopping => self.finish_interrupted(now, out),
            State::Idle | State::Starting | State::Recovering | State::Attaching => {}
        }
    }

    fn seen(&mut self, generation: Generation, turn: Option<&TurnId>, now: Mono) {
        let of_this_turn = turn.is_some() && self.turn() == turn;
        if self.worker != Some(generation) || !of_this_turn {
            return;
        }
        if let Some(running) = &mut self.running {
            running.seen = true;
        }
        if self.state == State::AwaitingFirstEvent {
            self.state = State::Streaming;
            self.deadline = None;
        }
        if self.state == State::Streaming {
            self.quiet = Quiet::Heard(now);
        }
    }

    fn card_opened(&mut self, generation: Generation, turn: Option<&TurnId>, now: Mono) {
        self.seen(generation, turn, now);
        if self.accepts(generation, turn) && turn.is_some() && self.state == State::Streaming {
            self.state = State::AwaitingCard;
            self.quiet = Quiet::Off;
        }
    }

    fn cards_settled(&mut self, generation: Generation, now: Mono) {
        if self.worker == Some(generation) && self.state == State::AwaitingCard {
            self.state = State::Streaming;
            self.quiet = Quiet::Heard(now);
        }
    }

    fn ended(
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
        let awaiting = match self.state {
            State::AwaitingFirstEvent => true,
            State::Streaming | State::AwaitingCard | State::Interrupting | State::Stopping => false,
            State::Idle | State::Starting | State::Recovering | State::Attaching => return,
        };
        out.push(Effect::Withdraw(Withdrawal::TurnEnded));
        let stopping = matches!(self.state, State::Interrupting | State::Stopping);
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
            Ending::Failed(failure) if awaiting && may_resend(&failure) => {
                self.recover(failure, now, out);
            }
            Ending::Failed(failure) if !stopping => {
                if ends_worker(&failure) {
                    self.evict(out);
                }
                self.finish_failed(told(failure), now, out);
            }
            Ending::Interrupted | Ending::Failed(_) => self.finish_interrupted(now, out),
        }
    }

    fn tick(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self
            .cleared
            .as_ref()
            .is_some_and(|cleared| now >= cleared.until)
        {
            self.drop_cleared(out);
        }
        if let (Quiet::Heard(since), Some(running)) = (self.quiet, &self.running)
            && self.quiet_at().is_some_and(|at| now >= at)
        {
            let turn = running.id.clone();
            out.push(Effect::Quiet { turn, since });
            self.quiet = Quiet::Told(since);
        }
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.state {
            State::AwaitingFirstEvent => {
                let seconds = self.timing.first_event.as_secs_f32();
                let message = format!("the agent sent nothing for {seconds} s");
                let cause = Failure::new("silent", ErrorCategory::TimedOut, message);
                self.recover(cause, now, out);
            }
            State::Interrupting => {
                self.evict(out);
                self.finish_interrupted(now, out);
            }
            State::Stopping => self.finish_interrupted(now, out),
            _ => self.deadline = None,
        }
    }

    /// Nothing of the turn was seen and the worker cannot be trusted: replace
    /// it, and send again unless that happened before.
    fn recover(&mut self, cause: Failure, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let resend = running.sends < 2 && !running.seen;
        let first = running.cause.replace(cause.clone());
        out.push(Effect::Withdraw(Withdrawal::Recycled));
        // Also when the worker has ended by itself: its last processes may not
        // have, and the next one waits for them.
        self.worker = None;
        out.push(Effect::Recycle { resend });
        if resend {
            self.state = State::Recovering;
            self.deadline = None;
            out.push(Effect::Acquire);
            return;
        }
        self.finish_failed(failed_twice(first, cause), now, out);
    }

    fn evict(&mut self, out: &mut Vec<Effect>) {
        self.worker = None;
        out.push(Effect::Poison);
    }

    fn finish_interrupted(&mut self, now: Mono, out: &mut Vec<Effect>) {
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

    fn finish_failed(&mut self, failure: Failure, now: Mono, out: &mut Vec<Effect>) {
        if let Some(running) = self.running.take() {
            let recovery = running.sends > 1 || self.state == State::Recovering;
            if recovery && !running.seen {
                self.drop_steers(&running.id, DROPPED_BY_RECOVERY, out);
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

    /// Drops the messages that were meant to go into this turn.
    fn drop_steers(&mut self, of: &TurnId, why: &str, out: &mut Vec<Effect>) {
        let queue = std::mem::take(&mut self.queue);
        for row in queue {
            if row.steers.as_ref() == Some(of) {
                out.push(dropped(row.turn, Some(why.to_owned())));
            } else {
                self.queue.push_back(row);
            }
        }
    }

    /// No turn runs any more: the next message, if there is one and it may.
    fn next(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let stopped = self.state == State::Stopping;
        if stopped {
            self.worker = None;
        }
        let idle = self.state == State::Idle;
        self.running = None;
        self.state = State::Idle;
        self.deadline = None;
        self.quiet = Quiet::Off;
        if self.held && !idle {
            return;
        }
        self.held = false;
        if let Some(row) = self.queue.pop_front() {
            self.begin(row.turn, row.prompt, now, out);
        }
    }
}

fn dropped(turn: TurnId, notice: Option<String>) -> Effect {
    Effect::Drop { turn, notice }
}

/// Failures after which the same message may be sent again, provided that
/// nothing of the turn was seen.
fn may_resend(failure: &Failure) -> bool {
    matches!(
        failure.category,
        ErrorCategory::Network | ErrorCategory::Exited
    )
}

/// Failures after which the worker is of no use any more.
fn ends_worker(failure: &Failure) -> bool {
    is_unknown_outcome(failure)
        || matches!(
            failure.category,
            ErrorCategory::Exited | ErrorCategory::Protocol | ErrorCategory::Lease
        )
}

/// Whether the session file shows that the agent went on with the message
/// although nothing of it was seen here.
fn is_unknown_outcome(failure: &Failure) -> bool {
    failure.kind == code::DELIVERED_OUTCOME_UNKNOWN
}

/// The failure as it is told: an unknown outcome is called that, whatever the
/// host said.
fn told(failure: Failure) -> Failure {
    if !is_unknown_outcome(&failure) {
        return failure;
    }
    let message = format!("delivered, outcome unknown: {}", failure.message);
    Failure { message, ..failure }
}

/// The notice of a message that is sent again.
fn recovery_notice(cause: Option<&Failure>) -> Event {
    let what = match cause.map(|cause| cause.category) {
        Some(ErrorCategory::Network) => "The connection dropped".to_owned(),
        Some(ErrorCategory::Exited) => {
            let reason = cause.map_or_else(String::new, |cause| format!(": {}", cause.message));
            format!("The agent ended before it answered{reason}")
        }
        _ => "The agent stopped responding".to_owned(),
    };
    let message = format!("{what}; started a fresh worker and sent your message again.");
    Event::Notice {
        level: NoticeLevel::Warn,
        message,
    }
}

/// The failure of a turn whose second send failed too.
fn failed_twice(first: Option<Failure>, second: Failure) -> Failure {
    let message = match first {
        Some(first) => format!(
            "{} (first: {}); the message was sent twice and is not sent again",
            second.message, first.message
        ),
        None => second.message.clone(),
    };
    Failure { message, ..second }
}

/// The failure of a turn whose replacement worker could not be had.
fn not_replaced(first: Option<&Failure>, failure: Failure) -> Failure {
    let first = first.map_or("", |cause| cause.message.as_str());
    let message = format!(
        "{first}; a fresh worker could not be started: {}; nothing was sent again",
        failure.message
    );
    Failure { message, ..failure }
}

/// Why a steer was dropped when its turn could not be recovered.
const DROPPED_BY_RECOVERY: &str = "Your message for the running turn was dropped: the turn could not be recovered. Send it again \
     if you still want it.";

/// Why a steer was dropped when its turn was ended.
const DROPPED_BY_ABORT: &str = "Your message for the running turn was dropped: the turn was ended before it could go in. Send \
     it again if you still want it.";

#[cfg(test)]
mod explore;
#[cfg(test)]
mod tests;
