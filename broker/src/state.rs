//! What must survive a broker: one SQLite database.
//!
//! Sessions with everything that is fixed for them, the running turn and the
//! queue of each, open cards, and the fence. Transcripts are not here.
//!
//! **Durability.** Write-ahead log, `synchronous = NORMAL`: a commit survives
//! the death of this process in every way, because the kernel has it, and costs
//! no disk flush, so a hundred sessions can start at once. Only a power cut may
//! take back the newest commits, and always whole ones from the end. The
//! [`StateHandle`]'s thread therefore flushes (a checkpoint) when it falls idle,
//! and once a second while it does not. After a power cut no worker lives
//! either, so nothing that is alive can contradict the older state; the one
//! number that also stands in transcripts, the generation, is put right by
//! [`State::raise_generation`]. The fence is flushed before it is given out.
//!
//! **Full disk.** A statement that finds no room fails as a whole
//! ([`StateError::Full`]) and is rolled back; nothing is half-written.
//!
//! Invariants:
//! - the file is 0600 and belongs to one broker, the holder of the broker lock;
//! - a database of a newer schema is not touched;
//! - no answer to a secret card is ever stored, only that there was one.
//!
//! What this module does not do: decide. It keeps rows.

mod cards;
mod deaths;
mod handle;
mod put_back;
mod rows;
mod schema;
mod sessions;
mod steers;
mod turns;

#[cfg(test)]
mod tests;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_protocol::{Fence, SessionId, exit};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

pub use deaths::Death;
pub use handle::StateHandle;
pub(crate) use put_back::files_of;
pub use rows::{CardRow, Flags, QueuedRow, SessionRow, Settled, TurnRow};
pub use steers::SteerRow;

use crate::{files, limits};

/// How long a statement waits for another connection. There is none but a
/// person's `sqlite3`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be made, opened or made private.
    #[error("could not open the database {}", path.display())]
    File {
        /// The database.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was written by a newer ade.
    #[error(
        "the database {} has schema {found}, and this ade knows schema {known} at most",
        path.display()
    )]
    NewerSchema {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema that this version knows.
        known: i64,
    },
    /// There is no room on the disk; nothing was written.
    #[error("the disk is full: could not {operation}")]
    Full {
        /// What was being done.
        operation: &'static str,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// No file can be opened any more.
    #[error("the database cannot open its files: could not {operation}")]
    NoDescriptor {
        /// What was being done.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another program holds the database.
    #[error("another program holds the database: could not {operation}")]
    Locked {
        /// What was being done.
        operation: &'static str,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// The file is no database, or a damaged one.
    #[error("the database is damaged: could not {operation}")]
    Damaged {
        /// What was being done.
        operation: &'static str,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// Anything else that SQLite refuses.
    #[error("could not {operation} in the database")]
    Sql {
        /// What was being done.
        operation: &'static str,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// A row holds what this version cannot read.
    #[error("could not {operation}: the row of {id} is not what this version writes")]
    Row {
        /// What was being done.
        operation: &'static str,
        /// Which row.
        id: String,
    },
    /// There is no such session, or it was deleted.
    #[error("there is no session {0}")]
    NoSession(
        /// The session.
        SessionId,
    ),
    /// The session has a running turn already.
    #[error("session {0} has a running turn already")]
    TurnRuns(
        /// The session.
        SessionId,
    ),
    /// The database's thread has ended.
    #[error("the database is closed")]
    Closed,
}

impl StateError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoSession(_) => exit::USAGE,
            _ => exit::FAILED,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let remedy = match self {
            Self::File { path, source } => files::remedy(path, source),
            Self::NoDescriptor { source, .. } => limits::hint_for(source),
            _ => None,
        };
        if let Some(remedy) = remedy {
            return vec![remedy];
        }
        let hint = match self {
            Self::File { path, .. } if files::is_dangling(path) => {
                "it is a link to nowhere: remove it, or make the folder that it leads to"
            }
            Self::File { .. } => "the database must be a file of yours in ADE_HOME",
            Self::NewerSchema { .. } => {
                "use the newer ade that wrote it, or set ADE_HOME to another folder"
            }
            Self::Full { .. } => "make room on the disk that ADE_HOME is on",
            Self::Locked { .. } => "close the program that has the database open",
            Self::Damaged { .. } | Self::Row { .. } => {
                "stop the broker, move state.db, state.db-wal and state.db-shm away and start again; \
                 transcripts and the agents' own session files stay"
            }
            Self::NoSession(_) => "list the sessions with `ade ps`",
            Self::Sql { source, .. } => match source.sqlite_error_code() {
                Some(ErrorCode::CannotOpen) => {
                    "check that state.db and ADE_HOME are yours, and that the limit of open files \
                     (`ulimit -n`) leaves room"
                }
                Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                    "make state.db, state.db-wal and state.db-shm writable for you"
                }
                Some(ErrorCode::SystemIoFailure) => {
                    "look at the disk that ADE_HOME is on: the system could not read or write there"
                }
                _ => return Vec::new(),
            },
            Self::NoDescriptor { .. } | Self::TurnRuns(_) | Self::Closed => return Vec::new(),
        };
        vec![hint.into()]
    }
}

/// Turns SQLite's error codes into what they mean for the user.
fn failed(operation: &'static str) -> impl Fn(rusqlite::Error) -> StateError {
    move |source| match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StateError::Full { operation, source },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StateError::Locked { operation, source }
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StateError::Damaged { operation, source }
        }
        // SQLite does not say why.
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) => match limits::starved() {
            Some(source) => StateError::NoDescriptor { operation, source },
            None => StateError::Sql { operation, source },
        },
        _ => StateError::Sql { operation, source },
    }
}

