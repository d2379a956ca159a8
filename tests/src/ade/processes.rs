//! Processes that a test started.

use std::fs;

use ade_leases::process::{self, ProcessIdentity, Signal, Target};

use crate::wait::{wait_true, wait_until};

/// Sends a signal to a process that a test started, by proved identity. A
/// SIGSTOP has taken effect when it returns: the kernel stops one thread after
/// the other, and until the last one stands the process may still answer.
///
/// # Panics
/// When the pid is not usable, or its threads do not stop.
#[track_caller]
pub fn signal(pid: i32, signal: Signal) {
    let pid = process::Pid::new(i64::from(pid)).expect("a usable pid");
    if let Ok(Some(identity)) = ProcessIdentity::of(pid) {
        process::signal(&Target::Process(identity), signal).expect("a signal");
        if signal == Signal::SIGSTOP {
            wait_until("every thread stands", || stands(pid.get()).then_some(()));
        }
    }
}

/// Whether no thread of the process runs.
fn stands(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    threads.flatten().flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        state.is_empty() || state.starts_with(['T', 't', 'Z', 'X'])
    })
}

/// Whether a process is alive and no zombie.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    process::Pid::new(i64::from(pid))
        .and_then(|pid| ProcessIdentity::of(pid).ok().flatten())
        .is_some_and(|identity| identity.liveness() == process::Liveness::Alive)
}

/// Waits until a process is gone or a zombie.
///
/// # Panics
/// When it is still alive after [`PATIENCE`](crate::wait::PATIENCE).
#[track_caller]
pub fn wait_dead(pid: i32) {
    wait_true(&format!("pid {pid} ({}) ends", command_line(pid)), || {
        !is_alive(pid)
    });
}

/// The command line of a process, for messages.
#[must_use]
pub fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!(
        "{pid}: {}",
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    )
}
