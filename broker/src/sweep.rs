//! Ending what a dead broker, or a killed worker, left.
//!
//! Only proved processes are touched: a worker by the identity in its journal,
//! everything below it by the mark in its environment. A pid that was given to
//! somebody else, a journal of another boot, and a process that cannot be
//! identified are left alone.
//!
//! A worker that lives is asked first (SIGTERM): it then walks its own stop
//! ladder and releases its lease last. Only after the grace it is killed, and
//! then everything that carries its mark. A journal is removed when nothing of
//! its worker is left; what survives even SIGKILL is reported by pid and keeps
//! its journal, so that the next broker looks again.
//!
//! Everything in here blocks, and every wait has an end.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ade_leases::process::{self, DeadProof, Liveness, Pid, ProcessIdentity, Sent, Signal, Target};
use ade_protocol::WorkerId;
use ade_protocol::boot::{MARK_ENV, WorkerTiming};

use crate::files::STAGING;
use crate::home::Home;
use crate::journal::{self, Entry};

/// Pause between two looks at processes that should end.
const POLL: Duration = Duration::from_millis(10);

/// How long processes may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// From SIGTERM, for a worker's own stop ladder.
    pub term: Duration,
    /// From SIGKILL, for the kernel.
    pub kill: Duration,
}

impl Default for Grace {
    /// All rungs of the default ladder and a second; two seconds.
    fn default() -> Self {
        let timing = WorkerTiming::default();
        let ladder = timing.dispose_grace_ms + timing.eof_grace_ms + timing.term_to_kill_ms;
        Self {
            term: Duration::from_millis(ladder + 1_000),
            kill: Duration::from_secs(2),
        }
    }
}

/// What a sweep did. Pids are those of our pid namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Workers that ended when they were asked to.
    pub ended: Vec<i32>,
    /// Workers that had to be killed.
    pub killed: Vec<i32>,
    /// Other processes with a worker's mark that were killed.
    pub strays: Vec<i32>,
    /// What survived SIGKILL; journals of these stay.
    pub survivors: Vec<i32>,
    /// Workers of which nothing can be said from here; their journals stay.
    pub unknown: Vec<WorkerId>,
    /// Journals that were removed.
    pub removed: usize,
    /// Files that are no journals; they stay.
    pub damaged: Vec<PathBuf>,
    /// What could not be looked at.
    pub problems: Vec<String>,
}

/// What became of the processes with one mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrayReport {
    /// Those that were killed.
    pub killed: Vec<i32>,
    /// Those that were still there at the end.
    pub survivors: Vec<i32>,
    /// Why the process table could not be searched.
    pub problem: Option<String>,
}

/// One journal on its way through the sweep.
struct Left {
    entry: Entry,
    alive: Option<ProcessIdentity>,
}

/// Ends everything that the journals of the home name. The caller holds the
/// broker lock, so nobody else writes journals meanwhile.
#[must_use]
pub fn run(home: &Home, grace: Grace) -> SweepReport {
    run_sparing(home, grace, &BTreeSet::new())
}

/// The same without the workers that are being taken over.
#[must_use]
pub fn run_sparing(home: &Home, grace: Grace, spare: &BTreeSet<WorkerId>) -> SweepReport {
    let mut report = SweepReport::default();
    let journals = match journal::read_all(home) {
        Ok(journals) => journals,
        Err(error) => {
            report
                .problems
                .push(format!("the journals could not be read: {error}"));
            return report;
        }
    };
    report.damaged = journals.damaged;
    let mut left = Vec::new();
    for entry in journals.entries {
        if spare.contains(&entry.worker_id) {
            continue;
        }
        match entry.identity.as_ref().map(ProcessIdentity::liveness) {
            Some(Liveness::Dead(DeadProof::OtherBoot)) => forget(home, &entry, &mut report),
            Some(Liveness::Unknown(_)) => report.unknown.push(entry.worker_id),
            Some(Liveness::Alive) => {
                let alive = entry.identity.clone();
                left.push(Left { entry, alive });
            }
            Some(Liveness::Dead(_)) | None => left.push(Left { entry, alive: None }),
        }
    }
    end_workers(&mut left, grace, &mut report);
    for Left { entry, alive } in left {
        // Each has the whole grace: what does not die in it is stuck in the
        // kernel, and there is hardly ever more than one such.
        let strays = end_marked(&entry.mark, Instant::now() + grace.kill);
        let alive = alive.filter(|worker| worker.liveness() == Liveness::Alive);
        report.strays.extend(strays.killed);
        report.problems.extend(strays.problem.clone());
        if strays.survivors.is_empty() && strays.problem.is_none() && alive.is_none() {
            forget(home, &entry, &mut report);
        }
        report.survivors.extend(strays.survivors);
        report
            .survivors
            .extend(alive.map(|worker| worker.pid.get()));
    }
    // A worker carries its own mark.
    let workers: BTreeSet<i32> = report.ended.iter().chain(&report.killed).copied().collect();
    report.strays.retain(|pid| !workers.contains(pid));
    report.survivors.sort_unstable();
    report.survivors.dedup();
    remove_litter(home, &mut report);
    report
}

