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
    /// The home was removed under the running broker.
    #[error("{} was removed or replaced; its sessions were stopped", home.display())]
    HomeGone {
        /// The home.
        home: PathBuf,
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
            | Self::HomeGone { .. } => exit::FAILED,
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
            Self::HomeGone { .. } => "home_gone",
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
            Self::Signals(error) => limits::hint_for(error).into_iter().collect(),
            Self::HomeGone { .. } => Vec::new(),
        }
    }
}
