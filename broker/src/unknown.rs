//! Workers that report and that nobody knows.
//!
//! A worker is only known by its journal: there its token's hash is. When that
//! file was damaged or removed, its worker can't prove itself any more, to no
//! broker ever. It would run on unseen, with the lease of its session, until its
//! grace is over. So it is told to stop, by the usual ladder; nothing that it
//! says is believed, except for which file is in the way.
//!
//! The sockets are bound after every known worker is expected, so nobody who
//! could be taken over is met here.

use std::time::Duration;

use ade_leases::process::{Liveness, Pid, ProcessIdentity};
use ade_protocol::frame::{Attach, Empty, Identity, Request, ToWorker};
use ade_protocol::{Fence, Seq};
use tokio::time::{Instant, sleep, timeout_at};

use crate::home::Home;
use crate::link::Connection;
use crate::{cgroups, clock, journal};

/// How long it may take to leave: any ladder, and what survives SIGKILL is not
/// waited for.
const BOUND: Duration = Duration::from_secs(60);

/// How long it may take to end after it has closed its connection.
const END: Duration = Duration::from_secs(5);

/// Pause between two looks at a process that should end.
const LOOK: Duration = Duration::from_millis(100);

/// Sends a worker away that nobody knows, and removes its journal when that is
/// of no more use.
pub(crate) async fn send_away(home: &Home, fence: Fence, connection: Connection) {
    let (hello, mut link) = connection.open();
    let (worker, pid) = (hello.worker_id.clone(), hello.pid);
    tracing::warn!(%worker, pid, "a worker that no journal knows reported; it is told to stop");
    let attach = Request::new(Attach { fence, ack: Seq(0) });
    let dispose = Request::new(Empty {});
    let asked = link.send(&ToWorker::Attach(attach)) && link.send(&ToWorker::Dispose(dispose));
    // On this connection: told on another one it would climb a rung each time.
    let until = clock::now() + BOUND;
    while asked && let Ok(Some(_)) = timeout_at(until, link.incoming.recv()).await {}
    if !ends(identity(hello.identity), clock::now() + END).await {
        tracing::error!(%worker, pid, "a worker that no journal knows did not end");
        return;
    }
    if journal::read(home, &worker).is_none() {
        let (home, worker) = (home.clone(), worker.clone());
        let removed =
            tokio::task::spawn_blocking(move || cgroups::forget(&home, &worker, None)).await;
        drop(removed);
    }
    tracing::info!(%worker, "a worker that no journal knew has ended");
}

fn identity(told: Identity) -> Option<ProcessIdentity> {
    Some(ProcessIdentity {
        pid: Pid::new(i64::from(told.pid))?,
        start_ticks: told.start_ticks,
        boot_id: told.boot_id,
        pid_namespace: told.pid_namespace,
    })
}

/// Whether a process is over by the deadline.
async fn ends(process: Option<ProcessIdentity>, deadline: Instant) -> bool {
    let Some(process) = process else { return false };
    loop {
        match process.liveness() {
            Liveness::Dead(_) => return true,
            Liveness::Alive if clock::now() < deadline => sleep(LOOK).await,
            Liveness::Alive | Liveness::Unknown(_) => return false,
        }
    }
}
