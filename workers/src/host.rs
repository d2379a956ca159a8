//! The host: the provider's own program as a child of this worker, with its
//! three pipes.
//!
//! Invariants:
//! - its standard input is written from a bounded queue by whoever polls
//!   [`Host::next`]; a write that makes no progress is reported, never waited for;
//! - its standard error is always drained, and only its end is kept;
//! - its exit status is told once, after everything that it wrote before was
//!   handed out, and without waiting for others who hold the same pipes.
//!
//! What it does not do: know what the lines mean, or send signals on its own.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ade_leases::process::cgroup::Cgroup;
use ade_leases::process::{self, Pid, ProcessIdentity, Sent, Signal, Target, signal};
use ade_protocol::boot::{HOST_ARGV0, HostCommand, SCRIPTED_HOST_ARG};
use ade_protocol::codec::{Line, LineCodec};
use ade_protocol::frame::Init;
use ade_protocol::limits::{MAX_LINE, STDERR_TAIL};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use nix::errno::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;
use tokio_util::codec::Decoder;

use crate::env;
use crate::net::Joining;
use crate::tail::Tail;

/// Bytes queued for the host's standard input. Past it a request is refused.
const MAX_INPUT: usize = 64 * 1024 * 1024;

/// How long one write may make no progress. Generous: a busy program may not
/// read for seconds.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// The same when an abort waits behind it.
const URGENT_WRITE_LIMIT: Duration = Duration::from_secs(2);

/// Bytes read from the host in one go.
const READ: usize = 64 * 1024;

/// Room for a read behind the beginning of a line that was left by the last.
const BUFFER: usize = READ + READ / 4;

/// Bytes of a dead host's pipe that are still taken, against a grandchild that
/// writes without end. A pipe holds no more unless root has allowed it.
const DRAINED: usize = 1024 * 1024;

/// A host that could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The lane is gone.
    #[error("the lane {0} is not there any more; make the folder again, or make a chat elsewhere")]
    NoLane(String),
    /// The system refused.
    #[error("could not start the agent's process for {program}: {source}")]
    Spawn {
        /// What should run.
        program: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It ended before it could be identified.
    #[error("the agent's process ended before it could be identified")]
    Gone,
}

/// What a host has to tell.
#[derive(Debug)]
pub(crate) enum HostEvent {
    /// It lives in its cgroup from now on, or could not be moved there.
    Joined(io::Result<()>),
    /// Bytes arrived: ask [`Host::line`] until it has no more.
    Output,
    /// It closed its standard output and may live on.
    OutputClosed,
    /// It closed its standard input, or that pipe broke.
    InputBroken,
    /// It ended.
    Exited(ExitStatus),
}

/// A running host.
pub(crate) struct Host {
    child: Child,
    identity: ProcessIdentity,
    /// While its pid is being written it must not be reaped.
    joining: Option<Joining>,
    stdin: Option<ChildStdin>,
    queue: VecDeque<Bytes>,
    queued: usize,
    progress: Instant,
    urgent: bool,
    stdout: Option<ChildStdout>,
    buffer: BytesMut,
    codec: LineCodec,
    since_line: usize,
    at_end: bool,
    stderr: Option<ChildStderr>,
    tail: Tail,
}

