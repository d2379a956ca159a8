//! Starting workers.
