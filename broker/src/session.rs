//! A session: one actor task that owns the turn, the cards, the transcript and
//! the worker link of one chat. Everything else sends it messages.
//!
//! What it decides is decided in [`crate::turn`], [`crate::cards`] and
//! [`crate::budget`]; here the decisions are carried out, in this order: what
//! happened is staged, written to the transcript in one go, and only then
//! published, acknowledged and answered. A client never sees an event that the
//! transcript does not hold.
//!
//! | module | what |
//! |---|---|
//! | `actor` | the state, the loop, the effects of the turn |
//! | `frames`, `hear`, `queue` | commands, and what a worker says |
//! | `record`, `view` | what is written down, and what clients see |
//! | `missing` | telling of what a transcript does not hold any more |
//! | `tally` | deaths that the start budget counts |
//! | `acquire`, `legacy` | having a worker: a new one, or another broker's |
//! | `requests`, `cards` | what the worker is asked and answered |
//! | `steers`, `said` | messages for the running turn, and what is told of them |
//! | `place` | waiting in the line for a worker |
//! | `permission` | changing what is fixed when a worker starts |
//! | `depart`, `evidence` | sending the worker away, and what it shows then |
//! | `start`, `adopt`, `escort` | the steps of a start, a takeover and a farewell, each in a task of its own |
//! | `replay`, `figures` | what a fresh agent is told of the chat; words about a worker's end |
//!
//! What it does not do: talk to clients ([`crate::endpoint`]).

mod acquire;
mod actor;
mod adopt;
mod cards;
mod depart;
mod escort;
mod evidence;
mod figures;
mod frames;
mod hear;
mod legacy;
mod mark;
mod missing;
mod permission;
mod place;
mod queue;
mod record;
mod replay;
mod requests;
mod said;
mod start;
mod steers;
mod tally;
mod view;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use ade_protocol::action::{
    Aborted, ChatInterrupted, ChatQueue, ContextUsed, InterruptMode, PermissionMode, Sent,
    SessionInfo, Steered,
};
use ade_protocol::card::{Answer, Card};
use ade_protocol::event::{Event, TurnStatus, Via};
use ade_protocol::rpc::RpcError;
use ade_protocol::{Generation, RequestId, TurnId, WorkerId};
use tokio::sync::{mpsc, oneshot, watch};

use crate::cards::AnswerError;
use crate::shared::Shared;
use crate::state::SessionRow;
use crate::sweep::Survivor;
use crate::turn::Failure;

pub use adopt::{Legacy, LegacyTurn};
pub(crate) use escort::{free_lease, watch_over};
pub(crate) use missing::tell_missing;
pub(crate) use queue::QueueAsk;
pub use record::Owed;
pub(crate) use tally::ages;
pub(crate) use view::placeholder;

/// Commands that may wait for a session. More callers than that wait for room.
const COMMANDS: usize = 128;

type Reply<T> = oneshot::Sender<Result<T, RpcError>>;

/// What a session is asked.
pub(crate) enum Command {
    /// A user's message.
    Send {
        prompt: String,
        retry: bool,
        reply: Reply<Sent>,
    },
    /// A message into the running turn.
    Steer {
        prompt: String,
        reply: Reply<Steered>,
    },
    /// A message in the running turn's place.
    Interrupt {
        prompt: String,
        mode: InterruptMode,
        reply: Reply<ChatInterrupted>,
    },
    /// About the messages that wait.
    Queue {
        ask: QueueAsk,
        reply: Reply<ChatQueue>,
    },
    /// End the running turn.
    Abort {
        turn_id: Option<TurnId>,
        reply: Reply<Aborted>,
    },
    /// End the turn, the queue and the worker. Answered when the tree is dead.
    Stop {
        /// No message is taken any more.
        last: bool,
        reply: oneshot::Sender<()>,
    },
    /// Let go of the worker without ending it: another broker takes over.
    Detach { reply: oneshot::Sender<()> },
    /// Clear a used-up start budget.
    Reset { reply: Reply<()> },
    /// Another permission mode.
    Permit {
        mode: PermissionMode,
        reply: Reply<()>,
    },
    /// Another request to the worker.
    Ask { ask: Ask, reply: Reply<()> },
    /// How full the model's context is.
    Context { reply: Reply<ContextUsed> },
    /// An answer to a card.
    Answer {
        card_id: RequestId,
        answer: Answer,
        by: String,
        reply: oneshot::Sender<Result<(), AnswerError>>,
    },
    /// A start waits in the line for a worker, at this place from 1; 0: it
    /// has waited.
    InLine { epoch: u64, place: usize },
    /// A start has ended.
    Started {
        epoch: u64,
        outcome: Result<Box<start::Started>, Failure>,
    },
    /// A departing worker has climbed its stop ladder.
    StopStage { worker: WorkerId, stage: String },
    /// A departing worker can't end: these processes survive SIGKILL.
    Stuck {
        worker: WorkerId,
        survivors: Vec<Survivor>,
    },
    /// A worker that is not in use any more has shown that its agent worked on this
    /// turn.
    Worked(TurnId),
    /// A worker and its tree are gone.
    Gone,
    /// A request was not answered in time.
    Overdue {
        generation: Generation,
        request: RequestId,
    },
}

