//! What needs no broker, and what is said when none can be had.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::support::{Place, bare, ran};

/// The last line of a JSON error document, as a value.
fn error_of(out: &str) -> serde_json::Value {
    let last = out.lines().last().expect("a line");
    serde_json::from_str::<serde_json::Value>(last).expect("a document")["error"].clone()
}

#[test]
fn wrong_words_are_usage_errors_and_nothing_is_made() {
    let place = Place::new();
    let table: &[&[&str]] = &[
        &["no-such-command"],
        &["run"],
        &["run", "--permission", "everything", "hello"],
        &["run", ""],
        &["chat", "send", "ses_1", "hello", "--yes"],
        &["chat", "show", "ses_1", "--limit", "0"],
        &["run", "--lane", "/no/such/directory", "hello"],
        &["chat", "create", "--lane", "/dev/null"],
        &["man", "no-such-command"],
        &["completions", "cobol"],
        &["answer", "1"],
    ];
    for arguments in table {
        let human = place.run(arguments);
        assert_eq!(human.code, Some(2), "{arguments:?}: {human:?}");
        assert!(human.err.starts_with("error: "), "{arguments:?}: {human:?}");
        assert_eq!(human.out, "", "{arguments:?}");
        let mut with_json = vec!["--json"];
        with_json.extend_from_slice(arguments);
        let json = place.run(&with_json);
        assert_eq!(
            (json.code, json.err.as_str()),
            (Some(2), ""),
            "{arguments:?}"
        );
        let error = error_of(&json.out);
        assert!(
            error["kind"].is_string() && error["message"].is_string(),
            "{error}"
        );
        assert!(error["hints"].is_array(), "{error}");
    }
    assert!(!place.home().exists());
}

#[test]
fn a_home_that_cannot_be_is_named_with_the_remedy() {
    let mut relative = bare(&["ps"]);
    relative.env("ADE_HOME", "some/where");
    let relative = ran(relative);
    assert_eq!(relative.code, Some(2));
    assert!(
        relative.err.contains("`some/where`") && relative.err.contains("hint:"),
        "{}",
        relative.err
    );

    let mut nowhere = bare(&["ps"]);
    nowhere.env_remove("HOME");
    let nowhere = ran(nowhere);
    assert_eq!(nowhere.code, Some(2));
    assert!(nowhere.err.contains("ADE_HOME"), "{}", nowhere.err);

    let place = Place::new();
    let mut file = bare(&["ps"]);
    fs::write(place.path().join("file"), b"").expect("a file");
    file.env("ADE_HOME", place.path().join("file"));
    let file = ran(file);
    assert_eq!(file.code, Some(1), "{file:?}");
    assert!(file.err.contains("is not a folder"), "{}", file.err);
}

#[test]
fn h01_a_socket_path_that_is_too_long_names_length_and_limit() {
    let place = Place::new();
    let deep = place.path().join("x".repeat(120));
    for command in ["ps", "status", "stop", "serve", "doctor"] {
        let mut long = bare(&[command]);
        long.env("ADE_HOME", &deep);
        let long = ran(long);
        let said = format!("{}{}", long.out, long.err);
        let expected = if command == "doctor" { 1 } else { 2 };
        assert_eq!(long.code, Some(expected), "{command}: {said}");
        assert!(
            said.contains("bytes long") && said.contains("shorter path"),
            "{command}: {said}"
        );
    }
    assert!(!deep.exists());
}

/// Runs as another user where we are root, with a folder without rights
/// elsewhere.
#[test]
fn a_home_without_rights_is_named_with_the_remedy() {
    let place = Place::new();
    let locked = place.path().join("locked");
    fs::create_dir(&locked).expect("a folder");
    let mut command = if nix::unistd::geteuid().is_root() {
        // A copy that user `nobody` can reach.
        let copy = place.path().join("ade");
        fs::copy(env!("CARGO_BIN_EXE_ade"), &copy).expect("a copy");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("rights");
        let mut command = Command::new(copy);
        command.arg("ps").uid(65534).gid(65534).stdin(Stdio::null());
        command
    } else {
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).expect("rights");
        bare(&["ps"])
    };
    command
        .env("ADE_HOME", locked.join("home"))
        .env_remove("ADE_RPC_SOCKET_PATH");
    let denied = ran(command);
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o700)).expect("rights");
    assert_eq!(denied.code, Some(1), "{denied:?}");
    assert!(
        denied.err.contains("locked/home") && denied.err.contains("hint:"),
        "{}",
        denied.err
    );
    assert!(denied.err.contains("ermission denied"), "{}", denied.err);
}

