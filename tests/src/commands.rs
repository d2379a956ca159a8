//! Commands that carry other commands: `ade` below a shell, with limits, in a
//! namespace of its own, as another user.
//!
//! What [`crate::ade::Ade::command`] sets is set on the command that is started;
//! what a test puts around it has to have the same, or the inner one runs with
//! the home and the variables of whoever runs the tests.

use std::process::{Command, Stdio};

/// `outer`, which runs its last arguments as a command, with `inner` as these:
/// program and arguments. It gets what [`like`] gives it.
#[must_use]
pub fn within(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    like(outer, inner)
}

/// A command with the environment and the folder of another one, and nothing to
/// read. A command does not tell where its standard output and its standard
/// errors go: those stay as they were.
#[must_use]
pub fn like(mut command: Command, other: &Command) -> Command {
    for (name, value) in other.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = other.get_current_dir() {
        command.current_dir(folder);
    }
    command.stdin(Stdio::null());
    command
}
