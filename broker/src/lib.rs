//! The broker of ade: a library with one entry, [`serve`].
//!
//! It starts one worker process for each chat that works, routes what the
//! workers say into transcripts and to clients, and answers clients over a
//! local socket. Decisions are pure ([`turn`], [`cards`], [`budget`],
//! [`classify`]); each chat is owned by one actor ([`session`]); everything
//! that touches the machine is in a module of its own.
//!
//! Invariants that hold across modules:
//! - an event is in the transcript before anybody sees it;
//! - a worker's journal is on disk before the worker exists;
//! - two generations of a session's worker never overlap;
//! - every turn ends with exactly one `done`.

pub mod actions;
pub mod ancestry;
pub mod budget;
pub mod cards;
pub mod cgroups;
pub mod classify;
pub mod clock;
pub mod config;
pub mod endpoint;
pub mod environment;
pub mod footing;
pub mod hold;
pub mod home;
pub mod hub;
pub mod journal;
pub mod leftovers;
pub mod limits;
pub mod link;
pub mod lock;
mod looks;
pub mod manager;
mod orphans;
pub mod pool;
pub mod preflight;
pub mod providers;
pub mod reap;
mod remains;
pub mod session;
pub mod shared;
pub mod socket;
pub mod spawn;
pub mod state;
mod strays;
pub mod stuck;
pub mod subscription;
pub mod sweep;
pub mod takeover;
pub mod transcript;
pub mod turn;
mod unknown;
pub mod usage;
mod visit;

mod serve;
pub use serve::{ServeError, ServeOptions, serve};
mod files;
mod platform;
pub mod roles;
mod wanted;