#[test]
fn status_says_that_no_broker_runs_and_stop_has_nothing_to_do() {
    let place = Place::new();
    let status = place.run(&["status"]);
    assert_eq!((status.code, status.out.as_str()), (Some(5), ""));
    assert!(
        status.err.contains("no broker runs") && status.err.contains("ade serve"),
        "{}",
        status.err
    );
    let json = place.run(&["status", "--json"]);
    assert_eq!((json.code, json.err.as_str()), (Some(5), ""));
    assert_eq!(error_of(&json.out)["kind"], "no_broker");
    let stop = place.run(&["stop"]);
    assert_eq!(stop.code, Some(0), "{stop:?}");
    let stop = place.run(&["stop", "--json"]);
    let stopped: serde_json::Value = serde_json::from_str(&stop.out).expect("a document");
    assert_eq!(stopped["stopped"], false);
    assert!(!place.home().exists(), "looking makes nothing");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    for arguments in [["completions", "bash"], ["man", "run"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = bare(&arguments);
        command.stdout(writer).stderr(Stdio::piped());
        let ended = command
            .spawn()
            .and_then(std::process::Child::wait_with_output)
            .expect("its end");
        assert_eq!(ended.status.code(), Some(141));
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    }
}

#[test]
fn doctor_works_alone_and_asks_for_a_hand_when_one_is_needed() {
    let place = Place::new();
    let fresh = place.run(&["doctor", "--json"]);
    assert_eq!(fresh.code, Some(0), "{fresh:?}");
    let report: serde_json::Value = serde_json::from_str(&fresh.out).expect("a document");
    assert_eq!(report["ok"], true);
    let origins = report["config"].as_array().expect("a list");
    assert!(origins.iter().all(|value| value["origin"].is_string()) && !origins.is_empty());
    assert!(!place.home().exists(), "looking makes nothing");

    fs::create_dir(place.home()).expect("a home");
    fs::set_permissions(place.home(), fs::Permissions::from_mode(0o755)).expect("rights");
    fs::write(place.home().join("config.toml"), "nonsense = [").expect("a file");
    let sick = place.run(&["doctor"]);
    assert_eq!(sick.code, Some(1), "{sick:?}");
    assert!(sick.out.contains("chmod 700"), "{}", sick.out);
    assert!(sick.out.contains("config.toml:1"), "{}", sick.out);
}

#[test]
fn a_lease_tells_who_holds_it_and_how_to_free_it() {
    let place = Place::new();
    let file = place.path().join("session.jsonl");
    let name = file.to_str().expect("a name");
    let free = place.run(&["lease", "status", name]);
    assert_eq!(free.code, Some(0));
    assert!(free.out.starts_with("free"), "{}", free.out);

    let mut holder = place
        .command(&["demo-lease", name, "--hold-ms", "60000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the executable starts");
    let mut said = String::new();
    BufReader::new(holder.stdout.take().expect("a pipe"))
        .read_line(&mut said)
        .expect("a line");
    assert!(said.contains("\"won\":true"), "{said}");

    let held = place.run(&["lease", "status", name]);
    assert_eq!(held.code, Some(0));
    for word in [
        "held",
        &holder.id().to_string(),
        "kernel lock",
        "since",
        "to free it:",
    ] {
        assert!(held.out.contains(word), "{word}: {}", held.out);
    }
    let second = place.run(&["demo-lease", name]);
    let second: serde_json::Value = serde_json::from_str(&second.out).expect("a document");
    assert_eq!(second["won"], false);
    assert_eq!(second["holder"], holder.id());

    holder.kill().expect("a signal");
    holder.wait().expect("its end");
    let dead = place.run(&["lease", "status", name, "--json"]);
    let dead: serde_json::Value = serde_json::from_str(&dead.out).expect("a document");
    assert_eq!(dead["state"], "dead", "{dead}");
    assert!(
        place
            .run(&["demo-lease", name, "--hold-ms", "0"])
            .out
            .contains("\"won\":true")
    );
}
