//! Why a broker did not start.

use std::path::PathBuf;

use ade_protocol::exit;

use crate::config::ConfigError;
use crate::home::HomeError;
use crate::lock::LockError;
use crate::socket::SocketError;
use crate::spawn::SpawnError;
use crate::state::StateError;
use crate::{journal, leftovers, limits};

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// ADE_HOME cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Another broker runs, or the lock cannot be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// `config.toml` cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `state.db` cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// What the last broker left cannot be closed.
    #[error(transparent)]
    Leftovers(#[from] leftovers::LeftoverError),
    /// A socket cannot be bound.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Nothing can be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The home, or a part of it without which nothing can go on, was removed under
    /// the running broker.
    #[error("{} was removed or replaced under the broker; its sessions were stopped", path.display())]
    Gone {
        /// What is gone.
        path: PathBuf,
    },
    /// A broker would end with the chat that it lives in.
    #[error(
        "a broker must not live inside a chat of its own: this process was started by the agent \
         of {} (worker {})",
        .0.session_id, .0.worker_id
    )]
    InsideChat(Box<journal::Entry>),
    /// The signals of the process cannot be watched.
    #[error("the broker cannot watch its signals")]
    Signals(#[source] std::io::Error),
}

impl ServeError {
    /// The exit code for the command line.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Home(error) => error.exit_code(),
            Self::Lock(error) => error.exit_code(),
            Self::Config(error) => error.exit_code(),
            Self::State(error) => error.exit_code(),
            Self::Socket(error) => error.exit_code(),
            Self::Spawn(_)
            | Self::Signals(_)
            | Self::Leftovers(_)
            | Self::InsideChat(_)
            | Self::Gone { .. } => exit::FAILED,
        }
    }

    /// A stable word for the kind of failure.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Home(_) => "home",
            Self::Lock(LockError::AlreadyRunning(_)) => "already_running",
            Self::Lock(LockError::Stuck(_)) => "not_answering",
            Self::Lock(_) => "lock",
            Self::Config(_) => "config",
            Self::State(_) | Self::Leftovers(_) => "state",
            Self::Socket(_) => "socket",
            Self::Spawn(_) => "spawn",
            Self::Gone { .. } => "home_gone",
            Self::InsideChat(_) => "inside_chat",
            Self::Signals(_) => "signals",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Home(error) => error.hints(),
            Self::Lock(error) => error.hints(),
            Self::Config(error) => error.hints(),
            Self::State(error) => error.hints(),
            Self::Socket(error) => error.hints(),
            Self::Spawn(error) => error.hints(),
            Self::InsideChat(_) => {
                vec!["any `ade` command in a terminal of yours starts one that stays".to_owned()]
            }
            Self::Leftovers(leftovers::LeftoverError::State(error)) => error.hints(),
            Self::Signals(source) => limits::hint_for(source).into_iter().collect(),
            Self::Gone { .. } => vec![
                "any `ade` command starts a broker that makes what is missing; don't remove parts \
                 of ADE_HOME while one runs (`ade stop` ends it)"
                    .into(),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io;
    use std::os::unix::ffi::OsStringExt;

    use nix::errno::Errno;

    use super::*;
    use crate::home::Home;

    /// Each way to fail that carries what the system said.
    fn failures(source: impl Fn() -> io::Error) -> Vec<(&'static str, ServeError)> {
        let path = || PathBuf::from("/somewhere/thing");
        vec![
            (
                "home",
                HomeError::Prepare {
                    path: path(),
                    source: source(),
                }
                .into(),
            ),
            (
                "lock",
                LockError::Io {
                    operation: "open",
                    path: path(),
                    source: source(),
                }
                .into(),
            ),
            (
                "config",
                ConfigError::Read {
                    path: path(),
                    source: source(),
                }
                .into(),
            ),
            (
                "state",
                StateError::File {
                    path: path(),
                    source: source(),
                }
                .into(),
            ),
            (
                "socket",
                SocketError::Bind {
                    path: path(),
                    source: source(),
                }
                .into(),
            ),
            (
                "record",
                SpawnError::Record {
                    path: path(),
                    source: source(),
                }
                .into(),
            ),
        ]
    }

    #[test]
    fn a_hint_is_about_the_cause() {
        let system = |errno: Errno| move || io::Error::from_raw_os_error(errno as i32);
        type Cause = Box<dyn Fn() -> io::Error>;
        let table: [(&str, Cause, &str); 6] = [
            ("too many files", Box::new(system(Errno::EMFILE)), "ulimit"),
            ("all files", Box::new(system(Errno::ENFILE)), "this machine"),
            ("no room", Box::new(system(Errno::ENOSPC)), "make room"),
            ("read-only", Box::new(system(Errno::EROFS)), "read-only"),
            (
                "a folder",
                Box::new(system(Errno::EISDIR)),
                "move the folder",
            ),
            (
                "no text",
                Box::new(|| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8")),
                "UTF-8",
            ),
        ];
        for (cause, source, word) in &table {
            for (what, error) in failures(source) {
                let hints = error.hints().join("; ");
                assert!(hints.contains(word), "{what}, {cause}: {hints}");
            }
        }
        // What no file system without locks says.
        for errno in [Errno::EACCES, Errno::ENOENT, Errno::EINVAL, Errno::EMFILE] {
            let source = io::Error::from_raw_os_error(errno as i32);
            let error = ServeError::from(LockError::Io {
                operation: "write",
                path: PathBuf::from("/somewhere/thing"),
                source,
            });
            let hints = error.hints().join("; ");
            assert!(!hints.contains("with locks"), "{errno}: {hints}");
        }
    }

    #[test]
    fn a_home_that_is_no_text_is_said_to_be_none() {
        let odd = PathBuf::from(OsString::from_vec(b"/tmp/h\xffome".to_vec()));
        let plain = PathBuf::from("/tmp/home");
        for (root, socket, name) in [
            (odd.clone(), None, "ADE_HOME"),
            (plain, Some(odd.join("s")), "ADE_RPC_SOCKET_PATH"),
        ] {
            let error = Home::at(root, socket).expect_err("no home");
            assert!(error.to_string().contains("UTF-8"), "{error}");
            let hints = error.hints().join("; ");
            assert!(hints.contains(name) && hints.contains("UTF-8"), "{hints}");
        }
    }
}
