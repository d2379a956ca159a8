//! Linux.

use std::io;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// Folder that lists the open descriptors of the calling process.
pub(crate) const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// The program that runs right now, whatever stands at its path by now.
pub(crate) fn own_program() -> io::Result<std::path::PathBuf> {
    Ok("/proc/self/exe".into())
}

/// Orphans of everything that this process starts become its children.
pub(crate) fn become_subreaper() -> io::Result<()> {
    prctl::set_child_subreaper(true).map_err(io::Error::from)
}

/// The kernel kills the calling process when the *thread* that started it ends.
pub(crate) fn die_with_parent() -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from)
}

/// A child that has ended and was not reaped; `None` when there is none now.
/// It stays unreaped.
pub(crate) fn dead_child() -> Option<Pid> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        match waitid(Id::All, flags) {
            Err(Errno::EINTR) => {}
            Ok(status @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..))) => {
                return status.pid();
            }
            Ok(_) | Err(_) => return None,
        }
    }
}

/// Whether the kernel says that there is no child at all. A subreaper's whole
/// tree hangs below its children, so `Some(true)` is the proof that the tree is
/// dead. `None`: this system can't prove it that way.
pub(crate) fn is_childless() -> Option<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Some(waitid(Id::All, flags) == Err(Errno::ECHILD))
}
