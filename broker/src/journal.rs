//! One file per live worker.
