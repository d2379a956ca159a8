//! Which leases this very process holds or is taking. Two threads of one
//! process never get the same lease: the files can't tell them apart.

use super::place::Key;
use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static HERE: Mutex<Option<HashMap<Key, String>>> = Mutex::new(None);
static FREED: Condvar = Condvar::new();

/// Threads that wait for [`FREED`]; changed and read under the lock of `HERE`.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The right of this process to a lease; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Ticket(Key);

fn map() -> MutexGuard<'static, Option<HashMap<Key, String>>> {
    // The map is whole between any two statements that hold the lock.
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticket {
    /// Takes the right, waiting for another thread until the deadline; the
    /// owner id of the one who has it when it can't be had.
    pub(crate) fn take(
        lease: Key,
        owner_id: &str,
        deadline: Option<Instant>,
    ) -> Result<Self, String> {
        let mut guard = map();
        loop {
            let here = guard.get_or_insert_default();
            let Some(holder) = here.get(&lease) else {
                here.insert(lease.clone(), owner_id.to_owned());
                return Ok(Self(lease));
            };
            let left = deadline.and_then(|at| at.checked_duration_since(Instant::now()));
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                return Err(holder.clone());
            };
            WAITING.fetch_add(1, Ordering::Relaxed);
            guard = FREED
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_taken(lease: &Key) -> bool {
        map().as_ref().is_some_and(|here| here.contains_key(lease))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut guard = map();
        if let Some(here) = guard.as_mut() {
            here.remove(&self.0);
        }
        if WAITING.load(Ordering::Relaxed) > 0 {
            FREED.notify_all();
        }
    }
}

/// Queues that a release has left, until somebody here wants the lease again.
static QUEUES: Mutex<Vec<(Key, Instant, File)>> = Mutex::new(Vec::new());

/// More are forgotten, the oldest first: fairness, not safety, rests on them.
const QUEUES_KEPT: usize = 64;

/// Who wants a lease again later than this is a newcomer.
const QUEUE_AGE: Duration = Duration::from_secs(1);

fn queues() -> MutexGuard<'static, Vec<(Key, Instant, File)>> {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    queues.retain(|(_, at, _)| at.elapsed() < QUEUE_AGE);
    queues
}

/// Keeps the queue in which others wait for a lease that we release.
pub(crate) fn keep_queue(lease: Key, file: File) {
    let mut queues = queues();
    queues.retain(|(key, _, _)| *key != lease);
    if queues.len() == QUEUES_KEPT {
        queues.remove(0);
    }
    queues.push((lease, Instant::now(), file));
}

/// Takes the queue that was kept for a lease.
pub(crate) fn kept_queue(lease: &Key) -> Option<File> {
    let mut queues = queues();
    let at = queues.iter().position(|(key, _, _)| key == lease)?;
    Some(queues.remove(at).2)
}
