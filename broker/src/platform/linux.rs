//! Linux.

use interprocess::local_socket::ListenerOptions;
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use nix::time::ClockId;

/// Longest path of a local socket in bytes: `sun_path` without its NUL.
pub(crate) const SOCKET_PATH_LIMIT: usize = 107;

/// Gives the socket file its mode before it has a name: there is no moment at
/// which it could be opened by others.
pub(crate) fn socket_mode(options: ListenerOptions<'_>, mode: u32) -> ListenerOptions<'_> {
    options.mode(mode)
}

/// The clock that neither jumps nor goes on while the machine is suspended.
pub(crate) const STEADY_CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// Who holds the lock (`flock`) on the file with this inode, by the kernel's
/// list: for a sentence to people, since it says nothing of the file system.
pub(crate) fn flock_holder(inode: u64) -> Option<i32> {
    let list = std::fs::read_to_string("/proc/locks").ok()?;
    list.lines().find_map(|line| {
        // `7: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF`
        let mut words = line.split_ascii_whitespace().skip(1);
        let [kind, _, access, pid, file] = std::array::from_fn(|_| words.next().unwrap_or(""));
        let is = file.rsplit(':').next()?.parse() == Ok(inode);
        (kind == "FLOCK" && access == "WRITE" && is)
            .then(|| pid.parse().ok())
            .flatten()
    })
}

/// Whether the environment that a process was started with holds a variable of
/// this name. `None`: it cannot be read.
pub(crate) fn started_with(pid: i32, name: &str) -> Option<bool> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let start = format!("{name}=");
    let mut variables = environment.split(|byte| *byte == 0);
    Some(variables.any(|variable| variable.starts_with(start.as_bytes())))
}
