//! What chats cost: start, memory, events. Prints a table; every figure stands
//! beside one of the machine's own, measured in the same run.
//!
//! `cargo build --release && cargo bench -p ade-tests --bench sessions`
//!
//! Under `cargo test` it runs one short round, to see that it still works.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ade_tests::ade::Ade;
use ade_tests::fake_model::FakeModel;
use ade_tests::rpc::Rpc;
use serde_json::{Value, json};

/// How much is measured.
struct Size {
    starts: usize,
    sessions: usize,
    events: usize,
    /// Events whose way is timed, one every few milliseconds.
    timed: usize,
    idle: Duration,
    pi_starts: usize,
}

fn main() {
    let short = std::env::args().any(|arg| arg == "--test") || cfg!(debug_assertions);
    let size = if short {
        Size {
            starts: 3,
            sessions: 5,
            events: 2_000,
            timed: 20,
            idle: Duration::from_millis(100),
            pi_starts: 0,
        }
    } else {
        Size {
            starts: 40,
            sessions: 200,
            events: 400_000,
            timed: 1_000,
            idle: Duration::from_secs(30),
            pi_starts: 5,
        }
    };
    let mut out = Table::default();
    let floor = floor(size.starts);
    out.row("process floor: spawn and wait /bin/true", ms(floor), "");
    starts(&size, floor, &mut out);
    memory(&size, &mut out);
    node(&size, 200, &mut out);
    events(&size, 200, &mut out);
    node(
        &Size {
            events: size.events / 8,
            ..size
        },
        4096,
        &mut out,
    );
    events(
        &Size {
            events: size.events / 8,
            ..size
        },
        4096,
        &mut out,
    );
    if size.pi_starts > 0 {
        pi(&size, &mut out);
    }
    latency(&size, &mut out);
    out.print();
}

#[derive(Default)]
struct Table(Vec<(String, String, String)>);

impl Table {
    fn row(&mut self, what: &str, value: String, beside: &str) {
        self.0.push((what.into(), value, beside.into()));
    }

    fn print(&self) {
        let mut text = String::from("\n");
        for (what, value, beside) in &self.0 {
            text.push_str(&format!("{what:<58} {value:>12}  {beside}\n"));
        }
        // The one place of a bench that speaks to people.
        std::io::stdout()
            .write_all(text.as_bytes())
            .expect("standard output");
    }
}

fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn ratio(a: Duration, b: Duration) -> String {
    format!("{:.1}x", a.as_secs_f64() / b.as_secs_f64())
}

/// What starting and ending any process costs here.
fn floor(rounds: usize) -> Duration {
    let once = || {
        let start = Instant::now();
        let status = Command::new("/bin/true").stdin(Stdio::null()).status();
        assert!(status.expect("/bin/true").success());
        start.elapsed()
    };
    median((0..rounds.max(5)).map(|_| once()).collect())
}

/// From a message to the first fragment of its answer, as a client sees it.
fn first_text(rpc: &mut Rpc, session: &str, prompt: &str) -> Duration {
    let start = Instant::now();
    let sent = rpc.call("chat.send", json!({"sessionId": session, "prompt": prompt}));
    let turn = sent["turnId"].as_str().expect("a turn").to_owned();
    rpc.event("the first text", |event: &Value| {
        event["turnId"] == turn.as_str() && event["event"]["type"] == "text"
    });
    let taken = start.elapsed();
    rpc.until_done(&turn);
    taken
}

fn starts(size: &Size, floor: Duration, out: &mut Table) {
    let mut ade = Ade::new();
    ade.serve();
    let lane = ade.lane("a");
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..size.starts {
        let mut rpc = ade.rpc();
        let session = ade.chat(&mut rpc, "scripted", &lane, json!({}));
        rpc.subscribe(&session, 0);
        cold.push(first_text(&mut rpc, &session, "hello"));
        warm.push(first_text(&mut rpc, &session, "hello"));
        rpc.call("chat.stop", json!({"sessionId": session}));
    }
    let (cold, warm) = (median(cold), median(warm));
    let ready = cold.saturating_sub(warm);
    out.row(
        "scripted: message to first text, worker running",
        ms(warm),
        "",
    );
    out.row(
        "scripted: message to first text, worker started for it",
        ms(cold),
        "",
    );
    let beside = format!(
        "{} the process floor (two processes, lease, handshake)",
        ratio(ready, floor)
    );
    out.row(
        "scripted: spawn to ready (the difference)",
        ms(ready),
        &beside,
    );
    ade.stop_broker();
}

