//! Every message that was taken has exactly one end, whatever could not be
//! written and whoever died before it was.

use ade_tests::ade::Ade;
use ade_tests::disk::{Disk, may_mount};
use ade_tests::rpc::{Rpc, RpcFailure, text_of};
use ade_tests::turns::{dones, ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

/// A chat on a small disk for transcripts, where one turn was completed.
fn small(config: &str) -> (Ade, Disk, Rpc, String) {
    let mut ade = Ade::new().with_config(config);
    let disk = Disk::mount(&ade.home().join("transcripts"), "256k");
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 60_000}));
    let _ = ade.turn(&chat, "hello");
    (ade, disk, rpc, chat)
}

fn database(ade: &Ade) -> rusqlite::Connection {
    rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db")
}

/// `state.db` refuses one kind of change, such as `INSERT ON turns`.
fn refuse(ade: &Ade, change: &str) {
    let sql = format!(
        "CREATE TRIGGER refused BEFORE {change} BEGIN SELECT RAISE(ABORT, 'refused by a test'); END"
    );
    database(ade).execute_batch(&sql).expect("a trigger");
}

fn allow(ade: &Ade) {
    let dropped = database(ade).execute_batch("DROP TRIGGER refused");
    dropped.expect("no trigger");
}

/// What is left of the last page of a transcript.
fn room(ade: &Ade, chat: &str) -> usize {
    const PAGE: usize = 4096;
    let path = format!("transcripts/chat/{chat}.jsonl");
    let path = ade.home().join(path);
    PAGE - std::fs::read(&path).expect("a transcript").len() % PAGE
}

/// Fills the disk of transcripts but for the rest of this one's last page, and
/// sends a message that fits in there, while its end does not.
#[track_caller]
fn refused_half(ade: &Ade, disk: &Disk, rpc: &mut Rpc, chat: &str) -> RpcFailure {
    /// Bytes of a message's lines beside its text, and a few more.
    const LINES: usize = 500;
    while room(ade, chat) < 2 * LINES {
        let _ = ade.turn(chat, "a few more words");
    }
    disk.fill();
    let prompt = "x".repeat(room(ade, chat) - LINES);
    let asked = json!({"sessionId": chat, "prompt": prompt});
    rpc.try_call("chat.send", asked).expect_err("no room")
}

/// Fills the disk of transcripts, and this one's last page but for less than an
/// event, with messages into the running turn.
#[track_caller]
fn fill_up(ade: &Ade, disk: &Disk, rpc: &mut Rpc, chat: &str) {
    const LEFT: usize = 100;
    let mut steer = |text: &str| {
        let (before, lines) = (room(ade, chat), ade.transcript(chat).len());
        let asked = json!({"sessionId": chat, "prompt": text});
        assert_eq!(rpc.call("chat.steer", asked)["outcome"], "delivered");
        ade.wait_transcript(chat, "the answer to a steer", |now| now.len() >= lines + 2);
        before.saturating_sub(room(ade, chat))
    };
    // It stands there twice: as a message and in the answer to it.
    let around = loop {
        match steer("x") {
            0 => {}
            grown if room(ade, chat) > 2 * grown => break grown,
            _ => {}
        }
    };
    steer(&"x".repeat((room(ade, chat) - around - LEFT) / 2));
    assert!(room(ade, chat) <= LEFT + 4, "{}", room(ade, chat));
    disk.fill();
}

/// Messages of the user that a transcript holds, with the ends of their turns.
fn said(lines: &[Value]) -> Vec<(String, Vec<(String, String)>)> {
    let users = lines
        .iter()
        .filter(|line| line["event"]["type"] == "user_message");
    users
        .map(|line| {
            let turn = line["turnId"].as_str().expect("a turn");
            let text = line["event"]["text"].as_str().expect("a text");
            (text.to_owned(), dones(&of_turn(lines, turn)))
        })
        .collect()
}