impl Host {
    /// Starts a host. Must be called on the thread that lives as long as this
    /// process: the host's parent-death signal follows that thread.
    #[expect(
        clippy::disallowed_methods,
        reason = "the host is reaped here, and strangers by pid"
    )]
    pub(crate) fn start(
        command: &HostCommand,
        provider: &str,
        init: &Init,
        cgroup: Option<&Cgroup>,
    ) -> Result<Self, StartError> {
        if !Path::new(&init.cwd).is_dir() {
            return Err(StartError::NoLane(init.cwd.clone()));
        }
        let program = describe(command);
        let failed = |source| StartError::Spawn {
            program: program.clone(),
            source,
        };
        let mut start = Command::new(process::own_program().map_err(failed)?);
        start.arg0(HOST_ARGV0);
        match command {
            HostCommand::Scripted => start.arg(SCRIPTED_HOST_ARG),
            HostCommand::Program { program, args } => start.arg("--").arg(program).args(args),
            HostCommand::Pi { node, script } => start.arg("--").arg(node).arg(script),
        };
        start
            .envs(env::host_env(provider, init))
            .current_dir(&init.cwd)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = start.spawn().map_err(failed)?;
        let identity = identify(&child).ok_or(StartError::Gone)?;
        let joining = cgroup.map(|cgroup| Joining::begin(cgroup, identity.pid));
        Ok(Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            identity,
            joining,
            queue: VecDeque::new(),
            queued: 0,
            progress: Instant::now(),
            urgent: false,
            buffer: BytesMut::new(),
            codec: LineCodec::default(),
            since_line: 0,
            at_end: false,
            tail: Tail::new(STDERR_TAIL),
        })
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> i32 {
        self.identity.pid.get()
    }

    /// The end of what it wrote to its standard error, unmasked.
    pub(crate) fn stderr(&self) -> &Tail {
        &self.tail
    }

    /// Queues a line for its standard input; false when it can't be queued. An
    /// urgent line shortens the patience with a host that does not read.
    pub(crate) fn send(&mut self, line: Bytes, urgent: bool) -> bool {
        if self.stdin.is_none() || self.queued + line.len() > MAX_INPUT {
            return false;
        }
        if self.queue.is_empty() {
            self.progress = Instant::now();
        }
        self.urgent |= urgent;
        self.queued += line.len() + 1;
        self.queue.push_back(line);
        self.queue.push_back(Bytes::from_static(b"\n"));
        true
    }

    /// When a write that makes no progress has taken too long.
    pub(crate) fn write_deadline(&self) -> Option<Instant> {
        let limit = if self.urgent {
            URGENT_WRITE_LIMIT
        } else {
            WRITE_LIMIT
        };
        (self.stdin.is_some() && !self.queue.is_empty()).then(|| self.progress + limit)
    }

    /// Closes its standard input; what is queued is forgotten.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
        self.queue = VecDeque::new();
        self.queued = 0;
    }

    /// Signals its process group, which was verified to be its own, or only
    /// itself when it has left that group. That nobody is there any more, or
    /// that the signal did not work, is what the ladder finds out anyway.
    pub(crate) fn signal(&self, sig: Signal) {
        if !matches!(
            signal(&Target::Group(self.identity.clone()), sig),
            Ok(Sent::Delivered)
        ) {
            let _ = signal(&Target::Process(self.identity.clone()), sig);
        }
    }

    /// Whether its standard input can still be written.
    pub(crate) fn input_is_open(&self) -> bool {
        self.stdin.is_some()
    }

    /// Waits for the next thing. With `read` false nothing is taken from its
    /// standard output. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self, read: bool) -> HostEvent {
        loop {
            let reading = read && self.stdout.is_some();
            let writing = self.stdin.is_some() && !self.queue.is_empty();
            tokio::select! {
                biased;
                joined = over(&mut self.joining), if self.joining.is_some() => {
                    self.joining = None;
                    return HostEvent::Joined(joined);
                }
                // First, or a grandchild that floods the pipe could hide it.
                status = self.child.wait(), if self.joining.is_none() => {
                    let status = status.unwrap_or_else(|_| ExitStatus::from_raw(0));
                    self.drain();
                    return HostEvent::Exited(status);
                }
                written = write_some(&mut self.stdin, &mut self.queue), if writing => {
                    if let Some(event) = self.wrote(&written) {
                        return event;
                    }
                }
                got = read_chunk(&mut self.stdout, &mut self.buffer), if reading => {
                    return self.took(&got);
                }
                got = read_some(&mut self.stderr, &mut self.tail), if self.stderr.is_some() => {
                    if !matches!(got, Ok(1..)) {
                        self.stderr = None;
                    }
                }
            }
        }
    }

    fn wrote(&mut self, written: &io::Result<usize>) -> Option<HostEvent> {
        match written {
            Ok(length @ 1..) => {
                self.progress = Instant::now();
                self.queued = self.queued.saturating_sub(*length);
                self.urgent &= !self.queue.is_empty();
                None
            }
            Ok(0) | Err(_) => {
                self.close_stdin();
                Some(HostEvent::InputBroken)
            }
        }
    }

    fn took(&mut self, got: &io::Result<usize>) -> HostEvent {
        match got {
            Ok(length @ 1..) => {
                self.since_line += length;
                HostEvent::Output
            }
            Ok(0) | Err(_) => {
                self.stdout = None;
                HostEvent::OutputClosed
            }
        }
    }

    /// Takes what a dead host left in its pipes. All that it wrote is in them
    /// already, so nothing is waited for, whoever else keeps them open.
    fn drain(&mut self) {
        let buffer = &mut self.buffer;
        if let Some(stdout) = self.stdout.take() {
            drain_pipe(&stdout, |bytes| buffer.extend_from_slice(bytes));
        }
        let tail = &mut self.tail;
        if let Some(stderr) = self.stderr.take() {
            drain_pipe(&stderr, |bytes| tail.push(bytes));
        }
        self.stdin = None;
        self.at_end = true;
    }

    /// Takes what lies in its standard output by now: one read, which does not
    /// wait. The end of the stream is left for [`Host::next`].
    pub(crate) fn glance(&mut self) {
        let Some(stdout) = &self.stdout else { return };
        let mut chunk = vec![0; READ];
        if let Ok(length @ 1..) = nix::unistd::read(stdout, &mut chunk) {
            self.buffer.extend_from_slice(&chunk[..length]);
            self.since_line += length;
        }
    }

    /// The next whole line that arrived. After the end of the stream also what
    /// stood after the last line end.
    pub(crate) fn line(&mut self) -> Option<Line> {
        let line = match (self.codec.decode(&mut self.buffer), self.at_end) {
            (Ok(None), true) => self.codec.decode_eof(&mut self.buffer),
            (line, _) => line,
        };
        // Cutting lines out of memory cannot fail.
        let line = line.ok().flatten();
        if line.is_some() {
            self.since_line = self.buffer.len();
        }
        line
    }

    /// Whether it has written more than a line may hold without ending one.
    pub(crate) fn line_too_long(&self) -> bool {
        self.since_line > MAX_LINE + 1
    }
}

