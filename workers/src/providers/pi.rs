//! Pi's SDK events, made lean by the host, as canonical events.
//!
//! Nothing that Pi says before the model was asked (agent and turn starts, the
//! user's own message) becomes an event: the first event of a turn must mean
//! that the model answers. Errors are no events either: a failed message may be
//! retried, and the last one comes as the result of `send`.

use ade_protocol::Generation;
use ade_protocol::event::{Event, NoticeLevel};
use ade_protocol::strict;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::MapError;

/// Characters of a running tool's output that are shown as a sign of life.
const ACTIVITY: usize = 200;

#[derive(Debug)]
pub(crate) struct Mapper {
    generation: Generation,
    messages: u64,
}

/// The union of the fields that are looked at; which are there depends on the
/// type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PiEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    assistant_message_event: Option<Update<'a>>,
    message: Option<Message>,
    tool_call_id: Option<String>,
    tool_name: Option<String>,
    args: Option<serde_json::Value>,
    result: Option<Output>,
    partial_result: Option<Output>,
    is_error: Option<bool>,
    reason: Option<String>,
    error_message: Option<String>,
    aborted: Option<bool>,
    attempt: Option<u64>,
    max_attempts: Option<u64>,
    delay_ms: Option<u64>,
    name: Option<String>,
}

#[derive(Deserialize)]
struct Update<'a> {
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
    delta: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    role: Option<String>,
}

/// A tool's result; of a compaction's the fields are absent.
#[derive(Default, Deserialize)]
struct Output {
    #[serde(default)]
    content: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    mime_type: Option<String>,
}

impl Mapper {
    pub(super) fn new(generation: Generation) -> Self {
        Self {
            generation,
            messages: 0,
        }
    }

    pub(super) fn map(&mut self, raw: &RawValue) -> Result<Option<Event>, MapError> {
        let event: PiEvent<'_> = strict::from_str(raw.get())?;
        let mapped = match event.kind.as_ref() {
            "message_start" => {
                // Pi's deltas name no message. Counting makes ids that are
                // unique in the transcript together with the generation.
                let role = event.message.and_then(|message| message.role);
                self.messages += u64::from(role.as_deref() == Some("assistant"));
                None
            }
            "message_update" => event
                .assistant_message_event
                .and_then(|update| self.fragment(update)),
            "tool_execution_start" => Some(Event::ToolCall {
                call_id: need(event.tool_call_id, "toolCallId")?,
                name: need(event.tool_name, "toolName")?,
                input: event.args.unwrap_or_default(),
            }),
            "tool_execution_update" => running(event.tool_name, event.partial_result),
            "tool_execution_end" => Some(Event::ToolResult {
                call_id: need(event.tool_call_id, "toolCallId")?,
                name: need(event.tool_name, "toolName")?,
                ok: event.is_error != Some(true),
                text: event.result.unwrap_or_default().text(),
            }),
            "compaction_start" => Some(Event::ContextCompact {
                phase: "started".into(),
                message: event.reason,
            }),
            "compaction_end" => {
                let failed = event.error_message.is_some() || event.aborted == Some(true);
                let phase = if failed { "failed" } else { "completed" };
                Some(Event::ContextCompact {
                    phase: phase.into(),
                    message: event.error_message,
                })
            }
            "auto_retry_start" => Some(retry(&event)),
            "session_info_changed" => event.name.map(|name| Event::Notice {
                level: NoticeLevel::Info,
                message: format!("The session is called {name:?} now."),
            }),
            _ => None,
        };
        Ok(mapped)
    }

    fn fragment(&self, update: Update<'_>) -> Option<Event> {
        let message_id = format!("g{}-m{}", self.generation, self.messages);
        let text = update.delta.filter(|delta| !delta.is_empty())?;
        match update.kind.as_ref() {
            "text_delta" => Some(Event::Text { message_id, text }),
            "thinking_delta" => Some(Event::Reasoning { message_id, text }),
            _ => None,
        }
    }
}

fn need(field: Option<String>, name: &str) -> Result<String, MapError> {
    field.ok_or_else(|| MapError(format!("field `{name}` is missing")))
}

impl Output {
    /// The text parts, and a word for what is no text.
    fn text(&self) -> String {
        let part = |part: &Part| match (&part.text, &part.mime_type) {
            (Some(text), _) => text.clone(),
            (None, Some(kind)) => format!("[{kind}]"),
            (None, None) => String::new(),
        };
        self.content.iter().map(part).collect()
    }
}

/// The last line of what a running tool has printed so far.
fn running(tool: Option<String>, partial: Option<Output>) -> Option<Event> {
    let text = partial?.text();
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    let line: String = line
        .chars()
        .filter(|c| !c.is_control())
        .take(ACTIVITY)
        .collect();
    Some(Event::Activity {
        text: format!("{}: {line}", tool.unwrap_or_else(|| "tool".into())),
    })
}

