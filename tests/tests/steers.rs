//! A message for a turn whose worker is being replaced, when the broker dies in
//! the middle: it is delivered as a turn of its own, or cancelled once.

use ade_tests::ade::Ade;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{dones, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

/// A chat in the recovery of a turn that goes on with `then`, with a steer for
/// it that waits: the chat, the turn, the steer.
fn steered(then: &str) -> (Ade, String, String, String) {
    let config = "[turns]\ncancel_ms = 600000\n";
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let more = json!({"firstEventMs": 300});
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("one"), more);
    // The silent worker takes long to end its run.
    let (turn, _) = ade.send(&mut rpc, &chat, &format!("!slow-abort 1200\n{then}"));
    ade.wait_state(&chat, "recovering");
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    let answer = rpc.call("chat.steer", asked);
    assert_eq!(answer["outcome"], "queued");
    let steer = answer["turnId"].as_str().expect("a turn").to_owned();
    (ade, chat, turn, steer)
}

/// What the chat was told of the dropped message.
fn notices(lines: &[Value], steer: &str) -> usize {
    let told = of_type(&of_turn(lines, steer), "notice");
    let dropped = |notice: &&Value| {
        let text = notice["message"].as_str();
        text.is_some_and(|text| text.contains("was dropped:"))
    };
    told.iter().filter(dropped).count()
}

/// Asserts that the steer was cancelled once, with one notice, before its turn
/// failed, and that the next message simply works.
#[track_caller]
fn cancelled_once(ade: &Ade, chat: &str, turn: &str, steer: &str) {
    ade.wait_done(chat, turn);
    let next = ade.turn(chat, "next");
    assert_eq!(text_of(&next), "You said: next");
    let lines = ade.checked_transcript(chat);
    let ends: Vec<(String, String)> = dones(&lines);
    let end = |turn: &str, how: &str| (turn.to_owned(), how.to_owned());
    assert_eq!(
        ends[..2],
        [end(steer, "interrupted"), end(turn, "failed")],
        "{ends:?}"
    );
    assert_eq!(ends.len(), 3, "{ends:?}");
    assert_eq!(notices(&lines, steer), 1);
    assert_eq!(of_type(&of_turn(&lines, steer), "user_message").len(), 0);
    let queue = ade.rpc().call("chat.queue", json!({"sessionId": chat}));
    assert_eq!(queue["messages"], json!([]));
}

#[test]
fn r16_a_recovery_that_the_next_broker_completes_is_followed_by_the_steer() {
    let (mut ade, chat, turn, steer) = steered("!hang-once\n!emit done");
    ade.kill_broker();
    ade.serve();
    ade.wait_done(&chat, &steer);
    let lines = ade.checked_transcript(&chat);
    let completed = |turn: &str| (turn.to_owned(), "completed".to_owned());
    assert_eq!(dones(&lines), [completed(&turn), completed(&steer)]);
    assert_eq!(text_of(&of_turn(&lines, &steer)), "You said: and this");
    assert_eq!(notices(&lines, &steer), 0);
}

#[test]
fn r16_a_recovery_that_fails_behind_the_next_broker_cancels_the_steer_once() {
    let (mut ade, chat, turn, steer) = steered("!hang");
    ade.kill_broker();
    ade.serve();
    let queue = ade.rpc().call("chat.queue", json!({"sessionId": chat}));
    assert_eq!(queue["messages"][0]["steer"], true, "{queue}");
    cancelled_once(&ade, &chat, &turn, &steer);
}

#[test]
fn r16_a_recovery_that_dies_with_its_broker_cancels_the_steer_once() {
    let (mut ade, chat, turn, steer) = steered("!hang");
    wait_true("the message was sent again", || ade.sends(&chat) == 2);
    // Of what waits for the turn's second worker nobody hears any more.
    ade.kill_all_with_broker();
    ade.serve();
    cancelled_once(&ade, &chat, &turn, &steer);
}

/// The message's end is in the transcript, and the broker dies before its row is
/// off the disk.
#[test]
fn r16_a_steer_that_was_cancelled_is_not_delivered_by_the_next_broker() {
    let (mut ade, chat, turn, steer) = steered("!hang");
    let mut rpc: Rpc = ade.rpc();
    rpc.call(
        "chat.queue_cancel",
        json!({"sessionId": chat, "turnId": steer}),
    );
    ade.kill_broker();
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let sql = "INSERT INTO queue (session_id, turn_id, prompt, queued_at, steers)
               VALUES (?1, ?2, 'and this', 't', ?3)";
    let row = [&chat, &steer, &turn];
    assert_eq!(db.execute(sql, row).expect("a row"), 1);
    drop(db);
    ade.serve();
    ade.wait_done(&chat, &turn);
    assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
    let ends = dones(&ade.checked_transcript(&chat));
    let of_it = ends.iter().filter(|(turn, _)| *turn == steer);
    assert_eq!(of_it.count(), 1, "{ends:?}");
}
