//! What the end-to-end tests of ade share: a private ade for each test, a
//! client of its own, the fake model server, the pinned real agents, and waiting
//! with a name.
//!
//! Tests talk to the executables, not to the insides. Nothing here sleeps and
//! hopes: everything waits for a condition and says which.

pub mod ade;
pub mod agents;
pub mod cards;
pub mod cgroups;
pub mod chaos;
pub mod commands;
pub mod disk;
pub mod fake_model;
pub mod hosts;
pub mod lease_model;
pub mod pi;
pub mod rpc;
pub mod shim;
pub mod turns;
pub mod wait;
