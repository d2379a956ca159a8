//! Running the executable in a home of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// What a command printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A home of its own; nothing of the user's is touched.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("ade-t-")
            .tempdir()
            .expect("a folder");
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The executable with this home and without anything of ours.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = bare(arguments);
        command
            .env("ADE_HOME", self.home())
            .env("HOME", self.path());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        ran(self.command(arguments))
    }
}

impl Drop for Place {
    /// Ends the broker that a test may have started.
    fn drop(&mut self) {
        if self.home().exists() {
            let stopped = self.run(&["stop"]);
            if !std::thread::panicking() {
                assert_eq!(stopped.code, Some(0), "{stopped:?}");
            }
        }
    }
}

/// Looks again and again until `look` finds something.
pub(crate) fn wait_until<T>(label: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {label}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The executable with an environment that changes nothing.
pub(crate) fn bare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
    command.args(arguments).stdin(Stdio::null());
    for name in [
        "ADE_HOME",
        "ADE_RPC_SOCKET_PATH",
        "ADE_LOG",
        "COLUMNS",
        "LINES",
    ] {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1");
    command
}

pub(crate) fn ran(mut command: Command) -> Ran {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the executable starts");
    Ran {
        code: status.code(),
        out: String::from_utf8(stdout).expect("UTF-8"),
        err: String::from_utf8(stderr).expect("UTF-8"),
    }
}
