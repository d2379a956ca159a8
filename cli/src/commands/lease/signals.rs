//! The signals that a holder around a command passes on.

use std::io;
use std::os::fd::AsFd;

use ade_leases::process::Signal;
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Caught instead of ending us. SIGTSTP and the like stop us with the command,
/// which is in our process group.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Stream,
    quit: Stream,
    terminate: Stream,
    hangup: Stream,
    user1: Stream,
    user2: Stream,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next one. May be dropped while it waits: nothing is lost.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            Some(()) = self.interrupt.recv() => Signal::SIGINT,
            Some(()) = self.quit.recv() => Signal::SIGQUIT,
            Some(()) = self.terminate.recv() => Signal::SIGTERM,
            Some(()) = self.hangup.recv() => Signal::SIGHUP,
            Some(()) = self.user1.recv() => Signal::SIGUSR1,
            Some(()) = self.user2.recv() => Signal::SIGUSR2,
            else => std::future::pending().await,
        }
    }

    /// A terminal sends Ctrl-C and Ctrl-\ to its whole foreground group, so the
    /// command has them already. Passed on they would count as a second one.
    pub(super) fn is_from_our_terminal(signal: Signal) -> bool {
        let foreground = |fd: std::os::fd::BorrowedFd<'_>| tcgetpgrp(fd) == Ok(getpgrp());
        matches!(signal, Signal::SIGINT | Signal::SIGQUIT)
            && (foreground(io::stdin().as_fd()) || foreground(io::stderr().as_fd()))
    }
}
