//! Seeing a worker off: from the first request to leave until nothing of its
//! tree is alive, with a bound on each step.
//!
//! The worker climbs down its own ladder; the escort is the second pair of
//! eyes. It signals only the worker, by proved identity, and afterwards ends
//! what remains of it ([`Remains`]). What survives even SIGKILL
//! is told within the same bounds; its end has none, and until then the chat gets
//! no other worker and nobody else the lease.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{self, ProcessIdentity, Target};
use ade_protocol::boot::WorkerTiming;
use ade_protocol::{SessionId, WorkerId};
use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cgroups;
use crate::journal;
use crate::pool::Place;
use crate::shared::Shared;
use crate::spawn::Exit;
use crate::state::SessionRow;
use crate::sweep::{self, Kept, Remains, Survivor};

/// How long strays may take to die after SIGKILL.
const STRAYS_BOUND: Duration = Duration::from_secs(2);

/// How long a look at it kills what is new.
const SHORT_SWEEP: Duration = Duration::from_millis(50);

/// How often what survives SIGKILL is looked at when its worker is dead.
const VIGIL_LOOK: Duration = Duration::from_secs(1);

/// How often what is being killed is looked at before it counts as surviving.
const DYING_LOOK: Duration = Duration::from_millis(50);

/// Room for a loaded machine on top of the ladder's own bounds.
const SLACK: Duration = Duration::from_secs(2);

/// A worker process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) worker_id: WorkerId,
    pub(super) pid: i32,
    pub(super) identity: ProcessIdentity,
    pub(super) mark: String,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) exit: watch::Receiver<Option<Exit>>,
}

/// How a worker was seen off.
#[must_use]
pub(super) struct Seen {
    /// What survives SIGKILL.
    pub(super) survivors: Vec<Survivor>,
    /// Who waits for the end of that; none when nothing is left.
    pub(super) vigil: Option<Vigil>,
}

impl Seen {
    /// Has whatever is left watched by a task of its own.
    pub(super) fn leave(self) {
        if let Some(vigil) = self.vigil {
            tokio::spawn(vigil.keep());
        }
    }
}

/// Waits for what survives SIGKILL, and keeps until then the journal, the place
/// and the lease.
pub(super) struct Vigil {
    escort: Escort,
}

impl Vigil {
    /// Returns when nothing is left. There is no bound: as long as the kernel
    /// keeps a process, nobody may write in its place.
    pub(super) async fn keep(self) {
        let mut exit = self.escort.process.exit.clone();
        // The worker lives until the rest is dead, unless somebody kills it.
        drop(exit.wait_for(Option::is_some).await);
        while !self.escort.sweep(SHORT_SWEEP).await.is_empty() {
            tokio::time::sleep(VIGIL_LOOK).await;
        }
        let pid = self.escort.process.pid;
        tracing::info!(worker = pid, "what survived SIGKILL has ended");
        self.escort.forget().await;
    }
}

enum Wait {
    Gone,
    Stuck(Vec<Survivor>),
    Late,
}

/// What a look below a worker that should have ended says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dying {
    /// Everything below it survives SIGKILL.
    Survives,
    /// It was sent SIGKILL, and perhaps only had no processor to die on.
    Perhaps,
    /// It has died since the last look; now the worker can end.
    Dead,
    /// Nothing below it is being killed.
    None,
}

/// `left`: everything that is below the worker is being killed. `seen`: so said
/// the look before. `waited`: there was time enough to die.
fn dying(left: bool, seen: bool, waited: bool) -> Dying {
    match (left, seen) {
        (true, _) if waited => Dying::Survives,
        (true, _) => Dying::Perhaps,
        (false, true) => Dying::Dead,
        (false, false) => Dying::None,
    }
}

/// Sees one worker off.
pub(super) struct Escort {
    shared: Arc<Shared>,
    process: Process,
    timing: WorkerTiming,
    /// Freed when the tree is dead, so that the next worker finds the machine
    /// as empty as it was promised.
    place: Place,
    session: SessionId,
    session_file: Option<PathBuf>,
}

