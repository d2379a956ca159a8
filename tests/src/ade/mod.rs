//! One ade of a test's own: a private ADE_HOME, HOME and agent folder, its
//! lanes, its broker, and the check that nothing of it is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::rpc::Rpc;

mod broker;
mod chats;
mod processes;
mod rest;

pub use processes::{command_line, is_alive, signal, wait_dead};

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
