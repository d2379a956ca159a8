//! Frames: the worker protocol, version 2.
//!
//! The family is spoken on two hops, broker ↔ worker and worker ↔ host. A frame
//! is one JSON object in one line with `protocolVersion` (the integer 2, once)
//! and `type`. Reading is two-staged: the small [`Header`] is read first and
//! borrows from the line, the rest only for the types that need it, so that the
//! busiest frame, `event`, is routed without parsing what it carries.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::card::{Answer, CardPayload};
use crate::codec::depth_within;
use crate::event::NoticeLevel;
use crate::limits::MAX_DEPTH;
use crate::{Fence, Generation, PROTOCOL_VERSION, RequestId, Seq, SessionId, TurnId, WorkerId};

/// Why a line is not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Not JSON, or JSON that does not claim to be a frame: a banner, a blank
    /// line, debug output.
    #[error("not a frame")]
    Noise,
    /// A frame of another version.
    #[error("frame protocol version {got} was received, this side speaks {PROTOCOL_VERSION}")]
    Version {
        /// What stood in `protocolVersion`.
        got: String,
    },
    /// It claims to be a frame and is not a valid one. The text names fields
    /// and positions, never contents.
    #[error("malformed frame: {0}")]
    Malformed(String),
}

/// The fields that routing needs, borrowed from the line.
#[derive(Debug)]
pub struct Header<'a> {
    /// The frame's type.
    pub kind: Cow<'a, str>,
    /// `seq`, where present.
    pub seq: Option<Seq>,
    /// `turnId`, where present; a [`TurnId`] of its own would cost an
    /// allocation a line.
    pub turn_id: Option<Cow<'a, str>>,
    /// `event`, unparsed.
    pub event: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawHeader<'a> {
    #[serde(borrow, default)]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(default)]
    seq: Option<Seq>,
    #[serde(borrow, default)]
    turn_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    event: Option<&'a RawValue>,
}

/// Text that stays in its line unless it has escapes. Of its own, since serde
/// borrows a `Cow` only where it stands alone, not inside an `Option`.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Header<'a> {
    /// Reads the header of one line and checks depth and version.
    ///
    /// # Errors
    /// [`FrameFault`] when the line is not a frame of version 2.
    pub fn read(line: &'a str) -> Result<Self, FrameFault> {
        let trimmed = line.trim_start();
        if !trimmed.starts_with('{') {
            return Err(FrameFault::Noise);
        }
        if !depth_within(line, MAX_DEPTH) {
            return Err(FrameFault::Malformed(format!(
                "nested deeper than {MAX_DEPTH}"
            )));
        }
        let raw: RawHeader<'a> =
            serde_json::from_str(line).map_err(|source| header_fault(&source))?;
        match (raw.protocol_version.map(RawValue::get), raw.kind) {
            (None, None) => Err(FrameFault::Noise),
            (None, Some(_)) => Err(FrameFault::Version { got: "none".into() }),
            (Some("2"), Some(kind)) => Ok(Self {
                kind: kind.0,
                seq: raw.seq,
                turn_id: raw.turn_id.map(|turn| turn.0),
                event: raw.event,
            }),
            (Some("2"), None) => Err(FrameFault::Malformed("field `type` is missing".into())),
            (Some(other), _) => Err(FrameFault::Version {
                got: other.chars().take(32).collect(),
            }),
        }
    }
}

/// Names what is wrong with a header without quoting it.
fn header_fault(source: &serde_json::Error) -> FrameFault {
    let text = source.to_string();
    if text.contains("duplicate field `protocolVersion`") {
        return FrameFault::Version {
            got: "given twice".into(),
        };
    }
    malformed(source)
}

/// The class and position of a parse error. serde_json's own text may quote
/// values, and values may be prompts or secrets: only the names of our own
/// fields are let through.
fn malformed(source: &serde_json::Error) -> FrameFault {
    let text = source.to_string();
    let named = ["missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| {
            let tail = text.strip_prefix(start)?;
            tail.split_once('`')
                .map(|(field, _)| format!("{start}{field}`"))
        });
    let class = named.unwrap_or_else(|| format!("{:?} error", source.classify()).to_lowercase());
    FrameFault::Malformed(format!("{class} at column {}", source.column()))
}

/// A frame, or a type of this version that this build does not know.
#[derive(Clone, Debug, PartialEq)]
pub enum Known<F> {
    /// A valid frame.
    Frame(F),
    /// Skipped and counted; logged once a type.
    UnknownType(String),
}

