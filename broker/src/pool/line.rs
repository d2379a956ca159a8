//! Who may have a worker, and in which order: pure.
//!
//! Invariants:
//! - no more places are given than the limits allow, but for workers that were
//!   taken over ([`Line::take`]), which nobody is sent away for;
//! - nor more than there are descriptors for ([`Line::set_room`]), but one: whoever
//!   is alone and finds no room will be told so by its start;
//! - requests are served in the order in which they came. One that waits only
//!   for its own kind of agent's limit is passed by requests for other kinds,
//!   and is the first to get a place of its own kind. One that gives its place
//!   back ([`Line::give_back`]) stands where it stood;
//! - a worker is put away for a request only while it is idle and nobody
//!   watches its session, the longest idle first, and no more of them than
//!   requests wait.

use std::collections::{BTreeMap, VecDeque};

use ade_protocol::SessionId;

use crate::config::PoolLimits;
use crate::turn::Mono;

/// Names one request, and the place that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket(u64);

/// What [`Line::settle`] decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// This request has a place now.
    Granted(Ticket),
    /// This request waits at that place, from 1.
    Waits(Ticket, usize),
    /// This worker is to be put away.
    WantedBack(Ticket),
}

#[derive(Clone, Debug)]
struct Holder {
    session: SessionId,
    provider: String,
    starting: bool,
    /// It runs already and has not reported to this broker yet.
    coming: bool,
    idle_since: Option<Mono>,
    wanted_back: bool,
}

#[derive(Clone, Debug)]
struct Waiting {
    ticket: Ticket,
    session: SessionId,
    provider: String,
    told: usize,
}

/// The places and the line before them.
#[derive(Clone, Debug)]
pub(super) struct Line {
    limits: PoolLimits,
    /// Most workers by what the system gives to this process.
    most: usize,
    last: u64,
    holders: BTreeMap<Ticket, Holder>,
    /// In the order in which they came: of their tickets.
    waiting: VecDeque<Waiting>,
}

impl Line {
    pub(super) fn new(limits: PoolLimits) -> Self {
        Self {
            limits,
            most: usize::MAX,
            last: 0,
            holders: BTreeMap::new(),
            waiting: VecDeque::new(),
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.last += 1;
        Ticket(self.last)
    }

    /// There is room for so many more workers, those that start included: they may
    /// not have taken what they need yet.
    pub(super) fn set_room(&mut self, more: usize) {
        self.most = (self.holders.len() - self.starting()).saturating_add(more);
    }

    fn max_workers(&self) -> usize {
        self.limits.max_workers.min(self.most.max(1))
    }

    /// Workers that have a place and may not have taken yet what they need.
    pub(super) fn starting(&self) -> usize {
        self.holders
            .values()
            .filter(|holder| holder.starting)
            .count()
    }

    /// Workers that run already and have not taken yet what they need of this
    /// broker.
    pub(super) fn coming(&self) -> usize {
        let coming = |holder: &&Holder| holder.coming;
        self.holders.values().filter(coming).count()
    }

    /// Joins the line.
    pub(super) fn ask(&mut self, session: SessionId, provider: &str) -> Ticket {
        let ticket = self.ticket();
        self.waiting.push_back(Waiting {
            ticket,
            session,
            provider: provider.to_owned(),
            told: 0,
        });
        ticket
    }

    /// Takes a place for a worker that runs already, whatever the limits say.
    pub(super) fn take(&mut self, session: SessionId, provider: &str) -> Ticket {
        let ticket = self.ticket();
        self.holders.insert(
            ticket,
            Holder {
                session,
                provider: provider.to_owned(),
                starting: false,
                coming: true,
                idle_since: None,
                wanted_back: false,
            },
        );
        ticket
    }

    /// The worker has started, or come.
    pub(super) fn started(&mut self, ticket: Ticket) {
        if let Some(holder) = self.holders.get_mut(&ticket) {
            holder.starting = false;
            holder.coming = false;
        }
    }

    /// The worker has nothing to do.
    pub(super) fn idle(&mut self, ticket: Ticket, now: Mono) {
        if let Some(holder) = self.holders.get_mut(&ticket) {
            holder.idle_since = Some(now);
        }
    }

    /// The worker has something to do. Whoever wanted its place gets another.
    pub(super) fn busy(&mut self, ticket: Ticket) {
        if let Some(holder) = self.holders.get_mut(&ticket) {
            holder.idle_since = None;
            holder.wanted_back = false;
        }
    }

    /// Gives a place back whose worker can't start yet. The request waits again,
    /// before all that came after it.
    pub(super) fn give_back(&mut self, ticket: Ticket) {
        let Some(holder) = self.holders.remove(&ticket) else {
            return;
        };
        let before = |waiting: &Waiting| waiting.ticket < ticket;
        let index = self.waiting.partition_point(before);
        let waiting = Waiting {
            ticket,
            session: holder.session,
            provider: holder.provider,
            told: 0,
        };
        self.waiting.insert(index, waiting);
    }

    /// Gives up a place, or leaves the line.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.holders.remove(&ticket);
        self.waiting.retain(|waiting| waiting.ticket != ticket);
    }

