//! `ade lease hold`: the lease of a session file around a command, or until
//! standard input ends.
//!
//! Invariants:
//! - the command runs only while the lease is held: it is started after, and
//!   whatever it has started is ended before the lease is given back. If
//!   something survives even SIGKILL, the lease is not given back at all;
//! - the command has no descriptor of the lease, so it can't keep it held;
//! - killed ourselves, the kernel ends the command (Linux): see
//!   [`follow`]. What the command has started itself then goes on; nobody but a
//!   supervisor of its own could end that.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use ade_leases::lease::{AcquireError, Lease, Released, Request, Standing, Watch, acquire};
use ade_leases::process::{self, Signal};
use ade_protocol::exit;
use serde_json::json;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::process::Child;
use tokio::time::sleep;

use super::signals::Signals;
use super::tree;
use crate::args::Hold;
use crate::context::Context;
use crate::error::CommandError;
use crate::output::Style;
use crate::start::own_command;

/// So many looks at the lease may fail in a row before it counts as lost.
const BLIND_LOOKS: u32 = 3;

/// Exit codes of a command that could not be run, as shells have them.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Runs the command.
pub(in crate::commands) async fn run(
    context: &Context,
    arguments: Hold,
) -> Result<(), CommandError> {
    let mut signals = Signals::listen()
        .map_err(|e| CommandError::failed("signals cannot be caught").because(e))?;
    let file = super::session_file(context, &arguments.file)?;
    let lease = take(file, &arguments, &mut signals).await?;
    let mut eye = Eye::new(&lease);
    if arguments.command.is_empty() {
        let end = alone(context, &arguments, &lease, &mut eye, &mut signals).await;
        let released = give_back(lease);
        return end.and(released);
    }
    around(context, &arguments, lease, eye, signals).await
}

async fn take(
    file: PathBuf,
    arguments: &Hold,
    signals: &mut Signals,
) -> Result<Lease, CommandError> {
    let request = Request {
        owner: arguments.owner.into(),
        owner_id: arguments.id.clone(),
        wait: arguments.wait,
    };
    // It waits in the kernel. When a signal ends us first, the thread ends with
    // the process, and what it may have taken is a dead lease.
    let taking = tokio::task::spawn_blocking(move || acquire(&file, &request));
    tokio::select! {
        taken = taking => taken
            .map_err(|e| CommandError::failed("the lease could not be taken").because(e))?
            .map_err(|error| refusal(&error)),
        signal = signals.next() => Err(CommandError::silent(code_of(signal))),
    }
}

/// A refused lease as the command line's error.
pub(in crate::commands) fn refusal(error: &AcquireError) -> CommandError {
    let (kind, code) = match error {
        error if error.is_contention() => ("held", exit::HELD),
        AcquireError::Unknown { .. } => ("held", exit::HELD),
        AcquireError::GuardTimeout { .. } => ("timed_out", exit::TIMED_OUT),
        AcquireError::NoDirectory { .. } | AcquireError::NotAFile { .. } => {
            ("invalid", exit::USAGE)
        }
        _ => ("failed", exit::FAILED),
    };
    let refused = CommandError::new(kind, code, error.to_string());
    match std::error::Error::source(error) {
        Some(source) => refused.because(source.to_string()),
        None => refused,
    }
}

fn code_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal as i32).unwrap_or(exit::FAILED)
}

/// Looks at the held lease when it is time to.
struct Eye {
    watch: Watch,
    readable: Option<AsyncFd<OwnedFd>>,
    failed: u32,
}

impl Eye {
    fn new(lease: &Lease) -> Self {
        let watch = Watch::new(lease);
        let readable = watch
            .descriptor()
            .and_then(|fd| fd.try_clone().ok())
            .and_then(readable);
        Self {
            watch,
            readable,
            failed: 0,
        }
    }

    /// Returns when the lease is no longer ours, with what is known of it. May
    /// be dropped and called again.
    async fn lost(&mut self, lease: &Lease) -> CommandError {
        loop {
            match self.watch.check(lease) {
                Ok(Standing::Ours) => self.failed = 0,
                Ok(Standing::Gone) => return lost(lease, "it was removed"),
                Ok(Standing::Foreign(Some(record))) => {
                    return lost(lease, &format!("it is now that of {record}"));
                }
                Ok(Standing::Foreign(None)) => return lost(lease, "something else is there"),
                Err(error) => {
                    self.failed += 1;
                    if self.failed >= BLIND_LOOKS {
                        return lost(lease, &format!("it can't be looked at: {error}"));
                    }
                }
            }
            match &self.readable {
                Some(readable) => match readable.readable().await {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => sleep(Watch::BLIND).await,
                },
                None => sleep(Watch::BLIND).await,
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "the replacement is an unsafe function; the descriptor is owned here and not \
              closed by anybody else"
)]
fn readable(fd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE).ok()
}

fn lost(lease: &Lease, how: &str) -> CommandError {
    let path = lease.path();
    let message = format!("the lease {} was lost: {how}", path.display());
    CommandError::new("lease_lost", exit::FAILED, message)
        .hint("look at what was written since; another program may have written, too")
}

fn give_back(lease: Lease) -> Result<(), CommandError> {
    let path = lease.path();
    match lease.release() {
        Ok(Released::Freed) => Ok(()),
        Ok(Released::HadBeenLost) => {
            let message = format!("the lease {} had been taken away", path.display());
            Err(CommandError::new("lease_lost", exit::FAILED, message)
                .hint("look at what was written since; another program may have written, too"))
        }
        Err(error) => Err(CommandError::failed("the lease was not given back").because(error)),
    }
}

/// Returns after the given time, or never.
async fn over(at_most: Option<Duration>) {
    match at_most {
        Some(time) => sleep(time).await,
        None => std::future::pending().await,
    }
}

async fn stdin_ended(look: bool) {
    if !look {
        return std::future::pending().await;
    }
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 4096];
    // An error ends it, too: nobody can say any more that we should go on.
    while stdin.read(&mut buffer).await.is_ok_and(|n| n > 0) {}
}

