//! The process table as a tree, and processes found by a mark in their
//! environment.

use super::identity::{Pid, ProcessIdentity};
use super::platform;
use std::collections::{HashMap, HashSet};
use std::io;

/// One row of the process table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessEntry {
    /// The process.
    pub pid: Pid,
    /// Its parent; 0 for the first process and for parents in another namespace.
    pub ppid: i32,
    /// Its process group.
    pub pgid: i32,
    /// Its session.
    pub session: i32,
    /// The kernel's letter: `R`, `S`, `D`, `T`, `Z`, …
    pub state: char,
    /// Start time as in [`ProcessIdentity::start_ticks`].
    pub start_ticks: u64,
    /// The short name the process goes by, 15 bytes at most on Linux. Any
    /// process can choose it: fit for a message, never for a decision.
    pub name: String,
}

impl ProcessEntry {
    /// The identity of this row, for [`super::signal`].
    ///
    /// # Errors
    /// The boot id or the pid namespace can't be read.
    pub fn identity(&self) -> io::Result<ProcessIdentity> {
        ProcessIdentity::assemble(self.pid, self.start_ticks)
    }

    /// Whether it has ended and only waits to be reaped.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Every process that can be seen. One that vanishes during the scan is left
/// out; one that starts during it may be.
///
/// # Errors
/// The process table can't be read at all.
pub fn table() -> io::Result<Vec<ProcessEntry>> {
    platform::table()
}

/// The direct children of a process.
#[must_use]
pub fn children(of: Pid, table: &[ProcessEntry]) -> Vec<ProcessEntry> {
    table
        .iter()
        .filter(|entry| entry.ppid == of.get())
        .cloned()
        .collect()
}

/// The pids above a process, itself excluded, the nearest one first. The last
/// one may have no row: a process can end while the table is read. Numbers, since
/// the first process, which is no [`Pid`], may be asked for and among them.
#[must_use]
pub fn ancestors(of: i32, table: &[ProcessEntry]) -> Ancestors {
    let parents: HashMap<i32, i32> = table
        .iter()
        .map(|entry| (entry.pid.get(), entry.ppid))
        .collect();
    let mut found = Ancestors::default();
    let mut current = of;
    // 0 is no process.
    while let Some(parent) = parents.get(&current).filter(|parent| **parent > 0) {
        if *parent == of || found.pids.contains(parent) {
            found.circular = true;
            break;
        }
        found.pids.push(*parent);
        current = *parent;
    }
    found
}

/// What [`ancestors`] has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ancestors {
    /// The pids, the nearest one first.
    pub pids: Vec<i32>,
    /// Whether the table, which changed while it was read, goes round in a
    /// circle above the last one: what is above it then is not known.
    pub circular: bool,
}

/// Everything below a process, itself excluded, in the table's order: the
/// children of members, and whoever is in a session or a group that a member
/// leads (a double fork leaves its parent but not its session).
#[must_use]
pub fn descendants(root: Pid, table: &[ProcessEntry]) -> Vec<ProcessEntry> {
    let mut members = HashSet::from([root.get()]);
    loop {
        let before = members.len();
        for entry in table {
            if [entry.ppid, entry.pgid, entry.session]
                .iter()
                .any(|id| members.contains(id))
            {
                members.insert(entry.pid.get());
            }
        }
        if members.len() == before {
            break;
        }
    }
    members.remove(&root.get());
    table
        .iter()
        .filter(|entry| members.contains(&entry.pid.get()))
        .cloned()
        .collect()
}

/// Everything below a process by parents alone, itself excluded. Where the
/// kernel lists children this costs nothing for processes elsewhere; there it
/// may miss one that starts or ends at that very moment.
///
/// # Errors
/// The process table can't be read at all.
pub fn offspring(root: Pid) -> io::Result<Vec<ProcessEntry>> {
    let mut found: Vec<ProcessEntry> = Vec::new();
    let mut parents = vec![root];
    let mut whole: Option<Vec<ProcessEntry>> = None;
    while let Some(parent) = parents.pop() {
        let below = match (platform::children(parent), &whole) {
            (Some(listed), _) => listed,
            (None, Some(table)) => children(parent, table),
            (None, None) => children(parent, whole.insert(table()?)),
        };
        for entry in below {
            if found.iter().all(|known| known.pid != entry.pid) {
                parents.push(entry.pid);
                found.push(entry);
            }
        }
    }
    Ok(found)
}

