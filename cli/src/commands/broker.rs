//! `ade serve`, `ade status` and `ade stop`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_broker::home::Home;
use ade_broker::{limits, lock};
use ade_leases::process::{Liveness, Pid, ProcessIdentity, Signal, Target, signal};
use ade_protocol::action::{BrokerStatus, Nothing, name};
use ade_protocol::exit;
use jiff::Timestamp;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

use super::lists::age;
use crate::args::Serve;
use crate::client::{Client, ConnectError, QUICK};
use crate::context::{Context, home_error};
use crate::error::CommandError;
use crate::log;
use crate::output::Style;
use crate::{seam, start};

/// How long a broker may take to end its turns and workers.
const STOP: Duration = Duration::from_secs(60);
/// Pause between two looks at a process.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the broker until it is told to stop.
pub(super) fn serve(
    context: &Context,
    arguments: Serve,
    threads: usize,
) -> Result<(), CommandError> {
    let mut home = context.home()?;
    if let Some(socket) = arguments.socket {
        let socket = std::path::absolute(&socket).map_err(|e| {
            CommandError::usage(format!("the path {} cannot be used", socket.display())).because(e)
        })?;
        home = Home::at(home.root().to_owned(), Some(socket)).map_err(|e| home_error(&e))?;
    }
    let home = home.prepare().map_err(|e| home_error(&e))?;
    if arguments.detached {
        // A leader of a group cannot leave it; then it is detached already.
        let _ = nix::unistd::setsid();
    }
    let _log = log::start(&home.logs_dir())?;
    // Before anything else opens some: not every library says that none is left.
    limits::check_start().map_err(no_descriptors)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("ade-broker")
        .enable_all()
        .build()
        .map_err(|e| CommandError::failed("the runtime could not be started").because(e))?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = seam::serve(&home, build_hash(), arguments.replace) => result,
            never = announce(context, &home), if !arguments.detached => match never {},
        }
    });
    runtime.shutdown_background();
    if let Err(error) = &result {
        tracing::error!(kind = error.kind(), causes = ?error.causes(), "{error}");
    }
    result
}

