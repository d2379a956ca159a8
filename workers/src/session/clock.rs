//! What is due by the clock: one table of deadlines.

use std::time::Duration;

use ade_protocol::frame::{Response, code};
use tokio::time::Instant;

use super::Session;
use crate::host::Host;
use crate::ladder::{Input, StopStage};
use crate::outbox::Weight;
use crate::pending::Kind;

impl Session {
    /// When [`Session::on_time`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let while_running = if self.is_stopping() {
            None
        } else {
            let host = self.host.as_ref().and_then(Host::write_deadline);
            let pipes = [host, self.input_broken, self.output_closed, self.orphaned()];
            pipes
                .into_iter()
                .chain([self.requests.deadline(), self.hidden.due()])
                .flatten()
                .min()
        };
        let lease = self.lease_check;
        [
            while_running,
            lease,
            self.ladder.deadline(),
            self.attach_by,
            self.finish_by,
            self.vigil,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// When a worker without a broker gives up.
    fn orphaned(&self) -> Option<Instant> {
        let since = self.detached_since?;
        let timing = &self.boot.timing;
        Some(match self.turn {
            Some(_) => since + Duration::from_millis(timing.orphan_turn_ms),
            None => since.max(self.idle_since) + Duration::from_millis(timing.orphan_idle_ms),
        })
    }

    /// Does what is due.
    pub(super) fn on_time(&mut self, now: Instant) {
        let due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| now >= deadline);
        if due(self.finish_by) {
            self.over = true;
        }
        if due(self.attach_by) {
            self.link.hang_up();
            self.detached();
        }
        if due(self.lease_check) {
            self.look_at_lease(now);
        }
        if due(self.vigil) {
            self.look_at_survivors(false);
        }
        let effect = self.ladder.on(Input::Tick, now);
        self.climb(effect);
        if self.is_stopping() {
            return;
        }
        if due(self.orphaned()) {
            self.log("warn", "no broker came back; this worker ends");
            return self.asked_to_stop();
        }
        if due(self.hidden.due()) {
            self.hidden.begin(now);
        }
        self.expire_requests(now);
        let stuck = if due(self.host.as_ref().and_then(Host::write_deadline)) {
            Some((code::TIMED_OUT, "the agent does not read its input"))
        } else if due(self.input_broken) {
            Some((
                code::PROTOCOL_ERROR,
                "the agent closed its input and can't be reached any more",
            ))
        } else if due(self.output_closed) {
            Some((
                code::PROTOCOL_ERROR,
                "the agent closed its output and can't answer any more",
            ))
        } else {
            None
        };
        if let Some((code, message)) = stuck {
            self.fail(code, message.to_owned(), None, StopStage::Term);
        }
    }

    fn expire_requests(&mut self, now: Instant) {
        if self.requests.deadline().is_none_or(|at| now < at) {
            return;
        }
        self.glance();
        let Some(pending) = self.requests.take_expired(now) else {
            return;
        };
        let seconds = pending.kind.limit().unwrap_or_default().as_secs();
        let (message, stage) = match pending.kind {
            // The turn it was meant for is over; the next one has done nothing wrong.
            Kind::LateSteer => {
                let message =
                    format!("the agent did not say within {seconds} s what it made of this");
                let response = Response::err(pending.id, code::TIMED_OUT, message);
                return self.respond(response, Weight::Answers);
            }
            Kind::Abort => (
                format!("the agent did not stop within {seconds} s; it is being ended"),
                StopStage::Term,
            ),
            ref kind => {
                let name = kind.name();
                let lines = match self.counts.malformed {
                    0 => String::new(),
                    count => format!("; lines of it that are no valid frames: {count}"),
                };
                (
                    format!("the agent did not answer `{name}` within {seconds} s{lines}"),
                    StopStage::Dispose,
                )
            }
        };
        self.respond(
            Response::err(pending.id, code::TIMED_OUT, message.clone()),
            Weight::Answers,
        );
        self.fail(code::TIMED_OUT, message, None, stage);
    }
}
