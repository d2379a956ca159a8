//! What a replaced worker knows: the file once more, or the transcript told to a
//! fresh agent; how a silent one is let go; and what happens when a login token
//! has expired. On the scripted provider.

mod silent;
mod tokens;

use std::path::Path;

use ade_tests::ade::Ade;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{SILENT_MS, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

const HEADER: &str = "[ade: continuity]";

fn started(config: &str) -> (Ade, Rpc, String) {
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(
        &mut rpc,
        "scripted",
        &lane,
        json!({"firstEventMs": SILENT_MS}),
    );
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

/// The provider's id of the agent.
fn agent(ade: &Ade, chat: &str) -> String {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let query = "SELECT provider_session_id FROM sessions WHERE session_id = ?1";
    let id = db.query_row(query, [chat], |row| row.get(0));
    id.expect("the agent's id")
}

/// Where the running turn stands, in `state.db`.
fn standing(ade: &Ade, chat: &str) -> String {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let query = "SELECT state FROM turns WHERE session_id = ?1";
    let state = db.query_row(query, [chat], |row| row.get(0));
    state.expect("a running turn")
}

/// Sends a message to a client that listens already, so that it hears what is
/// kept nowhere too. Gives all events of the turn.
fn heard(ade: &Ade, chat: &str, prompt: &str) -> Vec<Value> {
    let mut rpc = ade.rpc();
    rpc.subscribe(chat, 0);
    let (turn, _) = ade.send(&mut rpc, chat, prompt);
    let events = rpc.until_done(&turn);
    let of_it = |event: &Value| event["turnId"] == turn.as_str();
    events.into_iter().filter(of_it).collect()
}

/// The next message simply works.
fn goes_on(ade: &Ade, chat: &str) {
    assert_eq!(text_of(&ade.turn(chat, "next")), "You said: next");
    assert_eq!(flags(ade, chat), (false, false));
}

const REPLAY: &str = "[providers.scripted]\nrecovery = \"replay\"\n";

#[test]
fn a_fresh_agent_is_told_the_whole_chat_once() {
    let (ade, _, chat) = started(REPLAY);
    ade.turn(&chat, "remember the blue door");
    let first = file(&ade, &chat);
    let old = agent(&ade, &chat);
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
    let new = agent(&ade, &chat);
    assert_ne!(old, new);
    let agents =
        format!("this conversation ({old}) could not go on and was replaced by you ({new}).");
    assert!(told.contains(&agents), "{agents}: {told}");
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
    let (second, old) = (file(&ade, &chat), agent(&ade, &chat));
    assert_eq!(flags(&ade, &chat), (true, false));
    let told = text_of(&ade.turn(&chat, "!recall"));
    assert_eq!(told.matches(&old).count(), 1, "the one before: {told}");
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

/// Also not by a fresh agent, which has a session of its own.
#[test]
fn f05_a_message_that_the_agent_went_on_with_is_not_sent_again() {
    for config in ["", REPLAY] {
        let (ade, _, chat) = started(config);
        ade.turn(&chat, "hello");
        let first = file(&ade, &chat);
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
        assert_eq!(users(&first), ["hello", prompt]);
        let text = text_of(&ade.turn(&chat, "next"));
        assert_eq!(text, "You said: next", "the next message works");
        assert_eq!(
            ade.session(&chat)["generation"],
            3,
            "by a worker that is trusted"
        );
    }
}

#[test]
fn an_answer_to_the_same_message_before_says_nothing_of_this_one() {
    for config in ["", REPLAY] {
        let (ade, _, chat) = started(config);
        let prompt = "!crash-once 7\n!emit done";
        for _ in 0..2 {
            let events = ade.turn(&chat, prompt);
            assert_eq!(status(&events), "completed", "{events:?}");
            assert_eq!(text_of(&events), "done");
        }
        assert_eq!(ade.session(&chat)["generation"], 3);
    }
}

#[test]
fn r23_an_agent_that_is_gone_is_replaced_by_one_that_is_told_the_chat() {
    let (ade, mut rpc, chat) = started(REPLAY);
    ade.turn(&chat, "remember the blue door");
    ade.turn(&chat, "!emit ok\n!forget");
    let first = file(&ade, &chat);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    let events = ade.turn(&chat, "!recall");
    assert_eq!(status(&events), "completed", "{events:?}");
    let told = text_of(&events);
    assert!(told.contains("blue door"), "{told}");
    assert_eq!(told.matches(HEADER).count(), 1, "{told}");
    for kind in ["notice", "error"] {
        assert!(of_type(&events, kind).is_empty(), "{events:?}");
    }
    let second = file(&ade, &chat);
    assert_ne!(first, second);
    assert_eq!(ade.births(&chat), 3, "one was refused, none was poisoned");
    let told = text_of(&ade.turn(&chat, "!recall"));
    assert_eq!(told.matches(HEADER).count(), 1, "not told again: {told}");
    goes_on(&ade, &chat);
    assert_eq!(file(&ade, &chat), second);
}

#[test]
fn an_agent_that_is_gone_and_cannot_be_told_the_chat_is_an_error() {
    let (ade, mut rpc, chat) = started("");
    ade.turn(&chat, "!emit ok\n!forget");
    rpc.call("chat.stop", json!({"sessionId": chat}));
    let events = ade.turn(&chat, "hello");
    assert_eq!(status(&events), "failed");
    assert_eq!(error(&events)["category"], "not_found");
    assert_eq!((ade.births(&chat), flags(&ade, &chat)), (2, (false, false)));
}

#[test]
fn r20_a_fresh_agent_that_was_decided_on_is_had_by_the_next_broker_once() {
    let (mut ade, rpc, chat) = started(REPLAY);
    ade.turn(&chat, "remember the blue door");
    ade.turn(&chat, "!hang");
    drop(rpc);
    ade.kill_broker();
    assert_eq!(flags(&ade, &chat), (true, false));
    ade.serve();
    let told = text_of(&ade.turn(&chat, "!recall"));
    assert_eq!(told.matches(HEADER).count(), 1, "{told}");
    let fresh = file(&ade, &chat);
    goes_on(&ade, &chat);
    assert_eq!(file(&ade, &chat), fresh, "once");
}

#[test]
fn a_worker_that_was_given_up_for_a_fresh_agent_is_not_used_by_the_next_broker() {
    let (mut ade, rpc, chat) = started(REPLAY);
    ade.turn(&chat, "remember the blue door");
    drop(rpc);
    ade.kill_broker();
    // As by a broker that died before the worker was gone.
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let set = "UPDATE sessions SET rotate = 1 WHERE session_id = ?1";
    assert_eq!(db.execute(set, [&chat]).expect("a change"), 1);
    drop(db);
    ade.serve();
    let told = text_of(&ade.turn(&chat, "!recall"));
    assert_eq!(told.matches(HEADER).count(), 1, "{told}");
    goes_on(&ade, &chat);
    assert_eq!(ade.session(&chat)["generation"], 2);
}

#[test]
fn a_connection_that_drops_before_any_event_is_told_and_sent_again() {
    let (ade, _, chat) = started("");
    for (script, why) in [
        ("!error-once socket hang up", "The connection dropped"),
        ("!crash-once 7", "exit code 7"),
    ] {
        let prompt = format!("{script}\n!emit done");
        let events = heard(&ade, &chat, &prompt);
        assert_eq!(
            (status(&events), text_of(&events).as_str()),
            ("completed", "done")
        );
        let notices = of_type(&events, "notice");
        assert_eq!(notices.len(), 1, "{events:?}");
        let message = notices[0]["message"].as_str().expect("a text");
        assert!(message.contains(why) && message.contains("sent your message again"));
        let said = users(&file(&ade, &chat));
        assert_eq!(said.iter().filter(|text| **text == prompt).count(), 1);
    }
    let events = ade.turn(&chat, "!emit half\n!error socket hang up");
    assert_eq!(error(&events)["category"], "network", "not after an event");
    assert_eq!(ade.session(&chat)["generation"], 3);
    goes_on(&ade, &chat);
}
