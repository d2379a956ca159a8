//! What the agent has done and nobody heard of: its message is not carried out a
//! second time, whoever was stopped or killed. And a message that was not
//! delivered is sent again, also when the chat has had the same one before.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::signal;
use ade_tests::pi::{PiAde, bash, error_of, status_of};
use ade_tests::turns::{of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

/// Silence until a worker is replaced: long enough to stop somebody before.
const SILENCE: Duration = Duration::from_secs(3);

/// A turn whose message the agent has, and waits for the model.
struct Scene {
    pi: PiAde,
    chat: String,
    turn: String,
    sent: Instant,
    file: PathBuf,
    /// Answers that stand in the session from before.
    answers: usize,
}

fn prompt() -> String {
    bash("echo X >> f")
}

/// The messages of a session file. Its last line may be half written.
fn messages(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines
        .map(|mut line: Value| line["message"].take())
        .collect()
}

/// How often a message of the user stands in the session.
fn said(file: &Path, prompt: &str) -> usize {
    let is_it =
        |message: &&Value| message["role"] == "user" && message["content"][0]["text"] == prompt;
    messages(file).iter().filter(is_it).count()
}

/// How many answers stand there to their end.
fn answers(file: &Path) -> usize {
    let is_it = |message: &&Value| message["stopReason"] == "stop";
    messages(file).iter().filter(is_it).count()
}

/// What the command has written.
fn written(pi: &PiAde) -> String {
    fs::read_to_string(pi.ade.lane("lane").join("f")).unwrap_or_default()
}

impl Scene {
    /// `before`: the messages that the chat has had.
    fn begin(before: &[&str]) -> Self {
        let pi = PiAde::serve();
        let chat = pi.chat_with(
            "lane",
            json!({"model": "fake/fake-text", "permission": "full-auto",
                   "firstEventMs": SILENCE.as_millis()}),
        );
        for prompt in before {
            pi.completed(&chat, prompt);
        }
        let file = pi.ade.session_file(&chat);
        let (answers, had) = (answers(&file), said(&file, &prompt()));
        signal(pi.model.pid(), Signal::SIGSTOP);
        let (turn, _) = pi.ade.send(&mut pi.ade.rpc(), &chat, &prompt());
        let sent = Instant::now();
        wait_true("the agent has the message", || said(&file, &prompt()) > had);
        Self {
            pi,
            chat,
            turn,
            sent,
            file,
            answers,
        }
    }

    /// The agent does what it was told, to the end.
    fn work(&self) {
        assert!(self.sent.elapsed() < SILENCE, "too slow to stop anybody");
        signal(self.pi.model.pid(), Signal::SIGCONT);
        wait_true("the answer stands in the session", || {
            answers(&self.file) > self.answers
        });
    }

    fn end(&self) -> Vec<Value> {
        let lines = self.pi.ade.wait_done(&self.chat, &self.turn);
        of_turn(&lines, &self.turn)
    }

    /// Every message was carried out once, and the chat goes on.
    #[track_caller]
    fn done_once(&self, messages: usize) {
        assert_eq!(written(&self.pi), "X\n".repeat(messages));
        assert_eq!(said(&self.file, &prompt()), messages);
        self.pi.completed(&self.chat, &prompt());
        assert_eq!(written(&self.pi), "X\n".repeat(messages + 1));
    }
}

/// One error, which is an unknown outcome; what it says.
#[track_caller]
fn unknown(events: &[Value]) -> String {
    assert_eq!(status_of(events), "failed");
    let error = error_of(events);
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("delivered, outcome unknown"), "{error}");
    message.to_owned()
}

/// It says that there is an answer to be read: the session file was looked into.
#[track_caller]
fn stands(events: &[Value]) {
    let message = unknown(events);
    let words = "its answer stands in the session";
    assert!(message.contains(words), "{message}");
}

#[test]
fn what_was_done_while_the_broker_was_stopped_is_not_done_again() {
    let scene = Scene::begin(&["hi"]);
    let broker = scene.pi.ade.broker_pid();
    signal(broker, Signal::SIGSTOP);
    scene.work();
    wait_true("the watchdog's time is over", || {
        scene.sent.elapsed() > SILENCE + Duration::from_millis(500)
    });
    signal(broker, Signal::SIGCONT);
    let events = scene.end();
    // It may have heard in time what was said meanwhile.
    if status_of(&events) != "completed" {
        let _ = unknown(&events);
    }
    scene.done_once(1);
}

#[test]
fn what_was_done_while_the_worker_was_stopped_is_not_done_again() {
    // The same message once before: it is this one that has an answer.
    let before = prompt();
    for killed in [false, true] {
        let scene = Scene::begin(&["hi", &before]);
        let worker = scene.pi.pid(&scene.chat, "workerPid");
        signal(worker, Signal::SIGSTOP);
        scene.work();
        if killed {
            signal(worker, Signal::SIGKILL);
            stands(&scene.end());
        } else {
            // It wakes up when it is ended, and may say then what was done.
            let _ = unknown(&scene.end());
        }
        scene.done_once(2);
    }
}

#[test]
fn what_was_done_before_broker_and_worker_were_killed_is_not_done_again() {
    for recovering in [false, true] {
        let mut scene = Scene::begin(&["hi"]);
        let worker = scene.pi.pid(&scene.chat, "workerPid");
        signal(worker, Signal::SIGSTOP);
        scene.work();
        if recovering {
            // It is on disk that the message is to be sent again.
            scene.pi.ade.wait_state(&scene.chat, "recovering");
        }
        scene.pi.ade.kill_broker();
        signal(worker, Signal::SIGKILL);
        scene.pi.ade.serve();
        let events = scene.end();
        if recovering {
            stands(&events);
        } else {
            assert_eq!(status_of(&events), "failed");
            let _ = error_of(&events);
        }
        scene.done_once(1);
    }
}

#[test]
fn a_message_that_was_not_delivered_is_sent_again_though_its_text_has_an_answer() {
    let pi = PiAde::serve();
    let chat = pi.chat_with(
        "lane",
        json!({"model": "fake/fake-text", "permission": "full-auto"}),
    );
    pi.completed(&chat, &prompt());
    let host = pi.pid(&chat, "hostPid");
    signal(host, Signal::SIGSTOP);
    let (turn, _) = pi.ade.send(&mut pi.ade.rpc(), &chat, &prompt());
    // It has not read a word of it.
    signal(host, Signal::SIGKILL);
    let lines = pi.ade.wait_done(&chat, &turn);
    let events = of_turn(&lines, &turn);
    assert_eq!(status_of(&events), "completed", "{events:#?}");
    assert_eq!(of_type(&events, "notice").len(), 1, "{events:#?}");
    assert_eq!(written(&pi), "X\nX\n");
    assert_eq!(said(&pi.ade.session_file(&chat), &prompt()), 2);
    assert_eq!(pi.contexts().last().unwrap().len(), 2, "each stands once");
}
