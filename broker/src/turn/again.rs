//! How a turn that goes on with another worker stands on disk.
//!
//! A broker that dies in the middle leaves one word of where the turn stands,
//! and the next one goes on from there: what was decided is not decided again.

use ade_protocol::event::{ErrorCategory, TurnStatus};
use ade_protocol::strict;
use serde::{Deserialize, Serialize};

use super::{Again, Failure};

/// Characters of a cause that are kept.
const CAUSE: usize = 500;

/// Why a turn goes on with another worker, on disk. Without the details of the
/// failure: what an agent wrote to its stderr is nobody's to keep.
#[derive(Serialize, Deserialize)]
struct Cause {
    kind: String,
    category: ErrorCategory,
    message: String,
}

impl Failure {
    /// What of it is kept on disk while its turn goes on.
    #[must_use]
    pub fn note(&self) -> String {
        let cause = Cause {
            kind: self.kind.clone(),
            category: self.category,
            message: self.message.chars().take(CAUSE).collect(),
        };
        serde_json::to_string(&cause).unwrap_or_default()
    }

    /// What was kept. `None`: it is not understood, and nothing is known.
    #[must_use]
    pub fn read(note: &str) -> Option<Self> {
        let cause: Cause = strict::from_str(note).ok()?;
        Some(Self::new(&cause.kind, cause.category, cause.message))
    }
}

/// State of a turn whose message was written for the first time.
pub const SENT: &str = "sent";

/// State of a turn that the user has ended: whatever dies, nothing is sent for it
/// any more.
pub const ENDED_BY_USER: &str = "ending";

/// State of a turn that has this end, which its transcript does not hold yet:
/// nothing is sent for it any more, whatever dies.
#[must_use]
pub fn over(status: TurnStatus) -> &'static str {
    match status {
        TurnStatus::Completed => "over_completed",
        TurnStatus::Interrupted => "over_interrupted",
        // A turn that has ended is not on its way.
        TurnStatus::Failed | TurnStatus::Started => "over_failed",
    }
}

/// The end that a turn in this state has. `None`: it has none.
#[must_use]
pub fn read_over(state: &str) -> Option<TurnStatus> {
    let ends = [
        TurnStatus::Completed,
        TurnStatus::Interrupted,
        TurnStatus::Failed,
    ];
    ends.into_iter().find(|status| over(*status) == state)
}

impl Again {
    /// State of a turn that is to go on so.
    #[must_use]
    pub fn planned(self) -> &'static str {
        match self {
            Self::Resend => "recovering",
            Self::Reconnect => "reconnecting",
            Self::Continue => "continuing",
        }
    }

    /// State of a turn that has gone on so.
    #[must_use]
    pub fn written(self) -> &'static str {
        match self {
            Self::Resend => "sent_again",
            Self::Reconnect => "reconnected",
            Self::Continue => "continued",
        }
    }

    /// How a turn in this state goes on or has gone on, and whether that is
    /// still to be done. `None`: it was sent once at most.
    #[must_use]
    pub fn read(state: &str) -> Option<(Self, bool)> {
        [Self::Resend, Self::Reconnect, Self::Continue]
            .into_iter()
            .find_map(|again| match state {
                _ if state == again.planned() => Some((again, true)),
                _ if state == again.written() => Some((again, false)),
                _ => None,
            })
    }
}