fn memory(size: &Size, out: &mut Table) {
    let mut ade = Ade::new();
    ade.serve();
    let broker = ade.broker_pid();
    let before = pss_kib(broker);
    let lane = ade.lane("a");
    let mut rpc = ade.rpc();
    let start = Instant::now();
    let sessions: Vec<String> = (0..size.sessions)
        .map(|_| ade.chat(&mut rpc, "scripted", &lane, json!({})))
        .collect();
    let mut turns = Vec::new();
    for session in &sessions {
        rpc.subscribe(session, 0);
        turns.push(ade.send(&mut rpc, session, "hello").0);
    }
    for _ in &turns {
        rpc.event("an end", |event| event["event"]["type"] == "done");
    }
    let all = start.elapsed();
    let count = sessions.len();
    out.row(
        &format!("{count} scripted sessions: made, started, answered"),
        ms(all),
        "",
    );
    let worker = ade.session(&sessions[0]);
    let pid = |name: &str| i32::try_from(worker[name].as_i64().expect("a pid")).expect("a pid");
    let (worker, host) = (pss_kib(pid("workerPid")), pss_kib(pid("hostPid")));
    out.row("idle worker, Pss", format!("{worker} KiB"), "goal: 1 MiB");
    out.row("idle scripted host, Pss", format!("{host} KiB"), "");
    let after = pss_kib(broker);
    out.row("broker, Pss, no session", format!("{before} KiB"), "");
    let slope = (after.saturating_sub(before)) as f64 / count as f64;
    let beside = format!("{slope:.0} KiB a session; goal: 64");
    out.row(
        &format!("broker, Pss, {count} sessions"),
        format!("{after} KiB"),
        &beside,
    );
    let ticks = |ade: &Ade| -> Duration {
        let workers = rpc_workers(ade).into_iter().map(cpu);
        cpu(broker) + workers.sum::<Duration>()
    };
    // What the answers still cause is over.
    std::thread::sleep(size.idle / 10);
    let busy = ticks(&ade);
    std::thread::sleep(size.idle);
    let (each, time) = (ticks(&ade) - busy, size.idle.as_secs());
    out.row(
        &format!("{count} idle sessions: processor time of all in {time} s"),
        ms(each),
        "broker and workers; goal: 0 ticks of 10 ms each",
    );
    let start = Instant::now();
    ade.stop_broker();
    out.row(
        &format!("stop of {count} live sessions and the broker"),
        ms(start.elapsed()),
        "",
    );
}

/// Pids of all workers.
fn rpc_workers(ade: &Ade) -> Vec<i32> {
    let list = ade.rpc().call("sessions.list", json!({}));
    let all = list["sessions"].as_array().expect("sessions");
    let pid = |one: &Value| i32::try_from(one["workerPid"].as_i64()?).ok();
    all.iter().filter_map(pid).collect()
}

/// Proportional set size of a process in KiB.
fn pss_kib(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps_rollup");
    let line = text
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .expect("Pss");
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number")
}

/// Processor time of a process so far.
fn cpu(pid: i32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields: Vec<&str> = text[text.rfind(')').expect("a name") + 2..]
        .split(' ')
        .collect();
    let ticks: u64 =
        fields[11].parse::<u64>().unwrap_or(0) + fields[12].parse::<u64>().unwrap_or(0);
    // USER_HZ is 100 on every Linux that this runs on.
    Duration::from_millis(ticks * 10)
}

fn events(size: &Size, bytes: usize, out: &mut Table) {
    let mut ade = Ade::new();
    ade.serve();
    let lane = ade.lane("a");
    let mut rpc = ade.rpc();
    let session = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    ade.turn(&session, "hello");
    let worker = ade.session(&session)["workerPid"].as_i64().expect("a pid");
    let worker = i32::try_from(worker).expect("a pid");
    let mut reader = Reader::subscribe(&ade, &session);
    let before = (cpu(ade.broker_pid()), cpu(worker));
    let start = Instant::now();
    ade.send(
        &mut rpc,
        &session,
        &format!("!events {} {bytes}", size.events),
    );
    let count = reader.until_done();
    let taken = start.elapsed();
    let after = (cpu(ade.broker_pid()), cpu(worker));
    let rate = count as f64 / taken.as_secs_f64();
    out.row(
        &format!("{bytes}-byte events, host to worker to broker to client"),
        format!("{rate:.0} /s"),
        &format!("{count} events in {}", ms(taken)),
    );
    let each = |a: Duration, b: Duration| (b - a).as_secs_f64() * 1e6 / count as f64;
    out.row(
        "  processor time an event",
        format!("{:.2} us", each(before.0, after.0)),
        &format!(
            "broker, transcript written; worker {:.2} us",
            each(before.1, after.1)
        ),
    );
    ade.stop_broker();
}