    /// Workers, and requests that wait.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.holders.len(), self.waiting.len())
    }

    /// Whether a limit on workers, and not only on starts, is reached.
    pub(super) fn is_full(&self, provider: &str) -> bool {
        self.holders.len() >= self.max_workers()
            || self.of_provider(provider) >= self.limits.max_per_provider
    }

    fn of_provider(&self, provider: &str) -> usize {
        let same = |holder: &&Holder| holder.provider == provider;
        self.holders.values().filter(same).count()
    }

    /// Gives the places that are free, tells the others where they stand and
    /// which idle workers are to make room. `watched`: whether somebody watches
    /// a session.
    pub(super) fn settle(&mut self, watched: impl Fn(&SessionId) -> bool) -> Vec<News> {
        let mut news = Vec::new();
        self.grant(&mut news);
        self.make_room(watched, &mut news);
        for (index, waiting) in self.waiting.iter_mut().enumerate() {
            let place = index + 1;
            if waiting.told != place {
                waiting.told = place;
                news.push(News::Waits(waiting.ticket, place));
            }
        }
        news
    }

    fn grant(&mut self, news: &mut Vec<News>) {
        let mut index = 0;
        while let Some(waiting) = self.waiting.get(index) {
            let full = self.holders.len() >= self.max_workers();
            if full || self.starting() >= self.limits.max_starting {
                return;
            }
            if self.of_provider(&waiting.provider) >= self.limits.max_per_provider {
                index += 1;
                continue;
            }
            if let Some(waiting) = self.waiting.remove(index) {
                news.push(News::Granted(waiting.ticket));
                let holder = Holder {
                    session: waiting.session,
                    provider: waiting.provider,
                    starting: true,
                    coming: false,
                    idle_since: None,
                    wanted_back: false,
                };
                self.holders.insert(waiting.ticket, holder);
            }
        }
    }

    /// Finds one idle worker for each request that is blocked by a limit, unless
    /// one is on its way out for it already.
    fn make_room(&mut self, watched: impl Fn(&SessionId) -> bool, news: &mut Vec<News>) {
        let mut leaving: Vec<(Ticket, String)> = self
            .holders
            .iter()
            .filter(|(_, holder)| holder.wanted_back)
            .map(|(ticket, holder)| (*ticket, holder.provider.clone()))
            .collect();
        for waiting in &self.waiting {
            let own = self.of_provider(&waiting.provider) >= self.limits.max_per_provider;
            if !self.is_full(&waiting.provider) {
                // Only too many start at once: that passes.
                continue;
            }
            let fits = |provider: &str| !own || provider == waiting.provider;
            if let Some(index) = leaving.iter().position(|(_, provider)| fits(provider)) {
                leaving.swap_remove(index);
                continue;
            }
            let victim = self
                .holders
                .iter()
                .filter(|(_, holder)| !holder.wanted_back && fits(&holder.provider))
                .filter_map(|(ticket, holder)| Some((holder.idle_since?, *ticket, holder)))
                .filter(|(_, _, holder)| !watched(&holder.session))
                .min_by_key(|(since, ticket, _)| (*since, *ticket))
                .map(|(_, ticket, _)| ticket);
            if let Some(ticket) = victim {
                if let Some(holder) = self.holders.get_mut(&ticket) {
                    holder.wanted_back = true;
                }
                news.push(News::WantedBack(ticket));
            }
        }
    }
}

#[cfg(test)]
mod tests;
