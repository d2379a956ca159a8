//! One ade of a test's own: a private ADE_HOME, HOME and agent folder, its
//! lanes, its broker, and the check that nothing of it is left.

use std::fs;
use std::io::Read;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ade_leases::process::cgroup::{Cgroup, Folder};
use ade_leases::process::{self, ProcessIdentity, Signal, Target};
use serde_json::{Value, json};

use crate::commands::within;
use crate::rpc::Rpc;
use crate::wait::{PATIENCE, wait_true, wait_until, wait_within};

/// The executable under test, as the workspace builds it.
///
/// # Panics
/// When it is not there: the tests are run over the whole workspace, which
/// builds it first.
#[must_use]
#[track_caller]
pub fn executable() -> PathBuf {
    let own = std::env::current_exe().expect("own executable");
    let folder = own.ancestors().find(|folder| {
        folder
            .file_name()
            .is_some_and(|name| name == "debug" || name == "release")
    });
    let exe = folder
        .map(|folder| folder.join("ade"))
        .filter(|exe| exe.exists());
    exe.expect("the `ade` executable is missing: run `cargo test --workspace`, which builds it")
}

/// One ade.
#[derive(Debug)]
pub struct Ade {
    // Dropped last: the broker and its files live in it.
    broker: Option<Child>,
    env: Vec<(String, String)>,
    root: tempfile::TempDir,
}

impl Default for Ade {
    fn default() -> Self {
        Self::new()
    }
}

