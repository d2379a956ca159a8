//! One look at one lease file: reads it, tries its lock, looks at its pid, and
//! turns that into the facts that the verdict judges. Writes nothing.

use super::place::{FileKind, Inode, Place};
use crate::process::{Look, Pid, born_at, here, look};
use crate::record::{Record, VERSION};
use crate::verdict::{Compared, Facts, FileFact, KernelLock, ProcessFact, Verdict, verdict};
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A longer file is no record.
const RECORD_MAX: u64 = 64 * 1024;

/// A file that does not parse may be in the making for so long.
const YOUNG: Duration = Duration::from_secs(2);

/// How much later than the record a process must be born to be another one.
const BIRTH_SLACK: SignedDuration = SignedDuration::from_secs(5);

/// What is under a name.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "lives on one stack frame, for one look"
)]
pub(crate) enum Seen {
    Nothing,
    NotAFile(FileKind),
    File(SeenFile),
}

/// A file and what it means. `record` is `None` when it is damaged or may not
/// be read.
#[derive(Debug)]
pub(crate) struct SeenFile {
    /// Open for as long as this lives, so that its inode can't be given to
    /// another file.
    _file: Option<File>,
    pub(crate) inode: Inode,
    pub(crate) record: Option<Record>,
    pub(crate) verdict: Verdict,
}

/// Looks at a name, never through a symlink.
pub(crate) fn see(place: &Place, name: &OsStr) -> io::Result<Seen> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&place.dir, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(Seen::Nothing),
        Err(rustix::io::Errno::LOOP) => return Ok(Seen::NotAFile(FileKind::Symlink)),
        Err(rustix::io::Errno::NXIO) => return Ok(Seen::NotAFile(FileKind::Special)),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => return unreadable(place, name),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    if let Some(kind) = FileKind::of(&stat) {
        return Ok(Seen::NotAFile(kind));
    }
    let kernel_lock = probe(&file);
    let bytes = read_whole(&file, stat.st_size.unsigned_abs())?;
    let record = if bytes.len() as u64 > RECORD_MAX {
        None
    } else {
        Record::parse(&bytes)
    };
    let young = is_young(stat.st_mtime as _, stat.st_mtime_nsec as _);
    let facts = facts(record.as_ref(), kernel_lock, young);
    let verdict = verdict(&facts);
    Ok(Seen::File(SeenFile {
        _file: Some(file),
        inode: Inode::of(&stat),
        record,
        verdict,
    }))
}

/// Most often one call: the size is known, and a record has no reason to grow.
fn read_whole(mut file: &File, size: u64) -> io::Result<Vec<u8>> {
    let wanted = usize::try_from(size.min(RECORD_MAX)).unwrap_or_default();
    let mut bytes = vec![0; wanted];
    let got = file.read(&mut bytes)?;
    bytes.truncate(got);
    if got < wanted || size > RECORD_MAX {
        file.take(RECORD_MAX + 1 - got as u64)
            .read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

fn unreadable(place: &Place, name: &OsStr) -> io::Result<Seen> {
    let stat = match rustix::fs::statat(&place.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT) => return Ok(Seen::Nothing),
        Err(errno) => return Err(errno.into()),
    };
    if let Some(kind) = FileKind::of(&stat) {
        return Ok(Seen::NotAFile(kind));
    }
    let facts = Facts {
        file: FileFact::NoPermission,
        kernel_lock: KernelLock::NotOffered,
        host: Compared::NotTold,
        boot: Compared::NotTold,
        namespace: Compared::NotTold,
        process: ProcessFact::Hidden,
    };
    let verdict = verdict(&facts);
    Ok(Seen::File(SeenFile {
        _file: None,
        inode: Inode::of(&stat),
        record: None,
        verdict,
    }))
}

/// Tries the holder's lock with a shared one: lookers don't hinder each other,
/// and one that is stopped right here hinders nobody but a holder that has none.
fn probe(file: &File) -> KernelLock {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
            KernelLock::Free
        }
        Err(rustix::io::Errno::WOULDBLOCK) => KernelLock::Taken,
        Err(_) => KernelLock::NotOffered,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the age of a file is a matter of the wall clock"
)]
fn is_young(secs: i64, nanos: u32) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let written = Duration::new(secs.max(0).unsigned_abs(), nanos);
    // A time in the future is a clock that was wrong, not a file in the making.
    now.abs_diff(written) <= YOUNG
}

fn compared<T: PartialEq>(told: Option<&T>, known: Option<&T>) -> Compared {
    match (told, known) {
        (None, _) => Compared::NotTold,
        (Some(_), None) => Compared::NotKnown,
        (Some(told), Some(known)) if told == known => Compared::Same,
        (Some(_), Some(_)) => Compared::Other,
    }
}

fn facts(record: Option<&Record>, kernel_lock: KernelLock, young: bool) -> Facts {
    let here = here();
    let Some(record) = record else {
        return Facts {
            file: FileFact::Damaged { young },
            kernel_lock,
            host: Compared::NotTold,
            boot: Compared::NotTold,
            namespace: Compared::NotTold,
            process: ProcessFact::Hidden,
        };
    };
    let usable_pid = record.pid.is_some();
    Facts {
        file: if record.version > VERSION {
            FileFact::Newer { usable_pid }
        } else {
            FileFact::Record { usable_pid }
        },
        kernel_lock,
        host: compared(record.host.as_ref(), here.host.as_ref()),
        boot: compared(record.boot_id.as_ref(), here.boot_id.as_ref()),
        namespace: compared(record.pid_namespace.as_ref(), here.pid_namespace.as_ref()),
        process: match record.pid {
            // The lock says enough; a refusal should cost no look at /proc.
            Some(_) if kernel_lock == KernelLock::Taken => ProcessFact::Hidden,
            Some(pid) => process_fact(pid, record),
            None => ProcessFact::NoSuchProcess,
        },
    }
}

fn process_fact(pid: Pid, record: &Record) -> ProcessFact {
    match look(pid) {
        Look::NoSuchProcess => ProcessFact::NoSuchProcess,
        Look::Zombie { .. } => ProcessFact::Zombie,
        Look::Unreadable => ProcessFact::Hidden,
        Look::Running { start_ticks } => ProcessFact::Runs {
            start: compared(record.start_ticks.as_ref(), start_ticks.as_ref()),
            born_after: record.start_ticks.is_none() && born_after(start_ticks, record),
        },
    }
}

/// The writer existed at `processStartedAt`, and no later than `acquiredAt`. The
/// first says more; where it is there the second can only contradict it, and
/// a contradiction is no proof of death.
fn born_after(start_ticks: Option<u64>, record: &Record) -> bool {
    let Some(born) = start_ticks.and_then(born_at) else {
        return false;
    };
    let parse = |stamp: &str| stamp.parse::<Timestamp>().ok();
    let existed = record
        .process_started_at
        .as_deref()
        .and_then(parse)
        .or_else(|| parse(&record.acquired_at));
    existed.is_some_and(|existed| born.duration_since(existed) > BIRTH_SLACK)
}
