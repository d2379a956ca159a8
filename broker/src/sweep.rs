//! Ending what a dead broker, or a killed worker, left.
//!
//! Only proved processes are touched: a worker by the identity in its journal,
//! everything below it by one of the nets that [`Remains`] knows. A pid that was
//! given to somebody else, a journal of another boot, and a process that cannot
//! be identified are left alone.
//!
//! A worker that lives is asked first (SIGTERM): it then walks its own stop
//! ladder and releases its lease last. Only after the grace it is killed, and
//! then everything that carries its mark. A journal is removed when nothing of
//! its worker is left; what survives even SIGKILL is reported by pid and keeps
//! its journal, so that the next broker looks again.
//!
//! Everything in here blocks, and every wait has an end.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{
    self, DeadProof, Liveness, ProcessEntry, ProcessIdentity, Sent, Signal, Target,
};
use ade_protocol::WorkerId;
use ade_protocol::boot::WorkerTiming;

use crate::cgroups;
use crate::files::STAGING;
use crate::home::Home;
use crate::journal::{self, Entry};
use crate::looks::{self, Look};
use crate::orphans;

pub use crate::remains::Remains;

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
        Self {
            term: Duration::from_millis(timing.ladder_ms().saturating_add(1_000)),
            kill: Duration::from_secs(2),
        }
    }
}

/// A process that was sent SIGKILL and is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// Its pid.
    pub pid: i32,
    /// The short name that it goes by.
    pub name: String,
    /// The kernel's letter for what it does: `D` waits and can't be woken.
    pub state: char,
}

impl fmt::Display for Survivor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, state {})", self.pid, self.name, self.state)
    }
}

/// Survivors in words.
#[must_use]
pub fn named(survivors: &[Survivor]) -> String {
    let each: Vec<String> = survivors.iter().map(ToString::to_string).collect();
    each.join(", ")
}

/// A worker of which something survived SIGKILL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its journal, which is kept too.
    pub entry: Entry,
    /// What survived.
    pub survivors: Vec<Survivor>,
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
    pub survivors: Vec<Survivor>,
    /// Workers of which something survived.
    pub kept: Vec<Kept>,
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
    pub survivors: Vec<Survivor>,
    /// Why the process table could not be searched.
    pub problem: Option<String>,
}

/// One journal on its way through the sweep.
struct Left {
    entry: Entry,
    alive: Option<ProcessIdentity>,
    /// What its worker waits for, which lives and holds the lease until then.
    stuck: Vec<Survivor>,
}

impl Left {
    fn new(entry: Entry, alive: Option<ProcessIdentity>) -> Self {
        Self {
            entry,
            alive,
            stuck: Vec::new(),
        }
    }
}

/// A worker that has ended, as far as it could be ended, and what tells what it
/// left.
struct Ended {
    entry: Entry,
    alive: Option<ProcessIdentity>,
    cgroup: Option<Cgroup>,
    hidden: journal::Hidden,
    /// [`Remains::named`].
    named: Vec<ProcessIdentity>,
}

impl Ended {
    fn new(home: &Home, entry: Entry, alive: Option<ProcessIdentity>) -> Self {
        let cgroup = cgroups::of(&entry);
        let hidden = journal::hidden(home, &entry.worker_id, entry.identity.as_ref());
        let mut one = Self {
            entry,
            alive,
            cgroup,
            hidden,
            named: Vec::new(),
        };
        one.named = one.remains().named();
        one
    }

    fn remains(&self) -> Remains<'_> {
        Remains {
            mark: Some(&self.entry.mark),
            cgroup: self.cgroup.as_ref(),
            hidden: &self.hidden.processes,
            worker: self.entry.identity.as_ref(),
        }
    }
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
                left.push(Left::new(entry, alive));
            }
            Some(Liveness::Dead(_)) | None => left.push(Left::new(entry, None)),
        }
    }
    end_workers(&mut left, grace, &mut report);
    let mut ended = Vec::new();
    for Left {
        entry,
        alive,
        stuck,
    } in left
    {
        if !stuck.is_empty() && is_alive(alive.as_ref()) {
            report.survivors.extend(stuck.iter().cloned());
            let survivors = stuck;
            report.kept.push(Kept { entry, survivors });
            continue;
        }
        ended.push(Ended::new(home, entry, alive));
    }
    // One look for all: most have left nothing, and it says so of each.
    let seen = (!ended.is_empty()).then(|| looks::fresh().ok()).flatten();
    for mut one in ended {
        // Each has the whole grace: what does not die in it is stuck in the
        // kernel, and there is hardly ever more than one such.
        let named = std::mem::take(&mut one.named);
        // Of a worker that lives on it does not say what it starts after it.
        let seen = seen.as_deref().filter(|_| one.alive.is_none());
        let first = seen.map(|seen| (named, seen));
        let deadline = Instant::now() + grace.kill;
        let strays = end_strays(one.remains(), first, deadline);
        let Ended {
            entry,
            alive,
            hidden,
            ..
        } = one;
        report.problems.extend(hidden.problem);
        let alive = alive.filter(|worker| is_alive(Some(worker)));
        report.strays.extend(strays.killed);
        report.problems.extend(strays.problem.clone());
        if strays.survivors.is_empty() && strays.problem.is_none() && alive.is_none() {
            forget(home, &entry, &mut report);
        }
        let mut survived = strays.survivors;
        survived.extend(survivors(alive.as_slice()));
        report.survivors.extend(survived.iter().cloned());
        if !survived.is_empty() {
            let survivors = survived;
            report.kept.push(Kept { entry, survivors });
        }
    }
    // A worker carries its own mark.
    let workers: BTreeSet<i32> = report.ended.iter().chain(&report.killed).copied().collect();
    report.strays.retain(|pid| !workers.contains(pid));
    report.survivors.sort_by_key(|survivor| survivor.pid);
    report.survivors.dedup();
    remove_litter(home, &mut report);
    report
}