impl Ade {
    /// Makes the folders; starts nothing.
    ///
    /// # Panics
    /// When the folders cannot be made.
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        let root = tempfile::Builder::new()
            .prefix("ade-t")
            .tempdir()
            .expect("a folder");
        for name in ["home", "user", "agent", "lanes"] {
            fs::create_dir(root.path().join(name)).expect("a folder");
        }
        Self {
            broker: None,
            env: Vec::new(),
            root,
        }
    }

    /// A variable for every command and for the broker.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes `config.toml`.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn with_config(self, text: &str) -> Self {
        fs::write(self.home().join("config.toml"), text).expect("config.toml");
        self
    }

    /// The real Pi against a model server.
    #[must_use]
    #[track_caller]
    pub fn with_pi(self, base_url: &str) -> Self {
        let pi = crate::agents::pi();
        crate::fake_model::write_agent_dir(&self.agent_dir(), base_url).expect("the agent folder");
        self.with_env(
            "ADE_PI_PACKAGE_ROOT",
            &pi.package_root.display().to_string(),
        )
        .with_env("ADE_NODE", &pi.node.display().to_string())
    }

    /// ADE_HOME.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    /// HOME of everything that is started; also what finds it all.
    #[must_use]
    pub fn user_home(&self) -> PathBuf {
        self.root.path().join("user")
    }

    /// Pi's configuration folder.
    #[must_use]
    pub fn agent_dir(&self) -> PathBuf {
        self.root.path().join("agent")
    }

    /// A folder of the test's own that nothing else uses.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Makes a lane.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn lane(&self, name: &str) -> PathBuf {
        let lane = self.root.path().join("lanes").join(name);
        fs::create_dir_all(&lane).expect("a lane");
        fs::canonicalize(lane).expect("a lane")
    }

    /// Control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.home().join("sock").join("ade.sock")
    }

    /// A command of the executable, with an environment of the test's own.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(executable());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("ADE_") || name.starts_with("PI_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("ADE_HOME", self.home())
            .env("HOME", self.user_home())
            .env("PI_CODING_AGENT_DIR", self.agent_dir())
            .env("NO_COLOR", "1")
            .current_dir(self.root.path().join("lanes"))
            .stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("running ade")
    }

    /// Runs a command that must end with this code; its output as text.
    ///
    /// # Panics
    /// When it ends otherwise.
    #[track_caller]
    pub fn expect_code(&self, code: i32, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "ade {args:?}\nstdout: {stdout}\nstderr: {stderr}"
        );
        (stdout, stderr)
    }

    /// Runs a command with `--json` that must work; its document.
    ///
    /// # Panics
    /// When it fails or prints something else.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend_from_slice(args);
        let (stdout, _) = self.expect_code(0, &all);
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("ade {args:?}: {e} in {stdout}"))
    }

    /// Starts the broker as a child of the test and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn serve(&mut self) -> u32 {
        self.serve_with(|command| command)
    }

    /// The same below another command, which runs its last arguments: see
    /// [`within`].
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn serve_within(&mut self, outer: Command) -> u32 {
        let errors = self.errors();
        self.serve_with(|serve| {
            let mut command = within(outer, &serve);
            command.stdout(Stdio::null()).stderr(errors);
            command
        })
    }

    /// The same with a command that was changed, or another one in its place.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn serve_with(&mut self, change: impl FnOnce(Command) -> Command) -> u32 {
        let mut command = self.command(&["serve"]);
        command.stdout(Stdio::null()).stderr(self.errors());
        let mut child = change(command).spawn().expect("starting the broker");
        let pid = child.id();
        wait_until("the broker answers", || {
            if let Ok(Some(status)) = child.try_wait() {
                let said = fs::read_to_string(self.errors_file()).unwrap_or_default();
                panic!("the broker ended with {status}: {said}");
            }
            let moved = self
                .env
                .iter()
                .find(|(name, _)| name == "ADE_RPC_SOCKET_PATH");
            let socket = moved.map_or_else(|| self.socket(), |(_, path)| path.into());
            std::os::unix::net::UnixStream::connect(socket).ok()
        });
        self.broker = Some(child);
        pid
    }

    /// Where the broker's standard errors are kept.
    fn errors_file(&self) -> PathBuf {
        self.root.path().join("serve.err")
    }

    fn errors(&self) -> fs::File {
        let file = fs::File::options()
            .create(true)
            .append(true)
            .open(self.errors_file());
        file.expect("serve.err")
    }

    /// Pid of the broker that [`Ade::serve`] started.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn broker_pid(&self) -> i32 {
        let id = self.broker.as_ref().expect("a broker").id();
        i32::try_from(id).expect("a pid")
    }

    /// Starts a broker that takes the running one's place, and waits for both:
    /// for the old one's end and for the new one's answer. Returns its pid.
    ///
    /// # Panics
    /// When one of them does not come.
    #[track_caller]
    pub fn replace(&mut self) -> u32 {
        let mut old = self.broker.take().expect("a broker");
        let mut new = self
            .command(&["serve", "--replace"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starting the successor");
        let status = wait_until("the old broker ends", || old.try_wait().ok().flatten());
        assert!(status.success(), "{status}");
        wait_until("the successor answers", || {
            assert_eq!(new.try_wait().expect("its status"), None);
            std::os::unix::net::UnixStream::connect(self.socket()).ok()
        });
        let pid = new.id();
        self.broker = Some(new);
        pid
    }

    /// Whether [`Ade::serve`] started a broker that was not ended.
    #[must_use]
    pub fn has_broker(&self) -> bool {
        self.broker.is_some()
    }

    /// Waits for the end of a broker that somebody else has told to stop.
    ///
    /// # Panics
    /// When it does not end, or with another code.
    #[track_caller]
    pub fn expect_broker_ended(&mut self, code: i32) {
        let mut child = self.broker.take().expect("a broker");
        let status = wait_until("the broker ends", || child.try_wait().ok().flatten());
        assert_eq!(status.code(), Some(code), "{status}");
    }

    /// Kills the broker with SIGKILL and reaps it.
    ///
    /// # Panics
    /// When there is none.
    pub fn kill_broker(&mut self) {
        let mut child = self.broker.take().expect("a broker");
        child.kill().expect("SIGKILL");
        child.wait().expect("reaping the broker");
    }

    /// Ends the broker with SIGTERM and returns its exit code.
    ///
    /// # Panics
    /// When it does not end.
    #[track_caller]
    pub fn stop_broker(&mut self) -> Option<i32> {
        let mut child = self.broker.take()?;
        signal(i32::try_from(child.id()).expect("a pid"), Signal::SIGTERM);
        let bound = PATIENCE + Duration::from_secs(15);
        let status = wait_within("the broker ends", bound, || child.try_wait().ok().flatten());
        status.code()
    }

    /// A client of the broker.
    #[must_use]
    #[track_caller]
    pub fn rpc(&self) -> Rpc {
        Rpc::connect(&self.socket(), "a test")
    }

    /// Makes a chat and returns its id.
    #[track_caller]
    pub fn chat(&self, rpc: &mut Rpc, provider: &str, lane: &Path, more: Value) -> String {
        let mut arguments = json!({"provider": provider, "lane": lane.display().to_string()});
        if let (Some(all), Value::Object(more)) = (arguments.as_object_mut(), more) {
            all.extend(more);
        }
        let made = rpc.call("chat.create", arguments);
        made["sessionId"].as_str().expect("a session id").to_owned()
    }

    /// Sends a message; returns the turn's id and the sequence before it.
    #[track_caller]
    pub fn send(&self, rpc: &mut Rpc, session: &str, prompt: &str) -> (String, u64) {
        let sent = rpc.call("chat.send", json!({"sessionId": session, "prompt": prompt}));
        let turn = sent["turnId"].as_str().expect("a turn id").to_owned();
        (turn, sent["after"].as_u64().expect("a sequence"))
    }

    /// Sends a message and returns the envelopes of its whole turn.
    #[track_caller]
    pub fn turn(&self, session: &str, prompt: &str) -> Vec<Value> {
        let mut rpc = self.rpc();
        let (turn, after) = self.send(&mut rpc, session, prompt);
        rpc.subscribe(session, after);
        rpc.until_done(&turn)
    }

    /// A chat as `sessions.list` shows it.
    ///
    /// # Panics
    /// When it is not listed.
    #[track_caller]
    pub fn session(&self, session: &str) -> Value {
        let list = self.rpc().call("sessions.list", json!({}));
        list["sessions"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["sessionId"] == session))
            .unwrap_or_else(|| panic!("{session} is not listed"))
            .clone()
    }

    /// The lines of a chat's transcript, as they are on disk, without those
    /// that a broker killed in mid-write left half.
    ///
    /// # Panics
    /// When it cannot be read or a line is neither JSON nor the beginning of an
    /// envelope of this chat.
    #[must_use]
    #[track_caller]
    pub fn transcript(&self, session: &str) -> Vec<Value> {
        self.transcript_and_torn(session).0
    }

    /// The same, and how many half lines stand among them.
    ///
    /// # Panics
    /// As for [`Ade::transcript`].
    #[must_use]
    #[track_caller]
    pub fn transcript_and_torn(&self, session: &str) -> (Vec<Value>, usize) {
        let path = self
            .home()
            .join("transcripts/chat")
            .join(format!("{session}.jsonl"));
        let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let start = format!("{{\"sessionId\":\"{session}\"");
        let mut lines = Vec::new();
        let mut torn = 0;
        for line in text.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(value) => lines.push(value),
                Err(error) => {
                    let of_ours =
                        line.starts_with(start.as_bytes()) || start.as_bytes().starts_with(line);
                    assert!(of_ours, "{}: {error}", String::from_utf8_lossy(line));
                    torn += 1;
                }
            }
        }
        (lines, torn)
    }

    /// Every process that inherited this test's HOME, without zombies.
    ///
    /// # Panics
    /// When the process table cannot be read.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessIdentity> {
        let home = self.user_home().display().to_string();
        process::marked("HOME", &home).expect("the process table")
    }

    /// Waits until nothing of this ade is alive.
    ///
    /// # Panics
    /// When something is after `bound`.
    #[track_caller]
    pub fn wait_empty(&self, bound: Duration) {
        let label = format!("nothing is alive, but {:?}", self.describe());
        wait_within(&label, bound, || self.processes().is_empty().then_some(()));
    }

    /// Command lines of what is alive, for messages.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        self.processes()
            .iter()
            .map(|identity| command_line(identity.pid.get()))
            .collect()
    }

    /// Kills what a failed test would leave to the machine.
    fn kill_all(&self) {
        for identity in self.processes() {
            let _ = process::signal(&Target::Process(identity), Signal::SIGKILL);
        }
        self.remove_cgroups();
    }

    /// Removes the cgroups of workers that were killed with their broker: the
    /// next broker of this home would, and there will be none.
    fn remove_cgroups(&self) {
        let until = Instant::now() + Duration::from_secs(2);
        for journal in self.litter() {
            let text = fs::read_to_string(&journal).unwrap_or_default();
            let entry: Value = serde_json::from_str(&text).unwrap_or_default();
            let path = entry["cgroup"]["path"].as_str().unwrap_or_default();
            let Ok(cgroup) = Cgroup::open(Path::new(path)) else {
                continue;
            };
            // What was just killed may be in it for a moment.
            while cgroup.remove().is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(folder) = Folder::of(&cgroup) {
                folder.remove();
            }
        }
    }

    /// Files of ours below ADE_HOME's `run` and beside session files that
    /// should not be there when nothing runs.
    #[must_use]
    pub fn litter(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![
            self.home().join("run/workers"),
            self.agent_dir(),
            self.home(),
        ];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = entry.file_name().to_string_lossy().into_owned();
                let journal = folder.ends_with("run/workers");
                if path.is_dir() {
                    folders.push(path);
                } else if journal || name.contains(".ade-lease") {
                    found.push(path);
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }
}

