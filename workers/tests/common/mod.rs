//! A small fake broker and what the tests share.

#![expect(dead_code, reason = "each test binary uses its own part of it")]

use std::collections::VecDeque;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ade_leases::process::{Liveness, Pid, ProcessIdentity};
use ade_protocol::boot::{HostCommand, MARK_ENV, WORKER_ARGV0, WorkerBoot, WorkerTiming};
use ade_protocol::frame::{FromWorker, Known};
use ade_protocol::{Generation, SessionId, WorkerId};
use serde_json::{Value, json};
use std::io::Write;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

pub(crate) const TOKEN: &str = "token-of-the-worker-0123456789";
pub(crate) const SESSION: &str = "ses_test";

/// How long anything may take before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until `done` says so; prints the label when it never does.
pub(crate) fn wait_until(label: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "timed out: {label}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Whether a process runs; a zombie does not, unless one of its threads lives.
pub(crate) fn runs(pid: i32) -> bool {
    let pid = Pid::new(i64::from(pid)).expect("a usable pid");
    let found = ProcessIdentity::of(pid).expect("the process table");
    found.is_some_and(|found| found.liveness() == Liveness::Alive)
}

#[expect(clippy::disallowed_methods, reason = "processes of the test itself")]
pub(crate) fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    assert!(pid > 1);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("a signal");
}

/// Short waits, so that a test of the ladder takes no seconds.
pub(crate) fn timing() -> WorkerTiming {
    WorkerTiming {
        dispose_grace_ms: 300,
        eof_grace_ms: 200,
        term_to_kill_ms: 300,
        orphan_idle_ms: 2_000,
        orphan_turn_ms: 4_000,
        attach_ms: 1_000,
    }
}

/// A shell program as a host.
pub(crate) fn shell(script: &str) -> HostCommand {
    HostCommand::Program {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
    }
}

/// A worker and the broker that it talks to.
pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    listener: UnixListener,
    child: Child,
    read: Option<BufReader<OwnedReadHalf>>,
    write: Option<OwnedWriteHalf>,
    /// Every frame that arrived, oldest first.
    pub(crate) seen: Vec<Value>,
    backlog: VecDeque<Value>,
    /// Whether events are acknowledged as they come.
    pub(crate) acks: bool,
    status: Option<ExitStatus>,
    pub(crate) mark: String,
}

impl Rig {
    /// A worker with the scripted host.
    pub(crate) fn scripted() -> Self {
        Self::start(HostCommand::Scripted, timing())
    }

    pub(crate) fn start(host: HostCommand, timing: WorkerTiming) -> Self {
        Self::start_with(host, timing, |_| {})
    }

    pub(crate) fn start_with(
        host: HostCommand,
        timing: WorkerTiming,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("w.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let boot = WorkerBoot {
            protocol_version: 2,
            worker_id: WorkerId::from("wrk_test"),
            token: TOKEN.into(),
            session_id: SessionId::from(SESSION),
            generation: Generation(3),
            provider: "scripted".into(),
            socket: socket.to_string_lossy().into_owned(),
            home: dir.path().to_string_lossy().into_owned(),
            host,
            cgroup: None,
            hidden: Some(dir.path().join("wrk_test.hidden").display().to_string()),
            timing,
        };
        // A sweep kills all that carry its mark: each worker has its own.
        let mark = format!("mark-{}", ade_protocol::RequestId::generate());
        let stderr = std::fs::File::create(dir.path().join("worker.stderr")).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ade-worker-harness"));
        command
            .arg0(WORKER_ARGV0)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env(MARK_ENV, &mark)
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(stderr);
        change(&mut command);
        let mut child = command.spawn().expect("a worker");
        let mut stdin = child.stdin.take().expect("its stdin");
        let line = serde_json::to_string(&boot).expect("a boot line");
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .expect("to write");
        drop(stdin);
        Self {
            dir,
            listener,
            child,
            read: None,
            write: None,
            seen: Vec::new(),
            backlog: VecDeque::new(),
            acks: true,
            status: None,
            mark,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("worker.stderr")).unwrap_or_default()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// The session file that a new scripted session has.
    pub(crate) fn session_file(&self) -> PathBuf {
        self.store().join(format!("{SESSION}.jsonl"))
    }

    pub(crate) fn lease_file(&self) -> PathBuf {
        self.store().join(format!("{SESSION}.jsonl.ade-lease"))
    }

    /// Takes the worker's next connection and reads its hello.
    pub(crate) async fn accept(&mut self) -> Value {
        let accepted = tokio::time::timeout(PATIENCE, self.listener.accept()).await;
        let (stream, _) = accepted
            .expect("a connection in time")
            .expect("a connection");
        self.take(stream);
        let hello = self.next("hello").await;
        assert_eq!(hello["type"], "hello");
        assert_eq!(hello["token"], TOKEN);
        hello
    }

    fn take(&mut self, stream: UnixStream) {
        let (read, write) = stream.into_split();
        self.read = Some(BufReader::new(read));
        self.write = Some(write);
    }

    /// Whether no connection comes within `time`.
    pub(crate) async fn stays_away(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.listener.accept())
            .await
            .is_err()
    }

