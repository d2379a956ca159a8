//! Folders and files that are removed under a running broker: what can be put back
//! is, and what is lost is said, by its name.

use std::fs;

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, signal, started};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{ended, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_until};
use serde_json::json;

fn chat(ade: &Ade, rpc: &mut Rpc) -> String {
    ade.scripted_chat(rpc, 60_000)
}

/// What the broker's log says.
fn log(ade: &Ade) -> String {
    let files = fs::read_dir(ade.home().join("logs")).expect("logs");
    files
        .flatten()
        .map(|file| fs::read_to_string(file.path()).unwrap_or_default())
        .collect()
}

#[test]
fn removed_transcripts_fail_the_turns_that_were_writing_and_chats_go_on() {
    let (ade, mut rpc) = started("");
    let running = chat(&ade, &mut rpc);
    let resting = chat(&ade, &mut rpc);
    ade.turn(&resting, "before");
    let (turn, _) = ade.send(&mut rpc, &running, "!words 100000 20");
    ade.wait_state(&running, "streaming");
    let pid = ade.broker_pid();
    fs::remove_dir_all(ade.home().join("transcripts")).expect("removed");

    let lines = ade.wait_done(&running, &turn);
    let events = of_turn(&lines, &turn);
    assert_eq!(ended(&events), "failed", "{events:?}");
    let message = of_type(&events, "error")[0]["message"].to_string();
    assert!(message.contains("was removed"), "{message}");
    assert!(message.contains(&running), "{message}");
    // What is asked for and lost is not an empty chat.
    let (_, said) = ade.expect_code(1, &["chat", "show", &resting]);
    assert!(said.contains("was removed"), "{said}");
    // The one that rested is told once, too.
    let hello = json!({"sessionId": resting, "prompt": "hello"});
    let refused = rpc.try_call("chat.send", hello).expect_err("it is told");
    assert_eq!(refused.kind, "transcript");
    assert!(
        refused.message.contains("was removed"),
        "{}",
        refused.message
    );
    for chat in [&running, &resting, &chat(&ade, &mut rpc)] {
        let events = ade.turn(chat, "and now?");
        assert_eq!(text_of(&events), "You said: and now?", "{events:?}");
    }
    assert_eq!(ade.broker_pid(), pid);
    ade.expect_code(0, &["status"]);
}

#[test]
fn a_removed_database_is_put_back_whole() {
    for only_the_log in [false, true] {
        let (mut ade, mut rpc) = started("");
        let chat = chat(&ade, &mut rpc);
        ade.turn(&chat, "before");
        let database = ade.home().join("state.db");
        let log = ade.home().join("state.db-wal");
        for file in [&database, &log, &ade.home().join("state.db-shm")] {
            if !only_the_log || file == &log {
                fs::remove_file(file).expect("removed");
            }
        }
        let (turn, _) = ade.send(&mut rpc, &chat, "!words 100000 20");
        wait_true("it is there again", || database.exists() && log.exists());
        ade.wait_state(&chat, "streaming");
        drop(rpc);
        ade.kill_broker();
        ade.serve();
        ade.wait_state(&chat, "streaming");
        let mut rpc = ade.rpc();
        rpc.call("chat.abort", json!({"sessionId": chat}));
        let lines = ade.wait_done(&chat, &turn);
        assert_eq!(ended(&of_turn(&lines, &turn)), "interrupted");
        let events = ade.turn(&chat, "!recall");
        assert!(text_of(&events).contains("before"), "{events:?}");
        let _ = ade.checked_transcript(&chat);
    }
}

