//! A held lease: what the holder can see of it, and how it ends.

use super::error::ReleaseError;
use super::guard::Guard;
use super::mine::{Mine, look_for_mine};
use super::place::{Inode, Place};
use super::platform;
use super::publish::Staged;
use super::queue::{Baton, remember_waiters};
use super::registry::Ticket;
use super::seam::{Seam, Step};
use super::seen::SeenFile;
use super::sides::sweep_own;
use crate::record::Record;
use crate::verdict::{Dead, Verdict};
use rustix::fs::FlockOperation;
use std::fmt;
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
    replaced: Option<Replaced>,
    seam: Seam,
    over: bool,
    /// Goes last: only when the file is gone another thread may try.
    _ticket: Ticket,
}

#[derive(Debug)]
struct Lock {
    file: File,
    inode: Inode,
    /// A foreign program has put this copy back; what we published first may
    /// lie beside it.
    copied: bool,
}

/// A dead lease that was reclaimed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// What stood in it; `None` when it was damaged.
    pub record: Option<Record>,
    /// What its death rests on.
    pub proof: Dead,
}

impl Replaced {
    pub(crate) fn of(dead: SeenFile) -> Option<Self> {
        let Verdict::Dead(proof) = dead.verdict else {
            return None;
        };
        let record = dead.record;
        Some(Self { record, proof })
    }
}

/// "took the place of pid 4711 (sdk, ses_…, since 12:03 UTC; no such process)".
impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("took the place of ")?;
        match &self.record {
            Some(record) => f.write_str(&record.display_with(&self.proof)),
            None => write!(f, "a lease of nobody: {}", self.proof),
        }
    }
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
            copied: staged.copied,
        });
        Self {
            place,
            session,
            record,
            lock,
            baton,
            replaced: None,
            seam,
            over: false,
            _ticket: ticket,
        }
    }

    pub(crate) fn in_place_of(mut self, replaced: Option<Replaced>) -> Self {
        self.replaced = replaced;
        self
    }

    /// The dead lease that this one has taken the place of: worth a line in a
    /// log, since it tells of a crash.
    #[must_use]
    pub fn replaced(&self) -> Option<&Replaced> {
        self.replaced.as_ref()
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
        Ok(
            match look_for_mine(&self.place, ours.inode, &self.record.token)? {
                Mine::Same | Mine::Unlocked => Standing::Ours,
                Mine::Copy(file, inode) => {
                    *ours = Lock {
                        file,
                        inode,
                        copied: true,
                    };
                    Standing::Ours
                }
                Mine::Gone => Standing::Gone,
                Mine::Foreign(record) => Standing::Foreign(record),
            },
        )
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
        let ours = self.lock.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Said aloud, because a child between fork and exec has a copy of the
        // descriptor and would keep the locks for a moment. A lock on a file
        // that has no name any more says nothing to anybody.
        if !matches!(result, Ok(Removed::Freed)) {
            let _ = rustix::fs::flock(&ours.file, FlockOperation::Unlock);
        }
        if waited_for {
            let _ = platform::leave_queue(&ours.file);
        }
        drop(guard);
        self.baton = None;
        match result {
            Ok(Removed::Freed | Removed::Copy) => Ok(Released::Freed),
            Ok(Removed::Lost) => Ok(Released::HadBeenLost),
            Err(source) => Err(ReleaseError { path, source }),
        }
    }

    fn remove(&self) -> io::Result<Removed> {
        let removed = match self.seam.run(Step::ReleaseCheck, || self.standing()) {
            Ok(Standing::Ours) => self.unlink(),
            Ok(Standing::Gone | Standing::Foreign(_)) => Ok(Removed::Lost),
            Err(error) => Err(error),
        };
        // A file without a name can't lie about as anybody's claim.
        if !matches!(removed, Ok(Removed::Freed)) {
            let sides = self.seam.run(Step::ReleaseSweep, || self.place.sides());
            sweep_own(&self.place, &sides.unwrap_or_default(), &self.record.token);
        }
        removed
    }

    fn unlink(&self) -> io::Result<Removed> {
        let unlink = || self.place.unlink_if_there(&self.place.lease);
        if !self.seam.run(Step::ReleaseUnlink, unlink)? {
            return Ok(Removed::Lost);
        }
        let ours = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let stat = rustix::fs::fstat(&ours.file)?;
        Ok(if stat.st_nlink == 0 && !ours.copied {
            Removed::Freed
        } else {
            Removed::Copy
        })
    }
}

/// What a release has removed.
enum Removed {
    /// Our very file, and it has no other name.
    Freed,
    /// A copy of it, or it had another name: something of ours may lie beside it.
    Copy,
    /// Nothing: it had been taken away.
    Lost,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