/// Kills everything that carries `mark`, again and again until nothing is left
/// or `bound` is over. For what a worker left that did not end in order.
#[must_use]
pub fn strays(mark: &str, bound: Duration) -> StrayReport {
    end_marked(mark, Instant::now() + bound)
}

fn forget(home: &Home, entry: &Entry, report: &mut SweepReport) {
    journal::remove(home, &entry.worker_id);
    report.removed += 1;
}

/// Asks all workers at once, waits for all of them, kills the rest.
fn end_workers(left: &mut [Left], grace: Grace, report: &mut SweepReport) {
    for worker in left.iter().filter_map(|left| left.alive.as_ref()) {
        // A stopped process acts on SIGTERM only when it goes on.
        for signal in [Signal::SIGTERM, Signal::SIGCONT] {
            send(
                &Target::Process(worker.clone()),
                signal,
                &mut report.problems,
            );
        }
    }
    let ended = wait_for_ends(left, Instant::now() + grace.term);
    report.ended.extend(ended);
    for worker in left.iter().filter_map(|left| left.alive.as_ref()) {
        for target in [
            Target::Group(worker.clone()),
            Target::Process(worker.clone()),
        ] {
            send(&target, Signal::SIGKILL, &mut report.problems);
        }
    }
    let killed = wait_for_ends(left, Instant::now() + grace.kill);
    report.killed.extend(killed);
}

/// Looks until no worker is alive; gives those that ended.
fn wait_for_ends(left: &mut [Left], deadline: Instant) -> Vec<i32> {
    let mut ended = Vec::new();
    loop {
        for one in left.iter_mut() {
            let over = |worker: &mut ProcessIdentity| worker.liveness() != Liveness::Alive;
            ended.extend(one.alive.take_if(over).map(|worker| worker.pid.get()));
        }
        if left.iter().all(|one| one.alive.is_none()) || Instant::now() >= deadline {
            return ended;
        }
        std::thread::sleep(POLL);
    }
}

fn end_marked(mark: &str, deadline: Instant) -> StrayReport {
    let mut killed = BTreeSet::new();
    loop {
        let found = match process::marked(MARK_ENV, mark) {
            Ok(found) => found,
            Err(error) => {
                let problem = Some(format!("the process table could not be searched: {error}"));
                return StrayReport {
                    killed: killed.into_iter().collect(),
                    problem,
                    ..StrayReport::default()
                };
            }
        };
        // A broker that was started by an agent carries a mark itself.
        let mut found: Vec<_> = found
            .into_iter()
            .filter(|one| one.pid != Pid::own())
            .collect();
        if found.is_empty() || Instant::now() >= deadline {
            let survivors: Vec<i32> = found.drain(..).map(|one| one.pid.get()).collect();
            killed.retain(|pid| !survivors.contains(pid));
            return StrayReport {
                killed: killed.into_iter().collect(),
                survivors,
                problem: None,
            };
        }
        for stray in found {
            let pid = stray.pid.get();
            if send(&Target::Process(stray), Signal::SIGKILL, &mut Vec::new()) {
                killed.insert(pid);
            }
        }
        std::thread::sleep(POLL);
    }
}

fn send(target: &Target, signal: Signal, problems: &mut Vec<String>) -> bool {
    match process::signal(target, signal) {
        Ok(sent) => sent == Sent::Delivered,
        Err(error) => {
            problems.push(error.to_string());
            false
        }
    }
}

/// Half-written journals, and standard errors without a journal.
fn remove_litter(home: &Home, report: &mut SweepReport) {
    let Ok(listing) = fs::read_dir(home.journal_dir()) else {
        return;
    };
    for path in listing.filter_map(|found| Some(found.ok()?.path())) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let orphaned = name.ends_with(".stderr") && !path.with_extension("json").exists();
        if (orphaned || name.contains(STAGING))
            && let Err(error) = fs::remove_file(&path)
        {
            report
                .problems
                .push(format!("{} could not be removed: {error}", path.display()));
        }
    }
}
