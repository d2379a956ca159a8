//! Requests of the broker that the host has not answered yet. Pure: no clock,
//! no frame is sent from here.
//!
//! Invariant: an id is in the table at most once and leaves it exactly once, so
//! that a request is answered exactly once whoever answers it.

use std::time::Duration;

use ade_protocol::frame::{Ready, SendResult, SteerResult};
use ade_protocol::strict;
use ade_protocol::{RequestId, TurnId};
use serde_json::value::RawValue;
use tokio::time::Instant;

/// Most requests in flight. The broker has a handful; past the bound a request
/// is refused as `busy`.
pub(crate) const MAX_PENDING: usize = 256;

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `init`.
    Init,
    /// `send`.
    Send(TurnId),
    /// `steer`.
    Steer,
    /// The same when its turn has ended: its answer says where it went.
    LateSteer,
    /// `follow_up`.
    FollowUp,
    /// `abort`.
    Abort,
    /// The same of a turn that is silent.
    AbortIfSilent,
    /// `set_model`.
    SetModel,
    /// `set_thinking`.
    SetThinking,
    /// `compact`.
    Compact,
    /// `context_usage`.
    ContextUsage,
    /// `models`.
    Models,
    /// `auth`.
    Auth,
}

impl Kind {
    /// Whether the agent may write to its session file for it while no turn runs.
    pub(crate) fn writes(&self) -> bool {
        matches!(
            self,
            Self::Send(_) | Self::FollowUp | Self::SetModel | Self::SetThinking | Self::Compact
        )
    }

    /// The frame's type.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Send(_) => "send",
            Self::Steer | Self::LateSteer => "steer",
            Self::FollowUp => "follow_up",
            Self::Abort | Self::AbortIfSilent => "abort",
            Self::SetModel => "set_model",
            Self::SetThinking => "set_thinking",
            Self::Compact => "compact",
            Self::ContextUsage => "context_usage",
            Self::Models => "models",
            Self::Auth => "auth",
        }
    }

    /// How long the host may take; `None` where only the user or the turn's own
    /// rules end it.
    pub(crate) fn limit(&self) -> Option<Duration> {
        let seconds = match self {
            // Nor does the broker wait longer than it likes for a silent turn.
            Self::Send(_) | Self::Compact | Self::AbortIfSilent => return None,
            Self::Init | Self::SetModel | Self::Models => 30,
            Self::Abort => 10,
            Self::Steer
            | Self::LateSteer
            | Self::FollowUp
            | Self::SetThinking
            | Self::ContextUsage
            | Self::Auth => 15,
        };
        Some(Duration::from_secs(seconds))
    }

    /// Whether a success result has the shape that this request promises.
    pub(crate) fn accepts(&self, result: Option<&RawValue>) -> bool {
        let text = result.map_or("null", RawValue::get);
        match self {
            Self::Send(_) => strict::from_str::<SendResult>(text).is_ok(),
            Self::Steer | Self::LateSteer => strict::from_str::<SteerResult>(text).is_ok(),
            Self::Init | Self::SetModel | Self::SetThinking => {
                strict::from_str::<Ready>(text).is_ok()
            }
            Self::Models | Self::Auth => text.trim_start().starts_with('['),
            Self::FollowUp
            | Self::Abort
            | Self::AbortIfSilent
            | Self::Compact
            | Self::ContextUsage => true,
        }
    }
}

/// One request in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The broker's id of it; the host sees the same.
    pub(crate) id: RequestId,
    /// What was asked.
    pub(crate) kind: Kind,
    deadline: Option<Instant>,
}

/// The table, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    open: Vec<Pending>,
}

impl Requests {
    /// Adds a request; false when the id is in flight already or the table is
    /// full.
    pub(crate) fn add(&mut self, id: RequestId, kind: Kind, now: Instant) -> bool {
        if self.open.len() >= MAX_PENDING || self.open.iter().any(|open| open.id == id) {
            return false;
        }
        let deadline = kind.limit().map(|limit| now + limit);
        self.open.push(Pending { id, kind, deadline });
        true
    }

    /// Removes a request by its id.
    pub(crate) fn take(&mut self, id: &RequestId) -> Option<Pending> {
        let index = self.open.iter().position(|open| open.id == *id)?;
        Some(self.open.remove(index))
    }

    /// What this request asks, while it is in flight.
    pub(crate) fn kind_of(&self, id: &RequestId) -> Option<&Kind> {
        let open = self.open.iter().find(|open| open.id == *id);
        open.map(|open| &open.kind)
    }

