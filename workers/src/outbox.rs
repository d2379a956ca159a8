//! What the worker still owes the broker. Pure: bytes in, bytes out.
//!
//! Invariants:
//! - events are numbered from 1 without gaps and kept until they are
//!   acknowledged; after a reconnect the broker gets exactly those that it does
//!   not have;
//! - frames keep their order among each other and with the events before them,
//!   so a response never overtakes an event of its turn;
//! - the response that ended the last turn is offered again after a reconnect
//!   until the next turn begins: nothing acknowledges a response, and a broker
//!   that never learns how a turn ended would wait for ever.

use std::collections::VecDeque;

use ade_protocol::limits::UNACKED_EVENTS;
use ade_protocol::{PROTOCOL_VERSION, Seq, TurnId};
use bytes::{BufMut, Bytes, BytesMut};

/// Bytes that are put on the wire in one go. More would only be memory: the
/// socket takes about as much.
const FILL: usize = 64 * 1024;

/// Frames other than events that are kept while no broker is there. Past it the
/// oldest that only inform are forgotten; responses never are, since the broker
/// asked for each of them.
const MAX_HELD: usize = 4096;

/// How much a frame matters when nobody is there to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Meaningless later: cards (announced anew), their withdrawal.
    Now,
    /// Kept while there is room.
    Informs,
    /// Kept.
    Answers,
    /// Kept until the next turn begins.
    EndsTurn,
}

#[derive(Clone, Debug)]
enum Item {
    Event(Seq),
    Frame(Bytes, Weight),
}

/// The queue towards the broker.
#[derive(Debug)]
pub(crate) struct Outbox {
    unacked: VecDeque<Bytes>,
    /// The number of the first entry of `unacked`.
    first: Seq,
    bytes: usize,
    limit: usize,
    queue: VecDeque<Item>,
    /// Frames on a wire that has not been emptied yet.
    on_wire: Vec<(Bytes, Weight)>,
    turn_end: Option<Bytes>,
    attached: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            unacked: VecDeque::new(),
            first: Seq(1),
            bytes: 0,
            limit: UNACKED_EVENTS,
            queue: VecDeque::new(),
            on_wire: Vec::new(),
            turn_end: None,
            attached: false,
        }
    }
}

impl Outbox {
    /// Number of the last event; 0 before the first.
    pub(crate) fn last_seq(&self) -> Seq {
        Seq(self.first.0 + self.unacked.len() as u64 - 1)
    }

