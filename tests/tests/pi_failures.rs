//! What goes wrong with the real Pi, and what the user gets to see of it:
//! models that fail or fall silent, processes that die, and a Pi that cannot be
//! used at all.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use ade_leases::lease;
use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, signal};
use ade_tests::pi::{
    PiAde, answer, bash, error_of, next, next_card, of_type, one_branch, status_of,
};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::wait::wait_within;
use serde_json::{Value, json};

const HELLO: &str = "Hello from the fake model.";

/// After that long nothing of a session may be alive.
const DEAD_WITHIN: Duration = Duration::from_secs(5);

// ---- a model that does not answer

#[test]
fn f01_a_silent_agent_is_asked_twice_and_no_third_time() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane").display().to_string();
    let run = [
        "run",
        "--provider",
        "pi",
        "--lane",
        &lane,
        "--model",
        "fake/fake-wedge",
        "--first-event-ms",
        "2500",
        "Are you there?",
    ];
    let (stdout, stderr) = pi.ade.expect_code(8, &run);
    assert_eq!(stdout, "");
    assert_eq!(
        stderr.matches("started a fresh worker").count(),
        1,
        "{stderr}"
    );
    assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    assert_eq!(
        pi.contexts(),
        vec![vec!["Are you there?"]; 2],
        "once in each context"
    );

    let sessions = pi.ade.rpc().call("sessions.list", json!({}));
    let chat = sessions["sessions"][0]["sessionId"]
        .as_str()
        .unwrap()
        .to_owned();
    let transcript = pi.ade.transcript(&chat);
    assert_eq!(status_of(&transcript), "failed");
    assert_eq!(of_type(&transcript, "notice").len(), 1);
    assert_eq!(of_type(&transcript, "user_message").len(), 1);
    let error = error_of(&transcript);
    assert_eq!(error["category"], "timed_out");
    assert!(
        error["message"].as_str().unwrap().contains("twice"),
        "{error}"
    );

    pi.set_model(&chat, "fake/fake-text");
    assert_eq!(text_of(&pi.completed(&chat, "And now?")), HELLO);
    assert_eq!(pi.model.requests().len(), 3);
    assert_eq!(pi.contexts()[2].last().unwrap(), "And now?");
}

/// A chat whose model fell silent after `message`, and whose next worker will
/// use one that answers.
fn wedged(pi: &PiAde, message: &str, first_event_ms: u64) -> (String, Rpc, String) {
    let chat = pi.chat_with(
        "lane",
        json!({"model": "fake/fake-text", "permission": "full-auto",
            "firstEventMs": first_event_ms}),
    );
    pi.completed(&chat, "before");
    pi.set_model(&chat, "fake/fake-wedge");
    let (rpc, turn) = pi.send(&chat, message);
    pi.wait_requests(2);
    pi.set_model(&chat, "fake/fake-text");
    (chat, rpc, turn)
}

#[track_caller]
fn was_sent_again(pi: &PiAde, chat: &str, events: &[Value], message: &str, reason: &str) {
    assert_eq!(status_of(events), "completed", "{events:#?}");
    assert_eq!(text_of(events), HELLO);
    let notices = of_type(events, "notice");
    assert_eq!(notices.len(), 1, "{events:#?}");
    assert!(
        notices[0]["message"].as_str().unwrap().contains(reason),
        "{notices:?}"
    );
    assert_eq!(
        pi.contexts()[1..],
        vec![vec!["before", message]; 2],
        "once in the context"
    );
    assert_eq!(pi.ade.session(chat)["generation"], 2);
    pi.completed(chat, "after");
    assert_eq!(pi.contexts()[3], ["before", message, "after"]);
}

#[test]
fn f05_a_message_sent_again_stands_once_in_the_context() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = wedged(&pi, "lost", 3000);
    let events = rpc.until_done(&turn);
    was_sent_again(&pi, &chat, &events, "lost", "stopped responding");
}

/// Stops a process of a silent turn for good; the watchdog must get past it.
#[track_caller]
fn freeze(which: &str) {
    let config = "[worker]\neof_grace_ms = 300\n\
        [providers.pi]\ndispose_grace_ms = 500\nterm_to_kill_ms = 500\n";
    let pi = PiAde::serve_with(config);
    let (chat, mut rpc, turn) = wedged(&pi, "lost", 1500);
    let frozen = pid(&pi, &chat, which);
    signal(frozen, Signal::SIGSTOP);
    let events = rpc.until_done(&turn);
    was_sent_again(&pi, &chat, &events, "lost", "stopped responding");
    assert!(!is_alive(frozen), "{which}");
}

