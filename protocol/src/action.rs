//! Actions: everything that the control endpoint can do.
//!
//! Each action is one line of [`ACTIONS`]: a name, a sentence, the role that it
//! needs, the JSON Schemas of arguments and result (made from the types here)
//! and an example. The broker answers exactly these names; the command line and
//! the documentation are made from the same list.

use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::card::{Answer, Card};
use crate::event::TurnStatus;
use crate::frame::SteerOutcome;
use crate::rpc::RuntimeInfo;
use crate::{Generation, RequestId, Seq, SessionId, TurnId};

/// Who may call what. Ordered: a higher role may do all that a lower one may.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads only.
    Observer,
    /// An agent's own process tree: may talk, but answers no cards and stops
    /// nothing.
    Agent,
    /// The user who owns ADE_HOME.
    Cto,
}

/// Lists everything that can be done.
pub const ACTIONS_LIST: &str = "ade/actions/list";
/// Does one of them.
pub const ACTIONS_CALL: &str = "ade/actions/call";
/// Subscribes to events.
pub const SUBSCRIBE: &str = "ade/events/subscribe";
/// Ends a subscription.
pub const UNSUBSCRIBE: &str = "ade/events/unsubscribe";
/// Asks whether the broker is there.
pub const PING: &str = "ade/ping";

/// Parameters of [`ACTIONS_CALL`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallParams {
    /// Name of the action.
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Value,
}

/// Parameters of [`SUBSCRIBE`].
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscribeParams {
    /// One session; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Start with the event after this one, from the transcript. Absent: with
    /// the next event. Needs `sessionId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_sequence: Option<Seq>,
}

/// Result of [`SUBSCRIBE`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscribed {
    /// Names the subscription.
    pub subscription_id: u64,
    /// Cards that are open now.
    pub open_cards: Vec<Card>,
}

/// Parameters of [`UNSUBSCRIBE`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnsubscribeParams {
    /// As [`Subscribed`] named it.
    pub subscription_id: u64,
}

/// Parameters of the [`crate::rpc::GAP`] notification.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// The subscription that was too slow.
    pub subscription_id: u64,
    /// The session.
    pub session_id: SessionId,
    /// First event that was not sent.
    pub from: Seq,
    /// Last event that was not sent. The events are in the transcript.
    pub to: Seq,
}

/// Parameters of the [`crate::rpc::CARD`] notification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CardNotification {
    /// The card.
    pub card: Card,
    /// How it ended; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<crate::card::CardOutcome>,
}

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

/// Nothing to say.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A chat as `ade ps` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// The chat.
    pub session_id: SessionId,
    /// Kind of agent.
    pub provider: String,
    /// Canonical path of the lane.
    pub lane: String,
    /// `provider/id`, where known.
    pub model: Option<String>,
    /// Tools and approvals.
    pub permission: PermissionMode,
    /// Name for people.
    pub title: Option<String>,
    /// When it was made.
    pub created_at: String,
    /// `idle`, `starting`, `awaiting_first_event`, `streaming`,
    /// `awaiting_card`, `recovering`, `stopping`, `interrupting`, `attaching`,
    /// `failed`;
    /// `waiting`: its worker waits for a place among all workers.
    pub state: String,
    /// Its place in the line for a worker, from 1, while it waits in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<usize>,
    /// Since when nothing was heard of the running turn, once that is long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiet_since: Option<String>,
    /// The running turn.
    pub turn_id: Option<TurnId>,
    /// Messages waiting behind it.
    pub queued: usize,
    /// Workers that the session has had.
    pub generation: Generation,
    /// The live worker.
    pub worker_pid: Option<i32>,
    /// The host below it.
    pub host_pid: Option<i32>,
    /// Stage of the stop ladder that the worker is on.
    pub stop_stage: Option<String>,
    /// The provider's session file.
    pub session_file: Option<String>,
    /// Whether the worker holds the lease on it.
    pub lease_held: bool,
    /// Last event of the transcript.
    pub last_sequence: Seq,
    /// When it was written.
    pub last_event_at: Option<String>,
    /// How the last turn ended.
    pub last_status: Option<TurnStatus>,
    /// Why it failed.
    pub last_error: Option<String>,
    /// Processor use of the session's processes, percent of one core.
    pub cpu_percent: Option<f32>,
    /// Resident memory of the session's processes, bytes.
    pub memory_bytes: Option<u64>,
}

/// All chats.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionList {
    /// Oldest first.
    pub sessions: Vec<SessionInfo>,
}

/// Open cards.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CardList {
    /// Oldest first.
    pub cards: Vec<Card>,
}

