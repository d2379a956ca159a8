//! Skeleton.

pub mod agents;
pub mod fake_model;
