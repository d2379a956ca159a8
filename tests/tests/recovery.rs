//! What a replaced worker knows: the file once more, or the transcript told to a
//! fresh agent. On the scripted provider.

use std::path::Path;

use ade_tests::ade::Ade;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

const HEADER: &str = "[ade: continuity]";

fn started(config: &str) -> (Ade, Rpc, String) {
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 300}));
    (ade, rpc, chat)
}

fn file(ade: &Ade, chat: &str) -> String {
    let file = &ade.session(chat)["sessionFile"];
    file.as_str().expect("a session file").to_owned()
}

/// The user's messages in a session file.
fn users(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(file)).expect("the session file");
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
        .filter(|line| line["message"]["role"] == "user")
        .filter_map(|line| {
            line["message"]["content"][0]["text"]
                .as_str()
                .map(str::to_owned)
        })
        .collect()
}

fn status(events: &[Value]) -> &str {
    let done = events.last().expect("an event");
    done["event"]["status"].as_str().expect("a status")
}

fn error(events: &[Value]) -> &Value {
    let error = events
        .iter()
        .find(|event| event["event"]["type"] == "error");
    &error.expect("an error")["event"]
}

fn flags(ade: &Ade, chat: &str) -> (bool, bool) {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    db.query_row(
        "SELECT rotate, force_expire FROM sessions WHERE session_id = ?1",
        [chat],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
    .expect("the session")
}

const REPLAY: &str = "[providers.scripted]\nrecovery = \"replay\"\n";

#[test]
fn a_fresh_agent_is_told_the_whole_chat_once() {
    let (ade, _, chat) = started(REPLAY);
    ade.turn(&chat, "remember the blue door");
    let first = file(&ade, &chat);
    let prompt = "!hang-once\n!recall";
    let events = ade.turn(&chat, prompt);
    assert_eq!(status(&events), "completed");
    let told = text_of(&events);
    assert!(told.contains("User: remember the blue door"), "{told}");
    assert!(
        told.contains("Agent: You said: remember the blue door"),
        "{told}"
    );
    assert_eq!(told.matches(HEADER).count(), 1, "{told}");
    assert!(
        !told.contains("hang-once"),
        "the message itself is not replayed: {told}"
    );
    let second = file(&ade, &chat);
    assert_ne!(first, second, "a fresh agent has a session of its own");
    assert_eq!(users(&second).last().map(String::as_str), Some(prompt));
    assert_eq!(flags(&ade, &chat), (false, false), "each was done once");
    // The next message goes on there, and nothing is told again.
    let told = text_of(&ade.turn(&chat, "!recall"));
    assert_eq!(told.matches(HEADER).count(), 1, "{told}");
    assert_eq!(file(&ade, &chat), second);
}

#[test]
fn after_a_second_silence_the_next_message_goes_to_a_fresh_agent() {
    let (ade, _, chat) = started(REPLAY);
    ade.turn(&chat, "remember the blue door");
    let events = ade.turn(&chat, "!hang");
    assert_eq!(status(&events), "failed");
    let second = file(&ade, &chat);
    assert_eq!(flags(&ade, &chat), (true, false));
    let told = text_of(&ade.turn(&chat, "!recall"));
    assert!(
        told.contains("blue door") && told.matches(HEADER).count() == 1,
        "{told}"
    );
    assert_ne!(file(&ade, &chat), second);
    assert_eq!(flags(&ade, &chat), (false, false));
}

#[test]
fn a_recovery_that_a_dying_broker_had_begun_is_finished_once() {
    let (mut ade, mut rpc, chat) = started(REPLAY);
    ade.turn(&chat, "remember the blue door");
    let first = file(&ade, &chat);
    // It takes long to leave: time enough for the broker to die.
    let (turn, _) = ade.send(&mut rpc, &chat, "!ignore-term\n!hang-once\n!recall");
    wait_true("the recovery begins", || {
        ade.session(&chat)["state"] == "recovering"
    });
    drop(rpc);
    ade.kill_broker();
    assert_eq!(flags(&ade, &chat), (true, true), "both are on disk");
    ade.serve();
    let mut rpc = ade.rpc();
    rpc.subscribe(&chat, 0);
    let events = rpc.until_done(&turn);
    assert_eq!(status(&events), "completed", "{events:?}");
    let told = text_of(&events);
    assert_eq!(told.matches(HEADER).count(), 1, "{told}");
    assert_ne!(file(&ade, &chat), first);
    assert_eq!(flags(&ade, &chat), (false, false), "and done once");
    let messages = ade.transcript(&chat);
    let said = messages
        .iter()
        .filter(|line| line["event"]["type"] == "user_message");
    assert_eq!(said.count(), 2, "no message stands twice");
}

#[test]
fn f05_a_message_that_is_sent_again_stands_once_in_the_file() {
    let (ade, _, chat) = started("");
    ade.turn(&chat, "hello");
    let prompt = "!hang-once\n!emit here";
    let events = ade.turn(&chat, prompt);
    assert_eq!(status(&events), "completed");
    assert_eq!(users(&file(&ade, &chat)), ["hello", prompt]);
    assert_eq!(ade.session(&chat)["generation"], 2);
}

#[test]
fn f05_a_message_that_the_agent_went_on_with_is_not_sent_again() {
    let (ade, _, chat) = started("");
    let prompt = "!file half of it is done\n!hang";
    let events = ade.turn(&chat, prompt);
    let error = error(&events);
    let message = error["message"].as_str().expect("a text");
    assert!(message.starts_with("delivered, outcome unknown"), "{error}");
    let detail = error["detail"].as_str().unwrap_or_default();
    assert!(
        detail.contains("kind: delivered_outcome_unknown"),
        "{error}"
    );
    assert_eq!(users(&file(&ade, &chat)), [prompt]);
    let text = text_of(&ade.turn(&chat, "next"));
    assert_eq!(text, "You said: next", "the next message works");
    assert_eq!(
        ade.session(&chat)["generation"],
        3,
        "by a worker that is trusted"
    );
}
