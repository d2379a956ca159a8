//! Everything below this process: reaping what comes back to it, killing what
//! is left.
//!
//! Invariants:
//! - the host is never reaped here: its exit status belongs to whoever started
//!   it. Strangers are reaped by their pid and only after they were seen dead;
//! - signals go through [`ade_leases::process::signal`], to identities, never
//!   to bare pids.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{self, Liveness, Pid, ProcessEntry, ProcessIdentity, Signal, Target};
use nix::sys::wait::{WaitPidFlag, waitpid};

use crate::platform;

/// Reaps dead children other than `host`. Returns how many.
///
/// The kernel shows one dead child at a time; when it shows the host, the rest
/// waits until the host has been reaped by its owner, who then calls this again.
pub(crate) fn reap_strangers(host: Option<i32>) -> usize {
    let mut reaped = 0;
    while let Some(pid) = platform::dead_child() {
        if Some(pid.as_raw()) == host || waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
            break;
        }
        reaped += 1;
    }
    reaped
}

/// One round of killing everything below this process: its descendants, who
/// carries the mark, who is in the cgroup. Returns who was still alive when the
/// round began. `host` is whom somebody else reaps, `before` is whom the last
/// round found.
///
/// # Errors
/// The process table can't be read, so nobody can say what is left.
pub(crate) fn kill_below(
    host: Option<i32>,
    mark: Option<(&str, &str)>,
    cgroup: Option<&Cgroup>,
    before: &[ProcessIdentity],
) -> io::Result<Vec<ProcessIdentity>> {
    reap_strangers(host);
    // What can't be looked at has nobody: the net is only one more.
    let netted = cgroup.filter(|cgroup| cgroup.is_populated().unwrap_or(false));
    if platform::is_childless() == Some(true) && netted.is_none() {
        // Who was found by its mark is not our child, and dies when it gets to
        // run: no kernel tells us that it has.
        let mut left = before.to_vec();
        left.retain(|one| !matches!(one.liveness(), Liveness::Dead(_)));
        return Ok(left);
    }
    let table = process::table()?;
    let mut alive = Vec::new();
    for entry in process::descendants(Pid::own(), &table)
        .iter()
        .filter(|entry| !entry.is_zombie())
    {
        alive.push(ProcessEntry::identity(entry)?);
    }
    if let Some((name, value)) = mark {
        let known: HashSet<i32> = alive.iter().map(|identity| identity.pid.get()).collect();
        let strays = process::marked(name, value)?;
        let ours = [Pid::own().get()];
        alive.extend(strays.into_iter().filter(|stray| {
            let pid = stray.pid.get();
            !ours.contains(&pid) && !known.contains(&pid)
        }));
    }
    if let Some(cgroup) = netted {
        let known: HashSet<i32> = alive.iter().map(|identity| identity.pid.get()).collect();
        let members = cgroup.members().unwrap_or_default().into_iter();
        alive.extend(members.filter(|member| !known.contains(&member.pid.get())));
        // All at once: a tree that forks faster than it is walked loses too.
        let _ = cgroup.kill();
    }
    for identity in &alive {
        // Gone in the meantime is what we want, and what can't be signalled is
        // reported by the caller as a survivor.
        let _ = process::signal(&Target::Process(identity.clone()), Signal::SIGKILL);
    }
    Ok(alive)
}

/// Kills everything below this process and waits for it, `bound` at most. For
/// the way out of a panic, where no runtime is left.
pub(crate) fn kill_below_now(mark: Option<(&str, &str)>, cgroup: Option<&Cgroup>, bound: Duration) {
    let until = Instant::now() + bound;
    let mut before = Vec::new();
    while let Ok(alive) = kill_below(None, mark, cgroup, &before)
        && !alive.is_empty()
        && Instant::now() < until
    {
        before = alive;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Held by tests that start processes, since one kills all that are below.
#[cfg(test)]
pub(crate) static STARTS: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn who_is_no_child_is_waited_for_until_it_is_dead() {
        let _alone = STARTS.lock();
        let above = Pid::new(i64::from(nix::unistd::getppid().as_raw())).expect("a pid");
        let above = ProcessIdentity::of(above).expect("a look").expect("alive");
        let mut gone = above.clone();
        gone.start_ticks += 1;
        let left = kill_below(None, None, None, &[above.clone(), gone]);
        assert_eq!(left.expect("a look"), [above]);
    }

    #[test]
    fn nothing_below_survives() {
        let _alone = STARTS.lock();
        let script = "sleep 300 & sleep 300 & wait";
        let shell = Command::new("/bin/sh").args(["-c", script]).spawn();
        let shell = i32::try_from(shell.expect("a shell").id()).expect("a pid");
        let below = || {
            let table = process::table().expect("a table");
            let root = Pid::new(i64::from(shell)).expect("a pid");
            process::descendants(root, &table)
        };
        let until = Instant::now() + Duration::from_secs(10);
        while below().len() < 2 && Instant::now() < until {
            std::thread::yield_now();
        }
        let sleepers = below();
        assert_eq!(sleepers.len(), 2);
        kill_below_now(None, None, Duration::from_secs(10));
        let gone = |pid: Pid| {
            let identity = ProcessIdentity::of(pid).expect("a look");
            identity.is_none_or(|identity| identity.liveness() != process::Liveness::Alive)
        };
        assert!(gone(Pid::new(i64::from(shell)).expect("a pid")));
        let until = Instant::now() + Duration::from_secs(10);
        while !sleepers.iter().all(|sleeper| gone(sleeper.pid)) {
            assert!(Instant::now() < until, "a sleeper survived");
            std::thread::yield_now();
        }
    }
}
