//! One file per live worker: `run/workers/<worker id>.json`.
//!
//! A journal is on disk before its worker exists and is removed after the
//! worker's whole tree is dead, so that a broker that finds none of its workers
//! in memory, because it is a new one, finds all of them here. It is first
//! written without the identity, which does not exist yet; a worker whose broker
//! died in that moment is found by its mark.
//!
//! Beside it stand what the worker wrote to its standard error and, while
//! somebody below it hides, the worker's own list of them ([`hidden`]). They go
//! with the journal.
//!
//! The token itself is never written, only its hash.
//!
//! No flush: after a power cut no worker lives, and a journal of another boot
//! proves it.

use std::fs;
use std::io;
use std::path::PathBuf;

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{HiddenList, ProcessIdentity};
use ade_protocol::strict;
use ade_protocol::{Generation, SessionId, WorkerId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::files;
use crate::home::Home;
use crate::providers::LaunchSpec;

/// A journal is a few hundred bytes; more is not one.
const MAX_JOURNAL: u64 = 64 * 1024;

/// What is known of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The worker.
    pub worker_id: WorkerId,
    /// The session that it serves.
    pub session_id: SessionId,
    /// Which of the session's workers it is.
    pub generation: Generation,
    /// Kind of agent.
    pub provider: String,
    /// What everything below it has in its environment.
    pub mark: String,
    /// SHA-256 of its token, hexadecimal.
    pub token_hash: String,
    /// What was fixed at its start; absent in a journal of an older ade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<LaunchSpec>,
    /// When it was started: RFC 3339, UTC, milliseconds.
    pub started_at: String,
    /// What its host and everything below that live in, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Cgroup>,
    /// Absent while it is being started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<ProcessIdentity>,
}

/// What [`read_all`] finds.
#[derive(Debug, Default)]
pub struct Journals {
    /// Oldest first.
    pub entries: Vec<Entry>,
    /// Files that are no journals any more. They stay where they are.
    pub damaged: Vec<PathBuf>,
}

/// Writes a journal whole, in place of the one before.
///
/// # Errors
/// The file cannot be written; the one before is as it was.
pub fn write(home: &Home, entry: &Entry) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    files::replace(&home.journal(&entry.worker_id), &line)
}

/// Whom a worker listed because they hide from its mark.
#[derive(Debug, Default)]
pub struct Hidden {
    /// They were below the worker. Whether they are still alive is not said.
    pub processes: Vec<ProcessIdentity>,
    /// Why there may be more.
    pub problem: Option<String>,
}

/// The list of a worker. One that another process wrote says nothing.
#[must_use]
pub fn hidden(home: &Home, worker: &WorkerId, identity: Option<&ProcessIdentity>) -> Hidden {
    let path = home.worker_hidden(worker);
    let (processes, problem) = match HiddenList::read(&path) {
        Ok(None) => (Vec::new(), None),
        Ok(Some(list)) if Some(list.worker()) == identity => {
            let problem = match list.more() {
                0 => None,
                more => Some(format!(
                    "had no place for {more} processes, which may be left"
                )),
            };
            (list.identities(), problem)
        }
        Ok(Some(_)) => {
            let problem = "is the list of another worker and is not used";
            (Vec::new(), Some(problem.to_owned()))
        }
        Err(error) => {
            let problem = format!(
                "can't be read, so processes that hide from the worker's mark may be left: {error}"
            );
            (Vec::new(), Some(problem))
        }
    };
    let problem = problem.map(|problem| format!("{} {problem}", path.display()));
    Hidden { processes, problem }
}

/// Removes the journal of a worker and what belongs to it. Only after the
/// worker's tree is dead. A failure is logged: the next
/// broker will find the journal of a dead worker and remove it.
pub fn remove(home: &Home, worker: &WorkerId) {
    let list = home.worker_hidden(worker);
    if let Err(error) = HiddenList::remove(&list) {
        tracing::warn!(%error, path = %list.display(), "a list was not removed");
    }
    for path in [home.worker_stderr(worker), home.journal(worker)] {
        if let Err(error) = files::remove_if_there(&path) {
            tracing::warn!(%error, path = %path.display(), "a journal was not removed");
        }
    }
}

