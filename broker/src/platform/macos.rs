//! macOS. **Untested**: written with care, run by nobody yet.

use interprocess::local_socket::ListenerOptions;
use nix::time::ClockId;

/// Longest path of a local socket in bytes: `sun_path` without its NUL.
pub(crate) const SOCKET_PATH_LIMIT: usize = 103;

/// A socket cannot have a mode before it has a name here. It is bound inside a
/// 0700 directory and gets its mode before it gets its final name.
pub(crate) fn socket_mode(options: ListenerOptions<'_>, _mode: u32) -> ListenerOptions<'_> {
    options
}

/// The clock that neither jumps nor goes on while the machine is suspended.
/// `CLOCK_MONOTONIC` goes on here.
pub(crate) const STEADY_CLOCK: ClockId = ClockId::from_raw(nix::libc::CLOCK_UPTIME_RAW);

/// This system does not tell who holds a lock.
pub(crate) fn flock_holder(_inode: u64) -> Option<i32> {
    None
}

/// Whether the environment that a process was started with holds a variable of
/// this name. Not looked at here: the process tree alone decides.
pub(crate) fn started_with(_pid: i32, _name: &str) -> Option<bool> {
    Some(false)
}
