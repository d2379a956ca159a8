//! Chats that are known and can't be brought up: listed, named, deletable, and back
//! when what was wrong is mended.

use std::fs;
use std::path::{Path, PathBuf};

use ade_tests::ade::{Ade, started};
use ade_tests::rpc::text_of;
use serde_json::{Value, json};

fn listed(ade: &Ade, chat: &str) -> Value {
    let list = ade.rpc().call("sessions.list", json!({}));
    let sessions = list["sessions"].as_array().expect("a list").clone();
    let found = sessions.into_iter().find(|info| info["sessionId"] == chat);
    found.expect("it is listed")
}

fn aside(transcript: &Path) -> PathBuf {
    transcript.with_extension("aside")
}

fn a_folder(transcript: &Path) {
    fs::rename(transcript, aside(transcript)).expect("moved");
    fs::create_dir(transcript).expect("a folder");
}

fn a_pipe(transcript: &Path) {
    fs::rename(transcript, aside(transcript)).expect("moved");
    nix::unistd::mkfifo(transcript, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
}

fn a_link_to_nowhere(transcript: &Path) {
    fs::rename(transcript, aside(transcript)).expect("moved");
    let nowhere = transcript.with_extension("nowhere");
    std::os::unix::fs::symlink(nowhere, transcript).expect("a link");
}

#[test]
fn a_chat_whose_transcript_cannot_be_opened_is_listed_and_comes_back() {
    type Change = fn(&Path);
    let table: [(Change, Change); 3] = [
        (a_folder, |path| fs::remove_dir(path).expect("removed")),
        (a_pipe, |path| fs::remove_file(path).expect("removed")),
        (a_link_to_nowhere, |path| {
            fs::remove_file(path).expect("removed");
        }),
    ];
    for (spoil, clear) in table {
        let (mut ade, mut rpc) = started("");
        let chat = ade.scripted_chat(&mut rpc, 60_000);
        ade.turn(&chat, "before");
        drop(rpc);
        assert_eq!(ade.stop_broker(), Some(0));
        let transcript = ade.transcript_path(&chat);
        spoil(&transcript);
        let named = transcript.display().to_string();
        let (said, _) = ade.expect_code(1, &["doctor"]);
        assert!(
            said.contains("HAND  chats") && said.contains(&named),
            "{said}"
        );

        ade.serve();
        let info = listed(&ade, &chat);
        assert_eq!(info["state"], "unusable");
        let why = info["lastError"].as_str().expect("a reason");
        assert!(why.contains(&named), "{why}");
        for command in [
            vec!["chat", "show", chat.as_str()],
            vec!["chat", "send", chat.as_str(), "hello"],
        ] {
            let (_, said) = ade.expect_code(1, &command);
            assert!(said.contains(&named) && said.contains("hint: "), "{said}");
        }
        let (said, _) = ade.expect_code(0, &["ps"]);
        assert!(said.contains("unusable") && said.contains(&named), "{said}");
        let (said, _) = ade.expect_code(1, &["doctor"]);
        assert!(
            said.contains("HAND  chats") && said.contains(&named),
            "{said}"
        );

        clear(&transcript);
        fs::rename(aside(&transcript), &transcript).expect("moved back");
        assert_eq!(listed(&ade, &chat)["state"], "idle");
        let events = ade.turn(&chat, "!recall");
        assert!(text_of(&events).contains("before"), "{events:?}");
        let _ = ade.checked_transcript(&chat);
    }
}

#[test]
fn a_chat_that_cannot_be_used_can_be_deleted() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&chat, "before");
    drop(rpc);
    assert_eq!(ade.stop_broker(), Some(0));
    a_folder(&ade.transcript_path(&chat));
    ade.serve();
    ade.expect_code(0, &["chat", "delete", &chat]);
    let (_, said) = ade.expect_code(2, &["chat", "show", &chat]);
    assert!(said.contains("no chat"), "{said}");
    ade.kill_broker();
    ade.serve();
    let list = ade.rpc().call("sessions.list", json!({}));
    assert_eq!(list["sessions"], json!([]));
}

#[test]
fn a_running_turn_of_a_chat_that_cannot_be_used_has_its_end_when_it_can() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 100000 20");
    ade.wait_state(&chat, "streaming");
    drop(rpc);
    ade.kill_broker();
    let transcript = ade.transcript_path(&chat);
    a_folder(&transcript);
    ade.serve();
    assert_eq!(listed(&ade, &chat)["state"], "unusable");
    fs::remove_dir(&transcript).expect("removed");
    fs::rename(aside(&transcript), &transcript).expect("moved back");
    assert_ne!(listed(&ade, &chat)["state"], "unusable");
    let mut rpc = ade.rpc();
    rpc.call("chat.stop", json!({"sessionId": chat}));
    let lines = ade.wait_done(&chat, &turn);
    assert!(!lines.is_empty());
    let events = ade.turn(&chat, "and now?");
    assert_eq!(text_of(&events), "You said: and now?");
    let _ = ade.checked_transcript(&chat);
}
