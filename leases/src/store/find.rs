//! Finding one session: by its id, or by a file that somebody names.

use super::head::{Header, read_header};
use super::list::{Listed, Scope, list};
use super::paths::{canonical_planned, path_key, real, same_lane};
use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// A session that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its real path.
    pub path: PathBuf,
    /// Its header.
    pub header: Header,
    /// How its lane stands to the one that was asked for.
    pub lane: Lane,
    /// Other files with the same id, by path: a warning for the user.
    pub duplicates: Vec<PathBuf>,
}

/// How the lane in a header stands to the lane that was asked for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// The same directory, under the same name.
    Same,
    /// The same directory, which has another real path by now: it was moved
    /// and a link was left. Resume it, and say so.
    Moved {
        /// Where it is now.
        now: PathBuf,
    },
    /// The recorded directory is gone.
    Gone,
    /// Another directory. Never resume it unasked.
    Other,
}

fn lane(header: &Header, cwd: &Path) -> Lane {
    let there = header.cwd.is_dir();
    if !same_lane(&header.cwd, cwd) {
        return if there { Lane::Other } else { Lane::Gone };
    }
    let now = real(&header.cwd);
    if path_key(&now) == path_key(&header.cwd) {
        Lane::Same
    } else {
        Lane::Moved { now }
    }
}

/// Finds a session by its id anywhere in the store. Of several files with one
/// id the answer is always the same: the best lane, then the newest by its
/// header, then the first path.
///
/// `None` means that there is no such session; an id that was asked for is
/// never answered with a new session.
#[must_use]
pub fn find_by_id(root: &Path, id: &str, cwd: &Path) -> Option<Found> {
    let mut same: Vec<Listed> = list(root, Scope::Everything)
        .sessions
        .into_iter()
        .filter(|session| session.header.id == id)
        .collect();
    same.sort_by_cached_key(|session| {
        let rank = match lane(&session.header, cwd) {
            Lane::Same | Lane::Moved { .. } => 0,
            Lane::Gone => 1,
            Lane::Other => 2,
        };
        (
            rank,
            Reverse(session.header.created_at),
            session.path.clone(),
        )
    });
    let mut rest = same.into_iter();
    let first = rest.next()?;
    let lane = lane(&first.header, cwd);
    let mut duplicates: Vec<PathBuf> = rest.map(|session| session.path).collect();
    duplicates.sort();
    Some(Found {
        path: first.path,
        header: first.header,
        lane,
        duplicates,
    })
}

/// Finds the session in a file that was named; `None` when it is not there,
/// not inside the root, no session, or has another id. There is no second
/// try by id: who names a file means that file.
#[must_use]
pub fn find_file(root: &Path, file: &Path, id: Option<&str>, cwd: &Path) -> Option<Found> {
    let path = std::fs::canonicalize(file).ok()?;
    if !path.starts_with(canonical_planned(root)?) {
        return None;
    }
    let header = read_header(&path).ok()??;
    if id.is_some_and(|id| id != header.id) {
        return None;
    }
    let lane = lane(&header, cwd);
    Some(Found {
        path,
        header,
        lane,
        duplicates: Vec::new(),
    })
}