#[test]
fn a_frozen_host_is_replaced() {
    freeze("hostPid");
}

#[test]
fn a_frozen_worker_is_replaced() {
    freeze("workerPid");
}

#[test]
fn a_host_that_dies_before_it_answered_is_replaced_once() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = wedged(&pi, "lost", 60_000);
    let host = pi.ade.session(&chat)["hostPid"].as_i64().unwrap();
    signal(i32::try_from(host).unwrap(), Signal::SIGKILL);
    let events = rpc.until_done(&turn);
    was_sent_again(&pi, &chat, &events, "lost", "SIGKILL");
}

#[test]
fn a_turn_that_spoke_is_never_sent_again() {
    let pi = PiAde::serve();
    let chat = pi.chat_with(
        "lane",
        json!({"model": "fake/fake-wedge-mid", "permission": "full-auto", "firstEventMs": 1500}),
    );
    let (mut rpc, turn) = pi.send(&chat, "speak");
    assert_eq!(next(&mut rpc, "text")["text"], "half");
    // Longer than the silence that would replace a worker which had said nothing.
    let more = rpc.line(Duration::from_millis(2500));
    assert!(more.is_none(), "{more:?}");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(status_of(&rpc.until_done(&turn)), "interrupted");
    assert_eq!(pi.model.requests().len(), 1);

    let (mut rpc, turn) = pi.send(&chat, "speak again");
    next(&mut rpc, "text");
    let host = pi.ade.session(&chat)["hostPid"].as_i64().unwrap();
    signal(i32::try_from(host).unwrap(), Signal::SIGKILL);
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "failed");
    let error = error_of(&events);
    assert_eq!(error["category"], "exited");
    assert!(
        error["message"].as_str().unwrap().contains("SIGKILL"),
        "{error}"
    );
    assert_eq!(pi.model.requests().len(), 2);
    assert!(of_type(&pi.ade.transcript(&chat), "notice").is_empty());
}

#[test]
fn failures_of_the_model_are_told_by_their_class() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    pi.completed(&chat, "hello");
    for (model, category, word) in [
        ("fake-401", "auth", "bad key"),
        ("fake-429", "rate_limit", "fake rate limit"),
        ("fake-500", "unknown", "fake internal error"),
        ("fake-cut", "network", "closed"),
    ] {
        let before = pi.model.requests().len();
        pi.set_model(&chat, &format!("fake/{model}"));
        let events = pi.ade.turn(&chat, "hello");
        assert_eq!(status_of(&events), "failed", "{model}");
        let error = error_of(&events);
        assert_eq!(error["category"], category, "{model}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(word),
            "{model}: {error}"
        );
        assert!(
            of_type(&events, "notice").is_empty(),
            "{model}: {events:#?}"
        );
        assert_eq!(
            pi.model.requests().len(),
            before + 1,
            "{model} was asked once"
        );
    }
    assert_eq!(pi.ade.session(&chat)["generation"], 1);
    pi.set_model(&chat, "fake/fake-text");
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);

    let id = chat.as_str();
    pi.set_model(id, "fake/fake-401");
    let (_, stderr) = pi
        .ade
        .expect_code(6, &["chat", "send", id, "--wait", "hello"]);
    assert!(stderr.contains("bad key"), "{stderr}");
}

#[test]
fn a_connection_that_breaks_is_tried_once_more() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    pi.completed(&chat, "hello");
    let PiAde { ade, model } = pi;
    model.stop();
    let events = ade.turn(&chat, "anybody?");
    assert_eq!(status_of(&events), "failed");
    assert_eq!(error_of(&events)["category"], "network");
    let notices = of_type(&events, "notice");
    assert_eq!(notices.len(), 1, "{events:#?}");
    assert!(
        notices[0]["message"]
            .as_str()
            .unwrap()
            .contains("connection dropped")
    );
    assert_eq!(ade.session(&chat)["generation"], 2);
}

// ---- deaths in the middle of a command