/// The worker's own ladder when it was asked over its link, with room for a slow
/// machine.
pub(super) fn ladder(timing: WorkerTiming) -> Duration {
    Duration::from_millis(timing.ladder_ms()) + SLACK
}

/// The longest that seeing a worker off can take.
pub(super) fn longest(timing: WorkerTiming) -> Duration {
    // Once for the worker's own ladder, once more when it had to be told by
    // SIGTERM, each with a look at what is dying; then the sweep.
    2 * (Duration::from_millis(timing.ladder_ms()) + sweep::DYING + SLACK) + STRAYS_BOUND
}

impl Escort {
    pub(super) fn new(
        shared: &Arc<Shared>,
        process: Process,
        timing: WorkerTiming,
        place: Place,
        row: &SessionRow,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            process,
            timing,
            place,
            session: row.session_id.clone(),
            session_file: crate::providers::session_file(&shared.home, row),
        }
    }

    /// The worker was asked to leave over its link: wait, then insist. `told`:
    /// cancelled when the worker says that something survives SIGKILL.
    pub(super) async fn farewell(self, told: CancellationToken) -> Seen {
        match self.wait(self.ladder() + SLACK, &told).await {
            Wait::Gone => self.tidy().await,
            Wait::Stuck(survivors) => self.keep_vigil(survivors),
            Wait::Late => self.depart().await,
        }
    }

    /// The worker has no link: it is asked by SIGTERM, then killed.
    pub(super) async fn depart(self) -> Seen {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
        match self.wait(self.ladder(), &CancellationToken::new()).await {
            Wait::Gone => {}
            Wait::Stuck(survivors) => return self.keep_vigil(survivors),
            Wait::Late => {
                self.signal(Signal::SIGKILL);
                self.gone_within(SLACK).await;
            }
        }
        self.tidy().await
    }

    /// The worker is not taken over. `stuck`: it waits for what survives SIGKILL.
    pub(super) async fn leaving(self, stuck: bool) -> Seen {
        if stuck {
            self.stuck().await
        } else {
            self.depart().await
        }
    }

    /// The worker said that it waits for what survives SIGKILL.
    pub(super) async fn stuck(self) -> Seen {
        let survivors = self.stuck_below().await;
        if survivors.is_empty() {
            return self.farewell(CancellationToken::new()).await;
        }
        self.keep_vigil(survivors)
    }

    /// The worker has ended by itself.
    pub(super) async fn tidy(self) -> Seen {
        let survivors = self.sweep(STRAYS_BOUND).await;
        let ended = self.process.exit.borrow().is_some();
        if !survivors.is_empty() || !ended {
            return self.keep_vigil(survivors);
        }
        self.forget().await;
        Seen {
            survivors: Vec::new(),
            vigil: None,
        }
    }

    fn keep_vigil(self, survivors: Vec<Survivor>) -> Seen {
        let (pid, named) = (self.process.pid, sweep::named(&survivors));
        tracing::error!(worker = pid, survivors = named, "processes survive SIGKILL");
        let left = if named.is_empty() {
            pid.to_string()
        } else {
            named
        };
        self.shared.stuck.note(&self.session, left);
        Seen {
            survivors,
            vigil: Some(Vigil { escort: self }),
        }
    }

    /// Kills what remains of the worker.
    async fn sweep(&self, bound: Duration) -> Vec<Survivor> {
        let (home, process) = (self.shared.home.clone(), self.process.clone());
        let swept = tokio::task::spawn_blocking(move || {
            let hidden = journal::hidden(&home, &process.worker_id, Some(&process.identity));
            if let Some(problem) = hidden.problem {
                tracing::warn!(problem, "not all of a worker's processes may be found");
            }
            let remains = Remains {
                mark: Some(&process.mark),
                cgroup: process.cgroup.as_ref(),
                hidden: &hidden.processes,
                worker: Some(&process.identity),
            };
            sweep::strays(remains, bound).survivors
        });
        swept.await.unwrap_or_default()
    }

    /// Nothing of the worker is left: its lease is freed where it could not do
    /// that itself, its files go, and its place.
    async fn forget(self) {
        let (home, process) = (self.shared.home.clone(), self.process.clone());
        let session_file = self.session_file.clone();
        let forgotten = tokio::task::spawn_blocking(move || {
            if let Some(file) = session_file {
                free_lease(&file);
            }
            cgroups::forget(&home, &process.worker_id, process.cgroup.as_ref());
        });
        if let Err(error) = forgotten.await {
            tracing::error!(%error, "the files of a worker were left");
        }
        self.shared.registry.forget(&self.process.worker_id);
        self.shared.stuck.forget(&self.session);
        drop(self.place);
    }

    fn ladder(&self) -> Duration {
        Duration::from_millis(self.timing.ladder_ms())
    }

    /// Waits for the worker's end, until `bound` or until it says that it can't
    /// end. Only then its tree is looked at: a look costs a walk of all
    /// processes.
    async fn wait(&self, bound: Duration, told: &CancellationToken) -> Wait {
        let gone = tokio::select! {
            gone = self.gone_within(bound) => gone,
            () = told.cancelled() => false,
        };
        if gone {
            return Wait::Gone;
        }
        let given_up = Instant::now() + sweep::DYING;
        let mut seen_dying = false;
        loop {
            let survivors = self.stuck_below().await;
            // A worker that says so has waited for it already.
            let waited = told.is_cancelled() || Instant::now() >= given_up;
            let pause = match dying(!survivors.is_empty(), seen_dying, waited) {
                Dying::Survives => return Wait::Stuck(survivors),
                Dying::None => return Wait::Late,
                Dying::Dead => SLACK,
                Dying::Perhaps => DYING_LOOK,
            };
            if self.gone_within(pause).await {
                return Wait::Gone;
            }
            seen_dying = !survivors.is_empty();
        }
    }

    async fn stuck_below(&self) -> Vec<Survivor> {
        let worker = self.process.identity.clone();
        let looked = tokio::task::spawn_blocking(move || sweep::stuck_below(&worker));
        looked.await.unwrap_or_default()
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

/// Waits for the end of what the worker of another broker left, as for that of
/// an own one; until then the session gets no worker.
pub(crate) fn watch_over(shared: &Arc<Shared>, row: &SessionRow, kept: Kept) {
    let Kept { entry, survivors } = kept;
    let cgroup = cgroups::of(&entry);
    // Without an identity it got no first line, and so it has started nothing.
    let Some(identity) = entry.identity else {
        return;
    };
    let process = Process {
        worker_id: entry.worker_id,
        pid: identity.pid.get(),
        identity: identity.clone(),
        mark: entry.mark,
        cgroup,
        exit: super::adopt::watch_exit(identity, shared.pidfds),
    };
    let timing = shared.config.worker_timing(&row.provider);
    let place = shared.pool.take(&row.session_id, &row.provider);
    Escort::new(shared, process, timing, place, row)
        .keep_vigil(survivors)
        .leave();
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

#[cfg(test)]
mod tests {
    use super::{Dying, dying};

    /// Every look in a row, until the last one ends it.
    fn looks(left: &[bool], waited: bool) -> Vec<Dying> {
        let mut seen = false;
        let look = |left: &bool| {
            let said = dying(*left, seen, waited);
            seen = *left;
            said
        };
        left.iter().map(look).collect()
    }

    #[test]
    fn what_is_killed_survives_only_when_it_had_time_to_die() {
        use Dying::{Dead, None, Perhaps, Survives};
        for (left, waited, expected) in [
            (&[false][..], false, &[None][..]),
            (&[false], true, &[None]),
            (&[true], true, &[Survives]),
            (&[true, true, true], false, &[Perhaps, Perhaps, Perhaps]),
            (&[true, false, false], false, &[Perhaps, Dead, None]),
        ] {
            assert_eq!(looks(left, waited), expected, "{left:?} {waited}");
        }
    }
}
