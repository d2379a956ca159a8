//! Messages for the running turn. When its worker is being replaced and the broker
//! dies in the middle, one is delivered as a turn of its own, or cancelled once. One
//! that a worker took and its agent never read is told of, once and in its turn.

mod recycled;
mod unanswered;

use ade_tests::ade::Ade;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{SILENT_MS, dones, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

/// A chat in the recovery of a turn that goes on with `then`, with a steer for
/// it that waits: the chat, the turn, the steer.
fn steered(then: &str) -> (Ade, String, String, String) {
    let config = "[turns]\ncancel_ms = 600000\n";
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let more = json!({"firstEventMs": SILENT_MS});
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

/// A chat in a turn that runs `!hang` behind these steps.
fn hanging(steps: &str) -> (Ade, Rpc, String, String) {
    let mut ade = Ade::new();
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("one"), json!({}));
    let (turn, _) = ade.send(&mut rpc, &chat, &format!("{steps}\n!emit on it\n!hang"));
    ade.wait_state(&chat, "streaming");
    (ade, rpc, chat, turn)
}

fn steer(rpc: &mut Rpc, chat: &str, prompt: &str) -> Value {
    rpc.call("chat.steer", json!({"sessionId": chat, "prompt": prompt}))
}

/// The events of a turn, or of none, that name this message: their types.
fn naming<'a>(lines: &'a [Value], turn: Option<&str>, prompt: &str) -> Vec<&'a str> {
    let of = |line: &&Value| line["turnId"].as_str() == turn;
    let events = lines.iter().filter(of).map(|line| &line["event"]);
    let names = |event: &&Value| {
        let said = event["text"].as_str().or(event["message"].as_str());
        said.is_some_and(|said| said.contains(prompt))
    };
    let named = events.filter(names);
    named.filter_map(|event| event["type"].as_str()).collect()
}

/// How often an agent said something that belongs to no turn.
fn turnless(lines: &[Value]) -> usize {
    let of_none = lines.iter().filter(|line| line["turnId"].is_null());
    of_none
        .filter(|line| line["event"]["type"] == "notice")
        .count()
}

/// Waits until the agent, silent in its turn, has come to where `!turnless` stands: it
/// knows by then what it does with messages.
fn waits_for_steers(ade: &Ade, chat: &str) {
    ade.wait_transcript(chat, "it takes messages", |lines| turnless(lines) == 1);
}

const SAID_AND_UNREAD: [&str; 2] = ["user_message", "notice"];

#[test]
fn steers_that_the_agent_had_not_read_are_told_of_before_the_end_of_their_turn() {
    let (ade, mut rpc, chat, turn) = hanging("!steers unread");
    let long = "l\u{f6}ng ".repeat(900);
    for prompt in ["first & last", "second", &long] {
        assert_eq!(steer(&mut rpc, &chat, prompt)["outcome"], "delivered");
    }
    rpc.call("chat.abort", json!({"sessionId": chat}));
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    for prompt in ["first & last", "second", "l\u{f6}ng l\u{f6}ng"] {
        let naming = naming(&lines, Some(&turn), prompt);
        assert_eq!(naming, SAID_AND_UNREAD, "{prompt}");
    }
    let its = of_turn(&lines, &turn);
    let told = of_type(&its, "notice");
    assert_eq!(told.len(), 3, "{told:?}");
    let message = told[1]["message"].as_str().expect("a message");
    assert!(message.contains("had not read"), "{message}");
    assert!(message.contains("Send it again"), "{message}");
    assert_eq!(its.last().expect("an end")["event"]["type"], "done");
    let (shown, _) = ade.expect_code(0, &["chat", "show", &chat]);
    assert!(
        shown.contains("had not read") && shown.contains("second"),
        "{shown}"
    );
    assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
}

#[test]
fn steers_that_the_agent_read_and_ends_that_nobody_heard_say_nothing() {
    let (ade, mut rpc, chat, turn) = hanging("!turnless");
    steer(&mut rpc, &chat, "read");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    let naming = |lines: &[Value], turn, prompt| naming(lines, Some(turn), prompt).join(" ");
    // The scripted agent answers what it has read.
    assert_eq!(naming(&lines, &turn, "read"), "user_message text");

    let (turn, _) = ade.send(&mut rpc, &chat, "!steers unread\n!emit on it\n!hang");
    ade.wait_state(&chat, "streaming");
    steer(&mut rpc, &chat, "lost");
    ade_tests::ade::signal(ade.host_of(&chat), ade_leases::process::Signal::SIGKILL);
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    assert_eq!(naming(&lines, &turn, "lost"), "user_message");
}

