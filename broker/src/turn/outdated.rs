//! A worker that was started with what is not wanted any more: another tool
//! policy, for one.
//!
//! The turn that it runs goes on to its end with it. No message is written to it
//! after that: it is sent away as soon as nothing runs, or the next turn begins
//! with another one.

use ade_protocol::Generation;
use ade_protocol::card::Withdrawal;

use super::machine::Machine;
use super::{Effect, State};

impl Machine {
    pub(super) fn outdated(&mut self, generation: Generation, out: &mut Vec<Effect>) {
        self.outdated = Some(generation);
        self.replace_outdated(out);
    }

    /// Whether the worker that is in use serves no other turn.
    pub(super) fn has_outdated_worker(&self) -> bool {
        self.worker.is_some() && self.worker == self.outdated
    }

    /// Sends an outdated worker away that runs nothing.
    pub(super) fn replace_outdated(&mut self, out: &mut Vec<Effect>) {
        if self.state == State::Idle && self.has_outdated_worker() {
            self.worker = None;
            out.push(Effect::Withdraw(Withdrawal::Recycled));
            out.push(Effect::Dispose);
        }
    }
}
