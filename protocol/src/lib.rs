//! Every word that ade speaks on a wire.
//!
//! Three conversations share this crate: broker ↔ worker and worker ↔ host
//! (*frames*, [`frame`]), and client ↔ broker (*JSON-RPC*, [`rpc`] and
//! [`action`]). The same types are written and read on both ends, so that the
//! two ends cannot drift; what a type accepts is the contract.
//!
//! Invariants:
//! - a [`frame::ToWorker`] or [`frame::FromWorker`] that exists is valid: ids
//!   are present, numbers are in range, the protocol version was checked;
//! - nothing here does I/O, reads a clock or starts a task;
//! - payloads that a hop only forwards stay [`serde_json::value::RawValue`].
//!
//! What this crate does not do: decide anything. Deadlines, retries and
//! ordering belong to the crates that talk.

pub mod action;
pub mod boot;
pub mod card;
pub mod codec;
pub mod event;
pub mod exit;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod rpc;
pub mod strict;

pub use ids::{Fence, Generation, RequestId, Seq, SessionId, TurnId, WorkerId};

/// Version of the frame protocol. A frame of any other version is refused and
/// both versions are named.
pub const PROTOCOL_VERSION: u32 = 2;
