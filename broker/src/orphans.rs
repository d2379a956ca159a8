//! What a dead worker left that nothing names: started with an empty
//! environment, in a session of its own, outside of every cgroup of ours.
//!
//! A worker is the subreaper of everything below it, and the broker that of its
//! workers. So a living worker keeps its orphans, and what comes to the broker
//! was below a worker that died: every child that the broker did not start
//! itself may be killed, with all below it. Whose it was need not be known; when
//! several workers die at once, each farewell kills all and waits for all.
//!
//! Two brokers can't say that. The first process of a pid namespace gets every
//! orphan there is, and a program that had children before it became a broker
//! gets theirs. These kill only a child in the session that the dead worker led
//! ([`Reach::Session`]); what left that too is found by the other nets
//! ([`crate::remains`]) or not at all.
//!
//! What this module does not do: it signals nobody.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ade_leases::process::{self, Pid, ProcessEntry, ProcessIdentity};

use crate::reap::{self, Adoption};

/// What a worker's sweep reports as its survivor is no business of a worker that
/// died so much later: at that time it was the broker's already.
const OLD: Duration = Duration::from_secs(1);

/// How far a sweep may go among the children that the broker did not start.
#[derive(Clone, Copy, Debug)]
enum Reach<'a> {
    /// All are of dead workers.
    All,
    /// Only those in the session of this worker, which is dead.
    Session(&'a ProcessIdentity),
}

/// Living processes that a dead worker left with the broker, and those below
/// them. `worker`: the one that is swept after, where it is known.
///
/// # Errors
/// A process can't be identified.
pub(crate) fn find(
    worker: Option<&ProcessIdentity>,
    table: &[ProcessEntry],
) -> io::Result<Vec<ProcessIdentity>> {
    // The table was first: who is in it as our child and was started by us is
    // registered by the time the register is asked, or has been reaped since,
    // and then its identity is nobody's.
    let own = Pid::own();
    let candidates = process::children(own, table);
    let (strangers, reach) = match (reap::adopted(&candidates), worker) {
        (Adoption::OfWorkers(pids), _) => (pids, Reach::All),
        (Adoption::OfAnybody(pids), Some(worker)) => (pids, Reach::Session(worker)),
        (Adoption::None, _) | (Adoption::OfAnybody(_), None) => return Ok(Vec::new()),
    };
    let rows = select(own, table, &strangers, reach);
    rows.iter().map(|row| row.identity()).collect()
}

/// Roots among our children, and by parents alone all below: a session or group
/// may be shared with somebody who is none of theirs.
fn select<'t>(
    own: Pid,
    table: &'t [ProcessEntry],
    strangers: &HashSet<i32>,
    reach: Reach<'_>,
) -> Vec<&'t ProcessEntry> {
    let is_root = |row: &ProcessEntry| {
        row.ppid == own.get()
            && strangers.contains(&row.pid.get())
            && match reach {
                Reach::All => true,
                Reach::Session(worker) => is_in_session(row, worker, table),
            }
    };
    let roots = table.iter().filter(|row| is_root(row));
    let mut members: HashSet<i32> = roots.map(|row| row.pid.get()).collect();
    loop {
        let before = members.len();
        for row in table {
            // Through the dead as well: their children may not have moved yet.
            if members.contains(&row.ppid) {
                members.insert(row.pid.get());
            }
        }
        if members.len() == before {
            break;
        }
    }
    let living = table.iter().filter(|row| !row.is_zombie());
    living
        .filter(|row| members.contains(&row.pid.get()))
        .collect()
}

/// A session keeps its leader's pid from being given away as long as it has
/// members; whoever leads it now under that pid is another one.
fn is_in_session(row: &ProcessEntry, worker: &ProcessIdentity, table: &[ProcessEntry]) -> bool {
    let led_by_another =
        |row: &ProcessEntry| row.pid == worker.pid && row.start_ticks != worker.start_ticks;
    row.session == worker.pid.get()
        && row.start_ticks >= worker.start_ticks
        && !table.iter().any(led_by_another)
}

/// What survived SIGKILL: since when, and whose sweeps said so. Bounded by the
/// processes there are.
type Claims = BTreeMap<(i32, u64), (Instant, BTreeSet<String>)>;

