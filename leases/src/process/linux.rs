//! Linux: the process table of `/proc`, and what a process asks for itself.

use super::identity::{Liveness, Pid, ProcessIdentity};
use super::tree::ProcessEntry;
use jiff::Timestamp;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use rustix::process::{PidfdFlags, pidfd_open};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;

/// What one look at a pid shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    NoSuchProcess,
    Zombie {
        start_ticks: Option<u64>,
    },
    Running {
        start_ticks: Option<u64>,
    },
    /// Something has this pid, or may have it, and we are not shown what.
    Unreadable,
}

pub(super) const OWN_DESCRIPTORS: &str = "/proc/self/fd";

pub(super) fn own_program() -> io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

pub(super) fn become_subreaper() -> io::Result<()> {
    prctl::set_child_subreaper(true).map_err(io::Error::from)
}

pub(super) fn die_with_parent() -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from)
}

pub(super) fn boot_id() -> io::Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

pub(super) fn pid_namespace() -> io::Result<u64> {
    let link = fs::read_link("/proc/self/ns/pid")?;
    link.to_str()
        .and_then(|text| text.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok())
        .ok_or_else(|| io::Error::other(format!("unexpected namespace link {}", link.display())))
}

pub(super) fn own_start_ticks() -> io::Result<u64> {
    Ok(stat("self")?.start_ticks)
}

/// `/proc` may be that of another pid namespace (`unshare --pid` without
/// `--mount-proc`). Every number in it would then name somebody else.
fn proc_is_ours() -> bool {
    static OURS: OnceLock<(i32, bool)> = OnceLock::new();
    let own = Pid::own().get();
    let check = || {
        let link = fs::read_link("/proc/self").ok();
        link.and_then(|link| link.to_str()?.parse::<i32>().ok()) == Some(own)
    };
    let (pid, ours) = *OURS.get_or_init(|| (own, check()));
    if pid == own { ours } else { check() }
}

#[expect(
    clippy::disallowed_methods,
    reason = "no signal is sent: it only asks whether the pid is in use"
)]
pub(crate) fn look(pid: Pid) -> Look {
    if proc_is_ours() {
        match stat(&pid.to_string()) {
            Ok(entry) if matches!(entry.state, 'Z' | 'X' | 'x') => {
                return Look::Zombie {
                    start_ticks: Some(entry.start_ticks),
                };
            }
            Ok(entry) => {
                return Look::Running {
                    start_ticks: Some(entry.start_ticks),
                };
            }
            Err(_) => {}
        }
    }
    // A mount with `hidepid` answers "no such file" for processes of others,
    // so only the kernel's own "no such process" is a proof.
    match nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.get()), None) {
        Err(nix::errno::Errno::ESRCH) => Look::NoSuchProcess,
        Ok(()) | Err(_) => Look::Unreadable,
    }
}

/// When the process was born by the wall clock; `None` when that can't be told.
pub(crate) fn born_at(start_ticks: u64) -> Option<Timestamp> {
    static BOOTED: OnceLock<Option<(i64, i64)>> = OnceLock::new();
    let (booted, hz) = (*BOOTED.get_or_init(|| {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        let hz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
        Some((line.trim().parse().ok()?, hz)).filter(|(_, hz)| *hz > 0)
    }))?;
    let ms = i64::try_from(start_ticks).ok()?.checked_mul(1000)? / hz;
    Timestamp::from_millisecond(booted.checked_mul(1000)?.checked_add(ms)?).ok()
}

pub(super) fn stat(pid: &str) -> io::Result<ProcessEntry> {
    let mut buffer = [0u8; 1024];
    let mut filled = 0;
    let mut file = fs::File::open(format!("/proc/{pid}/stat"))?;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            n => filled += n,
        }
    }
    parse_stat(&buffer[..filled])
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has an unexpected form")))
}

/// A process may call itself `a) Z 1 (b`, so the fields begin after the last
/// closing parenthesis.
pub(super) fn parse_stat(line: &[u8]) -> Option<ProcessEntry> {
    let open = line.iter().position(|b| *b == b'(')?;
    let close = line.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(line.get(..open)?)
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let mut state = fields.next()?.chars().next()?;
    let ppid = fields.next()?.parse().ok()?;
    let pgid = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(13)?.parse().ok()?;
    let start_ticks = fields.nth(1)?.parse().ok()?;
    // A process whose first thread has ended shows that thread's state.
    if state == 'Z' && threads > 1 {
        state = 'S';
    }
    Some(ProcessEntry {
        pid: Pid::from_usable(pid)?,
        ppid,
        pgid,
        session,
        state,
        start_ticks,
        name,
    })
}

fn pids() -> io::Result<impl Iterator<Item = String>> {
    if !proc_is_ours() {
        return Err(io::Error::other(
            "/proc is not mounted, or shows another pid namespace than the one we live in",
        ));
    }
    Ok(fs::read_dir("/proc")?.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.bytes().all(|b| b.is_ascii_digit()).then_some(name)
    }))
}

pub(super) fn table() -> io::Result<Vec<ProcessEntry>> {
    Ok(pids()?.filter_map(|pid| stat(&pid).ok()).collect())
}

