//! Linux.

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

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

/// The pids of our children as the kernel lists them: another text as soon as
/// one was added or has gone. Orphans from below come to the main thread, and
/// only that starts children. `None` where the kernel has no such list.
pub(crate) fn children_listed() -> Option<String> {
    let own = std::process::id();
    std::fs::read_to_string(format!("/proc/self/task/{own}/children")).ok()
}

/// Whether the kernel says that there is no child at all. A subreaper's whole
/// tree hangs below its children, so `Some(true)` is the proof that the tree is
/// dead. `None`: this system can't prove it that way.
pub(crate) fn is_childless() -> Option<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Some(waitid(Id::All, flags) == Err(Errno::ECHILD))
}
