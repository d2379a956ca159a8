//! The process table of macOS, by `sysinfo` and `sysctl`. **Untested**: written
//! with care, run by nobody yet.
//!
//! macOS has no pidfd and no pid namespaces, and a start time in whole seconds.
//! Its pids are handed out in turn, so one second is enough to tell two
//! processes with one pid apart; a signal can still race with a reaping.

use super::identity::{Liveness, Pid, ProcessIdentity};
use super::tree::ProcessEntry;
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use sysinfo::{
    Pid as SysPid, Process, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System,
    UpdateKind,
};

/// What one look at a pid shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    NoSuchProcess,
    Zombie { start_ticks: Option<u64> },
    Running { start_ticks: Option<u64> },
    Unreadable,
}

pub(super) const OWN_DESCRIPTORS: &str = "/dev/fd";

pub(super) fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

pub(super) fn become_subreaper() -> io::Result<()> {
    Ok(())
}

pub(super) fn die_with_parent() -> io::Result<()> {
    Ok(())
}

pub(super) fn boot_id() -> io::Result<String> {
    let out = Command::new("/usr/sbin/sysctl")
        .args(["-n", "kern.bootsessionuuid"])
        .output()?;
    let id = String::from_utf8_lossy(&out.stdout)
        .trim()
        .to_ascii_lowercase();
    if id.is_empty() {
        return Err(io::Error::other("kern.bootsessionuuid is empty"));
    }
    Ok(id)
}

pub(super) fn pid_namespace() -> io::Result<u64> {
    Ok(0)
}

pub(super) fn own_start_ticks() -> io::Result<u64> {
    match look(Pid::own()) {
        Look::Running {
            start_ticks: Some(ticks),
        } => Ok(ticks),
        _ => Err(io::Error::other(
            "the process table does not show our own process",
        )),
    }
}

fn with_process<T>(pid: Pid, f: impl FnOnce(&Process) -> T) -> Option<T> {
    let pid = SysPid::from_u32(pid.get().unsigned_abs());
    let mut system = System::new().ok()?;
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&[pid]),
        true,
        ProcessRefreshKind::nothing(),
    );
    system.process(pid).map(f)
}

pub(crate) fn look(pid: Pid) -> Look {
    let seen = with_process(pid, |process| {
        let start_ticks = Some(process.start_time()).filter(|start| *start > 0);
        if matches!(
            process.status(),
            ProcessStatus::Zombie | ProcessStatus::Dead
        ) {
            Look::Zombie { start_ticks }
        } else {
            Look::Running { start_ticks }
        }
    });
    seen.unwrap_or_else(|| match kill(nix::unistd::Pid::from_raw(pid.get()), None) {
        Err(nix::errno::Errno::ESRCH) => Look::NoSuchProcess,
        Ok(()) | Err(_) => Look::Unreadable,
    })
}

/// When the process was born by the wall clock; `None` when that can't be told.
pub(crate) fn born_at(start_ticks: u64) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(start_ticks).ok()?).ok()
}

fn entry(process: &Process) -> Option<ProcessEntry> {
    let pid = Pid::from_usable(i64::from(process.pid().as_u32()))?;
    let raw = nix::unistd::Pid::from_raw(pid.get());
    let zombie = matches!(
        process.status(),
        ProcessStatus::Zombie | ProcessStatus::Dead
    );
    Some(ProcessEntry {
        pid,
        ppid: process
            .parent()
            .map_or(0, |parent| parent.as_u32().cast_signed()),
        pgid: nix::unistd::getpgid(Some(raw)).map_or(0, nix::unistd::Pid::as_raw),
        session: nix::unistd::getsid(Some(raw)).map_or(0, nix::unistd::Pid::as_raw),
        state: if zombie { 'Z' } else { 'R' },
        start_ticks: process.start_time(),
        name: process.name().to_string_lossy().into_owned(),
    })
}

fn all(kind: ProcessRefreshKind) -> io::Result<System> {
    let mut system = System::new().map_err(io::Error::other)?;
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, kind);
    Ok(system)
}

/// This system lists no children of one process.
pub(super) fn children(_of: Pid) -> Option<Vec<ProcessEntry>> {
    None
}

pub(super) fn table() -> io::Result<Vec<ProcessEntry>> {
    let system = all(ProcessRefreshKind::nothing())?;
    Ok(system.processes().values().filter_map(entry).collect())
}

/// Who has which values of a variable.
pub(super) fn marks(name: &str) -> io::Result<Vec<(ProcessIdentity, String)>> {
    let start = format!("{name}=");
    let system = all(ProcessRefreshKind::nothing().with_environ(UpdateKind::Always))?;
    let mut found = Vec::new();
    for process in system.processes().values() {
        let entries = process.environ().iter();
        let values = entries.filter_map(|entry| entry.to_str()?.strip_prefix(&start));
        let mut values = values.peekable();
        let Some(row) = values.peek().and_then(|_| entry(process)) else {
            continue;
        };
        let one = ProcessIdentity::assemble(row.pid, row.start_ticks)?;
        found.extend(values.map(|value| (one.clone(), value.to_owned())));
    }
    Ok(found)
}

/// `None` also for whoever shows no environment at all: it may be of another user.
pub(super) fn carries(one: &ProcessEntry, wanted: &str) -> Option<bool> {
    let pid = SysPid::from_u32(one.pid.get().unsigned_abs());
    let mut system = System::new().ok()?;
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&[pid]),
        true,
        ProcessRefreshKind::nothing().with_environ(UpdateKind::Always),
    );
    let process = system.process(pid)?;
    let environ = process.environ();
    let same = entry(process).is_some_and(|found| found.start_ticks == one.start_ticks);
    (same && !environ.is_empty()).then(|| environ.iter().any(|entry| *entry == *wanted))
}

/// This system does not show the signals that wait for a process.
pub(super) fn is_being_killed(_pid: Pid) -> bool {
    false
}

pub(super) fn pidfd(_identity: &ProcessIdentity) -> io::Result<Option<OwnedFd>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "macOS has no pidfd",
    ))
}

/// Checks the identity and sends at once. `false`: it is gone.
pub(super) fn send_to_process(identity: &ProcessIdentity, signal: Signal) -> io::Result<bool> {
    match identity.liveness() {
        Liveness::Dead(_) => return Ok(false),
        Liveness::Unknown(why) => {
            return Err(io::Error::other(format!(
                "process {} can't be identified from here ({why:?})",
                identity.pid
            )));
        }
        Liveness::Alive => {}
    }
    match kill(nix::unistd::Pid::from_raw(identity.pid.get()), signal) {
        Ok(()) => Ok(true),
        Err(nix::errno::Errno::ESRCH) => Ok(false),
        Err(source) => Err(source.into()),
    }
}