/// The children of a process as the kernel lists them; `None` where it does not.
pub(super) fn children(of: Pid) -> Option<Vec<ProcessEntry>> {
    if !proc_is_ours() || !fs::exists("/proc/thread-self/children").unwrap_or(false) {
        return None;
    }
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter();
    let lists = threads.flatten().flatten().filter_map(|thread| {
        // A thread that has ended has no children any more.
        fs::read_to_string(thread.path().join("children")).ok()
    });
    let mut found = Vec::new();
    for list in lists {
        let rows = list
            .split_ascii_whitespace()
            .filter_map(|pid| stat(pid).ok());
        found.extend(rows.filter(|row| row.ppid == of.get()));
    }
    Some(found)
}

/// Who has which values of a variable.
pub(super) fn marks(name: &str) -> io::Result<Vec<(ProcessIdentity, String)>> {
    let start = format!("{name}=");
    let mut environ = Vec::with_capacity(ENVIRON);
    let mut found = Vec::new();
    for pid in pids()? {
        let Ok(before) = stat(&pid) else { continue };
        if read_environ(before.pid, &mut environ).is_err() {
            continue;
        }
        let values = environ.split(|b| *b == 0).filter_map(|entry| {
            let value = entry.strip_prefix(start.as_bytes())?;
            std::str::from_utf8(value).ok()
        });
        let mut values = values.peekable();
        if values.peek().is_none() || !is_still(&before) {
            continue;
        }
        let one = ProcessIdentity::assemble(before.pid, before.start_ticks)?;
        found.extend(values.map(|value| (one.clone(), value.to_owned())));
    }
    Ok(found)
}

pub(super) fn carries(entry: &ProcessEntry, wanted: &str) -> Option<bool> {
    let mut environ = Vec::with_capacity(ENVIRON);
    read_environ(entry.pid, &mut environ).ok()?;
    let mut entries = environ.split(|b| *b == 0);
    let carries = entries.any(|entry| entry == wanted.as_bytes());
    is_still(entry).then_some(carries)
}

/// Room for most environments, so that they are read at once.
const ENVIRON: usize = 16 * 1024;

fn read_environ(pid: Pid, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    let file = fs::File::open(format!("/proc/{pid}/environ"))?;
    // Its size, which would be asked for without this, is said to be 0.
    file.take(u64::MAX).read_to_end(into)?;
    Ok(())
}

/// The tick was read before the environment and is read again after it: that
/// then belongs to this process, not to a successor.
fn is_still(entry: &ProcessEntry) -> bool {
    stat(&entry.pid.to_string()).is_ok_and(|after| after.start_ticks == entry.start_ticks)
}

pub(super) fn is_being_killed(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| kill_is_pending(&status))
}

/// Whether SIGKILL waits for the process or for its first thread.
fn kill_is_pending(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (nix::libc::SIGKILL - 1);
    ["SigPnd:", "ShdPnd:"].iter().any(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask & SIGKILL != 0)
    })
}

pub(super) fn pidfd(identity: &ProcessIdentity) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = rustix::process::Pid::from_raw(identity.pid.get()) else {
        return Ok(None);
    };
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(source) => return Err(source.into()),
    };
    // From here on the pid can't change its meaning for this descriptor.
    match identity.liveness() {
        Liveness::Alive => Ok(Some(fd)),
        Liveness::Dead(_) => Ok(None),
        Liveness::Unknown(why) => Err(io::Error::other(format!(
            "process {} can't be identified from here ({why:?})",
            identity.pid
        ))),
    }
}

/// Sends through a pidfd, which can't reach a successor. `false`: it is gone.
#[expect(clippy::disallowed_methods, reason = "this is where signals are sent")]
pub(super) fn send_to_process(
    identity: &ProcessIdentity,
    signal: nix::sys::signal::Signal,
) -> io::Result<bool> {
    let Some(fd) = pidfd(identity)? else {
        return Ok(false);
    };
    let signal = rustix::process::Signal::from_named_raw(signal as i32)
        .ok_or_else(|| io::Error::other(format!("{signal} has no name here")))?;
    match rustix::process::pidfd_send_signal(fd.as_fd(), signal) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(source) => Err(source.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::{kill_is_pending, parse_stat};

    #[test]
    fn a_pending_kill_is_seen_in_either_mask() {
        let status = |thread, process| {
            format!("Name:\tx\nSigQ:\t1/2\nSigPnd:\t{thread}\nShdPnd:\t{process}\n")
        };
        let none = "0000000000000000";
        for (thread, process, expected) in [
            (none, none, false),
            ("0000000000000100", none, true),
            (none, "0000000000004100", true),
            ("0000000000004000", "fffffffffffffeff", false),
        ] {
            assert_eq!(kill_is_pending(&status(thread, process)), expected);
        }
        assert!(!kill_is_pending("") && !kill_is_pending("SigPnd:\tx\n"));
    }

    #[test]
    fn the_fields_begin_after_the_last_parenthesis() {
        let line = b"4711 (a) Z 1 (b) S 17 18 19 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9";
        let entry = parse_stat(line).expect("a stat line");
        assert_eq!(entry.name, "a) Z 1 (b");
        assert_eq!(
            (entry.state, entry.ppid, entry.pgid, entry.session),
            ('S', 17, 18, 19)
        );
        assert_eq!(entry.start_ticks, 123_456);
        let text = String::from_utf8_lossy(line);
        let threads = |n: &str| {
            let line = text
                .replace(") S 17", ") Z 17")
                .replace("20 0 1 0", &format!("20 0 {n} 0"));
            parse_stat(line.as_bytes()).expect("a stat line").state
        };
        assert_eq!((threads("1"), threads("3")), ('Z', 'S'));
        assert_eq!(parse_stat(b"12 (x) S 1"), None);
        assert_eq!(parse_stat(b""), None);
    }
}
