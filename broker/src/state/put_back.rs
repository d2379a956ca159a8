//! A database whose files were removed under the broker that has it open.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::{State, StateError, failed};
use crate::files;

/// The files that SQLite keeps: the database, its log, the log's index.
pub(crate) fn files_of(path: &Path) -> [PathBuf; 3] {
    let beside = |extension| path.with_extension(extension);
    [path.to_owned(), beside("db-wal"), beside("db-shm")]
}

impl State {
    /// Writes the database anew at its path, from the files that are open, and goes
    /// on with that. Nothing that was committed is lost. Whatever stands at the
    /// path is replaced.
    ///
    /// # Errors
    /// [`StateError`]. Before the new file stands at the path all is as it was;
    /// when only the opening fails, the next broker has everything and this one
    /// has no database any more.
    pub fn put_back(&mut self, path: &Path) -> Result<(), StateError> {
        const OPERATION: &str = "put it back";
        let file = |source| StateError::File {
            path: path.to_owned(),
            source,
        };
        let staging = path.with_extension(format!("db{}put-back", files::STAGING));
        let copied = self.copy_to(&staging, OPERATION, file);
        if let Err(error) = copied {
            // Nothing better can be done about a leftover than to try.
            let _ = fs::remove_file(&staging);
            return Err(error);
        }
        let [_, log, index] = files_of(path);
        // A log of another database must never be taken for the new one's.
        for stale in [log, index] {
            files::remove_if_there(&stale).map_err(file)?;
        }
        fs::rename(&staging, path).map_err(file)?;
        // Closing the old one removes a log by its name: before there is a new one.
        let nothing = Connection::open_in_memory().map_err(failed(OPERATION))?;
        drop(std::mem::replace(&mut self.conn, nothing));
        *self = Self::open(path)?;
        Ok(())
    }

    fn copy_to(
        &self,
        staging: &Path,
        operation: &'static str,
        file: impl Fn(std::io::Error) -> StateError,
    ) -> Result<(), StateError> {
        files::remove_if_there(staging).map_err(&file)?;
        // SQLite fills an empty file, and leaves its mode as it is.
        let mut options = File::options();
        options.write(true).create_new(true);
        let made = files::open_private(staging, &mut options).map_err(&file)?;
        let name = staging.to_string_lossy();
        self.execute(operation, "VACUUM INTO ?1", [name.as_ref()])?;
        made.sync_all().map_err(file)
    }
}
