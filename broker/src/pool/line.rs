//! Who may have a worker, and in which order: pure.
//!
//! Invariants:
//! - no more places are given than the limits allow, but for workers that were
//!   taken over ([`Line::take`]), which nobody is sent away for;
//! - nor more than there are descriptors for ([`Line::set_room`]), but one: whoever
//!   is alone and finds no room will be told so by its start;
//! - requests are served in the order in which they came. One that waits only
//!   for its own kind of agent's limit is passed by requests for other kinds,
//!   and is the first to get a place of its own kind;
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
                idle_since: None,
                wanted_back: false,
            },
        );
        ticket
    }

    /// The worker has started.
    pub(super) fn started(&mut self, ticket: Ticket) {
        if let Some(holder) = self.holders.get_mut(&ticket) {
            holder.starting = false;
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
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn line(max_workers: usize, max_per_provider: usize, max_starting: usize) -> Line {
        Line::new(PoolLimits {
            max_workers,
            max_per_provider,
            max_starting,
        })
    }

    fn nobody(_: &SessionId) -> bool {
        false
    }

    fn at(seconds: u64) -> Mono {
        Duration::from_secs(seconds)
    }

    #[test]
    fn places_are_given_in_order_and_everybody_knows_where_it_stands() {
        let mut line = line(2, 9, 9);
        let all: Vec<Ticket> = ["a", "b", "c", "d"]
            .map(|session| line.ask(session.into(), "x"))
            .to_vec();
        let expected = [
            News::Granted(all[0]),
            News::Granted(all[1]),
            News::Waits(all[2], 1),
            News::Waits(all[3], 2),
        ];
        assert_eq!(line.settle(nobody), expected);
        assert!(line.settle(nobody).is_empty(), "told once");
        line.leave(all[0]);
        let expected = [News::Granted(all[2]), News::Waits(all[3], 1)];
        assert_eq!(line.settle(nobody), expected);
        line.leave(all[3]);
        line.leave(all[1]);
        assert!(line.settle(nobody).is_empty(), "it had left the line");
    }

    #[test]
    fn a_full_kind_of_agent_holds_up_only_its_own() {
        let mut line = line(3, 1, 9);
        let first = line.ask("a".into(), "x");
        let second = line.ask("b".into(), "x");
        let other = line.ask("c".into(), "y");
        let expected = [
            News::Granted(first),
            News::Granted(other),
            News::Waits(second, 1),
        ];
        assert_eq!(line.settle(nobody), expected);
        line.leave(first);
        assert_eq!(line.settle(nobody), [News::Granted(second)]);
    }

    #[test]
    fn only_so_many_start_at_once() {
        let mut line = line(9, 9, 1);
        let first = line.ask("a".into(), "x");
        let second = line.ask("b".into(), "x");
        assert_eq!(
            line.settle(nobody),
            [News::Granted(first), News::Waits(second, 1)]
        );
        assert!(!line.is_full("x"), "that passes by itself");
        line.started(first);
        assert_eq!(line.settle(nobody), [News::Granted(second)]);
    }

    #[test]
    fn what_the_process_has_no_room_for_waits_and_idle_workers_make_room() {
        let mut line = line(9, 9, 9);
        line.set_room(2);
        let [first, second, third] = ["a", "b", "c"].map(|session| line.ask(session.into(), "x"));
        let expected = [
            News::Granted(first),
            News::Granted(second),
            News::Waits(third, 1),
        ];
        assert_eq!(line.settle(nobody), expected);
        // What starts may not have taken its part yet.
        line.set_room(2);
        assert!(line.settle(nobody).is_empty());
        line.started(first);
        line.started(second);
        line.idle(second, at(1));
        line.set_room(0);
        assert_eq!(line.settle(nobody), [News::WantedBack(second)]);
        line.leave(second);
        line.set_room(1);
        assert_eq!(line.settle(nobody), [News::Granted(third)]);
        for ticket in [first, third] {
            line.leave(ticket);
        }
        // One that is alone is not kept waiting for ever.
        let alone = line.ask("d".into(), "x");
        line.set_room(0);
        assert_eq!(line.settle(nobody), [News::Granted(alone)]);
    }

    #[test]
    fn the_longest_idle_worker_that_nobody_watches_makes_room() {
        let mut line = line(4, 9, 9);
        let [busy, watched, old, young] = ["busy", "watched", "old", "young"].map(|session| {
            let ticket = line.ask(session.into(), "x");
            line.settle(nobody);
            line.started(ticket);
            ticket
        });
        line.idle(watched, at(1));
        line.idle(old, at(2));
        line.idle(young, at(3));
        let seen = |session: &SessionId| session.as_str() == "watched";
        let first = line.ask("n".into(), "x");
        assert_eq!(
            line.settle(seen),
            [News::WantedBack(old), News::Waits(first, 1)]
        );
        assert!(line.settle(seen).is_empty(), "one is enough");
        // A message for the old one came in the same moment.
        line.busy(old);
        assert_eq!(line.settle(seen), [News::WantedBack(young)]);
        line.leave(young);
        assert_eq!(line.settle(seen), [News::Granted(first)]);
        let second = line.ask("m".into(), "x");
        assert_eq!(line.settle(seen), [News::Waits(second, 1)], "nobody may go");
        assert_eq!(line.settle(nobody), [News::WantedBack(watched)]);
        line.leave(busy);
        assert_eq!(line.settle(nobody), [News::Granted(second)]);
    }

    #[test]
    fn room_for_a_full_kind_is_made_among_its_own() {
        let mut line = line(3, 1, 9);
        let x = line.ask("a".into(), "x");
        let y = line.ask("b".into(), "y");
        line.settle(nobody);
        line.idle(y, at(1));
        line.idle(x, at(2));
        let again = line.ask("c".into(), "x");
        assert_eq!(
            line.settle(nobody),
            [News::WantedBack(x), News::Waits(again, 1)]
        );
    }

    #[test]
    fn workers_that_were_taken_over_may_be_too_many() {
        let mut line = line(1, 1, 1);
        let first = line.take("a".into(), "x");
        let second = line.take("b".into(), "x");
        let asks = line.ask("c".into(), "x");
        line.settle(nobody);
        line.leave(first);
        assert!(line.settle(nobody).is_empty());
        line.leave(second);
        assert_eq!(line.settle(nobody), [News::Granted(asks)]);
    }

    proptest! {
        #[test]
        fn limits_hold_and_nobody_is_forgotten(steps in prop::collection::vec((0..6_u8, 0..16_usize), 1..300)) {
            let mut line = line(4, 3, 2);
            let mut known: Vec<(Ticket, bool)> = Vec::new();
            for (now, (what, which)) in steps.into_iter().enumerate() {
                let picked = (!known.is_empty()).then(|| known[which % known.len()]);
                match (what, picked) {
                    (0, _) => {
                        let provider = if which % 2 == 0 { "x" } else { "y" };
                        known.push((line.ask(format!("s{now}").into(), provider), false));
                    }
                    (1, Some((ticket, true))) => line.started(ticket),
                    (2, Some((ticket, true))) => line.idle(ticket, at(now as u64)),
                    (3, Some((ticket, true))) => line.busy(ticket),
                    (4, Some((ticket, _))) => {
                        line.leave(ticket);
                        known.retain(|(other, _)| *other != ticket);
                    }
                    _ => {}
                }
                for news in line.settle(nobody) {
                    if let News::Granted(ticket) = news {
                        for (other, granted) in &mut known {
                            *granted |= *other == ticket;
                        }
                    }
                }
                prop_assert!(line.holders.len() <= 4);
                for provider in ["x", "y"] {
                    prop_assert!(line.of_provider(provider) <= 3);
                }
                prop_assert!(line.holders.values().filter(|holder| holder.starting).count() <= 2);
                prop_assert_eq!(line.holders.len() + line.waiting.len(), known.len());
            }
            // When everybody leaves in time, everybody gets its turn.
            while line.waiting.front().is_some() {
                let holders: Vec<Ticket> = line.holders.keys().copied().collect();
                prop_assert!(!holders.is_empty(), "somebody waits for nothing");
                for ticket in holders {
                    line.leave(ticket);
                }
                line.settle(nobody);
            }
        }
    }
}
