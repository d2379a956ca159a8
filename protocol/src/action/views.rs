//! What is told of chats, cards, agents and the broker.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PermissionMode;
use crate::card::{Answer, Card};
use crate::event::TurnStatus;
use crate::rpc::RuntimeInfo;
use crate::{Generation, RequestId, Seq, SessionId, TurnId};

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
    /// `waiting`: its worker waits for a place among all workers;
    /// `unusable`: it is known and can't be brought up, for the reason in
    /// `lastError`.
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
