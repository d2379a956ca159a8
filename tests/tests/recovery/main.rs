//! What a replaced worker knows: the file once more, or the transcript told to a
//! fresh agent; how a silent one is let go; and what happens when a login token
//! has expired. On the scripted provider.

use std::path::Path;
use std::time::{Duration, Instant};

use ade_tests::ade::Ade;
use ade_tests::rpc::{Rpc, text_of, types_of};
use ade_tests::turns::{SILENT_MS, dones, of_turn, of_type};
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

const RECONNECTS: &str =
    "[providers.scripted]\nrecovery = \"replay\"\nstale_token = \"reconnect\"\n";

/// What the agent says of an expired token, in part: never shown to anybody.
const RAW: &str = "logging out";

#[test]
fn r07_an_expired_token_before_any_event_is_met_without_a_word() {
    let (ade, _, chat) = started(RECONNECTS);
    ade.turn(&chat, "hello");
    let first = file(&ade, &chat);
    let prompt = "!stale-token-once\n\n  !emit sp  \u{e4}  ced\n\n";
    let events = heard(&ade, &chat, prompt);
    let kinds = ["user_message", "status", "text", "status", "done"];
    assert_eq!(types_of(&events), kinds, "nothing else: {events:?}");
    assert_eq!(status(&events), "completed");
    assert_eq!(ade.session(&chat)["generation"], 2);
    // The same agent got the same bytes: they stand in its file once.
    assert_eq!(file(&ade, &chat), first);
    assert_eq!(users(&first), ["hello", prompt]);
    assert!(ade.files_with(RAW).is_empty());
    goes_on(&ade, &chat);
    assert_eq!(ade.session(&chat)["generation"], 2);
}

#[test]
fn r08_an_expired_token_after_an_event_lets_the_agent_go_on() {
    let (ade, mut rpc, chat) = started(RECONNECTS);
    let prompt = "!emit half, \n!stale-token-once";
    let events = heard(&ade, &chat, prompt);
    assert_eq!(status(&events), "completed", "{events:?}");
    let signs = of_type(&events, "activity");
    assert_eq!(signs, [json!({"type": "activity", "text": "reconnecting"})]);
    assert!(of_type(&events, "notice").is_empty() && of_type(&events, "error").is_empty());
    // The agent was told something else than the message, and it is its own.
    let said = users(&file(&ade, &chat));
    assert_eq!((said.len(), said[0].as_str()), (2, prompt));
    assert!(
        said[1].contains("Continue exactly where you stopped"),
        "{said:?}"
    );
    assert_eq!(text_of(&events), format!("half,You said: {}", said[1]));
    let kept = ade.checked_transcript(&chat);
    assert_eq!(of_type(&kept, "user_message").len(), 1);
    assert!(of_type(&kept, "activity").is_empty(), "never kept");
    let queue = rpc.call("chat.queue", json!({"sessionId": chat}));
    assert_eq!(queue["messages"], json!([]));
    goes_on(&ade, &chat);
}

#[test]
fn a_second_expired_token_is_one_error_in_our_words() {
    let (ade, _, chat) = started(RECONNECTS);
    ade.turn(&chat, "hello");
    let first = file(&ade, &chat);
    let events = heard(&ade, &chat, "!stale-token");
    assert_eq!(status(&events), "failed");
    assert_eq!(of_type(&events, "error").len(), 1);
    assert!(of_type(&events, "notice").is_empty(), "{events:?}");
    let error = error(&events);
    assert_eq!(error["category"], "auth");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("sign in again"), "{message}");
    let detail = error["detail"].as_str().unwrap_or_default();
    let mut lines = detail.lines();
    assert_eq!(lines.next(), Some("kind: stale_token"));
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with("request id: req_"))
    );
    assert!(ade.files_with(RAW).is_empty(), "{:?}", ade.files_with(RAW));
    assert_eq!(users(&first), ["hello", "!stale-token"], "stands once");
    assert_eq!(ade.session(&chat)["generation"], 2, "no third time");
    goes_on(&ade, &chat);
    assert_eq!(file(&ade, &chat), first, "the same agent all along");
    let code = ade
        .run(&["chat", "send", &chat, "--wait", "!stale-token"])
        .status
        .code();
    assert_eq!(code, Some(6), "like any login that is refused");
}

