//! Collecting the dead.
//!
//! The broker is the subreaper of everything below it: what a killed worker
//! leaves comes to us, and so does every orphan of a container whose first
//! process we are. Somebody must wait for those strangers, or they pile up as
//! zombies; and waiting for "any child" must not swallow the status of a child
//! that somebody asks for.
//!
//! So there is one register of children for the process, as there is one set of
//! children, and one thread that waits. A child is started and registered under
//! the register's lock, and reaped under it too: whoever is reaped and is not
//! in the register is a stranger, with no race left. The thread sleeps in
//! `waitid` without taking anything (`WNOWAIT`); that needs no signal handler,
//! no signal mask in every thread, and no tokio thread that lives long enough.
//!
//! What follows from it: **nothing in the broker starts a process past this
//! module** (`tokio::process` would lose its statuses to us).
//!
//! The register also tells which children came as orphans (`adopted`).
//!
//! What this module does not do: signal anybody.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ade_leases::process::{self, Pid, ProcessEntry};
use nix::sys::signal::Signal;
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, WaitStatus, wait, waitid, waitpid};
use tokio::sync::watch;

/// With no child left, the first process of a container looks for orphans that
/// came from elsewhere so often. Any other process sleeps until it has a child.
const FIRST_PROCESS_LOOKS: Duration = Duration::from_secs(1);
/// Pause between two looks at a child while no thread reaps.
const POLL: Duration = Duration::from_millis(2);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, when it ended by itself.
    pub code: Option<i32>,
    /// The signal, when one ended it.
    pub signal: Option<i32>,
}

impl Exit {
    /// Whether it ended by itself with code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self.code == Some(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(number)) => match Signal::try_from(number) {
                Ok(signal) => write!(f, "signal {number} ({signal})"),
                Err(_) => write!(f, "signal {number}"),
            },
            (None, None) => f.write_str("an unknown end"),
        }
    }
}

impl From<WaitStatus> for Exit {
    fn from(status: WaitStatus) -> Self {
        Self {
            code: status.exit_status(),
            signal: status.terminating_signal(),
        }
    }
}

type Ended = watch::Sender<Option<Exit>>;

#[derive(Default)]
struct Register {
    known: HashMap<i32, Ended>,
    /// How many were ever added.
    spawned: u64,
    /// The thread runs.
    reaping: bool,
    /// Orphans come to us that were never below a worker.
    of_anybody: bool,
}

static REGISTER: LazyLock<Mutex<Register>> = LazyLock::new(Mutex::default);
/// Told when a child was added and when one was reaped.
static CHANGED: Condvar = Condvar::new();
static STRANGERS: AtomicU64 = AtomicU64::new(0);

fn register() -> MutexGuard<'static, Register> {
    // Nothing under the lock can panic half-way through a change.
    REGISTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the subreaper of everything below it and starts the
/// thread that waits. Further calls do nothing.
///
/// # Errors
/// The kernel refuses, or the thread cannot be started.
pub fn start() -> io::Result<()> {
    let mut register = register();
    if register.reaping {
        return Ok(());
    }
    // What came before us, with whatever it will leave.
    let inherited = process::children(Pid::own(), &process::table()?);
    let inherited = register.strangers_among(&inherited);
    register.of_anybody = is_first_process() || !inherited.is_empty();
    process::become_subreaper()?;
    std::thread::Builder::new()
        .name("reaper".into())
        .spawn(reap_for_ever)?;
    register.reaping = true;
    Ok(())
}

/// Orphans that came to us and were reaped so far.
#[must_use]
pub fn strangers() -> u64 {
    STRANGERS.load(Ordering::Relaxed)
}

/// Children of ours that were not started by us, by pid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Adoption {
    /// We are nobody's subreaper (yet).
    None,
    /// They were below a worker that died.
    OfWorkers(HashSet<i32>),
    /// They may be anybody's: we are the first process of a pid namespace, or
    /// had children before [`start`].
    OfAnybody(HashSet<i32>),
}

/// Which of our children came to us as orphans. The rows were read before the
/// call: a child that was just being started then is registered by now.
pub(crate) fn adopted(children: &[ProcessEntry]) -> Adoption {
    let register = register();
    let strangers = register.strangers_among(children);
    match (register.reaping, register.of_anybody) {
        (false, _) => Adoption::None,
        (true, false) => Adoption::OfWorkers(strangers),
        (true, true) => Adoption::OfAnybody(strangers),
    }
}

fn is_first_process() -> bool {
    nix::unistd::getpid().as_raw() == 1
}

/// Starts a process and registers it, so that its status reaches the receiver.
/// Dropping the [`Child`] is fine; waiting for it is not.
pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, watch::Receiver<Option<Exit>>)> {
    let mut register = register();
    // A program that cannot be executed is reaped in here, also under the lock.
    let child = command.spawn()?;
    let (ended, exit) = watch::channel(None);
    register.known.insert(child.id().cast_signed(), ended);
    register.spawned += 1;
    CHANGED.notify_all();
    Ok((child, exit))
}

/// Waits until a child that [`spawn`] started has ended, whether the thread
/// runs or not. `None`: it has not by the deadline.
pub(crate) fn wait_for(
    pid: i32,
    exit: &watch::Receiver<Option<Exit>>,
    deadline: Instant,
) -> Option<Exit> {
    let mut register = register();
    loop {
        if !register.reaping {
            let pid = rustix::process::Pid::from_raw(pid);
            if let Ok(Some((pid, status))) = waitpid(pid, WaitOptions::NOHANG) {
                register.ended(pid.as_raw_nonzero().get(), status);
            }
        }
        if let Some(exit) = *exit.borrow() {
            return Some(exit);
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        let pause = if register.reaping {
            left
        } else {
            left.min(POLL)
        };
        let waited = CHANGED.wait_timeout(register, pause);
        register = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl Register {
    fn strangers_among(&self, children: &[ProcessEntry]) -> HashSet<i32> {
        let living = children.iter().filter(|row| !row.is_zombie());
        let pids = living.map(|row| row.pid.get());
        pids.filter(|pid| !self.known.contains_key(pid)).collect()
    }

    fn ended(&mut self, pid: i32, status: WaitStatus) {
        match self.known.remove(&pid) {
            // Nobody may listen any more.
            Some(ended) => drop(ended.send_replace(Some(status.into()))),
            None => drop(STRANGERS.fetch_add(1, Ordering::Relaxed)),
        }
        CHANGED.notify_all();
    }
}

fn reap_for_ever() {
    let first_process = is_first_process();
    let mut spawned = register().spawned;
    loop {
        // Sleeps until a child has ended and takes nothing: which child it was,
        // and whose, is looked at under the lock only.
        let ended = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let childless = matches!(ended, Err(rustix::io::Errno::CHILD));
        let mut register = register();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            register.ended(pid.as_raw_nonzero().get(), status);
        }
        if !childless || register.spawned != spawned {
            spawned = register.spawned;
            continue;
        }
        // Without a child there can be no orphan from below either.
        drop(if first_process {
            let waited = CHANGED.wait_timeout(register, FIRST_PROCESS_LOOKS);
            waited.unwrap_or_else(PoisonError::into_inner).0
        } else {
            CHANGED
                .wait(register)
                .unwrap_or_else(PoisonError::into_inner)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_says_how_it_was() {
        let exit = |code, signal| Exit { code, signal }.to_string();
        assert_eq!(exit(Some(7), None), "exit code 7");
        assert_eq!(exit(None, Some(9)), "signal 9 (SIGKILL)");
        assert_eq!(exit(None, Some(40)), "signal 40");
    }
}
