//! The link to the broker: lost, found, replayed, refused.

mod common;

use std::time::{Duration, Instant};

use common::{Rig, signal, timing};
use nix::sys::signal::Signal;
use serde_json::json;

#[tokio::test]
async fn a_reconnect_in_a_turn_has_no_gap_and_no_double() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    rig.acks = false;
    let send = rig.begin("t1", "!words 20 30\n!emit end").await;
    for _ in 0..5 {
        rig.until("an event", |frame| frame["type"] == "event")
            .await;
    }
    rig.hang_up();
    let held: Vec<u64> = rig.seqs();
    // What the next broker has on disk is less than what was sent.
    let ack = held[2];
    let before = rig.seen.len();
    let hello = rig.accept().await;
    assert_eq!(hello["state"]["turnId"], "t1");
    assert_eq!(hello["state"]["seenEvent"], true);
    assert_eq!(hello["state"]["ready"]["provider"], "scripted");
    let attach = rig.request("attach", json!({"fence": 2, "ack": ack})).await;
    rig.response(&attach).await;
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "completed");
    assert_eq!(end["detail"]["turnId"], "t1");
    let replayed: Vec<u64> = rig.seen[before..]
        .iter()
        .filter_map(|frame| frame["seq"].as_u64())
        .collect();
    assert_eq!(replayed, (ack + 1..=21).collect::<Vec<u64>>());
}

#[tokio::test]
async fn the_end_of_a_turn_waits_for_a_broker() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    let send = rig.begin("t1", "!words 3 60\n!emit end").await;
    rig.until("an event", |frame| frame["type"] == "event")
        .await;
    rig.hang_up();
    // Long enough for the turn to end without anybody.
    rig.accept().await;
    rig.hang_up();
    let file = rig.session_file();
    common::wait_until("the agent ends the turn", || {
        std::fs::read_to_string(&file)
            .unwrap_or_default()
            .contains("stopReason")
    });
    // The worker hears of it a moment later.
    let until = Instant::now() + Duration::from_secs(5);
    let mut fence = 1;
    let (before, hello) = loop {
        fence += 1;
        let before = rig.seen.len();
        let hello = rig.attach(fence, 1).await;
        if hello["state"].get("turnId").is_none() || Instant::now() > until {
            break (before, hello);
        }
        rig.hang_up();
    };
    assert_eq!(hello["state"].get("turnId"), None);
    assert_eq!(hello["state"]["lastTurnId"], "t1");
    assert_eq!(hello["state"]["seenEvent"], true);
    assert_eq!(hello["lastSeq"], 4);
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "completed");
    let kinds: Vec<_> = rig.seen[before..]
        .iter()
        .filter_map(|frame| frame["seq"].as_u64())
        .collect();
    assert_eq!(kinds, [2, 3, 4], "all events come before the end");
    // Until the next turn begins the end is offered to every new broker.
    rig.hang_up();
    rig.attach(fence + 1, 4).await;
    rig.response(&send).await;
    assert_eq!(rig.turn("t2", "hi").await["result"]["status"], "completed");
}

#[tokio::test]
async fn an_old_fence_is_refused() {
    let mut rig = Rig::scripted();
    rig.attach(5, 0).await;
    rig.hang_up();
    rig.accept().await;
    let attach = rig.request("attach", json!({"fence": 4, "ack": 0})).await;
    let refused = rig.response(&attach).await;
    assert_eq!(refused["errorCode"], "stale_fence");
    assert!(
        refused["error"].as_str().unwrap().contains("older"),
        "{refused}"
    );
    let body = rig.init_body();
    rig.request("init", body).await;
    rig.drain().await;
    assert!(
        !rig.lease_file().exists(),
        "nothing of an old broker is obeyed"
    );
    rig.hang_up();
    let hello = rig.attach(6, 0).await;
    assert_eq!(hello["state"]["fence"], 6);
}

#[tokio::test]
async fn open_cards_are_announced_again() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    let send = rig.begin("t1", "!card Run? | make").await;
    let card = rig.card().await;
    rig.hang_up();
    rig.attach(2, 1).await;
    let again = rig.card().await;
    assert_eq!(again["requestId"], card["requestId"]);
    rig.answer(&again, true, "allow").await;
    assert_eq!(rig.response(&send).await["result"]["status"], "completed");
}

#[tokio::test]
async fn a_broker_that_does_not_attach_is_left() {
    let mut rig = Rig::scripted();
    rig.accept().await;
    rig.drain().await;
    rig.attach(1, 0).await;
}