/// Holds without a command.
async fn alone(
    context: &Context,
    arguments: &Hold,
    lease: &Lease,
    eye: &mut Eye,
    signals: &mut Signals,
) -> Result<(), CommandError> {
    let record = lease.record();
    if context.out.json() {
        let line = json!({
            "state": "held",
            "file": lease.session_file().to_string_lossy(),
            "lease": lease.path().to_string_lossy(),
            "holder": record,
        });
        context.out.json_line(&line.to_string())?;
    } else {
        let line = format!("held  {} by {record}", lease.path().display());
        context.out.line(&line)?;
    }
    tokio::select! {
        error = eye.lost(lease) => Err(error),
        () = over(arguments.at_most) => Ok(()),
        () = stdin_ended(arguments.at_most.is_none()) => Ok(()),
        signal = signals.next() => match signal {
            Signal::SIGTERM => Ok(()),
            signal => Err(CommandError::silent(code_of(signal))),
        },
    }
}

/// How the time with the command ended.
enum End {
    /// By itself.
    Itself(io::Result<ExitStatus>),
    /// Its time was over.
    Over,
    /// The lease was lost.
    Lost(CommandError),
}

async fn around(
    context: &Context,
    arguments: &Hold,
    lease: Lease,
    mut eye: Eye,
    mut signals: Signals,
) -> Result<(), CommandError> {
    // Orphans of the command come to us instead of to the first process, so that
    // they are found. Where that can't be had they are not.
    let _ = process::become_subreaper();
    let mut child = match start(arguments, context.out.json()) {
        Ok(child) => child,
        Err(error) => {
            give_back(lease)?;
            return Err(CommandError::failed("the command could not be started").because(error));
        }
    };
    let end = tend(arguments, &lease, &mut eye, &mut signals, &mut child).await;
    match &end {
        End::Itself(_) => {}
        End::Over => context
            .out
            .must_note(Style::Warn, "the time is over: the command is stopped"),
        End::Lost(error) => context
            .out
            .must_note(Style::Bad, &format!("{error}: the command is stopped")),
    }
    let left = tree::end(&mut child, &mut signals).await;
    if !left.is_empty() {
        let pids: Vec<_> = left.iter().map(ToString::to_string).collect();
        // Not given back: it is freed when this process ends, which can't be
        // helped; but then it is dead, and that is told apart from free.
        std::mem::forget(lease);
        let message = format!("the processes {} survive SIGKILL", pids.join(", "));
        return Err(CommandError::failed(message)
            .hint("they hang in the kernel; the session is safe once they are gone"));
    }
    let released = give_back(lease);
    match end {
        End::Lost(error) => Err(error),
        End::Over => released.and(Err(CommandError::new(
            "timed_out",
            exit::TIMED_OUT,
            "the command was stopped because its time was over",
        ))),
        End::Itself(Err(error)) => {
            Err(CommandError::failed("the command's end was not seen").because(error))
        }
        End::Itself(Ok(status)) => {
            released?;
            let code = status.code().map_or_else(
                || 128 + status.signal().unwrap_or_default(),
                std::convert::identity,
            );
            match u8::try_from(code).unwrap_or(exit::FAILED) {
                exit::OK => Ok(()),
                code => Err(CommandError::silent(code)),
            }
        }
    }
}

/// Starts the command through ourselves: see [`follow`].
fn start(arguments: &Hold, json: bool) -> io::Result<Child> {
    let mut command = own_command();
    // What cannot be run is told as everything else is.
    command.args(json.then_some("--json"));
    command
        .arg("held-program")
        .args(["--parent", &std::process::id().to_string(), "--"])
        .args(&arguments.command);
    tokio::process::Command::from(command)
        .kill_on_drop(true)
        .spawn()
}

async fn tend(
    arguments: &Hold,
    lease: &Lease,
    eye: &mut Eye,
    signals: &mut Signals,
    child: &mut Child,
) -> End {
    let over = over(arguments.at_most);
    tokio::pin!(over);
    loop {
        tokio::select! {
            ended = child.wait() => return End::Itself(ended),
            error = eye.lost(lease) => return End::Lost(error),
            () = &mut over => return End::Over,
            signal = signals.next() => {
                if !Signals::is_from_our_terminal(signal) {
                    tree::pass_on(child, signal);
                }
            }
        }
    }
}

/// `ade held-program`: ties the process to its parent's life, then becomes the
/// command. Only the process itself can ask for that.
pub(in crate::commands) fn follow(
    parent: i32,
    command: &[std::ffi::OsString],
) -> Result<(), CommandError> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(CommandError::usage("there is no command"));
    };
    process::die_with_parent()
        .map_err(|e| CommandError::failed("the command cannot be bound to us").because(e))?;
    // It may have ended before that was asked for.
    if nix::unistd::getppid().as_raw() != parent {
        return Err(CommandError::failed("the holder of the lease is gone"));
    }
    let error = std::process::Command::new(program).args(arguments).exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUNNABLE,
    };
    let program = program.to_string_lossy();
    let message = format!("{program} could not be run");
    Err(CommandError::new("not_runnable", code, message).because(error))
}
