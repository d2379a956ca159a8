//! Starting the broker when a command needs one.
//!
//! Several commands may find no broker at once. They queue on
//! `run/start.lock`, one of them starts `ade serve --detached`, and all connect
//! to what answers. The lock only saves work: that there is one broker is the
//! broker lock's doing.
//!
//! The broker makes itself independent (a session of its own, no terminal, no
//! directory of ours, none of a worker's marks), so it outlives the command.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use ade_broker::home::Home;
use ade_broker::lock;
use ade_protocol::boot::MARK_ENV;
use ade_protocol::exit;
use nix::fcntl::{Flock, FlockArg};
use tokio::time::{Instant, sleep};

use crate::client::{Client, ConnectError};
use crate::context::home_error;
use crate::error::CommandError;
use crate::output::full_message;
use crate::seam;

/// How long a broker may take until it answers; once more as long when it
/// holds the lock by then.
const START: Duration = Duration::from_secs(10);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(15);
/// Most bytes that are read of what a broker said before it failed.
const LAST_WORDS: u64 = 4096;
const NOT_STARTED: &str = "the broker could not be started";
/// Set for everything that a chat starts; a broker is nobody's chat.
const CHAT_ENV: &str = "ADE_CHAT_SESSION_ID";

/// Connects, and starts a broker first where none listens.
///
/// # Errors
/// Why none could be started, in its own words and with its exit code where
/// that says more than "failed".
pub(crate) async fn connect_or_start(home: Home) -> Result<Client, CommandError> {
    match Client::connect(&home.control_socket()).await {
        Ok(client) => return Ok(client),
        Err(error) if error.nobody_there() => {}
        // A folder that cannot be used says more than its socket.
        Err(error @ ConnectError::Unreachable { .. }) => {
            return Err(home
                .prepare()
                .err()
                .map_or_else(|| error.into(), |e| home_error(&e)));
        }
        Err(error) => return Err(error.into()),
    }
    let home = home.prepare().map_err(|e| home_error(&e))?;
    let mut deadline = Instant::now() + START;
    let mut extended = false;
    let mut starter: Option<Starter> = None;
    loop {
        if starter.is_none() {
            starter = Starter::try_take(&home)?;
        }
        if let Some(client) = probe(&home).await? {
            return Ok(client);
        }
        if let Some(starter) = &mut starter {
            starter.go_on()?;
        }
        if Instant::now() >= deadline && !extended && lock::holder(&home).is_ok_and(|h| h.is_some())
        {
            // It runs and is still ending what an earlier one left.
            deadline += START;
            extended = true;
        }
        if Instant::now() >= deadline {
            return Err(too_slow(&home, starter.as_mut()));
        }
        sleep(LOOK).await;
    }
}

async fn probe(home: &Home) -> Result<Option<Client>, CommandError> {
    match Client::connect(&home.control_socket()).await {
        Ok(client) => Ok(Some(client)),
        Err(error) if error.nobody_there() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The one command that starts the broker, as long as it holds the lock.
struct Starter {
    _lock: Flock<File>,
    home: Home,
    child: Option<Child>,
    said: PathBuf,
}

impl Starter {
    fn try_take(home: &Home) -> Result<Option<Self>, CommandError> {
        let path = home.run_dir().join("start.lock");
        let failed = |source: std::io::Error| {
            CommandError::failed(format!("could not take {}", path.display())).because(source)
        };
        let file = private_file(&path, false).map_err(failed)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Self {
                _lock: lock,
                home: home.clone(),
                child: None,
                said: home.logs_dir().join("serve.err"),
            })),
            Err((_, nix::errno::Errno::EWOULDBLOCK | nix::errno::Errno::EINTR)) => Ok(None),
            Err((_, errno)) => Err(failed(errno.into())),
        }
    }

    /// Starts the broker, or looks whether the started one has given up.
    fn go_on(&mut self) -> Result<(), CommandError> {
        let Some(child) = &mut self.child else {
            self.child = Some(self.spawn()?);
            return Ok(());
        };
        match child.try_wait() {
            Ok(None) => Ok(()),
            // Somebody else's broker is about to answer.
            Ok(Some(status)) if status.code() == Some(i32::from(exit::ALREADY_RUNNING)) => Ok(()),
            Ok(Some(status)) => {
                let said = last_words(&self.said);
                if said.trim().is_empty()
                    && let Some(obstacle) = seam::obstacles(&self.home).into_iter().next()
                {
                    return Err(silenced(&obstacle));
                }
                Err(gave_up(status, &said))
            }
            Err(source) => {
                Err(CommandError::failed("could not look after the broker").because(source))
            }
        }
    }

    fn spawn(&self) -> Result<Child, CommandError> {
        let failed = |source: std::io::Error| {
            CommandError::new("start_failed", exit::NO_BROKER, NOT_STARTED).because(source)
        };
        let said = private_file(&self.said, true).map_err(|source| {
            let obstacles = seam::obstacles(&self.home);
            obstacles
                .first()
                .map_or_else(|| failed(with_path(&self.said, &source)), silenced)
        })?;
        serve_command(&self.home, &["--detached"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .map_err(failed)
    }
}

/// `ade serve` of this very executable for `home`, without what would make it
/// part of a chat.
#[must_use]
pub(crate) fn serve_command(home: &Home, flags: &[&str]) -> Command {
    let mut command = unmarked_command(home);
    command.arg("serve").args(flags);
    command
}

/// This very executable for `home`, without what would make it part of a chat;
/// the command is still to be named.
#[must_use]
pub(crate) fn unmarked_command(home: &Home) -> Command {
    let mut command = own_command();
    command
        .arg("--home")
        .arg(home.root())
        .current_dir(home.root())
        .env_remove(MARK_ENV)
        .env_remove(CHAT_ENV);
    command
}

/// This executable, even when its file was replaced meanwhile.
#[must_use]
pub(crate) fn own_command() -> Command {
    let itself = Path::new("/proc/self/exe");
    let program: OsString = if itself.exists() {
        itself.into()
    } else {
        std::env::current_exe().map_or_else(|_| "ade".into(), Into::into)
    };
    let mut command = Command::new(program);
    command.arg0("ade");
    command
}

fn private_file(path: &Path, truncate: bool) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(truncate)
        .mode(0o600)
        .open(path)
}