#[test]
fn an_unread_steer_is_told_of_by_the_next_broker_too() {
    let (mut ade, mut rpc, chat, turn) = hanging("!steers unread");
    steer(&mut rpc, &chat, "taken before");
    ade.kill_broker();
    ade.serve();
    ade.wait_state(&chat, "streaming");
    ade.rpc().call("chat.abort", json!({"sessionId": chat}));
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    let naming = naming(&lines, Some(&turn), "taken before");
    assert_eq!(naming, SAID_AND_UNREAD);
}

/// What the agent says of the message when its turn is over is no matter of the
/// next turn, which runs by then, nor of none.
#[test]
fn a_steer_that_is_answered_behind_its_turn_belongs_to_no_other_turn() {
    let (ade, mut rpc, chat, turn) = hanging("!steers late");
    let (next, _) = ade.send(&mut rpc, &chat, "!emit now me\n!delay 300");
    let mut other = ade.rpc();
    std::thread::scope(|scope| {
        let steered = scope.spawn(|| steer(&mut other, &chat, "and this"));
        ade.wait_transcript(&chat, "the agent has it", |lines| {
            naming(lines, Some(&turn), "steered: and this") == ["text"]
        });
        rpc.call("chat.abort", json!({"sessionId": chat}));
        assert_eq!(steered.join().expect("an answer")["outcome"], "delivered");
    });
    ade.wait_done(&chat, &next);
    let lines = ade.checked_transcript(&chat);
    assert_eq!(naming(&lines, Some(&next), "and this"), [""; 0]);
    assert_eq!(naming(&lines, None, "and this"), ["notice"]);
    let told = of_type(&lines, "notice");
    assert!(
        told[0]["message"]
            .as_str()
            .expect("a text")
            .contains("not known"),
        "{told:?}"
    );
}

#[test]
fn a_steer_that_was_not_read_is_not_promised_later() {
    let (ade, mut rpc, chat, turn) = hanging("!steers unread-late");
    let mut other = ade.rpc();
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    std::thread::scope(|scope| {
        let steered = scope.spawn(|| other.try_call("chat.steer", asked));
        ade.wait_transcript(&chat, "the agent has it", |lines| {
            naming(lines, Some(&turn), "kept") == ["text"]
        });
        rpc.call("chat.abort", json!({"sessionId": chat}));
        let refused = steered.join().expect("an answer").expect_err("refused");
        assert!(
            refused.message.contains("before the agent read"),
            "{refused:?}"
        );
    });
    ade.wait_done(&chat, &turn);
    assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
    let lines = ade.checked_transcript(&chat);
    assert_eq!(naming(&lines, Some(&turn), "and this"), ["notice"]);
    assert_eq!(naming(&lines, None, "and this"), [""; 0]);
}

/// The turn goes on with another worker, which knows nothing of the message.
#[test]
fn a_steer_that_a_silent_worker_had_not_read_is_told_of_in_the_turn_that_goes_on() {
    let mut ade = Ade::new();
    ade.serve();
    let mut rpc = ade.rpc();
    let more = json!({"firstEventMs": 1500});
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("one"), more);
    let prompt = "!steers unread-silent\n!turnless\n!hang-once\n!emit done";
    let (turn, _) = ade.send(&mut rpc, &chat, prompt);
    waits_for_steers(&ade, &chat);
    assert_eq!(steer(&mut rpc, &chat, "and this")["outcome"], "delivered");
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    assert_eq!(dones(&lines), [(turn.clone(), "completed".to_owned())]);
    assert_eq!(naming(&lines, Some(&turn), "and this"), SAID_AND_UNREAD);
    let told = of_type(&of_turn(&lines, &turn), "notice");
    assert!(
        told[0]["message"]
            .as_str()
            .expect("a text")
            .contains("was replaced"),
        "{told:?}"
    );
}

/// A chat in a turn of these steps whose broker died before it heard whether the agent
/// took the message, which it did; the chat and the turn.
fn unheard(steps: &str) -> (Ade, String, String) {
    let (mut ade, mut rpc, chat, turn) = hanging(&format!("!steers late\n!emit on\n{steps}"));
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    let client = std::thread::spawn(move || drop(rpc.try_call("chat.steer", asked)));
    ade.wait_transcript(&chat, "the agent has it", |lines| {
        naming(lines, Some(&turn), "steered: and this") == ["text"]
    });
    ade.kill_broker();
    // Its connection is gone, and that is no news.
    let _ = client.join();
    (ade, chat, turn)
}