impl Drop for Ade {
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        if let Some(mut child) = self.broker.take() {
            signal(i32::try_from(child.id()).unwrap_or(0), Signal::SIGTERM);
            let gone = || child.try_wait().ok().flatten();
            if !panicking {
                wait_within("the broker ends at the end of the test", PATIENCE, gone);
            }
        } else if !panicking {
            // On a very busy machine a broker may not answer in the time that
            // the command gives it.
            wait_within("`ade stop` works", PATIENCE, || {
                let stopped = self.run(&["stop"]);
                let over = stopped.status.success() || self.processes().is_empty();
                if !over {
                    let said = String::from_utf8_lossy(&stopped.stderr);
                    report(&format!("ade stop: {} {said}", stopped.status));
                }
                over.then_some(())
            });
        }
        if panicking {
            self.kill_all();
            let mut said = String::new();
            for name in ["serve.err", "home/logs/serve.err"] {
                if let Ok(mut file) = fs::File::open(self.root.path().join(name)) {
                    let _ = file.read_to_string(&mut said);
                }
            }
            if !said.is_empty() {
                report(&format!("the broker said:\n{said}"));
            }
        } else {
            let empty = || self.wait_empty(Duration::from_secs(10));
            if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(empty)) {
                self.kill_all();
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// An ade with this `config.toml` whose broker runs, and a client of it.
///
/// # Panics
/// When the broker does not start.
#[must_use]
#[track_caller]
pub fn started(config: &str) -> (Ade, Rpc) {
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let rpc = ade.rpc();
    (ade, rpc)
}

/// Writes a line that the test runner does not capture.
pub fn report(text: &str) {
    use std::io::Write;
    // Losing a message for people is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Sends a signal to a process that a test started, by proved identity. A
/// SIGSTOP has taken effect when it returns: the kernel stops one thread after
/// the other, and until the last one stands the process may still answer.
///
/// # Panics
/// When the pid is not usable, or its threads do not stop.
#[track_caller]
pub fn signal(pid: i32, signal: Signal) {
    let pid = process::Pid::new(i64::from(pid)).expect("a usable pid");
    if let Ok(Some(identity)) = ProcessIdentity::of(pid) {
        process::signal(&Target::Process(identity), signal).expect("a signal");
        if signal == Signal::SIGSTOP {
            wait_until("every thread stands", || stands(pid.get()).then_some(()));
        }
    }
}

/// Whether no thread of the process runs.
fn stands(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    threads.flatten().flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        state.is_empty() || state.starts_with(['T', 't', 'Z', 'X'])
    })
}

/// Whether a process is alive and no zombie.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    process::Pid::new(i64::from(pid))
        .and_then(|pid| ProcessIdentity::of(pid).ok().flatten())
        .is_some_and(|identity| identity.liveness() == process::Liveness::Alive)
}

/// Waits until a process is gone or a zombie.
///
/// # Panics
/// When it is still alive after [`PATIENCE`].
#[track_caller]
pub fn wait_dead(pid: i32) {
    wait_true(&format!("pid {pid} ({}) ends", command_line(pid)), || {
        !is_alive(pid)
    });
}

/// The command line of a process, for messages.
#[must_use]
pub fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!(
        "{pid}: {}",
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    )
}