/// Answers a card.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CardAnswer {
    /// The card.
    pub card_id: RequestId,
    /// The session, where the card's id alone is not unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The answer.
    pub answer: Answer,
}

/// Result of [`CardAnswer`]: this answer counted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CardAnswered {
    /// The card.
    pub card_id: RequestId,
}

/// A kind of agent and whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderInfo {
    /// Kind of agent.
    pub provider: String,
    /// Whether chats can be made.
    pub usable: bool,
    /// Version of the agent.
    pub version: Option<String>,
    /// Where it was found.
    pub path: Option<String>,
    /// Why it cannot be used, and what to do.
    pub blocker: Option<String>,
}

/// All kinds of agents.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProviderList {
    /// In alphabetical order.
    pub providers: Vec<ProviderInfo>,
}

/// What the broker says of itself.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BrokerStatus {
    /// Which broker.
    pub runtime: RuntimeInfo,
    /// When it started.
    pub started_at: String,
    /// Its fence.
    pub fence: crate::Fence,
    /// Control socket.
    pub socket: String,
    /// Chats in all.
    pub sessions: usize,
    /// Live workers.
    pub workers: usize,
    /// Running turns.
    pub turns: usize,
    /// Open cards.
    pub open_cards: usize,
    /// Connected clients.
    pub clients: usize,
    /// Open file descriptors and the limit.
    pub fds: (u64, u64),
    /// A sentence about the cgroups that agents are kept in, or why in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Configuration values with where each comes from.
    pub config: Vec<ConfigValue>,
}

/// A configuration value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigValue {
    /// Dotted name.
    pub name: String,
    /// Value, as text.
    pub value: String,
    /// `default`, a file's path, or an environment variable's name.
    pub origin: String,
}

/// One line of the list of actions.
pub struct ActionSpec {
    /// Name.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// Lowest role that may call it.
    pub role: Role,
    /// Schema of the arguments.
    pub arguments: fn() -> Schema,
    /// Schema of the result.
    pub result: fn() -> Schema,
    /// Arguments as an example.
    pub example: &'static str,
}

/// What [`ACTIONS_LIST`] answers for each action.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActionInfo {
    /// Name.
    pub name: String,
    /// One sentence.
    pub about: String,
    /// Lowest role that may call it.
    pub role: Role,
    /// Schema of the arguments.
    pub arguments: Value,
    /// Schema of the result.
    pub result: Value,
    /// Arguments as an example.
    pub example: Value,
}

impl ActionSpec {
    /// The line as it is sent.
    #[must_use]
    pub fn info(&self) -> ActionInfo {
        ActionInfo {
            name: self.name.into(),
            about: self.about.into(),
            role: self.role,
            arguments: (self.arguments)().to_value(),
            result: (self.result)().to_value(),
            example: serde_json::from_str(self.example).unwrap_or(Value::Null),
        }
    }
}

