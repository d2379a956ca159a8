//! The Pi host against the real Pi: the host alone, as a worker would drive it, on pipes.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ade_protocol::frame::{FromWorker, Known};
use ade_tests::agents;
use ade_tests::fake_model::{FakeModel, write_agent_dir};
use serde_json::{Value, json};

mod delivery;

/// Longest wait for a frame of the host.
const FRAME_WAIT: Duration = Duration::from_secs(30);

/// A lane, a private configuration of Pi, and a model server.
struct Place {
    folder: tempfile::TempDir,
    model: FakeModel,
}

impl Place {
    fn new() -> Self {
        let model = FakeModel::start();
        let folder = tempfile::tempdir().unwrap();
        write_agent_dir(&folder.path().join("agent"), &model.base_url()).unwrap();
        std::fs::create_dir(folder.path().join("lane")).unwrap();
        Self { folder, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a host and initialises it with `more` beside the usual fields.
    fn host(&self, more: &Value) -> (Host, Value) {
        let mut host = Host::start(self.folder.path());
        let mut init = json!({
            "type": "init",
            "sessionKey": "ses_test",
            "provider": "pi",
            "cwd": self.path("lane"),
            "agentDir": self.path("agent"),
            "package": {"packageRoot": agents::pi().package_root},
            "store": {"sessionRoot": self.path("agent/sessions")},
            "modelRef": "fake/fake-text",
            "tools": ["read", "bash", "edit", "write"],
        });
        for (key, value) in more.as_object().unwrap() {
            init[key] = value.clone();
        }
        let id = host.request(&init);
        let response = host.response(&id);
        (host, response)
    }

    fn ready_host(&self, more: &Value) -> (Host, Value) {
        let (host, response) = self.host(more);
        assert_eq!(response["ok"], true, "{response}");
        (host, response["result"].clone())
    }

    /// The texts of the user messages in the last request that the model got.
    fn last_context(&self) -> Vec<String> {
        let request = self.model.requests().pop().unwrap();
        let messages = request["body"]["messages"].as_array().unwrap().clone();
        let users = messages.iter().filter(|message| message["role"] == "user");
        users
            .map(|message| message["content"][0]["text"].as_str().unwrap().to_owned())
            .collect()
    }
}

struct Host {
    child: Child,
    stdin: Option<ChildStdin>,
    frames: Receiver<Value>,
    seen: Vec<Value>,
    requests: u32,
}

impl Host {
    fn start(cwd: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workers/hosts/pi.mjs");
        let mut child = Command::new(agents::pi().node)
            .arg(script.canonicalize().unwrap())
            .current_dir(cwd)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, frames) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Every line must be a frame that the worker's own reader accepts.
                let known = FromWorker::parse(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
                assert!(matches!(known, Known::Frame(_)), "{line}");
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            stdin,
            frames,
            seen: Vec::new(),
            requests: 0,
        }
    }

    fn write(&mut self, frame: &Value) {
        let mut frame = frame.clone();
        frame["protocolVersion"] = json!(2);
        writeln!(self.stdin.as_mut().unwrap(), "{frame}").unwrap();
    }

    fn request(&mut self, frame: &Value) -> String {
        self.requests += 1;
        let id = format!("request-{}", self.requests);
        let mut frame = frame.clone();
        frame["requestId"] = json!(id);
        self.write(&frame);
        id
    }

    /// The next frame that fits; those before it are kept in `seen`.
    #[track_caller]
    fn wait(&mut self, label: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + FRAME_WAIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(frame) = self.frames.recv_timeout(left) else {
                panic!(
                    "no {label} came; the last frames: {:#?}",
                    self.seen.iter().rev().take(5).collect::<Vec<_>>()
                );
            };
            self.seen.push(frame.clone());
            if fits(&frame) {
                return frame;
            }
        }
    }

    #[track_caller]
    fn response(&mut self, id: &str) -> Value {
        self.wait(id, |frame| {
            frame["type"] == "response" && frame["requestId"] == id
        })
    }

    #[track_caller]
    fn ask(&mut self, frame: &Value) -> Value {
        let id = self.request(frame);
        self.response(&id)
    }

    #[track_caller]
    fn turn(&mut self, prompt: &str) -> Value {
        let response = self.ask(&json!({"type": "send", "turnId": "t", "prompt": prompt}));
        assert_eq!(response["ok"], true, "{response}");
        response["result"].clone()
    }

