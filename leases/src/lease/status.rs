//! Looking at a lease without touching it, and breaking one.

use super::error::{AcquireError, BreakError, Holder};
use super::guard::{Guard, GuardError};
use super::place::{FileKind, Place};
use super::reclaim::{Cleared, clear};
use super::registry::Ticket;
use super::seam::{Seam, Step};
use super::seen::{Seen, SeenFile, see};
use super::sides::{blocking_claim, sweep};
use crate::record::Record;
use crate::verdict::{Alive, Dead, Verdict, Why};
use std::path::{Path, PathBuf};

/// What stands at the path of a session's lease.
#[derive(Debug)]
pub enum Status {
    /// Nothing.
    Free,
    /// A live holder.
    Held {
        /// Its record; `None` when it is damaged but its kernel lock is held.
        record: Option<Record>,
        /// What its life rests on.
        proof: Alive,
    },
    /// A dead holder: the next acquire takes it.
    Dead {
        /// Its record.
        record: Record,
        /// What its death rests on.
        proof: Dead,
    },
    /// Whether the holder lives can't be told from here.
    Unknown {
        /// Its record, when it could be read.
        record: Option<Record>,
        /// Why there is no answer.
        why: Why,
    },
    /// The file is no record, and nobody is writing it: the next acquire takes it.
    Damaged,
    /// The path is free, but a live lease lies beside it: see the refusal.
    MovedAside(AcquireError),
    /// Something that is no file stands there.
    NotAFile(FileKind),
    /// It can't be looked at.
    Unreadable(AcquireError),
}

/// Looks at the lease of a session file. Never writes.
#[must_use]
pub fn status(session_file: &Path) -> Status {
    let place = match Place::of(session_file) {
        Ok(place) => place,
        // Where no directory is, nobody holds anything.
        Err(AcquireError::NoDirectory { .. }) => return Status::Free,
        Err(error) => return Status::Unreadable(error),
    };
    let seen = match see(&place, &place.lease) {
        Ok(seen) => seen,
        Err(source) => {
            let path = place.lease_path();
            return Status::Unreadable(AcquireError::io(Some(Step::Look), &path, source));
        }
    };
    match seen {
        Seen::NotAFile(kind) => Status::NotAFile(kind),
        Seen::Nothing => match place.sides() {
            Ok(sides) => {
                blocking_claim(&place, &sides, "").map_or(Status::Free, Status::MovedAside)
            }
            Err(source) => {
                let step = Some(Step::ScanClaims);
                Status::Unreadable(AcquireError::io(step, &place.dir_path, source))
            }
        },
        Seen::File(SeenFile {
            record, verdict, ..
        }) => match (verdict, record) {
            (Verdict::Alive(proof), record) => Status::Held { record, proof },
            (Verdict::Dead(proof), Some(record)) => Status::Dead { record, proof },
            (Verdict::Dead(_), None) => Status::Damaged,
            (Verdict::Unknown(why), record) => Status::Unknown { record, why },
        },
    }
}

/// Whether somebody may be writing the session: held, moved aside, or not to be
/// told. Never writes.
#[must_use]
pub fn is_held(session_file: &Path) -> bool {
    if Place::of(session_file).is_ok_and(|place| Ticket::is_taken(&place.key())) {
        return true;
    }
    match status(session_file) {
        Status::Free | Status::Dead { .. } | Status::Damaged | Status::NotAFile(_) => false,
        Status::Held { .. }
        | Status::Unknown { .. }
        | Status::MovedAside(_)
        | Status::Unreadable(_) => true,
    }
}

/// A lease that was removed by hand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Where it was.
    pub path: PathBuf,
    /// What stood in it, when it was a record.
    pub record: Option<Record>,
}

/// Removes a lease whose holder is dead, and what crashes left beside it;
/// `None` when there was no lease.
///
/// # Errors
/// [`BreakError::Held`] or an unknown holder, and any failure on the way.
pub fn break_dead(session_file: &Path) -> Result<Option<Broken>, BreakError> {
    break_lease(session_file, |_| false)
}

/// Removes a lease whatever its holder is, if it is still the record with this
/// token (`None`: a damaged file), because a human has decided so. The holder,
/// if it lives, notices and stops writing.
///
/// # Errors
/// [`BreakError::Changed`] when another record stands there by now, and any
/// failure on the way.
pub fn break_by_force(
    session_file: &Path,
    token: Option<&str>,
) -> Result<Option<Broken>, BreakError> {
    break_lease(session_file, |record| {
        record.map(|record| record.token.as_str()) == token
    })
}

fn break_lease(
    session_file: &Path,
    forced: impl Fn(Option<&Record>) -> bool,
) -> Result<Option<Broken>, BreakError> {
    let place = Place::of(session_file)?;
    let seam = Seam::default();
    let path = place.lease_path();
    let guard = Guard::take(&place, &seam).map_err(|error| match error {
        GuardError::Timeout => AcquireError::GuardTimeout {
            dir: place.dir_path.clone(),
        },
        GuardError::Io(source) => AcquireError::io(Some(Step::Guard), &place.dir_path, source),
    })?;
    let io = |step, source| AcquireError::io(Some(step), &path, source);
    let seen = see(&place, &place.lease).map_err(|source| io(Step::Look, source))?;
    let broken = match seen {
        Seen::Nothing => None,
        Seen::NotAFile(what) => return Err(AcquireError::NotAFile { path, what }.into()),
        Seen::File(file)
            if matches!(file.verdict, Verdict::Dead(_)) || forced(file.record.as_ref()) =>
        {
            match clear(&place, &file, &seam)? {
                Cleared::Yes => Some(Broken {
                    path,
                    record: file.record,
                }),
                Cleared::Changed => return Err(BreakError::Changed { path }),
            }
        }
        Seen::File(SeenFile {
            record, verdict, ..
        }) => {
            return Err(match verdict {
                Verdict::Alive(proof) => BreakError::Held(Box::new(Holder {
                    path,
                    record,
                    proof,
                })),
                Verdict::Unknown(why) => {
                    let record = record.map(Box::new);
                    AcquireError::Unknown { path, record, why }.into()
                }
                Verdict::Dead(_) => BreakError::Changed { path },
            });
        }
    };
    if let Ok(sides) = place.sides() {
        sweep(&place, &guard, &sides);
    }
    drop(guard);
    Ok(broken)
}