/// The journal of one worker; `None` when it has none that can be read.
#[must_use]
pub fn read(home: &Home, worker: &WorkerId) -> Option<Entry> {
    let path = home.journal(worker);
    let fits = fs::symlink_metadata(&path).is_ok_and(|found| found.len() <= MAX_JOURNAL);
    let content = fits.then(|| fs::read(&path).ok()).flatten()?;
    strict::from_slice(&content).ok()
}

/// Every journal of the home.
///
/// # Errors
/// The folder cannot be read. That a single file cannot be is not an error:
/// it is among the damaged ones.
pub fn read_all(home: &Home) -> io::Result<Journals> {
    let mut journals = Journals::default();
    for found in fs::read_dir(home.journal_dir())? {
        let path = found?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let fits = fs::symlink_metadata(&path)
            .is_ok_and(|found| found.is_file() && found.len() <= MAX_JOURNAL);
        let content = if fits {
            fs::read(&path)
        } else {
            Ok(Vec::new())
        };
        match content {
            Ok(content) => match strict::from_slice(&content) {
                Ok(entry) => journals.entries.push(entry),
                Err(_) => journals.damaged.push(path),
            },
            // Its worker ended while we were reading.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => journals.damaged.push(path),
        }
    }
    journals
        .entries
        .sort_by(|a, b| a.worker_id.cmp(&b.worker_id));
    journals.damaged.sort();
    Ok(journals)
}

/// What a journal keeps of a token.
#[must_use]
pub fn token_hash(token: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(token.as_bytes()) {
        write!(text, "{byte:02x}").expect("writing to memory does not fail");
    }
    text
}

/// Whether a worker's token is the one whose hash is here.
#[must_use]
pub fn token_fits(entry: &Entry, token: &str) -> bool {
    entry.token_hash == token_hash(token)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn entry(id: &str) -> Entry {
        Entry {
            worker_id: id.into(),
            session_id: "ses_1".into(),
            generation: Generation(3),
            provider: "pi".into(),
            mark: "mark".into(),
            token_hash: token_hash("canary"),
            spec: None,
            started_at: "t".into(),
            cgroup: None,
            identity: None,
        }
    }

    #[test]
    fn a_journal_is_whole_private_and_without_the_token() {
        let folder = tempfile::TempDir::new().unwrap();
        let home = Home::at(folder.path().to_owned(), None)
            .unwrap()
            .prepare()
            .unwrap();
        let (second, mut first) = (entry("wrk_2"), entry("wrk_1"));
        write(&home, &second).unwrap();
        write(&home, &first).unwrap();
        first.identity = Some(ProcessIdentity::current().unwrap());
        write(&home, &first).unwrap();
        let path = home.journal(&first.worker_id);
        assert!(!fs::read_to_string(&path).unwrap().contains("canary"));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );

        fs::write(
            home.journal(&"wrk_3".into()),
            "{\"workerId\":\"wrk_3\",\"ses",
        )
        .unwrap();
        fs::write(home.journal_dir().join("wrk_1.stderr"), "x").unwrap();
        let all = read_all(&home).unwrap();
        assert_eq!(all.entries, [first.clone(), second]);
        assert_eq!(all.damaged, [home.journal(&"wrk_3".into())]);
        assert!(token_fits(&first, "canary") && !token_fits(&first, "Canary"));

        remove(&home, &first.worker_id);
        remove(&home, &first.worker_id);
        assert!(!path.exists() && !home.worker_stderr(&first.worker_id).exists());
        assert_eq!(read_all(&home).unwrap().entries.len(), 1);
    }

    #[test]
    fn the_hash_is_sha_256() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(token_hash("abc"), known);
    }
}