    /// Whether so much is unacknowledged that no more events should be made.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= self.limit
    }

    /// Whether the broker has everything: every event acknowledged, every frame
    /// written.
    pub(crate) fn is_settled(&self) -> bool {
        self.unacked.is_empty() && self.queue.is_empty() && self.on_wire.is_empty()
    }

    /// Numbers an event and queues it. `raw` is a whole JSON value in one line.
    pub(crate) fn event(&mut self, turn: Option<&TurnId>, raw: &str) {
        let seq = self.last_seq().next();
        let line = event_line(seq, turn, raw);
        self.bytes += line.len();
        self.unacked.push_back(line);
        if self.attached {
            self.queue.push_back(Item::Event(seq));
        }
    }

    /// Queues a frame behind everything that was queued before.
    pub(crate) fn frame(&mut self, line: String, weight: Weight) {
        if !self.attached && weight == Weight::Now {
            return;
        }
        self.queue.push_back(Item::Frame(line.into(), weight));
        if !self.attached && self.queue.len() > MAX_HELD {
            let informs = |item: &Item| matches!(item, Item::Frame(_, Weight::Informs));
            if let Some(index) = self.queue.iter().position(informs) {
                self.queue.remove(index);
            }
        }
    }

    /// A new turn begins: the end of the last one is no longer offered.
    pub(crate) fn turn_begins(&mut self) {
        self.turn_end = None;
    }

    /// The broker has everything up to `seq`. A number that was never given
    /// out, or was acknowledged before, changes nothing.
    pub(crate) fn ack(&mut self, seq: Seq) {
        if seq > self.last_seq() {
            return;
        }
        while self.first <= seq {
            let Some(line) = self.unacked.pop_front() else {
                break;
            };
            self.bytes -= line.len();
            self.first = self.first.next();
        }
        if self.unacked.is_empty() && self.unacked.capacity() > 1024 {
            self.unacked.shrink_to(0);
        }
    }

    /// A broker that has everything up to `ack` begins to read: first the
    /// events it lacks, then the frames that were held.
    pub(crate) fn attach(&mut self, ack: Seq) {
        self.ack(ack);
        self.attached = true;
        let held = std::mem::take(&mut self.queue);
        let last = self.last_seq().0;
        self.queue
            .extend((self.first.0..=last).map(|seq| Item::Event(Seq(seq))));
        if let Some(line) = self.turn_end.take() {
            self.queue.push_back(Item::Frame(line, Weight::EndsTurn));
        }
        self.queue.extend(
            held.into_iter()
                .filter(|item| matches!(item, Item::Frame(..))),
        );
    }

    /// The connection is gone. What was written of it may or may not have
    /// arrived; what was not is kept.
    pub(crate) fn detach(&mut self) {
        self.attached = false;
        let queue = std::mem::take(&mut self.queue);
        let uncertain = std::mem::take(&mut self.on_wire);
        let uncertain = uncertain
            .into_iter()
            .map(|(line, weight)| Item::Frame(line, weight));
        let kept = uncertain.chain(queue).filter(|item| match item {
            Item::Event(_) | Item::Frame(_, Weight::Now) => false,
            // It is offered from its own place.
            Item::Frame(line, Weight::EndsTurn) => self.turn_end.as_ref() != Some(line),
            Item::Frame(..) => true,
        });
        self.queue = kept.collect();
    }

    /// Moves lines onto an empty wire.
    pub(crate) fn fill(&mut self, wire: &mut BytesMut) {
        self.on_wire.clear();
        if !self.attached {
            return;
        }
        while wire.len() < FILL {
            let Some(item) = self.queue.pop_front() else {
                break;
            };
            let line = match item {
                // An event may be acknowledged before it is sent again.
                Item::Event(seq) if seq < self.first => continue,
                Item::Event(seq) => {
                    let index = usize::try_from(seq.0 - self.first.0).unwrap_or(usize::MAX);
                    let Some(line) = self.unacked.get(index) else {
                        continue;
                    };
                    line.clone()
                }
                Item::Frame(line, weight) => {
                    if weight == Weight::EndsTurn {
                        self.turn_end = Some(line.clone());
                    }
                    self.on_wire.push((line.clone(), weight));
                    line
                }
            };
            wire.reserve(line.len() + 1);
            wire.put_slice(&line);
            wire.put_u8(b'\n');
        }
        if self.queue.is_empty() && self.queue.capacity() > 1024 {
            self.queue.shrink_to(0);
        }
    }

    /// The wire was emptied into the socket.
    pub(crate) fn written(&mut self) {
        self.on_wire.clear();
    }
}

