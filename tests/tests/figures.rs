//! Figures about takeovers and stops, for reports: slow, and only worth
//! something on a quiet machine and a release build.
//!
//! `cargo test --release -p ade-tests --test figures -- --ignored --nocapture`
//! (after `cargo build --release`).

use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, report, signal, started};
use ade_tests::rpc::Rpc;
use ade_tests::turns::{GONE, Tree, dones};
use ade_tests::wait::{wait_true, wait_within};
use serde_json::json;

const LIVE: usize = 200;

#[test]
#[ignore = "figures, for a quiet machine and a release build"]
fn takeover_of_many_live_sessions() {
    let mut ade = Ade::new();
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("lane");
    let mut turns = Vec::new();
    for _ in 0..LIVE {
        let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
        let (turn, _) = ade.send(&mut rpc, &chat, "!words 100000 250");
        turns.push((chat, turn));
    }
    let streaming = |rpc: &mut Rpc| {
        let list = rpc.call("sessions.list", json!({}));
        let all = list["sessions"].as_array().expect("chats");
        all.iter()
            .filter(|info| info["state"] == "streaming")
            .count()
    };
    wait_true("all stream", || streaming(&mut rpc) == LIVE);
    for way in ["kill -9, then serve", "serve --replace"] {
        let begin = Instant::now();
        if way.contains("replace") {
            ade.replace();
        } else {
            ade.kill_broker();
            ade.serve();
        }
        let answers = begin.elapsed();
        let mut rpc = ade.rpc();
        wait_true("all stream again", || streaming(&mut rpc) == LIVE);
        report(&format!(
            "takeover of {LIVE} streaming sessions ({way}): answers after {} ms, all stream after {} ms",
            answers.as_millis(),
            begin.elapsed().as_millis()
        ));
    }
    let begin = Instant::now();
    assert_eq!(ade.stop_broker(), Some(0));
    report(&format!(
        "stop of all {LIVE}: {} ms",
        begin.elapsed().as_millis()
    ));
    ade.wait_empty(Duration::from_secs(5));
    for (chat, _) in &turns {
        assert_eq!(dones(&ade.checked_transcript(chat)).len(), 1);
    }
}

/// The ways to end a session.
const WAYS: [&str; 8] = [
    "chat.stop",
    "chat.delete",
    "SIGTERM worker",
    "SIGKILL worker",
    "SIGKILL host",
    "SIGKILL host and worker",
    "SIGKILL worker and host",
    "SIGTERM worker twice",
];

fn end(ade: &Ade, tree: &Tree, way: &str) {
    let session = json!({"sessionId": tree.session});
    match way {
        "chat.stop" | "chat.delete" => drop(ade.rpc().call(way, session)),
        "SIGTERM worker" => signal(tree.worker, Signal::SIGTERM),
        "SIGKILL worker" => signal(tree.worker, Signal::SIGKILL),
        "SIGKILL host" => signal(tree.host, Signal::SIGKILL),
        "SIGKILL host and worker" => {
            signal(tree.host, Signal::SIGKILL);
            signal(tree.worker, Signal::SIGKILL);
        }
        "SIGKILL worker and host" => {
            signal(tree.worker, Signal::SIGKILL);
            signal(tree.host, Signal::SIGKILL);
        }
        _ => {
            signal(tree.worker, Signal::SIGTERM);
            signal(tree.worker, Signal::SIGTERM);
        }
    }
}

fn told(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1000.0);
    report(&format!(
        "{name:<28} {:>4} stops: empty tree after {:.1} ms (median), {:.1} ms (worst)",
        times.len(),
        ms(times.get(times.len() / 2)),
        ms(times.last())
    ));
}

#[test]
#[ignore = "figures, for a quiet machine and a release build"]
fn a_thousand_stops_by_every_path_leave_nothing() {
    let mut ade = Ade::new();
    ade.serve();
    let lane = ade.lane("lane");
    let mut times: Vec<(&str, Vec<Duration>)> = WAYS.map(|way| (way, Vec::new())).to_vec();
    let mut of_brokers = Vec::new();
    let mut stops = 0;
    for round in 0..125 {
        let mut rpc = ade.rpc();
        let trees: Vec<Tree> = (WAYS.iter())
            .map(|_| {
                let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
                ade.grow(&mut rpc, &chat, "")
            })
            .collect();
        drop(rpc);
        stops += trees.len();
        let gone = |tree: &Tree| {
            wait_within("the tree is gone", GONE, || {
                tree.alive().is_empty().then_some(())
            });
        };
        if round % 5 == 4 {
            // The broker dies with some of its workers; the next one stops all.
            let begin = Instant::now();
            ade.kill_broker();
            for tree in trees.iter().take(4) {
                signal(tree.worker, Signal::SIGKILL);
            }
            ade.serve();
            trees.iter().take(4).for_each(gone);
            of_brokers.push(begin.elapsed());
            let mut rpc = ade.rpc();
            for tree in &trees[4..] {
                rpc.call("chat.stop", json!({"sessionId": tree.session}));
                gone(tree);
            }
        } else {
            for (tree, (way, times)) in trees.iter().zip(&mut times) {
                let begin = Instant::now();
                end(&ade, tree, way);
                gone(tree);
                times.push(begin.elapsed());
            }
        }
        let mut rpc = ade.rpc();
        for tree in &trees {
            // Those that were not deleted yet; a long list would slow the next rounds.
            let _ = rpc.try_call("chat.delete", json!({"sessionId": tree.session}));
        }
        wait_true("only the broker is left", || ade.processes().len() == 1);
    }
    for (way, times) in times {
        told(way, times);
    }
    told("SIGKILL broker and workers", of_brokers);
    report(&format!(
        "{stops} stops, 0 processes left, litter: {:?}",
        ade.litter()
    ));
    assert_eq!(ade.stop_broker(), Some(0));
}

/// The whole ladder of a host that leaves out no rung, in milliseconds.
const GRACE: u64 = 300 + 100 + 300;

#[test]
#[ignore = "figures, for a quiet machine and a release build"]
fn a_host_that_ignores_everything_is_gone_a_moment_after_its_grace() {
    let (ade, mut rpc) = started(
        "[worker]\neof_grace_ms = 100\n\
         [providers.scripted]\ndispose_grace_ms = 300\nterm_to_kill_ms = 300\n",
    );
    let lane = ade.lane("lane");
    let grace = Duration::from_millis(GRACE);
    let mut over = Vec::new();
    for _ in 0..30 {
        let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
        let tree = ade.grow(&mut rpc, &chat, "!ignore-term\n");
        let begin = Instant::now();
        rpc.call("chat.stop", json!({"sessionId": chat}));
        assert_eq!(tree.alive(), Vec::<i32>::new());
        let took = begin.elapsed();
        assert!(took >= grace, "a rung was left out: {took:?}");
        over.push(took - grace);
    }
    over.sort();
    told("a deaf host, above its grace", over.clone());
    assert!(over[over.len() / 2] <= Duration::from_millis(50));
}