#[test]
fn what_cannot_be_put_back_ends_the_broker_by_its_name() {
    for part in ["run", "state.db"] {
        let (mut ade, mut rpc) = started("");
        let chat = chat(&ade, &mut rpc);
        let (turn, _) = ade.send(&mut rpc, &chat, "!words 100000 20");
        let info = ade.wait_state(&chat, "streaming");
        let worker = i32::try_from(info["workerPid"].as_i64().expect("a pid")).expect("a pid");
        drop(rpc);
        let path = ade.home().join(part);
        if part == "run" {
            fs::remove_dir_all(&path).expect("removed");
        } else {
            let other = ade.home().join("other");
            fs::write(&other, "").expect("written");
            fs::rename(&other, &path).expect("replaced");
        }
        ade.expect_broker_ended(1);
        wait_true("its worker is gone", || !ade_tests::ade::is_alive(worker));
        let lines = ade.wait_done(&chat, &turn);
        assert_eq!(ended(&of_turn(&lines, &turn)), "interrupted");
        let said = log(&ade);
        let named = wait_until("it is named", || {
            said.lines()
                .find(|line| line.contains("it is gone"))
                .map(str::to_owned)
        });
        assert!(named.contains(&format!("{}\"", path.display())), "{named}");
        ade.serve();
        if part == "run" {
            let events = ade.turn(&chat, "and now?");
            assert_eq!(text_of(&events), "You said: and now?", "{events:?}");
        }
    }
}

#[test]
fn a_transcript_that_was_removed_is_no_turn_that_went_well() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 100000 20");
    ade.wait_state(&chat, "streaming");
    // The broker is held, so that nothing is written between the two.
    signal(ade.broker_pid(), Signal::SIGSTOP);
    fs::remove_file(ade.transcript_path(&chat)).expect("removed");
    signal(ade.broker_pid(), Signal::SIGCONT);
    let lines = ade.wait_done(&chat, &turn);
    assert_eq!(ended(&of_turn(&lines, &turn)), "failed");
    let events = ade.turn(&chat, "and now?");
    assert_eq!(text_of(&events), "You said: and now?");
}

/// What stands in the way of a chat's transcript, and how that is taken away.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    /// The folder above it is gone.
    NoFolder,
    /// A folder has its name.
    Folder,
}

/// How a broker ends, and the next one begins.
#[derive(Clone, Copy, Debug)]
enum Next {
    Stopped,
    Killed,
    Replaced,
}

impl Next {
    fn begin(self, ade: &mut Ade) {
        match self {
            Self::Stopped => {
                ade.expect_code(0, &["stop"]);
                ade.expect_broker_ended(0);
                ade.serve();
            }
            Self::Killed => {
                ade.kill_broker();
                ade.serve();
            }
            Self::Replaced => {
                ade.replace();
            }
        }
    }
}

#[test]
fn a_message_that_was_refused_is_not_run_by_the_next_broker() {
    for obstacle in [Obstacle::NoFolder, Obstacle::Folder] {
        for next in [Next::Stopped, Next::Killed, Next::Replaced] {
            refused_once_and_for_all(obstacle, next);
        }
    }
}

#[track_caller]
fn refused_once_and_for_all(obstacle: Obstacle, next: Next) {
    let case = format!("{obstacle:?}, {next:?}");
    let (mut ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    ade.turn(&chat, "before");
    let path = ade.transcript_path(&chat);
    match obstacle {
        Obstacle::NoFolder => {
            fs::remove_dir_all(ade.home().join("transcripts")).expect("removed");
        }
        Obstacle::Folder => {
            fs::remove_file(&path).expect("removed");
            fs::create_dir(&path).expect("a folder");
        }
    }
    let pay = json!({"sessionId": chat, "prompt": "PAY"});
    let refused = rpc.try_call("chat.send", pay).expect_err("it is refused");
    assert_eq!(refused.kind, "transcript", "{case}");
    drop(rpc);
    if path.is_dir() {
        fs::remove_dir(&path).expect("removed");
    }
    next.begin(&mut ade);

    let events = ade.turn(&chat, "and now?");
    assert_eq!(text_of(&events), "You said: and now?", "{case}: {events:?}");
    let said = fs::read_to_string(ade.session_file(&chat)).expect("a session file");
    assert!(said.contains("and now?"), "{case}: {said}");
    assert!(!said.contains("PAY"), "{case}: it was run: {said}");
    let lines = ade.checked_transcript(&chat);
    let paid = lines.iter().find(|line| line["event"]["text"] == "PAY");
    // The broker that refused it takes it back; one that dies before that leaves it
    // to the next one, which says that it failed.
    if let Some(turn) = paid.and_then(|line| line["turnId"].as_str()) {
        let events = of_turn(&lines, turn);
        assert_eq!(ended(&events), "failed", "{case}: {events:?}");
        let message = of_type(&events, "error")[0]["message"].to_string();
        assert!(message.contains("transcript"), "{case}: {message}");
    }
}
