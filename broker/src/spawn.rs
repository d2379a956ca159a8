//! Starting workers.
//!
//! One thread of its own starts them: a start takes a millisecond of system
//! calls, and nothing about a worker may depend on which tokio thread it was
//! started from.
//!
//! Order of a start, and what it is good for:
//! 1. the cgroup, where there can be one, and the journal, without the
//!    identity: a worker never exists unrecorded;
//! 2. the process, as `ade-worker`, with an environment made from nothing and
//!    the home as its folder: it waits for its first line;
//! 3. the journal again, with the identity;
//! 4. the first line, which holds the token, through standard input: neither
//!    the command line nor the environment shows it.
//!
//! A worker that gets no first line ends by itself, so a start that fails
//! leaves nothing behind. The worker becomes a session leader by itself; it is
//! meant to outlive us and has no parent-death signal.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{self, Pid, ProcessIdentity, Signal, Target};
use ade_protocol::boot::{WORKER_ARGV0, WorkerBoot};
use ade_protocol::exit;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::{mpsc, oneshot, watch};

use crate::cgroups::{self, Cgroups};
use crate::home::Home;
use crate::journal::{self, Entry};
use crate::limits::{self, LimitError};
use crate::providers::LaunchSpec;
use crate::{clock, files, reap};

pub use crate::reap::Exit;

/// Starts that wait for the thread. When it is full, whoever wants one waits.
const QUEUE: usize = 64;
/// Descriptors that a worker costs the broker: its connection, and for a moment
/// the pipe and the file of the start.
pub(crate) const DESCRIPTORS: u64 = 8;

/// Descriptors of a worker that was taken over and is at work: its connection,
/// its transcript, and what its end is waited for with.
pub(crate) const TAKEN_OVER: u64 = 3;
/// How long a worker may take to read its first line.
const FIRST_LINE: Duration = Duration::from_secs(5);
/// Bytes of output that [`capture`] keeps.
const MAX_CAPTURED: usize = 64 * 1024;
/// How long a killed process may take to be reaped.
const REAP_BOUND: Duration = Duration::from_secs(1);

/// Why a worker was not started. Nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is no room for one more.
    #[error("there is no room for another worker")]
    NoRoom(
        /// What is short.
        #[source]
        LimitError,
    ),
    /// Its journal, or the file for its standard error, cannot be written.
    #[error("could not write {}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The executable cannot be started.
    #[error("could not start {} as a worker", executable.display())]
    Execute {
        /// The executable.
        executable: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was started and the system does not tell who it is.
    #[error("could not identify the new worker, process {pid}; is /proc mounted?")]
    Identify {
        /// Its pid.
        pid: i32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It did not take its first line.
    #[error("the new worker, process {pid}, did not read what it was told")]
    FirstLine {
        /// Its pid.
        pid: i32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The broker cannot collect its children.
    #[error("could not begin to collect ended processes")]
    Reaper(
        /// Why.
        #[source]
        io::Error,
    ),
    /// The broker is ending.
    #[error("no worker is started any more")]
    Closed,
}

impl SpawnError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        exit::FAILED
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let starved = match self {
            Self::Record { source, .. }
            | Self::Execute { source, .. }
            | Self::Identify { source, .. }
            | Self::FirstLine { source, .. }
            | Self::Reaper(source) => limits::hint_for(source),
            Self::NoRoom(_) | Self::Closed => None,
        };
        if let Some(hint) = starved {
            return vec![hint];
        }
        match self {
            Self::NoRoom(limit) => limit.hints(),
            Self::Record { path, source } => files::remedy(path, source).into_iter().collect(),
            Self::Execute { source, .. } if source.kind() == io::ErrorKind::OutOfMemory => {
                vec!["the machine is out of memory: stop some sessions".into()]
            }
            Self::Execute { source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
                vec!["the limit of processes is reached (`ulimit -u`): stop some sessions".into()]
            }
            Self::Execute { executable, .. } => {
                vec![format!(
                    "check that {} can be run by you",
                    executable.display()
                )]
            }
            _ => Vec::new(),
        }
    }
}

/// What a new worker is told and given.
#[derive(Debug)]
pub struct WorkerSpec {
    /// Its first line.
    pub boot: WorkerBoot,
    /// Its whole environment, the mark included.
    pub env: BTreeMap<OsString, OsString>,
    /// The mark, for the journal.
    pub mark: String,
    /// What is fixed from now on, for the journal.
    pub fixed: LaunchSpec,
}

