//! What the server answers: a pure function of the request, the model id and the directives.

use std::time::Duration;

use serde_json::{Value, json};

/// Pause between the words of an ordinary answer: long enough for fragments to be separate reads.
const WORD_PAUSE: Duration = Duration::from_millis(5);
/// Words of a `fake-drip` answer.
const DRIP_WORDS: usize = 200;
/// Fragments of a `fake-flood` answer, each of [`FLOOD_FRAGMENT`] bytes, without a pause.
const FLOOD_FRAGMENTS: usize = 50_000;
const FLOOD_FRAGMENT: usize = 100;

/// What a request gets.
#[derive(Debug)]
pub(crate) enum Answer {
    Problem {
        status: u16,
        message: String,
        kind: &'static str,
    },
    /// Not even a status line.
    Never,
    Stream(Vec<Step>),
}

#[derive(Debug)]
pub(crate) enum Step {
    /// One SSE `data:` line.
    Chunk(String),
    Pause(Duration),
    /// Nothing more, and the connection stays open.
    Hang,
    /// The connection ends in the middle of the answer.
    Cut,
}

/// Chooses the answer by the model id.
///
/// `fake-401`, `fake-429`, `fake-500`: that status. `fake-flaky`: 503 the first time a text is
/// asked. `fake-wedge`: nothing, ever. `fake-wedge-mid`: half an answer, then nothing. `fake-cut`:
/// half an answer, then the connection is cut. `fake-drip`: 200 words, slowly. `fake-flood`: 5 MB
/// of text at once. `fake-think`: reasoning before the text. `fake-echo`: the text of every user
/// message of the context, one a line. Anything else: tool calls as directed, or a fixed sentence.
pub(crate) fn answer(request: &Value, n: u64, first_time: bool, drip: Duration) -> Answer {
    let model = request["model"].as_str().unwrap_or_default();
    let refuse = |status, message: &str, kind| Answer::Problem {
        status,
        message: message.into(),
        kind,
    };
    match model {
        "fake-401" => return refuse(401, "bad key", "invalid_request_error"),
        "fake-429" => return refuse(429, "fake rate limit", "rate_limit_error"),
        "fake-500" => return refuse(500, "fake internal error", "server_error"),
        "fake-flaky" if first_time => return refuse(503, "overloaded", "server_error"),
        "fake-wedge" => return Answer::Never,
        _ => {}
    }
    let mut script = Script::new(model, n);
    match model {
        "fake-wedge-mid" => {
            script.text("half");
            return script.then(Step::Hang);
        }
        "fake-cut" => {
            script.text("partial text");
            script.steps.push(Step::Pause(Duration::from_millis(20)));
            return script.then(Step::Cut);
        }
        "fake-drip" => {
            for word in 0..DRIP_WORDS {
                script.text(&format!("w{word} "));
                script.steps.push(Step::Pause(drip));
            }
            return script.finish("stop");
        }
        "fake-flood" => {
            for _ in 0..FLOOD_FRAGMENTS {
                script.text(&"x".repeat(FLOOD_FRAGMENT));
            }
            return script.finish("stop");
        }
        "fake-echo" => {
            script.words(&user_texts(request).join("\n"));
            return script.finish("stop");
        }
        "fake-think" => script.reason(&["Let me ", "think."]),
        _ => {}
    }
    let (after, text) = last_user(request);
    let calls = tool_calls(request, after, &text);
    if !calls.is_empty() {
        script.text("I will use a tool.");
        script.call(&calls);
        return script.finish("tool_calls");
    }
    script.words(if after > 0 {
        "The tool is done."
    } else {
        "Hello from the fake model."
    });
    script.finish("stop")
}

/// The tool calls that are due: none without tools in the request (a summary must not call any).
fn tool_calls(request: &Value, results: usize, text: &str) -> Vec<Directive> {
    if request["tools"].as_array().is_none_or(Vec::is_empty) {
        return Vec::new();
    }
    let due = directives(text).into_iter().skip(results);
    if text.contains("PARALLEL") {
        due.collect()
    } else {
        due.take(1).collect()
    }
}

/// Builds the chunks of one answer.
struct Script {
    model: String,
    n: u64,
    steps: Vec<Step>,
}

impl Script {
    fn new(model: &str, n: u64) -> Self {
        let mut script = Self {
            model: model.into(),
            n,
            steps: Vec::new(),
        };
        script.delta(&json!({"role": "assistant", "content": ""}));
        script
    }

    fn delta(&mut self, delta: &Value) {
        self.chunk(
            &json!([{"index": 0, "delta": delta, "finish_reason": null}]),
            None,
        );
    }