/// That the user has ended a turn outlives the broker that was told so.
#[test]
fn a_turn_that_was_ended_in_its_recovery_is_not_sent_again_by_the_next_broker() {
    for config in ["", REPLAY] {
        let (mut ade, mut rpc, chat) = started(config);
        ade.turn(&chat, "hello");
        // It takes long to leave: time enough for the user and for the death.
        let (turn, _) = ade.send(&mut rpc, &chat, "!ignore-term\n!hang-once\n!emit again");
        ade.wait_state(&chat, "recovering");
        rpc.call("chat.abort", json!({"sessionId": chat}));
        drop(rpc);
        ade.kill_broker();
        ade.serve();
        let lines = ade.wait_done(&chat, &turn);
        let events = of_turn(&lines, &turn);
        assert_eq!(status(&events), "interrupted");
        assert_eq!(of_type(&events, "error"), Vec::<Value>::new());
        assert!(!text_of(&events).contains("again"), "{events:?}");
        goes_on(&ade, &chat);
        let _ = ade.checked_transcript(&chat);
    }
}

#[test]
fn r10_an_expired_token_of_an_agent_that_cannot_reconnect_is_an_error_at_once() {
    let (ade, _, chat) = started(REPLAY);
    for prompt in ["!stale-token-once", "!error 401 invalid api key"] {
        let events = heard(&ade, &chat, prompt);
        assert_eq!(status(&events), "failed");
        assert_eq!(error(&events)["category"], "auth");
    }
    assert_eq!(
        ade.session(&chat)["generation"],
        1,
        "no worker was replaced"
    );
    goes_on(&ade, &chat);
}

#[test]
fn an_expired_token_is_met_by_the_next_broker_when_this_one_dies() {
    for (before, planned) in [("", "reconnecting"), ("!emit half\n", "continuing")] {
        let (mut ade, mut rpc, chat) = started(RECONNECTS);
        ade.turn(&chat, "hello");
        // It takes long to leave: time enough for the broker to die.
        let prompt = format!("!ignore-term\n{before}!stale-token-once\n!emit there");
        let (turn, _) = ade.send(&mut rpc, &chat, &prompt);
        ade.wait_state(&chat, "recovering");
        drop(rpc);
        ade.kill_broker();
        assert_eq!(flags(&ade, &chat), (false, true), "the agent stays");
        assert_eq!(standing(&ade, &chat), planned);
        ade.serve();
        let mut rpc = ade.rpc();
        rpc.subscribe(&chat, 0);
        let events = rpc.until_done(&turn);
        assert_eq!(status(&events), "completed", "{events:?}");
        let said = users(&file(&ade, &chat));
        assert_eq!(said[..2], ["hello", prompt.as_str()]);
        assert_eq!(said.len(), if before.is_empty() { 2 } else { 3 });
        let kept = ade.checked_transcript(&chat);
        assert_eq!(of_type(&kept, "user_message").len(), 2);
        for kind in ["notice", "error"] {
            assert!(of_type(&kept, kind).is_empty(), "{kept:?}");
        }
        goes_on(&ade, &chat);
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

#[test]
fn a_silent_run_has_its_moment_to_end_and_no_longer() {
    // One that answers costs nothing of a bound that is never reached.
    let (ade, _, chat) = started("[turns]\ncancel_ms = 600000\n");
    let events = ade.turn(&chat, "!hang-once\n!emit done");
    assert_eq!(status(&events), "completed");
    drop(ade);
    // One that reads nothing any more costs all of it.
    let (ade, _, chat) = started("[turns]\ncancel_ms = 2500\n");
    let begin = Instant::now();
    let events = ade.turn(&chat, "!stop-reading-once\n!hang-once\n!emit done");
    assert_eq!(status(&events), "completed", "{events:?}");
    let bounds = Duration::from_millis(SILENT_MS + 2500);
    assert!(begin.elapsed() >= bounds, "{:?}", begin.elapsed());
    goes_on(&ade, &chat);
}

#[test]
fn what_a_run_says_late_that_was_given_up_is_not_shown() {
    // It answers `interrupted` while the next worker is awaited; behind a word of
    // which nobody knows what else was done, or without one.
    for (word, expected) in [
        ("", ("completed", "done")),
        (" a late word", ("failed", "")),
    ] {
        let (ade, _, chat) = started("[turns]\ncancel_ms = 100\n");
        let script = format!("!slow-abort 600{word}\n!hang-once\n!emit done");
        let events = heard(&ade, &chat, &script);
        assert_eq!((status(&events), text_of(&events).as_str()), expected);
        if expected.0 == "failed" {
            let told = error(&events)["message"].as_str().expect("a sentence");
            assert!(told.starts_with("delivered, outcome unknown"), "{told}");
        }
        assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
        assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
    }
}

/// The one broker dies while a silent run ends; the other one finds that it had
/// worked after all.
#[test]
fn a_run_that_was_heard_between_two_brokers_is_not_sent_again() {
    let (mut ade, mut rpc, chat) = started("[turns]\ncancel_ms = 600000\n");
    let script = "!slow-abort 300 a late word\n!hang-once\n!emit done";
    let (turn, _) = ade.send(&mut rpc, &chat, script);
    ade.wait_state(&chat, "recovering");
    let file = file(&ade, &chat);
    drop(rpc);
    ade.kill_broker();
    wait_true("the run has ended", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains("a late word"))
    });
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(status(&events), "failed", "{events:?}");
    let told = error(&events)["message"].as_str().expect("a sentence");
    assert!(told.contains("it had been told to stop"), "{told}");
    assert!(told.contains("not sent again"), "{told}");
    assert_eq!(text_of(&events), "a late word");
    assert_eq!(ade.session(&chat)["generation"], 1, "the worker is kept");
    assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
}