/// Starts a turn whose command leaves a child, a child in a session of its own,
/// and waits for a third.
fn busy(pi: &PiAde) -> (String, Rpc, String) {
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let command = "sleep 300 & (setsid sleep 301 &) ; sleep 302";
    let (rpc, turn) = pi.send(&chat, &bash(command));
    for sleep in ["sleep 300", "sleep 301", "sleep 302"] {
        pi.wait_command(sleep);
    }
    assert!(lease::is_held(&pi.session_file(&chat)));
    (chat, rpc, turn)
}

fn pid(pi: &PiAde, chat: &str, which: &str) -> i32 {
    let pid = pi.ade.session(chat)[which].as_i64();
    i32::try_from(pid.expect(which)).unwrap()
}

/// The turn has ended once, the session is free, and the chat goes on.
#[track_caller]
fn goes_on(pi: &PiAde, chat: &str, status: &str) {
    let file = pi.session_file(chat);
    assert!(!lease::is_held(&file), "the lease is free");
    assert_eq!(status_of(&pi.ade.transcript(chat)), status);
    assert_eq!(text_of(&pi.completed(chat, "hello")), HELLO);
    assert_eq!(pi.session_file(chat), file);
    one_branch(&file, &pi.ade.lane("lane"));
}

#[test]
fn a_worker_that_is_told_to_end_takes_everything_along() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = busy(&pi);
    signal(pid(&pi, &chat, "workerPid"), Signal::SIGTERM);
    pi.wait_only_broker(DEAD_WITHIN);
    let status = status_of(&rpc.until_done(&turn));
    assert_ne!(status, "completed");
    goes_on(&pi, &chat, &status);
}

#[test]
fn a_worker_that_is_killed_leaves_nothing() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = busy(&pi);
    signal(pid(&pi, &chat, "workerPid"), Signal::SIGKILL);
    pi.wait_only_broker(DEAD_WITHIN);
    let events = rpc.until_done(&turn);
    let error = error_of(&events);
    assert_eq!(error["category"], "exited");
    assert!(
        error["message"].as_str().unwrap().contains("SIGKILL"),
        "{error}"
    );
    goes_on(&pi, &chat, "failed");
}

#[test]
fn a_host_that_is_killed_leaves_nothing() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = busy(&pi);
    signal(pid(&pi, &chat, "hostPid"), Signal::SIGKILL);
    pi.wait_only_broker(DEAD_WITHIN);
    let events = rpc.until_done(&turn);
    let error = error_of(&events);
    assert_eq!(error["category"], "exited");
    assert!(
        error["message"].as_str().unwrap().contains("SIGKILL"),
        "{error}"
    );
    goes_on(&pi, &chat, "failed");
}

#[test]
fn workers_of_a_killed_broker_end_by_themselves() {
    let config = "[worker]\norphan_idle_ms = 500\norphan_turn_ms = 1000\n";
    let mut pi = PiAde::serve_with(config);
    let idle = pi.chat("lane", "fake/fake-text", "full-auto");
    pi.completed(&idle, "hello");
    let (chat, _rpc, _) = busy(&pi);
    let files = [&idle, &chat].map(|chat| pi.session_file(chat));
    pi.ade.kill_broker();
    pi.wait_alone(None, Duration::from_secs(1) + DEAD_WITHIN);
    for file in &files {
        assert!(!lease::is_held(file), "{}", file.display());
    }
    pi.ade.serve();
    let error = error_of(&pi.ade.transcript(&chat));
    assert!(
        error["detail"]
            .as_str()
            .unwrap()
            .starts_with("kind: broker_ended"),
        "{error}"
    );
    goes_on(&pi, &chat, "failed");
    assert_eq!(text_of(&pi.completed(&idle, "hello")), HELLO);
}

