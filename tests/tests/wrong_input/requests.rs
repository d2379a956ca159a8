//! What is asked of a chat, of an action or of a command.

use std::fs;
use std::path::Path;

use ade_tests::ade::Ade;
use serde_json::{Value, json};

use super::{nothing_runs, refused};

#[test]
fn an_unknown_provider_is_named_with_the_known_ones() {
    let ade = Ade::new();
    let run = ["run", "--provider", "gpt9", "hello"];
    refused(&ade, 6, &run, &["gpt9", "pi", "scripted", "ade providers"]);
    let list = ade.json(&["ps"]);
    assert_eq!(list["sessions"], json!([]), "no chat was made");
}

#[test]
fn a_missing_lane_is_named_and_starts_nothing() {
    let ade = Ade::new();
    let run = [
        "run",
        "--provider",
        "scripted",
        "--lane",
        "no/such",
        "hello",
    ];
    refused(&ade, 2, &run, &["no/such", "--lane"]);
    fs::write(ade.root().join("lanes/file"), "").unwrap();
    let run = ["run", "--provider", "scripted", "--lane", "file", "hello"];
    refused(&ade, 2, &run, &["file", "not a directory"]);
    nothing_runs(&ade);
    // The endpoint checks for itself.
    let arguments = json!({"provider": "scripted", "lane": "/no/such"}).to_string();
    let create = ["actions", "run", "chat.create", &arguments];
    refused(&ade, 2, &create, &["/no/such", "git worktree"]);
    let arguments = json!({"provider": "scripted", "lane": "relative"}).to_string();
    let create = ["actions", "run", "chat.create", &arguments];
    let (_, stderr) = ade.expect_code(2, &create);
    assert!(
        stderr.contains("absolute") && stderr.contains("relative"),
        "{stderr}"
    );
}

#[test]
fn a_missing_model_is_named_with_what_there_is() {
    let ade = Ade::new();
    let run = [
        "run",
        "--provider",
        "scripted",
        "--model",
        "scripted/owl",
        "hello",
    ];
    let (stdout, stderr) = ade.expect_code(6, &run);
    assert_eq!(stdout, "");
    for word in ["scripted/owl", "scripted/parrot"] {
        assert!(stderr.contains(word), "{stderr}");
    }
}

#[test]
fn unknown_and_ambiguous_sessions_are_said_so() {
    let ade = Ade::new();
    refused(
        &ade,
        2,
        &["chat", "show", "ses_nobody"],
        &["ses_nobody", "ade ps"],
    );
    let lane = ade.lane("lane").display().to_string();
    let ids: Vec<String> = (0..2)
        .map(|_| {
            let create = ["chat", "create", "--provider", "scripted", "--lane", &lane];
            let (stdout, _) = ade.expect_code(0, &create);
            stdout.trim().to_owned()
        })
        .collect();
    refused(
        &ade,
        2,
        &["chat", "show", "ses_"],
        &["ses_", &ids[0], &ids[1]],
    );
    refused(&ade, 2, &["chat", "send", "", "hello"], &["ade ps"]);
    // The end of an id is enough where it is unique.
    let end = &ids[1][ids[1].len() - 12..];
    let shown = ade.json(&["chat", "show", end]);
    assert_eq!(shown["session"]["sessionId"], ids[1].as_str());
}

#[test]
fn commands_that_need_a_running_broker_say_that_none_runs() {
    let ade = Ade::new();
    refused(&ade, 5, &["status"], &["no broker", "ade serve"]);
    nothing_runs(&ade);
    // To stop what does not run is done already.
    ade.expect_code(0, &["stop"]);
}

#[test]
fn empty_messages_and_nonsense_arguments_are_usage_errors() {
    let ade = Ade::new();
    for args in [
        &["run", "--provider", "scripted", "  "][..],
        &["run"],
        &["fly"],
        &["run", "--permission", "yolo", "x"],
        &["chat", "show", "x", "--limit", "0"],
        &["actions", "run", "sessions.list", "{"],
        &["completions", "tcsh"],
    ] {
        let (_, stderr) = ade.expect_code(2, args);
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert!(stderr.contains("error"), "{args:?}: {stderr}");
    }
    nothing_runs(&ade);
}

#[test]
fn a_session_file_outside_of_the_store_or_relative_is_refused() {
    let ade = Ade::new();
    let elsewhere = ade.root().join("elsewhere.jsonl");
    fs::write(&elsewhere, "").unwrap();
    let path = elsewhere.display().to_string();
    let run = [
        "run",
        "--provider",
        "scripted",
        "--session-file",
        &path,
        "hello",
    ];
    let (_, stderr) = ade.expect_code(1, &run);
    assert!(stderr.contains(&path), "{stderr}");
    let arguments = json!({"provider": "scripted", "lane": ade.lane("lane"), "sessionFile": "x"});
    let create = ["actions", "run", "chat.create", &arguments.to_string()];
    let (_, stderr) = ade.expect_code(2, &create);
    assert!(stderr.contains("absolute"), "{stderr}");
}