    pub(crate) fn hang_up(&mut self) {
        self.read = None;
        self.write = None;
        self.backlog.clear();
    }

    /// Accepts the worker: its connection, then `attach`.
    pub(crate) async fn attach(&mut self, fence: u64, ack: u64) -> Value {
        self.accept().await;
        let id = self
            .request("attach", json!({"fence": fence, "ack": ack}))
            .await;
        let response = self.response(&id).await;
        assert_eq!(response["ok"], true, "{response}");
        response["result"].clone()
    }

    pub(crate) async fn send_line(&mut self, line: &str) {
        let write = self.write.as_mut().expect("a connection");
        write.write_all(line.as_bytes()).await.expect("to write");
        write.write_all(b"\n").await.expect("to write");
    }

    /// Sends a request with an id of its own and returns that.
    pub(crate) async fn request(&mut self, kind: &str, body: Value) -> String {
        let id = format!("{kind}-{}", ade_protocol::RequestId::generate());
        self.request_as(&id, kind, body).await;
        id
    }

    pub(crate) async fn request_as(&mut self, id: &str, kind: &str, body: Value) {
        let mut frame = json!({"protocolVersion": 2, "type": kind, "requestId": id});
        frame
            .as_object_mut()
            .expect("an object")
            .extend(body.as_object().expect("an object").clone());
        self.send_line(&frame.to_string()).await;
    }

    /// The next frame.
    pub(crate) async fn next(&mut self, label: &str) -> Value {
        match tokio::time::timeout(PATIENCE, self.try_next()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => panic!(
                "the connection ended, waiting for {label}; seen {:?}; said {:?}",
                self.kinds(),
                self.stderr()
            ),
            Err(_) => panic!("timed out: {label}; seen {:?}", self.kinds()),
        }
    }

    /// The next frame, or `None` at the end of the connection.
    pub(crate) async fn try_next(&mut self) -> Option<Value> {
        if let Some(frame) = self.backlog.pop_front() {
            return Some(frame);
        }
        let mut line = String::new();
        let length = self.read.as_mut()?.read_line(&mut line).await.ok()?;
        if length == 0 {
            return None;
        }
        let parsed = FromWorker::parse(line.trim_end());
        assert!(
            matches!(parsed, Ok(Known::Frame(_))),
            "not a frame: {parsed:?}"
        );
        let frame: Value = serde_json::from_str(&line).expect("JSON");
        self.seen.push(frame.clone());
        if self.acks && frame["type"] == "event" {
            let ack = json!({"protocolVersion": 2, "type": "ack", "seq": frame["seq"]});
            // A worker that is gone needs no ack.
            if let Some(write) = &mut self.write {
                let _ = write.write_all(format!("{ack}\n").as_bytes()).await;
            }
        }
        Some(frame)
    }

