//! `ade run`, and what goes from the environment into a session and what does not.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use ade_leases::process::Signal;
use ade_tests::ade::{signal, wait_dead};
use ade_tests::pi::{PiAde, bash};
use ade_tests::rpc::text_of;
use ade_tests::turns::of_type;
use serde_json::{Value, json};

use crate::{HELLO, SOON};

#[test]
fn run_prints_the_answer_and_nothing_else() {
    let pi = PiAde::without_broker(&[]);
    let lane = pi.ade.lane("lane").display().to_string();
    let run = |more: &[&str]| {
        let mut all = vec!["run", "--provider", "pi", "--lane", &lane, "--model"];
        all.extend(more);
        all.iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<String>>()
    };
    let expect = |code: i32, args: Vec<String>| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        pi.ade.expect_code(code, &args)
    };
    pi.ade.expect_code(5, &["status"]);
    let (stdout, stderr) = expect(0, run(&["fake/fake-text", "hello"]));
    assert_eq!(stdout, format!("{HELLO}\n"));
    assert!(stderr.contains("ses_"), "how to go on: {stderr}");
    pi.ade.expect_code(0, &["status"]);

    let (stdout, _) = expect(0, run(&["fake/fake-text", "--json", "hello"]));
    let lines: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(text_of(&lines), HELLO);
    assert_eq!(lines.last().unwrap()["event"]["type"], "done");
    assert!(
        lines
            .iter()
            .all(|line| line["sessionId"] == lines[0]["sessionId"])
    );

    // Nobody can be asked here, so the call is denied, unless --yes was said.
    let call = bash("touch ran");
    let ran = pi.ade.lane("lane").join("ran");
    let (stdout, stderr) = expect(0, run(&["fake/fake-text", &call]));
    assert_eq!(stdout, "I will use a tool.\nThe tool is done.\n");
    assert!(stderr.contains("--yes") && !ran.exists(), "{stderr}");
    let (stdout, _) = expect(0, run(&["fake/fake-text", "--yes", &call]));
    assert_eq!(stdout, "I will use a tool.\nThe tool is done.\n");
    assert!(ran.exists());

    // What a command prints does not steer the terminal.
    let colours = bash(r"printf '\033[31mred\033[0m \377\a'; exit 7");
    let (_, stderr) = expect(0, run(&["fake/fake-text", "--yes", &colours]));
    assert!(
        stderr.contains("red") && !stderr.contains(['\x1b', '\x07']),
        "{stderr:?}"
    );

    pi.ade.expect_code(0, &["stop"]);
    pi.ade.expect_code(5, &["status"]);
    pi.ade.wait_empty(SOON);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupt_from_the_terminal_ends_the_turn() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane").display().to_string();
    let call = bash("sleep 300");
    let run = ["run", "--provider", "pi", "--lane", &lane, "--yes", &call];
    let child = pi
        .ade
        .command(&run)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.unwrap();
    let sleep = pi.wait_command("sleep 300");
    signal(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted"), "{stderr}");
    wait_dead(sleep);
}

#[test]
fn keys_and_session_folders_come_from_the_environment() {
    let mut pi = PiAde::without_broker(&[]);
    let models = pi.ade.agent_dir().join("models.json");
    let text = fs::read_to_string(&models).unwrap();
    fs::write(&models, text.replace("sk-fake", "$MY_FAKE_KEY")).unwrap();
    let folder = pi.ade.root().join("sessions of mine");
    pi.ade = pi
        .ade
        .with_env("MY_FAKE_KEY", "sk-from-the-environment")
        .with_env("PI_CODING_AGENT_SESSION_DIR", &folder.display().to_string());
    pi.ade.serve();
    let chat = pi.chat("lane", "fake/fake-echo", "default");
    pi.completed(&chat, "one");
    let headers = pi.model.requests()[0]["headers"].clone();
    assert_eq!(headers["authorization"], "Bearer sk-from-the-environment");
    let file = pi.ade.session_file(&chat);
    assert_eq!(file.parent(), Some(folder.as_path()));
    pi.stop(&chat);
    assert_eq!(text_of(&pi.completed(&chat, "two")), "one\ntwo");
    assert_eq!(pi.ade.session_file(&chat), file);
}

#[test]
fn l01_and_l06_neither_secrets_nor_prompts_leak() {
    let mut pi = PiAde::without_broker(&[]);
    pi.ade = pi
        .ade
        .with_env("SECRET_CANARY", "canary-of-the-broker")
        .with_env("BROKER_TOKEN", "canary-token");
    pi.ade.serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let events = pi.completed(&chat, &format!("prompt-canary {}", bash("env")));
    let result = of_type(&events, "tool_result")[0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        result.contains("PATH=") && result.contains("HOME="),
        "{result}"
    );
    assert!(
        !result.contains("canary") && !result.contains("ADE_HOME"),
        "{result}"
    );

    let (mut rpc, turn) = pi.send(&chat, &format!("prompt-canary {}", bash("sleep 300")));
    pi.wait_command("sleep 300");
    let broker = pi.ade.broker_pid();
    for process in pi.ade.processes() {
        let pid = process.pid.get();
        for name in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).replace('\0', " ");
            assert!(!text.contains("prompt-canary"), "{name} of {pid}: {text}");
            let inherited = name == "environ" && pid == broker;
            assert!(
                inherited || !text.contains("canary"),
                "{name} of {pid}: {text}"
            );
        }
    }
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&turn);
    let mut folders = vec![pi.ade.home().join("logs"), pi.ade.home().join("run")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if let Ok(bytes) = fs::read(entry.path()) {
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains("canary"), "{}", entry.path().display());
            }
        }
    }
}
