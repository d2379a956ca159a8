//! Stops: who is asked politely, who is killed, and who is spared.

use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, signal, started};
use ade_tests::turns::{ended, of_turn};
use ade_tests::wait::{wait_true, wait_until};
use serde_json::json;

use super::{agent, goes_on, grow};

/// Rungs that are short but for the polite one.
const SHORT: &str =
    "dispose_grace_ms = 300\nterm_to_kill_ms = 3000\n[worker]\neof_grace_ms = 300\n";
#[test]
fn j05_a_host_that_left_its_group_is_killed_alone() {
    // It joins its worker's group: a kill of "its" group must not hit that.
    let (ade, mut rpc) = started(&agent(false, "join-group", SHORT));
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let other = ade.chat(&mut rpc, "scripted", &ade.lane("other"), json!({}));
    let streaming = grow(&ade, &mut rpc, &other, "");
    let grown = grow(&ade, &mut rpc, &chat, "ignore-term\n");
    let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(grown.host)));
    assert_eq!(group.expect("a group").as_raw(), grown.worker);
    let begin = Instant::now();
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert_eq!(grown.alive(), Vec::<i32>::new());
    // The worker was not hit, or it could not have ended the turn in order.
    let events = of_turn(&ade.checked_transcript(&chat), &grown.turn);
    assert_eq!(ended(&events), "interrupted");
    assert!(is_alive(ade.broker_pid()));
    assert_eq!(streaming.alive(), streaming.all);
    rpc.call("chat.stop", json!({"sessionId": other}));
}

/// What `ade ps` shows of a stop, until the worker is gone.
fn watch_stop(ade: &Ade, chat: &str, worker: i32) -> Vec<(String, String)> {
    let mut rpc = ade.rpc();
    let mut seen = Vec::new();
    wait_until("the worker is gone", || {
        let list = rpc.call("sessions.list", json!({}));
        let all = list["sessions"].as_array().expect("chats");
        let info = all
            .iter()
            .find(|info| info["sessionId"] == chat)
            .expect("the chat");
        let word = |name: &str| info[name].as_str().unwrap_or_default().to_owned();
        let now = (word("state"), word("stopStage"));
        let alive = is_alive(worker);
        if alive && seen.last() != Some(&now) {
            seen.push(now);
        }
        (!alive).then_some(())
    });
    seen
}

#[test]
fn j08_a_polite_host_gets_its_time_and_a_deaf_one_is_killed_and_ps_shows_the_stage() {
    let (ade, mut rpc) = started(&agent(false, "", SHORT));
    for (deaf, chat) in [
        (false, ade.scripted_chat(&mut rpc, 60_000)),
        (true, ade.scripted_chat(&mut rpc, 60_000)),
    ] {
        let proof = ade.root().join("proof");
        let manners = if deaf {
            "ignore-term\n".to_owned()
        } else {
            format!("clean-up 1000 {}\n", proof.display())
        };
        let grown = grow(&ade, &mut rpc, &chat, &manners);
        let stop = std::thread::spawn({
            let (mut rpc, chat) = (ade.rpc(), chat.clone());
            move || rpc.call("chat.stop", json!({"sessionId": chat}))
        });
        let seen = watch_stop(&ade, &chat, grown.worker);
        stop.join().expect("the answer");
        grown.wait_gone();
        let stages: Vec<&str> = seen.iter().map(|(_, stage)| stage.as_str()).collect();
        assert!(stages.contains(&"dispose"), "{seen:?}");
        assert!(stages.contains(&"term"), "{seen:?}");
        assert!(
            seen.iter().skip(1).all(|(state, _)| state == "stopping"),
            "never shown as stopped before it is: {seen:?}"
        );
        assert_eq!(proof.exists(), !deaf);
        let _ = std::fs::remove_file(proof);
    }
}

/// A worker that is stopped hears nothing over its link. It is woken to end as
/// politely as any other.
#[test]
fn a_stopped_worker_is_woken_and_its_host_gets_its_time() {
    let (ade, mut rpc) = started(&agent(false, "", SHORT));
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let proof = ade.root().join("proof");
    let manners = format!("clean-up 100 {}\n", proof.display());
    let grown = grow(&ade, &mut rpc, &chat, &manners);
    signal(grown.worker, Signal::SIGSTOP);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    grown.wait_gone();
    assert!(proof.exists(), "it was killed with its worker");
    goes_on(&ade, &chat);
}

#[test]
fn a_second_stop_jumps_ahead() {
    let long =
        "dispose_grace_ms = 60000\nterm_to_kill_ms = 60000\n[worker]\neof_grace_ms = 60000\n";
    let (ade, mut rpc) = started(&agent(false, "", long));
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let grown = grow(&ade, &mut rpc, &chat, "ignore-term\n");
    let begin = Instant::now();
    let stops: Vec<_> = ["dispose", "eof", "term", "kill"]
        .map(|stage| {
            let (mut rpc, session) = (ade.rpc(), chat.clone());
            let stop =
                std::thread::spawn(move || rpc.call("chat.stop", json!({"sessionId": session})));
            if stage != "kill" {
                wait_true(&format!("the stage {stage}"), || {
                    ade.session(&chat)["stopStage"] == stage
                });
            }
            stop
        })
        .into_iter()
        .collect();
    for stop in stops {
        stop.join().expect("the answer");
    }
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_eq!(grown.alive(), Vec::<i32>::new());
    goes_on(&ade, &chat);
}
