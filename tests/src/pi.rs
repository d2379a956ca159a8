//! One ade whose agent is the real Pi and whose model is the fake one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ade::Ade;
use crate::fake_model::FakeModel;
use crate::rpc::Rpc;
use crate::turns::of_type;
use crate::wait::{wait_until, wait_within};

/// An ade of the test's own with a broker, and its model server.
#[derive(Debug)]
pub struct PiAde {
    // Before the model: hosts end while the server still answers.
    /// The ade.
    pub ade: Ade,
    /// The model server.
    pub model: FakeModel,
}

impl PiAde {
    /// With a running broker.
    #[must_use]
    #[track_caller]
    pub fn serve() -> Self {
        Self::serve_with("")
    }

    /// With a running broker and a `config.toml`.
    #[must_use]
    #[track_caller]
    pub fn serve_with(config: &str) -> Self {
        let mut pi = Self::without_broker(&[]);
        pi.ade = pi.ade.with_config(config);
        pi.ade.serve();
        pi
    }

    /// Without a broker; `model` are arguments of `fake-model`.
    #[must_use]
    #[track_caller]
    pub fn without_broker(model: &[&str]) -> Self {
        let model = FakeModel::start_with(model);
        let ade = Ade::new().with_pi(&model.base_url());
        Self { ade, model }
    }

    /// Makes a chat in the lane `lane` with one of the fake models.
    #[track_caller]
    pub fn chat(&self, lane: &str, model: &str, permission: &str) -> String {
        self.chat_with(lane, json!({"model": model, "permission": permission}))
    }

    /// Makes a chat with other arguments of `chat.create`.
    #[track_caller]
    pub fn chat_with(&self, lane: &str, more: Value) -> String {
        let lane = self.ade.lane(lane);
        self.ade.chat(&mut self.ade.rpc(), "pi", &lane, more)
    }

    /// Sends a message; a connection that hears its turn, and the turn.
    #[track_caller]
    pub fn send(&self, session: &str, prompt: &str) -> (Rpc, String) {
        let mut rpc = self.ade.rpc();
        let (turn, after) = self.ade.send(&mut rpc, session, prompt);
        rpc.subscribe(session, after);
        (rpc, turn)
    }

    /// Runs a turn that must complete; its envelopes.
    #[track_caller]
    pub fn completed(&self, session: &str, prompt: &str) -> Vec<Value> {
        let events = self.ade.turn(session, prompt);
        assert_eq!(status_of(&events), "completed", "{events:#?}");
        events
    }

    /// Changes the model of a chat.
    #[track_caller]
    pub fn set_model(&self, session: &str, model: &str) {
        let arguments = json!({"sessionId": session, "model": model});
        self.ade.rpc().call("chat.model", arguments);
    }

    /// Stops a chat's worker.
    #[track_caller]
    pub fn stop(&self, session: &str) {
        let arguments = json!({"sessionId": session});
        self.ade.rpc().call("chat.stop", arguments);
    }

    /// A chat's `workerPid` or `hostPid`.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    #[track_caller]
    pub fn pid(&self, session: &str, which: &str) -> i32 {
        let pid = self.ade.session(session)[which].as_i64();
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        pid.unwrap_or_else(|| panic!("{session} has no {which}"))
    }

    /// For each request that the model got, the user messages of its context.
    #[must_use]
    #[track_caller]
    pub fn contexts(&self) -> Vec<Vec<String>> {
        let user_texts = |request: &Value| {
            let messages = request["body"]["messages"].as_array();
            let messages = messages.into_iter().flatten();
            messages
                .filter(|message| message["role"] == "user")
                .map(|message| match &message["content"] {
                    Value::String(text) => text.clone(),
                    content => content[0]["text"].as_str().unwrap_or_default().to_owned(),
                })
                .collect()
        };
        self.model.requests().iter().map(user_texts).collect()
    }

    /// Waits until the model has got so many requests.
    ///
    /// # Panics
    /// When it has not in time.
    #[track_caller]
    pub fn wait_requests(&self, count: usize) {
        wait_until(&format!("request {count} at the model"), || {
            (self.model.requests().len() >= count).then_some(())
        });
    }

