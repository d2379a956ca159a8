//! A lease of ours at its name: the very file that we published, or the copy
//! that a foreign program has put back.

use super::place::{Inode, Place};
use super::platform;
use super::publish::lock;
use super::seen::{Seen, see};
use crate::record::Record;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;

/// How often the file may be replaced between reading and locking it.
const LOOKS: usize = 8;

/// What stands at the lease's name, for who has the lease.
pub(crate) enum Mine {
    /// The very file.
    Same,
    /// A copy with our token, which is locked anew.
    Copy(File, Inode),
    /// A copy with our token that can't be locked now. The next look tries again.
    Unlocked,
    /// Nothing.
    Gone,
    /// Something else, with its record if it has one.
    Foreign(Option<Box<Record>>),
}

/// Looks at the lease's name for the holder of this file and token.
pub(crate) fn look_for_mine(place: &Place, inode: Inode, token: &str) -> io::Result<Mine> {
    if place.inode(&place.lease)? == Some(inode) {
        return Ok(Mine::Same);
    }
    for _ in 0..LOOKS {
        let seen = match see(place, &place.lease)? {
            Seen::Nothing => return Ok(Mine::Gone),
            Seen::NotAFile(_) => return Ok(Mine::Foreign(None)),
            Seen::File(seen) => seen,
        };
        if seen.inode == inode {
            return Ok(Mine::Same);
        }
        match seen.record {
            Some(record) if record.token == token => {}
            record => return Ok(Mine::Foreign(record.map(Box::new))),
        }
        // `seen` keeps the inode from being given to another file meanwhile.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&place.dir, &place.lease, flags, Mode::empty()) else {
            return Ok(Mine::Unlocked);
        };
        // The name may lead to somebody else's file by now: that is not ours to
        // lock.
        if Inode::of(&rustix::fs::fstat(&file)?) == seen.inode {
            let file = File::from(file);
            if !lock(&file) {
                return Ok(Mine::Unlocked);
            }
            platform::head_queue(&file);
            return Ok(Mine::Copy(file, seen.inode));
        }
    }
    Err(io::Error::other("the lease is replaced all the time"))
}
