//! A fake model server for one test: starts `fake-model` and reads what it was asked.
//!
//! The server is a process of its own. It ends with its handle, and when the test process dies,
//! because its stdin is then closed.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// Longest wait for an answer of the server itself.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// The ids that [`write_agent_dir`] configures; the server's own documentation says what they do.
pub const MODELS: &[&str] = &[
    "fake-text",
    "fake-think",
    "fake-echo",
    "fake-wedge",
    "fake-wedge-mid",
    "fake-401",
    "fake-429",
    "fake-500",
    "fake-flaky",
    "fake-cut",
    "fake-drip",
    "fake-flood",
];

/// A running server.
#[derive(Debug)]
pub struct FakeModel {
    child: Child,
    port: u16,
}

impl FakeModel {
    /// Starts a server with the default pace.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with arguments of `fake-model`, such as `["--drip-ms", "20"]`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start_with(args: &[&str]) -> Self {
        let exe = executable();
        let mut child = Command::new(&exe)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| {
                panic!(
                    "{} could not be started: {e}; run `cargo build -p ade-tests`",
                    exe.display()
                )
            });
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let port = line
            .strip_prefix("listening ")
            .and_then(|port| port.trim().parse().ok());
        let port = port.unwrap_or_else(|| {
            let _ = child.kill();
            panic!("fake-model said {line:?} instead of its port")
        });
        Self { child, port }
    }

    /// What a model configuration names as its base URL.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// The port on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process, so that it can be stopped: a model that takes its time.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The requests so far, oldest first, at most the last 1,000. Each has `n`, `atMs`, `headers`,
    /// `body`, and `outcome`: `open`, `finished`, `cut`, `client closed` or `status <code>`.
    ///
    /// # Panics
    /// When the server does not answer.
    #[must_use]
    #[track_caller]
    pub fn requests(&self) -> Vec<Value> {
        let body = self
            .get("/requests")
            .unwrap_or_else(|e| panic!("requests of fake-model: {e}"));
        serde_json::from_str(&body)
            .unwrap_or_else(|e| panic!("requests of fake-model: {e}: {body}"))
    }

    fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer
            .split_once("\r\n\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(body.to_owned())
    }

    /// Ends the server, as if the model provider had gone away.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        self.end();
    }
}

/// Cargo puts the executables of a package beside the folder of its tests.
#[track_caller]
fn executable() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_else(|e| panic!("own executable: {e}"));
    let folders = exe.ancestors().skip(1).take(2);
    let name = format!("fake-model{}", std::env::consts::EXE_SUFFIX);
    folders
        .map(|folder| folder.join(&name))
        .find(|path| path.exists())
        .unwrap_or_else(|| {
            panic!(
                "no {name} near {}; run `cargo build -p ade-tests --bins`",
                exe.display()
            )
        })
}

/// Writes a configuration folder for Pi whose only provider is `fake`, at `base_url`, with every
/// model of [`MODELS`]; `fake/fake-text` is the default. Pi's own retries are off, because each
/// failure would otherwise take 14 s.
///
/// # Errors
/// When the folder or its files cannot be written.
pub fn write_agent_dir(dir: &Path, base_url: &str) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let models: Vec<Value> = MODELS
        .iter()
        .map(|id| {
            json!({"id": id, "contextWindow": 100_000, "maxTokens": 4_096, "reasoning": *id == "fake-think"})
        })
        .collect();
    let provider = json!({
        "name": "Fake",
        "baseUrl": base_url,
        "api": "openai-completions",
        "apiKey": "sk-fake",
        "compat": {"supportsDeveloperRole": false},
        "models": models,
    });
    let settings = json!({
        "defaultProvider": "fake",
        "defaultModel": "fake-text",
        "retry": {"enabled": false},
        "enableInstallTelemetry": false,
        "quietStartup": true,
    });
    fs::write(
        dir.join("models.json"),
        json!({"providers": {"fake": provider}}).to_string(),
    )?;
    fs::write(dir.join("settings.json"), settings.to_string())
}
