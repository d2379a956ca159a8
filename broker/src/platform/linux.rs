//! Linux.

use std::io;
use std::path::PathBuf;

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

/// The running executable, also after the file was replaced or removed.
pub(crate) fn own_executable() -> io::Result<PathBuf> {
    Ok(PathBuf::from("/proc/self/exe"))
}

/// Where this process sees its own open descriptors.
pub(crate) const DESCRIPTORS: &str = "/proc/self/fd";

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

/// Makes this process the one that orphans below it come to.
pub(crate) fn become_subreaper() -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)
}

/// Whether the environment that a process was started with holds a variable of
/// this name. `None`: it cannot be read.
pub(crate) fn started_with(pid: i32, name: &str) -> Option<bool> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let start = format!("{name}=");
    let mut variables = environment.split(|byte| *byte == 0);
    Some(variables.any(|variable| variable.starts_with(start.as_bytes())))
}
