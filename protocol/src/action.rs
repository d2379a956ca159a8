//! Actions: everything that the control endpoint can do.
//!
//! Each action is one line of [`ACTIONS`]: a name, a sentence, the role that it
//! needs, the JSON Schemas of arguments and result (made from the types here)
//! and an example. The broker answers exactly these names; the command line and
//! the documentation are made from the same list.

use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::card::Card;
use crate::{Seq, SessionId};

mod chat;
mod views;

pub use chat::{
    Aborted, ChatAbort, ChatCompact, ChatCreate, ChatInterrupt, ChatInterrupted, ChatModel,
    ChatPermission, ChatQueue, ChatQueueCancel, ChatQueueEdit, ChatRef, ChatSend, ChatShow,
    ChatShown, ChatSteer, ChatThinking, ContextUsed, InterruptMode, PermissionMode, QueuedMessage,
    Sent, Steered,
};
pub use views::{
    BrokerStatus, CardAnswer, CardAnswered, CardList, ConfigValue, ProviderInfo, ProviderList,
    SessionInfo, SessionList,
};

/// Who may call what. Ordered: a higher role may do all that a lower one may.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads only.
    Observer,
    /// An agent's own process tree: may talk, but answers no cards, stops nothing
    /// and makes no chat that does more without asking than its own.
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

/// Nothing to say.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

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
                $( $name => crate::strict::from_str::<$args>(example).map(drop), )*
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
    CHAT_CONTEXT = "chat.context", Observer, "Asks the agent how full the model's context is.",
        ChatRef => ContextUsed, r#"{"sessionId":"ses_1"}"#;
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