/// A worker that was started.
#[derive(Debug)]
pub struct Spawned {
    /// Its pid.
    pub pid: i32,
    /// Its identity, for signals.
    pub identity: ProcessIdentity,
    /// What its host will live in, where it has one.
    pub cgroup: Option<Cgroup>,
    /// How it ended, once it has.
    pub exit: watch::Receiver<Option<Exit>>,
}

type Job = (WorkerSpec, oneshot::Sender<Result<Spawned, SpawnError>>);

/// Starts workers on a thread of its own. Cheap to clone; the thread ends when
/// the last clone is gone, and the workers stay.
#[derive(Clone, Debug)]
pub struct Spawner {
    jobs: mpsc::Sender<Job>,
}

impl Spawner {
    /// Starts the thread, and the collecting of ended processes. `executable`:
    /// what is started as a worker, absent: the running executable itself, so
    /// that broker and worker are never of two versions. `cgroups`: where each
    /// gets its cgroup.
    ///
    /// # Errors
    /// [`SpawnError::Reaper`], or the executable cannot be found.
    pub fn start(
        home: &Home,
        executable: Option<PathBuf>,
        cgroups: Cgroups,
    ) -> Result<Self, SpawnError> {
        reap::start().map_err(SpawnError::Reaper)?;
        let executable = executable.map_or_else(process::own_program, Ok);
        let executable = executable.map_err(|source| SpawnError::Execute {
            executable: PathBuf::from(WORKER_ARGV0),
            source,
        })?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let home = home.clone();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || work(&home, &executable, &cgroups, queue))
            .map_err(SpawnError::Reaper)?;
        Ok(Self { jobs })
    }

    /// Starts a worker. When the caller goes away meanwhile, the worker is
    /// killed.
    ///
    /// # Errors
    /// [`SpawnError`]; nothing is left of the attempt.
    pub async fn spawn(&self, spec: WorkerSpec) -> Result<Spawned, SpawnError> {
        let (reply, answer) = oneshot::channel();
        self.jobs
            .send((spec, reply))
            .await
            .map_err(|_| SpawnError::Closed)?;
        answer.await.map_err(|_| SpawnError::Closed)?
    }
}

fn work(home: &Home, executable: &Path, cgroups: &Cgroups, mut queue: mpsc::Receiver<Job>) {
    while let Some((spec, reply)) = queue.blocking_recv() {
        if reply.is_closed() {
            continue;
        }
        let worker = spec.boot.worker_id.clone();
        if let Err(Ok(orphan)) = reply.send(start_worker(home, executable, cgroups, spec)) {
            // It has done nothing yet: before it is accepted it starts no host.
            let _ = process::signal(&Target::Process(orphan.identity), Signal::SIGKILL);
            reap::wait_for(orphan.pid, &orphan.exit, Instant::now() + REAP_BOUND);
            cgroups::forget(home, &worker, orphan.cgroup.as_ref());
        }
    }
}

fn start_worker(
    home: &Home,
    executable: &Path,
    cgroups: &Cgroups,
    mut spec: WorkerSpec,
) -> Result<Spawned, SpawnError> {
    limits::check_room(DESCRIPTORS).map_err(SpawnError::NoRoom)?;
    let entry = Entry {
        worker_id: spec.boot.worker_id.clone(),
        session_id: spec.boot.session_id.clone(),
        generation: spec.boot.generation,
        provider: spec.boot.provider.clone(),
        mark: spec.mark.clone(),
        token_hash: journal::token_hash(&spec.boot.token),
        spec: Some(spec.fixed.clone()),
        started_at: clock::timestamp(),
        cgroup: cgroups.make(&spec.boot.worker_id),
        identity: None,
    };
    spec.boot.cgroup = entry.cgroup.as_ref().map(ToString::to_string);
    // Where the name of the home is no text, that net is not used.
    let hidden = home.worker_hidden(&entry.worker_id);
    spec.boot.hidden = hidden.to_str().map(str::to_owned);
    let started = record_and_start(home, executable, spec, entry.clone());
    if started.is_err() {
        cgroups::forget(home, &entry.worker_id, entry.cgroup.as_ref());
    }
    started
}