/// The rows of those processes that are there still, zombies included, in the
/// order of their pids: for people who want to know what they are.
///
/// # Errors
/// The process table can't be read at all.
pub fn rows_of(processes: &[ProcessIdentity]) -> io::Result<Vec<ProcessEntry>> {
    let mut rows = table()?;
    rows.retain(|row| {
        let is = |one: &ProcessIdentity| one.pid == row.pid && one.start_ticks == row.start_ticks;
        processes.iter().any(is)
    });
    rows.sort_by_key(|row| row.pid);
    Ok(rows)
}

/// Whether a process was sent SIGKILL and lives on: it waits in the kernel, or
/// is frozen, and will do nothing more of its own. `false` also when that
/// can't be told.
#[must_use]
pub fn is_being_killed(pid: Pid) -> bool {
    platform::is_being_killed(pid)
}

/// Every process whose environment at its start held this variable, with its
/// value; once for each value, where there are several. Those whose environment
/// can't be read are left out.
///
/// # Errors
/// The process table can't be read at all.
pub fn marks(mark_name: &str) -> io::Result<Vec<(ProcessIdentity, String)>> {
    platform::marks(mark_name)
}

/// The processes whose environment at their start held exactly
/// `mark_name=mark`. Those whose environment can't be read are left out.
///
/// # Errors
/// The process table can't be read at all.
pub fn marked(mark_name: &str, mark: &str) -> io::Result<Vec<ProcessIdentity>> {
    let mut all = marks(mark_name)?;
    all.retain(|(_, value)| value == mark);
    Ok(all.into_iter().map(|(one, _)| one).collect())
}

/// Whether the environment of this very process, at its start, held exactly
/// `mark_name=mark`. `None`: the system does not show it, or the process is gone.
#[must_use]
pub fn carries(entry: &ProcessEntry, mark_name: &str, mark: &str) -> Option<bool> {
    platform::carries(entry, &format!("{mark_name}={mark}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: i64, ppid: i32, pgid: i32, session: i32) -> ProcessEntry {
        ProcessEntry {
            pid: Pid::new(pid).expect("a pid"),
            ppid,
            pgid,
            session,
            state: 'S',
            start_ticks: 1,
            name: String::new(),
        }
    }

    fn pids(entries: &[ProcessEntry]) -> Vec<i32> {
        entries.iter().map(|entry| entry.pid.get()).collect()
    }

    #[test]
    fn descendants_follow_parents_sessions_and_groups_to_a_fixed_point() {
        // 30 was started by 20 and reparented to 1, but stays in the session
        // of 20; 40 is a child of 30 that comes first in the table.
        let table = [
            row(40, 30, 40, 40),
            row(10, 5, 10, 10),
            row(20, 10, 20, 20),
            row(30, 1, 31, 20),
            row(99, 1, 99, 99),
        ];
        let root = Pid::new(10).expect("a pid");
        assert_eq!(pids(&descendants(root, &table)), [40, 20, 30]);
        assert_eq!(pids(&children(root, &table)), [20]);
    }

    #[test]
    fn ancestors_end_at_the_first_process_at_a_gap_and_at_a_circle() {
        let of = |of, table: &[ProcessEntry]| {
            let found = ancestors(of, table);
            (found.pids, found.circular)
        };
        let table = [
            row(30, 20, 1, 1),
            row(20, 1, 1, 1),
            row(50, 40, 1, 1),
            row(60, 0, 1, 1),
        ];
        assert_eq!(of(30, &table), (vec![20, 1], false));
        assert_eq!(of(60, &table), (vec![], false), "of another namespace");
        assert_eq!(of(50, &table), (vec![40], false), "40 has no row");
        assert_eq!(of(99, &table), (vec![], false));
        let circle = [row(30, 20, 1, 1), row(20, 10, 1, 1), row(10, 20, 1, 1)];
        assert_eq!(of(30, &circle), (vec![20, 10], true));
        assert_eq!(of(20, &circle), (vec![10], true), "itself is not above");
    }

    #[test]
    fn the_real_table_holds_this_process() {
        let table = table().expect("a process table");
        let own = ProcessIdentity::current().expect("an identity");
        let entry = table
            .iter()
            .find(|entry| entry.pid == own.pid)
            .expect("our own row");
        assert_eq!(entry.identity().expect("an identity"), own);
    }
}
