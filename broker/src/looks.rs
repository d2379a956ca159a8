//! Looks at all processes, shared by everybody who needs one at the same time.
//!
//! A look reads what the kernel says of every process of the machine. When many
//! workers end at once, each of them is followed by a sweep, and each sweep needs
//! a look: with one each, the work grows with the square of the workers. But a
//! look tells as much to all who asked before it began. So one of them looks, the
//! others wait for what it sees, and who asks meanwhile gets the next one.
//!
//! Invariants:
//! - nobody gets a look that began before they asked;
//! - at most one look runs, and nothing of it is kept once all have it;
//! - a look that panics holds up nobody: the next of those who wait looks.
//!
//! What this module does not do: say whose a process is, or signal any.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ade_leases::process::{self, ProcessEntry, ProcessIdentity};
use ade_protocol::boot::MARK_ENV;

/// What one look shows.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Who carries which worker's mark.
    pub(crate) marks: Vec<(ProcessIdentity, String)>,
    /// Every process, read after the marks: who lost its parent while those
    /// were read stands below its new one here.
    pub(crate) table: Vec<ProcessEntry>,
}

/// A look that begins after this was called. Blocks for as long as two looks
/// take at most.
///
/// # Errors
/// The process table can't be read at all.
pub(crate) fn fresh() -> io::Result<Arc<Look>> {
    static LOOKS: Looks<Result<Arc<Look>, Arc<io::Error>>> = Looks::new();
    let look = || {
        let marks = process::marks(MARK_ENV)?;
        let table = process::table()?;
        Ok(Arc::new(Look { marks, table }))
    };
    let seen = LOOKS.get(|| look().map_err(Arc::new));
    seen.map_err(|error: Arc<io::Error>| io::Error::new(error.kind(), error))
}

/// Looks of one kind.
struct Looks<T> {
    state: Mutex<State<T>>,
    over: Condvar,
}

struct State<T> {
    /// How many looks have begun.
    begun: u64,
    /// Whether the last of them runs.
    runs: bool,
    /// How many wait for a look.
    waiting: usize,
    /// The last look that is over, and what it saw; only while somebody waits.
    seen: Option<(u64, T)>,
}

impl<T: Clone> Looks<T> {
    const fn new() -> Self {
        let state = State {
            begun: 0,
            runs: false,
            waiting: 0,
            seen: None,
        };
        Self {
            state: Mutex::new(state),
            over: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a look sees that begins after this was called.
    fn get(&self, look: impl FnOnce() -> T) -> T {
        let mut state = self.lock();
        let wanted = state.begun + 1;
        state.waiting += 1;
        loop {
            if let Some((number, seen)) = &state.seen
                && *number >= wanted
            {
                let seen = seen.clone();
                state.got();
                return seen;
            }
            if !state.runs {
                break;
            }
            state = self
                .over
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.begun += 1;
        state.runs = true;
        let number = state.begun;
        drop(state);
        let running = Running(self);
        let seen = look();
        self.lock().seen = Some((number, seen.clone()));
        drop(running);
        seen
    }
}

impl<T> State<T> {
    /// One has what it waited for. The last one leaves nothing behind.
    fn got(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.seen = None;
        }
    }
}

/// A look that runs. Ends with it, also when it panics.
struct Running<'a, T: Clone>(&'a Looks<T>);

impl<T: Clone> Drop for Running<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.runs = false;
        state.got();
        drop(state);
        self.0.over.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    /// Returns once so many wait. The test runner ends what never returns.
    fn until_wait(looks: &Looks<usize>, count: usize) {
        while looks.lock().waiting < count {
            thread::yield_now();
        }
    }

    #[test]
    fn all_who_ask_during_a_look_share_the_next_one() {
        const MANY: usize = 200;
        let (looks, begun) = (Looks::new(), AtomicUsize::new(0));
        let count = || begun.fetch_add(1, Ordering::SeqCst) + 1;
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                looks.get(|| {
                    until_wait(&looks, 1 + MANY);
                    count()
                })
            });
            until_wait(&looks, 1);
            let ask = || scope.spawn(|| looks.get(count));
            let rest: Vec<_> = (0..MANY).map(|_| ask()).collect();
            assert_eq!(first.join().expect("the first"), 1);
            for one in rest {
                assert_eq!(one.join().expect("a look"), 2, "older than the question");
            }
        });
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        let state = looks.lock();
        assert_eq!((state.waiting, state.seen, state.runs), (0, None, false));
    }

    #[test]
    fn one_after_the_other_looks_anew() {
        let (looks, begun) = (Looks::new(), AtomicUsize::new(0));
        for number in 0..3 {
            assert_eq!(looks.get(|| begun.fetch_add(1, Ordering::SeqCst)), number);
        }
    }

    #[test]
    fn a_look_that_panics_holds_up_nobody() {
        let looks = Looks::new();
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                looks.get(|| {
                    until_wait(&looks, 2);
                    panic!("a look that fails, as the test wants it");
                })
            });
            until_wait(&looks, 1);
            let second = scope.spawn(|| looks.get(|| 7));
            assert!(first.join().is_err());
            assert_eq!(second.join().expect("a look"), 7);
        });
        assert_eq!(looks.lock().waiting, 0);
    }

    #[test]
    fn a_real_look_shows_this_process() {
        let own = ProcessIdentity::current().expect("an identity");
        let seen = fresh().expect("a look");
        assert!(seen.table.iter().any(|row| row.pid == own.pid));
    }
}
