//! Fan-out of events to subscribers.
//!
//! A session publishes after its transcript holds the event. Each subscriber
//! has a queue that is bounded in bytes; when it is full the subscriber loses
//! its live feed for that session, is told so with one `gap`, and goes on from
//! the transcript when it reads again. Nobody else waits for it.
//!
//! Locks here are held for the length of a push, never across an await.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_protocol::limits::SUBSCRIBER_QUEUE;
use ade_protocol::{Seq, SessionId};
use bytes::Bytes;
use tokio::sync::Notify;

/// Bytes that a subscriber takes from its queue in one go: one lock and one
/// write for many small events.
const TAKE: usize = 64 * 1024;

/// What a subscriber is told.
#[derive(Clone, Debug)]
pub enum Item {
    /// Events of one session that the transcript holds, without a gap.
    Events {
        /// Number of the first.
        first: Seq,
        /// Number of the last.
        last: Seq,
        /// Their notification lines; a line end stands between two of them.
        lines: Bytes,
    },
    /// An event that is shown and forgotten; its notification line.
    Passing(Bytes),
    /// A card was opened or settled.
    Card(Bytes),
}

impl Item {
    fn size(&self) -> usize {
        let (Self::Events { lines, .. } | Self::Passing(lines) | Self::Card(lines)) = self;
        // The fixed part stands for the queue's own bookkeeping.
        64 + lines.len()
    }
}

/// What a session is about to publish. Neighbouring events become one item: a
/// subscriber that is sent hundreds of them at once costs one entry of its
/// queue and one write.
#[derive(Debug, Default)]
pub struct Outgoing {
    items: Vec<Item>,
    /// Lines of the events that will be the next item.
    lines: Vec<u8>,
    first: Seq,
    last: Seq,
}

impl Outgoing {
    /// Whether there is nothing to publish.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.lines.is_empty()
    }

    /// Makes room for so many events whose envelopes have so many bytes in all.
    pub fn expect(&mut self, events: usize, bytes: usize) {
        let around = EVENT_HEAD.len() + EVENT_TAIL.len() + 1;
        self.lines.reserve(bytes + events * around);
    }

    /// Adds an event behind everything else. `envelope` is its line in the
    /// transcript.
    pub fn event(&mut self, sequence: Seq, envelope: &[u8]) {
        if self.lines.is_empty() {
            self.first = sequence;
        } else {
            self.lines.push(b'\n');
        }
        self.last = sequence;
        notification(&mut self.lines, envelope);
    }

    /// Adds an event that no transcript holds.
    pub fn passing(&mut self, envelope: &[u8]) {
        self.seal();
        let mut line = Vec::new();
        notification(&mut line, envelope);
        self.items.push(Item::Passing(line.into()));
    }

    /// Adds the notification line of a card.
    pub fn card(&mut self, line: String) {
        self.seal();
        self.items.push(Item::Card(line.into()));
    }

    /// Forgets all events. Cards stay: they do not stand in the transcript.
    pub fn drop_events(&mut self) {
        self.lines.clear();
        self.items.retain(|item| matches!(item, Item::Card(_)));
    }

    /// Everything, in order.
    pub fn take(&mut self) -> Vec<Item> {
        self.seal();
        std::mem::take(&mut self.items)
    }

    fn seal(&mut self) {
        if !self.lines.is_empty() {
            // Queues count lengths, and room that was made in vain is kept as
            // long as the item is.
            self.lines.shrink_to_fit();
            self.items.push(Item::Events {
                first: self.first,
                last: self.last,
                lines: std::mem::take(&mut self.lines).into(),
            });
        }
    }
}

/// What stands around an envelope in its notification, as
/// [`ade_protocol::rpc::notification_line`] writes it.
const EVENT_HEAD: &[u8] = br#"{"jsonrpc":"2.0","method":"ade/event","params":"#;
const EVENT_TAIL: &[u8] = b"}";

fn notification(into: &mut Vec<u8>, envelope: &[u8]) {
    into.reserve(EVENT_HEAD.len() + envelope.len() + EVENT_TAIL.len());
    into.extend_from_slice(EVENT_HEAD);
    into.extend_from_slice(envelope);
    into.extend_from_slice(EVENT_TAIL);
}

/// All subscribers of a broker.
#[derive(Debug, Default)]
pub struct Hub {
    subscribers: Mutex<Vec<Arc<Subscriber>>>,
    heads: Mutex<HashMap<SessionId, Seq>>,
}

