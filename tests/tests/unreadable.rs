//! A transcript that cannot be read for a while, or not at all: whoever
//! subscribes waits a little and goes on, or is told why there is nothing more.

use std::fs;
use std::time::Duration;

use ade_tests::ade::{Ade, started};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::wait::wait_true;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

/// A chat with one turn that has ended.
fn chat(ade: &Ade, rpc: &mut Rpc) -> (String, String) {
    let chat = ade.scripted_chat(rpc, 60_000);
    let (turn, _) = ade.send(rpc, &chat, "hello");
    let _ = ade.wait_done(&chat, &turn);
    (chat, turn)
}

fn wait_noticed(ade: &Ade) {
    let log = ade.home().join("logs/ade-serve.log");
    wait_true("a failed read is in the log", || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        text.contains("a transcript could not be read")
    });
}

#[test]
fn a_subscriber_goes_on_when_files_can_be_opened_again() {
    let (ade, mut rpc) = started("");
    let (chat, turn) = chat(&ade, &mut rpc);
    let broker = Pid::from_raw(ade.broker_pid());
    let none = Rlimit {
        current: Some(0),
        // Inherited from here.
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let before = prlimit(broker, Resource::Nofile, none).expect("no file more");
    rpc.subscribe(&chat, 0);
    wait_noticed(&ade);
    prlimit(broker, Resource::Nofile, before).expect("as before");
    let events = rpc.until_done(&turn);
    assert_eq!(text_of(&events), "You said: hello");
    assert_eq!(events, ade.transcript(&chat));
    // Its feed is live again.
    let (turn, _) = ade.send(&mut rpc, &chat, "and again");
    assert_eq!(text_of(&rpc.until_done(&turn)), "You said: and again");
}

#[test]
fn a_subscriber_of_what_stays_unreadable_is_told_why() {
    let (ade, mut rpc) = started("");
    let (chat, _) = chat(&ade, &mut rpc);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    let file = ade.transcript_path(&chat);
    fs::remove_file(&file).expect("removed");
    fs::create_dir(&file).expect("a folder in its place");
    rpc.subscribe(&chat, 0);
    let line = rpc.line(Duration::from_secs(30)).expect("an error");
    assert!(line["id"].is_null(), "{line}");
    let message = line["error"]["message"].as_str().expect("a sentence");
    assert!(message.contains("could not read the transcript"), "{line}");
    assert_eq!(line["error"]["data"]["kind"], "transcript", "{line}");
    assert!(rpc.line(Duration::from_secs(30)).is_none(), "it is closed");
    // A command says so too and ends.
    let (_, said) = ade.expect_code(1, &["chat", "show", "--follow", &chat]);
    assert!(said.contains("could not read the transcript"), "{said}");
}
