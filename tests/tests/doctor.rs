//! What keeps a broker from starting, or from answering: `ade doctor` and the
//! commands that need one name the same thing with the same remedy.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, report, signal, started};
use ade_tests::commands::within;
use ade_tests::rpc::Rpc;
use ade_tests::turns::ended;
use ade_tests::wait::{wait_true, wait_until};
use serde_json::{Value, json};

/// What `ade doctor --json` found that somebody has to do something about.
fn in_the_way(document: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(document).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let hands: Vec<Value> = findings
        .iter()
        .filter(|finding| finding["grade"] == "needs_a_hand")
        .cloned()
        .collect();
    assert_eq!(document["ok"], hands.is_empty(), "{document}");
    hands
}

/// Asserts that doctor and a command that needs a broker both say `words`, and
/// that doctor changed nothing.
#[track_caller]
fn both_say(ade: &Ade, area: &str, words: &[&str]) {
    let before = listing(&ade.home());
    let (stdout, _) = ade.expect_code(1, &["--json", "doctor"]);
    let hands = in_the_way(&stdout);
    assert_eq!(hands.len(), 1, "{hands:?}");
    assert_eq!(hands[0]["area"], area, "{hands:?}");
    let said = format!("{} {}", hands[0]["text"], hands[0]["remedy"]);
    assert_eq!(listing(&ade.home()), before);

    let ps = ade.run(&["ps"]);
    let stderr = String::from_utf8_lossy(&ps.stderr).into_owned();
    assert!(!ps.status.success());
    assert!(stderr.contains("hint: "), "{stderr}");
    for word in words {
        assert!(said.contains(word), "doctor does not say {word:?}: {said}");
        assert!(stderr.contains(word), "ps does not say {word:?}: {stderr}");
    }
}

/// All paths below a folder with their sizes.
fn listing(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            }
            found.push((entry.path(), metadata.len()));
        }
    }
    found.sort();
    found
}

/// An ade whose home is as a broker leaves it.
fn used() -> Ade {
    let ade = Ade::new();
    ade.expect_code(0, &["ps"]);
    let database = ade.home().join("state.db");
    wait_until("the log is merged into the database", || {
        let length = fs::metadata(&database).ok()?.len();
        (length > 8192).then_some(())
    });
    ade.expect_code(0, &["stop"]);
    wait_closed(&ade);
    let (stdout, _) = ade.expect_code(0, &["--json", "doctor"]);
    assert_eq!(in_the_way(&stdout), Vec::<Value>::new());
    ade
}

/// Waits until the database is closed: it has no log then.
#[track_caller]
fn wait_closed(ade: &Ade) {
    wait_true("the database is closed", || {
        !["db-wal", "db-shm"]
            .iter()
            .any(|log| ade.home().join("state").with_extension(log).exists())
    });
}

#[test]
fn a_database_that_cannot_be_used_is_named() {
    let ade = used();
    let database = ade.home().join("state.db");
    // Where the log was not merged, what it holds counts and not the file.
    for more in ["-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{more}", database.display()));
    }
    let good = fs::read(&database).unwrap();
    let path = database.display().to_string();

    fs::write(&database, [b'x'; 8192]).unwrap();
    both_say(&ade, "state", &["damaged", "state.db", "move"]);

    // Its head is whole and a page behind it is not.
    let mut torn = good.clone();
    torn[4096..8192].fill(0xff);
    fs::write(&database, torn).unwrap();
    let (stdout, _) = ade.expect_code(1, &["--json", "doctor"]);
    assert_eq!(in_the_way(&stdout)[0]["area"], "state", "{stdout}");

    fs::remove_file(&database).unwrap();
    fs::create_dir(&database).unwrap();
    both_say(&ade, "state", &[&path, "folder", "move"]);

    fs::remove_dir(&database).unwrap();
    symlink(ade.root().join("no/where"), &database).unwrap();
    both_say(&ade, "state", &[&path, "link to nowhere", "remove it"]);

    fs::remove_file(&database).unwrap();
    fs::write(&database, good).unwrap();
    ade.expect_code(0, &["doctor"]);
}

#[test]
fn a_database_with_a_log_is_looked_at_with_it() {
    let mut ade = Ade::new();
    ade.serve();
    ade.chat(&mut ade.rpc(), "scripted", &ade.lane("lane"), json!({}));
    ade.kill_broker();
    assert!(fs::metadata(ade.home().join("state.db-wal")).unwrap().len() > 0);
    ade.expect_code(0, &["doctor"]);
    assert_eq!(ade.json(&["ps"])["sessions"].as_array().unwrap().len(), 1);
}

