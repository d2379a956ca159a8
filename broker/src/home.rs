//! The folder that a broker lives in: `ADE_HOME`.
//!
//! Invariants:
//! - every path that is handed out is absolute, and after [`Home::prepare`] the
//!   root is free of symbolic links, so that two spellings are one home;
//! - folders are 0700 and belong to the calling user, whatever the umask;
//! - both socket paths fit into a socket address.
//!
//! What this module does not do: hold the home. That is [`crate::lock`].

mod error;
mod folders;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ade_protocol::{SessionId, WorkerId};

pub use error::HomeError;
use folders::{could_be_made, is_absent, is_ours, is_writable, own_folder};

use crate::files;
use crate::platform::SOCKET_PATH_LIMIT;

/// Names the home; absent: `~/.ade`.
pub const HOME_ENV: &str = "ADE_HOME";
/// Moves the control socket out of the home.
pub const SOCKET_ENV: &str = "ADE_RPC_SOCKET_PATH";

const CONTROL: &str = "control socket";
const WORKERS: &str = "workers' socket";

/// Where everything of one broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
    /// Set when the control socket is elsewhere.
    socket: Option<PathBuf>,
}

impl Home {
    /// Finds the home by the environment: `ADE_HOME`, else `$HOME/.ade`.
    /// Makes nothing. Command line and broker come to the same paths.
    ///
    /// # Errors
    /// [`HomeError`] when there is none, a path is not absolute, or a socket
    /// path is too long.
    pub fn resolve(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, HomeError> {
        let given = |name: &'static str| lookup(name).filter(|value| !value.is_empty());
        let absolute = |name: &'static str, value: OsString| {
            let path = PathBuf::from(value);
            if path.is_absolute() {
                Ok(path)
            } else {
                Err(HomeError::NotAbsolute { name, path })
            }
        };
        let root = match given(HOME_ENV) {
            Some(value) => absolute(HOME_ENV, value)?,
            None => absolute("HOME", given("HOME").ok_or(HomeError::Nowhere)?)?.join(".ade"),
        };
        let socket = given(SOCKET_ENV)
            .map(|value| absolute(SOCKET_ENV, value))
            .transpose()?;
        Self::at(root, socket)
    }

