//! The pool: places for workers, the line before them, and the start budget of
//! each kind of agent.
//!
//! A session has at most one worker and at most one start in flight: its actor
//! sees to that. The pool sees to what they share. A [`Place`] is asked for,
//! waited for and held until the worker's whole tree is dead; dropping it frees
//! it, or leaves the line. What is decided is decided in [`line`].
//!
//! What it does not do: start or stop anything. A session whose idle worker is
//! wanted back is told, and puts it away itself.

mod line;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_protocol::SessionId;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::budget::{Budget, Limits, Start};
use crate::clock;
use crate::config::PoolLimits;
use crate::hub::Hub;
use crate::limits;
use crate::spawn::{DESCRIPTORS, TAKEN_OVER};
use crate::turn::Mono;
use line::{Line, News, Ticket};

/// How often a request that waits looks whether somebody has stopped watching
/// an idle session.
const LOOK: Duration = Duration::from_secs(1);

/// How long a look at the descriptors holds; many that wait look often.
const MEASURED: Duration = Duration::from_millis(100);

/// How a request or a place stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nobody has looked at it yet.
    New,
    /// It waits at this place, from 1.
    Waits(usize),
    /// It is a place.
    Granted,
    /// It is a place that is wanted back.
    WantedBack,
}

/// Shared by all sessions.
pub struct Pool {
    hub: Arc<Hub>,
    born: Instant,
    limits: Limits,
    /// For how many more workers the process has room, beside so many that come.
    room: Box<dyn Fn(usize) -> usize + Send + Sync>,
    inner: Mutex<Inner>,
}

