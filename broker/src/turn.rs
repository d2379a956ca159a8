//! The turn: a pure machine.
//!
//! Inputs and a monotonic `now` go in, effects come out; no clock, file or
//! socket is here. One machine serves one session and runs at most one turn.
//!
//! Invariants:
//! - each turn that was begun is ended by exactly one [`Effect::Finish`], and
//!   each message that never became one by exactly one [`Effect::Drop`];
//! - a message is written to a worker at most twice, the second time only after
//!   a recycle and only when nothing of the turn was seen, in time or late, from
//!   the worker in use or from one that is let go; an agent of which
//!   something was seen is at most told once to go on ([`Again::Continue`]), and
//!   that is the second time then;
//! - no turn begins with a worker that is outdated: it is disposed of first;
//! - after a user's abort, stop or interrupt was accepted nothing is sent for
//!   that turn;
//! - no start goes on for a turn that has ended: the message behind an abort
//!   gets a fresh one and does not wait for a host that hangs in its own;
//! - an input of another generation or another turn changes nothing;
//! - every state but `Idle`, `Starting`, `Recovering`, `Attaching`, `Streaming` and
//!   `AwaitingCard` has a deadline. Those end by an input: tasks that start a
//!   worker or take one over answer in bounded time, and a turn that streams is
//!   the user's to abort.
//!
//! The first-event watchdog is armed when a message is written and disarmed by
//! the first event or card of the turn; it is never armed again for what was
//! written, because a tool may be silent for hours. Silence after that is only
//! told.
//!
//! # Recovery
//!
//! A worker that cannot be trusted is replaced, and the turn goes on once as
//! [`Again`] says. That is put on disk before anything of it happens
//! ([`Effect::Arm`]), so that another broker finishes what this one began.
//!
//! The run of a silent worker is ended before its worker is
//! ([`Effect::AbortSilent`]): what it does at the provider must not go on behind
//! the message that is sent again. That is best effort, and [`State::Cancelling`]
//! is its wait. It is a state and no part of the eviction's effect because the
//! wait has a bound, the user may stop the turn in it, the broker may die in it,
//! and the worker goes on talking in it: all of that is decided here, where every
//! interleaving is tried. The worker is listened to until it is evicted: a run
//! that is heard in that time is not silent, and what it shows later still forbids
//! the second send (module `late`). A run that has ended by itself, with its worker
//! or with an error, needs none of it.
//!
//! Messages for the turn that the worker had taken ([`Effect::TellSteers`]) are not
//! given to the one that comes. They have been promised as delivered and stand in
//! the turn as said, and nobody can prove that the agent did not hand one to a model
//! which acted on it in silence. Sending them on could deliver one twice; saying
//! nothing loses it. So each is told once, when its worker is let go, and whether it
//! is said again is the user's.
//!
//! Messages that wait run in order when the turn before them has ended, however
//! it ended; a stop ends them all. Two kinds differ: a steer that found no worker to take it belongs
//! to the turn that ran then, and is dropped with one notice when that turn is
//! aborted or its recovery fails; and the queue that a broker which died left is
//! *held*: it goes on behind the user's next message, because the turn in front
//! of it was lost and nobody may be watching.

mod again;
mod heard;
mod late;
mod machine;
mod outdated;
mod recovery;
mod takeover;
mod texts;
mod waiting;

use std::time::Duration;

use ade_protocol::card::Withdrawal;
use ade_protocol::event::{ErrorCategory, Event, TurnStatus};
use ade_protocol::{Generation, TurnId};

pub use again::{ENDED_BY_USER, SENT, over, read_over};
pub use machine::Machine;
pub(crate) use texts::{
    dropped_by_recovery, steer_let_go, steer_refused, steer_told_late, steer_unknown, steer_unread,
    unsent,
};

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
    /// How long a silent worker may take to end its run before it is replaced.
    /// One that answers is replaced at once.
    pub cancel: Duration,
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
            cancel: Duration::from_secs(3),
            abort: Duration::from_secs(11),
            interrupt: Duration::from_secs(30),
            stop: Duration::from_secs(10),
            queue_recovery: Duration::from_secs(8),
        }
    }
}

/// What a kind of agent can do for a turn whose worker was replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recovery {
    /// The turn goes on with a fresh agent, which is told the chat; otherwise
    /// the new worker resumes what the old one had.
    pub fresh_agent: bool,
    /// A login token that has expired is renewed by a new worker with the same
    /// agent; otherwise it is an error like any rejected key.
    pub reconnects: bool,
}

