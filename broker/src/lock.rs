//! One broker per home.
//!
//! A kernel lock (`flock`) on `run/broker.lock`, held for the broker's life.
//! The kernel lets go of it when the process ends, however it ends, so a
//! leftover file blocks nobody, and a pid that was given to somebody else
//! proves nothing. The file's content only tells people and clients who holds
//! the lock. The file itself is never removed: whoever locks a removed file
//! holds nothing.
//!
//! Whoever holds the lock may remove stale sockets of the home and bind new
//! ones; nobody else may.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ade_leases::process::{Liveness, ProcessIdentity};
use ade_protocol::exit;
use ade_protocol::rpc::RpcError;
use ade_protocol::strict;
use fs4::{FileExt, TryLockError};
use serde::{Deserialize, Serialize};

use crate::home::Home;
use crate::{clock, files, footing};

/// How long a loser tries on while the lock has no name.
const NAME_WAIT: Duration = Duration::from_millis(500);
/// Pause between two looks at the lock.
const POLL: Duration = Duration::from_millis(10);
/// More than this is not a lock file of ours.
const MAX_CONTENT: u64 = 64 * 1024;

/// Who holds the lock, by its own word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Its pid.
    pub pid: i32,
    /// Its identity, where the system can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<ProcessIdentity>,
    /// Its control socket.
    pub socket: PathBuf,
    /// When it started: RFC 3339, UTC, milliseconds.
    pub started_at: String,
    /// Its version.
    pub version: String,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another broker runs in this home.
    #[error("a broker is already running{}", described(.0.as_deref()))]
    AlreadyRunning(
        /// Which one; absent when it has not written its name.
        Option<Box<Holder>>,
    ),
    /// The broker that runs does not answer, so it does not hand over.
    #[error("the broker with pid {} does not hand over{}", .0.pid, if is_stopped(.0.pid) { ": it is stopped" } else { "" })]
    Stuck(
        /// Which one.
        Box<Holder>,
    ),
    /// The broker that runs says that it does not hand over.
    #[error("the broker with pid {} does not hand over: {}", holder.pid, why.message)]
    Refused {
        /// Which one.
        holder: Box<Holder>,
        /// Why, in its words.
        why: RpcError,
    },
    /// The lock was free, for its file had been removed under a broker that
    /// still listens.
    #[error(
        "the lock was free, and yet a broker{} listens on {} and does not let go of it",
        pid.map_or_else(String::new, |pid| format!(", process {pid},")), path.display()
    )]
    StillListening {
        /// Its pid, where the system tells.
        pid: Option<i32>,
        /// Its socket.
        path: PathBuf,
    },
    /// The lock was free, for its file had been removed under a broker that
    /// still has hold of the home.
    #[error(
        "the lock was free, and yet a broker{} has hold of {} and does not let go of it",
        pid.map_or_else(String::new, |pid| format!(", process {pid},")), path.display()
    )]
    StillHeld {
        /// Its pid, where the system tells.
        pid: Option<i32>,
        /// The home.
        path: PathBuf,
    },
    /// The lock file cannot be used.
    #[error("could not {operation} the broker lock {}", path.display())]
    Io {
        /// `open`, `lock` or `write`.
        operation: &'static str,
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn described(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| {
        format!(
            ": process {}, version {}, since {}, socket {}",
            holder.pid,
            holder.version,
            holder.started_at,
            holder.socket.display()
        )
    })
}

impl LockError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::AlreadyRunning(_) | Self::StillListening { .. } | Self::StillHeld { .. } => {
                exit::ALREADY_RUNNING
            }
            Self::Stuck(_) => exit::TIMED_OUT,
            Self::Refused { .. } | Self::Io { .. } => exit::FAILED,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::AlreadyRunning(Some(holder)) if is_stopped(holder.pid) => remedies(holder.pid),
            Self::AlreadyRunning(_) => vec!["use it, or end it with `ade stop`".into()],
            Self::Stuck(holder) => remedies(holder.pid),
            Self::Refused { why, .. } => why
                .data
                .iter()
                .flat_map(|data| data.hints.clone())
                .collect(),
            Self::StillListening { pid: Some(pid), .. }
            | Self::StillHeld { pid: Some(pid), .. } => remedies(*pid),
            Self::StillListening { .. } | Self::StillHeld { .. } => Vec::new(),
            Self::Io {
                operation,
                path,
                source,
            } => {
                vec![files::remedy(path, source).unwrap_or_else(|| remedy(operation, path))]
            }
        }
    }
}

/// What to do about a lock file when the error does not tell.
fn remedy(operation: &str, path: &std::path::Path) -> String {
    if operation == "lock" {
        "ADE_HOME must be on a file system with locks; choose another one".into()
    } else {
        format!(
            "{} must be a file that you can read and write: look at it and at the folder above",
            path.display()
        )
    }
}

/// The lock. Dropping it, or dying, lets go of it.
#[derive(Debug)]
pub struct BrokerLock {
    file: File,
    path: PathBuf,
    holder: Holder,
}

