//! The demo's own place: a folder, and a broker that is its child.
//!
//! Whatever happens, dropping the stage ends the broker and everything that was
//! seen below it, and removes the folder unless it is to be kept. Where the demo
//! itself is killed and drops nothing, its guard does it (the module `guard`).

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use ade_broker::home::{Home, SOCKET_ENV};
use ade_leases::process::{
    Liveness, Pid, ProcessIdentity, Signal, Target, descendants, signal, table,
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::guard::{FOLDER_PREFIX, Guard, HOME_NAME};
use crate::client::Client;
use crate::context::home_error;
use crate::error::CommandError;
use crate::start::serve_command;

/// How long the broker may take until it answers.
const START: Duration = Duration::from_secs(10);
/// How long it may take to end.
const END: Duration = Duration::from_secs(8);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// A process that was below the broker.
#[derive(Debug)]
struct Seen {
    identity: ProcessIdentity,
    /// Number of the chat whose worker stood above it, where one did.
    chat: Option<usize>,
}

/// The demo's own place.
#[derive(Debug)]
pub(super) struct Stage {
    folder: Option<TempDir>,
    /// Let go of last, when all is gone.
    guard: Option<Guard>,
    path: PathBuf,
    /// The broker's home.
    pub(super) home: Home,
    broker: Child,
    /// The broker's pid.
    pub(super) pid: Pid,
    seen: HashMap<(i32, u64), Seen>,
    ended: bool,
}

impl Stage {
    /// Makes the folder, starts the broker, and connects.
    pub(super) async fn set(keep: bool, lanes: &[&str]) -> Result<(Self, Client), CommandError> {
        let (folder, home) = place()?;
        let path = folder.path().to_owned();
        for lane in lanes {
            std::fs::create_dir_all(path.join("lanes").join(lane)).map_err(|e| at(&path, e))?;
        }
        let home = home.prepare().map_err(|e| home_error(&e))?;
        let said = File::create(path.join("broker.err")).map_err(|e| at(&path, e))?;
        let broker = serve_command(&home, &["--quiet"])
            .env_remove(SOCKET_ENV)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .map_err(|e| {
                CommandError::failed("the demo's broker could not be started").because(e)
            })?;
        let pid = Pid::new(i64::from(broker.id()))
            .ok_or_else(|| CommandError::failed("the demo's broker has no usable pid"))?;
        let kept = if keep {
            // From here on the folder is the user's.
            let _ = folder.keep();
            None
        } else {
            Some(folder)
        };
        let mut stage = Self {
            folder: kept,
            guard: None,
            path,
            home,
            broker,
            pid,
            seen: HashMap::new(),
            ended: false,
        };
        stage.guard = Some(Guard::start(&stage.home, pid, keep)?);
        let client = stage.connect().await?;
        Ok((stage, client))
    }

    /// The folder of all.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the folder stays.
    pub(super) fn is_kept(&self) -> bool {
        self.folder.is_none()
    }

    /// A lane's folder.
    pub(super) fn lane(&self, name: &str) -> PathBuf {
        self.path.join("lanes").join(name)
    }

    async fn connect(&mut self) -> Result<Client, CommandError> {
        let deadline = Instant::now() + START;
        let socket = self.home.control_socket();
        loop {
            match Client::connect(&socket).await {
                Ok(client) => return Ok(client),
                Err(error) if !error.nobody_there() => return Err(error.into()),
                Err(error) if Instant::now() >= deadline => return Err(error.into()),
                Err(_) => {}
            }
            if let Ok(Some(status)) = self.broker.try_wait() {
                self.ended = true;
                let said =
                    std::fs::read_to_string(self.path.join("broker.err")).unwrap_or_default();
                return Err(
                    CommandError::failed(format!("the demo's broker ended with {status}"))
                        .because(said.trim().to_owned()),
                );
            }
            sleep(LOOK).await;
        }
    }

    /// Remembers every process that is below the broker now, and whose it is:
    /// `workers` are the workers' pids by the chats' numbers.
    pub(super) fn remember_processes(&mut self, workers: &[(usize, i32)]) {
        let Ok(table) = table() else { return };
        for entry in descendants(self.pid, &table) {
            if let Ok(identity) = entry.identity() {
                let key = (identity.pid.get(), identity.start_ticks);
                self.seen.entry(key).or_insert(Seen {
                    identity,
                    chat: None,
                });
            }
        }
        for (chat, worker) in workers {
            let Some(worker) = Pid::new(i64::from(*worker)) else {
                continue;
            };
            let below: HashSet<i32> = descendants(worker, &table)
                .iter()
                .map(|entry| entry.pid.get())
                .chain([worker.get()])
                .collect();
            for seen in self.seen.values_mut() {
                if below.contains(&seen.identity.pid.get()) {
                    seen.chat.get_or_insert(*chat);
                }
            }
        }
    }

    /// How many processes have been below the broker so far.
    pub(super) fn processes_seen(&self) -> usize {
        self.seen.len()
    }

    /// Waits for the broker's end after it was told to stop.
    pub(super) async fn wait_for_end(&mut self) -> Result<ExitStatus, CommandError> {
        let deadline = Instant::now() + END;
        loop {
            match self.broker.try_wait() {
                Ok(Some(status)) => {
                    self.ended = true;
                    return Ok(status);
                }
                Ok(None) if Instant::now() < deadline => sleep(LOOK).await,
                Ok(None) => {
                    return Err(CommandError::failed(format!(
                        "the demo's broker did not end within {} s",
                        END.as_secs()
                    )));
                }
                Err(e) => {
                    return Err(CommandError::failed("the demo's broker was lost").because(e));
                }
            }
        }
    }

    /// The processes that were below the broker and still live, each with the
    /// number of its chat.
    pub(super) fn leftovers(&self) -> Vec<(i32, Option<usize>)> {
        let mut alive: Vec<_> = self
            .seen
            .values()
            .filter(|seen| !matches!(seen.identity.liveness(), Liveness::Dead(_)))
            .map(|seen| (seen.identity.pid.get(), seen.chat))
            .collect();
        alive.sort_unstable();
        alive
    }

    #[expect(clippy::disallowed_methods, reason = "our own child, not reaped yet")]
    fn end_by_force(&mut self) {
        self.remember_processes(&[]);
        if let Ok(Some(identity)) = ProcessIdentity::of(self.pid) {
            let _ = signal(&Target::Process(identity), Signal::SIGTERM);
        }
        let deadline = std::time::Instant::now() + END;
        while std::time::Instant::now() < deadline {
            if !matches!(self.broker.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.ended {
            self.end_by_force();
        }
        for seen in self.seen.values() {
            let _ = signal(&Target::Process(seen.identity.clone()), Signal::SIGKILL);
        }
    }
}

/// A folder whose name is short enough for sockets in it.
fn place() -> Result<(TempDir, Home), CommandError> {
    let folder_in = |base: &Path| {
        tempfile::Builder::new()
            .prefix(FOLDER_PREFIX)
            .rand_bytes(6)
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(base)
            .map_err(|e| at(base, e))
    };
    let usual = folder_in(&std::env::temp_dir())?;
    if let Ok(home) = Home::at(usual.path().join(HOME_NAME), None) {
        return Ok((usual, home));
    }
    let short = folder_in(Path::new("/tmp"))?;
    let home = Home::at(short.path().join(HOME_NAME), None).map_err(|e| home_error(&e))?;
    Ok((short, home))
}

fn at(path: &Path, error: std::io::Error) -> CommandError {
    CommandError::failed(format!(
        "the demo's folder in {} could not be made",
        path.display()
    ))
    .because(error)
    .hint("set TMPDIR to a folder that is writable for you")
}