    /// Whether `init` is not answered yet.
    pub(crate) fn awaits_ready(&self) -> bool {
        self.open.iter().any(|open| open.kind == Kind::Init)
    }

    /// The ids of the steers.
    pub(crate) fn steers(&self) -> Vec<RequestId> {
        let is_steer = |open: &&Pending| matches!(open.kind, Kind::Steer | Kind::LateSteer);
        self.open
            .iter()
            .filter(is_steer)
            .map(|open| open.id.clone())
            .collect()
    }

    /// The turn has ended: what is asked of it by now can't hold up another one.
    /// Gives what was to end it, which is answered by that.
    pub(crate) fn turn_ended(&mut self) -> Vec<Pending> {
        for open in &mut self.open {
            if open.kind == Kind::Steer {
                open.kind = Kind::LateSteer;
            }
        }
        let ends = |open: &mut Pending| matches!(open.kind, Kind::Abort | Kind::AbortIfSilent);
        self.open.extract_if(.., ends).collect()
    }

    /// Puts back what was taken and turned out not to be answered.
    pub(crate) fn put_back(&mut self, pending: Pending) {
        self.open.push(pending);
    }

    /// Removes the first request that satisfies `wanted`.
    pub(crate) fn take_where(&mut self, wanted: impl Fn(&Kind) -> bool) -> Option<Pending> {
        let index = self.open.iter().position(|open| wanted(&open.kind))?;
        Some(self.open.remove(index))
    }

    /// Removes all.
    pub(crate) fn drain(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.open)
    }

    /// Removes one request whose time ran out.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<Pending> {
        let expired = |open: &Pending| open.deadline.is_some_and(|deadline| now >= deadline);
        let index = self.open.iter().position(expired)?;
        Some(self.open.remove(index))
    }

    /// The earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.open.iter().filter_map(|open| open.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn the_end_of_a_turn_ends_its_aborts_and_lets_its_steers_be_late() {
        let now = Instant::now();
        let mut requests = Requests::default();
        for (id, kind) in [
            ("a", Kind::Abort),
            ("b", Kind::Steer),
            ("c", Kind::AbortIfSilent),
            ("d", Kind::ContextUsage),
        ] {
            assert!(requests.add(id.into(), kind, now));
        }
        let ended = requests.turn_ended();
        let ended: Vec<_> = ended.into_iter().map(|pending| pending.id).collect();
        assert_eq!(ended, ["a".into(), "c".into()]);
        assert_eq!(requests.steers(), ["b".into()]);
        let kinds: Vec<_> = requests.drain().into_iter().map(|open| open.kind).collect();
        assert_eq!(kinds, [Kind::LateSteer, Kind::ContextUsage]);
    }

    #[test]
    fn a_request_leaves_the_table_once() {
        let now = Instant::now();
        let mut requests = Requests::default();
        assert!(requests.add("a".into(), Kind::Steer, now));
        assert!(!requests.add("a".into(), Kind::Steer, now));
        assert!(requests.add("b".into(), Kind::Send("t1".into()), now));
        assert_eq!(requests.deadline(), Some(now + Duration::from_secs(15)));
        assert_eq!(requests.take_expired(now + Duration::from_secs(14)), None);
        let late = now + Duration::from_secs(15);
        assert_eq!(requests.take_expired(late).unwrap().kind.name(), "steer");
        assert_eq!(requests.take(&"a".into()), None);
        assert_eq!(requests.deadline(), None);
        assert_eq!(requests.drain().len(), 1);
        assert!(requests.drain().is_empty());
    }

    #[test]
    fn the_table_has_a_bound() {
        let mut requests = Requests::default();
        for index in 0..MAX_PENDING {
            assert!(requests.add(index.to_string().into(), Kind::Models, Instant::now()));
        }
        assert!(!requests.add("one more".into(), Kind::Models, Instant::now()));
    }

    #[test]
    fn results_are_checked() {
        let send = Kind::Send("t".into());
        assert!(send.accepts(Some(&raw(r#"{"status":"completed"}"#))));
        assert!(!send.accepts(Some(&raw(r#"{"status":"splendid"}"#))));
        assert!(!send.accepts(None));
        assert!(Kind::Steer.accepts(Some(&raw(r#"{"outcome":"queued"}"#))));
        assert!(!Kind::Steer.accepts(Some(&raw("null"))));
        assert!(Kind::Abort.accepts(None));
        assert!(Kind::Models.accepts(Some(&raw("[]"))));
        assert!(!Kind::Models.accepts(Some(&raw("{}"))));
    }
}