#[test]
fn what_a_chat_is_asked_with_is_looked_at_before_one_is_made() {
    let ade = Ade::new();
    let at = |name: &str| ade.root().join(name).display().to_string();
    let (missing, folder, typo) = (at("none.jsonl"), at("lanes"), at("agent/typo"));
    fs::write(ade.root().join("file"), "").unwrap();
    let file = at("file");
    for (flag, value, words) in [
        ("--model", "nosuch", ["`nosuch`", "provider/id"]),
        ("--model", "a/", ["`a/`", "provider/id"]),
        ("--session-file", &missing, [&missing, "ade store list"]),
        ("--session-file", &folder, [&folder, "not a file"]),
        ("--agent-dir", &typo, [&typo, "is not there"]),
        ("--agent-dir", &file, [&file, "is not a folder"]),
    ] {
        for command in [&["run"][..], &["chat", "create"]] {
            let mut args = command.to_vec();
            args.extend(["--provider", "scripted", flag, value]);
            if command == ["run"] {
                args.push("hello");
            }
            refused(&ade, 2, &args, &words);
        }
    }
    assert!(!Path::new(&typo).exists(), "a misspelt folder is not made");
    assert_eq!(ade.json(&["ps"])["sessions"], json!([]), "no chat was made");

    let (made, _) = ade.expect_code(0, &["chat", "create", "--provider", "scripted"]);
    refused(
        &ade,
        2,
        &["chat", "model", made.trim(), "nosuch"],
        &["`nosuch`", "provider/id"],
    );
}

#[test]
fn the_file_of_a_lease_means_the_session_beside_it() {
    let ade = Ade::new();
    ade.expect_code(0, &["run", "--provider", "scripted", "hello"]);
    let list = ade.json(&["ps"]);
    let file = list["sessions"][0]["sessionFile"].as_str().unwrap();
    let chat = list["sessions"][0]["sessionId"].as_str().unwrap();
    for ending in ["", ".ade-lease", ".ade-owner"] {
        let given = format!("{file}{ending}");
        let told = ade.json(&["lease", "status", &given]);
        assert_eq!(told["state"], "held", "{told}");
        assert_eq!(told["file"], file, "{told}");
        assert_eq!(told["exists"], true, "{told}");
        assert_eq!(told["remedy"], format!("ade chat stop {chat}"), "{told}");
        let owner = ade.json(&["owner", "show", &given]);
        assert_eq!(owner["ownerSessionId"], chat, "{owner}");
        let hold = ["lease", "hold", &given, "--", "true"];
        let (_, stderr) = ade.expect_code(4, &hold);
        assert!(stderr.contains(chat), "{stderr}");
    }
    let folder = ade.root().display().to_string();
    let nowhere = ade.root().join("no/where.jsonl").display().to_string();
    for (path, words) in [(&folder, "is a folder"), (&nowhere, "is not there")] {
        for command in [
            &["lease", "status"][..],
            &["lease", "break"],
            &["lease", "hold"],
            &["owner", "show"],
        ] {
            let mut args = command.to_vec();
            args.push(path);
            refused(&ade, 2, &args, &[words]);
        }
    }
    // In a folder that is there, a session may yet begin.
    let new = ade.root().join("new.jsonl").display().to_string();
    let (stdout, _) = ade.expect_code(0, &["lease", "status", &new]);
    assert!(
        stdout.contains("free") && stdout.contains("no such file yet"),
        "{stdout}"
    );
}

#[test]
fn arguments_of_an_action_are_one_object() {
    let ade = Ade::new();
    for arguments in ["[]", "\"x\"", "7", "true"] {
        let run = ["actions", "run", "chat.show", arguments];
        refused(&ade, 2, &run, &["one JSON object", "ade actions list"]);
    }
}

#[test]
fn a_held_command_that_cannot_be_run_is_told_as_it_was_asked() {
    let ade = Ade::new();
    let file = ade.root().join("x.jsonl").display().to_string();
    let hold = ["lease", "hold", &file, "--", "/no/such/program"];
    let (stdout, stderr) = ade.expect_code(127, &hold);
    assert_eq!(stdout, "");
    assert!(
        stderr.contains("/no/such/program could not be run"),
        "{stderr}"
    );
    let mut all = vec!["--json"];
    all.extend(hold);
    let (stdout, stderr) = ade.expect_code(127, &all);
    assert_eq!(stderr, "");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["error"]["kind"], "not_runnable", "{document}");
    // The output of one that runs is its own.
    let hold = ["--json", "lease", "hold", &file, "--", "echo", "hello"];
    let (stdout, _) = ade.expect_code(0, &hold);
    assert_eq!(stdout, "hello\n");
}
