//! The executable as people and scripts meet it.

#![expect(clippy::disallowed_methods, reason = "tests end their own processes")]

#[cfg(target_os = "linux")]
mod demo;
mod help;
mod leases;
mod support;
mod with_broker;
mod without_broker;