/// What a session's turns go by. Does not change while it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Bounds of the waits.
    pub timing: Timing,
    /// What the kind of agent can do.
    pub recovery: Recovery,
}

/// How a turn goes on with another worker: once, and in one of these ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Again {
    /// The message is sent again, and the user is told why.
    Resend,
    /// The message is sent again to the same agent: a login token had expired
    /// before anything was seen. The user is told nothing.
    Reconnect,
    /// The same agent is told to go on: a login token expired after something
    /// was seen. The instruction is no message of the user's and is kept nowhere.
    Continue,
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
    CancelQueued {
        /// The message.
        turn: TurnId,
        /// Who says so, for people.
        by: String,
    },
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
    /// What the worker was started with is not what is wanted any more. Whoever
    /// says so names the worker before it is said to be ready or adopted, too.
    Outdated(Generation),
    /// A worker of a broker that is gone was taken over.
    Adopted(Generation, Adopted),
    /// The worker of a broker that is gone could not be taken over and is gone.
    TakeoverFailed(Failure),
    /// What happens can't be written down any more: the running turn and the
    /// queue end here and now.
    Unrecordable(Failure),
    /// An event frame.
    Event(Generation, Option<TurnId>),
    /// The worker answered `abort`, whatever it said.
    AbortAnswered(Generation),
    /// A worker that is not in use any more has shown that its agent worked on
    /// this turn.
    Worked(TurnId),
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
    /// The worker that lives was about to be replaced when the user ended the turn.
    pub evicted: bool,
    /// How it was to go on, or went on, with another worker.
    pub again: Option<Again>,
    /// What is left of the watchdog's time.
    pub left: Duration,
    /// What is left of the time in which a silent worker may end its run. All of it
    /// where nobody wrote down since when it is silent.
    pub cancel: Duration,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Get a worker; answer with `WorkerReady` or `WorkerFailed`. A departing
    /// one must be gone first.
    Acquire,
    /// Cancel the start or the takeover that is under way: nobody wants the
    /// worker any more. One that only waits in the line for a place may go on
    /// when another turn waits for a worker already.
    CancelStart,
    /// Write the message to the worker.
    Send {
        /// The turn.
        turn: TurnId,
        /// The message, or the instruction to go on.
        prompt: String,
        /// Set for the one automatic re-send.
        again: Option<Again>,
    },
    /// Put on disk that the user has ended the turn, before anything is done for
    /// it and before the user is told.
    NoteEnd(TurnId),
    /// Write `abort` to the worker.
    Abort(TurnId),
    /// The same for a run of which nothing was seen, and only if that is still so;
    /// answer with `AbortAnswered` when it does.
    AbortSilent(TurnId),
    /// Put on disk, in one step, what the next start and the next send must do
    /// once. What is on disk already stays.
    Arm {
        /// The next start has a fresh agent.
        rotate: bool,
        /// How the running turn goes on, if it does; the next send ends a run
        /// that the provider believes active.
        again: Option<Again>,
    },
    /// Take back what was armed for the running turn, which goes on with the worker
    /// that it has. That the user has ended it stays.
    Disarm(TurnId),
    /// Evict the worker whatever it does and stop it by the ladder.
    Poison,
    /// Tell of each message for the turn that a worker took which is let go before
    /// anything of the turn was seen: no other one is given it. Before another one is
    /// sent anything.
    TellSteers(TurnId),
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
    /// Note on disk that a message does not wait any more, but may come back.
    Clear(TurnId),
    /// A message ends without ever having been a turn: write its terminal event
    /// and take it off the disk.
    Drop {
        /// The turn that it would have been.
        turn: TurnId,
        /// What the user is told of it: why, by what, and what it said.
        notice: String,
    },
    /// The turn has ended: write its terminal event and take it off the disk, also
    /// when it only waited.
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
    /// A silent worker is to end its run; then it is replaced.
    Cancelling,
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
            // Both are one to the user.
            Self::Cancelling | Self::Recovering => "recovering",
            Self::Interrupting => "interrupting",
            Self::Stopping => "stopping",
            Self::Attaching => "attaching",
        }
    }
}

#[cfg(test)]
mod ends_tests;
#[cfg(test)]
mod explore;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod recovery_tests;
#[cfg(test)]
mod takeover_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod waiting_tests;
