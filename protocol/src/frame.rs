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

use crate::codec::depth_within;
use crate::limits::MAX_DEPTH;
use crate::{PROTOCOL_VERSION, RequestId, Seq, strict};

mod faulty;
mod from_worker;
mod to_worker;

pub use from_worker::{
    Capabilities, ErrorFrame, EventFrame, Hello, Identity, Lifecycle, Log, Model, NoticePayload,
    Ready, ReadyFrame, Response, SdkEvent, SendResult, SendStatus, SteerOutcome, SteerResult,
    UiCancel, UiNotice, UiRequest, WorkerState, code,
};
pub use to_worker::{
    Abort, Ack, Attach, Compact, Init, Package, Prompt, Recovery, Send, SessionChoice, SessionMark,
    SetModel, SetThinking, Store, UiResponse,
};

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
    /// `turnId`, where present; a [`TurnId`](crate::TurnId) of its own would cost an
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
        let raw: RawHeader<'a> = strict::from_str(line).map_err(|source| header_fault(&source))?;
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
    strict::from_str(line).map_err(|source| malformed(&source))
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
        let Id { request_id } = strict::from_str(raw.get()).map_err(error)?;
        let body = strict::from_str(raw.get()).map_err(error)?;
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