/// One subscription.
#[derive(Debug)]
pub struct Subscriber {
    /// Which session; `None`: all.
    only: Option<SessionId>,
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    closed: bool,
    /// Events are not queued while the subscriber reads the transcript.
    paused: bool,
    /// First and last event, by session, that did not fit.
    missed: HashMap<SessionId, (Seq, Seq)>,
}

/// What [`Subscriber::next`] found.
#[derive(Debug)]
pub enum Next {
    /// The next items, in order; at least one.
    Items(Vec<Item>),
    /// Events of this session did not fit; the live feed of a subscription to
    /// one session is paused until [`Hub::resume`].
    Missed(SessionId, Seq, Seq),
    /// The subscription was ended.
    Closed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while holding one of these locks leaves whole values behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Adds a subscriber. `paused`: it will first read the transcript.
    #[must_use]
    pub fn subscribe(&self, only: Option<SessionId>, paused: bool) -> Arc<Subscriber> {
        let queue = Queue {
            paused,
            ..Queue::default()
        };
        let subscriber = Arc::new(Subscriber {
            only,
            queue: Mutex::new(queue),
            wake: Notify::new(),
        });
        lock(&self.subscribers).push(Arc::clone(&subscriber));
        subscriber
    }

    /// Removes a subscriber and wakes whoever waits on it.
    pub fn unsubscribe(&self, subscriber: &Arc<Subscriber>) {
        lock(&self.subscribers).retain(|other| !Arc::ptr_eq(other, subscriber));
        lock(&subscriber.queue).closed = true;
        subscriber.wake.notify_one();
    }

    /// Whether somebody watches this session in particular. Whoever watches all
    /// of them watches none in particular.
    #[must_use]
    pub fn watches(&self, session: &SessionId) -> bool {
        let subscribers = lock(&self.subscribers);
        let mut only = subscribers.iter().map(|subscriber| &subscriber.only);
        only.any(|only| only.as_ref() == Some(session))
    }

    /// Hands items to every subscriber that wants them. The transcript must
    /// hold the persisted ones already.
    pub fn publish(&self, session: &SessionId, head: Seq, items: &[Item]) {
        lock(&self.heads).insert(session.clone(), head);
        for subscriber in lock(&self.subscribers).iter() {
            if subscriber.only.as_ref().is_none_or(|only| only == session) {
                subscriber.push(session, items);
            }
        }
    }

    /// Notes where the transcript of a session ends, before anything of it is
    /// written or published.
    pub fn begin(&self, session: &SessionId, head: Seq) {
        lock(&self.heads).insert(session.clone(), head);
    }

    /// The last event of a session that is committed. `None`: nobody writes
    /// this session, so all that its file holds is.
    #[must_use]
    pub fn head(&self, session: &SessionId) -> Option<Seq> {
        lock(&self.heads).get(session).copied()
    }

    /// Forgets a session.
    pub fn forget(&self, session: &SessionId) {
        lock(&self.heads).remove(session);
    }

    /// Ends the transcript reading of a subscriber that has read everything up
    /// to `sent`. False when more was written meanwhile: it must read on.
    #[must_use]
    pub fn resume(&self, subscriber: &Subscriber, session: &SessionId, sent: Seq) -> bool {
        // The order of locks is the same as in `publish`: nothing can be
        // published between the look and the resumption.
        let heads = lock(&self.heads);
        let subscribers = lock(&self.subscribers);
        let head = heads.get(session).copied().unwrap_or(sent);
        if head > sent {
            return false;
        }
        let mut queue = lock(&subscriber.queue);
        queue.paused = false;
        queue.missed.remove(session);
        drop(subscribers);
        true
    }

