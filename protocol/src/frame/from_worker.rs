//! What a worker and a host say: the bodies of [`super::FromWorker`].

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::card::CardPayload;
use crate::event::NoticeLevel;
use crate::{Fence, Generation, RequestId, Seq, SessionId, TurnId, WorkerId};

/// Identity of a process as it travels; the numbers are the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Process id in its own pid namespace.
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`.
    pub start_ticks: u64,
    /// The kernel's boot id.
    pub boot_id: String,
    /// Inode of the pid namespace.
    pub pid_namespace: u64,
}

/// Who a worker is and what it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// Its journal name.
    pub worker_id: WorkerId,
    /// Proves it. Never logged.
    pub token: String,
    /// The session.
    pub session_key: SessionId,
    /// Which of the session's workers.
    pub generation: Generation,
    /// Its pid, as it sees it.
    pub pid: i32,
    /// Its identity.
    pub identity: Identity,
    /// Kind of agent.
    pub provider: String,
    /// Last event it made.
    pub last_seq: Seq,
    /// Where it stands.
    pub state: WorkerState,
}

/// Where a worker stands, for a broker that meets it in the middle.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerState {
    /// `ready`, once the host answered `init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// The running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The last turn whose message it got: the running one, or one that has
    /// ended since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_turn_id: Option<TurnId>,
    /// Whether anything of that turn was seen.
    #[serde(default)]
    pub seen_event: bool,
    /// Requests `steer` of that turn that its agent has taken: a broker may have died
    /// before it heard so. At most [`WorkerState::MAX_STEERS`], the newest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steers_taken: Vec<RequestId>,
    /// Those that are not answered yet: their response comes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steers_open: Vec<RequestId>,
    /// Cards that wait for an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_cards: Vec<RequestId>,
    /// Pid of its host, as it sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_pid: Option<i32>,
    /// Whether it holds the lease of its session file.
    #[serde(default)]
    pub lease_held: bool,
    /// Fence of the last broker it obeyed.
    #[serde(default)]
    pub fence: Fence,
    /// The stage of the stop ladder it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping: Option<String>,
}

impl WorkerState {
    /// Requests that [`WorkerState::steers_taken`] names at most.
    pub const MAX_STEERS: usize = 256;
}

/// Progress of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// `worker_started`, `package_loaded`, `initializing`, `ready`,
    /// `prompt_started`, `prompt_finished`, `prompt_failed`, `aborted`,
    /// `disposed`, `host_exited`, `stopping`.
    pub event: String,
    /// The request that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

/// Carries [`Ready`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadyFrame {
    /// What the host opened.
    pub ready: Ready,
}

/// What a host opened and what it can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// Must equal [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION).
    pub protocol_version: u32,
    /// Kind of agent.
    pub provider: String,
    /// Version of the agent.
    pub version: String,
    /// Absolute path of the session file, where the provider keeps one. It may
    /// not exist yet.
    #[serde(default)]
    pub session_file: Option<String>,
    /// The provider's id of the session.
    #[serde(default)]
    pub session_id: Option<String>,
    /// The model in use.
    #[serde(default)]
    pub current_model: Option<Model>,
    /// The thinking level in use.
    #[serde(default)]
    pub thinking_level: Option<String>,
    /// Models that can be used.
    #[serde(default)]
    pub available_models: Vec<Model>,
    /// Whose account pays; never a credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<serde_json::Value>,
    /// Loaded extensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<serde_json::Value>,
    /// Why extensions could not be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions_error: Option<String>,
    /// Tools that were withheld because they could not be gated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ungateable_tools: Vec<String>,
    /// What this worker really can.
    #[serde(default)]
    pub capabilities: Capabilities,
}

/// What a worker really can; what is absent it cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Messages into a running turn.
    pub steer: bool,
    /// Messages queued at the provider.
    pub follow_up: bool,
    /// Branches of a session.
    pub fork: bool,
    /// Shortening the context.
    pub compact: bool,
    /// Listing models and changing the model.
    pub models: bool,
    /// Signing in.
    pub login: bool,
    /// Images in messages.
    pub images: bool,
    /// Stopping a run and going on with the same agent.
    pub interrupt_and_continue: bool,
}

impl Model {
    /// `provider/id`.
    #[must_use]
    pub fn reference(&self) -> String {
        format!("{}/{}", self.provider, self.id)
    }
}

/// A model that can be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// The provider's half of the reference.
    pub provider: String,
    /// The model's half of the reference.
    pub id: String,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tokens that fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
}

/// Answers a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    /// The request that is answered.
    pub request_id: RequestId,
    /// Whether it worked.
    pub ok: bool,
    /// The result; its shape depends on the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// What went wrong, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What went wrong, as a word: see [`code`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

impl Response {
    /// A response that says yes with a result.
    #[must_use]
    pub fn ok<T: Serialize>(request_id: RequestId, result: &T) -> Self {
        let result = serde_json::value::to_raw_value(result).ok();
        Self {
            request_id,
            ok: true,
            result,
            error: None,
            error_code: None,
            detail: None,
        }
    }

