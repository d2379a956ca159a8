//! Whether a running broker still stands on its home.
//!
//! Somebody may remove the home, or a part of it, under a broker. A kernel lock
//! on a removed file keeps nobody out, so a second broker could start, and the
//! first one would go on for ever where nobody can reach it; and what is written
//! to a file without a name is lost. So a broker looks now and then:
//!
//! | gone, or another by device and inode | what happens |
//! |---|---|
//! | the home | nothing is left to serve: every session is stopped and the broker ends |
//! | `run` or `run/workers` | the same: without the journals nobody could find the workers of a broker that dies. The next broker makes them anew |
//! | `state.db` is another file | the same: two truths can't be kept. The next broker takes the one that stands there |
//! | `state.db` or its log is gone | it is put back, whole, from what the broker has open |
//! | the folder of the transcripts | it is made again. What was in it is gone, which the turns that were writing are told ([`crate::transcript`]) |
//! | the lock file | the lock is taken again, and whoever has it by now gets the sessions |
//! | a socket | it is bound again. One that somebody else put there is left alone |
//!
//! What this module does not do: act. It only says what is so.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::home::Home;
use crate::lock::BrokerLock;
use crate::state;

/// How often it is looked at. Two brokers that don't know of each other last no
/// longer than this.
pub const LOOK: Duration = Duration::from_secs(2);

/// What became of the home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Footing {
    /// All is as it was.
    Firm,
    /// The lock is not on the file of its name any more.
    LockLost,
    /// This is not there any more, or another has its name, and nothing can go on
    /// without it.
    Gone(PathBuf),
    /// The folder of the transcripts is not there any more, or another has its name.
    TranscriptsLost,
    /// The database, or its log, is not there any more.
    StateLost,
}

/// A path and what stood there.
type Seen = (PathBuf, (u64, u64));

/// The home as it was when the broker started.
#[derive(Clone, Debug)]
pub struct Ground {
    home: Home,
    /// Nothing can go on without these, those above others first.
    folders: [Seen; 3],
    transcripts: Seen,
    /// The database first.
    state: Vec<Seen>,
}

impl Ground {
    /// Remembers which folders and files the home consists of. The database is
    /// open, so that its log is there.
    ///
    /// # Errors
    /// One of them can't be looked at; which one.
    pub fn of(home: &Home) -> Result<Self, (PathBuf, io::Error)> {
        let state = state::files_of(&home.state_db());
        Ok(Self {
            folders: [
                seen(home.root())?,
                seen(&home.run_dir())?,
                seen(&home.journal_dir())?,
            ],
            transcripts: seen(&home.transcripts_dir())?,
            state: state
                .iter()
                .map(|path| seen(path))
                .collect::<Result<_, _>>()?,
            home: home.clone(),
        })
    }

    /// Remembers anew, after something was mended.
    ///
    /// # Errors
    /// As [`Ground::of`]; then what was remembered stays.
    pub fn renew(&mut self) -> Result<(), (PathBuf, io::Error)> {
        *self = Self::of(&self.home)?;
        Ok(())
    }

    /// Looks. What can't be looked at for another reason than that it is not
    /// there counts as unchanged: not seeing it is not losing it.
    #[must_use]
    pub fn footing(&self, lock: &BrokerLock) -> Footing {
        let lost = |(path, file): &&Seen| !is_same(path, *file);
        if let Some((path, _)) = self.folders.iter().find(lost) {
            return Footing::Gone(path.clone());
        }
        if let Some((database, _)) = self.state.first().filter(lost)
            && fs::symlink_metadata(database).is_ok()
        {
            return Footing::Gone(database.clone());
        }
        if !lock.is_in_place() {
            Footing::LockLost
        } else if self.state.iter().any(|file| lost(&file)) {
            Footing::StateLost
        } else if lost(&&self.transcripts) {
            Footing::TranscriptsLost
        } else {
            Footing::Firm
        }
    }
}

fn seen(path: &Path) -> Result<Seen, (PathBuf, io::Error)> {
    match identity(path) {
        Ok(found) => Ok((path.to_owned(), found)),
        Err(error) => Err((path.to_owned(), error)),
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
    use crate::state::State;

    fn prepared(root: &Path) -> (Home, State) {
        let home = Home::at(root.to_owned(), None).unwrap().prepare().unwrap();
        let state = State::open(&home.state_db()).unwrap();
        (home, state)
    }

    #[test]
    fn what_is_removed_or_replaced_is_noticed() {
        let folder = tempfile::TempDir::new().unwrap();
        let root = folder.path().join("home");
        let (home, _state) = prepared(&root);
        let lock = BrokerLock::take(&home, "1").unwrap();
        let ground = Ground::of(&home).unwrap();
        assert_eq!(ground.footing(&lock), Footing::Firm);
        fs::remove_file(home.broker_lock()).unwrap();
        assert_eq!(ground.footing(&lock), Footing::LockLost);
        let again = BrokerLock::take(&home, "1").unwrap();
        assert_eq!(ground.footing(&again), Footing::Firm);
        assert_eq!(ground.footing(&lock), Footing::LockLost, "another file");
        fs::rename(&root, folder.path().join("moved")).unwrap();
        let gone = Footing::Gone(home.root().to_owned());
        assert_eq!(ground.footing(&again), gone);
        let _another = prepared(&root);
        assert_eq!(ground.footing(&again), gone);
    }

    #[test]
    fn each_part_is_named() {
        type Change = fn(&Home);
        type Expected = fn(&Home) -> Footing;
        let table: [(&str, Change, Expected); 7] = [
            (
                "run",
                |home| fs::remove_dir_all(home.run_dir()).unwrap(),
                |home| Footing::Gone(home.run_dir()),
            ),
            (
                "journals",
                |home| fs::remove_dir_all(home.journal_dir()).unwrap(),
                |home| Footing::Gone(home.journal_dir()),
            ),
            (
                "transcripts",
                |home| fs::remove_dir_all(home.transcripts_dir()).unwrap(),
                |_| Footing::TranscriptsLost,
            ),
            (
                "other transcripts",
                |home| {
                    fs::rename(home.transcripts_dir(), home.root().join("old")).unwrap();
                    fs::create_dir(home.transcripts_dir()).unwrap();
                },
                |_| Footing::TranscriptsLost,
            ),
            (
                "the database",
                |home| fs::remove_file(home.state_db()).unwrap(),
                |_| Footing::StateLost,
            ),
            (
                "the log",
                |home| fs::remove_file(home.root().join("state.db-wal")).unwrap(),
                |_| Footing::StateLost,
            ),
            (
                "another database",
                |home| {
                    let other = home.root().join("other");
                    fs::write(&other, "").unwrap();
                    fs::rename(other, home.state_db()).unwrap();
                },
                |home| Footing::Gone(home.state_db()),
            ),
        ];
        for (what, change, expected) in table {
            let folder = tempfile::TempDir::new().unwrap();
            let (home, mut state) = prepared(folder.path());
            let lock = BrokerLock::take(&home, "1").unwrap();
            let mut ground = Ground::of(&home).unwrap();
            change(&home);
            assert_eq!(ground.footing(&lock), expected(&home), "{what}");
            if expected(&home) == Footing::StateLost {
                state.put_back(&home.state_db()).unwrap();
                ground.renew().unwrap();
                assert_eq!(ground.footing(&lock), Footing::Firm, "{what}");
            }
        }
    }
}
