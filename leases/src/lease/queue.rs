//! Waiting in the kernel, in order of arrival.
//!
//! The holder's `flock` is its sign of life, so waiters must not take it: a
//! waiter that got a dead holder's lock and was then stopped would look like a
//! live holder for ever. They queue at a range lock of the same inode instead,
//! which the holder takes when it publishes and loses when it releases or dies.
//!
//! - Who gets the range lock is next. It keeps it, as a *baton*, until it has
//!   released in its turn, so that those behind it wait where they are and
//!   their order stays.
//! - Waiters also show themselves by a shared lock of a second range. A holder
//!   that sees some at its release keeps a descriptor of that inode for a
//!   moment, and when it wants the lease again it queues there, behind them.
//!   Without this it would win every race against a waiter that must first be
//!   woken.
//! - A holder of another program takes no range lock. Then the first waiter has
//!   the baton at once and polls; the others still queue behind it.
//!
//! Range locks can't be waited for with a timeout, so a thread waits. One that
//! is abandoned goes when its turn comes; there is a bound on how many.

use super::platform;
use super::registry::{keep_queue, kept_queue};
use super::seam::{Seam, Step};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Threads of this process that may wait for a range lock nobody wants any
/// more. Beyond that, waiting polls.
const ABANDONED_MAX: usize = 16;

static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// Batons that one waiter carries; it gets another one only when a newcomer
/// was faster than the queue. With more than this the oldest is passed on.
const BATONS_MAX: usize = 4;

/// A place at the head of a queue; dropping it lets the next one go.
#[derive(Debug)]
pub(crate) struct Baton {
    file: Arc<File>,
}

impl Drop for Baton {
    fn drop(&mut self) {
        // Said aloud, since a child between fork and exec has a copy.
        let _ = platform::leave_queue(&self.file);
    }
}

/// The batons of one waiter and then of its lease.
#[derive(Debug, Default)]
pub(crate) struct Batons(Vec<Baton>);

pub(crate) enum Queued {
    /// We are next: look again at once.
    Next,
    /// Time is up.
    TimedOut,
    /// There is no queue to wait in, or we are at its head already: poll.
    NoQueue,
}

impl Batons {
    fn push(&mut self, baton: Baton) {
        if self.0.len() == BATONS_MAX {
            self.0.remove(0);
        }
        self.0.push(baton);
    }

    fn heads(&self, file: &File) -> bool {
        use std::os::unix::fs::MetadataExt;
        let inode = |file: &File| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
        let wanted = inode(file);
        self.0.iter().any(|baton| inode(&baton.file) == wanted)
    }

    /// Queues at the place that our own last release has left, if any.
    pub(crate) fn rejoin(&mut self, lease: &Path, left: Duration, seam: &Seam) -> Queued {
        match kept_queue(lease) {
            Some(file) => self.wait(file, left, seam),
            None => Queued::NoQueue,
        }
    }

    /// Queues at this lease file, opened for writing.
    pub(crate) fn join(&mut self, file: File, left: Duration, seam: &Seam) -> Queued {
        if self.heads(&file) {
            Queued::NoQueue
        } else {
            self.wait(file, left, seam)
        }
    }

    fn wait(&mut self, file: File, left: Duration, seam: &Seam) -> Queued {
        let file = Arc::new(file);
        let asked = seam.run(Step::Queue, || {
            platform::show_waiting(&file)?;
            platform::try_queue(&file)
        });
        match asked {
            Ok(true) => {
                self.push(Baton { file });
                return Queued::Next;
            }
            Ok(false) if ABANDONED.load(Ordering::Relaxed) < ABANDONED_MAX => {}
            Ok(false) | Err(_) => return Queued::NoQueue,
        }
        match wait_by_thread(&file, left) {
            Ok(true) => {
                self.push(Baton { file });
                Queued::Next
            }
            Ok(false) => {
                let _ = platform::hide_waiting(&file);
                Queued::TimedOut
            }
            Err(_) => Queued::NoQueue,
        }
    }

    /// Called while the lease is still held: whether anybody waits, and if so
    /// keeps that queue for our own next try.
    pub(crate) fn remember_waiters(&self, lock: &File, lease: &Path) {
        let own = std::iter::once(lock);
        let queues = self.0.iter().map(|baton| &*baton.file).chain(own);
        for file in queues {
            if platform::has_waiters(file) {
                if let Ok(file) = file.try_clone() {
                    keep_queue(lease, file);
                }
                return;
            }
        }
    }
}

/// Who decides first: the thread that got the lock, or the waiter whose time
/// is up.
const OPEN: u8 = 0;
const GOT: u8 = 1;
const ABANDON: u8 = 2;

fn decide(state: &AtomicU8, for_what: u8) -> bool {
    state
        .compare_exchange(OPEN, for_what, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

/// `Ok(true)` when the range lock is ours, `Ok(false)` when time is up.
fn wait_by_thread(file: &Arc<File>, left: Duration) -> io::Result<bool> {
    let (done, result) = sync_channel(1);
    let state = Arc::new(AtomicU8::new(OPEN));
    let (for_thread, state_of_thread) = (Arc::clone(file), Arc::clone(&state));
    let wait = move || {
        let got = platform::wait_queue(&for_thread);
        if decide(&state_of_thread, GOT) {
            let _ = done.send(got);
        } else {
            let _ = platform::leave_queue(&for_thread);
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
    };
    let name = "lease-queue".to_owned();
    std::thread::Builder::new()
        .name(name)
        .stack_size(64 * 1024)
        .spawn(wait)?;
    match result.recv_timeout(left) {
        Ok(got) => got.map(|()| true),
        Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::Interrupted.into()),
        Err(RecvTimeoutError::Timeout) => {
            ABANDONED.fetch_add(1, Ordering::Relaxed);
            if decide(&state, ABANDON) {
                return Ok(false);
            }
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
            let got = result
                .recv()
                .map_err(|_| io::Error::from(io::ErrorKind::Interrupted))?;
            got.map(|()| true)
        }
    }
}
