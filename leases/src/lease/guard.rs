//! The guard: a short lock of the directory, under which our own processes
//! publish, reclaim and release one after the other.
//!
//! The foreign program knows no guard. Everything done under it must therefore
//! be safe, or at least repairable, when a foreign program acts in between.

use super::place::Place;
use super::seam::{Seam, Step};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};

/// How long a guard is waited for: its holder needs about 0.1 ms, so one that
/// keeps it for longer is stopped.
pub(crate) const GUARD_WAIT: Duration = Duration::from_secs(5);

/// A held guard; dropping it lets it go.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    place: &'a Place,
    /// `false` on filesystems that offer no lock of directories (NFS). Publish
    /// is atomic without it; a reclaim then is as safe as the shared rule.
    held: bool,
}

#[derive(Debug)]
pub(crate) enum GuardError {
    Timeout,
    Io(io::Error),
}

impl<'a> Guard<'a> {
    pub(crate) fn take(place: &'a Place, seam: &Seam) -> Result<Self, GuardError> {
        let started = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            let lock = || {
                let operation = FlockOperation::NonBlockingLockExclusive;
                Ok(rustix::fs::flock(&place.dir, operation))
            };
            match seam.run(Step::Guard, lock).map_err(GuardError::Io)? {
                Ok(()) => return Ok(Self { place, held: true }),
                Err(Errno::WOULDBLOCK) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::BADF | Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => {
                    return Ok(Self { place, held: false });
                }
                Err(errno) => return Err(GuardError::Io(errno.into())),
            }
            if started.elapsed() >= GUARD_WAIT {
                return Err(GuardError::Timeout);
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(Duration::from_millis(2));
        }
    }
}

impl Guard<'_> {
    /// Whether others of ours are really kept out.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.held {
            let _ = rustix::fs::flock(&self.place.dir, FlockOperation::Unlock);
        }
    }
}
