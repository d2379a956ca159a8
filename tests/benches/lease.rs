//! What a lease costs, beside what the machine can do, in one run.
//!
//! `cargo bench -p ade-tests --bench lease` prints a table; the long form takes
//! about two minutes. With `--test` (as `cargo test --benches` passes it), or
//! without `--bench`, it does one quick round. `PROPER=…/node_modules` adds a
//! line for the npm package `proper-lockfile`.
//!
//! Read the ratios, not the times, and run nothing beside it.

use ade_leases::lease::{Request, acquire};
use ade_leases::record::OwnerKind;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let size = if has("--bench") && !has("--test") {
        Size::LONG
    } else {
        Size::QUICK
    };
    let floor = alone(&size);
    refused(&size, &floor);
    for processes in size.processes {
        for hold in [0, 5, 50] {
            for mode in size.modes {
                contention(*processes, hold, mode, size.secs);
            }
        }
    }
    crash(&size);
}

struct Size {
    cycles: u32,
    repeats: usize,
    processes: &'static [usize],
    modes: &'static [&'static str],
    secs: f64,
    crashes: usize,
}

impl Size {
    const LONG: Self = Self {
        cycles: 300,
        repeats: 60,
        processes: &[8, 32],
        modes: &["wait", "poll"],
        secs: 8.0,
        crashes: 20,
    };
    const QUICK: Self = Self {
        cycles: 20,
        repeats: 2,
        processes: &[4],
        modes: &["wait"],
        secs: 0.2,
        crashes: 1,
    };
}

fn say(text: &str) {
    writeln!(io::stdout(), "{text}").expect("stdout");
}

fn request() -> Request {
    Request {
        owner: OwnerKind::Sdk,
        owner_id: "bench".to_owned(),
        wait: None,
    }
}

fn session(dir: &Path) -> std::path::PathBuf {
    let session = dir.join("session.jsonl");
    fs::write(&session, "{\"type\":\"session\"}\n").expect("a session");
    session
}

/// Each per call in µs, by the clock and by our processor time. The repeats are
/// short and take turns, so that noise meets all alike; on a machine that does
/// other things, too, the processor time says more.
fn take_turns(size: &Size, works: &mut [(&str, &mut dyn FnMut())]) -> Vec<Measured> {
    let mut all: Vec<_> = works.iter().map(|_| (Vec::new(), Vec::new())).collect();
    for _ in 0..size.repeats {
        for ((_, work), (clock, cpu)) in works.iter_mut().zip(&mut all) {
            let (started, worked) = (Instant::now(), cpu_micros());
            for _ in 0..size.cycles {
                work();
            }
            clock.push(started.elapsed().as_secs_f64() * 1e6 / f64::from(size.cycles));
            cpu.push((cpu_micros() - worked) / f64::from(size.cycles));
        }
    }
    let measured = all.into_iter().map(|(clock, cpu)| Measured {
        clock: Spread::of(clock),
        cpu: Spread::of(cpu),
    });
    let measured: Vec<_> = measured.collect();
    for ((name, _), Measured { clock, cpu }) in works.iter().zip(&measured) {
        say(&format!(
            "{name:48} {:7.1} µs ({:.1} to {:.1}), processor {:.1} µs ({:.1} to {:.1})",
            clock.median, clock.least, clock.most, cpu.median, cpu.least, cpu.most
        ));
    }
    measured
}

/// The processor time of this thread.
fn cpu_micros() -> f64 {
    let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
    let time = nix::time::clock_gettime(clock).expect("every thread has one");
    Duration::from(time).as_secs_f64() * 1e6
}

struct Measured {
    clock: Spread,
    cpu: Spread,
}

impl Measured {
    /// By the medians of the clock and of the processor, and by the least
    /// processor time of both.
    fn ratio(&self, floor: &Self) -> String {
        format!(
            "{:.2} (processor {:.2}, least {:.2})",
            self.clock.median / floor.clock.median,
            self.cpu.median / floor.cpu.median,
            self.cpu.least / floor.cpu.least
        )
    }
}

struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            least: values[0],
            median: values[values.len() / 2],
            most: values[values.len() - 1],
        }
    }
}

/// Acquire and release with nobody near, beside the least that a lease by hard
/// link, or by rename, can cost: the bare calls with a record of the same size.
fn alone(size: &Size) -> Measured {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    let lease = acquire(&session, &request()).expect("free");
    let record = fs::read(lease.path()).expect("the record");
    drop(lease);
    let (target, staging) = (dir.path().join("L"), dir.path().join("L.new"));
    let write = || {
        let mut options = OpenOptions::new();
        let file: io::Result<File> = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&staging);
        let mut file = file.expect("new");
        file.write_all(&record).expect("room");
        file
    };
    let mut by_link = || {
        drop(write());
        fs::hard_link(&staging, &target).expect("free");
        fs::remove_file(&staging).expect("there");
        fs::remove_file(&target).expect("there");
    };
    let mut by_rename = || {
        drop(write());
        fs::rename(&staging, &target).expect("free");
        fs::remove_file(&target).expect("there");
    };
    let mut ours = || {
        let lease = acquire(&session, &request()).expect("free");
        lease.release().expect("ours");
    };
    let measured = take_turns(
        size,
        &mut [
            (
                "link floor: create, write, link, unlink, unlink",
                &mut by_link,
            ),
            (
                "rename floor: create, write, rename, unlink",
                &mut by_rename,
            ),
            ("lease: acquire, release", &mut ours),
        ],
    );
    let [floor, rename, ours] =
        <[Measured; 3]>::try_from(measured).unwrap_or_else(|_| unreachable!("three were given"));
    say(&format!(
        "    lease / link floor: {} (goal 1.3)",
        ours.ratio(&floor)
    ));
    say(&format!(
        "    lease / rename floor: {}",
        ours.ratio(&rename)
    ));
    if let Some(modules) = std::env::var_os("PROPER") {
        proper(&session, Path::new(&modules), size, floor.clock.median);
    }
    floor
}

