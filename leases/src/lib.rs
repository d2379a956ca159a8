//! Process identity, leases, owners and the session store.
//!
//! Synchronous, small and without a runtime: what must be right when the
//! machine is not. Each module's documentation tells its rules; the protocol
//! of the lease is told in [`lease`], what a holder's life is judged by in
//! [`verdict`].

pub mod lease;
mod object;
pub mod owner;
pub mod process;
pub mod record;
pub mod session_file;
pub mod store;
pub mod verdict;
