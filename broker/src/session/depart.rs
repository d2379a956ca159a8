//! Sending a worker away, and what is done once it has gone.
//!
//! A worker is asked to end and listened to until it does, or it is handed to an
//! [`Escort`] at once. Either way no other one starts before its tree is dead:
//! [`Departing`] is what the next start waits for.

use std::time::Duration;

use ade_leases::process::{self, ProcessIdentity, Signal, Target};
use ade_protocol::event::{ErrorCategory, Event, NoticeLevel};
use ade_protocol::frame::{Attach, Empty, FromWorker, Lifecycle, Request, ToWorker, code};
use ade_protocol::rpc::RpcError;
use ade_protocol::{Fence, Seq, TurnId, WorkerId, exit};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::escort::Escort;
use super::start::Plan;
use super::steers::Lifted;
use super::worker::{Pending, Worker};
use super::{Command, evidence, report};
use crate::clock;
use crate::link::{Connection, Link, LinkIn};
use crate::spawn::Exit;
use crate::sweep::{self, Survivor};
use crate::turn::{Failure, Input, State};

/// Operation of the error that a worker reports when something below it
/// survives SIGKILL.
pub(super) const SWEEP: &str = "sweep";

/// How long a start waits for a departing worker, beyond its own ladder.
const EXTRA: Duration = Duration::from_secs(1);

/// How long the last words of a worker that has ended may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a worker is seen off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// It is asked to end first.
    Ask,
    /// It was asked before.
    Asked,
    /// It has ended.
    Ended,
    /// It can't end: something below it survives SIGKILL.
    Stuck,
}

/// A worker on its way out.
pub(super) struct Departing {
    worker: WorkerId,
    identity: ProcessIdentity,
    exit: watch::Receiver<Option<Exit>>,
    pub(super) stage: String,
    /// What survives SIGKILL, in words. Whoever waited was told.
    pub(super) stuck: Option<String>,
    pub(super) gone: watch::Receiver<Way>,
}

/// How far a departing worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// On its way.
    Going,
    /// These processes survive SIGKILL; nothing is started beside them.
    Stuck(String),
    /// Nothing of it is left.
    Over,
}

impl Departing {
    pub(super) fn is_alive(&self) -> bool {
        self.exit.borrow().is_none() || self.stuck.is_some()
    }

    /// A worker that is told again jumps a rung of its ladder ahead.
    fn hurry(&self) {
        let target = Target::Process(self.identity.clone());
        if let Err(error) = process::signal(&target, Signal::SIGTERM) {
            tracing::warn!(%error, worker = %self.worker, "a worker was not hurried");
        }
    }
}

impl Actor {
    /// The worker cannot be trusted any more.
    pub(super) async fn lost(&mut self, why: &str) {
        let Some(generation) = self.worker.as_ref().map(|worker| worker.generation) else {
            return;
        };
        tracing::warn!(session = %self.row.session_id, why, "a worker is given up");
        self.dismiss();
        let failure = Failure::new(code::PROTOCOL_ERROR, ErrorCategory::Protocol, why);
        self.input(Input::WorkerExited(generation, failure)).await;
    }

    /// Cancels a start, or asks the worker to end and goes on listening to it:
    /// what the agent says on its way out belongs to the turn. A worker that
    /// does not end in time is sent away.
    pub(super) fn ask_to_leave(&mut self) {
        self.cancel_start();
        let timing = self.shared.config.worker_timing(&self.row.provider);
        let Some(worker) = &mut self.worker else {
            if let Some(departing) = &self.departing {
                departing.hurry();
            }
            return;
        };
        let dispose = ToWorker::Dispose(Request::new(Empty {}));
        if worker.leaving.is_some() {
            // Asked again it jumps a rung ahead. That it does not read is what
            // its deadline is for.
            let _ = worker.link.send(&dispose);
            return;
        }
        if worker.linked && worker.link.send(&dispose) {
            worker.leaving = Some(clock::now() + super::escort::ladder(timing));
        } else {
            self.dismiss();
        }
    }

    /// Cancels a start. What it has begun is seen off by its ladder, and until
    /// that is done no other one begins.
    fn cancel_start(&mut self) {
        if let Some(starting) = self.starting.take() {
            starting.cancel.cancel();
            self.cancelled_starts += 1;
        }
    }

    /// Cancels a start that the turn it was for does not want any more. One that
    /// has not begun anything yet keeps its place in the line for a message that
    /// waits: there is nothing in it that could hang.
    pub(super) fn give_up_start(&mut self) {
        let in_line = (self.starting.as_ref()).is_some_and(|starting| starting.place > 0);
        if !in_line || self.machine.state() != State::Starting {
            self.cancel_start();
        }
    }

    /// Sends the worker away, or cancels its start.
    pub(super) fn dismiss(&mut self) {
        self.cancel_start();
        if let Some(worker) = self.worker.take() {
            let leave = if worker.leaving.is_some() {
                Leave::Asked
            } else {
                Leave::Ask
            };
            self.see_off(worker, leave);
        }
    }