fn proper(session: &Path, modules: &Path, size: &Size, floor: f64) {
    const SCRIPT: &str = "const lib = require(process.argv[1] + '/proper-lockfile');
        const [file, n] = [process.argv[2], +process.argv[3]];
        (async () => {
            for (let i = 0; i < n; i++) await (await lib.lock(file, {realpath: false}))();
            const from = process.hrtime.bigint();
            for (let i = 0; i < n; i++) await (await lib.lock(file, {realpath: false}))();
            console.log(Number(process.hrtime.bigint() - from) / 1e3 / n);
        })();";
    let output = Command::new("node")
        .args(["-e", SCRIPT])
        .arg(modules)
        .arg(session)
        .arg(size.cycles.to_string())
        .output()
        .expect("node starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let micros: f64 = text.trim().parse().expect("proper-lockfile is in PROPER");
    say(&format!(
        "{:52} {micros:7.1} µs",
        "proper-lockfile: lock, unlock"
    ));
    say(&format!(
        "    proper-lockfile / link floor: {:.2}",
        micros / floor
    ));
}

/// A try on a lease that another process holds.
fn refused(size: &Size, floor: &Measured) {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    let mut holder = Worker::start(dir.path(), 600.0, 600_000, "wait");
    holder.go();
    wait_for(|| fs::symlink_metadata(dir.path().join("WITNESS")).is_ok());
    let mut ours = || {
        let refusal = acquire(&session, &request()).expect_err("held");
        assert!(refusal.is_contention());
    };
    let measured = take_turns(size, &mut [("refused try", &mut ours)]);
    say(&format!(
        "    goal 10 µs; refused / link floor: {}",
        measured[0].ratio(floor)
    ));
}

/// So many processes on one lease.
fn contention(processes: usize, hold: u64, mode: &str, secs: f64) {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    let mut workers: Vec<_> = (0..processes)
        .map(|_| Worker::start(dir.path(), secs, hold, mode))
        .collect();
    for worker in &mut workers {
        worker.go();
    }
    let results: Vec<Value> = workers.into_iter().map(Worker::result).collect();
    let numbers = |name: &str| -> Vec<f64> {
        let numbers = results.iter().map(|result| result[name].as_f64());
        numbers.map(|number| number.expect("a number")).collect()
    };
    let holds = numbers("n");
    let total: f64 = holds.iter().sum();
    let squares: f64 = holds.iter().map(|n| n * n).sum();
    let jain = total * total / (squares * processes as f64);
    let starved = holds.iter().filter(|n| **n == 0.0).count();
    let longest = numbers("maxWait").into_iter().fold(0.0, f64::max);
    // What the holds alone allow.
    let share = if hold == 0 {
        String::new()
    } else {
        format!(
            ", {:.0} % of the time held",
            total * hold as f64 / secs / 10.0
        )
    };
    say(&format!(
        "{processes:2} processes, hold {hold:2} ms, {mode}: {:7.0} holds/s{share}, double {}, starved {starved}, \
         Jain {jain:.3}, longest wait {longest:.0} ms, p99 {:.1} ms",
        total / secs,
        numbers("dbl").iter().sum::<f64>(),
        numbers("p99").into_iter().fold(0.0, f64::max),
    ));
    let wedged = acquire(&session, &request()).is_err();
    let left = fs::read_dir(dir.path()).expect("the directory").count() - 1;
    assert!(!wedged, "wedged");
    if left > 0 {
        say(&format!("    {left} files left"));
    }
}

/// From the kill of the holder until a waiter has the lease.
fn crash(size: &Size) {
    for mode in ["wait", "poll"] {
        let times = (0..size.crashes).map(|_| reacquired(mode)).collect();
        let spread = Spread::of(times);
        say(&format!(
            "reacquired after kill -9, {mode}: {:.1} ms ({:.1} to {:.1}; goal 5 ms + retry)",
            spread.median, spread.least, spread.most
        ));
    }
}

fn reacquired(mode: &str) -> f64 {
    let dir = tempfile::tempdir().expect("a directory");
    session(dir.path());
    let witness = dir.path().join("WITNESS");
    let holder_is = |worker: &Worker| {
        let target = fs::read_link(&witness);
        target.is_ok_and(|target| target.to_str() == Some(&worker.child.id().to_string()))
    };
    let mut first = Worker::start(dir.path(), 600.0, 600_000, mode);
    let mut second = Worker::start(dir.path(), 600.0, 600_000, mode);
    first.go();
    wait_for(|| holder_is(&first));
    second.go();
    // Until it waits: then its processor time stands still, or nearly.
    std::thread::sleep(Duration::from_millis(50));
    let killed = Instant::now();
    first.child.kill().expect("ours");
    wait_for(|| holder_is(&second));
    killed.elapsed().as_secs_f64() * 1e3
}

fn wait_for(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "waited 10 s in vain");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A `lease-worker`, killed and reaped when dropped.
struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    fn start(dir: &Path, secs: f64, hold: u64, mode: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lease-worker"))
            .arg("work")
            .arg(dir)
            .args([secs.to_string(), hold.to_string(), mode.to_owned()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("lease-worker starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut ready = String::new();
        lines.read_line(&mut ready).expect("text");
        assert_eq!(ready, "ready\n");
        Self { child, lines }
    }

    fn go(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"g").expect("it waits for this");
    }

    fn result(mut self) -> Value {
        let mut text = String::new();
        self.lines.read_to_string(&mut text).expect("text");
        serde_json::from_str(&text).expect("a line of JSON")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
