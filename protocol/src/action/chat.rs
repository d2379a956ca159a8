//! Arguments and results of the actions on a chat.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SessionInfo;
use crate::frame::SteerOutcome;
use crate::{Seq, SessionId, TurnId};

/// Which tools an agent has and which of them need a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PermissionMode {
    /// Reads only.
    Plan,
    /// Edits files without asking; no shell.
    Edit,
    /// Everything without asking.
    FullAuto,
    /// Everything; shell and edits ask.
    #[default]
    Default,
}

impl PermissionMode {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Edit => "edit",
            Self::FullAuto => "full-auto",
            Self::Default => "default",
        }
    }
}

/// Makes a chat. Starts no worker.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatCreate {
    /// Kind of agent.
    pub provider: String,
    /// Absolute path of the directory that the agent works in.
    pub lane: String,
    /// `provider/id`; absent: the provider's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The provider's word for how much to think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Tools and approvals.
    #[serde(default)]
    pub permission: PermissionMode,
    /// Continues an existing session file of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_file: Option<String>,
    /// Takes the session file over from an owner that this broker does not know,
    /// for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take_over: bool,
    /// The provider's own configuration folder; absent: as its own command line
    /// would find it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_dir: Option<String>,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Silence after a send until the worker is replaced, in milliseconds;
    /// absent: the provider's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_event_ms: Option<u64>,
}

/// Sends a message. While a turn runs it is queued behind it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatSend {
    /// The chat.
    pub session_id: SessionId,
    /// The message.
    pub prompt: String,
    /// Clears a `failed` state of the start budget first.
    #[serde(default)]
    pub retry: bool,
}

/// Result of [`ChatSend`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    /// The turn that the message is, or will be.
    pub turn_id: TurnId,
    /// Place in the chat's queue; 0: it runs now.
    pub place: usize,
    /// Sequence of the last event before the message: subscribe after it to
    /// see the whole turn.
    pub after: Seq,
}

/// Puts a message into the running turn.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatSteer {
    /// The chat.
    pub session_id: SessionId,
    /// The message.
    pub prompt: String,
}

/// Result of [`ChatSteer`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Steered {
    /// Where the message is now.
    pub outcome: SteerOutcome,
    /// The turn that it will be, when it was queued here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
}

/// What becomes of the queue when a message takes the running turn's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptMode {
    /// The same agent goes on with the message; what is queued rides through
    /// behind it. Not every provider can.
    Continue,
    /// The queue is cleared; for some seconds it can be brought back.
    Replace,
}

/// Ends the running turn and sends a message in its place.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatInterrupt {
    /// The chat.
    pub session_id: SessionId,
    /// The message.
    pub prompt: String,
    /// What becomes of the queue.
    pub mode: InterruptMode,
}

/// Result of [`ChatInterrupt`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatInterrupted {
    /// The turn that the message is, or will be in a moment.
    pub turn_id: TurnId,
    /// The turn that was told to end; absent: none ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<TurnId>,
    /// Messages that were cleared and can be brought back.
    pub cleared: usize,
    /// Sequence of the last event before the message.
    pub after: Seq,
}

/// Names one waiting message.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatQueueCancel {
    /// The chat.
    pub session_id: SessionId,
    /// The turn that the message would be.
    pub turn_id: TurnId,
}

/// Changes one waiting message.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatQueueEdit {
    /// The chat.
    pub session_id: SessionId,
    /// The turn that the message will be.
    pub turn_id: TurnId,
    /// Its new text.
    pub prompt: String,
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueuedMessage {
    /// The turn that it will be.
    pub turn_id: TurnId,
    /// The message.
    pub prompt: String,
    /// Whether it was meant to go into the running turn.
    pub steer: bool,
}

/// The messages that wait in a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatQueue {
    /// The next one first.
    pub messages: Vec<QueuedMessage>,
    /// Whether they wait for the next message of the user's, because a broker
    /// ended before they could run.
    pub held: bool,
    /// Messages that an interrupt cleared and that can still be brought back.
    pub recoverable: usize,
    /// Messages that this very call brought back; the first of them may run
    /// already and wait no more.
    #[serde(default)]
    pub recovered: usize,
}

/// Names one chat.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatRef {
    /// The chat.
    pub session_id: SessionId,
}

/// Ends the running turn.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatAbort {
    /// The chat.
    pub session_id: SessionId,
    /// Only if this turn runs; absent: whichever runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
}

/// Result of [`ChatAbort`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Aborted {
    /// The turn that was told to end; absent: none ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
}

/// Reads a chat and a piece of its transcript.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatShow {
    /// The chat.
    pub session_id: SessionId,
    /// Only events after this one.
    #[serde(default)]
    pub after: Seq,
    /// At most so many events; 1 to 10,000.
    #[serde(default = "ChatShow::default_limit")]
    pub limit: usize,
}

impl ChatShow {
    /// What `limit` is when it is not given.
    #[must_use]
    pub fn default_limit() -> usize {
        1_000
    }
}

/// Result of [`ChatShow`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatShown {
    /// The chat.
    pub session: SessionInfo,
    /// Envelopes, in order.
    pub events: Vec<Value>,
    /// Whether more follow.
    pub more: bool,
}

/// Changes the model of a chat.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatModel {
    /// The chat.
    pub session_id: SessionId,
    /// `provider/id`.
    pub model: String,
}

/// Changes how much a chat's agent thinks.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatThinking {
    /// The chat.
    pub session_id: SessionId,
    /// Null: the provider's own default.
    pub level: Option<String>,
}

/// Changes which tools a chat's agent has and which of them need a card.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatPermission {
    /// The chat.
    pub session_id: SessionId,
    /// Tools and approvals. A running turn goes on under those that it began
    /// with; the next one gets another worker.
    pub permission: PermissionMode,
}

/// How full the model's context is; what the agent does not know is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextUsed {
    /// Tokens in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens that fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// The one of the other, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
}

/// Shortens the context of a chat.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatCompact {
    /// The chat.
    pub session_id: SessionId,
    /// Added to the provider's own instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}
