//! A second process that uses this crate: this test binary, started again.

use crate::support::wait_for_end;
use ade_leases::lease::{AcquireError, Lease, Moment, Request, Seam, Step, acquire_with};
use ade_leases::record::OwnerKind;
use nix::sys::signal::{Signal, kill};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const SESSION: &str = "ADE_LEASES_TEST_SESSION";
const MODE: &str = "ADE_LEASES_TEST_MODE";
const DIE: &str = "ADE_LEASES_TEST_DIE";
const FAULTS: &str = "ADE_LEASES_TEST_FAULTS";

/// A seam that fails at the steps before they are made.
pub(crate) fn faults(at: Vec<(Step, i32)>) -> Seam {
    Seam::new(move |step, moment| fail(&at, step, moment))
}

fn seam_of_env() -> Seam {
    let die = std::env::var(DIE).ok().map(|die| {
        let (step, moment) = die.split_once(':').expect("Step:Moment");
        let before = moment == "Before";
        let moment = if before {
            Moment::Before
        } else {
            Moment::After
        };
        (Step::parse(step).expect("a step"), moment)
    });
    let list = std::env::var(FAULTS).unwrap_or_default();
    let parse = |fault: &str| {
        let (step, errno) = fault.split_once(':').expect("Step:errno");
        let errno: i32 = errno.parse().expect("an errno");
        (Step::parse(step).expect("a step"), errno)
    };
    let at: Vec<_> = list
        .split(',')
        .filter(|fault| !fault.is_empty())
        .map(parse)
        .collect();
    Seam::new(move |step, moment| {
        if die == Some((step, moment)) {
            kill(nix::unistd::getpid(), Signal::SIGKILL).expect("ourselves");
        }
        fail(&at, step, moment)
    })
}

fn fail(at: &[(Step, i32)], step: Step, moment: Moment) -> io::Result<()> {
    let fault = at
        .iter()
        .find(|(wanted, _)| *wanted == step && moment == Moment::Before);
    fault.map_or(Ok(()), |(_, errno)| {
        Err(io::Error::from_raw_os_error(*errno))
    })
}

fn take(session: &Path, wait: Option<Duration>) -> Result<Lease, AcquireError> {
    let request = Request {
        owner: OwnerKind::Cli,
        owner_id: "pty-9".to_owned(),
        wait,
    };
    acquire_with(session, &request, &seam_of_env())
}

fn say(text: &str) {
    let mut stdout = io::stdout();
    writeln!(stdout, "\n{text}").expect("the parent listens");
    stdout.flush().expect("the parent listens");
}

/// Not a test by itself: what the second process does.
#[test]
fn child_entry() {
    let Some(session) = std::env::var_os(SESSION) else {
        return;
    };
    let session = Path::new(&session);
    match std::env::var(MODE).expect("a mode").as_str() {
        // Takes the lease, says so, and holds it until its stdin ends.
        "hold" => {
            let lease = take(session, Some(Duration::from_secs(5))).expect("it is taken");
            say("held");
            io::stdin().read_line(&mut String::new()).expect("a pipe");
            lease.release().expect("it is released");
        }
        "try" => match take(session, None) {
            Ok(lease) => {
                say("taken");
                lease.release().expect("it is released");
            }
            Err(error) => say(&format!("refused: {error} / {error:?}")),
        },
        "fight" => fight(session),
        "turn" => take_turn(session),
        mode => panic!("unknown mode {mode}"),
    }
}

/// Takes and gives for a second, and leaves a witness while it holds.
fn fight(session: &Path) {
    let witness = session.with_extension("witness");
    say("ready");
    io::stdin()
        .read_line(&mut String::new())
        .expect("the starting signal");
    let end = Instant::now() + Duration::from_secs(1);
    let (mut held, mut doubles) = (0, 0);
    while Instant::now() < end {
        let lease = take(session, Some(Duration::from_secs(3))).expect("nobody starves");
        if fs::File::create_new(&witness).is_err() {
            doubles += 1;
        }
        held += 1;
        let _ = fs::remove_file(&witness);
        lease.release().expect("it is released");
    }
    say(&format!("fought {held} {doubles}"));
}

/// Takes it once, and writes the pid into the order of the holds.
pub(crate) fn take_turn(session: &Path) {
    let lease = take(session, Some(Duration::from_secs(20))).expect("its turn comes");
    let order = session.with_extension("order");
    let mut order = fs::File::options()
        .create(true)
        .append(true)
        .open(order)
        .expect("a file");
    writeln!(order, "{}", std::process::id()).expect("written");
    lease.release().expect("it is released");
}

pub(crate) fn command(mode: &str, session: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    prepare(&mut command, mode, session);
    command
}

/// The arguments and the environment of the second process.
pub(crate) fn prepare(command: &mut Command, mode: &str, session: &Path) {
    command
        .args(["--exact", "child::child_entry", "--nocapture"])
        .env(SESSION, session)
        .env(MODE, mode)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

pub(crate) fn with_faults(mut command: Command, faults: &str) -> Command {
    command.env(FAULTS, faults);
    command
}

/// Runs the second process until it kills itself at a step; `false` when it
/// came to its end, so the step was not on the way.
pub(crate) fn dies_at(session: &Path, faults: &str, step: Step, moment: Moment) -> bool {
    let mut command = with_faults(command("try", session), faults);
    command
        .env(DIE, format!("{step:?}:{moment:?}"))
        .stdin(Stdio::null());
    !command.output().expect("it ran").status.success()
}

/// What the second process said in the end.
pub(crate) fn answer(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it ran");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.lines().find(|line| {
        ["taken", "refused", "fought"]
            .iter()
            .any(|word| line.starts_with(word))
    });
    said.map_or_else(
        || {
            format!(
                "nothing: {text} {}",
                String::from_utf8_lossy(&output.stderr)
            )
        },
        str::to_owned,
    )
}

/// Another process that holds a lease.
pub(crate) struct Other(Child, BufReader<ChildStdout>);

impl Other {
    pub(crate) fn holding(session: &Path) -> Self {
        Self::started(command("hold", session)).expect("the child gets the lease")
    }

    /// Starts a command that runs the `hold` mode; `None` when it can't.
    pub(crate) fn started(command: Command) -> Option<Self> {
        Self::saying("held\n", command)
    }

    /// Starts a command that runs the `fight` mode, and waits until it could.
    pub(crate) fn ready(command: Command) -> Self {
        Self::saying("ready\n", command).expect("it starts")
    }

    fn saying(word: &str, mut command: Command) -> Option<Self> {
        let mut child = command.spawn().ok()?;
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while stdout.read_line(&mut line).is_ok_and(|n| n > 0) {
            if line == word {
                return Some(Self(child, stdout));
            }
            line.clear();
        }
        let _ = child.wait();
        None
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills it without reaping.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("it is ours");
        wait_for_end(&self.0);
    }

    /// Lets one that is ready begin.
    pub(crate) fn go(&mut self) {
        let stdin = self.0.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"go\n").expect("it listens");
    }

    /// Lets it release and end; what it still said.
    pub(crate) fn finish(mut self) -> String {
        drop(self.0.stdin.take());
        let mut text = String::new();
        self.1.read_to_string(&mut text).expect("text");
        assert!(self.0.wait().expect("it ends").success(), "{text}");
        text
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