/// A chat whose silent worker takes long to end its run.
fn cancelling(before: &str) -> (Ade, Rpc, String, String) {
    let (ade, mut rpc, chat) = started("[turns]\ncancel_ms = 600000\n");
    let script = format!("{before}!slow-abort 1200\n!hang-once\n!emit done");
    rpc.subscribe(&chat, 0);
    let (turn, _) = ade.send(&mut rpc, &chat, &script);
    ade.wait_state(&chat, "recovering");
    (ade, rpc, chat, turn)
}

#[test]
fn r15_a_stop_while_a_silent_run_ends_is_honoured() {
    let (ade, mut rpc, chat, turn) = cancelling("");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let events = rpc.until_done(&turn);
    assert_eq!(status(&events), "interrupted");
    assert_eq!(
        of_type(&events, "notice").len(),
        0,
        "nothing was sent again"
    );
    assert_eq!(text_of(&events), "");
    assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
    assert_eq!(
        ade.session(&chat)["generation"],
        2,
        "the recovery completes"
    );
    goes_on(&ade, &chat);
}

#[test]
fn r16_a_steer_while_a_silent_run_ends_is_a_turn_of_its_own_behind_it() {
    let (ade, mut rpc, chat, turn) = cancelling("");
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    let steered = rpc.call("chat.steer", asked);
    assert_eq!(steered["outcome"], "queued");
    let own = steered["turnId"].as_str().expect("a turn").to_owned();
    let events = rpc.until_done(&own);
    let all = dones(&events);
    let completed = |turn: &str| (turn.to_owned(), "completed".to_owned());
    assert_eq!(all, [completed(&turn), completed(&own)]);
    assert_eq!(text_of(&events), "doneYou said: and this");
    let cancelled = of_type(&events, "notice")
        .iter()
        .filter(|notice| {
            notice["message"]
                .as_str()
                .is_some_and(|text| text.contains("dropped:"))
        })
        .count();
    assert_eq!(cancelled, 0, "delivered, so not cancelled");
    goes_on(&ade, &chat);
}

#[test]
fn a_silent_run_that_was_given_up_stays_given_up_when_the_broker_dies() {
    let (mut ade, rpc, chat, turn) = cancelling("");
    drop(rpc);
    ade.kill_broker();
    assert_eq!(standing(&ade, &chat), "recovering");
    assert_eq!(flags(&ade, &chat), (false, true));
    // Its worker lives, and is about to say `interrupted`.
    ade.serve();
    let mut rpc = ade.rpc();
    rpc.subscribe(&chat, 0);
    let events = rpc.until_done(&turn);
    assert_eq!(
        (status(&events), text_of(&events).as_str()),
        ("completed", "done")
    );
    assert_eq!(users(&file(&ade, &chat)).len(), 1, "stands once");
    assert_eq!(ade.session(&chat)["generation"], 2);
    assert_eq!(dones(&ade.checked_transcript(&chat)).len(), 1);
    goes_on(&ade, &chat);
}

#[test]
fn why_a_message_was_sent_again_is_known_to_the_next_broker() {
    let config = "[turns]\ncancel_ms = 600000\n";
    let (mut ade, mut rpc, chat) = started(config);
    let (turn, _) = ade.send(&mut rpc, &chat, "!slow-abort 1200\n!hang");
    ade.wait_state(&chat, "recovering");
    drop(rpc);
    ade.kill_broker();
    ade.serve();
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    let told = error(&events)["message"].as_str().expect("a sentence");
    let first = "(first: the agent sent nothing for 0.7 s); the message was sent twice";
    assert!(told.contains(first), "{told}");
    goes_on(&ade, &chat);
}
