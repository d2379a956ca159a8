//! Chats with the real Pi, end to end: the executable, its broker, its workers
//! and Pi itself, against the fake model.

use std::path::Path;
use std::time::Duration;

mod cards;
mod command;
mod deaths;
mod delivered;
mod models;
mod sessions;
mod setup;
mod talk;

/// What the model says to a message without directives.
const HELLO: &str = "Hello from the fake model.";

/// How soon an abort or a stop must be seen.
const SOON: Duration = Duration::from_secs(5);

/// After that long nothing of a session may be alive.
const DEAD_WITHIN: Duration = Duration::from_secs(5);

fn path(path: &Path) -> String {
    path.display().to_string()
}
