//! What hides below this worker, written down while it lives.
//!
//! A process with an environment of its own, in a session of its own, whose
//! parents have ended is held by one thing only: it comes to this worker, which
//! is the subreaper of all. When the worker and its broker are killed together,
//! nothing tells any more whose it was. So the worker looks at everything below
//! it now and then, and lists who does not carry its mark
//! ([`HiddenList`], beside its journal); the next broker ends exactly those.
//!
//! When it looks ([`Pace`]): once a second while a turn runs, soon after a tool
//! began or ended, and outside of a turn once more, a second after the host wrote
//! or a child ended, for as long as something changes. Then never, until
//! something happens: a worker at rest is not woken. When it is awake anyway, to
//! look at its lease every few seconds, it glances at the kernel's list of its
//! children: who was orphaned meanwhile stands there.
//!
//! What it can't see: who was orphaned, or shed the mark, after the last look:
//! within a second in a turn, a few seconds at rest. Of these the next broker
//! finds those whose parents still live and are found. One that sheds its mark
//! at rest without being orphaned is not seen before the next turn.
//!
//! Invariants:
//! - nothing waits for a look: it runs on a thread of its own, for the memory of
//!   a process that is stuck in the kernel can't be read in bounded time. At most
//!   one look runs;
//! - looks take a fiftieth of a processor at most, as long as one takes no more
//!   than a fifth of a second;
//! - the file is there only while somebody hides;
//! - nothing fails because of it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ade_leases::process::{self, HiddenList, Liveness, Pid, ProcessEntry, ProcessIdentity};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::platform;

/// Between two looks, and from the last stir to the last look.
const PAUSE: Duration = Duration::from_secs(1);

/// The same after costly looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A pause is so many times as long as the look before it.
const REST: u32 = 50;

/// From a tool's beginning or end to the look at what it left.
const SOON: Duration = Duration::from_millis(100);

/// Between two looks, however many tools there are.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// Bytes of the thread's stack.
const STACK: usize = 128 * 1024;

/// When to look. Pure: no clock, no process.
#[derive(Debug, Default)]
struct Pace {
    due: Option<Instant>,
    stirred: Option<Instant>,
    /// When the last look was over, and how long it took.
    looked: Option<(Instant, Duration)>,
}

impl Pace {
    /// How long to rest after the last look, and no less than `least`.
    fn rest(&self, least: Duration) -> Duration {
        let took = self.looked.map_or(Duration::ZERO, |(_, took)| took);
        (took * REST).clamp(least, LONGEST_PAUSE)
    }

    /// Something may have been started.
    fn stir(&mut self, now: Instant) {
        self.stirred = Some(now);
        let due = now + self.rest(PAUSE);
        self.due.get_or_insert(due);
    }

    /// A tool began or ended.
    fn stir_soon(&mut self, now: Instant) {
        self.stir(now);
        let rested = self
            .looked
            .map(|(over, _)| over + self.rest(SHORTEST_PAUSE));
        let soon = (now + SOON).max(rested.unwrap_or(now));
        self.due = self.due.min(Some(soon));
    }

    /// A look begins, or there is nothing to look at any more.
    fn begin(&mut self) {
        self.due = None;
    }

    /// A look is over. `busy`: a turn runs.
    fn over(&mut self, began: Instant, now: Instant, changed: bool, busy: bool) {
        self.looked = Some((now, now - began));
        let quiet = self.stirred.is_none_or(|stirred| began >= stirred + PAUSE);
        if busy || changed || !quiet {
            let due = now + self.rest(PAUSE);
            self.due.get_or_insert(due);
        }
    }
}

/// A process below, as one look showed it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Below {
    pid: Pid,
    start_ticks: u64,
    /// Whether it carries the worker's mark; `None`: that can't be told.
    marked: Option<bool>,
}

/// Who of those below is found by nothing else. Pure.
fn hiding(below: &BTreeSet<Below>) -> Vec<(Pid, u64)> {
    let hides = |one: &&Below| one.marked != Some(true);
    let row = |one: &Below| (one.pid, one.start_ticks);
    below.iter().filter(hides).map(row).collect()
}

/// What the last look saw and wrote.
#[derive(Debug, Default)]
struct Seen {
    below: BTreeSet<Below>,
    written: Option<HiddenList>,
}

/// What a look did.
#[derive(Debug)]
struct Looked {
    seen: Seen,
    changed: bool,
    problem: Option<String>,
}

/// Whose processes are looked at, and where they are listed.
#[derive(Clone, Debug)]
struct Place {
    worker: ProcessIdentity,
    /// Name and value of the mark. Absent: nobody carries it.
    mark: Option<(String, String)>,
    path: PathBuf,
}

impl Place {
    fn look(&self, before: Seen) -> Looked {
        let below = match self.below() {
            Ok(below) => below,
            Err(error) => {
                let problem = Some(format!("what is below it can't be seen: {error}"));
                let (seen, changed) = (before, false);
                return Looked {
                    seen,
                    changed,
                    problem,
                };
            }
        };
        let changed = below != before.below;
        let list = HiddenList::new(self.worker.clone(), hiding(&below));
        let (written, problem) = self.write(list, before.written);
        Looked {
            seen: Seen { below, written },
            changed,
            problem,
        }
    }