    /// A response that says no.
    #[must_use]
    pub fn err(request_id: RequestId, code: &str, message: impl Into<String>) -> Self {
        Self {
            request_id,
            ok: false,
            result: None,
            error: Some(message.into()),
            error_code: Some(code.to_owned()),
            detail: None,
        }
    }

    /// The same with details.
    #[must_use]
    pub fn with_detail(mut self, detail: serde_json::Value) -> Self {
        self.detail = Some(detail);
        self
    }
}

/// Words of `errorCode` that both sides act on. Others are shown as they are.
pub mod code {
    /// Another live writer holds the session file. `detail` is the holder.
    pub const HELD: &str = "held";
    /// The host ended; `detail` has `exit` and `stderr`.
    pub const HOST_EXITED: &str = "host_exited";
    /// The host could not be started.
    pub const HOST_NOT_STARTED: &str = "host_not_started";
    /// The folder that the agent works in is not there.
    pub const LANE_MISSING: &str = "lane_missing";
    /// Somebody did not keep to the protocol.
    pub const PROTOCOL_ERROR: &str = "protocol_error";
    /// A line was over the limit.
    pub const FRAME_TOO_LONG: &str = "frame_too_long";
    /// No answer in time.
    pub const TIMED_OUT: &str = "timed_out";
    /// A turn is running already.
    pub const BUSY: &str = "busy";
    /// There is no such model.
    pub const MODEL_NOT_FOUND: &str = "model_not_found";
    /// No model is configured.
    pub const NO_MODEL: &str = "no_model";
    /// The lease was lost; nothing is written any more.
    pub const LEASE_LOST: &str = "lease_lost";
    /// A message was to be sent again, and the session file shows that the agent
    /// had gone on with it: what became of it is not known here.
    pub const DELIVERED_OUTCOME_UNKNOWN: &str = "delivered_outcome_unknown";
    /// The session that should be resumed is not there.
    pub const SESSION_NOT_FOUND: &str = "session_not_found";
    /// The session file was deleted or replaced under a live worker.
    pub const SESSION_CHANGED: &str = "session_changed";
    /// The request came before `init` or after the end.
    pub const NOT_READY: &str = "not_ready";
    /// The worker is stopping.
    pub const STOPPING: &str = "stopping";
    /// The provider cannot do this.
    pub const UNSUPPORTED: &str = "unsupported";
}

/// Result of `send`: the end of the turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SendResult {
    /// How the turn ended.
    pub status: SendStatus,
    /// The provider's own word for why it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// What it cost, as the provider tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<serde_json::Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Messages for this turn that were taken (`steer`) and that the agent had not
    /// read when it ended: it will never read them. In the order in which they were
    /// taken, each by its first [`SendResult::UNDELIVERED_CHARS`] characters, at
    /// most [`SendResult::MAX_UNDELIVERED`]. Whoever does not know it says nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undelivered: Vec<String>,
}

impl SendResult {
    /// Messages that [`SendResult::undelivered`] names at most; what stands behind
    /// them is not looked at.
    pub const MAX_UNDELIVERED: usize = 256;
    /// Characters of each of them.
    pub const UNDELIVERED_CHARS: usize = 2_000;
}

/// How a turn ended, by the worker's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendStatus {
    /// By itself.
    Completed,
    /// By `abort`.
    Interrupted,
    /// By an error.
    Failed,
}

/// Result of `steer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteerResult {
    /// Where the message is now.
    pub outcome: SteerOutcome,
}

/// Where a steered message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SteerOutcome {
    /// In the running turn.
    Delivered,
    /// Queued by the provider behind it.
    Queued,
}

/// The provider's own event, unchanged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SdkEvent {
    /// The event.
    pub event: Box<RawValue>,
}

/// A canonical event on its way to the broker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventFrame {
    /// Its number within the generation, from 1, without gaps.
    pub seq: Seq,
    /// The turn that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The event.
    pub event: Box<RawValue>,
}

/// A card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UiRequest {
    /// The card's id.
    pub request_id: RequestId,
    /// The turn that blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The question.
    pub payload: CardPayload,
}

/// Shown, not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UiNotice {
    /// The turn that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// What is shown.
    pub payload: NoticePayload,
}

/// What a notice shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NoticePayload {
    /// Who says it.
    pub origin: crate::card::CardOrigin,
    /// How loud.
    pub level: NoticeLevel,
    /// The text.
    pub message: String,
    /// The tool or extension that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_id: Option<String>,
    /// Structured details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

/// A card was settled by the host itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UiCancel {
    /// The card's id.
    pub request_id: RequestId,
}

/// Something failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorFrame {
    /// What was being done.
    pub operation: String,
    /// What went wrong, in one sentence.
    pub error: String,
    /// The request that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The line.
    pub message: String,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}
