//! The calls into the broker's library, in one place.

use std::error::Error;
use std::path::PathBuf;

use ade_broker::home::Home;
use ade_leases::process::Pid;
use ade_protocol::action::ProviderInfo;

use crate::error::CommandError;

/// Runs the broker.
pub(crate) async fn serve(
    _home: &Home,
    _build_hash: String,
    _replace: bool,
) -> Result<(), CommandError> {
    Err(CommandError::failed("the broker is not part of this build"))
}

/// What brokers that are gone left behind.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    /// Processes that are alive.
    pub(crate) alive: Vec<Pid>,
    /// Journal files that cannot be read.
    pub(crate) damaged: Vec<PathBuf>,
}

/// Looks for what brokers that are gone left behind. Changes nothing.
#[must_use]
pub(crate) fn strays(_home: &Home) -> Strays {
    Strays::default()
}

/// The kinds of agents, looked at from here.
pub(crate) async fn providers(_home: &Home) -> Vec<ProviderInfo> {
    Vec::new()
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
