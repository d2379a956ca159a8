//! What chats cost: start, memory, events. Prints a table; every figure stands
//! beside one of the machine's own, measured in the same run.
//!
//! `cargo build --release && cargo bench -p ade-tests --bench sessions`
//!
//! Under `cargo test` it runs one short round, to see that it still works.

use std::fs;
use std::io::{BufRead, BufReader, Write};
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
    pi_starts: usize,
}

fn main() {
    let short = std::env::args().any(|arg| arg == "--test") || cfg!(debug_assertions);
    let size = if short {
        Size {
            starts: 3,
            sessions: 5,
            events: 2_000,
            pi_starts: 0,
        }
    } else {
        Size {
            starts: 40,
            sessions: 200,
            events: 400_000,
            pi_starts: 5,
        }
    };
    let mut out = Table::default();
    let floor = floor(size.starts);
    out.row("process floor: spawn and wait /bin/true", ms(floor), "");
    starts(&size, floor, &mut out);
    memory(&size, &mut out);
    events(&size, 200, &mut out);
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
    let start = Instant::now();
    ade.stop_broker();
    out.row(
        &format!("stop of {count} live sessions and the broker"),
        ms(start.elapsed()),
        "",
    );
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
