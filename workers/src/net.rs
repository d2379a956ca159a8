//! The way of a host into its cgroup.
//!
//! The kernel moves a process at the price of a grace period, milliseconds in
//! which a host is long ready. So the host is moved from a thread beside its
//! start, and nothing waits for it: not `init`, not the first message.
//!
//! What a host started before it was moved is moved after it. Nothing can have
//! got away by then: whoever loses its parent comes back to this worker, which
//! is the subreaper of all. Only when worker, host and broker are killed in
//! these first milliseconds is this net not there yet; then the mark and
//! the list ([`crate::hidden`]) have to do.
//!
//! Invariants:
//! - a pid that is written is its process's for sure: the host is our child and
//!   is not reaped before [`Joining`] is over; of any other its parent and its
//!   start are looked at right before, and pids are given out in a circle;
//! - nothing fails because of it.

use std::io;
use std::thread;

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{self, Liveness, Pid};
use nix::errno::Errno;
use tokio::sync::oneshot;

/// How often it is looked for processes that are outside. Two rounds that find
/// nobody are enough: one may miss who comes to another parent while it looks.
const ROUNDS: usize = 6;

/// Bytes of the thread's stack.
const STACK: usize = 128 * 1024;

/// A host on its way.
#[derive(Debug)]
pub(crate) struct Joining(oneshot::Receiver<io::Result<()>>);

impl Joining {
    /// Begins to move the host, our child.
    pub(crate) fn begin(cgroup: &Cgroup, host: Pid) -> Self {
        let (told, done) = oneshot::channel();
        let cgroup = cgroup.clone();
        let thread = thread::Builder::new()
            .name("ade-cgroup".to_owned())
            .stack_size(STACK);
        // A worker that is over by then needs no answer.
        let spawned = thread.spawn(move || drop(told.send(move_in(&cgroup, host, Pid::own()))));
        match spawned {
            Ok(_) => Self(done),
            Err(error) => {
                let (told, failed) = oneshot::channel();
                let _ = told.send(Err(error));
                Self(failed)
            }
        }
    }

    /// Waits until it is over. Dropping the future loses nothing. That the host
    /// has ended is no error.
    pub(crate) async fn over(&mut self) -> io::Result<()> {
        match (&mut self.0).await {
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(()),
            Ok(moved) => moved,
            Err(_) => Err(io::Error::other("the thread that moves it panicked")),
        }
    }
}

/// Moves the host, then whatever is below `root` and not in the cgroup.
fn move_in(cgroup: &Cgroup, host: Pid, root: Pid) -> io::Result<()> {
    cgroup.put(host)?;
    let mut empty = 0;
    for _ in 0..ROUNDS {
        let inside = cgroup.pids()?;
        let mut outside = process::offspring(root)?;
        outside.retain(|entry| !entry.is_zombie() && !inside.contains(&entry.pid));
        empty = if outside.is_empty() { empty + 1 } else { 0 };
        if empty == 2 {
            break;
        }
        for entry in outside {
            if entry.identity()?.liveness() == Liveness::Alive {
                // Gone in the meantime; or the next round shows it again.
                let _ = cgroup.put(entry.pid);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ade_leases::process::cgroup::Folder;
    use std::io::Write;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[track_caller]
    fn until(label: &str, mut is: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is() {
            assert!(Instant::now() < deadline, "waited in vain: {label}");
            thread::yield_now();
        }
    }

    #[test]
    fn what_a_host_started_before_it_was_moved_is_moved_after_it() {
        let _alone = crate::tree::STARTS.lock();
        let folder = match Folder::prepare(&format!("ade-t{}", std::process::id())) {
            Ok(folder) => folder,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "SKIPPED: {error}");
                return;
            }
        };
        let cgroup = folder.make("wrk_1").expect("a cgroup");
        let script = "(sleep 300 & exec setsid sleep 300) & exec sleep 300";
        let mut shell = Command::new("/bin/sh")
            .args(["-c", script])
            .spawn()
            .expect("a shell");
        let host = Pid::new(i64::from(shell.id())).expect("a pid");
        let sleeps = |entry: &process::ProcessEntry| entry.name == "sleep";
        until("three sleep", || {
            let below = process::offspring(host).expect("a look");
            below.iter().filter(|entry| sleeps(entry)).count() == 2
        });
        let mut joining = Joining(oneshot::channel().1);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let lost = runtime.block_on(joining.over());
        assert!(lost.is_err(), "nobody told");
        move_in(&cgroup, host, host).expect("moved");
        let mut inside = cgroup.pids().expect("a look");
        inside.sort();
        let mut all: Vec<Pid> = process::offspring(host)
            .expect("a look")
            .iter()
            .map(|entry| entry.pid)
            .chain([host])
            .collect();
        all.sort();
        assert_eq!((inside.len(), &inside), (3, &all));
        cgroup.kill().expect("killed");
        shell.wait().expect("its status");
        until("it is empty", || cgroup.remove().is_ok());
        // One that has ended is no failure, and a cgroup that is gone is one.
        let again = folder.make("wrk_2").expect("a cgroup");
        let moved = |cgroup: &Cgroup, pid| runtime.block_on(Joining::begin(cgroup, pid).over());
        let nobody = Pid::new(i64::from(i32::MAX)).expect("a pid");
        assert!(moved(&again, nobody).is_ok());
        again.remove().expect("removed");
        assert!(moved(&again, Pid::own()).is_err());
        folder.remove();
    }
}
