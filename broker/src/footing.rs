//! Whether a running broker still stands on its home.
//!
//! Somebody may remove the home, or a part of it, under a broker. A kernel lock
//! on a removed file keeps nobody out, so a second broker could start, and the
//! first one would go on for ever where nobody can reach it. So a broker looks
//! now and then:
//!
//! - the home itself is gone or another: there is nothing left to serve. Every
//!   session is stopped and the broker ends;
//! - the lock file is gone or another: the lock is taken again, and whoever has
//!   it by now gets the sessions;
//! - a socket is gone: it is bound again. One that somebody else put there is
//!   left alone.
//!
//! What this module does not do: act. It only says what is so.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lock::BrokerLock;

/// How often it is looked at. Two brokers that don't know of each other last no
/// longer than this.
pub const LOOK: Duration = Duration::from_secs(2);

/// What became of the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footing {
    /// All is as it was.
    Firm,
    /// The lock is not on the file of its name any more.
    LockLost,
    /// It is not there any more, or another folder has its name.
    HomeGone,
}

/// The home as it was when the broker started.
#[derive(Clone, Debug)]
pub struct Ground {
    root: PathBuf,
    folder: (u64, u64),
}

impl Ground {
    /// Remembers which folder the home is.
    ///
    /// # Errors
    /// It can't be looked at.
    pub fn of(root: &Path) -> io::Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            folder: identity(root)?,
        })
    }

    /// Looks. What can't be looked at for another reason than that it is not
    /// there counts as unchanged: not seeing it is not losing it.
    #[must_use]
    pub fn footing(&self, lock: &BrokerLock) -> Footing {
        if !is_same(&self.root, self.folder) {
            Footing::HomeGone
        } else if !lock.is_in_place() {
            Footing::LockLost
        } else {
            Footing::Firm
        }
    }
}

/// Whether the file at a path still is this one.
pub(crate) fn is_same(path: &Path, file: (u64, u64)) -> bool {
    match identity(path) {
        Ok(found) => found == file,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        ),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::Home;

    #[test]
    fn what_is_removed_or_replaced_is_noticed() {
        let folder = tempfile::TempDir::new().unwrap();
        let root = folder.path().join("home");
        let home = Home::at(root.clone(), None).unwrap().prepare().unwrap();
        let lock = BrokerLock::take(&home, "1").unwrap();
        let ground = Ground::of(home.root()).unwrap();
        assert_eq!(ground.footing(&lock), Footing::Firm);
        fs::remove_file(home.broker_lock()).unwrap();
        assert_eq!(ground.footing(&lock), Footing::LockLost);
        let again = BrokerLock::take(&home, "1").unwrap();
        assert_eq!(ground.footing(&again), Footing::Firm);
        assert_eq!(ground.footing(&lock), Footing::LockLost, "another file");
        fs::rename(&root, folder.path().join("moved")).unwrap();
        assert_eq!(ground.footing(&again), Footing::HomeGone);
        let _another = Home::at(root, None).unwrap().prepare().unwrap();
        assert_eq!(ground.footing(&again), Footing::HomeGone);
    }
}
