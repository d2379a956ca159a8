//! A worker in use: what is known of it, and what it has for its session.
//!
//! What is told to it is in `requests` and `cards`, how it is had in `acquire`
//! and `legacy`, how it goes in `depart`.

use std::collections::{HashMap, VecDeque};

use ade_protocol::action::ContextUsed;
use ade_protocol::frame::{Ack, Response, ToWorker, UiResponse};
use ade_protocol::rpc::RpcError;
use ade_protocol::{Generation, RequestId, Seq, TurnId};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::escort::Process;
use super::start::Started;
use super::steers::Steer;
use super::{Ask, Reply};
use crate::link::{Connection, Link, LinkIn};
use crate::pool::Place;
use crate::providers::LaunchSpec;
use crate::turn::Failure;

/// A worker in use.
pub(super) struct Worker {
    pub(super) generation: Generation,
    pub(super) process: Process,
    pub(super) link: Link,
    /// What it was started with, where that is known.
    pub(super) spec: Option<LaunchSpec>,
    /// False between the loss of the connection and its return.
    pub(super) linked: bool,
    pub(super) reconnects: mpsc::Receiver<Connection>,
    pub(super) host_pid: Option<i32>,
    pub(super) lease_held: bool,
    pub(super) can_steer: bool,
    /// Tokens that fit into its model's context, where it said so.
    pub(super) window: Option<u64>,
    /// It was asked to end; until then it is listened to.
    pub(super) leaving: Option<Instant>,
    /// Where it stands on its stop ladder.
    pub(super) stop_stage: Option<String>,
    /// Whether it goes on with another message after a stop.
    pub(super) can_continue: bool,
    /// What the worker said of its host's end, for when it ends itself.
    pub(super) told: Option<Failure>,
    pub(super) pending: HashMap<RequestId, Pending>,
    /// Answers to cards of the running turn. A worker that comes back asks
    /// again when one did not reach it. At most [`super::cards::MAX_ANSWERS`].
    pub(super) answers: VecDeque<UiResponse>,
    /// Last event that was taken from the link.
    pub(super) taken: Seq,
    pub(super) acked: Seq,
    /// Events that were not its own to send.
    pub(super) refused: u64,
    /// The turn in which that was last said.
    pub(super) refused_in: Option<Option<TurnId>>,
    pub(super) place: Place,
    /// Whether the pool knows it as idle.
    pub(super) idle: bool,
}

/// What a response is for.
pub(super) enum Pending {
    /// The end of this turn.
    Send(TurnId),
    /// How full the context is.
    Context(Reply<ContextUsed>),
    /// A message into a turn.
    Steer(Steer),
    /// The same, answered by a worker that may be replaced: whether it counts is
    /// known when that is.
    Answered(Box<Response>, Steer),
    /// `abort`: that it is answered is all that counts, and only where it was told to
    /// this turn because of its silence.
    Abort(Option<TurnId>),
    /// Anything that only succeeds or fails.
    Plain { ask: Ask, reply: Reply<()> },
}

impl Pending {
    /// Its time is up. The name of what was asked; none: it was answered.
    pub(super) fn run_out(&mut self) -> Option<&'static str> {
        match self {
            Self::Answered(..) => None,
            Self::Send(_) => Some("send"),
            Self::Context(_) => Some("context_usage"),
            Self::Abort(_) => Some("abort"),
            Self::Steer(steer) => {
                steer.overdue = true;
                Some("steer")
            }
            Self::Plain { ask, .. } => Some(match ask {
                Ask::Model(_) => "set_model",
                Ask::Thinking(_) => "set_thinking",
                Ask::Compact(_) => "compact",
            }),
        }
    }

    /// Tells whoever waits why there will be no response. What the machine waits
    /// for it learns in another way.
    pub(super) fn refuse(self, error: &RpcError) {
        // Whoever asked may have left.
        match self {
            Self::Send(_) | Self::Abort(_) => {}
            Self::Context(reply) => drop(reply.send(Err(error.clone()))),
            Self::Steer(steer) | Self::Answered(_, steer) => {
                drop(steer.reply.send(Err(error.clone())));
            }
            Self::Plain { reply, .. } => drop(reply.send(Err(error.clone()))),
        }
    }
}

impl Worker {
    pub(super) fn new(started: Started) -> Self {
        Self {
            generation: started.generation,
            process: started.process,
            link: started.link,
            spec: started.spec,
            linked: true,
            reconnects: started.reconnects,
            host_pid: started.host_pid,
            lease_held: started.lease_held,
            can_steer: started.ready.capabilities.steer,
            window: started
                .ready
                .current_model
                .as_ref()
                .and_then(|model| model.context_window),
            leaving: None,
            stop_stage: None,
            can_continue: started.ready.capabilities.interrupt_and_continue,
            told: None,
            pending: HashMap::new(),
            answers: VecDeque::new(),
            taken: Seq(0),
            acked: Seq(0),
            refused: 0,
            refused_in: None,
            place: started.place,
            idle: false,
        }
    }

    /// Tells the worker what is on disk. It may miss an `ack`: the next one
    /// says more, and after a reconnect `attach` says it again.
    pub(super) fn acknowledge(&mut self) {
        if self.linked && self.taken > self.acked {
            let ack = ToWorker::Ack(Ack { seq: self.taken });
            if self.link.send(&ack) {
                self.acked = self.taken;
            }
        }
    }
}

/// What a worker has for its session.
pub(super) enum News {
    /// So many frames were taken; none: the link has ended.
    Frames(usize),
    /// The process has ended.
    Exited,
    /// It has connected again.
    Reconnected(Box<Connection>),
    /// It is idle, and another session wants its place.
    WantedBack,
}

/// Waits for the worker. Dropping the future loses nothing.
pub(super) async fn from_worker(worker: Option<&mut Worker>, batch: &mut Vec<LinkIn>) -> News {
    let Some(worker) = worker else {
        return std::future::pending().await;
    };
    let Worker {
        link,
        linked,
        process,
        reconnects,
        place,
        idle,
        leaving,
        ..
    } = worker;
    tokio::select! {
        // Frames first: what a worker said before it ended is heard.
        biased;
        count = link.incoming.recv_many(batch), if *linked => News::Frames(count),
        Some(connection) = reconnects.recv() => News::Reconnected(Box::new(connection)),
        // An error means that the reaper is gone, and so is the broker.
        _ = process.exit.wait_for(Option::is_some) => News::Exited,
        () = place.wanted_back(), if *idle && leaving.is_none() => News::WantedBack,
    }
}