fn retry(event: &PiEvent<'_>) -> Event {
    let number =
        |value: Option<u64>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
    let why: String = event
        .error_message
        .iter()
        .flat_map(|text| text.chars())
        .take(ACTIVITY)
        .collect();
    let seconds = event.delay_ms.unwrap_or_default().div_ceil(1000);
    Event::Activity {
        text: format!(
            "retrying in {seconds} s (attempt {} of {}): {why}",
            number(event.attempt),
            number(event.max_attempts)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(mapper: &mut Mapper, text: &str) -> Option<Event> {
        mapper
            .map(&RawValue::from_string(text.to_owned()).unwrap())
            .unwrap()
    }

    fn trace(text: &str) -> Vec<Event> {
        let mut mapper = Mapper::new(Generation(3));
        text.lines()
            .filter_map(|line| map(&mut mapper, line))
            .collect()
    }

    #[test]
    fn a_recorded_turn_becomes_canonical_events() {
        let events = trace(include_str!("../../tests/fixtures/pi-sdk-events.jsonl"));
        let mut text = String::new();
        let mut tools = Vec::new();
        for event in &events {
            match event {
                Event::Text {
                    message_id,
                    text: fragment,
                } if message_id == "g3-m1" => {
                    text.push_str(fragment);
                }
                Event::Text { .. } | Event::Activity { .. } => {}
                Event::ToolCall {
                    call_id,
                    name,
                    input,
                } => {
                    assert!(input.is_object());
                    tools.push(format!("{name} called as {call_id}"));
                }
                Event::ToolResult {
                    call_id, name, ok, ..
                } => {
                    tools.push(format!("{name} answered as {call_id}: {ok}"));
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(text, "Hello from the fake model.");
        let expected = [
            "bash called as call_58_0",
            "bash answered as call_58_0: true",
            "echo_upper called as call_59_0",
            "echo_upper answered as call_59_0: true",
        ];
        assert_eq!(tools, expected);
    }

    #[test]
    fn compaction_is_told() {
        let events = trace(include_str!(
            "../../tests/fixtures/pi-sdk-compaction-events.jsonl"
        ));
        let phase = |event: &Event| match event {
            Event::ContextCompact { phase, .. } => Some(phase.clone()),
            _ => None,
        };
        let phases: Vec<String> = events.iter().filter_map(phase).collect();
        assert_eq!(phases, ["started", "completed"]);
    }

    #[test]
    fn signs_of_life_and_failures() {
        let mut mapper = Mapper::new(Generation(1));
        let update = r#"{"type":"tool_execution_update","toolName":"bash","partialResult":{"content":[{"type":"text","text":"one\ntwo\n\n"}]}}"#;
        assert_eq!(
            map(&mut mapper, update),
            Some(Event::Activity {
                text: "bash: two".into()
            })
        );
        let empty =
            r#"{"type":"tool_execution_update","toolName":"bash","partialResult":{"content":[]}}"#;
        assert_eq!(map(&mut mapper, empty), None);
        let retry = r#"{"type":"auto_retry_start","attempt":1,"maxAttempts":3,"delayMs":2000,"errorMessage":"500: oops"}"#;
        let text = "retrying in 2 s (attempt 1 of 3): 500: oops".to_owned();
        assert_eq!(map(&mut mapper, retry), Some(Event::Activity { text }));
        let failed = r#"{"type":"compaction_end","errorMessage":"too small"}"#;
        let message = Some("too small".to_owned());
        let event = Event::ContextCompact {
            phase: "failed".into(),
            message,
        };
        assert_eq!(map(&mut mapper, failed), Some(event));
        let denied = r#"{"type":"tool_execution_end","toolCallId":"c","toolName":"bash","result":{"content":[{"type":"image","mimeType":"image/png"}]},"isError":true}"#;
        let result = map(&mut mapper, denied);
        assert!(
            matches!(result, Some(Event::ToolResult { ok: false, text, .. }) if text == "[image/png]")
        );
    }

    #[test]
    fn what_comes_before_the_model_is_no_event() {
        let mut mapper = Mapper::new(Generation(1));
        for text in [
            r#"{"type":"agent_start"}"#,
            r#"{"type":"message_start","message":{"role":"user","content":[{"type":"text","text":"hi"}]}}"#,
            r#"{"type":"message_start","message":{"role":"assistant"}}"#,
            r#"{"type":"message_end","message":{"role":"assistant","stopReason":"error","errorMessage":"401"}}"#,
            r#"{"type":"something_new","name":"x"}"#,
        ] {
            assert_eq!(map(&mut mapper, text), None, "{text}");
        }
        let broken = RawValue::from_string(r#"{"type":"tool_execution_start"}"#.into()).unwrap();
        assert!(mapper.map(&broken).is_err());
    }
}