#[test]
fn a_new_broker_takes_over_what_a_killed_one_left() {
    let mut pi = PiAde::without_broker(&["--drip-ms", "20"]);
    pi.ade.serve();
    let (chat, _rpc, turn) = busy(&pi);
    let asking = pi.chat("lane", "fake/fake-text", "default");
    let (mut ask, _) = pi.send(&asking, &bash("touch allowed"));
    next_card(&mut ask);
    let telling = pi.chat("lane", "fake/fake-drip", "default");
    let (mut tell, told) = pi.send(&telling, "slowly");
    next(&mut tell, "text");
    let workers = [&chat, &asking, &telling].map(|chat| pid(&pi, chat, "workerPid"));

    pi.ade.kill_broker();
    pi.ade.serve();
    let mut rpc = pi.ade.rpc();
    rpc.subscribe(&telling, 0);
    let events = rpc.until_done(&told);
    assert_eq!(status_of(&events), "completed");
    let words: String = (0..200).map(|n| format!("w{n} ")).collect();
    assert_eq!(text_of(&events), words, "nothing is lost and nothing twice");
    assert_eq!(pi.model.requests().len(), 3, "nothing was sent again");

    let cards = rpc.call("cards.list", json!({}))["cards"].clone();
    assert_eq!(cards.as_array().unwrap().len(), 1, "{cards}");
    rpc.subscribe(
        &asking,
        pi.ade.session(&asking)["lastSequence"].as_u64().unwrap(),
    );
    answer(&mut rpc, &cards[0], "allow");
    next(&mut rpc, "done");
    assert!(pi.ade.lane("lane").join("allowed").exists());
    assert_eq!(status_of(&pi.ade.transcript(&asking)), "completed");

    rpc.call("chat.abort", json!({"sessionId": chat, "turnId": turn}));
    rpc.subscribe(&chat, 0);
    assert_eq!(status_of(&rpc.until_done(&turn)), "interrupted");
    assert_eq!(
        workers,
        [&chat, &asking, &telling].map(|chat| pid(&pi, chat, "workerPid"))
    );
    for chat in [&chat, &asking, &telling] {
        assert!(lease::is_held(&pi.session_file(chat)));
        pi.stop(chat);
    }
    pi.wait_only_broker(DEAD_WITHIN);
    goes_on(&pi, &chat, "interrupted");
    pi.stop(&chat);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

#[test]
fn a_new_broker_ends_what_a_killed_worker_left() {
    let mut pi = PiAde::serve();
    let (chat, _rpc, _) = busy(&pi);
    let worker = pid(&pi, &chat, "workerPid");
    pi.ade.kill_broker();
    signal(worker, Signal::SIGKILL);
    // The host follows its worker; what the command started has nobody now.
    pi.ade.serve();
    pi.wait_only_broker(DEAD_WITHIN);
    assert_eq!(pi.ade.session(&chat)["state"], "idle");
    let error = error_of(&pi.ade.transcript(&chat));
    assert_eq!(error["category"], "exited");
    goes_on(&pi, &chat, "failed");
    pi.stop(&chat);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

// ---- an installation and a configuration that do not fit

/// Runs a command without the keys that a developer's environment may hold.
fn without_keys(ade: &Ade, args: &[&str]) -> Output {
    let mut command = ade.command(args);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.ends_with("_KEY") || name.ends_with("_TOKEN") {
            command.env_remove(name);
        }
    }
    command.output().unwrap()
}

#[test]
fn a_pi_without_a_usable_model_says_what_to_do() {
    let broken = "{\"providers\": {";
    for (models, words) in [
        ("{\"providers\": {}}", ["/login", "models.json", "API key"]),
        (
            broken,
            ["Failed to parse models.json", "models.json", "/login"],
        ),
    ] {
        let pi = PiAde::without_broker(&[]);
        fs::write(pi.ade.agent_dir().join("models.json"), models).unwrap();
        let lane = pi.ade.lane("lane").display().to_string();
        let run = ["run", "--provider", "pi", "--lane", &lane, "hello"];
        let output = without_keys(&pi.ade, &run);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{models}: {stderr}");
        assert!(output.stdout.is_empty());
        for word in words {
            assert!(stderr.contains(word), "{models}: no {word:?} in {stderr}");
        }
        if models == broken {
            let text = fs::read_to_string(pi.ade.agent_dir().join("models.json")).unwrap();
            assert_eq!(text, broken, "the user's file is not ours to write");
        }
    }
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

#[test]
fn a_lane_that_is_gone_is_named() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let lane = pi.ade.lane("lane");
    fs::remove_dir(&lane).unwrap();
    let (_, stderr) = pi
        .ade
        .expect_code(2, &["chat", "send", &chat, "--wait", "hello"]);
    assert!(stderr.contains(&path(&lane)), "{stderr}");
    assert_eq!(error_of(&pi.ade.transcript(&chat))["category"], "not_found");
    fs::create_dir(&lane).unwrap();
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);
}

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

fn path(path: &Path) -> String {
    path.display().to_string()
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