fn record_and_start(
    home: &Home,
    executable: &Path,
    spec: WorkerSpec,
    mut entry: Entry,
) -> Result<Spawned, SpawnError> {
    let record = |path: PathBuf| move |source| SpawnError::Record { path, source };
    let journal = home.journal(&entry.worker_id);
    journal::write(home, &entry).map_err(record(journal.clone()))?;
    let stderr_path = home.worker_stderr(&entry.worker_id);
    let mut options = OpenOptions::new();
    options.append(true).create_new(true);
    let stderr =
        files::open_private(&stderr_path, &mut options).map_err(record(stderr_path.clone()))?;
    let mut command = Command::new(executable);
    command
        .arg0(WORKER_ARGV0)
        .env_clear()
        .envs(spec.env)
        .current_dir(home.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(stderr);
    let (mut child, exit) = reap::spawn(&mut command).map_err(|source| {
        let executable = executable.to_owned();
        SpawnError::Execute { executable, source }
    })?;
    let pid = child.id().cast_signed();
    // From here on an error drops `child`, closes its standard input and so
    // ends it.
    let identity = identity_of(pid).map_err(|source| SpawnError::Identify { pid, source })?;
    entry.identity = Some(identity.clone());
    journal::write(home, &entry).map_err(record(journal))?;
    tell(&mut child, &spec.boot).map_err(|source| SpawnError::FirstLine { pid, source })?;
    Ok(Spawned {
        pid,
        identity,
        cgroup: entry.cgroup,
        exit,
    })
}

/// The identity of a child that may have ended already; as long as nobody has
/// reaped it, it still has one.
fn identity_of(pid: i32) -> io::Result<ProcessIdentity> {
    let gone = || io::Error::other("it ended at once");
    let known = Pid::new(i64::from(pid)).ok_or_else(gone)?;
    ProcessIdentity::of(known)?.ok_or_else(gone)
}

/// Writes the first line and closes the pipe.
fn tell(child: &mut Child, boot: &WorkerBoot) -> io::Result<()> {
    let Some(stdin) = child.stdin.take() else {
        return Ok(());
    };
    let mut line = serde_json::to_vec(boot)?;
    line.push(b'\n');
    match write_within(stdin, &line, Instant::now() + FIRST_LINE) {
        // It has ended already; its exit status tells more.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// A pipe may hold as little as one page, so the write may have to wait.
fn write_within(mut pipe: ChildStdin, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    while !bytes.is_empty() {
        match pipe.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !ready(&pipe, PollFlags::POLLOUT, deadline)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until the descriptor is ready; false: it is not by the deadline.
fn ready(fd: &impl AsFd, flags: PollFlags, deadline: Instant) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    // Rounded up, so that the last wait is not a busy one.
    let left = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(fd.as_fd(), flags)], left) {
        Ok(0) => Ok(Instant::now() < deadline),
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// What a short program said.
#[derive(Clone, Debug)]
pub struct Captured {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output, at most 64 KiB of it.
    pub stdout: String,
}

/// Runs a program and collects its standard output. After `bound` the program
/// is killed. Blocks.
///
/// # Errors
/// It cannot be started, or has not ended in time ([`io::ErrorKind::TimedOut`]).
pub fn capture(
    program: &Path,
    args: &[&OsStr],
    env: &BTreeMap<OsString, OsString>,
    bound: Duration,
) -> io::Result<Captured> {
    let deadline = Instant::now() + bound;
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(env);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let (mut child, exit) = reap::spawn(&mut command)?;
    let pid = child.id().cast_signed();
    let identity = identity_of(pid);
    let stdout = child
        .stdout
        .take()
        .map_or(Ok(String::new()), |pipe| read_within(pipe, deadline));
    let ended = match &stdout {
        Ok(_) => reap::wait_for(pid, &exit, deadline),
        Err(_) => None,
    };
    if let Some(exit) = ended {
        return Ok(Captured {
            exit,
            stdout: stdout?,
        });
    }
    if let Ok(identity) = identity {
        let _ = process::signal(&Target::Process(identity), Signal::SIGKILL);
    }
    reap::wait_for(pid, &exit, Instant::now() + REAP_BOUND);
    Err(stdout
        .err()
        .unwrap_or_else(|| io::ErrorKind::TimedOut.into()))
}

/// Reads until the end, the limit or the deadline, whichever is first.
fn read_within(mut pipe: std::process::ChildStdout, deadline: Instant) -> io::Result<String> {
    let mut output = Vec::new();
    let mut piece = [0; 4096];
    while output.len() < MAX_CAPTURED && ready(&pipe, PollFlags::POLLIN, deadline)? {
        if Instant::now() >= deadline {
            break;
        }
        match pipe.read(&mut piece)? {
            0 => break,
            count => output.extend_from_slice(&piece[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&output).into_owned())
}