    #[track_caller]
    fn card(&mut self) -> Value {
        self.wait("card", |frame| frame["type"] == "ui_request")
    }

    fn answer(&mut self, card: &Value, value: &str) {
        self.write(&json!({"type": "ui_response", "requestId": card["requestId"], "ok": true, "value": value}));
    }

    /// The text that was streamed so far.
    fn text(&self) -> String {
        let deltas = self
            .seen
            .iter()
            .map(|frame| &frame["event"]["assistantMessageEvent"]);
        deltas
            .filter(|delta| delta["type"] == "text_delta")
            .filter_map(|delta| delta["delta"].as_str())
            .collect()
    }

    fn tool_ends(&self) -> Vec<&Value> {
        let events = self.seen.iter().map(|frame| &frame["event"]);
        events
            .filter(|event| event["type"] == "tool_execution_end")
            .collect()
    }

    fn close(mut self) -> ExitStatus {
        self.stdin = None;
        self.child.wait().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_turn_streams_and_dispose_ends_the_process() {
    let place = Place::new();
    let (mut host, ready) = place.ready_host(&json!({}));
    assert_eq!(ready["version"], "1.6.0");
    assert_eq!(ready["currentModel"]["id"], "fake-text");
    assert_eq!(ready["account"]["kind"], "local");
    let stages: Vec<&str> = host
        .seen
        .iter()
        .filter_map(|frame| frame["event"].as_str())
        .collect();
    assert_eq!(
        stages,
        ["worker_started", "initializing", "package_loaded", "ready"]
    );
    let result = host.turn("hello");
    assert_eq!(result["status"], "completed");
    assert_eq!(result["usage"]["totalTokens"], 110);
    assert_eq!(host.text(), "Hello from the fake model.");
    let header = std::fs::read_to_string(ready["sessionFile"].as_str().unwrap()).unwrap();
    let header: Value = serde_json::from_str(header.lines().next().unwrap()).unwrap();
    assert_eq!(header["cwd"], json!(place.path("lane")));
    assert_eq!(host.ask(&json!({"type": "dispose"}))["ok"], true);
    assert_eq!(host.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_gated_call_runs_only_after_the_exact_word() {
    let place = Place::new();
    let (mut host, _) = place.ready_host(&json!({"approvalTools": ["bash", "edit", "write"]}));
    for (word, runs) in [
        ("allow", true),
        ("allow_session", true),
        ("yes", false),
        ("Allow", false),
        ("", false),
    ] {
        let file = place.path("lane").join(format!("ran-{word}"));
        let prompt = format!(
            "TOOL:bash:{}",
            json!({"command": format!("touch '{}'", file.display())})
        );
        let id = host.request(&json!({"type": "send", "turnId": "t", "prompt": prompt}));
        let card = host.card();
        assert_eq!(card["payload"]["kind"], "confirm");
        assert_eq!(card["payload"]["sourceId"], "bash");
        assert_eq!(card["turnId"], "t");
        host.answer(&card, word);
        assert_eq!(host.response(&id)["result"]["status"], "completed");
        assert_eq!(file.exists(), runs, "after {word:?}");
        assert_eq!(host.tool_ends().pop().unwrap()["isError"], !runs);
    }
}

#[test]
fn an_abort_withdraws_every_open_card() {
    let place = Place::new();
    let (mut host, _) = place.ready_host(&json!({"approvalTools": ["bash"]}));
    let prompt = r#"TOOL:bash:{"command":"touch a"} TOOL:bash:{"command":"touch b"} PARALLEL"#;
    let send = host.request(&json!({"type": "send", "turnId": "t", "prompt": prompt}));
    let cards: HashSet<String> = [host.card(), host.card()]
        .iter()
        .map(|card| card["requestId"].to_string())
        .collect();
    let abort = host.request(&json!({"type": "abort", "turnId": "t"}));
    assert_eq!(host.response(&send)["result"]["status"], "interrupted");
    assert_eq!(host.response(&abort)["ok"], true);
    let cancelled = host
        .seen
        .iter()
        .filter(|frame| frame["type"] == "ui_cancel");
    let cancelled: HashSet<String> = cancelled
        .map(|frame| frame["requestId"].to_string())
        .collect();
    assert_eq!(cancelled, cards);
    assert!(!place.path("lane/a").exists() && !place.path("lane/b").exists());
    assert_eq!(host.turn("hello")["status"], "completed");
}

#[test]
fn failures_of_the_model_end_the_turn_as_failed() {
    let place = Place::new();
    let settings = std::fs::read(place.path("agent/settings.json")).unwrap();
    let (mut host, _) = place.ready_host(&json!({}));
    for (model, word) in [
        ("fake-401", "401"),
        ("fake-500", "500"),
        ("fake-429", "429"),
        ("fake-cut", "closed"),
    ] {
        let changed = host.ask(&json!({"type": "set_model", "modelRef": format!("fake/{model}")}));
        assert_eq!(changed["result"]["currentModel"]["id"], model);
        let result = host.turn("hello");
        assert_eq!(result["status"], "failed", "{model}");
        assert!(result["error"].as_str().unwrap().contains(word), "{result}");
    }
    host.ask(&json!({"type": "set_thinking", "thinkingLevel": "high"}));
    let after = std::fs::read(place.path("agent/settings.json")).unwrap();
    assert_eq!(settings, after, "the user's settings are not ours to write");
    let refused = host.ask(&json!({"type": "set_model", "modelRef": "fake/none"}));
    assert_eq!(refused["errorCode"], "model_not_found");
    assert!(
        refused["error"]
            .as_str()
            .unwrap()
            .contains("fake/fake-text"),
        "{refused}"
    );
}

#[test]
fn a_wedged_request_is_aborted_at_once() {
    let place = Place::new();
    let (mut host, _) = place.ready_host(&json!({"modelRef": "fake/fake-wedge"}));
    let send = host.request(&json!({"type": "send", "turnId": "t", "prompt": "hello"}));
    host.wait("start of the turn", |frame| {
        frame["event"] == "prompt_started"
    });
    let busy = host.ask(&json!({"type": "send", "turnId": "u", "prompt": "and this"}));
    assert_eq!(busy["errorCode"], "busy");
    let other = host.ask(&json!({"type": "abort", "turnId": "u"}));
    assert_eq!(
        other["ok"], true,
        "the abort of another turn changes nothing"
    );
    host.request(&json!({"type": "abort", "turnId": "t"}));
    assert_eq!(host.response(&send)["result"]["status"], "interrupted");
}

#[test]
fn an_abort_right_behind_its_message_is_not_lost() {
    let place = Place::new();
    let (mut host, _) = place.ready_host(&json!({"modelRef": "fake/fake-wedge"}));
    for turn in ["t1", "t2", "t3"] {
        let send = host.request(&json!({"type": "send", "turnId": turn, "prompt": "hello"}));
        host.request(&json!({"type": "abort", "turnId": turn}));
        assert_eq!(host.response(&send)["result"]["status"], "interrupted");
    }
}

#[test]
fn a_session_goes_on_in_a_new_process_and_only_where_it_belongs() {
    let place = Place::new();
    let (mut host, ready) = place.ready_host(&json!({}));
    host.turn("one");
    host.close();
    let (file, id) = (&ready["sessionFile"], &ready["sessionId"]);
    let (mut host, again) = place.ready_host(&json!({
        "modelRef": "fake/fake-echo", "session": {"sessionFile": file, "sessionId": id, "resume": true}}));
    assert_eq!(&again["sessionFile"], file);
    host.turn("two");
    assert_eq!(host.text(), "one\ntwo");
    host.close();
    let refusals = [
        (
            json!({"session": {"sessionFile": file, "resume": true}, "cwd": place.path("agent")}),
            "session_invalid",
        ),
        (
            json!({"session": {"sessionFile": file, "resume": true}, "store": {"sessionRoot": place.path("lane")}}),
            "session_invalid",
        ),
        (
            json!({"session": {"sessionId": "unknown", "resume": true}}),
            "session_not_found",
        ),
        (json!({"modelRef": "fake/none"}), "model_not_found"),
        (
            json!({"package": {"packageRoot": place.path("lane")}}),
            "package_missing",
        ),
    ];
    for (more, code) in refusals {
        let (_host, response) = place.host(&more);
        assert_eq!(response["errorCode"], code, "{response}");
    }
}

#[test]
fn a_message_sent_again_stands_once_in_the_context() {
    for kill in [true, false] {
        let place = Place::new();
        let (mut host, ready) = place.ready_host(&json!({}));
        host.turn("before");
        host.ask(&json!({"type": "set_model", "modelRef": "fake/fake-wedge"}));
        let send = host.request(&json!({"type": "send", "turnId": "t", "prompt": "lost"}));
        host.wait("message on its way", |frame| {
            frame["event"]["type"] == "message_end" && frame["event"]["message"]["role"] == "user"
        });
        if kill {
            let deadline = Instant::now() + FRAME_WAIT;
            while place
                .last_context()
                .last()
                .is_none_or(|text| text != "lost")
            {
                assert!(Instant::now() < deadline, "the model never got the message");
                std::thread::sleep(Duration::from_millis(10));
            }
            host.child.kill().unwrap();
        } else {
            // Pi then writes an empty answer behind the message.
            host.request(&json!({"type": "abort", "turnId": "t"}));
            host.response(&send);
        }
        drop(host);
        let (mut host, _) = place
            .ready_host(&json!({"session": {"sessionFile": ready["sessionFile"], "resume": true}}));
        let recovery = json!({"forceExpireActiveRun": true});
        let sent = host
            .ask(&json!({"type": "send", "turnId": "t", "prompt": "lost", "recovery": recovery}));
        assert_eq!(sent["result"]["status"], "completed", "{sent}");
        assert_eq!(place.last_context(), ["before", "lost"], "killed: {kill}");
        host.turn("after");
        assert_eq!(
            place.last_context(),
            ["before", "lost", "after"],
            "killed: {kill}"
        );
    }
}

#[test]
fn the_end_of_stdin_ends_a_running_command() {
    let place = Place::new();
    let (mut host, _) = place.ready_host(&json!({}));
    let pid_file = place.path("lane/pid");
    host.request(&json!({"type": "send", "turnId": "t",
        "prompt": r#"TOOL:bash:{"command":"sleep 600 & echo $! > pid.new; mv pid.new pid; wait"}"#}));
    let deadline = Instant::now() + FRAME_WAIT;
    while !pid_file.exists() {
        assert!(Instant::now() < deadline, "the command did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid: i32 = std::fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert_eq!(host.close().code(), Some(0));
    let deadline = Instant::now() + Duration::from_secs(5);
    // Whoever inherits an orphan may take its time to reap it.
    while ade_tests::ade::is_alive(pid) {
        assert!(Instant::now() < deadline, "process {pid} outlived the host");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn noise_of_extensions_never_reaches_the_wire() {
    let place = Place::new();
    let extensions = place.path("agent/extensions");
    std::fs::create_dir(&extensions).unwrap();
    let noisy = r#"import { spawnSync } from "node:child_process"; import fs from "node:fs";
        export default () => {
            console.log("{noise"); process.stdout.write("noise\n"); fs.writeSync(1, "noise\n");
            spawnSync("echo", ["noise"], { stdio: "inherit" });
        };"#;
    std::fs::write(extensions.join("noisy.ts"), noisy).unwrap();
    // The reader of `Host` fails the test at any line that is no frame.
    let (mut host, ready) = place.ready_host(&json!({"extensions": true}));
    assert_eq!(ready["extensions"][0]["name"], "noisy");
    assert_eq!(host.turn("hello")["status"], "completed");
}

#[test]
fn bad_lines_are_reported_and_passed_over() {
    let place = Place::new();
    let (mut host, _) = place.ready_host(&json!({}));
    let stdin = host.stdin.as_mut().unwrap();
    for line in [
        "{half",
        "[1]",
        r#"{"protocolVersion":1,"type":"abort","requestId":"x"}"#,
        "",
        "\r",
    ] {
        writeln!(stdin, "{line}").unwrap();
    }
    stdin.write_all(&vec![b'x'; 17 * 1024 * 1024]).unwrap();
    write!(
        stdin,
        "\n{}\r\n",
        json!({"protocolVersion": 2, "type": "context_usage", "requestId": "last"})
    )
    .unwrap();
    assert_eq!(host.response("last")["ok"], true);
    let errors = host
        .seen
        .iter()
        .filter(|frame| frame["type"] == "error" && frame["operation"] == "receive");
    assert_eq!(errors.count(), 4);
}
