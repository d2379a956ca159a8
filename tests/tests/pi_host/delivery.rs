//! A message that is sent again: what a session file says of it, one file a row.

use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Place;

/// The message that is sent again.
const MESSAGE: &str = "X";

/// A line of a session file. It follows the one before it.
enum Line {
    User(&'static str),
    /// The agent's text, and why it stopped.
    Agent(&'static str, &'static str),
    Call,
    Result,
    Other(Value),
    /// The next line follows this many lines above the end of what was there
    /// before the turn: 0 is its last one.
    Branch(usize),
    /// Half an entry.
    Torn,
}

use Line::{Agent, Branch, Call, Other, Result, Torn, User};

/// Which mark the message is sent again with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Right,
    Absent,
    OtherFile,
    Early,
    Late,
    BeyondTheEnd,
    Rewritten,
}

/// What is to come of it.
#[derive(Debug)]
enum Outcome {
    /// It is sent; the user messages that the model gets.
    Sent(&'static [&'static str]),
    /// It is not; words of the reason.
    Refused(&'static str),
}

use Outcome::{Refused, Sent};

const BEGUN: &str = "had begun to work";
const FINISHED: &str = "its answer stands in the session";
const DOUBT: &str = "may be of this turn or of an earlier one";

struct Writer {
    text: String,
    ids: Vec<String>,
    parent: Option<String>,
}

impl Writer {
    fn new(cwd: &Path) -> Self {
        let header = json!({"type": "session", "version": 3, "id": "0192aaaa-0000-7000-8000-000000000001",
            "timestamp": "2026-01-01T00:00:00.000Z", "cwd": cwd});
        Self {
            text: format!("{header}\n"),
            ids: Vec::new(),
            parent: None,
        }
    }

