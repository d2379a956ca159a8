//! Installations of Pi and of Node, and extensions, that cannot be used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use ade_tests::ade::Ade;
use ade_tests::pi::{PiAde, bash, error_of, status_of};
use ade_tests::rpc::text_of;
use ade_tests::turns::of_type;
use ade_tests::wait::wait_within;
use serde_json::json;

use crate::{HELLO, path};

/// A package root that holds only a manifest.
fn package(ade: &Ade, name: &str, version: &str) -> PathBuf {
    let root = ade.root().join(format!("package-{version}"));
    fs::create_dir_all(&root).unwrap();
    let manifest = json!({"name": name, "version": version, "exports": {".": "./index.js"}});
    fs::write(root.join("package.json"), manifest.to_string()).unwrap();
    fs::write(root.join("index.js"), "").unwrap();
    root
}

/// A program that says a version of Node.
fn node(ade: &Ade, says: &str) -> PathBuf {
    let file = ade.root().join("node");
    fs::write(&file, format!("#!/bin/sh\necho {says}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}

#[track_caller]
fn is_blocked(ade: &Ade, words: &[&str]) {
    let lane = ade.lane("lane").display().to_string();
    let (stdout, stderr) =
        ade.expect_code(6, &["run", "--provider", "pi", "--lane", &lane, "hello"]);
    assert_eq!(stdout, "");
    let listed = ade.json(&["providers"]);
    let pi = listed["providers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["provider"] == "pi");
    let pi = pi.unwrap_or_else(|| panic!("pi is not listed: {listed}"));
    assert_eq!(pi["usable"], false);
    let blocker = pi["blocker"].as_str().unwrap();
    for word in words {
        assert!(stderr.contains(word), "no {word:?} in {stderr}");
        assert!(
            blocker.contains(word),
            "no {word:?} in the blocker: {blocker}"
        );
    }
    let sessions = ade.rpc().call("sessions.list", json!({}));
    let workers = sessions["sessions"].as_array().unwrap();
    assert!(
        workers.iter().all(|one| one["workerPid"].is_null()),
        "{sessions}"
    );
}

#[test]
fn a_missing_or_old_pi_is_named_with_the_remedy() {
    let install = "@earendil-works/pi-coding-agent";
    let pi = ade_tests::agents::pi();
    let usable_node = path(&pi.node);

    let ade = Ade::new();
    let nowhere = path(&ade.root().join("nowhere"));
    let ade = ade
        .with_env("ADE_NODE", &usable_node)
        .with_env("ADE_PI_PACKAGE_ROOT", &nowhere);
    is_blocked(
        &ade,
        &[&nowhere, "package.json", "correct ADE_PI_PACKAGE_ROOT"],
    );

    for (name, version) in [
        ("@earendil-works/pi-coding-agent", "0.74.2"),
        ("@mariozechner/pi-coding-agent", "0.73.1"),
    ] {
        let ade = Ade::new();
        let root = path(&package(&ade, name, version));
        let ade = ade
            .with_env("ADE_NODE", &usable_node)
            .with_env("ADE_PI_PACKAGE_ROOT", &root);
        is_blocked(&ade, &[version, &root, install]);
    }
}

#[test]
fn a_missing_or_old_node_is_named_with_the_remedy() {
    let root = path(&ade_tests::agents::pi().package_root);

    let ade = Ade::new();
    let old = path(&node(&ade, "v20.20.2"));
    let ade = ade
        .with_env("ADE_NODE", &old)
        .with_env("ADE_PI_PACKAGE_ROOT", &root);
    is_blocked(&ade, &["20.20.2", &old, "22.19", "install Node"]);

    let ade = Ade::new();
    let none = path(&ade.root().join("no-node"));
    let ade = ade
        .with_env("ADE_NODE", &none)
        .with_env("ADE_PI_PACKAGE_ROOT", &root);
    is_blocked(&ade, &[&none, "correct ADE_NODE"]);

    let ade = Ade::new();
    let other = path(&node(&ade, "hello"));
    let ade = ade
        .with_env("ADE_NODE", &other)
        .with_env("ADE_PI_PACKAGE_ROOT", &root);
    is_blocked(&ade, &[&other, "version", "correct ADE_NODE"]);
}

#[test]
fn a_provider_that_became_unusable_fails_the_turn_and_can_be_mended() {
    let mut pi = PiAde::without_broker(&[]);
    let root = pi.ade.root().join("pi");
    std::os::unix::fs::symlink(&ade_tests::agents::pi().package_root, &root).unwrap();
    pi.ade = pi.ade.with_env("ADE_PI_PACKAGE_ROOT", &path(&root));
    pi.ade.serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    fs::remove_file(&root).unwrap();
    let error = error_of(&pi.ade.turn(&chat, "hello"));
    assert!(
        error["detail"]
            .as_str()
            .unwrap()
            .contains("kind: provider_not_usable"),
        "{error}"
    );
    assert!(
        error["message"].as_str().unwrap().contains(&path(&root)),
        "{error}"
    );
    std::os::unix::fs::symlink(&ade_tests::agents::pi().package_root, &root).unwrap();
    let events = wait_within("the mended Pi is found", Duration::from_secs(10), || {
        let events = pi.ade.turn(&chat, "hello");
        (status_of(&events) == "completed").then_some(events)
    });
    assert_eq!(text_of(&events), HELLO);
}

#[test]
fn extensions_that_fail_are_told_and_cost_no_more() {
    let pi = PiAde::serve();
    let extensions = pi.ade.agent_dir().join("extensions");
    fs::create_dir(&extensions).unwrap();
    let file = extensions.join("broken.ts");
    fs::write(&file, "throw new Error(\"boom at load\");").unwrap();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let (mut rpc, turn) = pi.send(&chat, "hello");
    let events = rpc.until_done(&turn);
    assert_eq!(text_of(&events), HELLO);
    let notices = of_type(&events, "notice");
    assert_eq!(notices.len(), 1, "{events:#?}");
    let notice = notices[0]["message"].as_str().unwrap();
    assert!(
        notice.contains("boom at load") && notice.contains("broken.ts"),
        "{notice}"
    );
    pi.stop(&chat);

    let exits = r#"export default (pi) => pi.on("tool_call", () => {
        console.error("my last words"); process.exit(3);
    });"#;
    fs::write(&file, exits).unwrap();
    let events = pi.ade.turn(&chat, &bash("true"));
    assert_eq!(status_of(&events), "failed");
    let error = error_of(&events);
    assert_eq!(error["category"], "exited");
    assert!(
        error["message"].as_str().unwrap().contains("exit code 3"),
        "{error}"
    );
    assert!(
        error["detail"].as_str().unwrap().contains("my last words"),
        "{error}"
    );
    fs::remove_file(&file).unwrap();
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);
}
