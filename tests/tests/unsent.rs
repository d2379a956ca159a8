//! A message that waited and was never sent is named by what is left of it: its
//! notice says when, by what, and what it said.

use ade_tests::ade::{Ade, started};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{dones, of_turn, of_type};
use serde_json::{Value, json};

/// A chat whose turn hangs, with messages behind it: the chat and the messages.
fn waiting(ade: &Ade, rpc: &mut Rpc, messages: &[&str]) -> (String, Vec<String>) {
    let chat = ade.chat(rpc, "scripted", &ade.lane("one"), json!({}));
    ade.send(rpc, &chat, "!emit begun\n!hang");
    ade.wait_transcript(&chat, "a word", |lines| text_of(lines) == "begun");
    let all = messages.iter();
    let all = all.map(|message| ade.send(rpc, &chat, message).0).collect();
    (chat, all)
}

/// The one notice of a message that was not sent, in the answer of `chat show`.
#[track_caller]
fn notice(ade: &Ade, chat: &str, turn: &str) -> String {
    ade.wait_done(chat, turn);
    let shown = ade.json(&["chat", "show", chat]);
    let events: Vec<Value> = shown["events"].as_array().expect("events").clone();
    let of_it = of_turn(&events, turn);
    let all = of_type(&of_it, "notice");
    assert_eq!(all.len(), 1, "{of_it:?}");
    assert_eq!(dones(&of_it).len(), 1, "{of_it:?}");
    assert!(of_it[0]["timestamp"].is_string());
    all[0]["message"].as_str().expect("a text").to_owned()
}

#[test]
fn a_message_that_was_cancelled_is_shown_with_when_and_by_whom() {
    let (ade, mut rpc) = started("");
    let (chat, messages) = waiting(&ade, &mut rpc, &["paint the door", "and the \u{1b}[2Jwall"]);
    for turn in &messages {
        ade.expect_code(0, &["chat", "queue", "cancel", &chat, turn]);
    }
    let said = notice(&ade, &chat, &messages[0]);
    assert!(said.contains("cancelled by ade"), "{said}");
    assert!(said.contains("“paint the door”"), "{said}");
    let (text, _) = ade.expect_code(0, &["chat", "show", &chat]);
    let line = text.lines().find(|line| line.contains("paint the door"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    let lines = ade.transcript(&chat);
    let day = &lines[0]["timestamp"].as_str().expect("a time")[..10];
    assert!(line.contains(day) && line.contains(" UTC: "), "{line}");
    assert!(line.contains("cancelled by ade"), "{line}");
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(
        !text.contains("the turn was interrupted"),
        "none was: {text}"
    );
    rpc.call("chat.abort", json!({"sessionId": chat}));
    ade.wait_state(&chat, "idle");
    let (text, _) = ade.expect_code(0, &["chat", "show", &chat]);
    assert!(text.contains("the turn was interrupted"), "{text}");
}

#[test]
fn a_message_that_was_cleared_or_stopped_is_shown_with_what_ended_it() {
    let (mut ade, mut rpc) = started("[turns]\nqueue_recovery_ms = 100\n");
    let (chat, messages) = waiting(&ade, &mut rpc, &["paint the door"]);
    let args = ["chat", "interrupt", "--replace", &chat, "!emit x\n!hang"];
    ade.expect_code(0, &args);
    let said = notice(&ade, &chat, &messages[0]);
    assert!(said.contains("took the running turn's place"), "{said}");
    assert!(said.contains("“paint the door”"), "{said}");

    let (chat, messages) = waiting(&ade, &mut rpc, &["paint the wall"]);
    ade.expect_code(0, &["chat", "stop", &chat]);
    let said = notice(&ade, &chat, &messages[0]);
    assert!(said.contains("the chat was stopped"), "{said}");
    assert!(said.contains("“paint the wall”"), "{said}");

    // Also when the broker that cleared it died.
    let (chat, messages) = waiting(&ade, &mut rpc, &["paint the roof"]);
    let asked = json!({"sessionId": chat, "prompt": "!hang", "mode": "replace"});
    rpc.call("chat.interrupt", asked);
    drop(rpc);
    ade.kill_broker();
    ade.serve();
    let said = notice(&ade, &chat, &messages[0]);
    assert!(said.contains("“paint the roof”"), "{said}");
}