    /// Everything below that lives.
    fn below(&self) -> io::Result<BTreeSet<Below>> {
        let rows = process::offspring(self.worker.pid)?;
        let living = rows.iter().filter(|row| !row.is_zombie());
        Ok(living.filter_map(|row| self.sight(row)).collect())
    }

    /// `None`: it has ended since.
    fn sight(&self, row: &ProcessEntry) -> Option<Below> {
        let mark = self.mark.as_ref();
        let marked = mark.map_or(Some(false), |(name, value)| {
            process::carries(row, name, value)
        });
        let gone = || {
            let identity = row.identity();
            identity.is_ok_and(|one| matches!(one.liveness(), Liveness::Dead(_)))
        };
        // An empty environment is also that of a process that is just ending.
        if marked != Some(true) && gone() {
            return None;
        }
        Some(Below {
            pid: row.pid,
            start_ticks: row.start_ticks,
            marked,
        })
    }

    /// Makes the file say what the list does; what it says from now on.
    fn write(
        &self,
        list: HiddenList,
        before: Option<HiddenList>,
    ) -> (Option<HiddenList>, Option<String>) {
        let wanted = (!list.is_empty()).then_some(list);
        // That nothing is there is made so each time: it costs next to nothing,
        // and the look before may have got lost.
        if wanted.is_some() && wanted == before {
            return (before, None);
        }
        let done = match &wanted {
            Some(list) => list.write(&self.path),
            None => HiddenList::remove(&self.path),
        };
        let path = self.path.display();
        match done {
            Ok(()) => {
                let more = wanted.as_ref().map_or(0, HiddenList::more);
                let problem = format!("{more} more processes hide than {path} can list");
                (wanted, (more > 0).then_some(problem))
            }
            Err(error) => (before, Some(format!("{path} can't be written: {error}"))),
        }
    }
}

/// The net of one worker.
#[derive(Debug)]
pub(crate) struct Hidden {
    /// Absent: this worker lists nobody.
    place: Option<Place>,
    pace: Pace,
    seen: Seen,
    /// Our children when the last look began, as the kernel listed them.
    children: Option<String>,
    looking: Option<(Instant, oneshot::Receiver<Looked>)>,
    /// Whether a problem was told.
    told: bool,
}

impl Hidden {
    /// The net of the worker; without a path there is none.
    pub(crate) fn new(
        worker: &ProcessIdentity,
        mark: Option<(&str, &str)>,
        path: Option<&str>,
    ) -> Self {
        let place = path.map(|path| Place {
            worker: worker.clone(),
            mark: mark.map(|(name, value)| (name.to_owned(), value.to_owned())),
            path: path.into(),
        });
        Self {
            place,
            pace: Pace::default(),
            seen: Seen::default(),
            children: None,
            looking: None,
            told: false,
        }
    }

    /// Something may have been started below.
    pub(crate) fn stir(&mut self, now: Instant) {
        if self.place.is_some() {
            self.pace.stir(now);
        }
    }

    /// A tool began or ended.
    pub(crate) fn stir_soon(&mut self, now: Instant) {
        if self.place.is_some() {
            self.pace.stir_soon(now);
        }
    }

    /// Stirs when a child came or went that nobody told of. Takes microseconds.
    pub(crate) fn glance(&mut self, now: Instant) {
        if self.place.is_some() && self.pace.due.is_none() {
            let children = platform::children_listed();
            if children != self.children {
                self.pace.stir(now);
            }
        }
    }

    /// When [`Hidden::begin`] is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.pace.due.filter(|_| self.looking.is_none())
    }

    /// Begins a look.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.pace.begin();
        let Some(place) = self.place.clone() else {
            return;
        };
        let (told, looked) = oneshot::channel();
        let before = std::mem::take(&mut self.seen);
        self.children = platform::children_listed();
        let thread = thread::Builder::new()
            .name("ade-hidden".to_owned())
            .stack_size(STACK);
        // A worker that is over by then needs no answer. Where no thread can be
        // had, the channel is closed at once.
        let _ = thread.spawn(move || drop(told.send(place.look(before))));
        self.looking = Some((now, looked));
    }

    /// Waits until a look is over; gives what has to be told, once. Dropping the
    /// future loses nothing. `busy`: a turn runs.
    pub(crate) async fn over(&mut self, busy: bool) -> Option<String> {
        let Some((began, looked)) = &mut self.looking else {
            return std::future::pending().await;
        };
        let (began, looked) = (*began, looked.await);
        self.looking = None;
        let (changed, problem) = match looked {
            Ok(looked) => {
                self.seen = looked.seen;
                (looked.changed, looked.problem)
            }
            Err(_) => (false, Some(lost())),
        };
        self.pace.over(began, Instant::now(), changed, busy);
        let problem = problem.filter(|_| !self.told)?;
        self.told = true;
        Some(format!("what hides from its mark is not listed: {problem}"))
    }

    /// Nothing is below any more: removes the list.
    pub(crate) fn forget(&mut self) {
        self.pace.begin();
        if let Some(place) = self.place.take() {
            // Whoever removes the journal removes it too.
            let _ = HiddenList::remove(&place.path);
        }
    }
}

fn lost() -> String {
    "the thread that looks could not be started, or panicked".to_owned()
}

#[cfg(test)]
mod tests;
