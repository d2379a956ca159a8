//! The two ways in: as a worker and as a host.

use std::error::Error;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::time::Duration;

use ade_leases::process;
use ade_protocol::boot::{MARK_ENV, SCRIPTED_HOST_ARG};

use crate::boot;
use crate::env::PARENT_ENV;
use crate::providers::scripted;
use crate::session::{Session, Signals};
use crate::tree;

/// Exit code of a process that was not started as it must be.
const USAGE: u8 = 64;

/// Exit code of a worker that failed inside.
const SOFTWARE: u8 = 70;

/// Exit codes of a host whose program could not be run, as shells have them.
pub(crate) const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// How long the way out of a panic waits for what it killed.
const PANIC_SWEEP: Duration = Duration::from_secs(2);

/// Runs this process as a worker, until its session is over.
///
/// Reads one [`ade_protocol::boot::WorkerBoot`] line from standard input, then
/// connects to the broker that it names. Must be called on the main thread,
/// before any other thread was started and any descriptor was opened.
///
/// Returns 0 when the worker ended in order, whatever became of its host; 64
/// when the boot line was not one; 70 after a failure inside, with the process
/// tree killed all the same. Reasons go to standard error.
#[must_use]
pub fn worker_main() -> ExitCode {
    let boot = match boot::begin() {
        Ok(boot) => boot,
        Err(error) => {
            complain("ade-worker", &error);
            return ExitCode::from(USAGE);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            complain("ade-worker", &error);
            return ExitCode::from(SOFTWARE);
        }
    };
    let mut session = match Session::new(boot) {
        Ok(session) => session,
        Err(error) => {
            complain("ade-worker", &error);
            return ExitCode::from(SOFTWARE);
        }
    };
    // The session outlives a panic inside of it: the lease must not be released
    // before everything below is dead.
    let run = async {
        let mut signals = Signals::listen()?;
        session.run(&mut signals).await;
        Ok::<(), std::io::Error>(())
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run)));
    if let Ok(Ok(())) = outcome {
        return ExitCode::SUCCESS;
    }
    if let Ok(Err(error)) = outcome {
        complain("ade-worker", &error);
    }
    let mark = std::env::var(MARK_ENV).ok();
    let mark = mark.as_deref().map(|mark| (MARK_ENV, mark));
    tree::kill_below_now(mark, session.cgroup(), PANIC_SWEEP);
    let _in_runtime = runtime.enter();
    drop(session);
    ExitCode::from(SOFTWARE)
}

/// Runs this process as a host: binds its life to its parent's, then becomes
/// the embedded scripted host (`--scripted`) or the given program
/// (`-- <program> <arguments>`).
///
/// Returns only for the scripted host and when the program could not be run:
/// 127 when it is not there, 126 for any other reason.
#[must_use]
pub fn host_main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let first = args.next().unwrap_or_default();
    if first == scripted::ORPHAN_ARG {
        let seconds = args.next().unwrap_or_default();
        return match scripted::be_orphan(&seconds.to_string_lossy()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if let Err(error) = follow_parent() {
        complain("ade-host", &error);
        return ExitCode::from(SOFTWARE);
    }
    if first == SCRIPTED_HOST_ARG {
        return scripted::run();
    }
    let Some(program) = args.next().filter(|_| first == "--") else {
        let _ = writeln!(
            std::io::stderr(),
            "ade-host: started by hand; it is started by ade-worker"
        );
        return ExitCode::from(USAGE);
    };
    let error = Command::new(&program)
        .args(args)
        .env_remove(PARENT_ENV)
        .exec();
    let _ = writeln!(
        std::io::stderr(),
        "ade-host: could not run {}: {error}",
        program.to_string_lossy()
    );
    ExitCode::from(match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUNNABLE,
    })
}

/// Asks for the parent-death signal, then looks whether the parent died before
/// it was asked for.
fn follow_parent() -> std::io::Result<()> {
    process::die_with_parent()?;
    let parent = std::env::var(PARENT_ENV)
        .ok()
        .and_then(|pid| pid.parse().ok());
    if parent == Some(nix::unistd::getppid().as_raw()) {
        return Ok(());
    }
    Err(std::io::Error::other(
        "the worker that started this host is gone",
    ))
}

/// Says on standard error why this process can't go on, with the causes.
fn complain(who: &str, error: &dyn Error) {
    let mut text = format!("{who}: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    let _ = writeln!(std::io::stderr(), "{text}");
}
