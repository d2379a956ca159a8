//! Canonical events: what a session says, whoever the provider is.
//!
//! A turn's events always end with exactly one [`Event::Done`]; it is the
//! terminal event. `status` and `error` before it explain it.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use schemars::JsonSchema;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::card::{Card, CardOutcome};
use crate::{Generation, RequestId, Seq, SessionId, TurnId};

/// One canonical event.
///
/// The broker writes `user_message`, `status`, `done`, cards and notices, and an
/// `error` before a turn that failed; workers send the rest. Which is whose is
/// decided by [`EventKind::author`], and both a worker and the broker ask it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "snake_case",
    rename_all_fields = "camelCase",
    tag = "type"
)]
pub enum Event {
    /// What the user said.
    UserMessage {
        /// The message, verbatim.
        text: String,
        /// How it reached the agent.
        #[serde(default)]
        via: Via,
    },
    /// A fragment of the answer. Fragments of one message concatenate verbatim.
    Text {
        /// The message that the fragment belongs to.
        message_id: String,
        /// The fragment.
        text: String,
    },
    /// A fragment of the agent's reasoning. Concatenates like `text`.
    Reasoning {
        /// The message that the fragment belongs to.
        message_id: String,
        /// The fragment.
        text: String,
    },
    /// The agent calls a tool.
    ToolCall {
        /// Joins the call with its result.
        call_id: String,
        /// The tool's name.
        name: String,
        /// The tool's arguments.
        #[serde(default)]
        input: serde_json::Value,
    },
    /// A tool answered, or was denied.
    ToolResult {
        /// The call that is answered.
        call_id: String,
        /// The tool's name.
        name: String,
        /// False when the tool failed or was denied.
        ok: bool,
        /// What the agent was told.
        text: String,
    },
    /// The turn changed its state.
    Status {
        /// The new state.
        status: TurnStatus,
    },
    /// The turn is over. Exactly one a turn.
    Done {
        /// How it ended: never `started`.
        status: TurnStatus,
        /// The provider's own word for why it stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_reason: Option<String>,
        /// What it cost, as the provider tells it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<serde_json::Value>,
    },
    /// Something failed.
    Error {
        /// Which class of failure.
        category: ErrorCategory,
        /// One sentence for people.
        message: String,
        /// More, such as the end of the host's stderr.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// A sign of life that is shown and forgotten. Never persisted.
    Activity {
        /// What is going on.
        text: String,
    },
    /// How full the model's context is.
    ContextUsage {
        /// Tokens in use, where known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<u64>,
        /// Tokens that fit.
        context_window: u64,
    },
    /// The provider shortened its context.
    ContextCompact {
        /// `started`, `completed` or `failed`.
        phase: String,
        /// More for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A question is open; the turn blocks on it.
    CardOpened {
        /// The question.
        card: Box<Card>,
    },
    /// A question is settled.
    CardResolved {
        /// The question that was settled.
        card_id: RequestId,
        /// How.
        resolution: CardOutcome,
    },
    /// Something that the user should know; nothing waits for an answer.
    Notice {
        /// How loud.
        level: NoticeLevel,
        /// The text.
        message: String,
    },
    /// A type that this version does not know. Readers show nothing for it.
    #[serde(other)]
    Unknown,
}

/// How a user's message reached the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// As a turn of its own.
    #[default]
    Send,
    /// Into the running turn.
    Steer,
}

/// State of a turn as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    /// It runs.
    Started,
    /// It ended by itself.
    Completed,
    /// The user, or a stop, ended it.
    Interrupted,
    /// It could not go on.
    Failed,
}

/// Classes of failure, in the order in which they are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCategory {
    /// The provider already runs something for this session.
    Busy,
    /// The provider wants us to slow down.
    RateLimit,
    /// The connection to the provider broke.
    Network,
    /// A session, agent or model is not there.
    NotFound,
    /// The provider does not accept the credentials.
    Auth,
    /// Somebody did not keep to the frame protocol.
    Protocol,
    /// The worker or its host ended before the turn did.
    Exited,
    /// Another live writer holds the session file, or took it from us. Not in
    /// the list of the protocol's first text, as is the next one: both are
    /// additions, so that a script can tell them from what is not known.
    Lease,
    /// Nothing happened until a deadline.
    TimedOut,
    /// None of these, or a class that this version does not know.
    #[serde(other)]
    Unknown,
}

