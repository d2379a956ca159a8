//! Processes: who one is, whether it still lives, what it started, the one place
//! that sends signals, and what a process asks of the kernel for itself.
//!
//! A pid alone names nothing: the kernel gives it to somebody else as soon as
//! its process has been reaped. A [`ProcessIdentity`] is the pid together with
//! the kernel's start tick, the boot and the pid namespace it was seen in; two
//! equal identities are the same process.
//!
//! Invariants:
//! - Death is only claimed with a [`DeadProof`]. A process that can't be looked
//!   at, or that lives in another pid namespace, is [`Liveness::Unknown`].
//! - A zombie is dead: it answers signal 0 and keeps its start tick, but it
//!   will never write again.
//! - Signals go through [`signal`] and nowhere else, and only to a process
//!   whose identity was checked after a pidfd had pinned it. The one exception
//!   names no process: [`cgroup::Cgroup::kill`], a cgroup of our own.
//!
//! What this module does not do: it starts no process, waits for none and
//! reads no command line, so that nothing secret can leave through it.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
use macos as platform;

pub mod cgroup;
mod hidden;
mod identity;
mod own;
mod signals;
mod tree;

pub use hidden::HiddenList;
pub use identity::{DeadProof, Liveness, Pid, ProcessIdentity, UnknownWhy};
pub use own::{OWN_DESCRIPTORS, become_subreaper, die_with_parent, own_program};
pub use signals::{Sent, Signal, SignalError, Target, signal};
pub use tree::{
    Ancestors, ProcessEntry, ancestors, carries, children, descendants, is_being_killed, marked,
    marks, offspring, rows_of, table,
};

pub(crate) use identity::here;
pub(crate) use platform::{Look, born_at, look};

use std::io;
use std::os::fd::OwnedFd;

/// A descriptor that becomes readable when the process with this identity
/// ends, for event loops; `None` when it is gone already.
///
/// The identity is checked after the descriptor was opened, so it can't name
/// a successor that got the same pid. A zombie counts as gone.
///
/// # Errors
/// The system can't open such descriptors (before Linux 5.3, or macOS), is out
/// of descriptors, or `/proc` can't be read.
pub fn pidfd(identity: &ProcessIdentity) -> io::Result<Option<OwnedFd>> {
    platform::pidfd(identity)
}
