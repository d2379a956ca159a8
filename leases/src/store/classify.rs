//! May this file be the session of this lane?

use super::head::read_header;
use super::paths::{canonical_planned, same_lane};
use std::path::{Path, PathBuf};

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Class {
    /// It is: inside the store, of this lane, with this id.
    Authorized(PathBuf),
    /// It may become one: inside the store, not written yet. Lease this very
    /// path and classify again when the file appears.
    Pending(PathBuf),
    /// It is not.
    Rejected(Rejection),
}

/// Why a file is no session of this lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// The path is blank or relative.
    NotAbsolute,
    /// The store itself can't be resolved.
    NoStore,
    /// It lies outside the store, perhaps behind a symlink.
    Outside,
    /// A link on the way leads nowhere.
    DanglingLink,
    /// It is no regular file, or can't be read.
    Unreadable,
    /// Its first line is no header.
    NoHeader,
    /// It was made in another lane.
    OtherLane,
    /// It has another id.
    OtherId,
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotAbsolute => "the path is not absolute",
            Self::NoStore => "the session store can't be resolved",
            Self::Outside => "it lies outside the session store",
            Self::DanglingLink => "a link on the way leads nowhere",
            Self::Unreadable => "it can't be read as a regular file",
            Self::NoHeader => "its first line is no session header",
            Self::OtherLane => "it belongs to another directory",
            Self::OtherId => "it has another session id",
        })
    }
}

/// Classifies a file that need not exist. Both sides are compared by the real
/// path of their deepest existing ancestor.
#[must_use]
pub fn classify(file: &Path, cwd: &Path, id: Option<&str>, root: &Path) -> Class {
    if !file.is_absolute() {
        return Class::Rejected(Rejection::NotAbsolute);
    }
    let Some(root) = canonical_planned(root) else {
        return Class::Rejected(Rejection::NoStore);
    };
    let Some(planned) = canonical_planned(file) else {
        return Class::Rejected(Rejection::DanglingLink);
    };
    if planned == root || !planned.starts_with(&root) {
        return Class::Rejected(Rejection::Outside);
    }
    let header = match read_header(&planned) {
        Ok(Some(header)) => header,
        Ok(None) => return Class::Rejected(Rejection::NoHeader),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Class::Pending(planned);
        }
        Err(_) => return Class::Rejected(Rejection::Unreadable),
    };
    if id.is_some_and(|id| id != header.id) {
        return Class::Rejected(Rejection::OtherId);
    }
    if !same_lane(&header.cwd, cwd) {
        return Class::Rejected(Rejection::OtherLane);
    }
    Class::Authorized(planned)
}
