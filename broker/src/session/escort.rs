//! Seeing a worker off: from the first request to leave until nothing of its
//! tree is alive, with a bound on each step.
//!
//! The worker climbs down its own ladder; the escort is the second pair of
//! eyes. It signals only the worker, by proved identity, and afterwards looks
//! for strays by the worker's mark.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ade_leases::process::{self, ProcessIdentity, Target};
use ade_protocol::WorkerId;
use ade_protocol::boot::WorkerTiming;
use nix::sys::signal::Signal;
use tokio::sync::watch;

use crate::journal;
use crate::pool::Place;
use crate::shared::Shared;
use crate::spawn::Exit;
use crate::sweep;

/// How long strays may take to die after SIGKILL.
const STRAYS_BOUND: Duration = Duration::from_secs(2);

/// Room for a loaded machine on top of the ladder's own bounds.
const SLACK: Duration = Duration::from_secs(2);

/// A worker process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) worker_id: WorkerId,
    pub(super) pid: i32,
    pub(super) identity: ProcessIdentity,
    pub(super) mark: String,
    pub(super) exit: watch::Receiver<Option<Exit>>,
}

/// Sees one worker off.
pub(super) struct Escort {
    shared: Arc<Shared>,
    process: Process,
    timing: WorkerTiming,
    /// Freed when the tree is dead, so that the next worker finds the machine
    /// as empty as it was promised.
    place: Place,
    session_file: Option<PathBuf>,
}

/// The worker's own ladder when it was asked over its link, with room for a slow
/// machine.
pub(super) fn ladder(timing: WorkerTiming) -> Duration {
    let ladder = timing.dispose_grace_ms + timing.eof_grace_ms + timing.term_to_kill_ms;
    Duration::from_millis(ladder) + SLACK
}

/// The longest that seeing a worker off can take.
pub(super) fn longest(timing: WorkerTiming) -> Duration {
    let ladder = timing.dispose_grace_ms + timing.eof_grace_ms + timing.term_to_kill_ms;
    // Once for the worker's own ladder, once more when it had to be told by
    // SIGTERM, then the sweep.
    2 * Duration::from_millis(ladder) + SLACK + STRAYS_BOUND
}

impl Escort {
    pub(super) fn new(
        shared: &Arc<Shared>,
        process: Process,
        timing: WorkerTiming,
        place: Place,
        session_file: Option<PathBuf>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            process,
            timing,
            place,
            session_file,
        }
    }

    /// The worker was asked to leave over its link: wait, then insist.
    pub(super) async fn farewell(self) -> Vec<i32> {
        let ladder = Duration::from_millis(
            self.timing.dispose_grace_ms + self.timing.eof_grace_ms + self.timing.term_to_kill_ms,
        );
        if self.gone_within(ladder + SLACK).await {
            return self.tidy().await;
        }
        self.depart().await
    }

    /// The worker has no link: it is asked by SIGTERM, then killed.
    pub(super) async fn depart(self) -> Vec<i32> {
        let ladder = Duration::from_millis(
            self.timing.dispose_grace_ms + self.timing.eof_grace_ms + self.timing.term_to_kill_ms,
        );
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
        if !self.gone_within(ladder).await {
            self.signal(Signal::SIGKILL);
            self.gone_within(SLACK).await;
        }
        self.tidy().await
    }

    /// The worker has ended by itself.
    pub(super) async fn tidy(self) -> Vec<i32> {
        let mark = self.process.mark.clone();
        let ended = self.process.exit.borrow().is_some();
        let session_file = self.session_file.clone().filter(|_| ended);
        let swept = tokio::task::spawn_blocking(move || {
            let report = sweep::strays(&mark, STRAYS_BOUND);
            if let Some(file) = session_file {
                free_lease(&file);
            }
            report
        });
        let survivors = swept
            .await
            .map(|report| report.survivors)
            .unwrap_or_default();
        if !survivors.is_empty() {
            tracing::error!(pids = ?survivors, "processes survived SIGKILL");
        }
        self.shared.registry.forget(&self.process.worker_id);
        if self.process.exit.borrow().is_some() {
            journal::remove(&self.shared.home, &self.process.worker_id);
        }
        drop(self.place);
        survivors
    }

    async fn gone_within(&self, bound: Duration) -> bool {
        let mut exit = self.process.exit.clone();
        tokio::time::timeout(bound, exit.wait_for(Option::is_some))
            .await
            .is_ok()
    }

    fn signal(&self, signal: Signal) {
        if self.process.exit.borrow().is_some() {
            return;
        }
        let target = Target::Process(self.process.identity.clone());
        if let Err(error) = process::signal(&target, signal) {
            tracing::warn!(%error, worker = %self.process.worker_id, "a worker was not signalled");
        }
    }
}

/// Removes the lease of a worker that could not do it itself. Only a lease that
/// is proved dead is touched: by now another program may hold it.
pub(crate) fn free_lease(session_file: &Path) {
    match ade_leases::lease::break_dead(session_file) {
        Ok(_) | Err(ade_leases::lease::BreakError::Held { .. }) => {}
        Err(error) => {
            tracing::warn!(file = %session_file.display(), %error, "a dead lease was left");
        }
    }
}
