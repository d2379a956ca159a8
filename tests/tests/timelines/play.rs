//! Playing a timeline: its clock runs faster here by a factor, and so do the
//! broker's bounds; what a worker does in it becomes the script of the prompt.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, signal};
use ade_tests::rpc::{Rpc, RpcFailure, text_of};
use ade_tests::turns::of_turn;
use ade_tests::wait::{PATIENCE, wait_true, wait_within};
use serde_json::{Value, json};

fn timeline(id: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/timelines")
        .join(format!("{id}.timeline.jsonl"));
    let text = std::fs::read_to_string(&path).expect("the timeline");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

fn at(step: &Value) -> u64 {
    step["at_ms"].as_u64().expect("a moment")
}

/// What the first worker does after the prompt, as a script. A worker that does
/// not end the turn hangs.
fn script(timeline: &[Value], factor: u64) -> String {
    let asked = timeline
        .iter()
        .find(|step| step["frame"]["type"] == "prompt");
    let mut now = at(asked.expect("a prompt"));
    let mut lines = Vec::new();
    let mut ended = false;
    for step in timeline {
        let frame = &step["frame"];
        let kind = frame["event"]["kind"].as_str().unwrap_or_default();
        let text = frame["event"]["text"].as_str().unwrap_or("thinking");
        let line = match (frame["type"].as_str().unwrap_or_default(), kind) {
            ("event", "tool_start") => "!emit calls a tool".to_owned(),
            ("event", "tool_end") => "!tool bash done".to_owned(),
            ("event", "text_delta") => format!("!emit {text}"),
            ("event", _) => format!("!reasoning {text}"),
            ("ui_request", _) => "!card Run? | make".to_owned(),
            ("turn_end", _) => String::new(),
            _ if step["append_session_line"] == true => "!file a line".to_owned(),
            _ => continue,
        };
        lines.push(format!("!delay {}", at(step).saturating_sub(now) / factor));
        now = at(step);
        ended |= line.is_empty();
        lines.push(line);
    }
    if !ended && lines.iter().all(|line| !line.starts_with("!card")) {
        lines.push("!hang".into());
    }
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

/// A timeline being played.
pub(super) struct Play {
    pub(super) ade: Ade,
    pub(super) chat: String,
    clients: HashMap<String, Rpc>,
    /// Turns by the timeline's names.
    turns: HashMap<String, String>,
    pub(super) card: Option<String>,
    pub(super) answers: Vec<Result<Value, RpcFailure>>,
    took: Duration,
}

pub(super) fn config(factor: u64) -> String {
    format!(
        "[turns]\nquiet_ms = {}\n[providers.scripted]\nfirst_event_ms = {}\n",
        60_000 / factor,
        90_000 / factor
    )
}

/// Plays a timeline `factor` times as fast as it says.
pub(super) fn play(id: &str, factor: u64, config: &str) -> Play {
    let steps = timeline(id);
    let script = script(&steps, factor);
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let mut play = Play {
        ade,
        chat,
        clients: HashMap::from([("client:a".to_owned(), rpc)]),
        turns: HashMap::new(),
        card: None,
        answers: Vec::new(),
        took: Duration::ZERO,
    };
    let begin = Instant::now();
    for step in &steps {
        let moment = begin + Duration::from_millis(at(step) / factor);
        let bound = PATIENCE + Duration::from_millis(at(step) / factor);
        wait_within("the timeline's moment", bound, || {
            (Instant::now() >= moment).then_some(())
        });
        play.step(step, &script);
    }
    play.took = begin.elapsed();
    play
}

impl Play {
    fn step(&mut self, step: &Value, script: &str) {
        let who = step["who"].as_str().expect("who").to_owned();
        let frame = &step["frame"];
        if step["disconnect"] == true {
            self.clients.remove(&who);
        } else if step["connect"] == true {
            let mut client = self.ade.rpc();
            client.subscribe(&self.chat, 0);
            self.clients.insert(who, client);
        } else if step["kill"].is_string() {
            signal(self.ade.worker_of(&self.chat), Signal::SIGKILL);
            wait_true("the turn is over", || self.info()["state"] == "idle");
        } else {
            match frame["type"].as_str().unwrap_or_default() {
                "prompt" => self.prompt(&who, frame, script),
                "abort" => {
                    let (chat, rpc) = (self.chat.clone(), self.client(&who));
                    rpc.call("chat.abort", json!({"sessionId": chat}));
                }
                "ui_request" => {
                    wait_true("the card", || !self.cards().is_empty());
                    self.card = Some(self.cards().remove(0));
                }
                "ui_response" => {
                    let answer = json!({"ok": true, "value": frame["choice"]});
                    let card = self.card.clone().expect("a card");
                    let answered = self.client(&who).answer(&card, &answer);
                    self.answers.push(answered);
                }
                _ => {}
            }
        }
    }

    fn prompt(&mut self, who: &str, frame: &Value, script: &str) {
        let first = self.turns.is_empty();
        let text = if first {
            script
        } else {
            frame["text"].as_str().expect("a text")
        };
        let asked = json!({"sessionId": self.chat, "prompt": text});
        let sent = self.client(who).call("chat.send", asked);
        let turn = sent["turnId"].as_str().expect("a turn").to_owned();
        let name = frame["turn"].as_str().expect("a name").to_owned();
        self.turns.insert(name, turn);
    }

    pub(super) fn client(&mut self, who: &str) -> &mut Rpc {
        self.clients.get_mut(who).expect("a connected client")
    }

    pub(super) fn info(&self) -> Value {
        self.ade.session(&self.chat)
    }

    pub(super) fn cards(&self) -> Vec<String> {
        self.ade.rpc().open_cards()
    }

    /// The envelopes of a turn, once it has ended.
    pub(super) fn turn(&self, name: &str) -> Vec<Value> {
        let mut rpc = self.ade.rpc();
        rpc.subscribe(&self.chat, 0);
        let turn = &self.turns[name];
        of_turn(&rpc.until_done(turn), turn)
    }

    pub(super) fn generation(&self) -> u64 {
        self.info()["generation"].as_u64().expect("a number")
    }

    /// The next message simply works.
    pub(super) fn goes_on(&self) {
        assert_eq!(
            text_of(&self.ade.turn(&self.chat, "next")),
            "You said: next"
        );
    }
}
