//! Waiting in the kernel, in order of arrival.
//!
//! The holder's `flock` is its sign of life, so waiters must not take it: a
//! waiter that got a dead holder's lock and was then stopped would look like a
//! live holder for ever. They queue at a range lock of the same inode instead,
//! which the holder takes when it publishes and loses when it releases or dies.
//!
//! - Who gets the range lock is next. It keeps it, as a *baton*, until it has
//!   released in its turn, so that those behind it wait where they are and
//!   their order stays. Its record says where that queue is, so that newcomers
//!   join it: one queue, through any number of holders.
//! - Waiters also show themselves by a shared lock of a second range. A holder
//!   that sees some at its release keeps a descriptor of that inode for a
//!   moment, and when it wants the lease again it queues there, behind them.
//! - The kernel keeps the order of those who wait, but it gives a free lock to
//!   whoever asks first, and a waiter that is woken must run before it can ask.
//!   So who comes to a queue that has waiters and no head leaves them a moment
//!   ([`COURTESY`]). Without it, who has just released wins every time.
//! - A waiter is in one queue: when it finds that a newcomer was faster, it lets
//!   its baton go and queues behind the newcomer; so do those behind it.
//! - A holder of another program takes no range lock. Then the first waiter has
//!   the baton at once and polls; the others still queue behind it.
//!
//! Range locks can't be waited for with a timeout, so a thread waits. One that
//! is abandoned goes when its turn comes; there is a bound on how many.

use super::error::Holder;
use super::place::Place;
use super::platform;
use super::registry::keep_queue;
use super::seam::{Seam, Step};
use crate::process::here;
use crate::record::{QueueAt, Record};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Threads of this process that may wait for a range lock nobody wants any
/// more. Beyond that, waiting polls.
const ABANDONED_MAX: usize = 16;

/// How long one who comes to the queue lets a woken waiter go first. Longer than
/// a loaded machine takes to run it, as a rule: between this look and the asking,
/// or after it, one may still be passed. A waiter that is stopped costs others this
/// once for each time that they come.
const COURTESY: Duration = Duration::from_millis(200);

/// How often it is looked whether the waiter has come.
const COURTESY_STEP: Duration = Duration::from_micros(100);

static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// The place at the head of a queue; dropping it lets the next one go.
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

impl Baton {
    /// Where others find the queue, for as long as this process keeps it.
    pub(crate) fn advertised(&self) -> Option<QueueAt> {
        let inode = self.file.metadata().ok()?.ino();
        Some(QueueAt {
            fd: self.file.as_raw_fd(),
            inode,
        })
    }
}

pub(crate) enum Queued {
    /// We are next: look again at once.
    Next,
    /// Time is up.
    TimedOut,
    /// There is no queue to wait in, or we are at its head already: poll.
    NoQueue,
}

/// The queue to wait in: the one that the holder has, or else its lease file.
/// Opened for writing, as a lock needs it; nothing is ever written.
pub(crate) fn queue_of(place: &Place, holder: Option<&Holder>) -> Option<File> {
    let record = holder.and_then(|holder| holder.record.as_ref());
    if let Some(file) = record.and_then(advertised_by) {
        return Some(file);
    }
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&place.dir, &place.lease, flags, Mode::empty()).ok()?;
    let file = File::from(file);
    file.metadata()
        .is_ok_and(|meta| meta.is_file())
        .then_some(file)
}

fn advertised_by(record: &Record) -> Option<File> {
    let at = record.queue?;
    if record.pid_namespace != here().pid_namespace {
        return None;
    }
    let file = platform::open_of_process(record.pid?, at.fd, at.inode)?;
    Some(file)
}

/// Waits for the head of a queue. A baton of another queue is let go first.
pub(crate) fn queue(baton: &mut Option<Baton>, file: File, left: Duration, seam: &Seam) -> Queued {
    let inode = |file: &File| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    if baton
        .as_ref()
        .is_some_and(|baton| inode(&baton.file) == inode(&file))
    {
        return Queued::NoQueue;
    }
    let file = Arc::new(file);
    let until = Instant::now() + COURTESY.min(left);
    give_way(&file, until);
    let asked = seam.run(Step::Queue, || {
        platform::show_waiting(&file)?;
        platform::try_queue(&file)
    });
    *baton = None;
    match asked {
        Ok(true) => {
            *baton = Some(Baton { file });
            return Queued::Next;
        }
        Ok(false) if ABANDONED.load(Ordering::Relaxed) < ABANDONED_MAX => {}
        Ok(false) | Err(_) => return Queued::NoQueue,
    }
    match wait_by_thread(&file, left, until) {
        Ok(true) => {
            *baton = Some(Baton { file });
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
pub(crate) fn remember_waiters(baton: Option<&Baton>, lock: &File, place: &Place) -> bool {
    let mut queues = baton.map(|baton| &*baton.file).into_iter().chain([lock]);
    let Some(file) = queues.find(|file| platform::has_waiters(file)) else {
        return false;
    };
    if let Ok(file) = file.try_clone() {
        keep_queue(place.key(), file);
    }
    true
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

/// Leaves those who wait a moment, at most until then, when none of them is the
/// head: the one whose turn it is has been woken and must run before it can ask.
fn give_way(file: &File, until: Instant) {
    while platform::has_waiters(file) && platform::is_headless(file) && Instant::now() < until {
        std::thread::sleep(COURTESY_STEP);
    }
}

/// `Ok(true)` when the range lock is ours, `Ok(false)` when time is up. Gives way
/// to others until then: the head that was met may have left while the thread was
/// started.
fn wait_by_thread(file: &Arc<File>, left: Duration, until: Instant) -> io::Result<bool> {
    let (done, result) = sync_channel(1);
    let state = Arc::new(AtomicU8::new(OPEN));
    let (for_thread, state_of_thread) = (Arc::clone(file), Arc::clone(&state));
    let wait = move || {
        give_way(&for_thread, until);
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
