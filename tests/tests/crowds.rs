//! A broker that is full, with as many clients as it serves or without a
//! descriptor for one more chat or client: whoever looks at it or stops something
//! is served all the same, and nobody is told that there is no broker.

use std::collections::HashMap;
use std::process::Command;

use ade_tests::ade::{Ade, started};
use ade_tests::rpc::Rpc;
use ade_tests::turns::dones;
use ade_tests::wait::{PATIENCE, wait_true, wait_until};
use serde_json::{Value, json};

/// As many connections as a broker serves.
const CONNECTIONS: usize = 512;

/// As many idle clients as are served, each of which was answered, and as many
/// more that wait to hear that they are too many.
fn crowd(ade: &Ade, more: usize) -> Vec<Rpc> {
    let connect = || Rpc::connect_raw(&ade.socket());
    let mut crowd = Vec::new();
    // Who came before may not have left yet.
    wait_true("all places are taken", || {
        loop {
            let mut next = connect();
            next.write(b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"ade/ping\"}\n");
            let answer = next.line(PATIENCE).expect("an answer");
            if answer["error"].is_object() {
                return crowd.len() == CONNECTIONS;
            }
            crowd.push(next);
        }
    });
    crowd.extend((0..more).map(|_| connect()));
    crowd
}

#[test]
fn a_broker_without_a_place_for_a_client_hands_over() {
    let (mut ade, rpc) = started("");
    drop(rpc);
    let crowd = crowd(&ade, 8);
    let before = ade.broker_pid();
    let begun = std::time::Instant::now();
    ade.replace();
    assert!(begun.elapsed().as_secs() < 15, "{:?}", begun.elapsed());
    assert_ne!(ade.broker_pid(), before);
    drop(crowd);
    ade.expect_code(0, &["status"]);
}

#[test]
fn nobody_hears_of_a_broker_that_is_full_that_there_is_none() {
    let (mut ade, rpc) = started("");
    drop(rpc);
    let crowd = crowd(&ade, 400);
    for _ in 0..20 {
        let (_, said) = ade.expect_code(1, &["run", "--provider", "scripted", "hello"]);
        assert!(said.contains("512 clients"), "{said}");
    }
    wait_true("the crowd has been told", || {
        ade.run(&["ps"]).status.success()
    });
    drop(crowd);
    ade.stop_broker();
}

/// An ade whose broker has descriptors for a few chats and clients.
fn with_few_descriptors() -> Ade {
    let mut ade = Ade::new();
    ade.serve_within(few("96"));
    ade
}

/// What runs its last arguments with so many descriptors.
fn few(count: &str) -> Command {
    let mut limit = Command::new("prlimit");
    limit.arg(format!("--nofile={count}:{count}"));
    limit
}

/// Chats at work until no more get a worker, and others that wait for one.
fn fill_with_chats(ade: &Ade, count: usize) -> Vec<String> {
    let mut rpc = ade.rpc();
    let chats: Vec<String> = (0..count)
        .map(|_| {
            let chat = ade.scripted_chat(&mut rpc, 600_000);
            ade.send(&mut rpc, &chat, "!words 1000000 200");
            chat
        })
        .collect();
    wait_true("some stream and all others wait", || {
        let streaming = in_state(&mut rpc, "streaming").len();
        streaming > 0 && streaming + in_state(&mut rpc, "waiting").len() == count
    });
    chats
}

/// The chats that are in a state, each with its last event.
fn in_state(rpc: &mut Rpc, state: &str) -> HashMap<String, u64> {
    let list = rpc.call("sessions.list", json!({}));
    let list = list["sessions"].as_array().expect("a list").clone();
    list.into_iter()
        .filter(|one| one["state"] == state)
        .map(|one| {
            let chat = one["sessionId"].as_str().expect("an id").to_owned();
            (chat, one["lastSequence"].as_u64().expect("a number"))
        })
        .collect()
}

/// Waits until there is no room for one more worker.
fn wait_full(ade: &Ade) {
    let mut rpc = ade.rpc();
    wait_true("no descriptors are left for a worker", || {
        let status = rpc.call("broker.status", json!({}));
        let of = |index: usize| status["fds"][index].as_u64().expect("a count");
        // What a start needs at most, and what it leaves.
        of(0) + 8 + 32 > of(1) && status["workers"] == in_state(&mut rpc, "streaming").len()
    });
}

