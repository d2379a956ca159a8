//! What clients see of the session.

use std::sync::Arc;

use ade_protocol::Seq;
use ade_protocol::action::SessionInfo;

use super::View;
use super::actor::Actor;
use super::depart::Departing;
use crate::clock;
use crate::state::SessionRow;
use crate::turn::State;

impl Actor {
    /// Something that clients see has changed.
    pub(super) fn touch(&mut self) {
        self.dirty = true;
    }

    /// Whether the view has to be published now: its state changed, or its
    /// figures are as old as they may be.
    pub(super) fn view_is_due(&self) -> bool {
        self.dirty || self.stale.is_some_and(|at| clock::now() >= at)
    }

    /// Whether a worker that was asked to end is alive.
    fn is_stopping(&self) -> bool {
        let leaving = self.worker.as_ref().map(|worker| worker.leaving.is_some());
        leaving.unwrap_or(self.departing.as_ref().is_some_and(Departing::is_alive))
    }

    pub(super) fn publish_view(&mut self) {
        self.dirty = false;
        self.stale = None;
        let line = self.starting.as_ref().map(|starting| starting.place);
        let line = line.filter(|place| *place > 0);
        let info = SessionInfo {
            place: line,
            state: match (&self.row.failed_reason, self.machine.state()) {
                (_, State::Idle) if self.is_stopping() => State::Stopping.name().into(),
                (Some(_), State::Idle) => "failed".into(),
                (_, State::Starting | State::Recovering) if line.is_some() => "waiting".into(),
                (_, state) => state.name().into(),
            },
            quiet_since: self
                .machine
                .quiet_since()
                .map(|since| self.wall_clock(since)),
            turn_id: self.machine.turn().cloned(),
            queued: self.machine.queued(),
            generation: self.row.generation,
            worker_pid: self.worker.as_ref().map(|worker| worker.process.pid),
            host_pid: self.worker.as_ref().and_then(|worker| worker.host_pid),
            stop_stage: (self.worker.as_ref())
                .and_then(|worker| worker.stop_stage.clone())
                .or_else(|| Some(self.departing.as_ref()?.stage.clone())),
            session_file: self.row.session_file.clone(),
            lease_held: self.worker.as_ref().is_some_and(|worker| worker.lease_held),
            last_sequence: self.transcript.last_sequence(),
            last_event_at: self.transcript.last_event_at().map(str::to_owned),
            last_status: self.last_status,
            last_error: self
                .row
                .failed_reason
                .clone()
                .or_else(|| self.last_error.clone()),
            ..placeholder(&self.row)
        };
        let legacy = self.legacy_cards.open.iter().map(|row| &row.card);
        let cards = legacy.chain(self.cards.open()).cloned().collect();
        let view = View { info, cards };
        self.view.send_replace(Arc::new(view));
    }
}

/// What is known of a session from its row alone.
pub(crate) fn placeholder(row: &SessionRow) -> SessionInfo {
    SessionInfo {
        session_id: row.session_id.clone(),
        provider: row.provider.clone(),
        lane: row.lane.clone(),
        model: row.model.clone(),
        permission: row.permission,
        title: row.title.clone(),
        created_at: row.created_at.clone(),
        state: State::Idle.name().into(),
        place: None,
        quiet_since: None,
        turn_id: None,
        queued: 0,
        generation: row.generation,
        worker_pid: None,
        host_pid: None,
        stop_stage: None,
        session_file: row.session_file.clone(),
        lease_held: false,
        last_sequence: Seq(0),
        last_event_at: None,
        last_status: None,
        last_error: None,
        cpu_percent: None,
        memory_bytes: None,
    }
}