fn no_descriptors(error: std::io::Error) -> CommandError {
    let hint = limits::hint_for(&error);
    let failed = CommandError::failed("too few files can be opened for a broker").because(error);
    match hint {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}

/// Tells people once this process answers on its socket.
async fn announce(context: &Context, home: &Home) -> std::convert::Infallible {
    let socket = home.control_socket();
    loop {
        sleep(LOOK).await;
        let Ok(client) = Client::connect(&socket).await else {
            continue;
        };
        if client.broker.runtime_info.pid == std::process::id() {
            break;
        }
    }
    let text = format!("serving {} (Ctrl-C stops)", socket.display());
    context.out.note(Style::Dim, &text);
    std::future::pending().await
}

/// Names the bytes of this executable: what two builds of one version differ in.
fn build_hash() -> String {
    let program = Path::new("/proc/self/exe");
    let program = if program.exists() {
        Ok(program.to_owned())
    } else {
        std::env::current_exe()
    };
    let hash = program.and_then(|program: PathBuf| {
        let mut hasher = Sha256::new();
        std::io::copy(
            &mut std::fs::File::open(program)?,
            &mut HashWriter(&mut hasher),
        )?;
        Ok(hasher.finalize())
    });
    hash.map_or_else(
        |_| "unknown".to_owned(),
        |hash| {
            hash.iter()
                .take(8)
                .map(|byte| format!("{byte:02x}"))
                .collect()
        },
    )
}

struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Says which broker runs.
pub(super) async fn status(context: &Context) -> Result<(), CommandError> {
    let mut client = context.running_broker().await?;
    let status: BrokerStatus = client.call(name::BROKER_STATUS, &Nothing {}, QUICK).await?;
    if context.out.json() {
        return context.out.document(&status);
    }
    let runtime = &status.runtime;
    let since = age(&status.started_at, Timestamp::now());
    let since = since.map_or_else(|| status.started_at.clone(), |age| format!("{age} ago"));
    let out = &context.out;
    out.line(&format!(
        "{}  process {}",
        out.paint(Style::Good, "running"),
        runtime.pid
    ))?;
    let lines = [
        (
            "version",
            format!("{} (build {})", runtime.version, runtime.build_hash),
        ),
        ("started", since),
        ("home", runtime.project_root.clone()),
        ("socket", status.socket.clone()),
        ("fence", status.fence.to_string()),
        (
            "sessions",
            format!("{}, {} with a worker", status.sessions, status.workers),
        ),
        ("turns", status.turns.to_string()),
        ("cards", format!("{} open", status.open_cards)),
        ("clients", status.clients.to_string()),
        ("files", format!("{} of {}", status.fds.0, status.fds.1)),
    ];
    for (label, value) in lines {
        out.line(&format!("  {label:<9} {value}"))?;
    }
    Ok(())
}

/// Ends every turn and worker, then the broker, and waits until it is gone.
pub(super) async fn stop(context: &Context) -> Result<(), CommandError> {
    let home = context.home()?;
    let client = match Client::connect(&home.control_socket()).await {
        Ok(client) => client,
        Err(error) if error.nobody_there() || error.is_full() => {
            return nothing_to_stop(context, &home).await;
        }
        Err(ConnectError::Version { pid, .. }) => return stop_by_signal(context, pid).await,
        Err(error) => return Err(error.into()),
    };
    stop_it(context, client).await
}

async fn stop_it(context: &Context, mut client: Client) -> Result<(), CommandError> {
    let pid = client.broker.runtime_info.pid;
    let identity = identity(pid)?;
    match client
        .call::<_, Nothing>(name::BROKER_STOP, &Nothing {}, STOP)
        .await
    {
        Ok(_) => {}
        // It ended before its answer was written.
        Err(error) if error.kind() == "broker_gone" => {}
        Err(error) => return Err(error),
    }
    gone(context, identity, pid).await
}

async fn nothing_to_stop(context: &Context, home: &Home) -> Result<(), CommandError> {
    // One that is starting, or stopping, holds the lock without listening; one
    // that has no place for us hears a signal.
    if let Ok(Some(holder)) = lock::holder(home) {
        let pid = u32::try_from(holder.pid).unwrap_or_default();
        return stop_by_signal(context, pid).await;
    }
    let left = seam::left_behind(home);
    if left.workers.is_empty() && left.strays.is_empty() {
        return told(context, "no broker runs", None);
    }
    // One that crashed left processes: a new one takes them over and stops them.
    let client = start::connect_or_start(home.clone()).await?;
    stop_it(context, client).await
}

async fn stop_by_signal(context: &Context, pid: u32) -> Result<(), CommandError> {
    if let Some(identity) = identity(pid)? {
        signal(&Target::Process(identity), Signal::SIGTERM).map_err(|error| {
            CommandError::failed(format!(
                "the broker with pid {pid} could not be told to stop"
            ))
            .because(error)
        })?;
    }
    gone(context, identity(pid)?, pid).await
}

pub(super) fn identity(pid: u32) -> Result<Option<ProcessIdentity>, CommandError> {
    let Some(pid) = Pid::new(i64::from(pid)) else {
        return Ok(None);
    };
    ProcessIdentity::of(pid).map_err(|error| {
        CommandError::failed(format!("the broker with pid {pid} cannot be looked at"))
            .because(error)
    })
}

async fn gone(
    context: &Context,
    identity: Option<ProcessIdentity>,
    pid: u32,
) -> Result<(), CommandError> {
    let deadline = Instant::now() + STOP;
    while let Some(identity) = &identity {
        if matches!(identity.liveness(), Liveness::Dead(_)) {
            break;
        }
        if Instant::now() >= deadline {
            let message = format!(
                "the broker with pid {pid} did not end within {} s",
                STOP.as_secs()
            );
            let error = CommandError::new("timed_out", exit::TIMED_OUT, message);
            let raw = identity.pid.get();
            let hints = lock::remedies(raw).into_iter();
            return Err(hints.fold(error, CommandError::hint));
        }
        sleep(LOOK).await;
    }
    told(
        context,
        &format!("the broker with pid {pid} is stopped"),
        Some(pid),
    )
}

fn told(context: &Context, text: &str, pid: Option<u32>) -> Result<(), CommandError> {
    if context.out.json() {
        return context
            .out
            .document(&json!({"stopped": pid.is_some(), "pid": pid}));
    }
    context.out.note(Style::Plain, text);
    Ok(())
}