#[tokio::test]
async fn a_worker_without_a_broker_ends_after_its_grace() {
    let mut short = timing();
    short.orphan_idle_ms = 500;
    let mut rig = Rig::start(ade_protocol::boot::HostCommand::Scripted, short);
    rig.ready().await;
    rig.turn("t1", "hello").await;
    let lost = Instant::now();
    rig.hang_up();
    rig.exits_in_order();
    let took = lost.elapsed();
    assert!(
        (Duration::from_millis(450)..Duration::from_secs(3)).contains(&took),
        "{took:?}"
    );
}

#[tokio::test]
async fn a_running_turn_outlives_the_idle_grace_of_its_broker() {
    let mut short = timing();
    short.orphan_idle_ms = 300;
    short.orphan_turn_ms = 60_000;
    let mut rig = Rig::start(ade_protocol::boot::HostCommand::Scripted, short);
    rig.ready().await;
    let send = rig.begin("t1", "!emit begun\n!delay 900\n!emit end").await;
    rig.until("the turn begins", |frame| frame["event"]["text"] == "begun")
        .await;
    rig.hang_up();
    let lost = Instant::now();
    common::wait_until("the idle grace is over", || {
        lost.elapsed() > Duration::from_millis(600)
    });
    rig.attach(2, 1).await;
    assert_eq!(rig.response(&send).await["result"]["status"], "completed");
    assert_eq!(rig.text("t1"), "begunend");
}

#[tokio::test]
async fn a_host_that_dies_without_a_broker_is_told_to_the_next_one() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    let send = rig
        .begin("t1", "!emit begun\n!delay 200\n!emit more\n!crash 3")
        .await;
    rig.until("the turn begins", |frame| frame["event"]["text"] == "begun")
        .await;
    rig.hang_up();
    common::wait_until("the lease is given back", || !rig.lease_file().exists());
    rig.attach(2, 1).await;
    let end = rig.response(&send).await;
    assert!(
        end["error"].as_str().unwrap().contains("exit code 3"),
        "{end}"
    );
    assert_eq!(rig.text("t1"), "begunmore");
    rig.drain().await;
    rig.exits_in_order();
}

#[tokio::test]
async fn a_signal_ends_a_worker_that_was_never_attached() {
    let mut rig = Rig::scripted();
    rig.accept().await;
    signal(rig.pid(), Signal::SIGTERM);
    rig.exits_in_order();
}

#[tokio::test]
async fn lines_of_a_broker_that_are_no_frames_are_told_and_skipped() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    for line in [
        "not json",
        r#"{"protocolVersion":2,"type":"#,
        r#"{"protocolVersion":2,"type":"send","requestId":"x"}"#,
        r#"{"protocolVersion":2,"type":"sparkle","requestId":"x"}"#,
        r#"{"protocolVersion":9,"type":"models","requestId":"x"}"#,
    ] {
        rig.send_line(line).await;
    }
    assert_eq!(
        rig.turn("t1", "hello").await["result"]["status"],
        "completed"
    );
    let logs = rig
        .seen
        .iter()
        .filter(|frame| frame["type"] == "log")
        .count();
    assert_eq!(logs, 4);
    let version = rig
        .seen
        .iter()
        .find(|frame| frame["type"] == "error")
        .expect("an error");
    let message = version["error"].as_str().unwrap();
    assert!(message.contains('9') && message.contains('2'), "{message}");
}

/// The answer may have got lost with the broker that asked.
#[tokio::test]
async fn the_next_broker_is_told_which_steers_the_agent_took() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    let turn = rig.begin("t1", "!emit on\n!hang").await;
    let taken = rig.request("steer", json!({"prompt": "one"})).await;
    rig.response(&taken).await;
    rig.hang_up();
    let state = rig.accept().await["state"].clone();
    assert_eq!(state["steersTaken"], json!([taken]));
    assert_eq!(state["steersOpen"], json!(null));
    rig.attach(2, 0).await;
    rig.abort("t1").await;
    rig.response(&turn).await;
    let refused = rig.request("steer", json!({"prompt": "two"})).await;
    assert_eq!(rig.response(&refused).await["ok"], false);
    rig.begin("t2", "!steers late\n!emit on\n!hang").await;
    let open = rig.request("steer", json!({"prompt": "three"})).await;
    rig.until("the agent has it", |frame| {
        frame["event"]["text"] == "steered: three"
    })
    .await;
    rig.hang_up();
    let state = rig.accept().await["state"].clone();
    assert_eq!(state["steersTaken"], json!(null), "of the last turn only");
    assert_eq!(state["steersOpen"], json!([open]));
}
