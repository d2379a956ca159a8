//! The holder's eye on its own lease.
//!
//! A foreign program may take a live lease away (it reclaims blindly when it
//! reads no record), and a human may break one. The holder must notice and stop
//! writing, or two would write.

use super::held::{Lease, Standing};
use super::platform;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Tells when to look, and looks.
///
/// ```no_run
/// # use ade_leases::lease::{Lease, Standing, Watch};
/// # fn wait(_: Option<&std::os::fd::OwnedFd>, _: std::time::Duration) {}
/// # fn hold(lease: &Lease) -> std::io::Result<()> {
/// let watch = Watch::new(lease);
/// loop {
///     wait(watch.descriptor(), watch.interval());
///     if watch.check(lease)? != Standing::Ours {
///         break; // Stop writing at once.
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Watch {
    watcher: Option<OwnedFd>,
}

impl Watch {
    /// How often to look even when the descriptor is quiet.
    pub const FLOOR: Duration = Duration::from_secs(5);

    /// How often to look when there is no descriptor.
    pub const BLIND: Duration = Duration::from_secs(1);

    /// Watches from now on. Look once right after this: what happened before
    /// is not reported.
    ///
    /// Systems give a user few watchers (128 by default on Linux), so having
    /// none is no error: it only means to look more often.
    #[must_use]
    pub fn new(lease: &Lease) -> Self {
        let watcher = platform::watcher().ok();
        let watcher = watcher.filter(|fd| platform::watch(fd, &lease.path()).is_ok());
        Self { watcher }
    }

    /// Readable when it is time to look; non-blocking. `None`: look every
    /// [`Watch::interval`].
    #[must_use]
    pub fn descriptor(&self) -> Option<&OwnedFd> {
        self.watcher.as_ref()
    }

    /// The longest time between two looks.
    #[must_use]
    pub fn interval(&self) -> Duration {
        if self.watcher.is_some() {
            Self::FLOOR
        } else {
            Self::BLIND
        }
    }

    /// Looks. Quiets the descriptor first, so nothing that happens during the
    /// look is missed. Costs one system call when all is well and quiet.
    ///
    /// # Errors
    /// As [`Lease::standing`].
    pub fn check(&self, lease: &Lease) -> io::Result<Standing> {
        if let Some(watcher) = &self.watcher {
            platform::drain(watcher.as_fd());
        }
        let standing = lease.standing()?;
        if let (Standing::Ours, Some(watcher)) = (&standing, &self.watcher) {
            // It may be ours again under another inode. A failure means that
            // it went away just now: the next look, at the latest after the
            // floor, tells.
            let _ = platform::watch(watcher, &lease.path());
        }
        Ok(standing)
    }
}
