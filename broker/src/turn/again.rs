//! How a turn that goes on with another worker stands on disk.
//!
//! A broker that dies in the middle leaves one word of where the turn stands,
//! and the next one goes on from there: what was decided is not decided again.

use super::Again;

/// State of a turn whose message was written for the first time.
pub const SENT: &str = "sent";

/// State of a turn that the user has ended: whatever dies, nothing is sent for it
/// any more.
pub const ENDED_BY_USER: &str = "ending";

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