/// Tells the actor what a task beside it came to.
async fn report(tx: &mpsc::WeakSender<Command>, command: Command) {
    if let Some(tx) = tx.upgrade() {
        // The actor may have ended; then nobody needs to know.
        drop(tx.send(command).await);
    }
}

/// What a broker that is gone left of a session.
#[derive(Clone, Debug, Default)]
pub struct Left {
    /// What is taken over.
    pub legacy: Option<Legacy>,
    /// Ends of turns that could not be written yet, in order.
    pub owed: Vec<Owed>,
    /// How long ago its workers died, oldest first.
    pub deaths: Vec<std::time::Duration>,
}

/// The events that a turn begins with.
pub(crate) fn beginning(prompt: &str) -> [Event; 2] {
    let message = Event::UserMessage {
        text: prompt.to_owned(),
        via: Via::Send,
    };
    let status = TurnStatus::Started;
    [message, Event::Status { status }]
}

/// Requests that go through to the worker as they are.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Change the model.
    Model(String),
    /// Change how much to think.
    Thinking(Option<String>),
    /// Shorten the context.
    Compact(Option<String>),
}

/// Reaches a session.
#[derive(Clone)]
pub struct Session {
    tx: mpsc::Sender<Command>,
    info: watch::Receiver<Arc<View>>,
}

/// What others may see of a session.
#[derive(Clone, Debug)]
pub struct View {
    /// The chat as clients see it.
    pub info: SessionInfo,
    /// Its open cards.
    pub cards: Vec<Card>,
}

impl Session {
    /// Starts the actor of a session, which goes on with what a broker that is gone
    /// `left` of it.
    ///
    /// # Errors
    /// When its transcript cannot be opened.
    pub fn start(
        shared: &Arc<Shared>,
        row: SessionRow,
        left: Left,
    ) -> Result<Self, crate::transcript::TranscriptError> {
        let (tx, rx) = mpsc::channel(COMMANDS);
        let shared = Arc::clone(shared);
        let (actor, info) = actor::Actor::new(shared, row, tx.downgrade(), rx, left)?;
        tokio::spawn(actor.run());
        Ok(Self { tx, info })
    }

    /// What is known of it now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.info.borrow())
    }

    /// Hands over a command and waits for the answer.
    pub(crate) async fn call<T>(
        &self,
        make: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, RpcError> {
        let (reply, answer) = oneshot::channel();
        let gone = || RpcError::failed("stopping", ade_protocol::exit::FAILED, "the chat is gone");
        self.tx.send(make(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Answers a card.
    ///
    /// # Errors
    /// Why the answer did not count.
    pub async fn answer(
        &self,
        card_id: RequestId,
        answer: Answer,
        by: String,
    ) -> Result<(), AnswerError> {
        let (reply, answered) = oneshot::channel();
        let unknown = AnswerError::Unknown(card_id.clone());
        let command = Command::Answer {
            card_id,
            answer,
            by,
            reply,
        };
        if self.tx.send(command).await.is_err() {
            return Err(unknown);
        }
        answered.await.unwrap_or(Err(unknown))
    }

    /// Ends the actor and leaves its worker at work, for another broker.
    pub async fn detach(&self) {
        let (reply, detached) = oneshot::channel();
        if self.tx.send(Command::Detach { reply }).await.is_ok() {
            drop(detached.await);
        }
    }

    /// Ends the turn, the queue and the worker; returns when the tree is dead.
    pub async fn stop(&self) {
        self.end(false).await;
    }

    /// The same, and no message is taken any more: the chat is to be deleted or
    /// the broker ends.
    pub async fn close(&self) {
        self.end(true).await;
    }

    async fn end(&self, last: bool) {
        let (reply, stopped) = oneshot::channel();
        if self.tx.send(Command::Stop { last, reply }).await.is_ok() {
            // An actor that ended has no worker: its end is the answer too.
            drop(stopped.await);
        }
    }
}

/// What a message to a chat gets that takes none any more.
pub(crate) fn closed() -> RpcError {
    RpcError::failed(
        "stopping",
        ade_protocol::exit::FAILED,
        "the chat is being deleted or the broker is stopping; nothing was sent",
    )
}