#[test]
fn a_message_that_state_db_refuses_leaves_no_beginning_without_an_end() {
    if !may_mount() {
        return;
    }
    let (mut ade, disk, mut rpc, chat) = small("");
    refuse(&ade, "INSERT ON turns");
    assert_eq!(refused_half(&ade, &disk, &mut rpc, &chat).kind, "state");
    drop(rpc);
    ade.kill_broker();
    disk.make_room();
    allow(&ade);
    ade.serve();
    assert_eq!(text_of(&ade.turn(&chat, "and now?")), "You said: and now?");
    for (text, ends) in said(&ade.checked_transcript(&chat)) {
        assert_eq!(ends.len(), 1, "{text}");
        assert!(!text.starts_with('x'), "it was refused, and never taken");
    }
}

#[test]
fn a_message_that_stands_in_the_transcript_and_was_refused_ends_there() {
    if !may_mount() {
        return;
    }
    let (ade, disk, mut rpc, chat) = small("");
    // The turn begins, and then nothing more can be noted of it.
    refuse(&ade, "UPDATE OF sends ON turns");
    assert_eq!(refused_half(&ade, &disk, &mut rpc, &chat).kind, "state");
    let lines = ade.transcript(&chat);
    let last = lines.iter().rfind(|line| line["turnId"].is_string());
    assert_ne!(last.expect("a turn")["event"]["type"], "done", "no room");
    disk.make_room();
    allow(&ade);
    // Before anything else is said.
    assert_eq!(text_of(&ade.turn(&chat, "and now?")), "You said: and now?");
    let said = said(&ade.checked_transcript(&chat));
    let (text, ends) = &said[said.len() - 2];
    assert!(text.starts_with('x'), "{said:?}");
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0].1, "failed");
}

#[test]
fn messages_that_waited_end_once_when_the_broker_died_before_it_could_say_so() {
    if !may_mount() {
        return;
    }
    let (mut ade, disk, mut rpc, chat) = small("[turns]\nqueue_recovery_ms = 100\n");
    let (running, _) = ade.send(&mut rpc, &chat, "!emit begun\n!hang");
    let (cancelled, _) = ade.send(&mut rpc, &chat, "cancelled");
    let (behind, _) = ade.send(&mut rpc, &chat, "behind");
    ade.wait_transcript(&chat, "a word", |lines| text_of(lines).ends_with("begun"));
    fill_up(&ade, &disk, &mut rpc, &chat);
    let asked = json!({"sessionId": chat, "turnId": cancelled});
    let refused = rpc.try_call("chat.queue_cancel", asked);
    assert_eq!(refused.expect_err("no room").kind, "transcript");
    wait_true("the turn and what waits behind it are given up", || {
        ade.session(&chat)["lastStatus"] == "failed"
    });
    drop(rpc);
    ade.kill_broker();
    disk.make_room();
    ade.serve();
    for turn in [&running, &cancelled, &behind] {
        ade.wait_done(&chat, turn);
    }
    assert_eq!(text_of(&ade.turn(&chat, "and now?")), "You said: and now?");
    let lines = ade.checked_transcript(&chat);
    for turn in [&running, &cancelled, &behind] {
        let events = of_turn(&lines, turn);
        assert_eq!(dones(&events).len(), 1, "{events:?}");
        let begun = of_type(&events, "user_message");
        let begun = begun.iter().filter(|message| message["via"] == "send");
        assert_eq!(begun.count(), usize::from(turn == &running));
    }
}

