//! Ending what a dead broker left.
