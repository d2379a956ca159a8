//! Collecting the dead.
