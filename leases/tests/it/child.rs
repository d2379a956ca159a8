//! A second process that uses this crate: this test binary, started again.

use crate::support::wait_until;
use ade_leases::lease::{Request, acquire};
use ade_leases::record::OwnerKind;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const SESSION: &str = "ADE_LEASES_TEST_SESSION";

/// Not a test by itself: what the second process does. It takes the lease,
/// says so, and holds it until its stdin ends.
#[test]
fn child_entry() {
    let Some(session) = std::env::var_os(SESSION) else {
        return;
    };
    let wait = Some(Duration::from_secs(5));
    let request = Request {
        owner: OwnerKind::Cli,
        owner_id: "pty-9".to_owned(),
        wait,
    };
    let lease = acquire(Path::new(&session), &request).expect("the child takes the lease");
    let mut stdout = std::io::stdout();
    writeln!(stdout, "\nheld").expect("the parent listens");
    stdout.flush().expect("the parent listens");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a pipe");
    lease.release().expect("the child releases");
}

/// Another process that holds a lease.
pub(crate) struct Other(Child, BufReader<ChildStdout>);

impl Other {
    pub(crate) fn holding(session: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "child::child_entry", "--nocapture"])
            .env(SESSION, session)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary starts again");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let held = stdout
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .any(|line| line == "held");
        assert!(held, "the child did not get the lease");
        Self(child, stdout)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills it without reaping.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("it is ours");
        let stat = format!("/proc/{}/stat", self.0.id());
        wait_until("the killed child is a zombie", || {
            std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
        });
    }

    /// Lets it release and end.
    pub(crate) fn finish(mut self) {
        drop(self.0.stdin.take());
        std::io::copy(&mut self.1, &mut std::io::sink()).expect("it ends");
        assert!(self.0.wait().expect("it ends").success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
