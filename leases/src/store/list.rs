//! What is in a store. Reads heads and tails only, one file at a time.

use super::head::{Header, Tail, header_of, open, tail_of};
use super::paths::same_lane;
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directories are followed to this depth; Pi uses one.
const DEPTH_MAX: usize = 16;

/// Which sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope<'a> {
    /// All of the store.
    Everything,
    /// Those of one lane.
    Lane(&'a Path),
}

/// A session file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its real path.
    pub path: PathBuf,
    /// Its header.
    pub header: Header,
    /// Its end.
    pub tail: Tail,
    /// Bytes.
    pub size: u64,
    /// Time of the last write. Never decides whose session it is.
    pub modified_at: Option<Timestamp>,
}

/// The content of a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// The sessions, by path.
    pub sessions: Vec<Listed>,
    /// Ids that more than one of the sessions has, with their files.
    pub duplicates: BTreeMap<String, Vec<PathBuf>>,
    /// `*.jsonl` files without a header.
    pub no_header: Vec<PathBuf>,
    /// Files and directories that can't be read.
    pub unreadable: Vec<PathBuf>,
}

/// Lists a store in a stable order. Symlinks are skipped, a file that is there
/// under two names counts once, and what can't be read costs only itself. A
/// store that does not exist is empty.
#[must_use]
pub fn list(root: &Path, scope: Scope<'_>) -> Listing {
    let mut listing = Listing::default();
    let mut inodes = HashSet::new();
    let mut lanes = Lanes {
        scope,
        known: HashMap::new(),
    };
    let Ok(root) = std::fs::canonicalize(root) else {
        return listing;
    };
    let mut todo = vec![(root, 0)];
    while let Some((dir, depth)) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else {
            listing.unreadable.push(dir);
            continue;
        };
        for entry in entries.flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
                continue;
            };
            if kind.is_dir() && depth < DEPTH_MAX {
                todo.push((path, depth + 1));
            } else if kind.is_file() && path.extension().is_some_and(|ext| ext == "jsonl") {
                match look(&path, &mut inodes, &mut lanes) {
                    Ok(Looked::Session(session)) => listing.sessions.push(*session),
                    Ok(Looked::NoHeader) => listing.no_header.push(path),
                    Ok(Looked::NotMeant) => {}
                    Err(_) => listing.unreadable.push(path),
                }
            }
        }
    }
    listing.sessions.sort_by(|a, b| a.path.cmp(&b.path));
    listing.no_header.sort();
    listing.unreadable.sort();
    listing.duplicates = duplicates(&listing.sessions);
    listing
}

enum Looked {
    Session(Box<Listed>),
    NoHeader,
    NotMeant,
}

/// Thousands of sessions share a few lanes: each is resolved once.
struct Lanes<'a> {
    scope: Scope<'a>,
    known: HashMap<PathBuf, bool>,
}

impl Lanes<'_> {
    fn meant(&mut self, cwd: &Path) -> bool {
        let Scope::Lane(lane) = self.scope else {
            return true;
        };
        if let Some(meant) = self.known.get(cwd) {
            return *meant;
        }
        let meant = same_lane(cwd, lane);
        self.known.insert(cwd.to_owned(), meant);
        meant
    }
}

fn look(
    path: &Path,
    inodes: &mut HashSet<(u64, u64)>,
    lanes: &mut Lanes<'_>,
) -> io::Result<Looked> {
    let mut file: File = open(path)?;
    let meta = file.metadata()?;
    if !inodes.insert((meta.dev(), meta.ino())) {
        return Ok(Looked::NotMeant);
    }
    let Some(header) = header_of(&mut file)? else {
        return Ok(Looked::NoHeader);
    };
    if !lanes.meant(&header.cwd) {
        return Ok(Looked::NotMeant);
    }
    let tail = tail_of(&mut file)?;
    let modified_at = meta
        .modified()
        .ok()
        .and_then(|at| Timestamp::try_from(at).ok());
    let path = path.to_owned();
    Ok(Looked::Session(Box::new(Listed {
        path,
        header,
        tail,
        size: meta.len(),
        modified_at,
    })))
}

fn duplicates(sessions: &[Listed]) -> BTreeMap<String, Vec<PathBuf>> {
    let mut by_id: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
    for session in sessions {
        by_id
            .entry(&session.header.id)
            .or_default()
            .push(&session.path);
    }
    by_id
        .into_iter()
        .filter(|(_, paths)| paths.len() > 1)
        .map(|(id, paths)| {
            (
                id.to_owned(),
                paths.into_iter().map(Path::to_owned).collect(),
            )
        })
        .collect()
}
