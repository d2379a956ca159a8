//! The folder that a broker lives in: `ADE_HOME`.
//!
//! Invariants:
//! - every path that is handed out is absolute, and after [`Home::prepare`] the
//!   root is free of symbolic links, so that two spellings are one home;
//! - folders are 0700 and belong to the calling user, whatever the umask;
//! - both socket paths fit into a socket address.
//!
//! What this module does not do: hold the home. That is [`crate::lock`].

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ade_protocol::{SessionId, WorkerId, exit};

use crate::files::{self, DIR_MODE};
use crate::platform::SOCKET_PATH_LIMIT;

/// Names the home; absent: `~/.ade`.
pub const HOME_ENV: &str = "ADE_HOME";
/// Moves the control socket out of the home.
pub const SOCKET_ENV: &str = "ADE_RPC_SOCKET_PATH";

/// Why there is no usable home.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Neither `ADE_HOME` nor `HOME` says where it should be.
    #[error("there is no home for ade: neither ADE_HOME nor HOME is set")]
    Nowhere,
    /// A path from the environment depends on the current directory.
    #[error("{name} must be an absolute path, but it is `{}`", path.display())]
    NotAbsolute {
        /// The environment variable.
        name: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// A socket path is longer than the system's socket addresses.
    #[error(
        "the path of the {what} is {length} bytes long, and this system allows {limit}: {}",
        path.display()
    )]
    SocketPathTooLong {
        /// `control socket` or `workers' socket`.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
        /// The most bytes that fit.
        limit: usize,
    },
    /// Something that is no folder has the folder's name.
    #[error("{} is not a folder", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The folder is another user's.
    #[error("{} belongs to user {owner}, and ade runs as user {user}", path.display())]
    NotOurs {
        /// The path.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who we are.
        user: u32,
    },
    /// Nothing can be written into the folder.
    #[error("{} is not writable", path.display())]
    NotWritable {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A symbolic link stands where the folder, or one above it, belongs.
    #[error("{} cannot be made: {} is a link to nowhere", path.display(), link.display())]
    LinkToNowhere {
        /// The folder.
        path: PathBuf,
        /// The link; perhaps the folder itself.
        link: PathBuf,
    },
    /// The file system has no room for what a broker writes.
    #[error("there is no room for a broker's files in {}", path.display())]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The folder cannot be made, or its mode cannot be set.
    #[error("could not prepare the folder {}", path.display())]
    Prepare {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl HomeError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Nowhere | Self::NotAbsolute { .. } | Self::SocketPathTooLong { .. } => {
                exit::USAGE
            }
            _ => exit::FAILED,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Nowhere => format!("set {HOME_ENV} to an absolute path"),
            Self::NotAbsolute { name, .. } => format!("set {name} to an absolute path"),
            Self::SocketPathTooLong { what: CONTROL, .. } => {
                format!(
                    "set {HOME_ENV} to a shorter path, or {SOCKET_ENV} to a short path for the socket alone"
                )
            }
            Self::SocketPathTooLong { .. } => format!("set {HOME_ENV} to a shorter path"),
            Self::NotAFolder { path } => {
                format!(
                    "move {} away, or set {HOME_ENV} to another path",
                    path.display()
                )
            }
            Self::LinkToNowhere { link, .. } => {
                format!("make what {} names, or remove it", link.display())
            }
            Self::NotOurs { owner, .. } => {
                format!("run ade as user {owner}, or set {HOME_ENV} to a folder of your own")
            }
            Self::NotWritable { path, source }
            | Self::Prepare { path, source }
            | Self::NoRoom { path, source } => files::remedy(path, source).unwrap_or_else(|| {
                format!("make it writable for you, or set {HOME_ENV} to another path")
            }),
        };
        vec![hint]
    }
}

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

/// Makes sure that `path` is a writable folder of ours with mode 0700.
fn own_folder(path: &Path) -> Result<(), HomeError> {
    let prepare = |source| HomeError::Prepare {
        path: path.to_owned(),
        source,
    };
    if let Some(link) = path.ancestors().find(|path| files::is_dangling(path)) {
        return Err(HomeError::LinkToNowhere {
            path: path.to_owned(),
            link: link.to_owned(),
        });
    }
    match files::make_private_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(HomeError::NotAFolder {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(prepare(error)),
    }
    let mode = is_ours(path)?;
    if mode != DIR_MODE {
        fs::set_permissions(path, Permissions::from_mode(DIR_MODE)).map_err(prepare)?;
    }
    is_writable(path)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Whether a folder that is missing could be made where it belongs.
fn could_be_made(path: &Path) -> Result<(), HomeError> {
    for above in path.ancestors() {
        match fs::symlink_metadata(above) {
            Ok(_) if files::is_dangling(above) => {
                return Err(HomeError::LinkToNowhere {
                    path: path.to_owned(),
                    link: above.to_owned(),
                });
            }
            Ok(_) if !above.is_dir() => {
                return Err(HomeError::NotAFolder {
                    path: above.to_owned(),
                });
            }
            Ok(_) => return is_writable(above),
            Err(error) if is_absent(&error) => {}
            Err(source) => {
                return Err(HomeError::Prepare {
                    path: path.to_owned(),
                    source,
                });
            }
        }
    }
    Ok(())
}

/// Whether `path` is a folder of ours; gives its mode.
fn is_ours(path: &Path) -> Result<u32, HomeError> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        // A symbolic link that leads nowhere also "exists already".
        Err(error) if is_absent(&error) => {
            return Err(HomeError::NotAFolder {
                path: path.to_owned(),
            });
        }
        Err(source) => {
            return Err(HomeError::Prepare {
                path: path.to_owned(),
                source,
            });
        }
    };
    if !found.is_dir() {
        return Err(HomeError::NotAFolder {
            path: path.to_owned(),
        });
    }
    let user = nix::unistd::geteuid().as_raw();
    if found.uid() != user {
        return Err(HomeError::NotOurs {
            path: path.to_owned(),
            owner: found.uid(),
            user,
        });
    }
    Ok(found.permissions().mode() & 0o7777)
}

fn is_writable(path: &Path) -> Result<(), HomeError> {
    rustix::fs::access(
        path,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )
    .map_err(|errno| HomeError::NotWritable {
        path: path.to_owned(),
        source: errno.into(),
    })
}
