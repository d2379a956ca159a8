//! Skeleton.
pub mod clock;
pub mod config;
pub mod environment;
pub mod home;
pub mod journal;
pub mod limits;
pub mod lock;
pub mod providers;
pub mod reap;
pub mod socket;
pub mod spawn;
pub mod state;
pub mod sweep;
pub mod transcript;

mod files;
mod platform;