/// Kills all that remains of a worker, again and again until nothing is left or
/// `bound` is over. For what a worker left that did not end in order.
#[must_use]
pub fn strays(remains: Remains<'_>, bound: Duration) -> StrayReport {
    end_strays(remains, None, Instant::now() + bound)
}

/// How long what was sent SIGKILL may be there before it counts as surviving:
/// on a loaded machine it must be given a processor to die.
pub const DYING: Duration = Duration::from_secs(2);

/// What is left below a worker when all of it was sent SIGKILL and is there yet:
/// the worker has done what can be done and waits for the kernel. Empty when
/// nothing is below it, or something is that may still act. One look: what is
/// still there after [`DYING`] survives.
#[must_use]
pub fn stuck_below(worker: &ProcessIdentity) -> Vec<Survivor> {
    if worker.liveness() != Liveness::Alive {
        return Vec::new();
    }
    let table = process::table().unwrap_or_default();
    let below = process::descendants(worker.pid, &table);
    let alive: Vec<_> = below.iter().filter(|row| !row.is_zombie()).collect();
    if alive.iter().all(|row| process::is_being_killed(row.pid)) {
        alive.into_iter().map(survivor).collect()
    } else {
        Vec::new()
    }
}

fn survivor(row: &ProcessEntry) -> Survivor {
    Survivor {
        pid: row.pid.get(),
        name: row.name.clone(),
        state: row.state,
    }
}

/// Those of some processes that are there still.
#[must_use]
pub fn survivors(processes: &[ProcessIdentity]) -> Vec<Survivor> {
    let rows = process::rows_of(processes).unwrap_or_default();
    let alive = rows.iter().filter(|row| !row.is_zombie());
    alive.map(survivor).collect()
}

fn forget(home: &Home, entry: &Entry, report: &mut SweepReport) {
    cgroups::forget(home, &entry.worker_id, cgroups::of(entry).as_ref());
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
    report.ended.extend(wait_for_the_dying(left));
    let to_kill = left.iter().filter(|left| left.stuck.is_empty());
    for worker in to_kill.filter_map(|left| left.alive.as_ref()) {
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

/// Tells who only waits for what survives SIGKILL. Gives those that could end
/// after all.
fn wait_for_the_dying(left: &mut [Left]) -> Vec<i32> {
    let until = Instant::now() + DYING;
    let mut ended = Vec::new();
    loop {
        for one in left.iter_mut() {
            one.stuck = one.alive.as_ref().map(stuck_below).unwrap_or_default();
        }
        if Instant::now() >= until || left.iter().all(|one| one.stuck.is_empty()) {
            return ended;
        }
        // Their workers are waited for, so that they may free their leases.
        for one in left.iter_mut() {
            one.stuck.clear();
        }
        ended.extend(wait_for_ends(left, Instant::now() + 5 * POLL));
    }
}

/// Looks until no worker is alive; gives those that ended.
fn wait_for_ends(left: &mut [Left], deadline: Instant) -> Vec<i32> {
    let mut ended = Vec::new();
    loop {
        for one in left.iter_mut() {
            let over = |worker: &mut ProcessIdentity| worker.liveness() != Liveness::Alive;
            ended.extend(one.alive.take_if(over).map(|worker| worker.pid.get()));
        }
        let mut awaited = left.iter().filter(|one| one.stuck.is_empty());
        if awaited.all(|one| one.alive.is_none()) || Instant::now() >= deadline {
            return ended;
        }
        std::thread::sleep(POLL);
    }
}

fn is_alive(worker: Option<&ProcessIdentity>) -> bool {
    worker.is_some_and(|worker| worker.liveness() == Liveness::Alive)
}

/// `first`: what the first look shows, where it was had already.
fn end_strays(
    remains: Remains<'_>,
    mut first: Option<(Vec<ProcessIdentity>, &Look)>,
    deadline: Instant,
) -> StrayReport {
    let begun = Instant::now();
    let mut killed = BTreeSet::new();
    let mut empty_looks = 0;
    loop {
        let found = match first.take() {
            Some((named, seen)) => remains.judge(named, seen, begun),
            None => remains.look(begun),
        };
        let found = match found {
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
        empty_looks = if found.is_empty() { empty_looks + 1 } else { 0 };
        // Who moves to another parent during a look may be missed by it: where
        // somebody was killed, it takes two.
        let over = empty_looks > usize::from(!killed.is_empty());
        if over || Instant::now() >= deadline {
            let survivors = survivors(&found);
            orphans::claim(remains.mark, &found);
            killed.retain(|pid| !survivors.iter().any(|survivor| survivor.pid == *pid));
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
        if let Some(cgroup) = remains.cgroup {
            // Who was started meanwhile. What could not be killed is found again.
            let _ = cgroup.kill();
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

/// Half-written journals, and what belongs to a journal that is not there.
fn remove_litter(home: &Home, report: &mut SweepReport) {
    let Ok(listing) = fs::read_dir(home.journal_dir()) else {
        return;
    };
    for path in listing.filter_map(|found| Some(found.ok()?.path())) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let belongs = [".stderr", ".hidden", ".hidden-next"];
        let orphaned =
            belongs.iter().any(|end| name.ends_with(end)) && !path.with_extension("json").exists();
        if (orphaned || name.contains(STAGING))
            && let Err(error) = fs::remove_file(&path)
        {
            report
                .problems
                .push(format!("{} could not be removed: {error}", path.display()));
        }
    }
}