fn with_path(path: &Path, source: &std::io::Error) -> std::io::Error {
    std::io::Error::new(source.kind(), format!("{}: {source}", path.display()))
}

/// For a broker that could not even say why it ended: what is in its way was
/// found out here.
fn silenced(obstacle: &CommandError) -> CommandError {
    let error = CommandError::new("start_failed", exit::NO_BROKER, NOT_STARTED)
        .because(full_message(obstacle));
    let hints = obstacle.hints().iter().cloned();
    hints.fold(error, CommandError::hint)
}

fn last_words(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))?;
        let mut bytes = Vec::new();
        file.take(LAST_WORDS).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

/// What a broker said on standard error, taken apart again.
fn gave_up(status: ExitStatus, said: &str) -> CommandError {
    let code = match status.code().and_then(|code| u8::try_from(code).ok()) {
        None | Some(exit::OK | exit::FAILED) => exit::NO_BROKER,
        Some(code) => code,
    };
    let mut error = CommandError::new("start_failed", code, NOT_STARTED);
    let mut causes = Vec::new();
    let mut hints = Vec::new();
    for line in said.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("hint: ") {
            Some(hint) => hints.push(hint),
            None => {
                let line = line.strip_prefix("error: ").unwrap_or(line);
                causes.push(line.strip_prefix("cause: ").unwrap_or(line));
            }
        }
    }
    error = if causes.is_empty() {
        error
            .because(format!("it ended with {status} and said nothing"))
            .hint("`ade doctor` looks for what is in its way")
    } else {
        error.because(causes.join(": "))
    };
    hints.into_iter().fold(error, CommandError::hint)
}

fn too_slow(home: &Home, starter: Option<&mut Starter>) -> CommandError {
    let socket = home.control_socket();
    let message = format!(
        "no broker answered on {} within {} s",
        socket.display(),
        START.as_secs()
    );
    let mut error = CommandError::new("no_broker", exit::NO_BROKER, message)
        .hint(format!("its log is in {}", home.logs_dir().display()))
        .hint("`ade serve` in another terminal shows how far it comes");
    if let Some(starter) = starter {
        let said = last_words(&starter.said);
        if !said.trim().is_empty() {
            error = error.because(said.trim().to_owned());
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn the_brokers_own_words_and_code_come_through() {
        let said =
            "error: the path is too long\n  cause: 200 bytes\n  hint: choose a shorter one\n";
        let table = [(0, exit::NO_BROKER), (1, exit::NO_BROKER), (2, 2), (6, 6)];
        for (code, expected) in table {
            let error = gave_up(ExitStatus::from_raw(code << 8), said);
            assert_eq!(error.code(), expected);
            assert_eq!(error.causes(), ["the path is too long: 200 bytes"]);
            assert_eq!(error.hints(), ["choose a shorter one"]);
        }
        let killed = gave_up(ExitStatus::from_raw(9), "");
        assert_eq!(killed.code(), exit::NO_BROKER);
        assert!(killed.causes()[0].contains("said nothing"));
    }
}
