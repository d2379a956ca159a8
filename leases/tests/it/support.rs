//! What the tests of this crate share.

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Polls until the predicate holds; fails with the label after 5 s.
pub(crate) fn wait_until(label: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting until {label}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Says visibly, also without `--nocapture`, that a test could not run.
pub(crate) fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// A process that lives until it is dropped.
pub(crate) struct Live(pub(crate) Child);

impl Live {
    pub(crate) fn sleep() -> Self {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().expect("sleep starts"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Until a child has ended as a whole, without reaping it. The state in its
/// stat line is not enough: that shows the end of the first thread, and another
/// one may still be about to close the files, locks included.
pub(crate) fn wait_for_end(child: &Child) {
    let pid = i32::try_from(child.id()).expect("a pid");
    let pid = nix::unistd::Pid::from_raw(pid);
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    wait_until("the child has ended", || {
        waitid(Id::Pid(pid), flags).expect("our child") != WaitStatus::StillAlive
    });
}

/// A child that has ended and is not reaped before it is dropped.
pub(crate) struct Zombie(Child);

impl Zombie {
    pub(crate) fn new() -> Self {
        let child = Command::new("true").spawn().expect("true starts");
        wait_for_end(&child);
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Zombie {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

/// A pid that nobody has: that of a reaped child.
pub(crate) fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().expect("true starts");
    child.wait().expect("it ends");
    child.id()
}

/// An ISO time so many seconds ago.
pub(crate) fn iso_ago(secs: u64) -> String {
    let at = SystemTime::now() - Duration::from_secs(secs);
    let at = jiff::Timestamp::try_from(at).expect("a time of this century");
    at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

pub(crate) fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text with each `@@NAME@@` replaced.
pub(crate) fn filled(text: &str, values: &[(&str, String)]) -> String {
    let mut text = text.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("@@{name}@@"), value);
    }
    assert!(!text.contains("@@"), "unfilled: {text}");
    text
}

/// A directory with a session file in it.
pub(crate) struct Scene {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) session: PathBuf,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temp dir");
        let session = dir
            .path()
            .canonicalize()
            .expect("it exists")
            .join("S.jsonl");
        fs::write(&session, "").expect("a session file");
        Self { dir, session }
    }

    pub(crate) fn lease(&self) -> PathBuf {
        self.beside(".ade-lease")
    }

    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.session.clone().into_os_string();
        path.push(suffix);
        path.into()
    }

    /// Puts a lease there whose file is as old as given.
    pub(crate) fn put(&self, text: &str, age: Duration) {
        put(&self.lease(), text, age);
    }

    /// Every name in the directory but the session file's.
    pub(crate) fn litter(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.dir.path())
            .expect("the directory")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .filter(|name| name != "S.jsonl")
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn put(path: &Path, text: &str, age: Duration) {
    fs::write(path, text).expect("the file is written");
    let file = fs::File::options()
        .write(true)
        .open(path)
        .expect("it is there");
    file.set_modified(SystemTime::now() - age)
        .expect("its time is set");
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
