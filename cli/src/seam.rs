//! The calls into the broker's library, in one place.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use ade_broker::config::Config;
use ade_broker::home::Home;
use ade_broker::journal;
use ade_broker::providers::Providers;
use ade_broker::sweep::{self, Survivor};
use ade_leases::process::{Liveness, is_being_killed, marked};
use ade_protocol::action::ProviderInfo;
use ade_protocol::boot::MARK_ENV;

use crate::error::CommandError;

/// Runs the broker.
pub(crate) async fn serve(
    home: &Home,
    build_hash: String,
    replace: bool,
) -> Result<(), CommandError> {
    let options = ade_broker::ServeOptions {
        home: home.root().to_owned(),
        socket: Some(home.control_socket()),
        version: env!("CARGO_PKG_VERSION").into(),
        build_hash,
        pi_host: ade_workers::hosts::PI_HOST,
        replace,
    };
    ade_broker::serve(options).await.map_err(serve_error)
}

/// What a broker that is gone left behind.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Workers that are alive: the next broker takes them over.
    pub(crate) workers: Vec<i32>,
    /// What is left of workers that are dead: the next broker ends it.
    pub(crate) strays: Vec<i32>,
    /// What was sent SIGKILL and lives on.
    pub(crate) stuck: Vec<Survivor>,
    /// Journal files that cannot be read.
    pub(crate) damaged: Vec<PathBuf>,
}

/// Looks for what a broker that is gone left behind. Changes nothing. While a
/// broker runs, its own workers are among them.
#[must_use]
pub(crate) fn left_behind(home: &Home) -> Left {
    let journals = journal::read_all(home).unwrap_or_default();
    let mut left = Left {
        damaged: journals.damaged,
        ..Left::default()
    };
    for entry in journals.entries {
        match entry.identity {
            Some(worker) if worker.liveness() == Liveness::Alive => {
                let stuck = sweep::stuck_below(&worker);
                if stuck.is_empty() {
                    left.workers.push(worker.pid.get());
                }
                left.stuck.extend(stuck);
            }
            _ => {
                let below = marked(MARK_ENV, &entry.mark).unwrap_or_default();
                let (stuck, strays): (Vec<_>, Vec<_>) =
                    below.into_iter().partition(|one| is_being_killed(one.pid));
                left.stuck.extend(sweep::survivors(&stuck));
                left.strays
                    .extend(strays.iter().map(|identity| identity.pid.get()));
            }
        }
    }
    left
}

/// What keeps a broker of this home from starting, as errors of the command
/// line. Only while none runs.
#[must_use]
pub(crate) fn obstacles(home: &Home) -> Vec<CommandError> {
    let found = ade_broker::preflight::obstacles(home);
    found.into_iter().map(serve_error).collect()
}

/// Whether a broker's files find room.
///
/// # Errors
/// The folder, why not, and what to do.
pub(crate) fn room(home: &Home) -> Result<(), CommandError> {
    ade_broker::preflight::room(home).map_err(|error| serve_error(error.into()))
}

fn serve_error(error: ade_broker::ServeError) -> CommandError {
    let told = CommandError::new(error.kind(), error.exit_code(), error.to_string());
    let hints = error.hints();
    hints
        .into_iter()
        .fold(told.because(error), CommandError::hint)
}

/// The kinds of agents, looked at from here.
pub(crate) async fn providers(home: &Home) -> Vec<ProviderInfo> {
    let home = home.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let config = Config::load(&home, |name| std::env::var_os(name)).unwrap_or_default();
        let env = std::env::vars_os()
            .filter_map(|(name, value)| name.into_string().ok().map(|name| (name, value)))
            .collect();
        Providers::new(home, Arc::new(config), env, ade_workers::hosts::PI_HOST).list()
    });
    looked.await.unwrap_or_default()
}

/// An error with its causes as one sentence.
#[must_use]
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
