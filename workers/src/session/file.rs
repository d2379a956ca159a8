//! The session file, from this worker's side: is it still the file that the
//! agent opened?
//!
//! An agent appends by path, or to a descriptor that it keeps: in either case it
//! does not see that its file was deleted, or that another one stands there. So
//! the worker looks before it passes on what makes the agent write.
//!
//! Invariant: a file is known from when it was first seen, and stays the same
//! one for as long as the worker lives. Agents append to it and never replace it.
//! A file that nobody has seen yet may come into being at any time.
//!
//! It does not look while a turn runs, and does not read the file.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A session file and what was seen of it.
pub(super) struct SessionFile {
    path: PathBuf,
    /// The store that it has to lie in.
    root: PathBuf,
    seen: Option<Seen>,
}

/// A file that was seen. `real` is its path without links.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    real: PathBuf,
    device: u64,
    inode: u64,
}

/// What became of a session file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Deleted,
    Link,
    Other,
    Outside,
}

impl SessionFile {
    /// The file of an agent that is ready. A link that the agent has just
    /// opened stands for the file that it leads to.
    pub(super) fn opened(path: PathBuf, root: PathBuf) -> Self {
        let mut file = Self {
            path,
            root,
            seen: None,
        };
        if let Ok(real) = file.path.canonicalize() {
            file.seen = file.look(&real).ok().flatten();
        }
        file
    }

    /// Remembers the file, once it is there.
    pub(super) fn remember(&mut self) {
        if self.seen.is_none() {
            self.seen = self.look(&self.path).ok().flatten();
        }
    }

    /// Whether it is still the file that was seen.
    ///
    /// # Errors
    /// It is not, or it can't be looked at: the sentence to tell.
    pub(super) fn check(&mut self) -> Result<(), String> {
        match self.judge() {
            Ok(None) => Ok(()),
            Ok(Some(change)) => Err(change.told(&self.path, &self.root)),
            Err(error) => Err(format!(
                "the session file {} can't be looked at ({error}), so nothing was sent to the agent; make it readable, or start a new chat",
                self.path.display()
            )),
        }
    }

    fn judge(&mut self) -> io::Result<Option<Change>> {
        self.remember();
        let is_link = (self.path.symlink_metadata()).is_ok_and(|found| found.is_symlink());
        let Some(seen) = &self.seen else {
            return Ok(match unless_gone(self.path.symlink_metadata())? {
                None => None,
                Some(_) if is_link => Some(Change::Link),
                Some(found) if !found.is_file() => Some(Change::Other),
                Some(_) => Some(Change::Outside),
            });
        };
        match unless_gone(self.path.canonicalize()) {
            Ok(Some(real)) if real == seen.real => {
                let now = self.look(&real)?;
                Ok((now.as_ref() != Some(seen)).then_some(Change::Other))
            }
            _ if is_link => Ok(Some(Change::Link)),
            Ok(Some(_)) => Ok(Some(Change::Outside)),
            Ok(None) => Ok(Some(Change::Deleted)),
            Err(error) => Err(error),
        }
    }

    /// The regular file at this path, when it lies in the store.
    fn look(&self, path: &Path) -> io::Result<Option<Seen>> {
        let Some(found) = unless_gone(fs::symlink_metadata(path))? else {
            return Ok(None);
        };
        let real = path.canonicalize()?;
        let is_inside = real.starts_with(self.root.canonicalize()?);
        Ok((found.is_file() && is_inside).then(|| Seen {
            real,
            device: found.dev(),
            inode: found.ino(),
        }))
    }
}

impl Change {
    fn told(self, path: &Path, root: &Path) -> String {
        let what = match self {
            Self::Deleted => "was deleted".to_owned(),
            Self::Link => "was replaced by a link".to_owned(),
            Self::Other => "was replaced by another file".to_owned(),
            Self::Outside => format!("lies outside of the store {} now", root.display()),
        };
        format!(
            "the session file {} {what}, so nothing was sent to the agent; put the file back, or start a new chat",
            path.display()
        )
    }
}

fn unless_gone<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
