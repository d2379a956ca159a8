//! The turn: a pure machine.
//!
//! Inputs and a monotonic `now` go in, effects come out; no clock, file or
//! socket is here. One machine serves one session and runs at most one turn.
//!
//! Invariants:
//! - each turn that was begun is ended by exactly one [`Effect::Finish`];
//! - a message is written to a worker at most twice, the second time only after
//!   a recycle and only when nothing of the turn was seen;
//! - after a user's abort or stop was accepted nothing is sent for that turn;
//! - an input of another generation or another turn changes nothing;
//! - every state but `Idle`, `Starting`, `Recovering`, `Attaching`, `Streaming` and
//!   `AwaitingCard` has a deadline. Those end by an input: tasks that start a
//!   worker or take one over answer in bounded time, and a turn that streams is
//!   the user's to abort.
//!
//! The first-event watchdog is armed when a message is written and disarmed by
//! the first event or card of the turn; it is never armed again in that turn,
//! because a tool may be silent for hours.

use std::collections::VecDeque;
use std::time::Duration;

use ade_protocol::card::Withdrawal;
use ade_protocol::event::{ErrorCategory, Event, NoticeLevel, TurnStatus, Via};
use ade_protocol::{Generation, TurnId};

/// Time since any fixed moment, on a clock that does not jump.
pub type Mono = Duration;

/// Messages that may wait behind a running turn. One more is refused at once
/// with `queue_full`.
pub const MAX_QUEUE: usize = 32;

/// How long `abort` may take before the worker is replaced. The worker itself
/// gives its host 10 s; one more is for the way back.
pub const ABORT_BOUND: Duration = Duration::from_secs(11);

/// How long a stop may take until the turn is ended whatever the worker says:
/// the sum of the ladder's own bounds with room for a slow machine.
pub const STOP_BOUND: Duration = Duration::from_secs(10);

/// Why a turn, or a start, did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The user ends the running turn.
    Abort,
    /// The session is stopped: the running turn and the queue end.
    Stop,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// How often the message went to workers before the one that lives.
    pub sends: u8,
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
    /// Evict the worker whatever it does and stop it by the ladder.
    Poison,
    /// Stop the worker politely.
    Dispose,
    /// Withdraw all open cards.
    Withdraw(Withdrawal),
    /// Write an event of the broker's own.
    Emit(TurnId, Event),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug)]
struct Running {
    id: TurnId,
    prompt: String,
    sends: u8,
    seen: bool,
    stop_requested: bool,
    /// Why the turn is being recovered, for the notice.
    cause: Option<Failure>,
}

/// The machine of one session.
#[derive(Clone, Debug)]
pub struct Machine {
    state: State,
    running: Option<Running>,
    queue: VecDeque<(TurnId, String)>,
    worker: Option<Generation>,
    deadline: Option<Mono>,
    first_event: Duration,
    /// What a broker that is gone left of the running turn.
    legacy: Option<Legacy>,
}

impl Machine {
    /// A session without a turn. `first_event`: silence after a send until the
    /// worker is replaced.
    #[must_use]
    pub fn new(first_event: Duration) -> Self {
        Self {
            state: State::Idle,
            running: None,
            queue: VecDeque::new(),
            worker: None,
            deadline: None,
            first_event,
            legacy: None,
        }
    }