/// An `event` frame around an event that stays as it is.
fn event_line(seq: Seq, turn: Option<&TurnId>, raw: &str) -> Bytes {
    let turn = turn.map_or_else(String::new, |turn| {
        let quoted = serde_json::to_string(turn).expect("a string serialises");
        format!(r#""turnId":{quoted},"#)
    });
    format!(
        r#"{{"protocolVersion":{PROTOCOL_VERSION},"type":"event","seq":{seq},{turn}"event":{raw}}}"#
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ade_protocol::frame::{FromWorker, Known};

    fn drain(outbox: &mut Outbox) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut wire = BytesMut::new();
            outbox.fill(&mut wire);
            if wire.is_empty() {
                return lines;
            }
            outbox.written();
            let text = String::from_utf8(wire.to_vec()).unwrap();
            lines.extend(text.lines().map(short));
        }
    }

    fn short(line: &str) -> String {
        match FromWorker::parse(line) {
            Ok(Known::Frame(FromWorker::Event(event))) => format!("e{}", event.seq),
            _ => line.to_owned(),
        }
    }

    fn text(outbox: &mut Outbox) {
        outbox.event(
            Some(&"t\"1".into()),
            r#"{"type":"text","messageId":"m","text":"x"}"#,
        );
    }

    #[test]
    fn events_and_frames_keep_their_order() {
        let mut outbox = Outbox::default();
        outbox.attach(Seq(0));
        text(&mut outbox);
        outbox.frame("log".into(), Weight::Informs);
        text(&mut outbox);
        outbox.frame("end".into(), Weight::EndsTurn);
        assert_eq!(drain(&mut outbox), ["e1", "log", "e2", "end"]);
        assert_eq!(outbox.last_seq(), Seq(2));
    }

    #[test]
    fn a_reconnect_replays_what_the_broker_lacks_and_nothing_twice() {
        let mut outbox = Outbox::default();
        outbox.attach(Seq(0));
        text(&mut outbox);
        text(&mut outbox);
        assert_eq!(drain(&mut outbox), ["e1", "e2"]);
        outbox.detach();
        text(&mut outbox);
        outbox.frame("end".into(), Weight::EndsTurn);
        assert!(
            drain(&mut outbox).is_empty(),
            "nothing is sent before the attach"
        );
        outbox.attach(Seq(1));
        assert_eq!(drain(&mut outbox), ["e2", "e3", "end"]);
        outbox.detach();
        outbox.attach(Seq(3));
        assert_eq!(
            drain(&mut outbox),
            ["end"],
            "the end of the turn is offered again"
        );
        outbox.turn_begins();
        outbox.detach();
        outbox.attach(Seq(3));
        assert!(drain(&mut outbox).is_empty());
        assert!(outbox.is_settled());
    }

    #[test]
    fn a_broken_wire_loses_no_answer() {
        let mut outbox = Outbox::default();
        outbox.attach(Seq(0));
        outbox.frame("answer".into(), Weight::Answers);
        outbox.frame("card".into(), Weight::Now);
        outbox.frame("end".into(), Weight::EndsTurn);
        outbox.fill(&mut BytesMut::new());
        assert!(!outbox.is_settled());
        outbox.detach();
        outbox.frame("card".into(), Weight::Now);
        outbox.attach(Seq(0));
        let mut lines = drain(&mut outbox);
        lines.sort();
        assert_eq!(lines, ["answer", "end"]);
    }

    #[test]
    fn acknowledged_events_are_forgotten_and_the_buffer_is_bounded() {
        let mut outbox = Outbox {
            limit: 300,
            ..Outbox::default()
        };
        outbox.attach(Seq(0));
        while !outbox.is_full() {
            text(&mut outbox);
        }
        let last = outbox.last_seq();
        outbox.ack(Seq(99));
        assert!(
            outbox.is_full(),
            "a number that was never given out means nothing"
        );
        outbox.ack(last);
        assert!(!outbox.is_full());
        assert_eq!(outbox.bytes, 0);
        assert!(drain(&mut outbox).is_empty());
        text(&mut outbox);
        assert_eq!(outbox.last_seq(), last.next());
    }

    #[test]
    fn what_only_informs_is_bounded_without_a_broker() {
        let mut outbox = Outbox::default();
        outbox.frame("first answer".into(), Weight::Answers);
        for index in 0..MAX_HELD + 10 {
            outbox.frame(index.to_string(), Weight::Informs);
        }
        outbox.attach(Seq(0));
        let lines = drain(&mut outbox);
        assert_eq!(lines.len(), MAX_HELD);
        assert_eq!(lines[0], "first answer");
    }
}
