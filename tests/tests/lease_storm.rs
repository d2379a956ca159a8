//! The lease under crashes at every point, stops, and a storm of both.
//!
//! `ADE_LEASE_CRASHES=10000` and `ADE_LEASE_STORM_SECS=60` are the long forms.

use ade_leases::lease::{AcquireError, Request, Step, acquire};
use ade_leases::process::{Pid, ProcessIdentity, Signal, Target, signal};
use ade_leases::record::OwnerKind;
use ade_tests::wait::{wait_true, wait_within};
use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// A directory with a session in it.
struct Scene {
    dir: tempfile::TempDir,
    session: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let session = dir.path().join("session.jsonl");
        fs::write(&session, "").expect("a session");
        Self { dir, session }
    }

    fn lease(&self) -> PathBuf {
        self.dir.path().join("session.jsonl.ade-lease")
    }

    /// Every name but the session's and the bystanders'.
    fn litter(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).expect("the directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with("session.jsonl.") && !name.ends_with("-other"))
            .collect();
        names.sort();
        names
    }

    /// Makes everything older than what may still be in the making.
    fn age(&self) {
        for name in self.litter() {
            let file = fs::File::open(self.dir.path().join(name)).expect("it is there");
            let hour = Duration::from_secs(3600);
            file.set_modified(SystemTime::now() - hour).expect("ours");
        }
    }

    fn record(&self, pid: u32) -> String {
        format!(
            "{{\"version\":1,\"token\":\"t-{pid}\",\"owner\":\"cli\",\"ownerId\":\"pty\",\"pid\":{pid},\
             \"acquiredAt\":\"2100-01-01T00:00:00.000Z\",\"sessionFile\":\"/S.jsonl\"}}\n"
        )
    }

    fn leave_dead_lease(&self, dead: u32) {
        fs::write(self.lease(), self.record(dead)).expect("a record");
    }

    /// A fresh process of ours gets the lease, gives it back, and finds or
    /// leaves nothing beside it.
    fn must_be_takable(&self, what: &str) {
        self.age();
        let lease = acquire(&self.session, &request(None));
        let lease = lease.unwrap_or_else(|error| panic!("{what}: {error}\n{:?}", self.litter()));
        lease
            .release()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(self.litter(), [""; 0], "{what}");
    }
}

fn request(wait: Option<Duration>) -> Request {
    Request {
        owner: OwnerKind::Cli,
        owner_id: "the test".to_owned(),
        wait,
    }
}

/// The pid of a process that has ended and was reaped.
fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().expect("true starts");
    child.wait().expect("it ends");
    child.id()
}

/// A `lease-crash`, killed and reaped when dropped.
struct Crasher {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Crasher {
    fn start(session: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lease-crash"))
            .arg(session)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("lease-crash starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    fn pid(&self) -> Pid {
        Pid::new(i64::from(self.child.id())).expect("a pid")
    }

    fn identity(&self) -> ProcessIdentity {
        let identity = ProcessIdentity::of(self.pid()).expect("/proc");
        identity.expect("it is not reaped")
    }

    /// What it says next; empty at its end.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    /// Lets it go on from `held`, and waits until it has ended. Whether it was
    /// killed.
    fn end(mut self) -> bool {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("it ends");
        assert!(!status.success() || status.code() == Some(0));
        status.code().is_none()
    }

    fn state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }
}

impl Drop for Crasher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const WORLDS: [&str; 8] = [
    "plain",
    "no-rename",
    "create-only",
    "no-exchange",
    "revived",
    "revived-no-exchange",
    "waits",
    "moved",
];

/// Runs one crash; whether the point was reached.
fn crash(scene: &Scene, world: &str, dead: Option<u32>, point: &[&str]) -> bool {
    if let Some(dead) = dead {
        scene.leave_dead_lease(dead);
    }
    let holder = (world == "waits").then(|| {
        // An earlier crash may have left a lease that is not yet written.
        scene.age();
        let mut holder = Crasher::start(&scene.session, &["plain", "kill", "1000000"]);
        assert_eq!(holder.says(), "held");
        holder
    });
    let mut args = vec![world, "kill"];
    args.extend(point);
    let crasher = Crasher::start(&scene.session, &args);
    if let Some(holder) = holder {
        // It has seen the holder when it queues, or has died before.
        wait_true("the waiter queues or dies", || {
            matches!(crasher.state(), Some('Z') | None) || queues(&crasher)
        });
        assert!(!holder.end());
    }
    let killed = crasher.end();
    if world.starts_with("revived") {
        // The live record that took the place is gone by now.
        let _ = fs::remove_file(scene.lease());
        let mut other = scene.lease().into_os_string();
        other.push("-other");
        let _ = fs::remove_file(other);
        for name in scene.litter() {
            let path = scene.dir.path().join(name);
            if fs::read_to_string(&path).is_ok_and(|text| text.contains("\"revived\"")) {
                fs::remove_file(path).expect("ours");
            }
        }
    }
    killed
}

/// Whether a thread of it waits for a range lock.
fn queues(crasher: &Crasher) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", crasher.child.id()));
    tasks.is_ok_and(|tasks| tasks.count() > 1)
}

