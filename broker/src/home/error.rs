//! Why there is no usable home, and what can be done about it.

use std::io;
use std::path::PathBuf;

use ade_protocol::exit;

use super::{CONTROL, HOME_ENV, SOCKET_ENV};
use crate::files;

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
    /// A path from the environment is no text; workers and clients are told it as
    /// text.
    #[error("{name} must be a path in UTF-8, but it is `{}`", path.display())]
    NotText {
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
            Self::Nowhere
            | Self::NotAbsolute { .. }
            | Self::NotText { .. }
            | Self::SocketPathTooLong { .. } => exit::USAGE,
            _ => exit::FAILED,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Nowhere => format!("set {HOME_ENV} to an absolute path"),
            Self::NotAbsolute { name, .. } => format!("set {name} to an absolute path"),
            Self::NotText { name, .. } => {
                format!("set {name} to a path whose every name is text in UTF-8")
            }
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