#[test]
fn a_steer_that_cannot_be_written_down_is_not_said_to_be_delivered() {
    if !may_mount() {
        return;
    }
    let (ade, disk, mut rpc, chat) = small("");
    let (turn, _) = ade.send(&mut rpc, &chat, "!emit begun\n!hang");
    ade.wait_transcript(&chat, "a word", |lines| text_of(lines).ends_with("begun"));
    fill_up(&ade, &disk, &mut rpc, &chat);
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    let refused = rpc.try_call("chat.steer", asked).expect_err("no room");
    assert_eq!(refused.kind, "transcript", "{refused:?}");
    disk.make_room();
    assert_eq!(text_of(&ade.turn(&chat, "and now?")), "You said: and now?");
    let events = of_turn(&ade.checked_transcript(&chat), &turn);
    assert_eq!(ended(&events), "failed");
    let steers = of_type(&events, "user_message");
    assert!(steers.iter().all(|message| message["text"] != "and this"));
}

/// A chat with a card and a chat that streams, whose broker and workers died.
/// The disk of transcripts is full.
fn lost() -> (Ade, Disk, [(String, String); 2]) {
    let (mut ade, disk, mut rpc, chat) = small("");
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 1000000 50");
    ade.wait_transcript(&chat, "a word", |lines| text_of(lines).contains("word"));
    let lane = ade.lane("two");
    let asking = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 60_000}));
    let (asked, after) = ade.send(&mut rpc, &asking, "!card Run it? | x");
    rpc.subscribe(&asking, after);
    let _card = rpc.card();
    drop(rpc);
    ade.kill_all_with_broker();
    for chat in [&chat, &asking] {
        // Nor is there room in its last page.
        let path = ade.home().join(format!("transcripts/chat/{chat}.jsonl"));
        let spaces = " ".repeat(room(&ade, chat));
        let mut text = std::fs::read_to_string(&path).expect("a transcript");
        text.truncate(text.len() - 1);
        std::fs::write(&path, format!("{text}{spaces}\n")).expect("written");
    }
    disk.fill();
    (ade, disk, [(chat, turn), (asking, asked)])
}

/// Each turn has its one end, and its card has one before it.
#[track_caller]
fn closed_once(ade: &Ade, chats: &[(String, String)]) {
    for (chat, turn) in chats {
        ade.wait_done(chat, turn);
        assert_eq!(text_of(&ade.turn(chat, "and now?")), "You said: and now?");
        let events = of_turn(&ade.checked_transcript(chat), turn);
        assert_eq!(dones(&events).len(), 1, "{events:?}");
        assert_eq!(ended(&events), "failed");
        let opened = of_type(&events, "card_opened").len();
        assert_eq!(of_type(&events, "card_resolved").len(), opened);
    }
}

#[test]
fn an_end_that_a_new_broker_cannot_write_is_written_when_there_is_room() {
    if !may_mount() {
        return;
    }
    let (mut ade, disk, chats) = lost();
    ade.serve();
    let (chat, _) = &chats[0];
    let info = ade.session(chat);
    assert_eq!(info["lastStatus"], "failed", "{info}");
    // Nothing is begun before it.
    let asked = json!({"sessionId": chat, "prompt": "too early"});
    let refused = ade.rpc().try_call("chat.send", asked);
    assert_eq!(refused.expect_err("no room").kind, "transcript");
    disk.make_room();
    closed_once(&ade, &chats);
}

#[test]
fn an_end_that_no_broker_could_write_is_written_by_the_one_that_can() {
    if !may_mount() {
        return;
    }
    let (mut ade, disk, chats) = lost();
    for _ in 0..2 {
        ade.serve();
        ade.kill_broker();
    }
    disk.make_room();
    ade.serve();
    closed_once(&ade, &chats);
    // And that is remembered.
    let lengths = || chats.each_ref().map(|(chat, _)| ade.transcript(chat).len());
    let before = lengths();
    assert_eq!(ade.stop_broker(), Some(0));
    ade.serve();
    wait_true("both chats", || {
        chats
            .iter()
            .all(|(chat, _)| ade.session(chat)["state"] == "idle")
    });
    let lengths = || chats.each_ref().map(|(chat, _)| ade.transcript(chat).len());
    assert_eq!(lengths(), before);
}