/// Killed before and after each step of acquire, reclaim and release: the next
/// one gets the lease and nothing is left.
#[test]
fn killed_at_every_step() {
    let dead = dead_pid();
    let mut reached: HashMap<(Step, &str), &str> = HashMap::new();
    for step in Step::ALL {
        for moment in ["before", "after"] {
            let name = format!("{step:?}");
            for world in worlds_of(step) {
                for dead in [None, Some(dead)] {
                    let scene = Scene::new();
                    if crash(&scene, world, dead, &[&name, moment]) {
                        reached.insert((step, moment), world);
                    }
                    scene.must_be_takable(&format!("{world}, {moment} {step:?}"));
                }
            }
        }
    }
    let missed: Vec<_> = Step::ALL
        .into_iter()
        .flat_map(|step| [(step, "before"), (step, "after")])
        .filter(|point| !reached.contains_key(point))
        .collect();
    // A step that is refused by the filesystem has no "after" there.
    assert_eq!(missed, [], "never died there");
}

/// Where a step is reached that a plain world does not reach.
fn worlds_of(step: Step) -> &'static [&'static str] {
    match step {
        Step::Link | Step::StageUnlink => &["no-rename"],
        Step::CreateExclusive => &["create-only"],
        Step::ClaimRename | Step::ClaimCheck => &["no-exchange"],
        Step::ExchangeBack => &["revived"],
        Step::ClaimRestore => &["revived-no-exchange"],
        Step::Queue => &["waits"],
        Step::ReleaseSweep => &["moved"],
        _ => &["plain"],
    }
}

/// Killed anywhere, in any world, one after the other in the same directory.
#[test]
fn killed_at_random_points() {
    let runs = number("ADE_LEASE_CRASHES", 300);
    let dead = dead_pid();
    let scene = Scene::new();
    let mut random = Random::new();
    let (mut killed, mut started) = (0, Instant::now());
    for run in 0..runs {
        let world = WORLDS[random.below(WORLDS.len())];
        let lease = (world != "waits" && random.below(2) == 0).then_some(dead);
        let nth = random.below(36).to_string();
        killed += u64::from(crash(&scene, world, lease, &[&nth]));
        // Some runs meet what several crashes have left.
        if random.below(4) > 0 || world == "waits" || run + 1 == runs {
            scene.must_be_takable(&format!("run {run}, {world}, call {nth}"));
        }
        if started.elapsed() > Duration::from_secs(20) {
            started = Instant::now();
            say(&format!("{run} of {runs} runs"));
        }
    }
    say(&format!("{runs} runs, {killed} killed in the protocol"));
}

/// Stopped in the middle: the others are told within 5 s and a bit, and when it
/// goes on there is one holder.
#[test]
fn stopped_inside_the_critical_section() {
    let points = [
        ("Guard", false),
        ("StageWrite", false),
        ("RenameNoReplace", false),
        ("ScanAgain", false),
        ("Unguard", false),
        ("JudgeAgain", true),
        ("StageClaim", true),
        ("Exchange", true),
        ("ClaimDrop", true),
    ];
    let dead = dead_pid();
    std::thread::scope(|scope| {
        for (step, on_dead) in points {
            scope.spawn(move || stop_at(step, on_dead.then_some(dead)));
        }
    });
}

fn stop_at(step: &str, dead: Option<u32>) {
    let scene = Scene::new();
    if let Some(dead) = dead {
        scene.leave_dead_lease(dead);
    }
    let mut stopped = Crasher::start(&scene.session, &["plain", "stop", step, "after"]);
    wait_true(&format!("it stops after {step}"), || {
        stopped.state() == Some('T')
    });
    let started = Instant::now();
    let refusal = acquire(&scene.session, &request(None));
    let refusal = refusal.expect_err("somebody is in the middle of it");
    let took = started.elapsed();
    assert!(took < Duration::from_secs(7), "{step}: {took:?}");
    let named = refusal.is_contention() || matches!(refusal, AcquireError::GuardTimeout { .. });
    assert!(named, "{step}: {refusal}");
    let target = Target::Process(stopped.identity());
    signal(&target, Signal::SIGCONT).expect("it is ours");
    // We and the one that goes on: whoever is first, the other is refused.
    let ours = wait_within(
        "one of us holds",
        Duration::from_secs(20),
        || match acquire(&scene.session, &request(None)) {
            Ok(lease) => Some(Some(lease)),
            Err(AcquireError::Held(_)) => Some(None),
            Err(_) => None,
        },
    );
    let said = stopped.says();
    if ours.is_some() {
        assert!(said.starts_with("refused"), "{step}: {said}");
    } else {
        assert_eq!(said, "held", "{step}");
    }
    drop(ours);
    assert!(!stopped.end(), "{step}");
    scene.must_be_takable(step);
}

