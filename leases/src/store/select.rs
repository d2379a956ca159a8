//! Which session did a tracked terminal start?

use super::paths::{path_key, same_lane};
use super::{Listed, PathKey};
use crate::lease::is_held;
use crate::owner::{adoptable, read};
use jiff::{SignedDuration, Timestamp};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is known of the terminal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terminal {
    /// Its durable id.
    pub id: String,
    /// The lane it was started in.
    pub cwd: PathBuf,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// How far a session's birth may be from that, both ways.
    pub window: Duration,
}

/// A session that may be the terminal's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The session's id.
    pub id: String,
    /// Its file.
    pub path: PathBuf,
}

/// What was selected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// This one, and no other comes as near.
    One(Candidate),
    /// None fits.
    None,
    /// Several fit equally well; taking any would be a guess.
    Tie(Vec<Candidate>),
}

/// Selects the session of a terminal among those listed.
///
/// The header's lane must be the terminal's; what was there before
/// (`excluded`), is leased by somebody alive, or is owned by somebody else is
/// skipped; only the time of creation counts, never that of the last write.
/// The disk is touched only for what passed everything else.
#[must_use]
pub fn select_candidate(
    sessions: &[Listed],
    terminal: &Terminal,
    excluded: &[PathBuf],
) -> Selection {
    let excluded: HashSet<PathKey> = excluded.iter().map(|path| path_key(path)).collect();
    let mut best: Vec<(SignedDuration, Candidate)> = Vec::new();
    for session in sessions {
        let Some(distance) = distance(session, terminal) else {
            continue;
        };
        if excluded.contains(&path_key(&session.path))
            || best.first().is_some_and(|(nearest, _)| distance > *nearest)
            || !free_for(&session.path, &terminal.id)
        {
            continue;
        }
        if best.first().is_some_and(|(nearest, _)| distance < *nearest) {
            best.clear();
        }
        let candidate = Candidate {
            id: session.header.id.clone(),
            path: session.path.clone(),
        };
        best.push((distance, candidate));
    }
    let mut best: Vec<Candidate> = best.into_iter().map(|(_, candidate)| candidate).collect();
    match (best.pop(), best.is_empty()) {
        (None, _) => Selection::None,
        (Some(one), true) => Selection::One(one),
        (Some(last), false) => {
            best.push(last);
            Selection::Tie(best)
        }
    }
}

/// Smaller is better: the distance to the terminal's start, or, when that is
/// not known, the newest.
fn distance(session: &Listed, terminal: &Terminal) -> Option<SignedDuration> {
    let created = session.header.created_at?;
    if !same_lane(&session.header.cwd, &terminal.cwd) {
        return None;
    }
    let Some(started) = terminal.started_at else {
        return Some(Timestamp::MAX.duration_since(created));
    };
    let distance = created.duration_since(started).abs();
    (distance <= SignedDuration::try_from(terminal.window).unwrap_or(SignedDuration::MAX))
        .then_some(distance)
}

fn free_for(path: &Path, terminal_id: &str) -> bool {
    read(path).is_ok_and(|owner| adoptable(&owner, terminal_id)) && !is_held(path)
}
