//! Taking over the worker of a broker that is gone.
//!
//! The worker is known by its journal: its identity was proved to be alive, and
//! only who has the token whose hash stands there is let in. It connects by
//! itself within a second or so, is given the new fence, and goes on after the
//! last event that the transcript holds. A worker that does not come is seen
//! off like any other, and its turn ends with an error: nothing is sent again
//! on a guess.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ade_leases::process::{self, Liveness, ProcessIdentity};
use ade_protocol::event::ErrorCategory;
use ade_protocol::frame::{Attach, Hello, Request, ToWorker};
use ade_protocol::{RequestId, Seq, TurnId};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::depart::Listener;
use super::escort::{Escort, Process};
use super::start::{self, Started};
use super::{Command, evidence, report};
use crate::clock;
use crate::journal::Entry;
use crate::link::{Connection, Link};
use crate::pool::Place;
use crate::shared::Shared;
use crate::spawn::Exit;
use crate::state::{CardRow, SessionRow, TurnRow};
use crate::sweep;
use crate::turn::{Again, ENDED_BY_USER, Failure, read_over};

/// How long a worker may take to connect: its own pauses grow to one second.
const CONNECT: Duration = Duration::from_secs(8);

/// After so long a worker is late: its longest pause is over twice.
const LATE: Duration = Duration::from_secs(2);

/// Kind of the failure when something below it survives SIGKILL.
const STUCK: &str = "stuck";

/// How long it may take to answer `attach`.
const ATTACH: Duration = Duration::from_secs(5);

/// How often a process is looked at where the kernel cannot tell.
const LOOK: Duration = Duration::from_millis(200);

/// What a broker that is gone left of a session. There is a worker, or a turn
/// that goes on without the one that it had.
#[derive(Clone, Debug)]
pub struct Legacy {
    /// Its worker, which is alive: the journal and the proved identity.
    pub worker: Option<(Entry, ProcessIdentity)>,
    /// Its running turn.
    pub turn: Option<LegacyTurn>,
    /// Its cards: those that were open, and those whose end it may not have
    /// heard.
    pub cards: Vec<CardRow>,
}

/// A turn that a broker that is gone left running.
#[derive(Clone, Debug)]
pub struct LegacyTurn {
    /// What `state.db` knows of it.
    pub row: TurnRow,
    /// Whether the transcript knows of it.
    pub begun: bool,
}

impl LegacyTurn {
    /// Whether the user had ended it.
    #[must_use]
    pub fn is_ended_by_user(&self) -> bool {
        self.row.state == ENDED_BY_USER
    }

    /// Whether it has its end, which its transcript may not hold.
    #[must_use]
    pub fn is_over(&self) -> bool {
        read_over(&self.row.state).is_some()
    }

    /// Whether another worker may get the message without asking: it was never
    /// sent, or nothing of it had been seen and it was about to be sent again.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        if self.is_ended_by_user() || self.is_over() {
            return false;
        }
        let planned = Again::read(&self.row.state).is_some_and(|(_, planned)| planned);
        self.row.sends == 0 || planned
    }
}

/// What a worker told that was taken over.
#[derive(Debug)]
pub(super) struct Resumed {
    /// The last event that the transcript holds already.
    pub(super) taken: Seq,
    /// The turn that it runs.
    pub(super) running: Option<TurnId>,
    /// The last turn whose message it got.
    pub(super) last: Option<TurnId>,
    /// Whether anything of the running turn was seen.
    pub(super) seen: bool,
    /// Messages for the last turn that its agent took.
    pub(super) steers_taken: Vec<RequestId>,
    /// Those that are not answered yet.
    pub(super) steers_open: Vec<RequestId>,
    /// Cards that wait for an answer.
    pub(super) open_cards: BTreeSet<RequestId>,
}

/// One takeover.
pub(super) struct Adoption {
    pub(super) shared: Arc<Shared>,
    pub(super) row: SessionRow,
    pub(super) entry: Entry,
    pub(super) identity: ProcessIdentity,
    pub(super) connections: mpsc::Receiver<Connection>,
    pub(super) taken: Seq,
    pub(super) place: Place,
    pub(super) cancel: CancellationToken,
    /// Hears what the worker shows that is not taken over.
    pub(super) tx: mpsc::WeakSender<Command>,
}

