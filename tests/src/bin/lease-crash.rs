//! A holder that meets its end, or a stop, at a chosen point of the protocol.
//!
//! - `lease-crash SESSION WORLD kill|stop STEP before|after`: acquires and
//!   releases, and kills or stops itself at that point.
//! - `lease-crash SESSION WORLD kill N`: the same at the N-th hook call.
//! - `lease-crash SESSION storm ID LOG TOKEN`: acquires and releases for as long
//!   as its stdin is open, and keeps the books that the storm's checker reads.
//!
//! WORLD is what the filesystem refuses and what others do meanwhile:
//! `plain`, `no-rename`, `create-only`, `no-exchange`, `revived` (a live record
//! takes the place of the dead one just before it is exchanged or renamed),
//! `revived-no-exchange`, `waits` (for the live holder whose lease is there)
//! and `moved` (a foreign program moves the lease aside while it is held).
//!
//! Prints `held` when it has the lease, `refused` when it has not; holds until
//! a byte or the end comes on its stdin. It dies with its parent.

use ade_leases::lease::{Lease, Moment, Request, Seam, Step, acquire, acquire_with};
use ade_leases::record::OwnerKind;
use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};
use nix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(io::Error::from)
        .and_then(|()| match words[..] {
            [session, "storm", id, log, token] => storm(session, id, log, token),
            [session, world, how, ref point @ ..] => once(session, world, how, point),
            _ => Err(io::Error::other("usage: see the head of this program")),
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "lease-crash: {error}");
            ExitCode::FAILURE
        }
    }
}

fn request(wait: Option<Duration>) -> Request {
    Request {
        owner: OwnerKind::Sdk,
        owner_id: "lease-crash".to_owned(),
        wait,
    }
}

fn say(word: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{word}")?;
    stdout.flush()
}

fn once(session: &str, world: &str, how: &str, point: &[&str]) -> io::Result<()> {
    let end = match how {
        "kill" => Signal::SIGKILL,
        "stop" => Signal::SIGSTOP,
        _ => return Err(io::Error::other("kill or stop?")),
    };
    let point = Point::parse(point).ok_or_else(|| io::Error::other("no such point"))?;
    let world = World::new(world, Path::new(session));
    let wait = (world.name == "waits").then_some(Duration::from_secs(10));
    let done = AtomicBool::new(false);
    let seam = Seam::new(move |step, moment| {
        if point.is_here(step, moment) && !done.swap(true, Ordering::Relaxed) {
            raise(end)?;
        }
        world.at(step, moment)
    });
    match acquire_with(Path::new(session), &request(wait), &seam) {
        Ok(lease) => {
            say("held")?;
            let _ = io::stdin().read(&mut [0]);
            lease.release().map_err(io::Error::other)?;
            say("released")
        }
        Err(error) => say(&format!("refused {error}")),
    }
}

enum Point {
    At(Step, Moment),
    Nth(usize, AtomicUsize),
}

impl Point {
    fn parse(words: &[&str]) -> Option<Self> {
        match *words {
            [nth] => Some(Self::Nth(nth.parse().ok()?, AtomicUsize::new(0))),
            [step, moment] => {
                let moment = match moment {
                    "before" => Moment::Before,
                    "after" => Moment::After,
                    _ => return None,
                };
                Some(Self::At(Step::parse(step)?, moment))
            }
            _ => None,
        }
    }

    fn is_here(&self, step: Step, moment: Moment) -> bool {
        match self {
            Self::At(at, when) => (*at, *when) == (step, moment),
            Self::Nth(nth, count) => count.fetch_add(1, Ordering::Relaxed) == *nth,
        }
    }
}

/// What the filesystem refuses, and what others do in between.
struct World {
    name: String,
    lease: PathBuf,
    acted: AtomicBool,
}

impl World {
    fn new(name: &str, session: &Path) -> Self {
        let mut lease = session.as_os_str().to_owned();
        lease.push(".ade-lease");
        Self {
            name: name.to_owned(),
            lease: lease.into(),
            acted: AtomicBool::new(false),
        }
    }

