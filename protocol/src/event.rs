//! Canonical events: what a session says, whoever the provider is.
//!
//! A turn's events always end with exactly one [`Event::Done`]; it is the
//! terminal event. `status` and `error` before it explain it.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::card::{Card, CardOutcome};
use crate::{Generation, RequestId, Seq, SessionId, TurnId};

/// One canonical event.
///
/// The broker writes `user_message`, `status`, `error`, `done`, cards and
/// notices; workers send the rest.
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
    /// Another live writer holds the session file, or took it from us.
    Lease,
    /// Nothing happened until a deadline.
    TimedOut,
    /// None of these.
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

/// The `type` of a raw canonical event, read without looking at the rest.
///
/// # Errors
/// When the text is not a JSON object with a string `type`.
pub fn event_type(raw: &RawValue) -> Result<Cow<'_, str>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Peek<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
    }
    serde_json::from_str::<Peek<'_>>(raw.get()).map(|peek| peek.kind)
}