/// The path as SQLite's URI; `still`: nobody changes the file meanwhile.
fn uri(path: &Path, still: bool) -> String {
    use std::fmt::Write;
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => write!(uri, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    if still {
        uri.push_str("?immutable=1");
    }
    uri
}

/// The open database. One connection, used by one thread.
#[derive(Debug)]
pub struct State {
    conn: Connection,
}

impl State {
    /// Opens the database, makes it if it is not there, and brings it to this
    /// version's schema.
    ///
    /// # Errors
    /// [`StateError`]; a database of a newer schema is left as it is.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // SQLite gives the log and its index the mode of the database.
        files::open_private(path, &mut options).map_err(|source| StateError::File {
            path: path.to_owned(),
            source,
        })?;
        let open = failed("open it");
        let conn = Connection::open(path).map_err(&open)?;
        conn.busy_timeout(BUSY_TIMEOUT).map_err(&open)?;
        schema::refuse_newer(&conn, path)?;
        conn.pragma_update(None, "journal_mode", "wal")
            .map_err(&open)?;
        conn.pragma_update(None, "synchronous", "normal")
            .map_err(&open)?;
        conn.pragma_update(None, "foreign_keys", "on")
            .map_err(&open)?;
        conn.set_prepared_statement_cache_capacity(64);
        schema::migrate(&conn)?;
        Ok(Self { conn })
    }

    /// Whether a broker could use the database, without changing anything in it.
    /// Only while no broker has it open.
    ///
    /// # Errors
    /// As [`State::open`].
    pub fn look(path: &Path) -> Result<(), StateError> {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(_) => {}
            Err(source)
                if source.kind() == io::ErrorKind::NotFound && !files::is_dangling(path) =>
            {
                return Ok(());
            }
            Err(source) => {
                return Err(StateError::File {
                    path: path.to_owned(),
                    source,
                });
            }
        }
        let failed = failed("read it");
        // Without a log there is nothing to recover, and SQLite need not even
        // make the index of one.
        let log = path.with_extension("db-wal");
        let still = std::fs::metadata(log).map_or(true, |log| log.len() == 0);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let conn = Connection::open_with_flags(uri(path, still), flags).map_err(&failed)?;
        conn.busy_timeout(BUSY_TIMEOUT).map_err(&failed)?;
        schema::refuse_newer(&conn, path)?;
        let said: String = conn
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(&failed)?;
        if said == "ok" {
            return Ok(());
        }
        let source = rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
            // The first line only says in which database.
            said.lines().last().map(str::to_owned),
        );
        Err(failed(source))
    }

    /// Does several things as one: all of it is written, or nothing. Nested
    /// calls join the outer one.
    ///
    /// # Errors
    /// What `steps` returns, after everything in it was taken back; or the
    /// commit's own error.
    pub fn atomically<T>(
        &self,
        steps: impl FnOnce(&Self) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        if !self.conn.is_autocommit() {
            return steps(self);
        }
        let begun = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate);
        // Dropping the transaction, on an error or a panic, takes it back.
        let transaction = begun.map_err(failed("begin a change"))?;
        let value = steps(self)?;
        transaction.commit().map_err(failed("write a change"))?;
        Ok(value)
    }

    /// The next fence: greater than every one before, and on the disk before it
    /// is returned.
    ///
    /// # Errors
    /// [`StateError`]; no fence was given out.
    pub fn next_fence(&self) -> Result<Fence, StateError> {
        const OPERATION: &str = "write the fence";
        let synchronous = |level| {
            self.conn
                .pragma_update(None, "synchronous", level)
                .map_err(failed(OPERATION))
        };
        synchronous("full")?;
        let sql = "INSERT INTO meta (name, value) VALUES ('fence', 1)
                   ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value";
        // To its very end: the commit is the last step of the statement, and
        // the row comes before it.
        let fence = self.query(OPERATION, sql, [], |row| {
            Ok(Fence(rows::unsigned(row.get(0)?)))
        });
        synchronous("normal")?;
        let gone = || StateError::Row {
            operation: OPERATION,
            id: "fence".to_owned(),
        };
        fence?.pop().ok_or_else(gone)
    }

    /// Puts every commit on the disk. Cheap when there is nothing to do.
    ///
    /// # Errors
    /// [`StateError`]; the commits are as safe as they were.
    pub fn flush(&self) -> Result<(), StateError> {
        self.conn
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            .map_err(failed("flush the log"))
    }

    /// Runs one prepared statement; gives the number of changed rows.
    fn execute(
        &self,
        operation: &'static str,
        sql: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<usize, StateError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(failed(operation))?;
        statement.execute(parameters).map_err(failed(operation))
    }

    /// Runs one prepared query and converts every row.
    fn query<T>(
        &self,
        operation: &'static str,
        sql: &str,
        parameters: impl rusqlite::Params,
        convert: impl Fn(&rusqlite::Row<'_>) -> Result<T, RowFault>,
    ) -> Result<Vec<T>, StateError> {
        let failed = failed(operation);
        let mut statement = self.conn.prepare_cached(sql).map_err(&failed)?;
        let mut found = statement.query(parameters).map_err(&failed)?;
        let mut rows = Vec::new();
        while let Some(row) = found.next().map_err(&failed)? {
            rows.push(convert(row).map_err(|fault| match fault {
                RowFault::Sql(source) => failed(source),
                RowFault::Value(id) => StateError::Row { operation, id },
            })?);
        }
        Ok(rows)
    }
}

/// Why a row could not be converted.
enum RowFault {
    Sql(rusqlite::Error),
    /// The id of the row.
    Value(String),
}

impl From<rusqlite::Error> for RowFault {
    fn from(source: rusqlite::Error) -> Self {
        Self::Sql(source)
    }
}
