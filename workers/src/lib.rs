//! What an `ade-worker` process does: it stands above one agent's process,
//! holds the lease of the session file, turns the agent's events into canonical
//! ones and leaves no process behind.
//!
//! One executable plays both parts. Started under the name `ade-worker` it is a
//! worker ([`worker_main`]); a worker starts it again under the name `ade-host`
//! ([`host_main`]), which ties itself to its parent's life and becomes the
//! agent's program.
//!
//! Invariants:
//! - one task owns the session; nothing is shared and nothing is locked;
//! - a host is started on the main thread, which lives as long as the process,
//!   because the host's parent-death signal follows that thread;
//! - the lease is taken before the host opens the file where that is possible,
//!   and released after everything below the worker is dead;
//! - every event gets a number, and is kept until the broker has it on disk.
//!
//! What it does not do: decide about turns, deadlines of turns or re-sends.
//! That is the broker's.

mod boot;
mod cards;
mod entry;
mod env;
mod hidden;
mod host;
pub mod hosts;
mod ladder;
mod link;
mod mask;
mod net;
mod outbox;
mod pending;
mod platform;
mod providers;
mod session;
mod tail;
mod tree;

pub use entry::{host_main, worker_main};
