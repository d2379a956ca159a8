//! Which leases this very process holds or is taking. Two threads of one
//! process never get the same lease: the files can't tell them apart.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static HERE: Mutex<Option<HashMap<PathBuf, String>>> = Mutex::new(None);
static FREED: Condvar = Condvar::new();

/// The right of this process to a lease; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Ticket(PathBuf);

fn map() -> MutexGuard<'static, Option<HashMap<PathBuf, String>>> {
    // The map is whole between any two statements that hold the lock.
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticket {
    /// Takes the right, waiting for another thread until the deadline; the
    /// owner id of the one who has it when it can't be had.
    pub(crate) fn take(
        lease: &Path,
        owner_id: &str,
        deadline: Option<Instant>,
    ) -> Result<Self, String> {
        let mut guard = map();
        loop {
            let here = guard.get_or_insert_default();
            let Some(holder) = here.get(lease) else {
                here.insert(lease.to_owned(), owner_id.to_owned());
                return Ok(Self(lease.to_owned()));
            };
            let left = deadline.and_then(|at| at.checked_duration_since(Instant::now()));
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                return Err(holder.clone());
            };
            guard = FREED
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    pub(crate) fn is_taken(lease: &Path) -> bool {
        map().as_ref().is_some_and(|here| here.contains_key(lease))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(here) = map().as_mut() {
            here.remove(&self.0);
        }
        FREED.notify_all();
    }
}

/// Queues that a release has left, until somebody here wants the lease again.
static QUEUES: Mutex<Vec<(PathBuf, Instant, File)>> = Mutex::new(Vec::new());

/// More are forgotten, the oldest first: fairness, not safety, rests on them.
const QUEUES_KEPT: usize = 64;

/// Who wants a lease again later than this is a newcomer.
const QUEUE_AGE: Duration = Duration::from_secs(1);

fn queues() -> MutexGuard<'static, Vec<(PathBuf, Instant, File)>> {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    queues.retain(|(_, at, _)| at.elapsed() < QUEUE_AGE);
    queues
}

/// Keeps the queue in which others wait for a lease that we release.
pub(crate) fn keep_queue(lease: &Path, file: File) {
    let mut queues = queues();
    queues.retain(|(path, _, _)| path != lease);
    if queues.len() == QUEUES_KEPT {
        queues.remove(0);
    }
    queues.push((lease.to_owned(), Instant::now(), file));
}

/// Takes the queue that was kept for a lease.
pub(crate) fn kept_queue(lease: &Path) -> Option<File> {
    let mut queues = queues();
    let at = queues.iter().position(|(path, _, _)| path == lease)?;
    Some(queues.remove(at).2)
}