macro_rules! actions {
    ($( $constant:ident = $name:literal, $role:ident, $about:literal, $args:ty => $result:ty, $example:literal; )*) => {
        /// Names of the actions.
        pub mod name {
            $( #[doc = $about] pub const $constant: &str = $name; )*
        }

        /// Every action; a name that is not here is denied.
        pub const ACTIONS: &[ActionSpec] = &[
            $( ActionSpec {
                name: $name,
                about: $about,
                role: Role::$role,
                arguments: || schema_for!($args),
                result: || schema_for!($result),
                example: $example,
            }, )*
        ];

        #[cfg(test)]
        fn example_fits(name: &str, example: &str) -> Result<(), serde_json::Error> {
            match name {
                $( $name => serde_json::from_str::<$args>(example).map(drop), )*
                _ => unreachable!("unknown action"),
            }
        }
    };
}

actions! {
    CHAT_CREATE = "chat.create", Agent, "Makes a chat; starts no worker.",
        ChatCreate => SessionInfo, r#"{"provider":"pi","lane":"/home/me/project"}"#;
    CHAT_SEND = "chat.send", Agent, "Sends a message; while a turn runs it is queued.",
        ChatSend => Sent, r#"{"sessionId":"ses_1","prompt":"Hello"}"#;
    CHAT_STEER = "chat.steer", Agent, "Puts a message into the running turn.",
        ChatSteer => Steered, r#"{"sessionId":"ses_1","prompt":"Only the tests"}"#;
    CHAT_ABORT = "chat.abort", Agent, "Ends the running turn.",
        ChatAbort => Aborted, r#"{"sessionId":"ses_1"}"#;
    CHAT_INTERRUPT = "chat.interrupt", Agent, "Ends the running turn and sends a message in its place.",
        ChatInterrupt => ChatInterrupted, r#"{"sessionId":"ses_1","prompt":"Rather this","mode":"replace"}"#;
    CHAT_QUEUE = "chat.queue", Observer, "Lists the messages that wait behind the running turn.",
        ChatRef => ChatQueue, r#"{"sessionId":"ses_1"}"#;
    CHAT_QUEUE_EDIT = "chat.queue_edit", Agent, "Changes a waiting message; refused once it is being sent.",
        ChatQueueEdit => ChatQueue, r#"{"sessionId":"ses_1","turnId":"trn_2","prompt":"Only the tests"}"#;
    CHAT_QUEUE_CANCEL = "chat.queue_cancel", Agent, "Cancels a waiting message; refused once it is being sent.",
        ChatQueueCancel => ChatQueue, r#"{"sessionId":"ses_1","turnId":"trn_2"}"#;
    CHAT_QUEUE_RECOVER = "chat.queue_recover", Agent, "Brings back the messages that an interrupt has just cleared.",
        ChatRef => ChatQueue, r#"{"sessionId":"ses_1"}"#;
    CHAT_STOP = "chat.stop", Cto, "Stops the chat's worker; the chat stays.",
        ChatRef => SessionInfo, r#"{"sessionId":"ses_1"}"#;
    CHAT_RESET = "chat.reset", Cto, "Clears a failed start budget.",
        ChatRef => SessionInfo, r#"{"sessionId":"ses_1"}"#;
    CHAT_DELETE = "chat.delete", Cto, "Stops the chat's worker and forgets the chat; the provider's own session file stays.",
        ChatRef => Nothing, r#"{"sessionId":"ses_1"}"#;
    CHAT_SHOW = "chat.show", Observer, "Reads a chat and a piece of its transcript.",
        ChatShow => ChatShown, r#"{"sessionId":"ses_1","after":0}"#;
    CHAT_MODEL = "chat.model", Agent, "Changes the model.",
        ChatModel => SessionInfo, r#"{"sessionId":"ses_1","model":"anthropic/claude"}"#;
    CHAT_THINKING = "chat.thinking", Agent, "Changes how much the agent thinks.",
        ChatThinking => SessionInfo, r#"{"sessionId":"ses_1","level":null}"#;
    CHAT_PERMISSION = "chat.permission", Cto, "Changes which tools the agent has and which of them ask, from the next turn on.",
        ChatPermission => SessionInfo, r#"{"sessionId":"ses_1","permission":"plan"}"#;
    CHAT_COMPACT = "chat.compact", Agent, "Shortens the context.",
        ChatCompact => Nothing, r#"{"sessionId":"ses_1"}"#;
    SESSIONS_LIST = "sessions.list", Observer, "Lists all chats with their workers.",
        Nothing => SessionList, "{}";
    CARDS_LIST = "cards.list", Observer, "Lists the open cards.",
        Nothing => CardList, "{}";
    CARDS_ANSWER = "cards.answer", Cto, "Answers a card; the first answer counts.",
        CardAnswer => CardAnswered, r#"{"cardId":"1","answer":{"ok":true,"value":"allow"}}"#;
    PROVIDERS_LIST = "providers.list", Observer, "Lists the kinds of agents and whether they can be used.",
        Nothing => ProviderList, "{}";
    BROKER_STATUS = "broker.status", Observer, "What the broker says of itself.",
        Nothing => BrokerStatus, "{}";
    BROKER_HANDOVER = "broker.handover", Cto, "Ends the broker and leaves its workers to the next one, which must come within their grace.",
        Nothing => Nothing, "{}";
    BROKER_STOP = "broker.stop", Cto, "Ends every turn and worker, then the broker.",
        Nothing => Nothing, "{}";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_has_schemas_and_a_fitting_example() {
        for spec in ACTIONS {
            let info = spec.info();
            assert!(
                info.arguments.is_object() && info.result.is_object(),
                "{}",
                spec.name
            );
            example_fits(spec.name, spec.example).unwrap_or_else(|e| panic!("{}: {e}", spec.name));
        }
    }

    #[test]
    fn a_mode_is_named_as_it_is_written() {
        use PermissionMode::{Default, Edit, FullAuto, Plan};
        for mode in [Plan, Edit, FullAuto, Default] {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
        }
    }

    #[test]
    fn roles_are_ordered() {
        assert!(Role::Observer < Role::Agent && Role::Agent < Role::Cto);
    }
}