    /// Sees a worker off in a task of its own.
    pub(super) fn see_off(&mut self, mut worker: Worker, leave: Leave) {
        self.touch();
        self.lifted.extend(settle_pending(&mut worker));
        let (gone_tx, gone) = watch::channel(Way::Going);
        let id = worker.process.worker_id.clone();
        self.departing = Some(Departing {
            worker: id.clone(),
            identity: worker.process.identity.clone(),
            exit: worker.process.exit.clone(),
            stage: match leave {
                Leave::Ended | Leave::Stuck => "sweep".into(),
                _ => worker.stop_stage.take().unwrap_or_else(|| "dispose".into()),
            },
            stuck: None,
            gone,
        });
        let timing = self.shared.config.worker_timing(&self.row.provider);
        let asked = match leave {
            Leave::Ask => {
                let dispose = ToWorker::Dispose(Request::new(Empty {}));
                worker.linked && worker.link.send(&dispose)
            }
            Leave::Asked => worker.linked,
            Leave::Ended | Leave::Stuck => true,
        };
        let Worker {
            process,
            link,
            place,
            reconnects,
            taken,
            ..
        } = worker;
        let fence = self.shared.fence;
        let escort = Escort::new(&self.shared, process, timing, place, &self.row);
        let tx = self.tx.clone();
        tokio::spawn(async move {
            let told = CancellationToken::new();
            let listener = Listener {
                worker: id.clone(),
                link: Some(link),
                reconnects,
                fence,
                taken,
                tx: tx.clone(),
                told: told.clone(),
                worked: None,
            };
            let listens = listener.begin();
            let seen = match (leave, asked) {
                (Leave::Ended, _) => escort.tidy().await,
                (Leave::Stuck, _) => escort.stuck().await,
                (_, true) => escort.farewell(told).await,
                (_, false) => escort.depart().await,
            };
            if let Some(vigil) = seen.vigil {
                let (worker, survivors) = (id, seen.survivors);
                gone_tx.send_replace(Way::Stuck(sweep::named(&survivors)));
                report(&tx, Command::Stuck { worker, survivors }).await;
                vigil.keep().await;
            }
            // Nothing is sent to another worker before this one was heard out.
            listens.end().await;
            gone_tx.send_replace(Way::Over);
            report(&tx, Command::Gone).await;
        });
    }

    /// A departing worker has climbed its ladder.
    pub(super) fn climbed(&mut self, worker: &WorkerId, stage: String) {
        if let Some(departing) = &mut self.departing
            && departing.worker == *worker
        {
            departing.stage = stage;
            self.touch();
        }
    }

    /// A departing worker can't end. Whoever waits for it is told so.
    pub(super) fn stuck(&mut self, worker: &WorkerId, survivors: &[Survivor]) {
        let named = sweep::named(survivors);
        if let Some(departing) = &mut self.departing
            && departing.worker == *worker
        {
            departing.stage = "stuck".into();
            departing.stuck = Some(named.clone());
        }
        let level = NoticeLevel::Error;
        let message = format!(
            "These processes survive SIGKILL: {named}. They wait in the kernel; until they end \
             the chat gets no new worker and its session file stays locked."
        );
        self.emit(None, &Event::Notice { level, message });
        self.touch();
    }

    /// The worker says that something below it survives SIGKILL.
    pub(super) async fn cannot_end(&mut self, message: String) {
        let Some(worker) = self.worker.take() else {
            return;
        };
        let told = worker.told.clone();
        let failure = told.unwrap_or_else(|| Failure::new(SWEEP, ErrorCategory::Exited, message));
        let generation = worker.generation;
        self.see_off(worker, Leave::Stuck);
        self.input(Input::WorkerExited(generation, failure)).await;
    }

    /// A departing worker and its tree are gone.
    pub(super) fn gone(&mut self) {
        if self
            .departing
            .as_ref()
            .is_some_and(|departing| *departing.gone.borrow() == Way::Over)
        {
            self.departing = None;
        }
        self.touch();
    }

    /// The worker process has ended.
    pub(super) async fn worker_exited(&mut self) {
        // What it wrote before it ended is still in the link.
        self.drain_link().await;
        let Some(worker) = self.worker.take() else {
            return;
        };
        let failure =
            super::figures::exited(&self.shared.home, &worker.process, worker.told.as_ref());
        let generation = worker.generation;
        tracing::info!(session = %self.row.session_id, reason = failure.message, "a worker ended");
        let asked = worker.leaving.is_some();
        if !asked {
            self.death(&failure, false).await;
        }
        self.see_off(worker, Leave::Ended);
        self.input(Input::WorkerExited(generation, failure)).await;
    }
}

/// The departing worker must be gone, and what was left of any before it: two
/// generations never overlap.
pub(super) async fn wait_departing(plan: &Plan) -> Result<(), Failure> {
    gone(plan).await?;
    match plan.shared.stuck.of(&plan.row.session_id) {
        None => Ok(()),
        Some(survivors) => Err(beside(&format!(": {survivors} survive SIGKILL"))),
    }
}

