//! A held lease: what the holder can see of it, and how it ends.

use super::error::ReleaseError;
use super::guard::Guard;
use super::place::{Inode, Place};
use super::platform;
use super::publish::{Staged, lock};
use super::queue::{Baton, remember_waiters};
use super::registry::Ticket;
use super::seam::{Seam, Step};
use super::seen::{Seen, see};
use super::sides::sweep_own;
use crate::record::Record;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The right to write one session file, for as long as this lives.
///
/// Holds an `flock` on the lease file by a close-on-exec descriptor, so the
/// right ends with the process at the latest. A child that is forked and never
/// executes another program would share that lock: start programs with
/// `std::process::Command` or the like.
///
/// Dropping it releases, and keeps quiet about failures; [`Lease::release`]
/// tells them.
#[derive(Debug)]
pub struct Lease {
    place: Place,
    session: PathBuf,
    record: Record,
    lock: Mutex<Lock>,
    /// Those who wait behind us, in order; let go after the file is gone.
    baton: Option<Baton>,
    seam: Seam,
    over: bool,
    /// Goes last: only when the file is gone another thread may try.
    _ticket: Ticket,
}

#[derive(Debug)]
struct Lock {
    file: File,
    inode: Inode,
    /// It has never been anything but the file that we published.
    first: bool,
}

/// What stands at the path of a lease that we believe to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Our record.
    Ours,
    /// Nothing: stop writing at once.
    Gone,
    /// Something else, with its record if it has one: stop writing at once.
    Foreign(Option<Box<Record>>),
}

/// How a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// We removed it.
    Freed,
    /// It was gone or somebody else's; that one's file was not touched.
    HadBeenLost,
}

impl Lease {
    pub(crate) fn new(
        place: Place,
        session: PathBuf,
        record: Record,
        staged: Staged,
        baton: Option<Baton>,
        seam: Seam,
        ticket: Ticket,
    ) -> Self {
        let lock = Mutex::new(Lock {
            file: staged.file,
            inode: staged.inode,
            first: true,
        });
        Self {
            place,
            session,
            record,
            lock,
            baton,
            seam,
            over: false,
            _ticket: ticket,
        }
    }

    /// The lease file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.session.with_file_name(&self.place.lease)
    }

    /// The canonical session file.
    #[must_use]
    pub fn session_file(&self) -> &Path {
        &self.session
    }

    /// What stands in the lease file.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Looks whether the lease is still ours.
    ///
    /// A foreign program that moved it aside and back writes a new file with
    /// our token; that one is ours, and its kernel lock is taken anew.
    ///
    /// # Errors
    /// The file can't be looked at. This is not "lost", but a holder that can't
    /// see its lease for long should stop.
    pub fn standing(&self) -> io::Result<Standing> {
        let mut ours = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.place.inode(&self.place.lease)? == Some(ours.inode) {
            return Ok(Standing::Ours);
        }
        match see(&self.place, &self.place.lease)? {
            Seen::Nothing => Ok(Standing::Gone),
            Seen::NotAFile(_) => Ok(Standing::Foreign(None)),
            Seen::File(seen) => match seen.record {
                Some(record) if record.token == self.record.token => {
                    if let Ok(file) = self.open_for_lock() {
                        lock(&file)?;
                        platform::head_queue(&file);
                        *ours = Lock {
                            file,
                            inode: seen.inode,
                            first: false,
                        };
                    }
                    Ok(Standing::Ours)
                }
                record => Ok(Standing::Foreign(record.map(Box::new))),
            },
        }
    }

    fn open_for_lock(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.place.dir, &self.place.lease, flags, Mode::empty())?;
        Ok(File::from(file))
    }

    /// Gives the session back. What is not ours is left byte for byte.
    ///
    /// Waits for the directory's guard for 5 s at the most, and goes on
    /// without it then: removing our own file needs no guard, it only keeps
    /// the moment between looking and removing free of other processes of ours.
    ///
    /// # Errors
    /// The file is ours and can't be removed.
    pub fn release(mut self) -> Result<Released, ReleaseError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Released, ReleaseError> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(Released::Freed);
        }
        let path = self.path();
        let ours = self.lock.get_mut().unwrap_or_else(PoisonError::into_inner);
        let waited_for = remember_waiters(self.baton.as_ref(), &ours.file, &self.place);
        let guard = Guard::take(&self.place, &self.seam).ok();
        let result = self.remove();
        // Said aloud, because a child between fork and exec has a copy of the
        // descriptor and would keep the locks for a moment.
        let ours = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::fs::flock(&ours.file, FlockOperation::Unlock);
        if waited_for {
            let _ = platform::leave_queue(&ours.file);
        }
        drop(ours);
        drop(guard);
        self.baton = None;
        result.map_err(|source| ReleaseError { path, source })
    }

    fn remove(&self) -> io::Result<Released> {
        let untouched = self
            .seam
            .run(Step::ReleaseCheck, || Ok(self.is_untouched()))?;
        let released = if untouched || self.standing()? == Standing::Ours {
            let unlink = || self.place.unlink(&self.place.lease);
            self.seam
                .run(Step::ReleaseUnlink, unlink)
                .map(|()| Released::Freed)
        } else {
            Ok(Released::HadBeenLost)
        };
        // A file that was never moved has left no claim behind.
        if !untouched {
            let sides = self.seam.run(Step::ReleaseSweep, || self.place.sides());
            sweep_own(&self.place, &sides.unwrap_or_default(), &self.record.token);
        }
        released
    }

    /// The lease is the very file that we published, and has no other name. A
    /// foreign program that puts a lease back makes a new file.
    fn is_untouched(&self) -> bool {
        let ours = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        ours.first
            && rustix::fs::statat(&self.place.dir, &self.place.lease, flags)
                .is_ok_and(|stat| Inode::of(&stat) == ours.inode && stat.st_nlink == 1)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