macro_rules! frames {
    (
        $(#[$doc:meta])*
        $name:ident { $( $(#[$vdoc:meta])* $variant:ident ($body:ty) = $tag:literal ),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize)]
        #[serde(tag = "type")]
        pub enum $name {
            $( $(#[$vdoc])* #[serde(rename = $tag)] $variant($body), )*
        }

        impl $name {
            /// Every type of this direction, in the order of the contract.
            pub const TYPES: &'static [&'static str] = &[$($tag),*];

            /// Reads one line.
            ///
            /// # Errors
            /// [`FrameFault`] when the line is not a valid frame of version 2.
            pub fn parse(line: &str) -> Result<Known<Self>, FrameFault> {
                let header = Header::read(line)?;
                Self::parse_body(&header.kind, line)
            }

            /// Reads the body of a line whose header was read already.
            ///
            /// # Errors
            /// [`FrameFault::Malformed`] when the body does not fit the type.
            pub fn parse_body(kind: &str, line: &str) -> Result<Known<Self>, FrameFault> {
                match kind {
                    $( $tag => body::<$body>(line).map(|body| Known::Frame(Self::$variant(body))), )*
                    other => Ok(Known::UnknownType(other.chars().take(64).collect())),
                }
            }

            /// The frame's `type`.
            #[must_use]
            pub fn kind(&self) -> &'static str {
                match self { $( Self::$variant(_) => $tag, )* }
            }

            /// The frame as one line without its end.
            #[must_use]
            pub fn to_line(&self) -> String {
                seal(self)
            }
        }
    };
}

fn body<T: DeserializeOwned>(line: &str) -> Result<T, FrameFault> {
    serde_json::from_str(line).map_err(|source| malformed(&source))
}

/// Puts the version in front of a serialised body, which always begins with
/// its `type`.
fn seal<T: Serialize>(frame: &T) -> String {
    let body = serde_json::to_string(frame).expect("frame types serialise to JSON objects");
    format!("{{\"protocolVersion\":{PROTOCOL_VERSION},{}", &body[1..])
}

frames! {
    /// Broker → worker and worker → host.
    ToWorker {
        /// Opens the session; once.
        Init(Request<Box<Init>>) = "init",
        /// Begins a turn. Its response is the end of the turn.
        Send(Request<Send>) = "send",
        /// Puts a message into the running turn.
        Steer(Request<Prompt>) = "steer",
        /// Queues a message behind the running turn, at the provider.
        FollowUp(Request<Prompt>) = "follow_up",
        /// Ends the running turn; the pending `send` answers `interrupted`.
        Abort(Request<Abort>) = "abort",
        /// Ends the process.
        Dispose(Request<Empty>) = "dispose",
        /// Changes the model.
        SetModel(Request<SetModel>) = "set_model",
        /// Changes the thinking level.
        SetThinking(Request<SetThinking>) = "set_thinking",
        /// Shortens the context.
        Compact(Request<Compact>) = "compact",
        /// Asks how full the context is.
        ContextUsage(Request<Empty>) = "context_usage",
        /// Asks for the models that can be used.
        Models(Request<Empty>) = "models",
        /// Asks which credentials exist. Never carries one.
        Auth(Request<Empty>) = "auth",
        /// Answers the card whose id is the `requestId`. Has no response.
        UiResponse(UiResponse) = "ui_response",
        /// Accepts a worker: broker → worker only.
        Attach(Request<Attach>) = "attach",
        /// The broker has so many events on disk: broker → worker only.
        Ack(Ack) = "ack",
    }
}

frames! {
    /// Worker → broker and host → worker.
    FromWorker {
        /// First frame of every connection of a worker.
        Hello(Box<Hello>) = "hello",
        /// Progress of the process, never content.
        Lifecycle(Lifecycle) = "lifecycle",
        /// Answers `init`, once.
        Ready(Box<ReadyFrame>) = "ready",
        /// Answers any other request.
        Response(Response) = "response",
        /// The provider's own event, unchanged: host → worker only.
        SdkEvent(SdkEvent) = "sdk_event",
        /// A canonical event: worker → broker only.
        Event(EventFrame) = "event",
        /// A card; the host blocks on it.
        UiRequest(Box<UiRequest>) = "ui_request",
        /// Shown, not answered.
        UiNotice(UiNotice) = "ui_notice",
        /// The host settled a card itself.
        UiCancel(UiCancel) = "ui_cancel",
        /// Something failed outside any request, or why a request failed.
        Error(ErrorFrame) = "error",
        /// A line for the log.
        Log(Log) = "log",
    }
}

/// A request with its id; exactly one response answers it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<T> {
    /// Joins the response with the request.
    pub request_id: RequestId,
    /// What is asked.
    #[serde(flatten)]
    pub body: T,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Request<T> {
    /// Reads the id and the body from the same object, one after the other:
    /// `flatten` would buffer the line and lose [`RawValue`]s.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Id {
            request_id: RequestId,
        }
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let error = |source: serde_json::Error| serde::de::Error::custom(source);
        let Id { request_id } = serde_json::from_str(raw.get()).map_err(error)?;
        let body = serde_json::from_str(raw.get()).map_err(error)?;
        Ok(Self { request_id, body })
    }
}

impl<T> Request<T> {
    /// A request with a new id.
    #[must_use]
    pub fn new(body: T) -> Self {
        Self {
            request_id: RequestId::generate(),
            body,
        }
    }
}

/// A request without parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// Everything a host needs to open a session. Paths are absolute. What is
/// absent is the provider's to decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Init {
    /// The session's id; names the session in messages.
    pub session_key: String,
    /// Kind of agent.
    pub provider: String,
    /// The lane.
    pub cwd: String,
    /// The provider's own configuration folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_dir: Option<String>,
    /// Where the provider's package is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Package>,
    /// Where session files may be.
    pub store: Store,
    /// Which session to open.
    #[serde(default)]
    pub session: SessionChoice,
    /// `provider/id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_ref: Option<String>,
    /// The provider's word for how much to think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking_level: Option<String>,
    /// Added to the provider's system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Tools that are offered at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tools that need a card before each call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approval_tools: Vec<String>,
    /// Whether the user's extensions are loaded.
    #[serde(default)]
    pub extensions: bool,
    /// Whether the agent may ask the user.
    #[serde(default)]
    pub ask_user_tool: bool,
    /// Opens no session; only the inventory of `ready` is wanted.
    #[serde(default)]
    pub inventory_only: bool,
    /// Variables for the host's environment.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub env: std::collections::BTreeMap<String, String>,
}

/// Where the provider's package is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Package {
    /// Folder with the package's manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_root: Option<String>,
    /// The file to load, when it is not the manifest's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_entry: Option<String>,
}

