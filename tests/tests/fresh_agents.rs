//! A fresh agent is told once which agent it stands in for, whoever dies between
//! the old one's end and the message. On the scripted provider, told like one
//! that cannot resume.

use ade_tests::ade::Ade;
use ade_tests::rpc::text_of;
use ade_tests::turns::{SILENT_MS, ended, of_turn};
use serde_json::json;

const CONFIG: &str = "[providers.scripted]\nrecovery = \"replay\"\n";
const HEADER: &str = "[ade: continuity]";

/// The provider's id of the agent.
fn agent(ade: &Ade, chat: &str) -> String {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let query = "SELECT provider_session_id FROM sessions WHERE session_id = ?1";
    let id = db.query_row(query, [chat], |row| row.get(0));
    id.expect("the agent's id")
}

/// A chat whose agent was replaced by a fresh one that was told nothing, because
/// the user had ended the turn meanwhile: the chat, and the replaced agent.
fn replaced() -> (Ade, String, String) {
    let mut ade = Ade::new().with_config(CONFIG);
    ade.serve();
    let mut rpc = ade.rpc();
    let more = json!({"firstEventMs": SILENT_MS});
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("one"), more);
    ade.turn(&chat, "remember the blue door");
    let old = agent(&ade, &chat);
    // It takes long to leave: time enough for the user.
    let (turn, _) = ade.send(&mut rpc, &chat, "!ignore-term\n!hang");
    ade.wait_state(&chat, "recovering");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let lines = ade.wait_done(&chat, &turn);
    assert_eq!(ended(&of_turn(&lines, &turn)), "interrupted");
    ade.wait_state(&chat, "idle");
    assert_ne!(agent(&ade, &chat), old, "it was replaced");
    (ade, chat, old)
}

/// The next message is preceded by one header with the right names, and the one
/// after it by none.
#[track_caller]
fn told_once(ade: &Ade, chat: &str, old: &str) {
    let told = text_of(&ade.turn(chat, "!recall"));
    let new = agent(ade, chat);
    assert_ne!(old, new);
    let agents =
        format!("this conversation ({old}) could not go on and was replaced by you ({new}).");
    assert!(told.contains(&agents), "{agents}: {told}");
    assert!(told.contains("User: remember the blue door"), "{told}");
    assert_eq!(told.matches(HEADER).count(), 1, "{told}");
    let told = text_of(&ade.turn(chat, "!recall"));
    assert_eq!(told.matches(HEADER).count(), 1, "{told}");
    let _ = ade.checked_transcript(chat);
}

#[test]
fn the_next_broker_knows_which_agent_was_replaced() {
    let (mut ade, chat, old) = replaced();
    ade.kill_broker();
    ade.serve();
    told_once(&ade, &chat, &old);
}

#[test]
fn an_agent_that_was_told_nothing_is_not_named_after_it_was_replaced_too() {
    let (mut ade, chat, old) = replaced();
    ade.kill_all_with_broker();
    ade.serve();
    told_once(&ade, &chat, &old);
}

/// The last broker had started a fresh agent, and died before it noted that.
#[test]
fn a_fresh_agent_that_was_started_by_a_broker_which_died_is_not_replaced_again() {
    let (mut ade, chat, old) = replaced();
    ade.kill_broker();
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let sql = "UPDATE sessions SET provider_session_id = ?2, rotate = 1, replaced_agent = NULL,
               agent_told = 1 WHERE session_id = ?1";
    assert_eq!(db.execute(sql, [&chat, &old]).expect("a row"), 1);
    drop(db);
    ade.serve();
    told_once(&ade, &chat, &old);
    let (first, generation) = (agent(&ade, &chat), ade.session(&chat)["generation"].clone());
    ade.rpc().call("chat.stop", json!({"sessionId": chat}));
    ade.turn(&chat, "hello");
    assert_eq!(agent(&ade, &chat), first, "resumed");
    assert_ne!(ade.session(&chat)["generation"], generation);
}

#[test]
fn r15_a_stop_while_a_silent_run_ends_is_honoured_by_the_next_broker_too() {
    for recovery in ["resume", "replay"] {
        let config = format!(
            "[turns]\ncancel_ms = 600000\n[providers.scripted]\nrecovery = \"{recovery}\"\n"
        );
        let mut ade = Ade::new().with_config(&config);
        ade.serve();
        let mut rpc = ade.rpc();
        let more = json!({"firstEventMs": SILENT_MS});
        let chat = ade.chat(&mut rpc, "scripted", &ade.lane("one"), more);
        ade.turn(&chat, "hello");
        // Its worker lives, and takes long to say `interrupted`.
        let script = "!slow-abort 1200\n!hang-once\n!emit again";
        let (turn, _) = ade.send(&mut rpc, &chat, script);
        ade.wait_state(&chat, "recovering");
        rpc.call("chat.abort", json!({"sessionId": chat}));
        drop(rpc);
        ade.kill_broker();
        ade.serve();
        let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
        assert_eq!(ended(&events), "interrupted");
        assert_eq!(text_of(&events), "", "nothing was sent again");
        let generation = ade.session(&chat)["generation"].clone();
        assert_eq!(generation, 2, "the recovery completes");
        assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
        let _ = ade.checked_transcript(&chat);
    }
}
