//! Signals that mean nothing to a broker and would end it: whoever sends one
//! meant another process, or wanted to look. Each is told of once and ignored.
//!
//! Listened to and not set to be ignored: what is ignored stays so in every
//! program that is started, and an agent's own timers are signals.
//!
//! What it does not do: SIGTERM and SIGINT, which stop the broker; SIGQUIT and
//! the signals of a crash, which leave a core; SIGPIPE, which the runtime of the
//! language ignores for every program.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// They end a process that says nothing about them. SIGHUP is what a terminal
/// sends that is closed: that must not end the agents.
const IGNORED: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGXCPU,
    Signal::SIGXFSZ,
];

/// Ignores them from now on.
///
/// # Errors
/// The handlers cannot be installed.
pub(crate) fn ignore() -> io::Result<()> {
    for ignored in IGNORED {
        let mut heard = signal(SignalKind::from_raw(*ignored as i32))?;
        tokio::spawn(async move {
            // The handler stays when nobody listens any more.
            if heard.recv().await.is_some() {
                tracing::warn!(
                    "{ignored} is ignored: it means nothing to the broker, and is told of once"
                );
            }
        });
    }
    Ok(())
}