    /// Waits until a process with exactly this command line runs; its pid.
    ///
    /// # Panics
    /// When none does in time.
    #[track_caller]
    pub fn wait_command(&self, command: &str) -> i32 {
        wait_until(&format!("`{command}` runs"), || {
            self.ade.describe().iter().find_map(|line| {
                let (pid, rest) = line.split_once(": ")?;
                (rest.trim_end() == command).then(|| pid.parse().ok())?
            })
        })
    }

    /// Waits until nothing but the broker is alive, `bound` at most.
    ///
    /// # Panics
    /// When something else is.
    #[track_caller]
    pub fn wait_only_broker(&self, bound: Duration) {
        let broker = self.ade.broker_pid();
        self.wait_alone(Some(broker), bound);
    }

    /// Waits until nothing is alive but this process, `bound` at most.
    ///
    /// # Panics
    /// When something else is.
    #[track_caller]
    pub fn wait_alone(&self, but: Option<i32>, bound: Duration) {
        let until = Instant::now() + bound;
        wait_within("the end of a tree", bound + Duration::from_secs(1), || {
            let mut left = self.ade.processes();
            left.retain(|identity| Some(identity.pid.get()) != but);
            let in_time = left.is_empty() || Instant::now() < until;
            assert!(in_time, "alive after {bound:?}: {:#?}", self.ade.describe());
            left.is_empty().then_some(())
        });
    }
}

/// A message that makes the model call a tool.
#[must_use]
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers write the arguments with json!"
)]
pub fn tool(name: &str, arguments: Value) -> String {
    format!("TOOL:{name}:{arguments}")
}

/// A message that makes the model run a command.
#[must_use]
pub fn bash(command: &str) -> String {
    tool("bash", json!({"command": command}))
}

/// Waits for an event of this type.
///
/// # Panics
/// When none comes.
#[track_caller]
pub fn next(rpc: &mut Rpc, kind: &str) -> Value {
    rpc.event(kind, |envelope| envelope["event"]["type"] == kind)["event"].clone()
}

/// Waits for a question.
///
/// # Panics
/// When none comes.
#[track_caller]
pub fn next_card(rpc: &mut Rpc) -> Value {
    next(rpc, "card_opened")["card"].clone()
}

/// Answers a question.
///
/// # Panics
/// When the answer does not count.
#[track_caller]
pub fn answer(rpc: &mut Rpc, card: &Value, value: &str) {
    let answer = json!({"ok": true, "value": value});
    let arguments =
        json!({"cardId": card["cardId"], "sessionId": card["sessionId"], "answer": answer});
    rpc.call("cards.answer", arguments);
}

/// How the turn of some envelopes ended; there must be one `done`.
///
/// # Panics
/// When there is none, or more.
#[must_use]
#[track_caller]
pub fn status_of(events: &[Value]) -> String {
    let done = of_type(events, "done");
    assert_eq!(done.len(), 1, "{events:#?}");
    done[0]["status"].as_str().unwrap_or_default().to_owned()
}

/// The one error of some envelopes.
///
/// # Panics
/// When there is none, or more.
#[must_use]
#[track_caller]
pub fn error_of(events: &[Value]) -> Value {
    let errors = of_type(events, "error");
    assert_eq!(errors.len(), 1, "{events:#?}");
    errors[0].clone()
}

/// The lines of a session file.
///
/// # Panics
/// When it cannot be read or a line is not JSON.
#[must_use]
#[track_caller]
pub fn session_lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

/// Checks that a session file is of this lane and that its entries are one
/// branch, and returns them without the header.
///
/// # Panics
/// When they are not.
#[track_caller]
pub fn one_branch(file: &Path, lane: &Path) -> Vec<Value> {
    let mut lines = session_lines(file);
    let header = lines.remove(0);
    assert_eq!(header["type"], "session");
    assert_eq!(header["cwd"], json!(lane), "{}", file.display());
    let mut parent = Value::Null;
    for line in &lines {
        assert_eq!(line["parentId"], parent, "a second branch: {lines:#?}");
        parent = line["id"].clone();
    }
    lines
}
