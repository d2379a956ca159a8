//! The executable as people and scripts meet it.

mod help;
mod leases;
mod support;
mod with_broker;
mod without_broker;