/// Where session files may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Store {
    /// Authorisation boundary: no session file outside it is opened.
    pub session_root: String,
    /// Given only when the user configured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_storage_dir: Option<String>,
}

/// Which session to open. Neither file nor id: a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionChoice {
    /// Absolute path of the session file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_file: Option<String>,
    /// The provider's id of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The session must exist: never a silent fresh one.
    #[serde(default)]
    pub resume: bool,
}

/// A user's message that begins a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Send {
    /// The turn.
    pub turn_id: TurnId,
    /// The message.
    pub prompt: String,
    /// Set only on the one automatic re-send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
}

/// What the one automatic re-send carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// A run that the provider still believes active is ended first.
    pub force_expire_active_run: bool,
    /// Transcript for a provider that cannot resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
}

/// A message for a running turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// The message.
    pub prompt: String,
}

/// Which turn to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Abort {
    /// The turn.
    pub turn_id: TurnId,
}

/// Which model to use from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetModel {
    /// `provider/id`.
    pub model_ref: String,
}

/// How much to think from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetThinking {
    /// Null: the provider's own default.
    pub thinking_level: Option<String>,
}

/// How to shorten the context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Compact {
    /// Added to the provider's own instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_instructions: Option<String>,
}

/// The broker accepts a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The broker's fence; an older one than seen before is refused.
    pub fence: Fence,
    /// The last event of this generation that is on disk.
    pub ack: Seq,
}

/// So many events of this generation are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The last event on disk.
    pub seq: Seq,
}

/// The answer to a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UiResponse {
    /// The card's id.
    pub request_id: RequestId,
    /// False declines.
    pub ok: bool,
    /// The answer itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Why it was declined, when not by a human.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl UiResponse {
    /// The answer as cards know it.
    #[must_use]
    pub fn answer(&self) -> Answer {
        Answer {
            ok: self.ok,
            value: self.value.clone(),
        }
    }
}

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
    /// Must equal [`PROTOCOL_VERSION`].
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