impl BrokerLock {
    /// Takes the lock or says who has it. Waits at most half a second, and only
    /// for the holder's name. The home must have been prepared.
    ///
    /// # Errors
    /// [`LockError::AlreadyRunning`] when another broker holds it.
    pub fn take(home: &Home, version: &str) -> Result<Self, LockError> {
        let path = home.broker_lock();
        let io = |operation| {
            let path = path.clone();
            move |source| LockError::Io {
                operation,
                path,
                source,
            }
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = files::open_private(&path, &mut options).map_err(io("open"))?;
        if let Some(holder) = lock_or_name(&mut file).map_err(io("lock"))? {
            return Err(LockError::AlreadyRunning(holder.map(Box::new)));
        }
        let holder = Holder {
            pid: nix::unistd::getpid().as_raw(),
            identity: ProcessIdentity::current().ok(),
            socket: home.control_socket(),
            started_at: clock::timestamp(),
            version: version.to_owned(),
        };
        write_holder(&mut file, &holder).map_err(io("write"))?;
        Ok(Self { file, path, holder })
    }

    /// Like [`BrokerLock::take`], but waits up to `bound` for the holder to
    /// end. Blocks the thread.
    ///
    /// # Errors
    /// As [`BrokerLock::take`], after `bound`.
    pub fn take_within(home: &Home, version: &str, bound: Duration) -> Result<Self, LockError> {
        let deadline = Instant::now() + bound;
        loop {
            match Self::take(home, version) {
                Err(LockError::AlreadyRunning(_)) if Instant::now() < deadline => {
                    std::thread::sleep(POLL);
                }
                other => return other,
            }
        }
    }

    /// Whether the lock file still is at its place. A lock on a removed one keeps
    /// nobody out.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let held = self.file.metadata();
        held.is_ok_and(|held| footing::is_same(&self.path, (held.dev(), held.ino())))
    }

    /// What the lock file says of us.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

impl Drop for BrokerLock {
    fn drop(&mut self) {
        // The name goes before the lock does, so that a loser never reads the
        // name of a broker that has ended orderly.
        let _ = self.file.set_len(0);
    }
}

/// Who holds the lock of this home now; `None` when nobody does or the holder
/// did not write its name. Takes the lock for a moment to see.
///
/// # Errors
/// The lock file exists and cannot be read.
pub fn holder(home: &Home) -> io::Result<Option<Holder>> {
    let mut file = match File::open(home.broker_lock()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match FileExt::try_lock_shared(&file) {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => read_name(&mut file),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether the lock can be taken by whoever is allowed to: takes and makes
/// nothing.
///
/// # Errors
/// The lock file is there and cannot be opened.
pub fn look(home: &Home) -> Result<(), LockError> {
    let path = home.broker_lock();
    match OpenOptions::new().read(true).write(true).open(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(LockError::Io {
            operation: "open",
            path,
            source,
        }),
        _ => Ok(()),
    }
}

/// Whether a process lives and does not run: SIGSTOP, Ctrl-Z or a debugger.
#[must_use]
pub fn is_stopped(pid: i32) -> bool {
    ade_leases::process::table().is_ok_and(|table| {
        table
            .iter()
            .any(|entry| entry.pid.get() == pid && matches!(entry.state, 'T' | 't'))
    })
}

/// What to do about a broker that holds the lock and does not answer.
#[must_use]
pub fn remedies(pid: i32) -> Vec<String> {
    let first = if is_stopped(pid) {
        format!("process {pid} is stopped; `kill -CONT {pid}` lets it go on")
    } else {
        format!("process {pid} may be busy: try again in a moment")
    };
    let last = format!(
        "`kill -9 {pid}` ends it; the next command starts a broker that takes its turns over"
    );
    vec![first, last]
}

fn write_holder(file: &mut File, holder: &Holder) -> io::Result<()> {
    let mut line = serde_json::to_vec(holder)?;
    line.push(b'\n');
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&line)
}

/// Locks the file, giving `None`, or names the holder. A holder that has only
/// just taken the lock has not written its name yet, a killed one has left its
/// own behind, and somebody who only looks holds the lock for a moment: so a
/// name counts only if its process may live, and until there is one we try on.
fn lock_or_name(file: &mut File) -> io::Result<Option<Option<Holder>>> {
    let deadline = Instant::now() + NAME_WAIT;
    loop {
        match FileExt::try_lock(file) {
            Ok(()) => return Ok(None),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        match read_name(file)? {
            Some(holder) => return Ok(Some(Some(holder))),
            None if Instant::now() >= deadline => return Ok(Some(None)),
            None => std::thread::sleep(POLL),
        }
    }
}

/// The name in the file, unless its process is known to be over.
fn read_name(file: &mut File) -> io::Result<Option<Holder>> {
    let mut content = Vec::new();
    file.rewind()?;
    Read::take(&mut *file, MAX_CONTENT).read_to_end(&mut content)?;
    let Ok(holder) = strict::from_slice::<Holder>(&content) else {
        return Ok(None);
    };
    let dead = holder
        .identity
        .as_ref()
        .is_some_and(|identity| matches!(identity.liveness(), Liveness::Dead(_)));
    Ok(Some(holder).filter(|_| !dead))
}