    /// A session whose turn a broker that is gone had begun, and whose worker
    /// lives.
    #[must_use]
    pub fn attaching(
        first_event: Duration,
        (id, prompt): (TurnId, String),
        legacy: Legacy,
    ) -> Self {
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
            ..Self::new(first_event)
        }
    }

    /// A session whose turn a broker that is gone had begun, and that goes on
    /// with another worker, which the caller begins to have.
    #[must_use]
    pub fn resuming(first_event: Duration, message: (TurnId, String), legacy: Legacy) -> Self {
        let mut machine = Self::attaching(first_event, message, legacy);
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

    /// The worker that is in use.
    #[must_use]
    pub fn worker(&self) -> Option<Generation> {
        self.worker
    }

    /// When [`Input::Tick`] is wanted next.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.deadline
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
            Input::Abort => self.abort(now, &mut out),
            Input::Stop => self.stop(now, &mut out),
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
            Input::Event(generation, turn) => self.seen(generation, turn.as_ref()),
            Input::CardOpened(generation, turn) => self.card_opened(generation, turn.as_ref()),
            Input::CardsSettled(generation) => {
                if self.worker == Some(generation) && self.state == State::AwaitingCard {
                    self.state = State::Streaming;
                }
            }
            Input::Ended(generation, turn, ending) => {
                self.ended(generation, &turn, ending, now, &mut out);
            }
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    fn send(&mut self, turn: TurnId, prompt: String, now: Mono, out: &mut Vec<Effect>) {
        if self.state == State::Idle {
            self.begin(turn, prompt, now, out);
        } else {
            self.queue.push_back((turn, prompt));
        }
    }

    fn begin(&mut self, id: TurnId, prompt: String, now: Mono, out: &mut Vec<Effect>) {
        let message = Event::UserMessage {
            text: prompt.clone(),
            via: Via::Send,
        };
        out.push(Effect::Emit(id.clone(), message));
        out.push(Effect::Emit(
            id.clone(),
            Event::Status {
                status: TurnStatus::Started,
            },
        ));
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
        self.deadline = Some(now + self.first_event);
    }

    fn abort(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &mut self.running else {
            return;
        };
        match self.state {
            State::Starting => self.finish_interrupted(now, out),
            State::AwaitingFirstEvent | State::Streaming | State::AwaitingCard => {
                out.push(Effect::Withdraw(Withdrawal::Aborted));
                out.push(Effect::Abort(running.id.clone()));
                self.state = State::Interrupting;
                self.deadline = Some(now + ABORT_BOUND);
            }
            State::Recovering | State::Attaching => running.stop_requested = true,
            State::Idle | State::Interrupting | State::Stopping => {}
        }
    }

    fn stop(&mut self, now: Mono, out: &mut Vec<Effect>) {
        for (turn, _) in std::mem::take(&mut self.queue) {
            out.push(finish(turn, TurnStatus::Interrupted));
        }
        out.push(Effect::Withdraw(Withdrawal::ShuttingDown));
        out.push(Effect::Dispose);
        match self.state {
            // The worker is on its way out: the next message needs another one.
            State::Idle => self.worker = None,
            State::Starting | State::Recovering | State::Attaching => {
                self.worker = None;
                self.finish_interrupted(now, out);
            }
            _ => {
                self.state = State::Stopping;
                self.deadline = Some(now + STOP_BOUND);
            }
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
                    (self.state, self.deadline) = match (card, seen) {
                        (true, _) => (State::AwaitingCard, None),
                        (false, true) => (State::Streaming, None),
                        (false, false) => (State::AwaitingFirstEvent, Some(now + legacy.left)),
                    };
                    if running.stop_requested {
                        self.abort(now, out);
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
                self.resume();
                out.push(Effect::Acquire);
            }
            State::Attaching => {
                self.legacy = None;
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
        let running = self.running.take().map(|running| running.id);
        let queued = std::mem::take(&mut self.queue)
            .into_iter()
            .map(|(id, _)| id);
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
        self.legacy = None;
        self.state = State::Idle;
        self.deadline = None;
    }

    fn worker_failed(&mut self, failure: Failure, now: Mono, out: &mut Vec<Effect>) {
        let Some(running) = &self.running else { return };
        match self.state {
            State::Starting | State::Attaching => self.finish_failed(failure, now, out),
            State::Recovering if running.stop_requested => self.finish_interrupted(now, out),
            State::Recovering => {
                let first = running
                    .cause
                    .as_ref()
                    .map_or("", |cause| cause.message.as_str());
                let message = format!(
                    "{first}; a fresh worker could not be started: {}; nothing was sent again",
                    failure.message
                );
                self.finish_failed(Failure { message, ..failure }, now, out);
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

    fn seen(&mut self, generation: Generation, turn: Option<&TurnId>) {
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
    }

    fn card_opened(&mut self, generation: Generation, turn: Option<&TurnId>) {
        self.seen(generation, turn);
        if self.accepts(generation, turn) && turn.is_some() && self.state == State::Streaming {
            self.state = State::AwaitingCard;
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
                let turn = turn.clone();
                let done = TurnStatus::Completed;
                out.push(Effect::Finish {
                    turn,
                    status: done,
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
                if ends_worker(failure.category) {
                    self.evict(out);
                }
                self.finish_failed(failure, now, out);
            }
            Ending::Interrupted | Ending::Failed(_) => self.finish_interrupted(now, out),
        }
    }

    fn tick(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.state {
            State::AwaitingFirstEvent => {
                let seconds = self.first_event.as_secs_f32();
                let message = format!("the agent sent nothing for {seconds} s");
                self.recover(
                    Failure::new("silent", ErrorCategory::TimedOut, message),
                    now,
                    out,
                );
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
        let again = running.sends < 2 && !running.seen;
        let first = running.cause.replace(cause.clone());
        out.push(Effect::Withdraw(Withdrawal::Recycled));
        self.evict(out);
        if again {
            self.state = State::Recovering;
            self.deadline = None;
            out.push(Effect::Acquire);
            return;
        }
        let message = match first {
            Some(first) => format!(
                "{} (first: {}); the message was sent twice and is not sent again",
                cause.message, first.message
            ),
            None => cause.message.clone(),
        };
        self.finish_failed(Failure { message, ..cause }, now, out);
    }

    fn evict(&mut self, out: &mut Vec<Effect>) {
        // Also when the worker has ended by itself: its last processes may not
        // have, and the next one waits for them.
        self.worker = None;
        out.push(Effect::Poison);
    }

    fn finish_interrupted(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if let Some(running) = self.running.take() {
            out.push(finish(running.id, TurnStatus::Interrupted));
        }
        self.next(now, out);
    }

    fn finish_failed(&mut self, failure: Failure, now: Mono, out: &mut Vec<Effect>) {
        if let Some(running) = self.running.take() {
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

    /// The turn has ended: the next message, if any.
    fn next(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.state == State::Stopping {
            self.worker = None;
        }
        self.running = None;
        self.state = State::Idle;
        self.deadline = None;
        if let Some((turn, prompt)) = self.queue.pop_front() {
            self.begin(turn, prompt, now, out);
        }
    }
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
fn ends_worker(category: ErrorCategory) -> bool {
    matches!(
        category,
        ErrorCategory::Exited | ErrorCategory::Protocol | ErrorCategory::Lease
    )
}

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

fn finish(turn: TurnId, status: TurnStatus) -> Effect {
    Effect::Finish {
        turn,
        status,
        stop_reason: None,
        usage: None,
        failure: None,
    }
}

#[cfg(test)]
mod tests;