    /// The home at `root`, with the control socket at `socket` where given.
    ///
    /// # Errors
    /// [`HomeError`] when a path is not absolute or a socket path is too long.
    pub fn at(root: PathBuf, socket: Option<PathBuf>) -> Result<Self, HomeError> {
        for (name, path) in [(HOME_ENV, Some(&root)), (SOCKET_ENV, socket.as_ref())] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return Err(HomeError::NotAbsolute {
                    name,
                    path: path.clone(),
                });
            }
        }
        // A home that exists is known by its real path from the start; the
        // socket's length is that of the real path too.
        let root = fs::canonicalize(&root).unwrap_or(root);
        for (name, path) in [(HOME_ENV, Some(&root)), (SOCKET_ENV, socket.as_ref())] {
            if let Some(path) = path.filter(|path| path.to_str().is_none()) {
                return Err(HomeError::NotText {
                    name,
                    path: path.clone(),
                });
            }
        }
        let home = Self { root, socket };
        home.check_socket_paths()?;
        Ok(home)
    }

    /// Makes the folders that are missing, makes all of them private, and
    /// returns the home by its real path.
    ///
    /// # Errors
    /// [`HomeError`] when the home, or a folder in it, is not a writable folder
    /// of ours.
    pub fn prepare(self) -> Result<Self, HomeError> {
        own_folder(&self.root)?;
        let root = fs::canonicalize(&self.root).map_err(|source| HomeError::Prepare {
            path: self.root.clone(),
            source,
        })?;
        let home = Self {
            root,
            socket: self.socket,
        };
        home.check_socket_paths()?;
        for folder in home.folders() {
            own_folder(&folder)?;
        }
        Ok(home)
    }

    /// Whether [`Home::prepare`] would succeed. Makes and changes nothing.
    ///
    /// # Errors
    /// As [`Home::prepare`], for the first folder that is in the way.
    pub fn inspect(&self) -> Result<(), HomeError> {
        for folder in std::iter::once(self.root.clone()).chain(self.folders()) {
            match fs::symlink_metadata(&folder) {
                Ok(_) if !files::is_dangling(&folder) => {
                    is_ours(&folder)?;
                    is_writable(&folder)?;
                }
                Ok(_) => could_be_made(&folder)?,
                Err(error) if is_absent(&error) => could_be_made(&folder)?,
                Err(source) => {
                    return Err(HomeError::Prepare {
                        path: folder,
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// The folders below the root, those above others first.
    fn folders(&self) -> [PathBuf; 7] {
        [
            self.root.join("sock"),
            self.run_dir(),
            self.journal_dir(),
            self.hosts_dir(),
            self.root.join("transcripts"),
            self.transcripts_dir(),
            self.logs_dir(),
        ]
    }

    fn check_socket_paths(&self) -> Result<(), HomeError> {
        for (what, path) in [
            (WORKERS, self.workers_socket()),
            (CONTROL, self.control_socket()),
        ] {
            let length = path.as_os_str().as_bytes().len();
            if length > SOCKET_PATH_LIMIT {
                return Err(HomeError::SocketPathTooLong {
                    what,
                    path,
                    length,
                    limit: SOCKET_PATH_LIMIT,
                });
            }
        }
        Ok(())
    }

    /// The home itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Socket that clients connect to.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| self.root.join("sock/ade.sock"))
    }

    /// What belongs to the running broker.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Socket that workers report to.
    #[must_use]
    pub fn workers_socket(&self) -> PathBuf {
        self.root.join("run/workers.sock")
    }

    /// Held for a broker's life.
    #[must_use]
    pub fn broker_lock(&self) -> PathBuf {
        self.root.join("run/broker.lock")
    }

    /// Journals of live workers.
    #[must_use]
    pub fn journal_dir(&self) -> PathBuf {
        self.root.join("run/workers")
    }

    /// Journal of one worker.
    #[must_use]
    pub fn journal(&self, worker: &WorkerId) -> PathBuf {
        self.journal_dir().join(file_name(worker.as_str(), "json"))
    }

    /// What one worker wrote to its standard error.
    #[must_use]
    pub fn worker_stderr(&self, worker: &WorkerId) -> PathBuf {
        self.journal_dir()
            .join(file_name(worker.as_str(), "stderr"))
    }

    /// Whom one worker listed because they hide from its mark; not there while
    /// nobody does.
    #[must_use]
    pub fn worker_hidden(&self, worker: &WorkerId) -> PathBuf {
        self.journal_dir()
            .join(file_name(worker.as_str(), "hidden"))
    }

    /// Unpacked host scripts.
    #[must_use]
    pub fn hosts_dir(&self) -> PathBuf {
        self.root.join("run/hosts")
    }

    /// The database.
    #[must_use]
    pub fn state_db(&self) -> PathBuf {
        self.root.join("state.db")
    }

    /// Transcripts of chats.
    #[must_use]
    pub fn transcripts_dir(&self) -> PathBuf {
        self.root.join("transcripts/chat")
    }

    /// Transcript of one chat.
    #[must_use]
    pub fn transcript(&self, session: &SessionId) -> PathBuf {
        self.transcripts_dir()
            .join(file_name(session.as_str(), "jsonl"))
    }

    /// Log files.
    #[must_use]
    pub fn logs_dir(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The user's configuration; need not exist.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// What a provider keeps that has no folder of its own elsewhere. Made by
    /// whoever needs it.
    #[must_use]
    pub fn agent_dir(&self, provider: &str) -> PathBuf {
        self.root.join("agents").join(provider)
    }

    /// Session files of the scripted provider. Made by whoever needs it.
    #[must_use]
    pub fn scripted_store(&self) -> PathBuf {
        self.agent_dir("scripted").join("sessions")
    }
}

/// An id as a file name. Ids come from clients and workers too, so nothing in
/// one may lead out of the folder.
fn file_name(id: &str, extension: &str) -> String {
    let keep = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    let name: String = id
        .chars()
        .map(|letter| if keep(letter) { letter } else { '_' })
        .collect();
    format!("{name}.{extension}")
}