static CLAIMS: LazyLock<Mutex<Claims>> = LazyLock::new(Mutex::default);

/// Leaves out what survives SIGKILL since before the worker with this mark died:
/// others wait for it.
pub(crate) fn retain_own(mark: Option<&str>, begun: Instant, found: &mut Vec<ProcessIdentity>) {
    let claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    found.retain(|one| match claims.get(&key(one)) {
        Some((since, marks)) => {
            mark.is_some_and(|mark| marks.contains(mark))
                || begun.saturating_duration_since(*since) < OLD
        }
        None => true,
    });
}

/// Writes down what the sweep for this mark could not end.
pub(crate) fn claim(mark: Option<&str>, survivors: &[ProcessIdentity]) {
    let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    for one in survivors {
        let fresh = || (Instant::now(), BTreeSet::new());
        let (_, marks) = claims.entry(key(one)).or_insert_with(fresh);
        marks.extend(mark.map(str::to_owned));
    }
    // Rare, so a look at each is cheap.
    claims.retain(|(pid, ticks), _| {
        let is = |one: &ProcessIdentity| one.start_ticks == *ticks;
        let pid = Pid::new(i64::from(*pid));
        pid.and_then(|pid| ProcessIdentity::of(pid).ok().flatten())
            .is_some_and(|one| is(&one))
    });
}

fn key(one: &ProcessIdentity) -> (i32, u64) {
    (one.pid.get(), one.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: i64, ppid: i32, session: i32, state: char) -> ProcessEntry {
        ProcessEntry {
            pid: Pid::new(pid).expect("a pid"),
            ppid,
            pgid: session,
            session,
            state,
            start_ticks: u64::try_from(pid).expect("a start"),
            name: String::new(),
        }
    }

    /// Broker 10, its worker 20 with host 21, a dead worker's 30 with 31 and,
    /// through a zombie, 33; 40 in the session of the dead worker 39.
    fn table() -> Vec<ProcessEntry> {
        vec![
            row(10, 1, 10, 'S'),
            row(20, 10, 20, 'S'),
            row(21, 20, 20, 'S'),
            row(33, 32, 33, 'S'),
            row(30, 10, 30, 'S'),
            row(31, 30, 31, 'S'),
            row(32, 30, 30, 'Z'),
            row(40, 10, 39, 'S'),
            row(41, 40, 41, 'S'),
            row(50, 1, 50, 'S'),
        ]
    }

    fn selected(table: &[ProcessEntry], reach: Reach<'_>) -> Vec<i32> {
        let own = Pid::new(10).expect("a pid");
        let found = select(own, table, &HashSet::from([30, 40]), reach);
        found.iter().map(|row| row.pid.get()).collect()
    }

    fn worker(pid: i64) -> ProcessIdentity {
        let mut one = ProcessIdentity::current().expect("an identity");
        one.pid = Pid::new(pid).expect("a pid");
        one.start_ticks = u64::try_from(pid).expect("a start");
        one
    }

    #[test]
    fn children_that_were_not_started_go_with_all_below_them() {
        assert_eq!(selected(&table(), Reach::All), [33, 30, 31, 40, 41]);
    }

    #[test]
    fn where_strangers_may_come_only_the_session_of_the_dead_proves() {
        let session = worker(39);
        assert_eq!(selected(&table(), Reach::Session(&session)), [40, 41]);
        // Its pid was given to somebody else.
        let mut table = table();
        let mut other = row(39, 1, 39, 'S');
        other.start_ticks = 99;
        table.push(other);
        assert_eq!(selected(&table, Reach::Session(&session)), [0; 0]);
    }

    #[test]
    fn what_others_wait_for_since_long_is_not_waited_for_again() {
        let one = ProcessIdentity::current().expect("an identity");
        let seen = |mark: &str, begun| {
            let mut found = vec![one.clone()];
            retain_own(Some(mark), begun, &mut found);
            found.len()
        };
        let now = Instant::now();
        claim(Some("first"), std::slice::from_ref(&one));
        assert_eq!(seen("second", now), 1, "they may have died together");
        let later = Instant::now() + OLD;
        assert_eq!((seen("first", later), seen("second", later)), (1, 0));
    }
}
