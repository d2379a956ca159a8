//! Whether this process lives inside a chat of its own home.
//!
//! Whatever a chat starts ends with the chat. A broker that an agent's command
//! started would end with it too, and with the broker's workers every other
//! chat; so it must not start there. A broker of another home may: it belongs to
//! that chat.

use std::io;

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{Pid, ProcessEntry, ancestors, table};
use ade_protocol::boot::MARK_ENV;

use crate::home::Home;
use crate::journal::{self, Entry};

/// The worker that this process lives below: by its parents, by the cgroup that
/// it cannot leave, or by the mark in its environment.
///
/// # Errors
/// The journals or the process table cannot be read.
pub fn worker_above(home: &Home) -> io::Result<Option<Entry>> {
    let entries = journal::read_all(home)?.entries;
    if entries.is_empty() {
        return Ok(None);
    }
    let (own, table) = (Pid::own(), table()?);
    let mark = std::env::var(MARK_ENV).ok();
    let parent = by_parents(own, &table, &entries);
    let found = parent.or_else(|| {
        entries.iter().find(|entry| {
            mark.as_ref() == Some(&entry.mark)
                || entry.cgroup.as_ref().is_some_and(Cgroup::holds_us)
        })
    });
    Ok(found.cloned())
}

/// The first of the processes above `own` that is one of these workers.
fn by_parents<'a>(own: Pid, table: &[ProcessEntry], entries: &'a [Entry]) -> Option<&'a Entry> {
    let above = ancestors(own.get(), table).pids;
    above.into_iter().find_map(|pid| {
        let row = table.iter().find(|row| row.pid.get() == pid)?;
        let identity = row.identity().ok()?;
        let is = |entry: &&Entry| entry.identity.as_ref() == Some(&identity);
        entries.iter().find(is)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ade_leases::process::ProcessIdentity;

    fn row(pid: i32, ppid: i32, start_ticks: u64) -> ProcessEntry {
        ProcessEntry {
            pid: Pid::new(i64::from(pid)).unwrap(),
            ppid,
            pgid: pid,
            session: pid,
            state: 'S',
            start_ticks,
            name: "x".into(),
        }
    }

    fn entry(pid: i32, start_ticks: u64) -> Entry {
        let identity = ProcessIdentity {
            pid: Pid::new(i64::from(pid)).unwrap(),
            start_ticks,
            ..ProcessIdentity::current().unwrap()
        };
        Entry {
            worker_id: format!("wrk_{pid}").as_str().into(),
            session_id: "ses_1".into(),
            generation: ade_protocol::Generation(1),
            provider: "scripted".into(),
            mark: "m".into(),
            token_hash: String::new(),
            spec: None,
            started_at: String::new(),
            cgroup: None,
            identity: Some(identity),
        }
    }

    #[test]
    fn a_worker_is_found_however_far_above_and_only_the_very_one() {
        let own = Pid::new(40).unwrap();
        let table = [
            row(10, 1, 7),
            row(20, 10, 8),
            row(30, 20, 9),
            row(40, 30, 9),
        ];
        let found = |entries: &[Entry]| by_parents(own, &table, entries).is_some();
        assert!(found(&[entry(30, 9)]));
        assert!(found(&[entry(99, 1), entry(10, 7)]));
        assert!(!found(&[entry(10, 6)]), "another process of the same pid");
        assert!(!found(&[entry(40, 9)]), "itself is not above itself");
        assert!(!found(&[]));
        let circle = [row(30, 40, 9), row(40, 30, 9)];
        assert!(by_parents(own, &circle, &[entry(10, 7)]).is_none());
    }
}