    fn write(&mut self, lines: &[Line]) {
        let before = self.ids.clone();
        for line in lines {
            let entry = match line {
                Branch(above) => {
                    self.parent = before.iter().rev().nth(*above).cloned();
                    continue;
                }
                Torn => {
                    self.text.push_str("{\"type\":\"message\",\"id\":\"00\n");
                    continue;
                }
                User(text) => message(
                    &json!({"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1}),
                ),
                Agent(text, stop_reason) => {
                    let content = json!([{"type": "text", "text": text}]);
                    agent(
                        &if text.is_empty() { json!([]) } else { content },
                        stop_reason,
                    )
                }
                Call => agent(
                    &json!([{"type": "toolCall", "id": "call_1", "name": "bash", "arguments": {"command": "true"}}]),
                    "toolUse",
                ),
                Result => message(
                    &json!({"role": "toolResult", "toolCallId": "call_1", "toolName": "bash",
                    "content": [{"type": "text", "text": "done"}], "isError": false, "timestamp": 1}),
                ),
                Other(entry) => entry.clone(),
            };
            self.entry(entry);
        }
    }

    fn entry(&mut self, mut entry: Value) {
        let id = format!("{:08x}", self.ids.len() + 1);
        entry["id"] = json!(id);
        entry["parentId"] = json!(self.parent);
        entry["timestamp"] = json!("2026-01-01T00:00:00.000Z");
        if entry["type"] == "compaction" {
            entry["firstKeptEntryId"] = json!(self.parent);
        }
        self.text.push_str(&format!("{entry}\n"));
        self.parent = Some(id.clone());
        self.ids.push(id);
    }
}

fn message(message: &Value) -> Value {
    json!({"type": "message", "message": message})
}

fn agent(content: &Value, stop_reason: &str) -> Value {
    let usage = json!({"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 2,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}});
    message(
        &json!({"role": "assistant", "content": content, "api": "openai-completions",
        "provider": "fake", "model": "fake-text", "usage": usage, "stopReason": stop_reason, "timestamp": 1}),
    )
}

/// The mark of a file that ended after `before` when the message was sent.
fn mark(kind: Mark, file: &Path, before: &str) -> Option<Value> {
    let tail = &before.as_bytes()[before.len().saturating_sub(4096)..];
    let digest = Sha256::digest(tail);
    let tail: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut mark = json!({"sessionFile": file, "bytes": before.len(), "tail": tail});
    match kind {
        Mark::Right => {}
        Mark::Absent => return None,
        Mark::OtherFile => mark["sessionFile"] = json!(file.with_extension("other")),
        Mark::Early => mark["bytes"] = json!(before.len() - 1),
        Mark::Late => mark["bytes"] = json!(before.len() + 1),
        Mark::BeyondTheEnd => mark["bytes"] = json!(1_000_000),
        Mark::Rewritten => mark["tail"] = json!("0".repeat(64)),
    }
    Some(mark)
}

/// Sends the message again to a session that holds these lines.
fn is(place: &Place, name: &str, before: &[Line], behind: &[Line], kind: Mark, outcome: &Outcome) {
    let folder = place.path("agent/sessions/table");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{name}.jsonl").replace(' ', "-"));
    let mut writer = Writer::new(&place.path("lane"));
    writer.write(before);
    let mark = mark(kind, &file, &writer.text);
    writer.write(behind);
    std::fs::write(&file, &writer.text).unwrap();
    let (mut host, _) =
        place.ready_host(&json!({"session": {"sessionFile": file, "resume": true}}));
    let asked = place.model.requests().len();
    let mut recovery = json!({"forceExpireActiveRun": true});
    if let Some(mark) = mark {
        recovery["sessionMark"] = mark;
    }
    let response =
        host.ask(&json!({"type": "send", "turnId": "t", "prompt": MESSAGE, "recovery": recovery}));
    match outcome {
        Sent(context) => {
            assert_eq!(
                response["result"]["status"], "completed",
                "{name}: {response}"
            );
            assert_eq!(place.last_context(), *context, "{name}");
        }
        Refused(words) => {
            assert_eq!(
                response["errorCode"], "delivered_outcome_unknown",
                "{name}: {response}"
            );
            let error = response["error"].as_str().unwrap();
            assert!(error.contains(words), "{name}: {error}");
            assert_eq!(place.model.requests().len(), asked, "{name}");
        }
    }
}

#[test]
fn what_stands_behind_the_mark_is_of_the_turn() {
    let place = Place::new();
    let model =
        || Other(json!({"type": "model_change", "provider": "fake", "modelId": "fake-text"}));
    let thinking = || Other(json!({"type": "thinking_level_change", "thinkingLevel": "off"}));
    let compaction =
        || Other(json!({"type": "compaction", "summary": "they talked", "tokensBefore": 9}));
    let custom = || Other(json!({"type": "custom", "customType": "note", "data": {}}));
    let aborted = || Agent("", "aborted");
    let rows: Vec<(&str, Vec<Line>, Outcome)> = vec![
        ("not there", vec![], Sent(&["X", "X"])),
        (
            "only choices there",
            vec![model(), thinking(), custom()],
            Sent(&["X", "X"]),
        ),
        ("there alone", vec![model(), User("X")], Sent(&["X", "X"])),
        (
            "there and aborted before a word",
            vec![User("X"), aborted()],
            Sent(&["X", "X"]),
        ),
        (
            "there and failed twice before a word",
            vec![User("X"), Agent("", "error"), Agent("", "error"), custom()],
            Sent(&["X", "X"]),
        ),
        ("half of it there", vec![Torn], Sent(&["X", "X"])),
        (
            "half a line behind it",
            vec![User("X"), Torn],
            Refused(BEGUN),
        ),
        ("called a tool", vec![User("X"), Call], Refused(BEGUN)),
        (
            "called a tool and was aborted",
            vec![User("X"), Call, Result, aborted()],
            Refused(BEGUN),
        ),
        (
            "half an answer",
            vec![User("X"), Agent("half", "aborted")],
            Refused(BEGUN),
        ),
        (
            "made short in the turn",
            vec![User("X"), Call, Result, compaction()],
            Refused(BEGUN),
        ),
        (
            "answered",
            vec![User("X"), Agent("done", "stop")],
            Refused(FINISHED),
        ),
        (
            "answered after a tool",
            vec![User("X"), Call, Result, Agent("done", "stop")],
            Refused(FINISHED),
        ),
        (
            "cut off by its length",
            vec![User("X"), Agent("done", "length")],
            Refused(FINISHED),
        ),
        (
            "steered",
            vec![User("X"), Call, Result, User("left"), Agent("done", "stop")],
            Refused(FINISHED),
        ),
        (
            "steered and not answered",
            vec![User("X"), Call, Result, User("left")],
            Refused(BEGUN),
        ),
        (
            "steered with the same text",
            vec![User("X"), Call, Result, User("X")],
            Refused(BEGUN),
        ),
        (
            "with an image",
            vec![User("X\n\n[image: 1x1]"), Agent("done", "stop")],
            Refused(FINISHED),
        ),
        (
            "changed by a template",
            vec![User("Y"), Agent("done", "stop")],
            Refused(FINISHED),
        ),
        ("changed and alone", vec![User("Y")], Sent(&["X", "X"])),
        (
            "work without a message",
            vec![Agent("done", "stop")],
            Refused(BEGUN),
        ),
        (
            "another writer beside it",
            vec![User("X"), Branch(0), User("cli"), Agent("done", "stop")],
            Sent(&["X", "cli", "X"]),
        ),
        (
            "another writer behind it",
            vec![User("X"), User("cli"), Agent("done", "stop")],
            Refused(FINISHED),
        ),
        (
            "another writer alone",
            vec![User("cli"), Agent("done", "stop")],
            Refused(FINISHED),
        ),
        (
            "on a branch of its own",
            vec![Branch(1), User("X")],
            Sent(&["X", "X"]),
        ),
        (
            "answered on a branch of its own",
            vec![
                Branch(0),
                User("X"),
                Agent("done", "stop"),
                Branch(0),
                custom(),
            ],
            Refused(FINISHED),
        ),
    ];
    for (name, behind, outcome) in &rows {
        // The same message before, with an answer.
        let before = [User("X"), Agent("done", "stop")];
        is(&place, name, &before, behind, Mark::Right, outcome);
    }
    let long: &'static str = "y".repeat(10_000).leak();
    let twice = [
        User("X"),
        Agent("done", "stop"),
        User("X"),
        Agent(long, "stop"),
    ];
    is(
        &place,
        "a third time",
        &twice,
        &[User("X")],
        Mark::Right,
        &Sent(&["X", "X", "X"]),
    );
    let given_up = [User("X"), aborted()];
    is(
        &place,
        "after one that was given up",
        &given_up,
        &[],
        Mark::Right,
        &Sent(&["X", "X"]),
    );
}

#[test]
fn without_a_mark_that_fits_nothing_is_done_twice() {
    let place = Place::new();
    let marks = [
        Mark::Absent,
        Mark::OtherFile,
        Mark::Early,
        Mark::Late,
        Mark::BeyondTheEnd,
        Mark::Rewritten,
    ];
    for kind in marks {
        let name = format!("{kind:?}");
        let before = [User("hi"), Agent("done", "stop")];
        let behind = [
            User("X"),
            Agent("done", "stop"),
            User("left"),
            Agent("done", "stop"),
        ];
        is(&place, &name, &before, &behind, kind, &Refused(DOUBT));
    }
    let other = [User("hi"), Agent("done", "stop")];
    is(
        &place,
        "not there",
        &other,
        &[],
        Mark::Absent,
        &Sent(&["hi", "X"]),
    );
    is(
        &place,
        "alone",
        &other,
        &[User("X")],
        Mark::Absent,
        &Sent(&["hi", "X"]),
    );
}

#[test]
fn a_session_that_has_no_file_yet_holds_no_message() {
    let place = Place::new();
    for kind in [Mark::Right, Mark::Absent] {
        let (mut host, ready) = place.ready_host(&json!({}));
        let file = Path::new(ready["sessionFile"].as_str().unwrap());
        let mark = mark(kind, file, "").unwrap_or(Value::Null);
        let recovery = json!({"forceExpireActiveRun": true, "sessionMark": mark});
        let response = host
            .ask(&json!({"type": "send", "turnId": "t", "prompt": MESSAGE, "recovery": recovery}));
        assert_eq!(response["result"]["status"], "completed", "{response}");
        assert_eq!(place.last_context(), ["X"]);
    }
}