    /// Number of subscribers.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.subscribers).len()
    }

    /// Whether nobody listens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Subscriber {
    fn push(&self, session: &SessionId, items: &[Item]) {
        let mut queue = lock(&self.queue);
        for item in items {
            queue.push(session, item);
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// The next things to tell.
    pub async fn next(&self) -> Next {
        loop {
            {
                let mut queue = lock(&self.queue);
                if queue.closed {
                    return Next::Closed;
                }
                let items = queue.take();
                if !items.is_empty() {
                    return Next::Items(items);
                }
                let missed = queue.missed.keys().next().cloned();
                if let Some(session) = missed {
                    let range = queue.missed.remove(&session);
                    if let Some((from, to)) = range {
                        queue.paused = self.only.is_some();
                        return Next::Missed(session, from, to);
                    }
                }
            }
            self.wake.notified().await;
        }
    }
}

impl Queue {
    /// Takes items from the front, about [`TAKE`] bytes of them.
    fn take(&mut self) -> Vec<Item> {
        let (mut items, mut bytes) = (Vec::new(), 0);
        while bytes < TAKE {
            let Some(item) = self.items.pop_front() else {
                break;
            };
            bytes += item.size();
            items.push(item);
        }
        self.bytes -= bytes;
        items
    }

    fn push(&mut self, session: &SessionId, item: &Item) {
        let range = match item {
            Item::Events { first, last, .. } => Some((*first, *last)),
            Item::Passing(_) => None,
            // Cards are few and small, and a client must not miss one.
            Item::Card(_) => return self.put(item),
        };
        if self.paused {
            return;
        }
        if let Some((_, to)) = self.missed.get_mut(session) {
            // Once one is missing, all later ones are: order is kept.
            *to = range.map_or(*to, |(_, last)| last);
        } else if self.bytes + item.size() > SUBSCRIBER_QUEUE {
            self.missed
                .extend(range.map(|range| (session.clone(), range)));
        } else {
            self.put(item);
        }
    }

    fn put(&mut self, item: &Item) {
        self.bytes += item.size();
        self.items.push_back(item.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ade_protocol::rpc;

    fn event(sequence: u64, size: usize) -> Item {
        Item::Events {
            first: Seq(sequence),
            last: Seq(sequence),
            lines: Bytes::from(vec![b'x'; size]),
        }
    }

    #[test]
    fn neighbouring_events_become_one_item_and_order_is_kept() {
        let mut out = Outgoing::default();
        assert!(out.is_empty());
        for sequence in 1..=3 {
            out.event(Seq(sequence), format!("{{\"n\":{sequence}}}").as_bytes());
        }
        out.passing(b"{}");
        out.event(Seq(4), b"{}");
        out.card("card".into());
        assert!(!out.is_empty());
        let items = out.take();
        let [
            Item::Events {
                first: Seq(1),
                last: Seq(3),
                lines,
            },
            Item::Passing(passing),
            Item::Events {
                first: Seq(4),
                last: Seq(4),
                ..
            },
            Item::Card(_),
        ] = &items[..]
        else {
            panic!("{items:?}");
        };
        let line = |params: &str| rpc::notification_line(rpc::EVENT, params);
        let expected: Vec<String> = (1..=3).map(|n| line(&format!("{{\"n\":{n}}}"))).collect();
        assert_eq!(lines, expected.join("\n").as_bytes());
        assert_eq!(passing, line("{}").as_bytes());
        assert!(out.is_empty() && out.take().is_empty());
        out.event(Seq(5), b"{}");
        out.card("card".into());
        out.event(Seq(6), b"{}");
        out.drop_events();
        assert!(matches!(out.take()[..], [Item::Card(_)]));
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_bounded_and_told_once() {
        let hub = Hub::default();
        let session = SessionId::from("s");
        let slow = hub.subscribe(Some(session.clone()), false);
        for n in 1..=100 {
            hub.publish(&session, Seq(n), &[event(n, 100_000)]);
        }
        assert!(lock(&slow.queue).bytes <= SUBSCRIBER_QUEUE);
        let mut last = 0;
        let (from, to) = loop {
            match slow.next().await {
                Next::Items(items) => {
                    for item in items {
                        let Item::Events { first, .. } = item else {
                            panic!("{item:?}")
                        };
                        assert_eq!(first.0, last + 1);
                        last = first.0;
                    }
                }
                Next::Missed(_, from, to) => break (from.0, to.0),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((from, to), (last + 1, 100));
        hub.publish(&session, Seq(101), &[event(101, 10)]);
        assert!(
            !hub.resume(&slow, &session, Seq(100)),
            "more was written meanwhile"
        );
        assert!(hub.resume(&slow, &session, Seq(101)));
        hub.publish(&session, Seq(102), &[event(102, 10)]);
        let Next::Items(items) = slow.next().await else {
            panic!()
        };
        assert!(matches!(
            items[..],
            [Item::Events {
                first: Seq(102),
                ..
            }]
        ));
    }

    #[tokio::test]
    async fn others_are_not_disturbed_and_an_end_wakes() {
        let hub = Hub::default();
        let (a, b) = (SessionId::from("a"), SessionId::from("b"));
        let one = hub.subscribe(Some(a), false);
        let all = hub.subscribe(None, false);
        hub.publish(&b, Seq(1), &[event(1, 1)]);
        assert!(matches!(all.next().await, Next::Items(_)));
        hub.unsubscribe(&one);
        assert!(matches!(one.next().await, Next::Closed));
        assert_eq!(hub.len(), 1);
    }
}
