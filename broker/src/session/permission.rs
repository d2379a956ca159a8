//! Changing what is fixed when a worker starts.
//!
//! The change is on disk before anything else happens. The running turn goes on
//! as it began; a worker that was started with something else gets no message
//! after it: it is disposed of, and the next turn waits until it is gone.

use ade_protocol::Generation;
use ade_protocol::action::PermissionMode;
use ade_protocol::event::{Event, NoticeLevel};
use ade_protocol::exit;
use ade_protocol::rpc::RpcError;

use super::actor::Actor;
use super::depart::Leave;
use super::start::Started;
use super::worker::Worker;
use crate::providers::LaunchSpec;
use crate::turn::Input;

impl Actor {
    /// Changes the permission mode. The same one again changes nothing.
    pub(super) async fn permit(&mut self, mode: PermissionMode) -> Result<(), RpcError> {
        if self.closed {
            return Err(super::closed());
        }
        if self.row.permission == mode {
            return Ok(());
        }
        let session = self.row.session_id.clone();
        let changed = self
            .shared
            .state
            .run(move |state| state.set_permission(&session, mode))
            .await;
        self.row.policy = changed.map_err(|error| {
            let refused = RpcError::failed("state", exit::FAILED, error.to_string());
            error.hints().into_iter().fold(refused, RpcError::hint)
        })?;
        self.row.permission = mode;
        let name = mode.name();
        let message = if self.machine.turn().is_some() {
            format!("The permission is {name} from the next turn on.")
        } else {
            format!("The permission is {name}.")
        };
        let level = NoticeLevel::Info;
        self.emit(None, &Event::Notice { level, message });
        self.touch();
        self.check_worker().await;
        Ok(())
    }

    /// Tells the machine when the worker was started with something else than
    /// is wanted now.
    async fn check_worker(&mut self) {
        let Some(worker) = &self.worker else { return };
        let generation = worker.generation;
        if !self.fits(worker.spec.as_ref()) {
            self.outdated(generation).await;
        }
    }

    pub(super) async fn outdated(&mut self, generation: Generation) {
        tracing::info!(session = %self.row.session_id, %generation, "a worker is outdated");
        self.input(Input::Outdated(generation)).await;
    }

    /// Whether a worker that was started with this serves the session. What is
    /// not known does not.
    pub(super) fn fits(&self, spec: Option<&LaunchSpec>) -> bool {
        spec == Some(&self.shared.providers.spec(&self.row))
    }

    /// A new worker was outdated before it was ready: another one is had.
    pub(super) fn start_again(&mut self, started: Started) {
        self.row.generation = started.generation;
        self.see_off(Worker::new(started), Leave::Ask);
        self.acquire_if_wanted();
    }
}