/// 32 processes on one path; holders are killed and stopped at random. Every
/// holder keeps books while it holds, and the checker reads only those.
#[test]
fn a_storm_of_kills_and_stops() {
    const PROCESSES: usize = 32;
    let secs = number("ADE_LEASE_STORM_SECS", 10);
    let scene = Scene::new();
    let log = scene.dir.path().join("LOG");
    let token = scene.dir.path().join("TOKEN");
    let mut storm = Storm {
        log: log.clone(),
        token: token.clone(),
        session: scene.session.clone(),
        started: 0,
        killed: HashMap::new(),
        stops: 0,
    };
    let mut random = Random::new();
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| storm.start()).collect();
    let end = Instant::now() + Duration::from_secs(secs);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_micros(500 + 40 * random.below(500) as u64));
        // Mostly the holder, as far as one can tell; else anybody.
        let holder = fs::read_to_string(&token).unwrap_or_default();
        let at = workers.iter().position(|(id, _)| *id == holder);
        let at = at.filter(|_| random.below(10) < 8);
        let at = at.unwrap_or_else(|| random.below(PROCESSES));
        if random.below(3) == 0 {
            storm.stop_for_a_moment(&workers[at].1, &mut random);
        } else {
            let next = storm.start();
            let (id, mut worker) = std::mem::replace(&mut workers[at], next);
            storm.killed.insert(id, now());
            worker.child.kill().expect("it is ours");
            worker.child.wait().expect("it ends");
        }
    }
    for (id, mut worker) in workers {
        drop(worker.child.stdin.take());
        let status = wait_within("a worker ends", Duration::from_secs(15), || {
            worker.child.try_wait().expect("ours")
        });
        assert!(
            status.success(),
            "worker {id} got stuck or failed: {status}"
        );
    }
    let books = Books::read(&log, &storm.killed);
    say(&format!(
        "{secs} s: {} holds, {} kills, {} of holders, {} stops, longest pause {:?}",
        books.holds,
        storm.killed.len(),
        books.cut_short,
        storm.stops,
        books.longest_pause
    ));
    assert_eq!(books.wrong, [""; 0]);
    assert!(books.holds > 10 * secs, "hardly anybody held");
    scene.must_be_takable("after the storm");
}

struct Storm {
    log: PathBuf,
    token: PathBuf,
    session: PathBuf,
    started: u32,
    /// When we killed whom, on the clock of the books.
    killed: HashMap<String, i128>,
    stops: u32,
}

impl Storm {
    fn start(&mut self) -> (String, Crasher) {
        self.started += 1;
        let id = format!("w{}", self.started);
        let (log, token) = (self.log.to_string_lossy(), self.token.to_string_lossy());
        let mut worker = Crasher::start(&self.session, &["storm", &id, &log, &token]);
        assert_eq!(worker.says(), "ready");
        (id, worker)
    }

    fn stop_for_a_moment(&mut self, worker: &Crasher, random: &mut Random) {
        let target = Target::Process(worker.identity());
        signal(&target, Signal::SIGSTOP).expect("it is ours");
        std::thread::sleep(Duration::from_millis(random.below(40) as u64));
        signal(&target, Signal::SIGCONT).expect("it is ours");
        self.stops += 1;
    }
}

/// The clock of the books.
fn now() -> i128 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    i128::from(now.tv_sec()) * 1_000_000_000 + i128::from(now.tv_nsec())
}

/// What the log says, which everybody appended to while it held.
#[derive(Default)]
struct Books {
    holds: u64,
    cut_short: u64,
    longest_pause: Duration,
    wrong: Vec<String>,
}

impl Books {
    /// A hold ends with its `E`, or with the death of its holder.
    fn read(log: &Path, killed: &HashMap<String, i128>) -> Self {
        let text = fs::read_to_string(log).expect("the log");
        let mut books = Self::default();
        let mut open: Option<&str> = None;
        let mut last = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (id, at) = match words[..] {
                ["B" | "E", id, at] => (id, at.parse::<i128>().expect("a time")),
                _ => {
                    books.wrong.push(line.to_owned());
                    continue;
                }
            };
            if words[0] == "E" {
                if open.take() != Some(id) {
                    books
                        .wrong
                        .push(format!("{line}: was not the last to begin"));
                }
            } else {
                books.holds += 1;
                if let Some(before) = open.replace(id) {
                    match killed.get(before) {
                        Some(death) if *death <= at => books.cut_short += 1,
                        _ => books.wrong.push(format!("{line}: while {before} held")),
                    }
                }
            }
            let pause = at - last.replace(at).unwrap_or(at);
            let pause = Duration::from_nanos(u64::try_from(pause).unwrap_or(0));
            books.longest_pause = books.longest_pause.max(pause);
        }
        books
    }
}

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

fn say(text: &str) {
    writeln!(io::stdout(), "{text}").expect("stdout");
}

/// A generator that is seeded from the system; what it chose is in the message
/// of a failure.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(u64::from_le_bytes(
            uuid::Uuid::new_v4().as_bytes()[8..]
                .try_into()
                .expect("8 bytes"),
        ))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}