/// How loud a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoticeLevel {
    /// Good to know.
    Info,
    /// Worth a look.
    Warn,
    /// Something is wrong.
    Error,
    /// A step of something longer.
    Progress,
}

/// Where an event came from, when a worker sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Origin {
    /// The worker's generation.
    pub generation: Generation,
    /// The event's number within that generation.
    pub seq: Seq,
}

/// An event with its place in the transcript, borrowed from the line it was
/// read from. The event itself stays raw: whoever only forwards it does not
/// parse it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<E = Box<RawValue>> {
    /// The session.
    pub session_id: SessionId,
    /// Counts from 1 without gaps. Events that are not persisted carry the
    /// number of the last persisted one.
    pub sequence: Seq,
    /// RFC 3339, UTC, milliseconds.
    pub timestamp: String,
    /// The turn, where it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The worker and its number, when a worker sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The event.
    pub event: E,
}

/// Which event it is: its `type` and nothing else.
///
/// Has every type of the protocol, those included that no part of this version
/// makes or shows yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is named like the type it stands for")]
pub enum EventKind {
    UserMessage,
    Text,
    Reasoning,
    ToolCall,
    ToolResult,
    Command,
    FileChange,
    Plan,
    TodoUpdate,
    Status,
    Done,
    Error,
    Activity,
    ContextUsage,
    ContextCompact,
    CardOpened,
    CardResolved,
    Notice,
    SubagentStarted,
    SubagentProgress,
    SubagentResult,
    TranscriptRetraction,
    /// A type that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Who may write an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// The broker alone: the event says how a turn stands, what the user said or
    /// decided, or what counts in the transcript.
    Broker,
    /// A worker, in the words of its agent.
    Worker,
}

impl EventKind {
    /// Who may write events of this kind. A kind that is not known is not
    /// anybody's to send: it might be a word of a later broker.
    #[must_use]
    pub fn author(self) -> Author {
        // Without a catch-all: a new kind has to be decided here.
        match self {
            Self::Text
            | Self::Reasoning
            | Self::ToolCall
            | Self::ToolResult
            | Self::Command
            | Self::FileChange
            | Self::Plan
            | Self::TodoUpdate
            | Self::Error
            | Self::Activity
            | Self::ContextUsage
            | Self::ContextCompact
            | Self::SubagentStarted
            | Self::SubagentProgress
            | Self::SubagentResult => Author::Worker,
            Self::UserMessage
            | Self::Status
            | Self::Done
            | Self::CardOpened
            | Self::CardResolved
            | Self::Notice
            | Self::TranscriptRetraction
            | Self::Unknown => Author::Broker,
        }
    }
}

impl Event {
    /// Which event it is.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::UserMessage { .. } => EventKind::UserMessage,
            Self::Text { .. } => EventKind::Text,
            Self::Reasoning { .. } => EventKind::Reasoning,
            Self::ToolCall { .. } => EventKind::ToolCall,
            Self::ToolResult { .. } => EventKind::ToolResult,
            Self::Status { .. } => EventKind::Status,
            Self::Done { .. } => EventKind::Done,
            Self::Error { .. } => EventKind::Error,
            Self::Activity { .. } => EventKind::Activity,
            Self::ContextUsage { .. } => EventKind::ContextUsage,
            Self::ContextCompact { .. } => EventKind::ContextCompact,
            Self::CardOpened { .. } => EventKind::CardOpened,
            Self::CardResolved { .. } => EventKind::CardResolved,
            Self::Notice { .. } => EventKind::Notice,
            Self::Unknown => EventKind::Unknown,
        }
    }
}

