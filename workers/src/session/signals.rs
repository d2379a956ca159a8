//! What the kernel tells this process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Stop: SIGTERM, SIGINT or SIGHUP.
    Stop,
    /// A child, of whatever depth, changed its state.
    Child,
}

/// The signals that are listened to.
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    child: Signal,
}

impl Signals {
    /// Begins to listen; from now on none of them ends this process.
    ///
    /// # Errors
    /// The handlers can't be installed.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
            child: signal(SignalKind::child())?,
        })
    }

    /// The next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Told {
        tokio::select! {
            biased;
            _ = self.term.recv() => Told::Stop,
            _ = self.int.recv() => Told::Stop,
            _ = self.hup.recv() => Told::Stop,
            _ = self.child.recv() => Told::Child,
        }
    }
}
