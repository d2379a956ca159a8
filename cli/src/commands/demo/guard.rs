//! What cleans up after a demo that was killed.
//!
//! `ade demo-guard` is a process beside the demo, in a group of its own, that
//! reads a pipe whose other end the demo alone holds. A demo that ends by itself
//! says so, and the guard leaves. Where the pipe ends without a word, the demo
//! was killed: the guard then stops its broker, as `ade stop` does, and removes
//! its folder. It touches no folder that is not named like a demo's.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use ade_broker::home::{Home, SOCKET_ENV};
use ade_leases::process::{Liveness, Pid};
use ade_protocol::exit;
use tokio::time::{Instant, sleep};

use crate::args::DemoGuard;
use crate::commands::broker;
use crate::context::Context;
use crate::error::CommandError;
use crate::start::unmarked_command;

/// How the names of demos' folders begin.
pub(super) const FOLDER_PREFIX: &str = "ade-demo-";
/// The broker's home in such a folder.
pub(super) const HOME_NAME: &str = "home";
/// What the demo says when nothing is left to do.
const WELL: &[u8] = b"well";
/// How long the broker may take until it is gone.
const GONE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// The demo's side of its guard.
#[derive(Debug)]
pub(super) struct Guard {
    process: Child,
}

impl Guard {
    /// Starts the guard of the broker `pid` in `home`.
    pub(super) fn start(home: &Home, pid: Pid, keep: bool) -> Result<Self, CommandError> {
        let mut command = unmarked_command(home);
        command.args(["demo-guard", "--broker", &pid.to_string()]);
        if keep {
            command.arg("--keep");
        }
        // What a terminal sends to the demo's group is not for the guard.
        command.process_group(0).env_remove(SOCKET_ENV);
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| {
                CommandError::failed("the demo's guard could not be started").because(e)
            })?;
        Ok(Self { process })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let told = self
            .process
            .stdin
            .take()
            .is_some_and(|mut pipe| pipe.write_all(WELL).is_ok());
        // One that did not hear it has work to do and is not waited for.
        if told {
            let _ = self.process.wait();
        }
    }
}

/// `ade demo-guard`: waits for the demo's end, and cleans up where the demo did
/// not.
pub(in crate::commands) async fn guard(
    context: &Context,
    arguments: &DemoGuard,
) -> Result<(), CommandError> {
    let home = context.home()?;
    let identity = broker::identity(arguments.broker)?;
    if last_words() == WELL {
        return Ok(());
    }
    let Some(folder) = demo_folder(home.root()) else {
        let message = format!("{} is no demo's home", home.root().display());
        return Err(CommandError::usage(message));
    };
    let deadline = Instant::now() + GONE;
    loop {
        // One that is still starting does not hear it: it is told again.
        let stopped = broker::stop(context).await;
        let gone = identity
            .as_ref()
            .is_none_or(|identity| matches!(identity.liveness(), Liveness::Dead(_)));
        if gone && stopped.is_ok() {
            break;
        }
        if Instant::now() >= deadline {
            let message = "the demo's broker did not end";
            return Err(CommandError::new("timed_out", exit::TIMED_OUT, message));
        }
        sleep(LOOK).await;
    }
    if arguments.keep {
        return Ok(());
    }
    std::fs::remove_dir_all(folder).map_err(|e| {
        CommandError::failed(format!("{} could not be removed", folder.display())).because(e)
    })
}

/// What the demo said until its end. Nothing else is to be done meanwhile.
fn last_words() -> Vec<u8> {
    let mut words = Vec::new();
    // An input that cannot be read has nobody at its other end either.
    let _ = std::io::stdin()
        .lock()
        .take(WELL.len() as u64)
        .read_to_end(&mut words);
    words
}

fn demo_folder(home: &Path) -> Option<&Path> {
    let folder = home.parent()?;
    let named =
        home.file_name()? == HOME_NAME && folder.file_name()?.to_str()?.starts_with(FOLDER_PREFIX);
    (named && !folder.is_symlink()).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folder_of_a_demo_is_ever_taken_away() {
        let table = [
            ("/tmp/ade-demo-a1B2c3/home", Some("/tmp/ade-demo-a1B2c3")),
            ("/tmp/ade-demo-a1B2c3", None),
            ("/tmp/ade-demo-a1B2c3/other", None),
            ("/home/me/home", None),
            ("/home", None),
            ("/", None),
        ];
        for (home, expected) in table {
            assert_eq!(
                demo_folder(Path::new(home)),
                expected.map(Path::new),
                "{home}"
            );
        }
    }
}
