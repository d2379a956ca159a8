//! What a worker and a host are asked: the bodies of [`super::ToWorker`].

use serde::{Deserialize, Serialize};

use crate::card::Answer;
use crate::{Fence, RequestId, Seq, TurnId};

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
    /// Where the session file ended before the message was sent for the first
    /// time: what stands behind that is of this turn, what stands before it is
    /// not. Absent, or not fitting the file: nobody can tell, and a message that
    /// may have been delivered is not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_mark: Option<SessionMark>,
}

/// A place in a session file, which only grows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionMark {
    /// Absolute path of the file, as `ready` named it.
    pub session_file: String,
    /// Its length in bytes; 0: it was not there, or empty.
    pub bytes: u64,
    /// SHA-256 in lower-case hex of the [`SessionMark::TAIL`] bytes before the
    /// place, or of all of them when there are fewer. A file that was written
    /// anew since, by a migration or from a backup, does not have them there,
    /// and then the mark says nothing.
    pub tail: String,
}

impl SessionMark {
    /// Bytes before the place by which it is known again.
    pub const TAIL: u64 = 4096;
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
    /// Only if nothing of the turn was seen, and on nobody's word but the broker's:
    /// a turn that is heard after all may go on, so nothing is held against a host
    /// that does not answer. The response comes either way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub if_silent: bool,
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
