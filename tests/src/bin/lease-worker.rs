//! One contender for a lease: `lease-worker work DIR SECS HOLD_MS [wait|poll]`.
//!
//! Prints `ready`, waits for a byte on its stdin, and then loops: acquire the
//! lease of `DIR/session.jsonl`, bear witness, hold, take the witness back,
//! release. At the end it prints one JSON line.
//!
//! The witness is a symlink `DIR/WITNESS`, made only where there is none, whose
//! target is the holder's pid. Who finds another live holder's there counts a
//! double hold. It knows nothing of our leases.

use ade_leases::lease::{Lease, Request, acquire};
use ade_leases::record::OwnerKind;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let run = match words[..] {
        ["work", dir, secs, hold, ref mode @ ..] => secs
            .parse()
            .ok()
            .zip(hold.parse().ok())
            .filter(|_| matches!(mode, [] | ["wait" | "poll"]))
            .map(|(secs, hold)| work(Path::new(dir), secs, hold, mode != ["poll"])),
        _ => None,
    };
    let problem = match run {
        Some(Ok(())) => return ExitCode::SUCCESS,
        Some(Err(error)) => error.to_string(),
        None => "usage: lease-worker work DIR SECS HOLD_MS [wait|poll]".to_owned(),
    };
    let _ = writeln!(io::stderr(), "{problem}");
    ExitCode::FAILURE
}

fn work(dir: &Path, secs: f64, hold_ms: f64, waits: bool) -> io::Result<()> {
    let session = dir.join("session.jsonl");
    let witness = Witness(dir.join("WITNESS"));
    let mut stdout = io::stdout();
    writeln!(stdout, "ready")?;
    stdout.flush()?;
    io::stdin().read_exact(&mut [0])?;
    let end = Instant::now() + Duration::from_secs_f64(secs);
    let hold = Duration::from_secs_f64(hold_ms.max(0.0) / 1e3);
    let mut tally = Tally::default();
    let mut since = Instant::now();
    while Instant::now() < end {
        tally.tries += 1;
        let Some(lease) = attempt(&session, waits.then(|| end - Instant::now().min(end)))? else {
            continue;
        };
        tally.waits.push(since.elapsed().as_secs_f64() * 1e3);
        tally.last = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis();
        let alone = witness.bear()?;
        tally.dbl += u64::from(!alone);
        if !hold.is_zero() {
            sleep(hold);
        }
        if alone {
            witness.take_back()?;
        }
        lease.release().map_err(io::Error::other)?;
        tally.n += 1;
        since = Instant::now();
    }
    tally.waits.push(since.elapsed().as_secs_f64() * 1e3);
    writeln!(stdout, "{}", tally.line())
}

/// `None`: somebody has it. Who doesn't wait pauses for 0.5 to 1.5 ms, so that
/// contenders don't keep step.
fn attempt(session: &Path, wait: Option<Duration>) -> io::Result<Option<Lease>> {
    let request = Request {
        owner: OwnerKind::Sdk,
        owner_id: "lease-worker".to_owned(),
        wait,
    };
    match acquire(session, &request) {
        Ok(lease) => Ok(Some(lease)),
        Err(error) if error.is_contention() => {
            if wait.is_none() {
                let random = u64::from(uuid::Uuid::new_v4().as_bytes()[0]);
                sleep(Duration::from_micros(500 + 4 * random));
            }
            Ok(None)
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

struct Witness(PathBuf);

impl Witness {
    /// Whether no other live process had one there.
    fn bear(&self) -> io::Result<bool> {
        let own = std::process::id();
        loop {
            match std::os::unix::fs::symlink(own.to_string(), &self.0) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let Ok(target) = std::fs::read_link(&self.0) else {
                continue;
            };
            let pid = target.to_str().and_then(|pid| pid.parse().ok());
            if pid.is_some_and(|pid: u32| pid != own && runs(pid)) {
                return Ok(false);
            }
            match std::fs::remove_file(&self.0) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }

    fn take_back(&self) -> io::Result<()> {
        std::fs::remove_file(&self.0)
    }
}

/// Whether the process runs and is not on its way out, when its locks may be
/// gone before it is. Read from the system, not with our own code.
fn runs(pid: u32) -> bool {
    const EXITING: u64 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let fields: Vec<&str> = rest.split(' ').collect();
    let flags = fields.get(6).and_then(|flags| flags.parse::<u64>().ok());
    !matches!(fields[0], "Z" | "X") && flags.is_some_and(|flags| flags & EXITING == 0)
}

#[derive(Default)]
struct Tally {
    n: u64,
    dbl: u64,
    tries: u64,
    last: u128,
    waits: Vec<f64>,
}

impl Tally {
    fn line(mut self) -> String {
        self.waits.sort_by(f64::total_cmp);
        let last = self.waits.len() - 1;
        let quantile = |permille: usize| self.waits[last * permille / 1000];
        let (max_wait, p50, p99) = (quantile(1000), quantile(500), quantile(990));
        let Self {
            n,
            dbl,
            tries,
            last,
            ..
        } = self;
        format!(
            "{{\"n\":{n},\"dbl\":{dbl},\"tries\":{tries},\"last\":{last},\
             \"maxWait\":{max_wait:.3},\"p50\":{p50:.3},\"p99\":{p99:.3}}}"
        )
    }
}