/// What a peer does: messages from a child to its Node parent, one hop, nothing
/// written. Not there without Node.
fn node(size: &Size, bytes: usize, out: &mut Table) {
    const SCRIPT: &str = r"
const [, , role, count, bytes] = process.argv;
if (role === 'child') {
  const event = { type: 'text', text: 'x'.repeat(Number(bytes)) };
  for (let i = 0; i < Number(count); i++) process.send(event);
  process.once('message', () => process.disconnect());
} else {
  let seen = 0, start, before;
  const child = require('child_process').fork(__filename, ['child', role, count]);
  child.on('message', () => {
    if (seen++ === 0) { start = process.hrtime.bigint(); before = process.cpuUsage(); }
    if (seen === Number(role)) {
      const cpu = process.cpuUsage(before);
      const time = Number(process.hrtime.bigint() - start) / 1e9;
      console.log(seen / time, (cpu.user + cpu.system) / seen);
      child.send('end');
    }
  });
}
";
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("ipc.cjs");
    fs::write(&script, SCRIPT).expect("the script");
    let mut node = Command::new("node");
    node.arg(&script)
        .arg(size.events.to_string())
        .arg(bytes.to_string());
    let Ok(output) = node.output() else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut figures = text.split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(rate)), Some(Ok(each))) = (figures.next(), figures.next()) else {
        return;
    };
    out.row(
        &format!("peer: {bytes}-byte messages from a child to its Node parent"),
        format!("{rate:.0} /s"),
        &format!("{each:.2} us of the parent's processor time each; one hop, nothing written"),
    );
}

/// How long events are on their way from the host to a client: on a quiet
/// machine, and beside a session that talks as fast as it can to one client
/// that reads and one that does not.
fn latency(size: &Size, out: &mut Table) {
    let mut ade = Ade::new();
    ade.serve();
    let lane = ade.lane("a");
    let mut rpc = ade.rpc();
    let (quiet, noisy) = (
        ade.chat(&mut rpc, "scripted", &lane, json!({})),
        ade.chat(&mut rpc, "scripted", &lane, json!({})),
    );
    for session in [&quiet, &noisy] {
        ade.turn(session, "hello");
    }
    let pings = ping_pongs(size.timed);
    let prompt = format!("!clock {} 3", size.timed);
    let mut timed = |ade: &Ade| {
        let mut reader = Reader::subscribe(ade, &quiet);
        ade.send(&mut rpc, &quiet, &prompt);
        reader.ages()
    };
    let alone = timed(&ade);
    let flood = format!("!events {} 200", size.events * 10);
    let (mut fast, slow) = (
        Reader::subscribe(&ade, &noisy),
        Reader::subscribe(&ade, &noisy),
    );
    let mut other = ade.rpc();
    let before = pss_kib(ade.broker_pid());
    ade.send(&mut other, &noisy, &flood);
    let reading = std::thread::spawn(move || fast.until_done());
    let beside = timed(&ade);
    let grown = pss_kib(ade.broker_pid()).saturating_sub(before);
    other.call("chat.abort", json!({"sessionId": noisy}));
    reading.join().expect("the reader");
    let us = |time: Duration| format!("{:.0} us", time.as_secs_f64() * 1e6);
    let p = |times: &[Duration], part: usize| times[(times.len() - 1) * part / 100];
    for (what, part) in [("p50", 50), ("p99", 99)] {
        let (alone, beside, ping) = (p(&alone, part), p(&beside, part), p(&pings, part));
        out.row(
            &format!("an event from the host to a client, {what}"),
            us(alone),
            &format!("{} a ping-pong over a Unix socket here", ratio(alone, ping)),
        );
        out.row(
            "  beside a session at full rate, one of its clients stuck",
            us(beside),
            &format!("{} alone", ratio(beside, alone)),
        );
    }
    out.row(
        "  the broker's growth meanwhile, Pss",
        format!("{grown} KiB"),
        "a stuck client may have 4 MiB queued",
    );
    drop(slow);
    ade.stop_broker();
}

