//! Broker, worker and host die, in every order.

use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, signal, started, wait_dead};
use ade_tests::rpc::text_of;
use ade_tests::turns::{GONE, dones, ended, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_within};
use serde_json::json;

use super::{Grown, agent, goes_on, grow, pids_in};

#[track_caller]
fn ended_once(ade: &Ade, grown: &Grown) {
    let events = of_turn(&ade.wait_done(&grown.chat, &grown.turn), &grown.turn);
    assert_eq!(ended(&events), "failed", "{events:?}");
    assert_eq!(of_type(&events, "error").len(), 1);
    assert_eq!(dones(&ade.checked_transcript(&grown.chat)).len(), 1);
    wait_true("the lease is free", || ade.is_free(&grown.file));
}

/// Who dies.
#[derive(Clone, Copy, Debug)]
enum Who {
    Broker,
    Worker,
    Host,
}

#[track_caller]
fn deaths_in_order(wrapped: bool, order: &[Who]) {
    let (mut ade, mut rpc) = started(&agent(wrapped, "", ""));
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let grown = grow(&ade, &mut rpc, &chat, "");
    drop(rpc);
    for who in order {
        match who {
            Who::Broker => ade.kill_broker(),
            Who::Worker => signal(grown.worker, Signal::SIGKILL),
            Who::Host => signal(grown.host, Signal::SIGKILL),
        }
    }
    if !ade.has_broker() {
        ade.serve();
    }
    grown.wait_gone();
    ended_once(&ade, &grown);
    wait_true("only the broker is left", || ade.processes().len() == 1);
    goes_on(&ade, &chat);
    ade.rpc().call("chat.stop", json!({"sessionId": chat}));
    wait_true("no litter", || ade.litter().is_empty());
}

#[test]
fn worker_and_host_die_in_every_order() {
    use Who::{Host, Worker};
    for wrapped in [false, true] {
        for order in [&[Worker][..], &[Host], &[Worker, Host], &[Host, Worker]] {
            deaths_in_order(wrapped, order);
        }
    }
}

#[test]
fn the_broker_and_one_of_them_die_in_every_order() {
    use Who::{Broker, Host, Worker};
    for wrapped in [false, true] {
        for order in [
            [Broker, Worker],
            [Worker, Broker],
            [Broker, Host],
            [Host, Broker],
        ] {
            deaths_in_order(wrapped, &order);
        }
    }
}

#[test]
fn all_three_die_in_every_order() {
    use Who::{Broker, Host, Worker};
    let orders = [
        [Broker, Worker, Host],
        [Broker, Host, Worker],
        [Worker, Broker, Host],
        [Worker, Host, Broker],
        [Host, Broker, Worker],
        [Host, Worker, Broker],
    ];
    for (index, order) in orders.iter().enumerate() {
        deaths_in_order(index % 2 == 0, order);
    }
}

#[test]
fn j01_nothing_is_left_by_a_normal_end_an_abort_a_stop_and_a_recycle() {
    let (ade, mut rpc) = started(&agent(true, "", ""));
    // An abort that the agent does not answer: its worker is replaced.
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let grown = grow(&ade, &mut rpc, &chat, "");
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert_eq!(grown.alive(), Vec::<i32>::new(), "dead before the answer");
    assert!(ade.is_free(&grown.file));
    goes_on(&ade, &chat);
    rpc.call("chat.stop", json!({"sessionId": chat}));

    // A turn that ended leaves its servers to the session; its stop ends them.
    let lane = ade.lane("lane");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let events = ade.turn(&chat, "child 300\norphan 300");
    let servers = pids_in(&text_of(&events));
    assert_eq!(servers.len(), 2);
    assert!(servers.iter().all(|pid| is_alive(*pid)));
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(!servers.iter().any(|pid| is_alive(*pid)));

    // Silence: the worker is recycled, with all that it had started.
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 700}));
    let (turn, _) = ade.send(&mut rpc, &chat, "hang");
    ade.wait_state(&chat, "awaiting_first_event");
    let first = ade.worker_of(&chat);
    ade.wait_done(&chat, &turn);
    wait_dead(first);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    wait_true("only the broker is left", || ade.processes().len() == 1);
}

#[test]
fn e06_a_server_that_holds_the_pipe_of_an_agent_that_ended_holds_nothing_up() {
    for wrapped in [false, true] {
        let (ade, mut rpc) = started(&agent(wrapped, "", ""));
        let chat = ade.scripted_chat(&mut rpc, 60_000);
        let begin = Instant::now();
        let events = ade.turn(&chat, "child 300\norphan 300\nemit last words\nexit 7");
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(ended(&events), "failed");
        assert!(text_of(&events).ends_with("last words"));
        let errors = of_type(&events, "error");
        assert!(
            errors[0]["message"]
                .as_str()
                .is_some_and(|text| text.contains("exit code 7"))
        );
        let servers = pids_in(&text_of(&events));
        assert_eq!(servers.len(), 2);
        for pid in servers {
            wait_within("the server is gone", GONE, || {
                (!is_alive(pid)).then_some(())
            });
        }
        goes_on(&ade, &chat);
    }
}
