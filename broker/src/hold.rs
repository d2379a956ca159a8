//! The folder of the home itself, held by one broker.
//!
//! A kernel lock on a file says nothing any more once the file was removed, and
//! `run` is a folder that people remove. Two brokers could then both write
//! transcripts until the first one looks ([`crate::footing`]). So the home's
//! folder is locked as well, which can't be removed without removing all: who
//! comes waits until the first one has noticed and handed over, and touches
//! nothing before.
//!
//! What this module does not do: replace [`crate::lock`], whose file names its
//! holder. Where a file system has no locks for folders this one is left out.

use std::fs::File;
use std::io;
use std::path::Path;

use fs4::{FileExt, TryLockError};

use crate::platform;

/// The hold. Dropping it, or dying, lets go of it.
#[derive(Debug)]
pub struct Hold {
    // Locked as long as it is open.
    _folder: Option<File>,
}

impl Hold {
    /// Takes hold of a home; `None` when another broker has it. That it can't
    /// be held at all is logged and no failure.
    #[must_use]
    pub fn take(root: &Path) -> Option<Self> {
        match File::open(root).map(|folder| (FileExt::try_lock(&folder), folder)) {
            Ok((Ok(()), folder)) => Some(Self {
                _folder: Some(folder),
            }),
            Ok((Err(TryLockError::WouldBlock), _)) => None,
            Ok((Err(TryLockError::Error(error)), _)) | Err(error) => {
                tracing::info!(%error, root = %root.display(), "the home's folder can't be locked");
                Some(Self { _folder: None })
            }
        }
    }
}

/// The pid of whoever holds a home, where the system tells.
pub(crate) fn holder(root: &Path) -> io::Result<Option<i32>> {
    use std::os::unix::fs::MetadataExt;
    Ok(platform::flock_holder(root.metadata()?.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_hold_of_a_home_whatever_is_removed_in_it() {
        let root = tempfile::TempDir::new().unwrap();
        std::fs::create_dir(root.path().join("run")).unwrap();
        let hold = Hold::take(root.path()).unwrap();
        std::fs::remove_dir(root.path().join("run")).unwrap();
        assert!(Hold::take(root.path()).is_none());
        let own = nix::unistd::getpid().as_raw();
        assert_eq!(holder(root.path()).unwrap(), Some(own));
        drop(hold);
        assert_eq!(holder(root.path()).unwrap(), None);
        assert!(Hold::take(root.path()).is_some());
        assert!(holder(&root.path().join("nothing")).is_err());
    }
}