async fn gone(plan: &Plan) -> Result<(), Failure> {
    let Some(mut departing) = plan.departing.clone() else {
        return Ok(());
    };
    let timing = plan.shared.config.worker_timing(&plan.row.provider);
    let longest = super::escort::longest(timing) + EXTRA;
    let waited = tokio::time::timeout(longest, departing.wait_for(|gone| *gone != Way::Going));
    let why = match waited.await {
        Ok(Ok(gone)) => match &*gone {
            Way::Stuck(survivors) => format!(": {survivors} survive SIGKILL"),
            Way::Going | Way::Over => return Ok(()),
        },
        // Whoever saw it off has ended, and with that the worker.
        Ok(Err(_)) => return Ok(()),
        Err(_) => String::new(),
    };
    Err(beside(&why))
}

fn beside(why: &str) -> Failure {
    let message = format!(
        "the session's previous worker has not ended yet{why}; nothing was started beside it"
    );
    // Of no category that counts against the agent, and with it against all the
    // sessions of its kind.
    Failure::new("start_failed", ErrorCategory::Unknown, message)
}

/// Listens to a worker on its way out, so that it is never held up by its own
/// events. Nothing of them is shown; its stage is of interest, and whether its agent
/// worked on the turn.
pub(super) struct Listener {
    pub(super) worker: WorkerId,
    /// None: it has no connection now.
    pub(super) link: Option<Link>,
    pub(super) reconnects: mpsc::Receiver<Connection>,
    pub(super) fence: Fence,
    /// Last event that was taken while it was in use.
    pub(super) taken: Seq,
    pub(super) tx: mpsc::WeakSender<Command>,
    /// Cancelled when it says that it can't end.
    pub(super) told: CancellationToken,
    /// The turn that it was reported to have worked on.
    pub(super) worked: Option<TurnId>,
}

/// A listener at work.
pub(super) struct Listening {
    task: JoinHandle<()>,
    ended: CancellationToken,
}

impl Listening {
    /// The worker has ended: hears its last words.
    pub(super) async fn end(mut self) {
        self.ended.cancel();
        let until = clock::now() + LAST_WORDS;
        if clock::in_time(until, &mut self.task).await.is_none() {
            self.task.abort();
        }
    }
}

impl Listener {
    pub(super) fn begin(self) -> Listening {
        let ended = CancellationToken::new();
        let task = tokio::spawn(self.listen(ended.clone()));
        Listening { task, ended }
    }

    /// Ends with its connection, once the worker has `ended`.
    async fn listen(mut self, ended: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                said = said(&mut self.link) => match said {
                    Some(said) => self.hear(said).await,
                    None => self.link = None,
                },
                Some(connection) = self.reconnects.recv() => self.met(connection).await,
                () = ended.cancelled(), if self.link.is_none() => return,
            }
        }
    }

    /// It has connected again: there it says what got lost.
    async fn met(&mut self, connection: Connection) {
        let (hello, link) = connection.open();
        self.shows(evidence::introduced(&hello)).await;
        let attach = Attach {
            fence: self.fence,
            ack: self.taken,
        };
        let attached = link.send(&ToWorker::Attach(Request::new(attach)));
        self.link = attached.then_some(link);
    }

    async fn hear(&mut self, said: LinkIn) {
        self.shows(evidence::said(&said, self.taken)).await;
        let LinkIn::Frame(frame) = said else { return };
        match *frame {
            FromWorker::Error(error) if error.operation == SWEEP => self.told.cancel(),
            FromWorker::Lifecycle(lifecycle) => {
                if let Some(stage) = stop_stage(&lifecycle) {
                    let worker = self.worker.clone();
                    report(&self.tx, Command::StopStage { worker, stage }).await;
                }
            }
            _ => {}
        }
    }

    async fn shows(&mut self, turn: Option<TurnId>) {
        if let Some(turn) = turn
            && self.worked.as_ref() != Some(&turn)
        {
            self.worked = Some(turn.clone());
            report(&self.tx, Command::Worked(turn)).await;
        }
    }
}

async fn said(link: &mut Option<Link>) -> Option<LinkIn> {
    match link {
        Some(link) => link.incoming.recv().await,
        None => std::future::pending().await,
    }
}

/// The stage of the stop ladder that a worker tells of.
pub(super) fn stop_stage(lifecycle: &Lifecycle) -> Option<String> {
    let stage = lifecycle.detail.as_ref()?.get("stage")?.as_str()?;
    (lifecycle.event == "stopping").then(|| stage.to_owned())
}

fn worker_gone() -> RpcError {
    RpcError::failed("worker_gone", exit::FAILED, "the worker is gone")
}

/// Whoever waits for a response of this worker will not get one. Gives back the
/// messages for its turn that it may not have taken.
fn settle_pending(worker: &mut Worker) -> Vec<Lifted> {
    let mut lifted = Vec::new();
    let pid = worker.process.pid;
    for (id, pending) in worker.pending.drain() {
        match pending {
            Pending::Steer(steer) | Pending::Answered(_, steer) => {
                lifted.push(Lifted { id, steer, pid });
            }
            other => other.refuse(&worker_gone()),
        }
    }
    lifted
}