    fn chunk(&mut self, choices: &Value, usage: Option<Value>) {
        let mut chunk = json!({
            "id": format!("chatcmpl-{}", self.n),
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": self.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        self.steps.push(Step::Chunk(chunk.to_string()));
    }

    fn text(&mut self, text: &str) {
        self.delta(&json!({"content": text}));
    }

    /// The text in pieces of one word each; the pieces concatenate to it exactly.
    fn words(&mut self, text: &str) {
        for word in text.split_inclusive(' ') {
            self.text(word);
            self.steps.push(Step::Pause(WORD_PAUSE));
        }
    }

    fn reason(&mut self, pieces: &[&str]) {
        for piece in pieces {
            self.delta(&json!({"reasoning_content": piece}));
            self.steps.push(Step::Pause(WORD_PAUSE));
        }
    }

    /// Each call in three pieces: its name, then its arguments in two halves.
    fn call(&mut self, calls: &[Directive]) {
        for (index, call) in calls.iter().enumerate() {
            let id = format!("call_{}_{index}", self.n);
            let function = json!({"name": call.tool, "arguments": ""});
            self.delta(&json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}));
            let (first, second) = call.arguments.split_at(half(&call.arguments));
            for piece in [first, second] {
                self.delta(
                    &json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}),
                );
            }
        }
    }

    fn finish(mut self, reason: &str) -> Answer {
        self.chunk(
            &json!([{"index": 0, "delta": {}, "finish_reason": reason}]),
            None,
        );
        let usage = json!({"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110});
        self.chunk(&json!([]), Some(usage));
        self.then(Step::Chunk("[DONE]".into()))
    }

    fn then(mut self, step: Step) -> Answer {
        self.steps.push(step);
        Answer::Stream(self.steps)
    }
}

/// A place near the middle that is not inside a character.
fn half(text: &str) -> usize {
    (text.len() / 2..text.len())
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(text.len())
}

/// The last user message: how many tool results follow it, and its text.
pub(crate) fn last_user(request: &Value) -> (usize, String) {
    let messages = request["messages"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let results = messages
        .iter()
        .rev()
        .take_while(|message| message["role"] != "user");
    let results = results.filter(|message| message["role"] == "tool").count();
    (results, user_texts(request).pop().unwrap_or_default())
}

fn user_texts(request: &Value) -> Vec<String> {
    let messages = request["messages"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    messages
        .iter()
        .filter(|message| message["role"] == "user")
        .map(|message| text_of(&message["content"]))
        .collect()
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts
                .iter()
                .filter_map(|part| part["text"].as_str())
                .collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Directive {
    tool: String,
    arguments: String,
}

/// Finds `TOOL:<name>:<JSON>` in a text. What is not that is passed over.
fn directives(text: &str) -> Vec<Directive> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("TOOL:") {
        rest = after;
        let Some((tool, value)) = after.split_once(':') else {
            continue;
        };
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<Value>();
        if let Some(Ok(arguments)) = values.next()
            && !tool.contains(char::is_whitespace)
        {
            let used = values.byte_offset();
            found.push(Directive {
                tool: tool.into(),
                arguments: arguments.to_string(),
            });
            rest = &value[used..];
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Answer, Directive, Step, answer, directives};
    use serde_json::{Value, json};
    use std::time::Duration;

    fn steps(request: &Value, first_time: bool) -> Vec<Step> {
        match answer(request, 1, first_time, Duration::ZERO) {
            Answer::Stream(steps) => steps,
            other => panic!("a stream was expected, not {other:?}"),
        }
    }

    fn chunks(steps: &[Step]) -> String {
        let chunks = steps.iter().filter_map(|step| match step {
            Step::Chunk(chunk) => Some(chunk.as_str()),
            _ => None,
        });
        chunks.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn directives_are_found_in_prose() {
        let text = r#"Please TOOL:bash:{"command":"echo {a:b} TOOL:x"} then TOOL:read:{"path":"é"} TOOL: nothing TOOL:y:z"#;
        let found = directives(text);
        let expected = [
            ("bash", r#"{"command":"echo {a:b} TOOL:x"}"#),
            ("read", r#"{"path":"é"}"#),
        ];
        let expected: Vec<Directive> = expected
            .iter()
            .map(|(tool, arguments)| Directive {
                tool: (*tool).into(),
                arguments: (*arguments).into(),
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn tools_come_one_by_one_or_all_at_once() {
        let text = r#"TOOL:bash:{"command":"1"} TOOL:bash:{"command":"2"}"#;
        let ask = |text: &str, results: usize| {
            let mut messages = vec![json!({"role": "user", "content": text})];
            messages.extend((0..results).map(|_| json!({"role": "tool", "content": "ok"})));
            json!({"model": "fake-text", "tools": [{}], "messages": messages})
        };
        let one = chunks(&steps(&ask(text, 0), true));
        assert!(
            one.contains("call_1_0") && !one.contains("call_1_1"),
            "{one}"
        );
        let both = chunks(&steps(&ask(&format!("{text} PARALLEL"), 0), true));
        assert!(
            both.contains("call_1_0") && both.contains("call_1_1"),
            "{both}"
        );
        let done = chunks(&steps(&ask(text, 2), true));
        assert!(
            done.contains("done.") && !done.contains("call_1_0"),
            "{done}"
        );
    }

    #[test]
    fn no_tools_in_the_request_no_calls_in_the_answer() {
        let request = json!({"model": "fake-text", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "TOOL:bash:{\"command\":\"1\"}"}]}]});
        assert!(!chunks(&steps(&request, true)).contains("tool_calls\":["));
    }

    #[test]
    fn a_flaky_model_fails_the_first_time_only() {
        let request =
            json!({"model": "fake-flaky", "messages": [{"role": "user", "content": "hi"}]});
        let first = answer(&request, 1, true, Duration::ZERO);
        assert!(
            matches!(first, Answer::Problem { status: 503, .. }),
            "{first:?}"
        );
        assert!(chunks(&steps(&request, false)).contains("[DONE]"));
    }

    #[test]
    fn an_echo_holds_every_user_message() {
        let request = json!({"model": "fake-echo", "messages": [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "reply"},
            {"role": "user", "content": "two"}]});
        let answer = chunks(&steps(&request, true));
        assert!(
            answer.contains("one\\ntwo") && !answer.contains("rules"),
            "{answer}"
        );
    }
}
