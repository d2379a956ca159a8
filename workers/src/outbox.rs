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

/// Bytes that stay allocated for events when none is owed.
const KEPT: usize = 64 * 1024;

/// The beginning of every `event` frame, up to its number.
const HEAD: &str = r#"{"protocolVersion":2,"type":"event","seq":"#;
const _: () = assert!(PROTOCOL_VERSION == 2, "`HEAD` carries the version");

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
    /// All events from the first to the last number.
    Events(Seq, Seq),
    Frame(Bytes, Weight),
}

/// Events that are not acknowledged, as the lines that they are on the wire,
/// one behind the other: an event costs no allocation, and many of them go to
/// the wire in one copy.
#[derive(Debug)]
struct Unacked {
    lines: VecDeque<u8>,
    /// Where each line ends, counted from the first byte of the generation.
    ends: VecDeque<u64>,
    /// Where the first line begins, counted likewise.
    start: u64,
    /// Number of the first line.
    first: Seq,
}

/// The queue towards the broker.
#[derive(Debug)]
pub(crate) struct Outbox {
    unacked: Unacked,
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
            unacked: Unacked {
                lines: VecDeque::new(),
                ends: VecDeque::new(),
                start: 0,
                first: Seq(1),
            },
            limit: UNACKED_EVENTS,
            queue: VecDeque::new(),
            on_wire: Vec::new(),
            turn_end: None,
            attached: false,
        }
    }
}

impl Unacked {
    /// Number of the last line; one less than the first when there is none.
    fn last(&self) -> Seq {
        Seq(self.first.0 + self.ends.len() as u64 - 1)
    }

    /// An `event` frame around an event that stays as it is.
    fn push(&mut self, turn: Option<&TurnId>, raw: &str) -> Seq {
        const NEVER: &str = "writing to memory does not fail";
        let seq = self.last().next();
        let lines = &mut self.lines;
        let before = lines.len();
        lines.extend(HEAD.as_bytes());
        serde_json::to_writer(&mut *lines, &seq).expect(NEVER);
        if let Some(turn) = turn {
            lines.extend(b",\"turnId\":");
            serde_json::to_writer(&mut *lines, turn).expect(NEVER);
        }
        lines.extend(b",\"event\":");
        lines.extend(raw.as_bytes());
        lines.extend(b"}\n");
        let length = (lines.len() - before) as u64;
        let end = self.ends.back().copied().unwrap_or(self.start);
        self.ends.push_back(end + length);
        seq
    }

    /// Forgets everything up to `seq`, which is not more than the last.
    fn forget(&mut self, seq: Seq) {
        let count = (seq.0 + 1).saturating_sub(self.first.0);
        let Some(end) = self.end(count) else { return };
        self.ends
            .drain(..usize::try_from(count).unwrap_or(usize::MAX));
        self.lines.drain(..offset(self.start, end));
        self.start = end;
        self.first = seq.next();
        if self.lines.is_empty() && self.lines.capacity() > KEPT {
            self.lines = VecDeque::new();
            self.ends = VecDeque::new();
        }
    }

    /// Where the last of the first `count` lines ends.
    fn end(&self, count: u64) -> Option<u64> {
        let index = usize::try_from(count.checked_sub(1)?).ok()?;
        self.ends.get(index).copied()
    }

    /// Copies the lines `from` to `to`, which are all there, as far as there is
    /// `room`, and one at least. The number of the next line.
    fn copy(&self, from: Seq, to: Seq, room: usize, wire: &mut BytesMut) -> Seq {
        let skipped = from.0 - self.first.0;
        let begin = self.end(skipped).unwrap_or(self.start);
        let most = begin + room as u64;
        let fit = self.ends.partition_point(|end| *end <= most) as u64;
        let count = fit.clamp(skipped + 1, to.0 + 1 - self.first.0);
        let end = self.end(count).unwrap_or(begin);
        let range = offset(self.start, begin)..offset(self.start, end);
        wire.reserve(range.len());
        let (front, back) = self.lines.as_slices();
        let cut = |at: usize| at.min(front.len());
        wire.put_slice(&front[cut(range.start)..cut(range.end)]);
        let cut = |at: usize| at.saturating_sub(front.len());
        wire.put_slice(&back[cut(range.start)..cut(range.end)]);
        Seq(self.first.0 + count)
    }
}

