//! Publishing a record: the lease appears with its whole content and with its
//! kernel lock held, in one step, or not at all.

use super::error::AcquireError;
use super::place::{Inode, Place};
use super::platform;
use super::seam::{Seam, Step};
use crate::record::Record;
use rustix::fs::{AtFlags, FlockOperation, Mode, RenameFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

/// With the pauses between them at least 5 ms.
const LOCK_TRIES: usize = 50;

/// A written and locked file of ours, under a side name or as the lease.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) name: OsString,
    pub(crate) file: File,
    pub(crate) inode: Inode,
    /// It is the copy that a foreign program has put back.
    pub(crate) copied: bool,
}

pub(crate) enum Published {
    Ours(Staged),
    /// A lease is there already.
    Taken,
}

/// The errnos by which filesystems say that they have no such operation.
pub(crate) fn not_offered(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::PERM | Errno::NOTSUP | Errno::NOSYS | Errno::XDEV | Errno::MLINK | Errno::INVAL
        )
    )
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

/// Writes the record under a staging name and takes its kernel lock. On
/// failure nothing is left behind; after a crash the next one who publishes
/// knows the name for ours and sweeps it.
pub(crate) fn stage(place: &Place, record: &Record, seam: &Seam) -> Result<Staged, AcquireError> {
    let name = place.own_staging(&record.token);
    fill(place, Step::StageCreate, &name, record, seam)
        .map_err(|(step, source)| AcquireError::io(Some(step), &place.path_of(&name), source))
}

fn write_and_lock(
    file: &mut File,
    record: &Record,
    seam: &Seam,
) -> Result<Inode, (Step, io::Error)> {
    let line = record.to_line();
    let write = || {
        room_for(line.len())?;
        file.write_all(&line)
    };
    seam.run(Step::StageWrite, write)
        .map_err(|source| (Step::StageWrite, source))?;
    let take = || {
        platform::head_queue(file);
        lock(file);
        let stat = rustix::fs::fstat(&*file)?;
        if Mode::from_raw_mode(stat.st_mode) != Mode::RUSR | Mode::WUSR {
            // A strange umask. Filesystems without modes (FAT) refuse this and
            // protect the whole mount instead.
            let _ = rustix::fs::fchmod(&*file, Mode::RUSR | Mode::WUSR);
        }
        Ok(Inode::of(&stat))
    };
    seam.run(Step::StageLock, take)
        .map_err(|source| (Step::StageLock, source))
}

fn fill(
    place: &Place,
    create: Step,
    name: &OsStr,
    record: &Record,
    seam: &Seam,
) -> Result<Staged, (Step, io::Error)> {
    let mut file = match seam.run(create, || place.create(name)) {
        Ok(file) => file,
        Err(source) => {
            if !is(&source, Errno::EXIST) {
                let _ = place.unlink(name);
            }
            return Err((create, source));
        }
    };
    match write_and_lock(&mut file, record, seam) {
        Ok(inode) => Ok(Staged {
            name: name.to_owned(),
            file,
            inode,
            copied: false,
        }),
        Err(error) => {
            let _ = place.unlink(name);
            Err(error)
        }
    }
}

/// Asks before writing: a write over the file size limit is answered by a
/// signal that ends the process.
fn room_for(bytes: usize) -> io::Result<()> {
    use nix::sys::resource::{Resource, getrlimit};
    let (soft, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if u64::try_from(bytes).unwrap_or(u64::MAX) > soft {
        Err(Errno::FBIG.into())
    } else {
        Ok(())
    }
}

/// Takes the holder's lock. Where the filesystem has none the lease goes
/// without: the pid and its start tick then carry it alone. `false`: another
/// one has it.
pub(crate) fn lock(file: &File) -> bool {
    // A looker's shared lock is gone again at once; one that is stopped in
    // the middle of it must not stop us.
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_micros(100)),
            Ok(()) | Err(_) => return true,
        }
    }
    false
}

/// Makes the lease out of nothing. Needs the guard.
///
/// A rename that doesn't replace is as atomic as a hard link and costs one call
/// less; filesystems have the one, or the other, or neither.
pub(crate) fn publish(
    place: &Place,
    record: &Record,
    seam: &Seam,
) -> Result<Published, AcquireError> {
    let mut staged = stage(place, record, seam)?;
    let rename = || {
        let flags = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&place.dir, &staged.name, &place.dir, &place.lease, flags)?;
        Ok(())
    };
    match seam.run(Step::RenameNoReplace, rename) {
        Err(source) if !is_there(place, staged.inode) => {
            if not_offered(&source) {
                return link(place, staged, record, seam);
            }
            refused(place, &staged, Step::RenameNoReplace, source)
        }
        Ok(()) | Err(_) => {
            staged.name.clone_from(&place.lease);
            Ok(Published::Ours(staged))
        }
    }
}

/// Network filesystems may have done it and lost the answer.
fn is_there(place: &Place, inode: Inode) -> bool {
    place.inode(&place.lease).ok().flatten() == Some(inode)
}

/// Only "it exists" means that somebody else was faster.
fn refused(
    place: &Place,
    staged: &Staged,
    step: Step,
    source: io::Error,
) -> Result<Published, AcquireError> {
    let _ = place.unlink(&staged.name);
    if is(&source, Errno::EXIST) {
        return Ok(Published::Taken);
    }
    Err(AcquireError::io(Some(step), &place.lease_path(), source))
}

fn link(
    place: &Place,
    mut staged: Staged,
    record: &Record,
    seam: &Seam,
) -> Result<Published, AcquireError> {
    let link = || {
        let flags = AtFlags::empty();
        rustix::fs::linkat(&place.dir, &staged.name, &place.dir, &place.lease, flags)?;
        Ok(())
    };
    match seam.run(Step::Link, link) {
        Err(source) if !is_there(place, staged.inode) => {
            if not_offered(&source) {
                let _ = place.unlink(&staged.name);
                return create_exclusive(place, record, seam);
            }
            refused(place, &staged, Step::Link, source)
        }
        Ok(()) | Err(_) => {
            if seam
                .run(Step::StageUnlink, || place.unlink(&staged.name))
                .is_err()
            {
                // The lease is ours all the same; who publishes next sweeps.
                let _ = place.unlink(&staged.name);
            }
            staged.name.clone_from(&place.lease);
            Ok(Published::Ours(staged))
        }
    }
}

/// The last resort: readers may see the file before its content. They take a
/// file that does not parse for one in the making, for 2 s.
fn create_exclusive(
    place: &Place,
    record: &Record,
    seam: &Seam,
) -> Result<Published, AcquireError> {
    match fill(place, Step::CreateExclusive, &place.lease, record, seam) {
        Ok(staged) => Ok(Published::Ours(staged)),
        Err((Step::CreateExclusive, source)) if is(&source, Errno::EXIST) => Ok(Published::Taken),
        Err((step, source)) => Err(AcquireError::io(Some(step), &place.lease_path(), source)),
    }
}
