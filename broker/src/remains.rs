//! What a worker left, found by one look at the process table ([`crate::looks`]).
//!
//! Each net is for what hides from the last: the mark in the environment, the
//! worker's cgroup, the list that the worker kept of who carries no mark
//! ([`ade_leases::process::HiddenList`]), and orphans that came to this broker ([`crate::orphans`]).
//! Whatever is below somebody in a net, by parents alone, is in it too: it was
//! started by them.
//!
//! What no net holds when worker and broker were killed together, where no
//! cgroup can be used: who had shed the mark since the worker last looked (a
//! second in a turn, a few at rest), when every process between them and the
//! worker has ended.
//!
//! What this module does not do: it signals nobody.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{self, Liveness, Pid, ProcessEntry, ProcessIdentity};

use crate::looks::{self, Look};
use crate::orphans;

/// What tells whose a process is that a worker left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remains<'a> {
    /// The mark in its environment. Absent: only orphans are looked for.
    pub mark: Option<&'a str>,
    /// The cgroup that the worker's host lived in.
    pub cgroup: Option<&'a Cgroup>,
    /// Whom the worker listed ([`crate::journal::hidden`]).
    pub hidden: &'a [ProcessIdentity],
    /// The worker, which has ended or is being killed.
    pub worker: Option<&'a ProcessIdentity>,
}

impl Remains<'_> {
    /// Who is left by one look. `begun`: when the sweep began.
    pub(crate) fn look(self, begun: Instant) -> io::Result<Vec<ProcessIdentity>> {
        let named = self.named();
        // Nobody is looked for by a mark where there is none.
        let seen = match self.mark {
            Some(_) => looks::fresh()?,
            None => Arc::new(Look {
                marks: Vec::new(),
                table: process::table()?,
            }),
        };
        self.judge(named, &seen, begun)
    }

    /// The living whom the cgroup holds or the worker listed. To be had before
    /// the look: what they started is found by it, even if they end meanwhile.
    pub(crate) fn named(self) -> Vec<ProcessIdentity> {
        let members = self.cgroup.map(|cgroup| cgroup.members());
        let mut found = members.and_then(Result::ok).unwrap_or_default();
        // A pid that was given to somebody else, or means nothing here, is nobody.
        let listed = self.hidden.iter();
        let listed = listed.filter(|one| one.liveness() == Liveness::Alive);
        found.extend(listed.cloned());
        found
    }

    /// Who is left as a look shows it, which began after the worker had ended and
    /// after [`Remains::named`].
    pub(crate) fn judge(
        self,
        named: Vec<ProcessIdentity>,
        seen: &Look,
        begun: Instant,
    ) -> io::Result<Vec<ProcessIdentity>> {
        let carries = |(_, mark): &&(ProcessIdentity, String)| Some(mark.as_str()) == self.mark;
        let marked = seen.marks.iter().filter(carries);
        let mut found: Vec<_> = marked.map(|(one, _)| one.clone()).collect();
        found.extend(named);
        if !found.is_empty() {
            for row in below(&found, &seen.table, Pid::own()) {
                found.push(row.identity()?);
            }
        }
        let mut orphans = orphans::find(self.worker, &seen.table)?;
        orphans::retain_own(self.mark, begun, &mut orphans);
        found.extend(orphans);
        // A broker that was started by an agent carries a mark itself.
        found.retain(|one| one.pid != Pid::own());
        Ok(found)
    }
}

/// The living below some processes, by parents alone, without those processes.
/// Nobody is below this broker: its workers are its own.
fn below<'t>(
    roots: &[ProcessIdentity],
    table: &'t [ProcessEntry],
    own: Pid,
) -> Vec<&'t ProcessEntry> {
    let is_root = |row: &ProcessEntry| {
        let is = |one: &ProcessIdentity| one.pid == row.pid && one.start_ticks == row.start_ticks;
        roots.iter().any(is)
    };
    let first = table.iter().filter(|row| is_root(row) && row.pid != own);
    let first: HashSet<i32> = first.map(|row| row.pid.get()).collect();
    let mut members = first.clone();
    loop {
        let before = members.len();
        for row in table {
            // Through the dead as well: their children may not have moved yet.
            if row.pid != own && members.contains(&row.ppid) {
                members.insert(row.pid.get());
            }
        }
        if members.len() == before {
            break;
        }
    }
    let is_below = |row: &&ProcessEntry| {
        let pid = row.pid.get();
        members.contains(&pid) && !first.contains(&pid) && !row.is_zombie()
    };
    table.iter().filter(is_below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: i64, ppid: i32, state: char) -> ProcessEntry {
        ProcessEntry {
            pid: Pid::new(pid).expect("a pid"),
            ppid,
            pgid: 0,
            session: 0,
            state,
            start_ticks: u64::try_from(pid).expect("a start"),
            name: String::new(),
        }
    }

    fn found(roots: &[(i64, u64)], table: &[ProcessEntry]) -> Vec<i32> {
        let root = |(pid, start_ticks): &(i64, u64)| {
            let mut one = ProcessIdentity::current().expect("an identity");
            one.pid = Pid::new(*pid).expect("a pid");
            one.start_ticks = *start_ticks;
            one
        };
        let roots: Vec<_> = roots.iter().map(root).collect();
        let own = Pid::new(50).expect("a pid");
        let rows = below(&roots, table, own);
        rows.iter().map(|row| row.pid.get()).collect()
    }

    #[test]
    fn what_they_started_is_below_them_and_nothing_of_ours_is() {
        // 20 with 21, through a zombie 23, and 30 elsewhere; 50, this broker,
        // was started below 20 and has a worker.
        let table = [
            row(23, 22, 'S'),
            row(20, 1, 'S'),
            row(21, 20, 'S'),
            row(22, 20, 'Z'),
            row(30, 1, 'S'),
            row(31, 30, 'S'),
            row(50, 21, 'S'),
            row(51, 50, 'S'),
        ];
        for (roots, expected) in [
            (&[(20, 20)][..], &[23, 21][..]),
            (&[(20, 20), (21, 21)], &[23]),
            (&[(30, 30)], &[31]),
            // Its pid was given to somebody else.
            (&[(30, 29)], &[]),
            (&[(50, 50)], &[]),
            (&[], &[]),
        ] {
            assert_eq!(found(roots, &table), expected, "{roots:?}");
        }
    }
}