#[test]
fn what_stands_in_the_place_of_a_file_or_a_folder_is_named() {
    let ade = used();
    for (name, area, folder) in [
        ("sock/ade.sock", "socket", false),
        ("run/workers.sock", "socket", false),
        ("run/broker.lock", "lock", true),
        ("logs", "home", false),
    ] {
        let path = ade.home().join(name);
        let aside = ade.root().join("aside");
        let was = fs::rename(&path, &aside).is_ok();
        if folder {
            fs::create_dir(&path).unwrap();
        } else {
            fs::write(&path, "").unwrap();
        }
        both_say(&ade, area, &[&path.display().to_string(), "move"]);
        // A broker that does not start closes it too.
        wait_closed(&ade);
        if folder {
            fs::remove_dir(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        if was {
            fs::rename(&aside, &path).unwrap();
        }
    }
    ade.expect_code(0, &["doctor"]);
}

#[test]
fn a_home_behind_a_link_to_nowhere_is_named() {
    let ade = Ade::new();
    let link = ade.root().join("link");
    symlink(ade.root().join("no/where"), &link).unwrap();
    for home in [link.clone(), link.join("home")] {
        for (code, command) in [(1, "doctor"), (1, "ps"), (1, "serve")] {
            let output = ade
                .command(&[command])
                .env("ADE_HOME", &home)
                .output()
                .unwrap();
            let said = said(&output);
            assert_eq!(output.status.code(), Some(code), "{command}: {said}");
            let words = format!("{} is a link to nowhere", link.display());
            assert!(said.contains(&words), "{command}: {said}");
            assert!(said.contains("remove it"), "{command}: {said}");
        }
    }
    assert!(!ade.root().join("no").exists());
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// A small file system at `home` for one command, in a mount namespace of its
/// own. `prepare` is run in it first, in a shell.
fn on_a_small_disk(ade: &Ade, prepare: &str, args: &[&str]) -> Output {
    let script = format!(
        "mount -t tmpfs -o size=256k,mode=0700 tmpfs \"$ADE_HOME\" && {{ {prepare}\n}} && exec \"$@\""
    );
    let inner = ade.command(args);
    let mut outer = Command::new("unshare");
    outer.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
        "sh",
    ]);
    within(outer, &inner).output().expect("unshare")
}

#[test]
fn a_full_or_read_only_disk_is_named_with_what_to_do() {
    if !nix::unistd::geteuid().is_root() {
        report("SKIPPED: this test needs root, to mount a small disk");
        return;
    }
    let ade = Ade::new();
    let home = ade.home().display().to_string();
    let full = "head -c 1M /dev/zero > \"$ADE_HOME/filler\" 2>/dev/null || true";
    let locked = "mount -o remount,ro \"$ADE_HOME\"";
    for (prepare, why, remedy) in [
        (full, "No space left on device", "make room"),
        (locked, "Read-only file system", "mount it writable"),
    ] {
        for command in ["doctor", "ps", "serve"] {
            let output = on_a_small_disk(&ade, prepare, &[command]);
            let said = said(&output);
            assert!(!output.status.success(), "{command}: {said}");
            for word in [why, remedy, home.as_str()] {
                assert!(said.contains(word), "{command} says no {word:?}: {said}");
            }
            for wrong in ["said nothing", "with locks"] {
                assert!(!said.contains(wrong), "{command}: {said}");
            }
        }
    }
}

#[test]
fn a_home_that_nothing_can_be_written_to_is_named() {
    if nix::unistd::geteuid().is_root() {
        report("SKIPPED: root may write anywhere");
        return;
    }
    let ade = used();
    let run = ade.home().join("run");
    fs::set_permissions(&run, fs::Permissions::from_mode(0o500)).unwrap();
    let (stdout, _) = ade.expect_code(1, &["--json", "doctor"]);
    let hands = in_the_way(&stdout);
    assert!(
        hands[0]["text"].as_str().unwrap().contains("run"),
        "{hands:?}"
    );
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_stopped_broker_is_named_with_the_signals_that_help() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.turn(&chat, "hello");
    drop(rpc);
    let pid = ade.broker_pid();
    signal(pid, Signal::SIGSTOP);
    let goes_on = format!("kill -CONT {pid}");
    let ends = format!("kill -9 {pid}");
    for (code, args) in [
        (8, &["ps"][..]),
        (8, &["stop"]),
        (8, &["status"]),
        (1, &["doctor"]),
        (3, &["serve"]),
        (8, &["serve", "--replace"]),
    ] {
        let output = ade.run(args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains("is stopped"), "{args:?}: {said}");
        assert!(said.contains(&goes_on), "{args:?}: {said}");
        assert!(said.contains(&ends), "{args:?}: {said}");
        assert!(!said.contains("of an earlier broker"), "{args:?}: {said}");
    }
    signal(pid, Signal::SIGCONT);
    assert_eq!(ended(&ade.turn(&chat, "again")), "completed");

    // What was said is true: killed while it is stopped, its turn is taken over.
    let mut rpc = ade.rpc();
    let (turn, after) = ade.send(&mut rpc, &chat, "!words 100 20");
    signal(pid, Signal::SIGSTOP);
    assert!(is_alive(pid));
    ade.kill_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    rpc.subscribe(&chat, after);
    assert_eq!(ended(&rpc.until_done(&turn)), "completed");
}

/// As many connections as the broker serves.
const CONNECTIONS: usize = 512;

#[test]
fn one_client_too_many_is_told_so() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.turn(&chat, "hello");
    drop(rpc);
    let full = || {
        let clients: Vec<Rpc> = (0..CONNECTIONS)
            .map(|_| Rpc::connect_raw(&ade.socket()))
            .collect();
        // The last one is served only once the broker has taken all of them.
        let mut last = Rpc::connect_raw(&ade.socket());
        last.write(b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"ade/ping\"}\n");
        let answer = last.line(ade_tests::wait::PATIENCE).expect("an answer");
        (clients, answer)
    };
    let (clients, answer) = wait_until("one is too many", || {
        let (clients, answer) = full();
        (answer["error"] != Value::Null).then_some((clients, answer))
    });
    assert_eq!(answer["id"], "x");
    assert_eq!(answer["error"]["data"]["kind"], "too_many_clients");
    let words = answer["error"]["message"].as_str().unwrap();
    assert!(words.contains("512"), "{words}");
    // One that says nothing is told too, and let go.
    let mut silent = Rpc::connect_raw(&ade.socket());
    let line = silent.line(ade_tests::wait::PATIENCE).expect("a word");
    assert_eq!(line["id"], Value::Null);
    assert_eq!(line["error"]["data"]["kind"], "too_many_clients");

    let (_, stderr) = ade.expect_code(1, &["run", "--provider", "scripted", "hello"]);
    assert!(stderr.contains("512 clients"), "{stderr}");
    assert!(stderr.contains("hint: "), "{stderr}");
    // It can be looked at all the same, and a chat be stopped.
    for args in [&["ps"][..], &["status"], &["chat", "stop", &chat]] {
        ade.expect_code(0, args);
    }
    let (stdout, _) = ade.expect_code(1, &["doctor"]);
    assert!(stdout.contains("512 clients"), "{stdout}");
    assert!(!stdout.contains("of an earlier broker"), "{stdout}");
    drop(clients);
    wait_until("there is a place again", || {
        ade.run(&["status"]).status.success().then_some(())
    });

    // It can be stopped all the same.
    let (clients, _) = full();
    ade.expect_code(0, &["stop"]);
    ade.expect_broker_ended(0);
    drop(clients);
}

#[test]
fn settings_of_agents_that_cannot_run_here_are_left_out() {
    let config = "[providers.codex]\nfirst_event_ms = 120000\n";
    let ade = Ade::new().with_config(config);
    for running in [false, true] {
        // The folder is not private before the first broker.
        let stdout = ade.run(&["--json", "doctor"]).stdout;
        let document: Value = serde_json::from_slice(&stdout).unwrap();
        let config = document["config"].as_array().unwrap();
        let names: Vec<&str> = config
            .iter()
            .map(|setting| setting["name"].as_str().unwrap())
            .collect();
        assert!(names.contains(&"providers.scripted.first_event_ms"));
        assert!(names.contains(&"providers.pi.first_event_ms"));
        assert!(
            !names.iter().any(|name| name.contains("codex")),
            "{names:?}"
        );
        assert!(
            !names.iter().any(|name| name.contains("cursor")),
            "{names:?}"
        );
        let findings = document["findings"].to_string();
        assert!(
            findings.contains("providers.codex.first_event_ms"),
            "{findings}"
        );
        if !running {
            ade.expect_code(0, &["ps"]);
        }
    }
}