    /// Reads on until a frame satisfies `wanted`.
    pub(crate) async fn until(&mut self, label: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let frame = self.next(label).await;
            if wanted(&frame) {
                return frame;
            }
        }
    }

    pub(crate) async fn response(&mut self, id: &str) -> Value {
        self.until(&format!("the response to {id}"), |frame| {
            frame["type"] == "response" && frame["requestId"] == id
        })
        .await
    }

    pub(crate) fn init_body(&self) -> Value {
        json!({
            "sessionKey": SESSION,
            "provider": "scripted",
            "cwd": self.dir.path(),
            "store": {"sessionRoot": self.store()},
        })
    }

    /// Attaches and initialises; returns the detail of the worker's `ready`.
    pub(crate) async fn ready(&mut self) -> Value {
        let body = self.init_body();
        self.ready_with(body).await
    }

    pub(crate) async fn ready_with(&mut self, body: Value) -> Value {
        self.attach(1, 0).await;
        let id = self.request("init", body).await;
        let response = self.response(&id).await;
        assert_eq!(response["ok"], true, "{response}");
        let ready = self
            .seen
            .iter()
            .rfind(|frame| frame["event"] == "ready" && frame["type"] == "lifecycle");
        ready.expect("a ready")["detail"].clone()
    }

    pub(crate) async fn begin(&mut self, turn: &str, prompt: &str) -> String {
        let id = format!("send-{turn}");
        self.request_as(&id, "send", json!({"turnId": turn, "prompt": prompt}))
            .await;
        id
    }

    /// Runs a turn to its end; returns the response to `send`.
    pub(crate) async fn turn(&mut self, turn: &str, prompt: &str) -> Value {
        let id = self.begin(turn, prompt).await;
        self.response(&id).await
    }

    pub(crate) async fn abort(&mut self, turn: &str) -> String {
        self.request("abort", json!({"turnId": turn})).await
    }

    pub(crate) async fn card(&mut self) -> Value {
        self.until("a card", |frame| frame["type"] == "ui_request")
            .await
    }

    pub(crate) async fn answer(&mut self, card: &Value, ok: bool, value: &str) {
        let answer = json!({"protocolVersion": 2, "type": "ui_response", "requestId": card["requestId"], "ok": ok, "value": value});
        self.send_line(&answer.to_string()).await;
    }

    /// The events of a turn that arrived, in order.
    pub(crate) fn events(&self, turn: &str) -> Vec<Value> {
        self.seen
            .iter()
            .filter(|frame| frame["type"] == "event" && frame["turnId"] == turn)
            .map(|frame| frame["event"].clone())
            .collect()
    }

    /// The text of a turn.
    pub(crate) fn text(&self, turn: &str) -> String {
        self.events(turn)
            .iter()
            .filter(|event| event["type"] == "text")
            .filter_map(|event| event["text"].as_str())
            .collect()
    }

    /// The numbers of all events that arrived, in order of arrival.
    pub(crate) fn seqs(&self) -> Vec<u64> {
        self.seen
            .iter()
            .filter_map(|frame| frame["seq"].as_u64())
            .collect()
    }

    pub(crate) fn lifecycle(&self, event: &str) -> Vec<Value> {
        self.seen
            .iter()
            .filter(|frame| frame["type"] == "lifecycle" && frame["event"] == event)
            .cloned()
            .collect()
    }

    pub(crate) fn stages(&self) -> Vec<String> {
        self.lifecycle("stopping")
            .iter()
            .filter_map(|frame| frame["detail"]["stage"].as_str().map(str::to_owned))
            .collect()
    }

    fn kinds(&self) -> Vec<String> {
        let tail = self.seen.len().saturating_sub(30);
        self.seen[tail..]
            .iter()
            .map(|frame| frame.to_string().chars().take(160).collect())
            .collect()
    }

    /// The pid in the text "child 123".
    pub(crate) fn pid_in_text(&self, turn: &str, word: &str) -> i32 {
        let text = self.text(turn);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(word))
            .expect("a line with a pid");
        line.trim().parse().expect("a pid")
    }

    pub(crate) async fn dispose(&mut self) -> Value {
        let id = self.request("dispose", json!({})).await;
        let response = self.response(&id).await;
        self.drain().await;
        response
    }

    /// Reads what is left until the worker closes the connection.
    pub(crate) async fn drain(&mut self) {
        while self.read.is_some()
            && tokio::time::timeout(PATIENCE, self.try_next())
                .await
                .expect("an end")
                .is_some()
        {}
    }

    /// Waits for the worker's end.
    pub(crate) fn exit(&mut self) -> ExitStatus {
        wait_until("the worker ends", || {
            self.status = self.child.try_wait().expect("a status");
            self.status.is_some()
        });
        self.status.expect("it ended")
    }

    pub(crate) fn exits_in_order(&mut self) {
        let status = self.exit();
        assert_eq!(
            (status.code(), status.signal()),
            (Some(0), None),
            "{}",
            self.stderr()
        );
        assert!(
            !self.lease_file().exists(),
            "the lease is gone with the worker"
        );
    }
}

impl Drop for Rig {
    #[expect(clippy::disallowed_methods, reason = "a process of the test itself")]
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
