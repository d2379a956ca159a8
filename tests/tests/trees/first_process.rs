//! The broker as the first process of a container.

use std::process::Command;

use ade_leases::process::{self, Pid, Signal};
use ade_tests::ade::{Ade, command_line, is_alive, report, signal};
use ade_tests::rpc::text_of;
use ade_tests::turns::{GONE, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_until, wait_within};
use serde_json::json;

use super::{agent, goes_on};

#[test]
fn j12_a_broker_that_is_pid_1_reaps_strangers_and_loses_no_status() {
    if !nix::unistd::geteuid().is_root() {
        report("SKIPPED: a pid namespace of its own needs root");
        return;
    }
    let mut ade = Ade::new().with_config(&agent(false, "", ""));
    let mut outer = Command::new("unshare");
    outer.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    ade.serve_within(outer);
    let mut rpc = ade.rpc();
    let status = rpc.call("broker.status", json!({}));
    assert_eq!(
        status["pid"].as_i64().or(status["runtime"]["pid"].as_i64()),
        Some(1),
        "{status}"
    );
    let lane = ade.lane("lane");
    let chats: Vec<String> = (0..3)
        .map(|_| ade.chat(&mut rpc, "scripted", &lane, json!({})))
        .collect();
    for chat in &chats {
        let events = ade.turn(chat, "orphans 50\nemit left");
        assert_eq!(text_of(&events), "left");
    }
    // Orphans whose worker is gone come to the first process.
    let outside = |name: &str| -> Vec<i32> {
        ade.processes()
            .iter()
            .map(|identity| identity.pid.get())
            .filter(|pid| command_line(*pid).contains(name))
            .collect()
    };
    let (turn, _) = ade.send(&mut rpc, &chats[0], "orphan 300\norphan 300\ntick 20");
    ade.wait_transcript(&chats[0], "a stream", |lines| {
        text_of(lines).contains("tick")
    });
    assert_eq!(outside("sleep 300").len(), 2);
    // Another program's orphan comes to it too, and is none of ours.
    let stranger = stranger_below(outside("serve").into_iter().max().expect("the broker"));
    let workers = outside("ade-worker");
    let inside = ade.worker_of(&chats[0]);
    let victim = workers.iter().find(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.starts_with("NSpid:"))
            .unwrap_or_default();
        line.split_whitespace().last() == Some(&inside.to_string())
    });
    signal(*victim.expect("the worker"), Signal::SIGKILL);
    let events = of_turn(&ade.wait_done(&chats[0], &turn), &turn);
    let errors = of_type(&events, "error");
    let message = errors[0]["message"].as_str().expect("a sentence");
    assert!(
        message.contains("SIGKILL"),
        "its own status is not lost: {message}"
    );
    wait_within("the strangers are dead", GONE, || {
        outside("sleep 300").is_empty().then_some(())
    });
    goes_on(&ade, &chats[0]);
    // Zombies have no environment: they are looked for by their parent.
    let broker = outside("serve").into_iter().max().expect("the broker");
    wait_true("no zombie is left", || {
        let table = process::table().expect("the process table");
        let root = Pid::new(i64::from(broker)).expect("a pid");
        !process::descendants(root, &table)
            .iter()
            .any(process::ProcessEntry::is_zombie)
    });
    assert!(is_alive(stranger), "the stranger is spared");
    rpc.call("broker.stop", json!({}));
    ade.expect_broker_ended(0);
    assert_eq!(ade.describe(), Vec::<String>::new());
}

/// Leaves an orphan in the pid namespace of a process; its pid out here.
fn stranger_below(first: i32) -> i32 {
    let mut enter = Command::new("nsenter");
    enter.args(["--target", &first.to_string(), "--pid", "sh", "-c"]);
    enter.arg("env -i setsid sleep 302 >/dev/null 2>&1 &");
    assert!(enter.status().expect("nsenter").success());
    wait_until("the stranger is the broker's child", || {
        let table = process::table().expect("the process table");
        let root = Pid::new(i64::from(first)).expect("a pid");
        let below = process::children(root, &table);
        let pids = below.iter().map(|row| row.pid.get());
        pids.into_iter()
            .find(|pid| command_line(*pid).contains("sleep 302"))
    })
}