/// Messages for a turn that `state.db` holds still.
fn on_their_way(ade: &Ade) -> i64 {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let sql = "SELECT count(*) FROM steers";
    db.query_row(sql, [], |row| row.get(0)).expect("a number")
}

/// Its agent answers before the next broker comes, or after that has taken over.
fn stands_once(waits: bool) {
    let (mut ade, chat, turn) = unheard("!delay 1500\n!answer\n!file answered");
    let answer = r#""text":"answered""#;
    if waits {
        wait_true("the agent answers", || !ade.files_with(answer).is_empty());
    }
    assert_eq!(on_their_way(&ade), 1);
    ade.serve();
    ade.wait_transcript(&chat, "it is told", |lines| {
        naming(lines, Some(&turn), "and this") == ["text", "user_message"]
    });
    wait_true("the agent goes on", || !ade.files_with(answer).is_empty());
    ade.rpc().call("chat.abort", json!({"sessionId": chat}));
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    assert_eq!(
        naming(&lines, Some(&turn), "and this"),
        ["text", "user_message"]
    );
    assert_eq!(naming(&lines, None, "and this"), [""; 0]);
    assert_eq!(on_their_way(&ade), 0);
}

#[test]
fn a_steer_that_was_taken_while_no_broker_was_there_stands_in_its_turn_once() {
    stands_once(true);
}

#[test]
fn a_steer_that_is_taken_when_the_next_broker_is_there_stands_in_its_turn_once() {
    stands_once(false);
}

#[test]
fn a_steer_whose_answer_the_next_broker_hears_behind_its_turn_has_one_notice() {
    let (mut ade, chat, turn) = unheard("");
    ade.serve();
    ade.wait_state(&chat, "streaming");
    ade.rpc().call("chat.abort", json!({"sessionId": chat}));
    ade.wait_done(&chat, &turn);
    assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
    let lines = ade.checked_transcript(&chat);
    assert_eq!(naming(&lines, Some(&turn), "and this"), ["text"]);
    assert_eq!(naming(&lines, None, "and this"), ["notice"]);
    assert_eq!(on_their_way(&ade), 0);
}

#[test]
fn a_steer_of_which_nothing_is_known_any_more_has_a_notice_that_says_so() {
    let (mut ade, mut rpc, chat, turn) = hanging("!steers late");
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    let client = std::thread::spawn(move || drop(rpc.try_call("chat.steer", asked)));
    wait_true("it is on its way", || on_their_way(&ade) == 1);
    ade.kill_all_with_broker();
    let _ = client.join();
    for _ in 0..2 {
        ade.serve();
        ade.wait_done(&chat, &turn);
        let lines = ade.wait_transcript(&chat, "it is told", |lines| {
            !naming(lines, None, "and this").is_empty()
        });
        let told = of_type(&lines, "notice");
        let known = told[0]["message"].as_str().expect("a text");
        assert!(known.contains("nothing is known"), "{told:?}");
        ade.kill_broker();
    }
    ade.serve();
    let next = ade.turn(&chat, "next");
    assert_eq!(text_of(&next), "You said: next");
    let lines = ade.checked_transcript(&chat);
    assert_eq!(naming(&lines, None, "and this"), ["notice"]);
    assert_eq!(on_their_way(&ade), 0);
}

/// The row of a message "and this", in the `state.db` of a broker that is not there.
fn put_on_its_way(ade: &Ade, chat: &str, turn: &str) {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let sql = "INSERT INTO steers (session_id, request_id, turn_id, prompt, after_sequence)
               VALUES (?1, 'r', ?2, 'and this', 0)";
    assert_eq!(db.execute(sql, [chat, turn]).expect("a row"), 1);
}

/// The message is in the transcript, and the broker dies before its row is off the
/// disk.
#[test]
fn a_steer_that_stands_in_the_transcript_is_not_told_once_more() {
    let (mut ade, mut rpc, chat, turn) = hanging("!delay 1");
    steer(&mut rpc, &chat, "and this");
    ade.kill_broker();
    put_on_its_way(&ade, &chat, &turn);
    ade.serve();
    ade.wait_state(&chat, "streaming");
    ade.rpc().call("chat.abort", json!({"sessionId": chat}));
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    let mut naming = [
        naming(&lines, Some(&turn), "and this"),
        naming(&lines, None, "and this"),
    ];
    naming[0].sort_unstable();
    assert_eq!(naming, [vec!["text", "user_message"], vec![]]);
    assert_eq!(on_their_way(&ade), 0);
}
