//! Stops of chats and of the broker: rung by rung, with an end, beside clients
//! that go on.

use std::process::Stdio;
use std::time::Instant;

use ade_leases::process::Signal;
use ade_tests::ade::{is_alive, signal, started};
use ade_tests::cards::yes;
use ade_tests::rpc::Deaf;
use ade_tests::turns::{dones, ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::json;

/// Rungs of the ladder that a stubborn host makes short work of.
const SHORT_LADDER: &str = "[worker]\neof_grace_ms = 300\n\n\
    [providers.scripted]\ndispose_grace_ms = 300\nterm_to_kill_ms = 300\n";

#[test]
fn a_host_that_ignores_every_request_is_taken_down_rung_by_rung() {
    let (ade, mut rpc) = started(SHORT_LADDER);
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "!ignore-term\n");
    let file = ade.session_file(&chat);
    let begin = Instant::now();
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert_eq!(
        tree.alive(),
        Vec::<i32>::new(),
        "the answer comes after the death"
    );
    let took = begin.elapsed().as_millis();
    assert!(took >= 900, "no rung was left out: {took} ms");
    assert!(ade.is_free(&file));
    assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
    ade.goes_on(&chat, 2);
}

#[test]
fn ade_stop_in_mid_turn_ends_each_turn_once_and_what_waits_behind_it() {
    let (mut ade, mut rpc) = started("");
    let mut chats = Vec::new();
    for prompt in [
        "!words 1000000 20",
        "!card Run it? | x",
        "!hang",
        "!long-tool 300000",
    ] {
        let chat = ade.scripted_chat(&mut rpc, 60_000);
        let (turn, after) = ade.send(&mut rpc, &chat, prompt);
        let (queued, _) = ade.send(&mut rpc, &chat, "behind it");
        let seen = ["text", "card_opened", "status", "tool_call"];
        let mut watch = ade.rpc();
        watch.subscribe(&chat, after);
        watch.event("a sign of life", |e| {
            seen.contains(&e["event"]["type"].as_str().unwrap_or_default())
        });
        chats.push((chat, [turn, queued]));
    }
    ade.wait_state(&chats[2].0, "awaiting_first_event");
    ade.expect_code(0, &["stop"]);
    for (chat, turns) in &chats {
        let mut ended = dones(&ade.checked_transcript(chat));
        ended.sort();
        let interrupted = |turn: String| (turn, "interrupted".to_owned());
        let mut expected = turns.clone().map(interrupted);
        expected.sort();
        assert_eq!(ended, expected);
    }
    ade.expect_broker_ended(0);
    assert_eq!(ade.describe(), Vec::<String>::new());
    assert_eq!(ade.litter(), Vec::<std::path::PathBuf>::new());
    assert!(!ade.socket().exists());
}

#[test]
fn h14_sigterm_has_an_end_whatever_the_clients_and_agents_do() {
    let (mut ade, mut rpc) = started("");
    let idle = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&idle, "hello");
    let busy = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &busy, "!ignore-term\n");
    let asking = ade.scripted_chat(&mut rpc, 60_000);
    let (asked, after) = ade.send(&mut rpc, &asking, "!card Run it? | x");
    let mut watch = ade.rpc();
    watch.subscribe(&asking, after);
    let card = watch.card();
    // A client that never reads, with more to read than fits on the way.
    let flood = ade.scripted_chat(&mut rpc, 60_000);
    let deaf = Deaf::subscribe(&ade.socket(), &flood, None);
    let (_, after) = ade.send(&mut rpc, &flood, "!events 2000 4000\n!hang");
    rpc.subscribe(&flood, after);
    let mut seen = 0;
    while seen < 2000 {
        rpc.event("the flood", |e| e["event"]["type"] == "text");
        seen += 1;
    }
    let begin = Instant::now();
    assert_eq!(ade.stop_broker(), Some(0));
    let took = begin.elapsed();
    assert!(took.as_secs() < 20, "the documented end: {took:?}");
    assert_eq!(tree.alive(), Vec::<i32>::new());
    assert_eq!(ade.describe(), Vec::<String>::new());
    assert!(!ade.socket().exists() && !ade.home().join("run/workers.sock").exists());
    assert_eq!(ade.litter(), Vec::<std::path::PathBuf>::new());
    let events = of_turn(&ade.checked_transcript(&asking), &asked);
    let resolved = &of_type(&events, "card_resolved")[0];
    assert_eq!(resolved["cardId"], card.as_str());
    assert_eq!(resolved["resolution"]["why"], "shutting_down");
    for chat in [&idle, &busy, &flood] {
        assert_eq!(dones(&ade.checked_transcript(chat)).len(), 1);
    }
    drop(deaf);
}