/// The `type` of a raw canonical event.
#[derive(Clone, Debug)]
pub struct EventType<'a> {
    /// As a kind.
    pub kind: EventKind,
    /// As it was written.
    pub name: Cow<'a, str>,
}

/// The `type` of a raw canonical event. The rest is read over, so that a second
/// `type` behind it does not go unnoticed.
///
/// # Errors
/// When the text is not a JSON object with one string `type`.
pub fn event_type(raw: &RawValue) -> Result<EventType<'_>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Peek<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
    }
    let name = match plain_type(raw.get()) {
        Some(name) => Cow::Borrowed(name),
        None => crate::strict::from_str::<Peek<'_>>(raw.get())?.kind,
    };
    let text: StrDeserializer<'_, serde::de::value::Error> = name.as_ref().into_deserializer();
    let kind = EventKind::deserialize(text).unwrap_or(EventKind::Unknown);
    Ok(EventType { kind, name })
}

/// The `type` of an object that begins with it and surely has no other. Inside
/// a string the key can't stand, because its quotes would be escaped there, and
/// in escapes it can be written only with `\u`. Every event is looked at on its
/// way, and this is many times faster than reading it.
fn plain_type(text: &str) -> Option<&str> {
    static KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"type\""));
    static ESCAPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\\u"));
    let (name, rest) = text.strip_prefix(r#"{"type":""#)?.split_once('"')?;
    let is_plain = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let is_only = [&*KEY, &*ESCAPE].map(|other| other.find(rest.as_bytes()).is_none());
    (is_plain && is_only == [true, true]).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(EventKind, String), serde_json::Error> {
        let raw = RawValue::from_string(text.to_owned()).expect("JSON");
        event_type(&raw).map(|read| (read.kind, read.name.into_owned()))
    }

    /// The list of the protocol: who writes which event.
    #[test]
    fn only_what_an_agent_says_is_a_workers_to_write() {
        let workers = "text reasoning tool_call tool_result command file_change plan todo_update \
                       error activity context_usage context_compact subagent_started \
                       subagent_progress subagent_result";
        let brokers = "user_message status done card_opened card_resolved notice \
                       transcript_retraction something_new Done text\\u0000";
        for (names, author) in [(workers, Author::Worker), (brokers, Author::Broker)] {
            for name in names.split_whitespace() {
                let (kind, _) = read(&format!(r#"{{"x":1,"type":"{name}"}}"#)).expect(name);
                assert_eq!(kind.author(), author, "{name}");
            }
        }
    }

    #[test]
    fn a_type_cannot_be_hidden() {
        let (kind, name) = read(r#"{"typ\u0065":"d\u006fne"}"#).expect("a type");
        assert_eq!((kind, name.as_str()), (EventKind::Done, "done"));
        for text in [
            r#"{"type":"text","text":"x","type":"done"}"#,
            r#"{"type":"text","text":"x","typ\u0065":"done"}"#,
            r#"["done"]"#,
            r#"{"type":["done"]}"#,
            r#"{"type":7}"#,
            "{}",
            "7",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_failure_of_a_later_class_is_a_failure_all_the_same() {
        let text = r#"{"type":"error","category":"weather","message":"it rains"}"#;
        let event: Event = crate::strict::from_str(text).expect("an event");
        assert!(matches!(
            event,
            Event::Error {
                category: ErrorCategory::Unknown,
                ..
            }
        ));
        assert_eq!(
            serde_json::to_value(ErrorCategory::Unknown).expect("JSON"),
            "unknown"
        );
    }

    #[test]
    fn an_event_has_the_kind_that_is_read_from_it() {
        for event in [
            Event::Activity { text: "x".into() },
            Event::Status {
                status: TurnStatus::Started,
            },
            Event::Notice {
                level: NoticeLevel::Info,
                message: "x".into(),
            },
        ] {
            let text = serde_json::to_string(&event).expect("JSON");
            assert_eq!(read(&text).expect("a type").0, event.kind());
        }
    }
}
