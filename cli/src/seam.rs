//! The calls into the broker's library, in one place.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use ade_broker::config::Config;
use ade_broker::home::Home;
use ade_broker::journal;
use ade_broker::providers::Providers;
use ade_leases::process::{Liveness, marked};
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
    ade_broker::serve(options).await.map_err(|error| {
        let mut told = CommandError::new(error.kind(), error.exit_code(), error.to_string());
        for hint in error.hints() {
            told = told.hint(hint);
        }
        told.because(error)
    })
}

/// What brokers that are gone left behind.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    /// Processes that are alive.
    pub(crate) alive: Vec<i32>,
    /// Journal files that cannot be read.
    pub(crate) damaged: Vec<PathBuf>,
}

/// Looks for what brokers that are gone left behind. Changes nothing. Only
/// while no broker runs: the workers of a live one look the same.
#[must_use]
pub(crate) fn strays(home: &Home) -> Strays {
    let journals = journal::read_all(home).unwrap_or_default();
    let mut alive = BTreeSet::new();
    for entry in journals.entries {
        let worker = entry
            .identity
            .filter(|identity| identity.liveness() == Liveness::Alive);
        alive.extend(worker.map(|identity| identity.pid.get()));
        let below = marked(MARK_ENV, &entry.mark).unwrap_or_default();
        alive.extend(below.iter().map(|identity| identity.pid.get()));
    }
    Strays {
        alive: alive.into_iter().collect(),
        damaged: journals.damaged,
    }
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