#[test]
fn h14_a_second_sigterm_shortens_the_grace() {
    // A ladder of three minutes, for a host that needs all of it.
    let config = "[worker]\neof_grace_ms = 60000\n\n\
        [providers.scripted]\ndispose_grace_ms = 60000\nterm_to_kill_ms = 60000\n";
    let (mut ade, mut rpc) = started(config);
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "!ignore-term\n");
    signal(ade.broker_pid(), Signal::SIGTERM);
    // A connection that was there before is served until the end.
    wait_true("the first signal is taken in", || {
        let list = rpc.call("sessions.list", json!({}));
        let info = &list["sessions"][0];
        info["state"] == "stopping" && info["stopStage"] == "dispose"
    });
    assert_eq!(ade.stop_broker(), Some(0), "the second signal");
    assert_eq!(tree.alive(), Vec::<i32>::new());
    assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
    assert_eq!(ade.litter(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_stopped_chat_answers_its_card_and_its_worker_is_away() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, after) = ade.send(&mut rpc, &chat, "!card Run it? | x");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    let card = watch.card();
    let worker = ade.worker_of(&chat);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(!is_alive(worker));
    let events = watch.until_done(&turn);
    assert_eq!(ended(&events), "interrupted");
    assert_eq!(
        rpc.answer(&card, &yes("allow")).unwrap_err().kind,
        "card_gone"
    );
    ade.goes_on(&chat, 2);
}

/// A turn whose host ignores every polite word, so that a stop takes a while.
const STUBBORN: &str = "!ignore-term\n!words 1000 50";

#[test]
fn a_stopping_broker_takes_nothing_new_and_leaves_nothing() {
    let (mut ade, mut rpc) = started(SHORT_LADDER);
    let talking = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, after) = ade.send(&mut rpc, &talking, STUBBORN);
    rpc.subscribe(&talking, after);
    rpc.event("a word", |e| e["event"]["type"] == "text");
    let mut other = ade.rpc();
    let stop = ade
        .command(&["stop"])
        .stdout(Stdio::null())
        .spawn()
        .expect("ade stop");
    // Until it takes nothing any more, messages are queued behind the turn and
    // end with it.
    let message = json!({"sessionId": talking, "prompt": STUBBORN});
    let mut taken = vec![turn];
    let refusal = loop {
        match other.try_call("chat.send", message.clone()) {
            Ok(sent) => taken.push(sent["turnId"].as_str().unwrap().to_owned()),
            Err(refusal) => break refusal,
        }
    };
    if refusal.kind != "queue_full" {
        assert_eq!(refusal.kind, "stopping", "{refusal:?}");
        let lane = ade.lane("late");
        let late = json!({"provider": "scripted", "lane": lane.display().to_string()});
        let refusal = other.try_call("chat.create", late).unwrap_err();
        assert_eq!(refusal.kind, "stopping", "{refusal:?}");
    }
    assert!(stop.wait_with_output().expect("ade stop").status.success());
    ade.expect_broker_ended(0);
    assert_eq!(ade.describe(), Vec::<String>::new());
    let lines = ade.checked_transcript(&talking);
    let mut ends: Vec<String> = dones(&lines).into_iter().map(|(turn, _)| turn).collect();
    ends.sort();
    taken.sort();
    assert_eq!(ends, taken, "every message that was taken has one end");
}

#[test]
fn a_stop_is_answered_although_a_message_comes_meanwhile() {
    let (ade, mut rpc) = started(SHORT_LADDER);
    let stubborn = ade.scripted_chat(&mut rpc, 60_000);
    let (_, after) = ade.send(&mut rpc, &stubborn, STUBBORN);
    rpc.subscribe(&stubborn, after);
    rpc.event("a word", |e| e["event"]["type"] == "text");
    let before = ade.worker_of(&stubborn);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| {
            ade.rpc().call("chat.stop", json!({"sessionId": stubborn}));
        });
        wait_true("the stop has begun", || {
            !ade.session(&stubborn)["stopStage"].is_null()
        });
        ade.send(&mut rpc, &stubborn, "and now?");
        stopping.join().expect("an answer to the stop");
    });
    assert!(!is_alive(before));
    rpc.event("the answer", |e| e["event"]["type"] == "text");
    ade.rpc()
        .call("chat.delete", json!({"sessionId": stubborn}));
}
