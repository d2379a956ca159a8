//! What a child is given, and how often one is begun.

use std::collections::BTreeSet;
use std::path::Path;

use ade_tests::ade::started;
use ade_tests::turns::{ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

use super::{Grown, agent, grow};

#[test]
fn j10_an_agent_that_never_starts_is_tried_a_few_times_and_then_left() {
    let config = "[providers.scripted]\nhost = \"/bin/false\"\n";
    let (ade, mut rpc) = started(config);
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let mut turns = Vec::new();
    for _ in 0..5 {
        match rpc.try_call("chat.send", json!({"sessionId": chat, "prompt": "emit x"})) {
            Ok(sent) => turns.push(sent["turnId"].as_str().expect("a turn").to_owned()),
            Err(refused) => assert_eq!(refused.kind, "start_budget"),
        }
    }
    for turn in &turns {
        let events = of_turn(&ade.wait_done(&chat, turn), turn);
        assert_eq!(ended(&events), "failed");
        assert_eq!(of_type(&events, "error").len(), 1, "{events:?}");
    }
    let births = ade.births(&chat);
    assert!((1..=6).contains(&births), "{births} births");
    let lines = ade.checked_transcript(&chat).len();
    assert!(lines < 60, "{lines} events");
    wait_true("only the broker is left", || ade.processes().len() == 1);
    assert_eq!(ade.births(&chat), births, "nothing is tried by itself");
}

/// What the descriptors of a process are, without the standard three.
fn descriptors(pid: i32) -> BTreeSet<String> {
    let folder = format!("/proc/{pid}/fd");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("descriptors").flatten() {
        let number: i32 = entry
            .file_name()
            .to_string_lossy()
            .parse()
            .expect("a number");
        if number > 2
            && let Ok(target) = std::fs::read_link(entry.path())
        {
            let target = target.display().to_string();
            // Without the inode.
            let kind = target.split(":[").next().unwrap_or_default();
            found.insert(kind.to_owned());
        }
    }
    found
}

#[test]
fn every_child_has_only_its_own_descriptors_and_no_token() {
    let (ade, mut rpc) = started(&agent(false, "", ""));
    let mut chats = Vec::new();
    let file = ade.root().join("report");
    for index in 0..3 {
        let chat = ade.chat(
            &mut rpc,
            "scripted",
            &ade.lane(&index.to_string()),
            json!({}),
        );
        let before = format!("report {}\n", file.display());
        chats.push(grow(&ade, &mut rpc, &chat, &before));
    }
    let lease = |grown: &Grown| format!("{}.ade-lease", grown.file.display());
    for grown in &chats {
        let worker = descriptors(grown.worker);
        // The lease names its folder by a descriptor, so that nobody can put
        // another folder in its place.
        let folder = grown.file.parent().expect("a folder").display().to_string();
        let mut allowed = BTreeSet::from([lease(grown), folder]);
        for kind in ["socket", "pipe", "anon_inode", "/dev/null"] {
            allowed.insert(kind.to_owned());
        }
        let strange: Vec<_> = worker
            .difference(&allowed)
            .filter(|target| !target.starts_with("anon_inode:"))
            .collect();
        assert!(strange.is_empty(), "{strange:?}");
        let standard = std::fs::read_link(format!("/proc/{}/fd/0", grown.worker));
        assert_eq!(standard.expect("stdin"), Path::new("/dev/null"));
        for pid in grown.all.iter().filter(|pid| **pid != grown.worker) {
            assert_eq!(descriptors(*pid), BTreeSet::new(), "pid {pid}");
        }
        // The worker's sockets: the link to the broker, and those of its runtime.
        let sockets = std::fs::read_dir(format!("/proc/{}/fd", grown.worker)).expect("descriptors");
        let sockets = sockets
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"));
        let count = sockets.count();
        assert!(count <= 4, "{count} sockets");
    }
    let said: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("a report")).expect("a report");
    let env: Vec<(String, String)> = serde_json::from_value(said["env"].clone()).expect("pairs");
    assert!(
        env.iter().any(|(name, _)| name == "ADE_WORKER_MARK"),
        "{env:?}"
    );
    let journals = std::fs::read_dir(ade.home().join("run/workers")).expect("journals");
    for path in journals.flatten().map(|entry| entry.path()) {
        let Ok(journal) = serde_json::from_slice::<Value>(&std::fs::read(path).expect("a file"))
        else {
            continue;
        };
        let hash = journal["tokenHash"].as_str().expect("a hash");
        assert!(!env.iter().any(|(_, value)| value.contains(hash)));
    }
    assert!(
        !env.iter().any(|(name, _)| name.contains("TOKEN")),
        "{env:?}"
    );
    for grown in &chats {
        rpc.call("chat.stop", json!({"sessionId": grown.chat}));
    }
}