/// The distance between two places of the stream that are both in memory.
fn offset(from: u64, to: u64) -> usize {
    usize::try_from(to - from).expect("lines in memory are no longer than memory")
}

impl Outbox {
    /// Number of the last event; 0 before the first.
    pub(crate) fn last_seq(&self) -> Seq {
        self.unacked.last()
    }

    /// Whether so much is unacknowledged that no more events should be made.
    pub(crate) fn is_full(&self) -> bool {
        self.unacked.lines.len() >= self.limit
    }

    /// Whether the broker has everything: every event acknowledged, every frame
    /// written.
    pub(crate) fn is_settled(&self) -> bool {
        self.unacked.ends.is_empty() && self.queue.is_empty() && self.on_wire.is_empty()
    }

    /// Numbers an event and queues it. `raw` is a whole JSON value in one line.
    pub(crate) fn event(&mut self, turn: Option<&TurnId>, raw: &str) {
        let seq = self.unacked.push(turn, raw);
        if !self.attached {
            return;
        }
        match self.queue.back_mut() {
            Some(Item::Events(_, last)) if last.next() == seq => *last = seq,
            _ => self.queue.push_back(Item::Events(seq, seq)),
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
        if seq <= self.last_seq() {
            self.unacked.forget(seq);
        }
    }

    /// A broker that has everything up to `ack` begins to read: first the
    /// events it lacks, then the frames that were held.
    pub(crate) fn attach(&mut self, ack: Seq) {
        self.ack(ack);
        self.attached = true;
        let held = std::mem::take(&mut self.queue);
        if !self.unacked.ends.is_empty() {
            let all = Item::Events(self.unacked.first, self.last_seq());
            self.queue.push_back(all);
        }
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
            Item::Events(..) | Item::Frame(_, Weight::Now) => false,
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
            match item {
                Item::Events(from, to) => {
                    // An event may be acknowledged before it is sent again.
                    let from = from.max(self.unacked.first);
                    if from > to {
                        continue;
                    }
                    let next = self.unacked.copy(from, to, FILL - wire.len(), wire);
                    if next <= to {
                        self.queue.push_front(Item::Events(next, to));
                    }
                }
                Item::Frame(line, weight) => {
                    wire.reserve(line.len() + 1);
                    wire.put_slice(&line);
                    wire.put_u8(b'\n');
                    if weight == Weight::EndsTurn {
                        self.turn_end = Some(line.clone());
                    }
                    self.on_wire.push((line, weight));
                }
            }
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
        assert!(outbox.unacked.lines.is_empty());
        assert!(drain(&mut outbox).is_empty());
        text(&mut outbox);
        assert_eq!(outbox.last_seq(), last.next());
    }

    /// Events of all sizes, acknowledged and sent in pieces of all sizes: what
    /// arrives is what was made, whole and in order.
    #[test]
    fn pieces_of_any_size_keep_every_line_whole() {
        let mut outbox = Outbox::default();
        outbox.attach(Seq(0));
        let (mut made, mut came) = (0_u64, 0_u64);
        for round in 0..400_u64 {
            for _ in 0..round % 7 {
                made += 1;
                let size = usize::try_from(made * 7919 % 9000).unwrap();
                let size = if made % 97 == 0 { 100_000 } else { size };
                let text = "x".repeat(size);
                let turn = (made % 2 == 0).then(|| TurnId::from("t"));
                outbox.event(turn.as_ref(), &format!(r#"{{"n":{made},"text":"{text}"}}"#));
            }
            let mut wire = BytesMut::new();
            outbox.fill(&mut wire);
            outbox.written();
            for line in std::str::from_utf8(&wire).unwrap().lines() {
                came += 1;
                let Ok(Known::Frame(FromWorker::Event(event))) = FromWorker::parse(line) else {
                    panic!("{line}");
                };
                assert_eq!(event.seq, Seq(came));
                assert_eq!(event.turn_id.is_some(), came % 2 == 0);
                let start = format!(r#"{{"n":{came},"text":"x"#);
                assert!(event.event.get().starts_with(&start[..start.len() - 1]));
                assert!(event.event.get().ends_with(r#""}"#));
            }
            outbox.ack(Seq(came.saturating_sub(round % 5)));
        }
        assert!(made > 1000);
        let rest = drain(&mut outbox);
        assert_eq!(rest.len() as u64, made - came);
        outbox.ack(Seq(made));
        assert!(outbox.is_settled());
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