struct Inner {
    line: Line,
    /// When the process's room was looked at last.
    measured: Option<Instant>,
    told: HashMap<Ticket, watch::Sender<Standing>>,
    budgets: BTreeMap<String, Budget>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (workers, waiting) = self.counts();
        f.debug_struct("Pool")
            .field("workers", &workers)
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

/// A place for a worker, or the wait for one.
#[derive(Debug)]
pub struct Place {
    pool: Arc<Pool>,
    ticket: Ticket,
    standing: watch::Receiver<Standing>,
}

impl Pool {
    /// An empty pool. `hub` knows who watches which session.
    #[must_use]
    pub fn new(places: PoolLimits, starts: Limits, hub: Arc<Hub>) -> Self {
        Self {
            hub,
            born: clock::now(),
            limits: starts,
            room: Box::new(|coming| {
                limits::room_for(DESCRIPTORS, TAKEN_OVER.saturating_mul(coming as u64))
            }),
            inner: Mutex::new(Inner {
                line: Line::new(places),
                measured: None,
                told: HashMap::new(),
                budgets: BTreeMap::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while holding the lock leaves whole values behind.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Mono {
        clock::now().saturating_duration_since(self.born)
    }

    /// Workers, and requests that wait.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        self.lock().line.counts()
    }

    /// Descriptors that belong to workers which have a place and may not have taken
    /// them yet.
    #[must_use]
    pub fn promised(&self) -> u64 {
        DESCRIPTORS * self.lock().line.starting() as u64
    }

    /// Whether there is no place for one more worker of this kind, starts under
    /// way aside.
    #[must_use]
    pub fn is_full(&self, provider: &str) -> bool {
        self.lock().line.is_full(provider)
    }

    /// Joins the line.
    #[must_use]
    pub fn ask(self: &Arc<Self>, session: &SessionId, provider: &str) -> Place {
        let mut inner = self.lock();
        let ticket = inner.line.ask(session.clone(), provider);
        let place = self.place(&mut inner, ticket, Standing::New);
        self.settle(&mut inner);
        place
    }

    /// Takes a place for a worker that runs already: the limit may be lower than
    /// before, and nobody is sent away for that.
    #[must_use]
    pub fn take(self: &Arc<Self>, session: &SessionId, provider: &str) -> Place {
        let mut inner = self.lock();
        let ticket = inner.line.take(session.clone(), provider);
        self.place(&mut inner, ticket, Standing::Granted)
    }

    fn place(self: &Arc<Self>, inner: &mut Inner, ticket: Ticket, now: Standing) -> Place {
        let (tx, standing) = watch::channel(now);
        inner.told.insert(ticket, tx);
        Place {
            pool: Arc::clone(self),
            ticket,
            standing,
        }
    }

    fn settle(&self, inner: &mut Inner) {
        let now = clock::now();
        let waited_for = inner.line.counts().1 > 0;
        if waited_for && inner.measured.is_none_or(|at| now >= at + MEASURED) {
            inner.measured = Some(now);
            let room = (self.room)(inner.line.coming());
            inner.line.set_room(room);
        }
        for news in inner.line.settle(|session| self.hub.watches(session)) {
            let (ticket, standing) = match news {
                News::Granted(ticket) => (ticket, Standing::Granted),
                News::Waits(ticket, place) => (ticket, Standing::Waits(place)),
                News::WantedBack(ticket) => (ticket, Standing::WantedBack),
            };
            if let Some(told) = inner.told.get(&ticket) {
                told.send_replace(standing);
            }
        }
    }

    fn change(&self, what: impl FnOnce(&mut Line, Mono)) {
        let now = self.now();
        let mut inner = self.lock();
        what(&mut inner.line, now);
        self.settle(&mut inner);
    }

    fn budget<T>(&self, provider: &str, what: impl FnOnce(&mut Budget, Mono) -> T) -> T {
        // What another broker counted lies before this one's birth.
        let now = self.now() + self.limits.long_window;
        let mut inner = self.lock();
        let fresh = || Budget::new(self.limits);
        let name = provider.to_owned();
        what(inner.budgets.entry(name).or_insert_with(fresh), now)
    }

    /// Whether a worker of this kind may be started now.
    #[must_use]
    pub fn may_start(&self, provider: &str) -> Start {
        self.budget(provider, |budget, now| budget.start(now))
    }

    /// A start of this kind has failed because a process ended.
    pub fn start_failed(&self, provider: &str) {
        self.budget(provider, Budget::death);
    }

    /// Starts of this kind failed so long ago, oldest first, under another broker.
    pub fn recall(&self, provider: &str, ages: &[Duration]) {
        self.budget(provider, |budget, now| budget.recall(now, ages));
    }

    /// A start of this kind has worked: the agent itself is well. True: others had
    /// not.
    pub fn start_worked(&self, provider: &str) -> bool {
        self.budget(provider, |budget, _| budget.success())
    }

    /// A user asked for another try.
    pub fn clear(&self, provider: &str) {
        self.budget(provider, |budget, _| budget.clear());
    }
}

impl Place {
    /// Waits until the request stands at another place in the line than `last`
    /// (0: none was told yet), and gives that, from 1. `None`: this is a place.
    pub async fn next(&mut self, last: usize) -> Option<usize> {
        loop {
            let standing = *self.standing.borrow_and_update();
            match standing {
                Standing::Granted | Standing::WantedBack => return None,
                Standing::Waits(place) if place != last => return Some(place),
                Standing::Waits(_) | Standing::New => {}
            }
            let changed = self.standing.changed();
            if tokio::time::timeout(LOOK, changed).await.is_err() {
                self.pool.change(|_, _| {});
            }
        }
    }

    /// Whether there still is room for the worker of this place: others may have
    /// taken meanwhile what was free when it was given. If not, this is a request
    /// again, and stands where it stood. Whoever has the only place is told by its
    /// start.
    #[must_use]
    pub fn confirm(&self) -> bool {
        let mut inner = self.pool.lock();
        let alone = inner.line.counts().0 <= 1;
        if alone || (self.pool.room)(inner.line.coming()) > 0 {
            return true;
        }
        inner.line.give_back(self.ticket);
        if let Some(told) = inner.told.get(&self.ticket) {
            told.send_replace(Standing::New);
        }
        // What was measured before does not hold.
        inner.measured = None;
        self.pool.settle(&mut inner);
        false
    }

    /// The worker has started, or has come to this broker.
    pub fn started(&self) {
        self.pool.change(|line, _| line.started(self.ticket));
    }

    /// The worker has nothing to do.
    pub fn idle(&self) {
        self.pool.change(|line, now| line.idle(self.ticket, now));
    }

    /// The worker has something to do.
    pub fn busy(&self) {
        let mut inner = self.pool.lock();
        inner.line.busy(self.ticket);
        if let Some(told) = inner.told.get(&self.ticket) {
            told.send_replace(Standing::Granted);
        }
        self.pool.settle(&mut inner);
    }

    /// Waits until somebody wants the place of this idle worker.
    pub async fn wanted_back(&mut self) {
        let wanted = |standing: &Standing| *standing == Standing::WantedBack;
        if self.standing.wait_for(wanted).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.pool.lock();
        inner.told.remove(&self.ticket);
        inner.line.leave(self.ticket);
        self.pool.settle(&mut inner);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn pool(max_workers: usize) -> Arc<Pool> {
        let places = PoolLimits {
            max_workers,
            max_per_provider: max_workers,
            max_starting: max_workers,
        };
        Arc::new(Pool::new(places, Limits::default(), Arc::default()))
    }

    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_place_that_has_lost_its_room_is_the_first_to_be_given_again() {
        let room = Arc::new(AtomicUsize::new(2));
        let mut pool = pool(9);
        let measured = Arc::clone(&room);
        Arc::get_mut(&mut pool).expect("nobody else").room =
            Box::new(move |coming| measured.load(Ordering::Relaxed).saturating_sub(coming));
        let mut works = pool.ask(&"works".into(), "x");
        assert_eq!(works.next(0).await, None);
        assert!(works.confirm());
        works.started();
        room.store(1, Ordering::Relaxed);
        let mut first = pool.ask(&"first".into(), "x");
        let mut second = pool.ask(&"second".into(), "x");
        assert_eq!((first.next(0).await, second.next(0).await), (None, Some(1)));
        // Clients came before it could start.
        room.store(0, Ordering::Relaxed);
        assert!(!first.confirm());
        let mut third = pool.ask(&"third".into(), "x");
        assert_eq!(first.next(0).await, Some(1));
        assert_eq!(second.next(1).await, Some(2));
        assert_eq!(third.next(0).await, Some(3));
        assert_eq!(pool.counts(), (1, 3));
        room.store(1, Ordering::Relaxed);
        assert_eq!(first.next(1).await, None);
        assert!(first.confirm());
        assert_eq!(second.next(2).await, Some(1), "one more has no room");
        first.started();
        assert_eq!(second.next(1).await, None);
        // One that is alone is told by its start that there is none.
        drop((works, first, third));
        room.store(0, Ordering::Relaxed);
        assert!(second.confirm());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_worker_that_comes_will_need_is_given_to_nobody() {
        let mut pool = pool(9);
        Arc::get_mut(&mut pool).expect("nobody else").room =
            Box::new(|coming| 2_usize.saturating_sub(coming));
        let comes = ["a", "b"].map(|session| pool.take(&session.into(), "x"));
        let mut asks = pool.ask(&"c".into(), "x");
        assert_eq!(asks.next(0).await, Some(1));
        comes[0].started();
        assert_eq!(asks.next(1).await, None);
        assert!(asks.confirm());
        let _comes = pool.take(&"d".into(), "x");
        assert!(!asks.confirm(), "one more has come");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_place_and_is_told_where_it_stands() {
        let pool = pool(1);
        let mut first = pool.ask(&"a".into(), "x");
        assert_eq!(first.next(0).await, None);
        let mut second = pool.ask(&"b".into(), "x");
        let mut third = pool.ask(&"c".into(), "x");
        assert_eq!(
            (second.next(0).await, third.next(0).await),
            (Some(1), Some(2))
        );
        assert!(tokio::time::timeout(LONG, third.next(2)).await.is_err());
        drop(first);
        assert_eq!(pool.counts(), (1, 1), "the next one has it at once");
        assert_eq!((second.next(1).await, third.next(2).await), (None, Some(1)));
        assert_eq!(pool.counts(), (1, 1));
        drop(third);
        assert_eq!(pool.counts(), (1, 0), "whoever is dropped leaves the line");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_worker_is_wanted_back_once_nobody_watches_it() {
        let pool = pool(1);
        let session = SessionId::from("a");
        let watcher = pool.hub.subscribe(Some(session.clone()), false);
        let mut held = pool.ask(&session, "x");
        assert_eq!(held.next(0).await, None);
        held.started();
        held.idle();
        let mut asks = pool.ask(&"b".into(), "x");
        assert_eq!(asks.next(0).await, Some(1));
        tokio::select! {
            _ = asks.next(1) => panic!("there is no room"),
            () = held.wanted_back() => panic!("it is watched"),
            () = tokio::time::sleep(LONG) => {}
        }
        pool.hub.unsubscribe(&watcher);
        tokio::select! {
            _ = asks.next(1) => panic!("there is no room"),
            () = held.wanted_back() => {}
        }
        held.busy();
        assert!(
            tokio::time::timeout(LONG, held.wanted_back())
                .await
                .is_err()
        );
        drop(held);
        assert_eq!(asks.next(1).await, None);
    }

    #[test]
    fn the_budget_of_a_kind_of_agent_is_its_own() {
        let pool = pool(1);
        for _ in 0..3 {
            pool.start_failed("x");
        }
        assert!(matches!(
            pool.may_start("x"),
            Start::Refused { deaths: 3, .. }
        ));
        assert_eq!(pool.may_start("y"), Start::After(Duration::ZERO));
        pool.clear("x");
        assert_eq!(pool.may_start("x"), Start::After(Duration::ZERO));
        pool.start_failed("x");
        pool.start_worked("x");
        assert_eq!(pool.may_start("x"), Start::After(Duration::ZERO));
        // What failed under another broker lies before this one's birth.
        pool.recall("x", &[Duration::from_secs(30), Duration::from_secs(20)]);
        pool.start_failed("x");
        assert!(matches!(
            pool.may_start("x"),
            Start::Refused { deaths: 3, .. }
        ));
    }
}
