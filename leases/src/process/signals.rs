//! The only place in ade that sends a signal.

use super::identity::{Liveness, Pid, ProcessIdentity};
use super::platform;
use super::tree::table;
use std::io;

pub use nix::sys::signal::Signal;

/// Who is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// One process, reached through a pidfd: never a successor of its pid.
    Process(ProcessIdentity),
    /// The process group that this process leads, or led while members of it
    /// are left.
    Group(ProcessIdentity),
}

/// What became of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The kernel took it.
    Delivered,
    /// Nobody is there any more; nothing was sent.
    Gone,
}

/// A signal that was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    /// The target is one that no caller can mean: pid 1, ourselves, or our own
    /// process group.
    #[error("refused to send {signal} to {pid}: it is {what}")]
    Refused {
        /// The signal.
        signal: Signal,
        /// The pid or the group.
        pid: Pid,
        /// What makes it untouchable.
        what: &'static str,
    },
    /// The target can't be identified from here, so nothing may be sent.
    #[error("could not identify the {what} {pid} before sending {signal}; is /proc mounted?")]
    Identify {
        /// The signal.
        signal: Signal,
        /// `process` or `process group`.
        what: &'static str,
        /// The pid or the group.
        pid: Pid,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refused it.
    #[error("could not send {signal} to the {what} {pid}")]
    Send {
        /// The signal.
        signal: Signal,
        /// `process` or `process group`.
        what: &'static str,
        /// The pid or the group.
        pid: Pid,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Sends a signal to exactly who is meant, or to nobody.
///
/// For a group the members are verified just before: its leader is the very
/// process, or the leader is gone and somebody is left in the group (zombies don't
/// count). The kernel
/// does not hand out a pid while a group still has that number, so such members
/// can only be others if the whole group died and the number was led anew.
///
/// # Errors
/// See [`SignalError`]. That the target is gone is not an error: [`Sent::Gone`].
pub fn signal(target: &Target, sig: Signal) -> Result<Sent, SignalError> {
    match target {
        Target::Process(identity) => to_process(identity, sig),
        Target::Group(leader) => to_group(leader, sig),
    }
}

fn refuse(pid: Pid, signal: Signal, forbidden: &[(i32, &'static str)]) -> Result<(), SignalError> {
    if pid.get() <= 1 {
        return Err(SignalError::Refused {
            signal,
            pid,
            what: "the first process",
        });
    }
    match forbidden
        .iter()
        .find(|(forbidden, _)| *forbidden == pid.get())
    {
        Some((_, what)) => Err(SignalError::Refused { signal, pid, what }),
        None => Ok(()),
    }
}

fn to_process(identity: &ProcessIdentity, signal: Signal) -> Result<Sent, SignalError> {
    let pid = identity.pid;
    refuse(pid, signal, &[(Pid::own().get(), "this very process")])?;
    match platform::send_to_process(identity, signal) {
        Ok(true) => Ok(Sent::Delivered),
        Ok(false) => Ok(Sent::Gone),
        Err(source) => Err(SignalError::Send {
            signal,
            what: "process",
            pid,
            source,
        }),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is where signals are sent")]
fn to_group(leader: &ProcessIdentity, signal: Signal) -> Result<Sent, SignalError> {
    const WHAT: &str = "process group";
    let pid = leader.pid;
    let own_group = nix::unistd::getpgrp().as_raw();
    let forbidden = [
        (Pid::own().get(), "this very process"),
        (own_group, "our own process group"),
    ];
    refuse(pid, signal, &forbidden)?;
    if matches!(
        leader.liveness(),
        Liveness::Unknown(_) | Liveness::Dead(super::DeadProof::OtherBoot)
    ) {
        let source = io::Error::other("it was seen in another pid namespace or another boot");
        return Err(SignalError::Identify {
            signal,
            what: WHAT,
            pid,
            source,
        });
    }
    let rows = table().map_err(|source| SignalError::Identify {
        signal,
        what: WHAT,
        pid,
        source,
    })?;
    let somebody_else = rows
        .iter()
        .any(|row| row.pid == pid && row.start_ticks != leader.start_ticks);
    if somebody_else
        || !rows
            .iter()
            .any(|row| row.pgid == pid.get() && !row.is_zombie())
    {
        return Ok(Sent::Gone);
    }
    match nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid.get()), signal) {
        Ok(()) => Ok(Sent::Delivered),
        Err(nix::errno::Errno::ESRCH) => Ok(Sent::Gone),
        Err(errno) => Err(SignalError::Send {
            signal,
            what: WHAT,
            pid,
            source: errno.into(),
        }),
    }
}
