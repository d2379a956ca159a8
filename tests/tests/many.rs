//! Two hundred sessions on one machine.

use std::thread;
use std::time::{Duration, Instant};

use ade_tests::ade::{Ade, report};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{dones, ended};
use ade_tests::wait::wait_within;
use serde_json::{Value, json};

/// How many.
const SESSIONS: usize = 200;

/// Clients that work on them side by side.
const CLIENTS: usize = 8;

/// Resident memory of a process, in KiB.
fn resident(pid: i64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let figure = line.unwrap_or("0 kB").trim().trim_end_matches(" kB");
    figure.parse().unwrap()
}

fn fds(rpc: &mut Rpc) -> u64 {
    let status = rpc.call("broker.status", json!({}));
    status["fds"][0].as_u64().unwrap()
}

/// Runs `work` for every session, on some clients side by side.
fn side_by_side<T: Sync>(all: &[T], ade: &Ade, work: impl Fn(&T, &mut Rpc) + Sync) {
    let share = all.len().div_ceil(CLIENTS);
    thread::scope(|scope| {
        for some in all.chunks(share) {
            let work = &work;
            scope.spawn(move || {
                let mut rpc = ade.rpc();
                for one in some {
                    work(one, &mut rpc);
                }
            });
        }
    });
}

#[test]
fn two_hundred_sessions_start_talk_and_stop() {
    let mut ade = Ade::new();
    ade.serve();
    let broker = i64::from(ade.broker_pid());
    let mut rpc = ade.rpc();
    let lanes: Vec<_> = (0..10).map(|n| ade.lane(&format!("lane{n}"))).collect();
    let empty = (fds(&mut rpc), resident(broker));
    let begin = Instant::now();
    let chats: Vec<String> = (0..SESSIONS)
        .map(|n| ade.chat(&mut rpc, "scripted", &lanes[n % lanes.len()], json!({})))
        .collect();
    let made = begin.elapsed();

    side_by_side(&chats, &ade, |chat, rpc| {
        let (turn, after) = ade.send(rpc, chat, &format!("hello from {chat}"));
        let mut watch = ade.rpc();
        watch.subscribe(chat, after);
        let events = watch.until_done(&turn);
        assert_eq!(ended(&events), "completed");
        assert_eq!(text_of(&events), format!("You said: hello from {chat}"));
    });
    let talked = begin.elapsed();
    let list = rpc.call("sessions.list", json!({}));
    let workers: Vec<i64> = list["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|session| session["workerPid"].as_i64())
        .collect();
    assert_eq!(workers.len(), SESSIONS, "all of them live");
    let hosts: Vec<i64> = list["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|session| session["hostPid"].as_i64())
        .collect();
    let mean = |pids: &[i64]| pids.iter().map(|pid| resident(*pid)).sum::<u64>() / 200;
    let full = (fds(&mut rpc), resident(broker));
    let (worker, host) = (mean(&workers), mean(&hosts));

    // All talk at once, over one subscription to everything.
    let mut all = ade.rpc();
    all.request("ade/events/subscribe", json!({})).unwrap();
    let second = Instant::now();
    for chat in &chats {
        ade.send(&mut rpc, chat, "!words 5 1");
    }
    let mut open = SESSIONS;
    while open > 0 {
        all.event("a turn's end", |e| e["event"]["type"] == "done");
        open -= 1;
    }
    let second = second.elapsed();

    let stopping = Instant::now();
    side_by_side(&chats, &ade, |chat, rpc| {
        let info = rpc.call("chat.stop", json!({"sessionId": chat}));
        assert_eq!(info["workerPid"], Value::Null);
    });
    let stopped = stopping.elapsed();
    for chat in &chats {
        let lines = ade.checked_transcript(chat);
        assert_eq!(dones(&lines).len(), 2);
    }
    drop(all);
    wait_within(
        "the descriptors are closed",
        Duration::from_secs(10),
        || (fds(&mut rpc) <= empty.0 + 5).then_some(()),
    );
    assert_eq!(ade.describe().len(), 1, "only the broker is left");
    assert_eq!(ade.litter(), Vec::<std::path::PathBuf>::new());
    report(&format!(
        "many: {SESSIONS} chats made in {made:.1?}, started and first turn in {:.1?}, \
         second turn of all at once in {second:.1?}, stopped in {stopped:.1?}; \
         broker {} KiB and {} descriptors empty, {} KiB and {} with all; \
         idle worker {worker} KiB, scripted host {host} KiB (resident, this build)",
        talked - made,
        empty.1,
        empty.0,
        full.1,
        full.0,
    ));
}

#[test]
fn more_sessions_than_places_wait_in_order_and_none_fails() {
    let mut ade = Ade::new().with_config("[pool]\nmax_workers = 2\nmax_starting = 1\n");
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("lane");
    let chats: Vec<String> = (0..6)
        .map(|_| ade.chat(&mut rpc, "scripted", &lane, json!({})))
        .collect();
    let mut all = ade.rpc();
    all.request("ade/events/subscribe", json!({})).unwrap();
    for chat in &chats {
        ade.send(&mut rpc, chat, "hello");
    }
    for _ in &chats {
        let done = all.event("a turn's end", |e| e["event"]["type"] == "done");
        assert_eq!(done["event"]["status"], "completed");
        let workers = rpc.call("broker.status", json!({}))["workers"].as_u64();
        assert!(workers.unwrap() <= 2, "{workers:?}");
        // Its place is free for the next one.
        rpc.call("chat.stop", json!({"sessionId": done["sessionId"]}));
    }
}