/// Runs a takeover to its end.
pub(super) async fn run(adoption: Adoption) -> Result<Box<Started>, Failure> {
    let Adoption {
        shared,
        row,
        entry,
        identity,
        mut connections,
        taken,
        place,
        cancel,
        tx,
    } = adoption;
    let process = Process {
        worker_id: entry.worker_id.clone(),
        pid: identity.pid.get(),
        identity: identity.clone(),
        mark: entry.mark.clone(),
        cgroup: crate::cgroups::of(&entry),
        exit: watch_exit(identity, shared.pidfds),
    };
    let met = tokio::select! {
        () = cancel.cancelled() => Err(start::cancelled()),
        met = meet(&shared, &entry, &process, &mut connections, (taken, &tx)) => met,
    };
    match met {
        Ok((hello, link)) => {
            place.started();
            let state = hello.state;
            Ok(Box::new(Started {
                generation: entry.generation,
                process,
                link,
                reconnects: connections,
                ready: state.ready.unwrap_or_default(),
                host_pid: state.host_pid,
                lease_held: state.lease_held,
                place,
                spec: entry.spec,
                resumed: Some(Resumed {
                    taken,
                    running: state.turn_id,
                    last: state.last_turn_id,
                    seen: state.seen_event,
                    steers_taken: state.steers_taken,
                    steers_open: state.steers_open,
                    open_cards: state.open_cards.into_iter().collect(),
                }),
            }))
        }
        Err(failure) => {
            // What it worked on is not given to another one.
            let listener = Listener {
                worker: entry.worker_id.clone(),
                link: None,
                reconnects: connections,
                fence: shared.fence,
                taken,
                tx,
                told: CancellationToken::new(),
                worked: None,
            };
            let listens = listener.begin();
            let timing = shared.config.worker_timing(&row.provider);
            let seen = Escort::new(&shared, process, timing, place, &row)
                .leaving(failure.kind == STUCK)
                .await;
            listens.end().await;
            seen.leave();
            let message = format!(
                "the broker ended in the middle of this turn and its worker could not be taken \
                 over: {}; send the message again if you still want it",
                failure.message
            );
            Err(Failure { message, ..failure })
        }
    }
}

/// Waits for the time in which a worker must have come. Gives earlier why it
/// will not: it has told another broker what survives SIGKILL, and comes to
/// nobody any more. Only a late worker is looked at: a look is a walk of all
/// processes, and there may be hundreds of workers.
async fn late(worker: ProcessIdentity) -> Option<Failure> {
    tokio::time::sleep(LATE).await;
    let looked = tokio::task::spawn_blocking(move || sweep::stuck_below(&worker));
    let survivors = looked.await.unwrap_or_default();
    if survivors.is_empty() {
        clock::time_is_up(clock::now() + CONNECT.saturating_sub(LATE)).await;
        return None;
    }
    let message = format!("{} survive SIGKILL", sweep::named(&survivors));
    Some(Failure::new(STUCK, ErrorCategory::Exited, message))
}

/// Waits for the worker and gives it the new fence.
async fn meet(
    shared: &Shared,
    entry: &Entry,
    process: &Process,
    connections: &mut mpsc::Receiver<Connection>,
    (taken, tx): (Seq, &mpsc::WeakSender<Command>),
) -> Result<(Box<Hello>, Link), Failure> {
    let mut exit = process.exit.clone();
    let mut late = std::pin::pin!(late(process.identity.clone()));
    let connection = tokio::select! {
        biased;
        connection = connections.recv() => connection,
        _ = exit.wait_for(Option::is_some) => {
            return Err(super::figures::exited(&shared.home, process, None));
        }
        stuck = &mut late => match stuck {
            Some(failure) => return Err(failure),
            None => None,
        },
    };
    let Some(connection) = connection else {
        if let Some(failure) = start::of_another_version(shared, process) {
            return Err(failure);
        }
        let message = format!(
            "the worker (pid {}) did not connect again in time",
            process.pid
        );
        return Err(Failure::new("takeover", ErrorCategory::TimedOut, message));
    };
    let (hello, mut link) = connection.open();
    if let Some(turn) = evidence::introduced(&hello) {
        // For the case that it can't be taken over.
        report(tx, Command::Worked(turn)).await;
    }
    let usable = hello.session_key == entry.session_id
        && hello.generation == entry.generation
        && hello.state.ready.is_some()
        && hello.state.stopping.is_none();
    if !usable {
        let message = format!("the worker (pid {}) was not at work", process.pid);
        return Err(Failure::new("takeover", ErrorCategory::Exited, message));
    }
    let request = Request::new(Attach {
        fence: shared.fence,
        ack: taken,
    });
    let id = request.request_id.clone();
    let mut progress = start::Progress::default();
    // Its answer is the first line on the connection; what follows is read by
    // the session as usual.
    start::ask(
        &mut link,
        &ToWorker::Attach(request),
        &id,
        ATTACH,
        &mut progress,
    )
    .await?;
    Ok((hello, link))
}

/// Tells of the end of a process that is not our child. `pidfd`: it may keep a
/// descriptor for that.
pub(super) fn watch_exit(identity: ProcessIdentity, pidfd: bool) -> watch::Receiver<Option<Exit>> {
    let (tx, rx) = watch::channel(None);
    tokio::spawn(async move {
        if pidfd
            && let Ok(Some(pidfd)) = process::pidfd(&identity)
            && let Some(pidfd) = readable(pidfd)
        {
            // Readable once and for all when the process has ended.
            drop(pidfd.readable().await);
        }
        while identity.liveness() == Liveness::Alive {
            tokio::time::sleep(LOOK).await;
        }
        tx.send_replace(Some(Exit {
            code: None,
            signal: None,
        }));
    });
    rx
}

#[expect(
    deprecated,
    reason = "the replacement is an unsafe function; the descriptor is owned here and not \
              closed by anybody else"
)]
fn readable(fd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE).ok()
}