/// The program that a command starts, for people.
pub(crate) fn describe(command: &HostCommand) -> String {
    match command {
        HostCommand::Scripted => "the scripted host".to_owned(),
        HostCommand::Program { program, .. } => program.clone(),
        HostCommand::Pi { node, .. } => node.clone(),
    }
}

fn identify(child: &Child) -> Option<ProcessIdentity> {
    let pid = Pid::new(i64::from(child.id()?))?;
    ProcessIdentity::of(pid).ok().flatten()
}

/// Reads a pipe, whose reads don't block, until it is empty.
fn drain_pipe(pipe: &impl AsFd, mut take: impl FnMut(&[u8])) {
    let mut chunk = vec![0; READ];
    let mut taken = 0;
    while taken < DRAINED {
        match nix::unistd::read(pipe, &mut chunk) {
            Ok(length @ 1..) => {
                take(&chunk[..length]);
                taken += length;
            }
            Err(Errno::EINTR) => {}
            // Empty, at its end, or broken.
            Ok(0) | Err(_) => return,
        }
    }
}

async fn over(joining: &mut Option<Joining>) -> io::Result<()> {
    match joining {
        Some(joining) => joining.over().await,
        None => std::future::pending().await,
    }
}

async fn write_some(
    stdin: &mut Option<ChildStdin>,
    queue: &mut VecDeque<Bytes>,
) -> io::Result<usize> {
    let (Some(stdin), Some(first)) = (stdin, queue.front_mut()) else {
        return std::future::pending().await;
    };
    let length = stdin.write(first).await?;
    first.advance(length);
    if first.is_empty() {
        queue.pop_front();
    }
    Ok(length)
}

async fn read_chunk(stdout: &mut Option<ChildStdout>, buffer: &mut BytesMut) -> io::Result<usize> {
    let Some(stdout) = stdout else {
        return std::future::pending().await;
    };
    poll_fn(|cx| {
        if buffer.capacity() - buffer.len() < READ / 2 {
            let room = if buffer.is_empty() { BUFFER } else { READ };
            buffer.reserve(room);
        }
        let mut room = (&mut *buffer).limit(READ);
        let polled = pin!(stdout.read_buf(&mut room)).poll(cx);
        if polled.is_pending() && buffer.is_empty() {
            // An idle host costs no buffer.
            *buffer = BytesMut::new();
        }
        polled
    })
    .await
}

async fn read_some(stderr: &mut Option<ChildStderr>, tail: &mut Tail) -> io::Result<usize> {
    let Some(stderr) = stderr else {
        return std::future::pending().await;
    };
    let mut chunk = [0_u8; 4096];
    let length = stderr.read(&mut chunk).await?;
    tail.push(&chunk[..length]);
    Ok(length)
}
