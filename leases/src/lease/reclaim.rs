//! Taking the place of a dead lease.
//!
//! Only a record that was seen dead, in the guard, is ever moved. The foreign
//! program may still change the path between our look and our move, so what
//! came out is looked at before it counts as gone, and goes back when it lives.

use super::error::AcquireError;
use super::place::{Place, Side};
use super::publish::{Published, Staged, not_offered, publish, stage};
use super::seam::{Seam, Step};
use super::seen::{Seen, SeenFile, see};
use crate::record::Record;
use crate::verdict::Verdict;
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;

pub(crate) enum Reclaimed {
    Ours(Staged),
    /// The path changed: it is empty or has another record. Judge again.
    Changed,
}

/// Whether the dead record was moved out of the way.
pub(crate) enum Cleared {
    Yes,
    /// It was gone already, or turned out to be alive and was put back.
    Changed,
}

/// Puts our record in the place of a dead one. Needs the guard.
pub(crate) fn reclaim(
    place: &Place,
    record: &Record,
    dead: &SeenFile,
    seam: &Seam,
) -> Result<Reclaimed, AcquireError> {
    let mut staged = stage(place, record, seam)?;
    // As a claim it makes the foreign program wait while we work, and after the
    // exchange it is where that program looks for a lease that was moved.
    let claim = place.side_name(Side::Claim, &record.token);
    let rename = || {
        rustix::fs::renameat(&place.dir, &staged.name, &place.dir, &claim)?;
        Ok(())
    };
    if let Err(source) = seam.run(Step::StageClaim, rename) {
        let _ = place.unlink(&staged.name);
        let _ = place.unlink(&claim);
        return Err(AcquireError::io(
            Some(Step::StageClaim),
            &place.path_of(&claim),
            source,
        ));
    }
    staged.name = claim;
    if let Err(source) = seam.run(Step::Exchange, || exchange(place, &staged.name))
        && place.inode(&place.lease).ok().flatten() != Some(staged.inode)
    {
        let _ = place.unlink(&staged.name);
        return match Errno::from_io_error(&source) {
            Some(Errno::NOENT) => Ok(Reclaimed::Changed),
            _ if not_offered(&source) => by_the_shared_rule(place, record, dead, seam),
            _ => Err(AcquireError::io(
                Some(Step::Exchange),
                &place.lease_path(),
                source,
            )),
        };
    }
    let out = seam.run(Step::ExchangeCheck, || see(place, &staged.name));
    if out.as_ref().is_ok_and(|out| is_dead(out, dead)) {
        let _ = seam.run(Step::ClaimDrop, || place.unlink(&staged.name));
        staged.name.clone_from(&place.lease);
        return Ok(Reclaimed::Ours(staged));
    }
    let back = seam.run(Step::ExchangeBack, || give_back(place, &staged));
    match (out, back) {
        (Err(source), _) => Err(AcquireError::io(
            Some(Step::ExchangeCheck),
            &place.lease_path(),
            source,
        )),
        (_, Err(source)) => Err(AcquireError::io(
            Some(Step::ExchangeBack),
            &place.lease_path(),
            source,
        )),
        (Ok(_), Ok(())) => Ok(Reclaimed::Changed),
    }
}

fn exchange(place: &Place, name: &OsStr) -> io::Result<()> {
    let flags = RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(&place.dir, name, &place.dir, &place.lease, flags)?;
    Ok(())
}

/// What came out is the record that was judged, or another dead one, or was
/// swept by somebody meanwhile, which only happens to the dead.
fn is_dead(out: &Seen, dead: &SeenFile) -> bool {
    match out {
        Seen::Nothing => true,
        Seen::NotAFile(_) => false,
        Seen::File(file) => file.inode == dead.inode || matches!(file.verdict, Verdict::Dead(_)),
    }
}

fn give_back(place: &Place, staged: &Staged) -> io::Result<()> {
    match place.inode(&place.lease)? {
        Some(inode) if inode == staged.inode => {
            exchange(place, &staged.name)?;
            if place.inode(&staged.name)? == Some(staged.inode) {
                place.unlink(&staged.name)?;
            }
            Ok(())
        }
        None => restore(place, &staged.name),
        // A third one is there. The claim stays and blocks everybody until
        // its owner releases it or dies.
        Some(_) => Ok(()),
    }
}

/// Puts a moved lease back unless something is there again.
fn restore(place: &Place, claim: &OsStr) -> io::Result<()> {
    match rustix::fs::linkat(
        &place.dir,
        claim,
        &place.dir,
        &place.lease,
        AtFlags::empty(),
    ) {
        Ok(()) => place.unlink(claim),
        Err(Errno::EXIST) => Ok(()),
        Err(errno) if not_offered(&errno.into()) => {
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&place.dir, claim, &place.dir, &place.lease, flags) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        }
        Err(errno) => Err(errno.into()),
    }
}

fn by_the_shared_rule(
    place: &Place,
    record: &Record,
    dead: &SeenFile,
    seam: &Seam,
) -> Result<Reclaimed, AcquireError> {
    match clear(place, dead, seam)? {
        Cleared::Changed => Ok(Reclaimed::Changed),
        Cleared::Yes => match publish(place, record, seam)? {
            Published::Ours(staged) => Ok(Reclaimed::Ours(staged)),
            Published::Taken => Ok(Reclaimed::Changed),
        },
    }
}

/// Moves a dead lease aside, looks at it, and drops it, or puts it back. This
/// leaves the path empty for a moment. Needs the guard.
pub(crate) fn clear(place: &Place, dead: &SeenFile, seam: &Seam) -> Result<Cleared, AcquireError> {
    let claim = place.side_name(Side::Claim, &uuid::Uuid::new_v4().to_string());
    let io = |step, source| AcquireError::io(Some(step), &place.lease_path(), source);
    let rename = || {
        rustix::fs::renameat(&place.dir, &place.lease, &place.dir, &claim)?;
        Ok(())
    };
    match seam.run(Step::ClaimRename, rename) {
        Ok(()) => {}
        Err(source) if place.inode(&claim).ok().flatten().is_none() => {
            return match Errno::from_io_error(&source) {
                Some(Errno::NOENT) => Ok(Cleared::Changed),
                _ => Err(io(Step::ClaimRename, source)),
            };
        }
        Err(_) => {}
    }
    let out = seam.run(Step::ClaimCheck, || see(place, &claim));
    if out.as_ref().is_ok_and(|out| is_dead(out, dead)) {
        let _ = seam.run(Step::ClaimDrop, || place.unlink(&claim));
        return Ok(Cleared::Yes);
    }
    seam.run(Step::ClaimRestore, || restore(place, &claim))
        .map_err(|source| io(Step::ClaimRestore, source))?;
    match out {
        Ok(_) => Ok(Cleared::Changed),
        Err(source) => Err(io(Step::ClaimCheck, source)),
    }
}
