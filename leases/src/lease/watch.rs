//! The holder's eye on its own lease.
//!
//! A foreign program may take a live lease away (it reclaims blindly when it
//! reads no record), and a human may break one. The holder must notice and stop
//! writing, or two would write.

use super::held::{Lease, Standing};
use super::platform;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Tells when to look, and looks.
///
/// ```no_run
/// # use ade_leases::lease::{Lease, Standing, Watch};
/// # fn wait(_: Option<&std::os::fd::OwnedFd>, _: std::time::Duration) {}
/// # fn hold(lease: &Lease) -> std::io::Result<()> {
/// let watch = Watch::new(lease);
/// loop {
///     // Where there is no descriptor, the clock alone tells.
///     wait(watch.descriptor(), Watch::BLIND);
///     if watch.check(lease)? != Standing::Ours {
///         break; // Stop writing at once.
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Watch {
    eye: Option<platform::Eye>,
    /// Whether the file has to be watched anew: it may be ours again under
    /// another inode.
    stale: AtomicBool,
}

impl Watch {
    /// How often to look even when nothing seems to happen to the file.
    pub const FLOOR: Duration = Duration::from_secs(5);

    /// How often to look when the file can't be watched.
    pub const BLIND: Duration = Duration::from_secs(1);

    /// Watches from now on. Look once right after this: what happened before
    /// is not reported.
    ///
    /// Systems give a user few watchers (128 by default on Linux), so having
    /// none is no error: it only means to look more often.
    #[must_use]
    pub fn new(lease: &Lease) -> Self {
        let eye = platform::Eye::new(&lease.path(), Self::FLOOR, Self::BLIND);
        Self {
            eye: eye.ok(),
            stale: AtomicBool::new(true),
        }
    }

    /// Readable when it is time to look, because something happened or because
    /// the last look is [`Watch::FLOOR`], or [`Watch::BLIND`], ago; non-blocking.
    /// `None`: look every [`Watch::BLIND`].
    #[must_use]
    pub fn descriptor(&self) -> Option<&OwnedFd> {
        self.eye.as_ref().map(platform::Eye::descriptor)
    }

    /// Whether what happens to the file is told at once.
    #[must_use]
    pub fn sees_file(&self) -> bool {
        self.eye.as_ref().is_some_and(platform::Eye::sees_file)
    }

    /// Looks. Quiets the descriptor first, so nothing that happens during the
    /// look is missed. When all is well and quiet it opens and reads no file.
    ///
    /// # Errors
    /// As [`Lease::standing`].
    pub fn check(&self, lease: &Lease) -> io::Result<Standing> {
        let Some(eye) = &self.eye else {
            return lease.standing();
        };
        if eye.quiet() {
            self.stale.store(true, Ordering::Relaxed);
        }
        let standing = lease.standing()?;
        if matches!(standing, Standing::Ours) && self.stale.load(Ordering::Relaxed) {
            // A failure means that it went away just now: the next look, at
            // the latest after the floor, tells.
            let missed = eye.watch(&lease.path()).is_err();
            self.stale.store(missed, Ordering::Relaxed);
        }
        Ok(standing)
    }
}