/// Clients that stay until no more may, and as many more that are told so.
fn fill_with_clients(ade: &Ade, more: usize) -> Vec<Rpc> {
    let mut stay = Vec::new();
    let refused = wait_until("no more clients may stay", || {
        let mut rpc = Rpc::connect_raw(&ade.socket());
        rpc.write(b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"ade/ping\"}\n");
        let answer = rpc.line(PATIENCE).expect("an answer");
        stay.push(rpc);
        answer["error"].is_object().then_some(answer)
    });
    told_of_descriptors(&refused);
    let mut others: Vec<Rpc> = (0..more).map(|_| Rpc::connect_raw(&ade.socket())).collect();
    for other in &mut others {
        told_of_descriptors(&other.line(PATIENCE).expect("a word"));
    }
    stay.extend(others);
    stay
}

fn told_of_descriptors(answer: &Value) {
    let error = &answer["error"];
    assert_eq!(error["data"]["kind"], "too_many_clients", "{answer}");
    let words = error["message"].as_str().expect("a sentence");
    assert!(words.contains("of 96 file descriptors"), "{words}");
    let hints = error["data"]["hints"].to_string();
    assert!(
        hints.contains("ade ps") && hints.contains("ulimit"),
        "{hints}"
    );
}

/// What a user does who finds a full broker.
fn is_looked_at_and_stopped(mut ade: Ade, chats: &[String]) {
    let (table, _) = ade.expect_code(0, &["ps"]);
    assert!(table.contains("streaming"), "{table}");
    ade.expect_code(0, &["status"]);
    ade.expect_code(0, &["chat", "show", &chats[0]]);
    let doctor = ade.run(&["doctor"]);
    let report = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(report.contains(" file descriptors"), "{report}");
    assert!(report.contains("scripted"), "{report}");
    // One that is at work, and one that may wait.
    for chat in [chats.first(), chats.last()].into_iter().flatten() {
        ade.expect_code(0, &["chat", "stop", chat]);
        let (table, _) = ade.expect_code(0, &["--json", "ps"]);
        let list: Value = serde_json::from_str(&table).expect("JSON");
        let sessions = list["sessions"].as_array().expect("a list").clone();
        let stopped = sessions.iter().find(|one| one["sessionId"] == **chat);
        assert_eq!(stopped.expect("the chat")["state"], "idle");
    }
    ade.expect_code(0, &["stop"]);
    ade.expect_broker_ended(0);
    // Each of them had one message, at work or waiting.
    for chat in chats {
        let ends = dones(&ade.checked_transcript(chat));
        assert_eq!(ends.len(), 1, "{chat}: {ends:?}");
    }
}

#[test]
fn a_broker_full_of_chats_is_looked_at_and_stopped() {
    let ade = with_few_descriptors();
    let chats = fill_with_chats(&ade, 120);
    wait_full(&ade);
    is_looked_at_and_stopped(ade, &chats);
}

#[test]
fn a_broker_full_of_clients_is_looked_at_and_stopped() {
    let ade = with_few_descriptors();
    let chats = fill_with_chats(&ade, 2);
    let clients = fill_with_clients(&ade, 100);
    is_looked_at_and_stopped(ade, &chats);
    drop(clients);
}

#[test]
fn a_broker_full_of_both_is_looked_at_and_stopped() {
    let ade = with_few_descriptors();
    let chats = fill_with_chats(&ade, 60);
    wait_full(&ade);
    let clients = fill_with_clients(&ade, 100);
    is_looked_at_and_stopped(ade, &chats);
    drop(clients);
}

#[test]
fn a_broker_full_of_chats_is_replaced_and_looked_at_and_stopped() {
    let mut ade = Ade::new();
    ade.serve_within(few("160"));
    let chats = fill_with_chats(&ade, 100);
    wait_full(&ade);
    let at_work = in_state(&mut ade.rpc(), "streaming");
    assert!(at_work.len() < 100, "all found room");
    ade.kill_broker();
    ade.serve_within(few("160"));
    let mut rpc = ade.rpc();
    let mut goes_on = |label: &str, beyond: &HashMap<String, u64>| {
        wait_until(label, || {
            let streaming = in_state(&mut rpc, "streaming");
            let behind = |chat: &&String| streaming.get(*chat) <= beyond.get(*chat);
            (!at_work.keys().any(|chat| behind(&chat))).then_some(streaming)
        })
    };
    let taken_over = goes_on("all are taken over", &HashMap::new());
    goes_on("each goes on and is written down", &taken_over);
    let status = ade.rpc().call("broker.status", json!({}));
    let open = status["fds"][0].as_u64().expect("a count");
    ade_tests::ade::report(&format!("{} at work, {open} open", at_work.len()));
    assert!(open <= 160 - 16, "{open}");
    is_looked_at_and_stopped(ade, &chats);
}
