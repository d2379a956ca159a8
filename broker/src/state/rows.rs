//! Rows as the rest of the broker sees them.

use ade_protocol::action::{ChatCreate, PermissionMode};
use ade_protocol::card::{Answer, Card, CardOutcome};
use ade_protocol::event::TurnStatus;
use ade_protocol::{Generation, Seq, SessionId, TurnId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A session: what is fixed for it, and what its next worker must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// The session.
    pub session_id: SessionId,
    /// Kind of agent.
    pub provider: String,
    /// Canonical path of the lane.
    pub lane: String,
    /// `provider/id`; absent: the provider's own default.
    pub model: Option<String>,
    /// The provider's word for how much to think.
    pub thinking: Option<String>,
    /// Tools and approvals.
    pub permission: PermissionMode,
    /// How often `permission` was changed. A worker that was started under an
    /// older number remembers answers which hold no more, also when the mode is
    /// the same again.
    pub policy: u64,
    /// Name for people.
    pub title: Option<String>,
    /// The provider's own configuration folder.
    pub agent_dir: Option<String>,
    /// Silence after a send until the worker is replaced; absent: the provider's own.
    pub first_event_ms: Option<u64>,
    /// The provider's session file, once known.
    pub session_file: Option<String>,
    /// The provider's id of the session, once known.
    pub provider_session_id: Option<String>,
    /// The provider's id of the agent that the present one stands in for: the last
    /// one before it that was told anything.
    pub replaced_agent: Option<String>,
    /// The present agent was told something, or was about to be.
    pub agent_told: bool,
    /// The session file must exist, because something was said in it. A worker
    /// must then resume it and never begin afresh.
    pub has_history: bool,
    /// Number of the newest worker; 0: none yet.
    pub generation: Generation,
    /// What the next start or send must do once.
    pub flags: Flags,
    /// Why no worker is started any more, until an explicit command.
    pub failed_reason: Option<String>,
    /// How the last turn ended.
    pub last_status: Option<TurnStatus>,
    /// Why it failed.
    pub last_error: Option<String>,
    /// When it was made: RFC 3339, UTC, milliseconds.
    pub created_at: String,
    /// An event that its transcript had at least, when the row was read; 0: none is
    /// known of.
    pub last_sequence: Seq,
}

impl SessionRow {
    /// The row of a new session. `lane` is the canonical path of what `create`
    /// names.
    #[must_use]
    pub fn new(
        session_id: SessionId,
        create: &ChatCreate,
        lane: String,
        created_at: String,
    ) -> Self {
        Self {
            session_id,
            provider: create.provider.clone(),
            lane,
            model: create.model.clone(),
            thinking: create.thinking.clone(),
            permission: create.permission,
            policy: 0,
            title: create.title.clone(),
            agent_dir: create.agent_dir.clone(),
            first_event_ms: create.first_event_ms,
            session_file: create.session_file.clone(),
            provider_session_id: None,
            replaced_agent: None,
            agent_told: false,
            has_history: create.session_file.is_some(),
            generation: Generation(0),
            flags: Flags::default(),
            failed_reason: None,
            last_status: None,
            last_error: None,
            created_at,
            last_sequence: Seq(0),
        }
    }
}

/// What the next start or send must do once. Each is cleared when that is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The next start uses a fresh agent.
    pub rotate: bool,
    /// The next send ends a run that the provider still believes active.
    pub force_expire: bool,
}

/// The running turn of a session. A new broker ends or takes over what it finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnRow {
    /// The session.
    pub session_id: SessionId,
    /// The turn.
    pub turn_id: TurnId,
    /// The user's message.
    pub prompt: String,
    /// When it began: RFC 3339, UTC, milliseconds.
    pub started_at: String,
    /// The worker that it was sent to last.
    pub generation: Generation,
    /// How often it was sent.
    pub sends: u32,
    /// The turn machine's word for where it stands.
    pub state: String,
    /// When the message was written last, on the machine's monotonic clock
    /// ([`crate::clock::monotonic_ms`]); 0: not yet. Means nothing after a boot,
    /// and no worker lives longer than that.
    pub armed_at_ms: u64,
    /// Why it goes on with another worker, as the turn machine writes it.
    pub cause: Option<String>,
    /// The last event of the transcript when this was written: what stands there
    /// of the turn comes after it.
    pub after: Seq,
}

/// A card of a worker that may live.
#[derive(Clone, Debug, PartialEq)]
pub struct CardRow {
    /// The question.
    pub card: Card,
    /// When it was opened, on the machine's monotonic clock
    /// ([`crate::clock::monotonic_ms`]); 0: an older ade did not write it down.
    pub opened_at_ms: u64,
    /// How it ended, once it has. The row stays until the worker is known to
    /// have heard it.
    pub settled: Option<Settled>,
}

/// How a card ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// What clients are told.
    pub outcome: CardOutcome,
    /// What the worker is told. Absent where nobody answered, and for secrets.
    pub answer: Option<Answer>,
    /// The event of the transcript that tells the outcome. A transcript that
    /// ends before it does not tell it yet.
    pub sequence: Seq,
}

/// A message that waits behind the running turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRow {
    /// The session.
    pub session_id: SessionId,
    /// The turn that it will be.
    pub turn_id: TurnId,
    /// The user's message.
    pub prompt: String,
    /// The turn that it was meant to go into, for a steer.
    pub steers: Option<TurnId>,
    /// When it was queued: RFC 3339, UTC, milliseconds.
    pub queued_at: String,
    /// The last event of the transcript when this was written: what stands there
    /// of the message comes after it.
    pub after: Seq,
}

/// A wire word, such as `full-auto`, as the database keeps it.
pub(super) fn to_word<T: Serialize>(value: &T) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => Some(word),
        _ => None,
    }
}

/// The value of a wire word.
pub(super) fn from_word<T: DeserializeOwned>(word: String) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(word)).ok()
}

/// SQLite's integers are signed; our counters never come near the difference.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The counter that [`signed`] wrote.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