    fn at(&self, step: Step, moment: Moment) -> io::Result<()> {
        use Moment::{After, Before};
        let no_rename = matches!(self.name.as_str(), "no-rename" | "create-only");
        let no_exchange = matches!(self.name.as_str(), "no-exchange" | "revived-no-exchange");
        match (step, moment) {
            (Step::RenameNoReplace, Before) if no_rename => Err(Errno::EINVAL.into()),
            (Step::Link, Before) if self.name == "create-only" => Err(Errno::EPERM.into()),
            (Step::Exchange, Before) if no_exchange => Err(Errno::EINVAL.into()),
            (Step::Exchange, Before) if self.name == "revived" => self.once(Self::revive),
            (Step::ClaimRename, Before) if self.name == "revived-no-exchange" => {
                self.once(Self::revive)
            }
            (Step::Unguard, After) if self.name == "moved" => self.once(Self::move_aside),
            _ => Ok(()),
        }
    }

    fn once(&self, act: fn(&Self) -> io::Result<()>) -> io::Result<()> {
        if self.acted.swap(true, Ordering::Relaxed) {
            Ok(())
        } else {
            act(self)
        }
    }

    /// Puts a record of our parent's there, as a foreign program writes it.
    fn revive(&self) -> io::Result<()> {
        let parent = nix::unistd::getppid();
        let record = format!(
            "{{\"version\":1,\"token\":\"revived\",\"owner\":\"cli\",\"ownerId\":\"pty\",\
             \"pid\":{parent},\"acquiredAt\":\"2100-01-01T00:00:00.000Z\",\"sessionFile\":\"x\"}}\n"
        );
        self.replace(record.as_bytes())
    }

    fn move_aside(&self) -> io::Result<()> {
        let mut claim = self.lease.as_os_str().to_owned();
        claim.push(".reclaim-0a0a0a0a-0000-4000-8000-00000000000a");
        std::fs::rename(&self.lease, claim)
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let mut temporary = self.lease.as_os_str().to_owned();
        temporary.push("-other");
        std::fs::write(&temporary, bytes)?;
        std::fs::rename(&temporary, &self.lease)
    }
}

/// The books: `B id at` and `E id at` appended to one log while the lease is
/// held, `at` in ns of the monotonic clock, and the id written to a file of its
/// own and read back. `X id what` is something that must not be.
fn storm(session: &str, id: &str, log: &str, token: &str) -> io::Result<()> {
    let mut log = OpenOptions::new().append(true).create(true).open(log)?;
    let ended = std::sync::Arc::new(AtomicBool::new(false));
    let told = std::sync::Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        told.store(true, Ordering::Relaxed);
    });
    say("ready")?;
    while !ended.load(Ordering::Relaxed) {
        match acquire(Path::new(session), &request(Some(Duration::from_secs(1)))) {
            Ok(lease) => hold(lease, id, &mut log, Path::new(token))?,
            Err(error) if error.is_contention() => {}
            Err(error) => return line(&mut log, &format!("X {id} {error}")),
        }
    }
    Ok(())
}

fn hold(lease: Lease, id: &str, log: &mut File, token: &Path) -> io::Result<()> {
    line(log, &format!("B {id} {}", now()?))?;
    std::fs::write(token, id)?;
    let random = uuid::Uuid::new_v4();
    sleep(Duration::from_micros(12 * u64::from(random.as_bytes()[0])));
    let found = std::fs::read_to_string(token)?;
    if found != id {
        line(log, &format!("X {id} read back {found}"))?;
    }
    line(log, &format!("E {id} {}", now()?))?;
    match lease.release() {
        Ok(ade_leases::lease::Released::Freed) => Ok(()),
        Ok(ade_leases::lease::Released::HadBeenLost) => line(log, &format!("X {id} lost it")),
        Err(error) => line(log, &format!("X {id} {error}")),
    }
}

fn line(log: &mut File, text: &str) -> io::Result<()> {
    log.write_all(format!("{text}\n").as_bytes())
}

fn now() -> io::Result<i128> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(i128::from(now.tv_sec()) * 1_000_000_000 + i128::from(now.tv_nsec()))
}