/// Times of one byte to another thread and back, sorted.
fn ping_pongs(count: usize) -> Vec<Duration> {
    let (mut here, mut there) = UnixStream::pair().expect("a pair");
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while there.read_exact(&mut byte).is_ok() {
            there.write_all(&byte).expect("the echo");
        }
    });
    let mut once = || {
        // As seldom as the events that it stands beside.
        std::thread::sleep(Duration::from_millis(3));
        let start = Instant::now();
        here.write_all(b"x").expect("a byte");
        here.read_exact(&mut [0]).expect("the byte");
        start.elapsed()
    };
    let mut times: Vec<Duration> = (0..count).map(|_| once()).collect();
    drop(here);
    echo.join().expect("the echo");
    times.sort_unstable();
    times
}

/// What the clock shows that `!clock` tells.
fn monotonic() -> Duration {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    nix::time::clock_gettime(clock).expect("a clock").into()
}

/// Reads events without parsing them, so that the reader is not what is
/// measured.
struct Reader(BufReader<UnixStream>);

impl Reader {
    fn subscribe(ade: &Ade, session: &str) -> Self {
        let mut stream = UnixStream::connect(ade.socket()).expect("the broker");
        let after = ade.session(session)["lastSequence"]
            .as_u64()
            .expect("a sequence");
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "ade/initialize",
            "params": {"protocolVersion": 2, "clientName": "bench"}});
        let subscribe = json!({"jsonrpc": "2.0", "id": 2, "method": "ade/events/subscribe",
            "params": {"sessionId": session, "afterSequence": after}});
        let mut reader = Self(BufReader::with_capacity(
            1 << 20,
            stream.try_clone().expect("it"),
        ));
        for line in [hello, subscribe] {
            stream
                .write_all(format!("{line}\n").as_bytes())
                .expect("a request");
            reader
                .0
                .read_until(b'\n', &mut Vec::new())
                .expect("an answer");
        }
        reader
    }

    /// Number of lines up to the terminal event.
    fn until_done(&mut self) -> usize {
        let mut line = Vec::new();
        for count in 0.. {
            line.clear();
            self.0.read_until(b'\n', &mut line).expect("an event");
            let tail = &line[line.len().saturating_sub(80)..];
            if tail.windows(13).any(|part| part == b"\"type\":\"done\"") {
                return count;
            }
        }
        unreachable!("the count has no end")
    }

    /// How old the events of a `!clock` are when they are read, sorted.
    fn ages(&mut self) -> Vec<Duration> {
        let (mut line, mut ages) = (String::new(), Vec::new());
        loop {
            line.clear();
            self.0.read_line(&mut line).expect("an event");
            let now = monotonic();
            let text = line.rsplit_once("\"text\":\"").map(|(_, rest)| rest);
            let told = text.and_then(|text| text.split('"').next()?.parse().ok());
            if let Some(told) = told {
                ages.push(now.saturating_sub(Duration::from_nanos(told)));
            } else if line.contains("\"type\":\"done\"") {
                ages.sort_unstable();
                return ages;
            }
        }
    }
}

fn pi(size: &Size, out: &mut Table) {
    let model = FakeModel::start();
    let mut ade = Ade::new().with_pi(&model.base_url());
    ade.serve();
    let lane = ade.lane("a");
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..size.pi_starts {
        let mut rpc = ade.rpc();
        let session = ade.chat(&mut rpc, "pi", &lane, json!({"model": "fake/fake-text"}));
        rpc.subscribe(&session, 0);
        cold.push(first_text(&mut rpc, &session, "hello"));
        warm.push(first_text(&mut rpc, &session, "hello"));
        rpc.call("chat.stop", json!({"sessionId": session}));
    }
    let (first, cold) = (cold[0], median(cold));
    let warm = median(warm);
    out.row("Pi: message to first text, worker running", ms(warm), "");
    out.row("Pi: the same, worker started for it", ms(cold), "");
    out.row(
        "Pi: the same, the very first",
        ms(first),
        "files may not be in the page cache",
    );
    out.row(
        "Pi: spawn to ready and first prompt (the difference)",
        ms(cold - warm),
        "",
    );
    ade.stop_broker();
}
