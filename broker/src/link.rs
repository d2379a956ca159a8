//! The broker's end of a worker's connection.
//!
//! A worker connects, says `hello`, and is handed to whoever waits for it. One
//! task reads its lines and one writes; both queues are bounded. A reader that
//! is not kept up with stops reading, so the worker keeps its events; a worker
//! that does not read what it is told is treated as wedged.
//!
//! Payloads of `event` frames are passed on as they are.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ade_protocol::codec::{self, Line, LineCodec};
use ade_protocol::frame::{FrameFault, FromWorker, Header, Hello, Known, ToWorker};
use ade_protocol::limits::MAX_MALFORMED_IN_A_ROW;
use ade_protocol::{Seq, TurnId, WorkerId};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio_util::codec::FramedRead;

use crate::journal;

/// Frames that may wait between the reader and the session. When they are
/// full the reader stops, and the worker keeps its events.
const IN_QUEUE: usize = 1024;

/// Lines that may wait to be written to a worker. When they are full the
/// worker is wedged and is replaced.
const OUT_QUEUE: usize = 256;

/// How long a new connection may take to say `hello`.
pub const HELLO_BOUND: Duration = Duration::from_secs(5);

/// Bytes that are gathered into one write.
const WRITE_BATCH: usize = 64 * 1024;

/// What comes from a worker.
#[derive(Debug)]
pub enum LinkIn {
    /// A canonical event.
    Event(EventLine),
    /// Any other frame.
    Frame(Box<FromWorker>),
    /// The worker broke the protocol and cannot be trusted any more.
    Broken(String),
    /// The connection has ended.
    Closed,
}

/// A canonical event as it came.
#[derive(Debug)]
pub struct EventLine {
    /// Its number within the worker's generation.
    pub seq: Seq,
    /// The turn that it belongs to.
    pub turn_id: Option<TurnId>,
    /// The event, unparsed.
    pub event: Box<RawValue>,
    /// Whether it belongs in the transcript.
    pub persisted: bool,
}

/// A worker that has said `hello` and proved itself.
#[derive(Debug)]
pub struct Connection {
    /// What it said.
    pub hello: Box<Hello>,
    reader: FramedRead<OwnedReadHalf, LineCodec>,
    writer: OwnedWriteHalf,
}

/// A connection in use.
#[derive(Debug)]
pub struct Link {
    /// What the worker says.
    pub incoming: mpsc::Receiver<LinkIn>,
    outgoing: mpsc::Sender<Bytes>,
}

impl Connection {
    /// Starts the two tasks of the connection.
    #[must_use]
    pub fn open(self) -> (Box<Hello>, Link) {
        let (in_tx, incoming) = mpsc::channel(IN_QUEUE);
        let (outgoing, out_rx) = mpsc::channel(OUT_QUEUE);
        tokio::spawn(read(self.reader, in_tx));
        tokio::spawn(write(self.writer, out_rx));
        (self.hello, Link { incoming, outgoing })
    }
}

impl Link {
    /// Queues a frame. False when the worker does not read or is gone.
    #[must_use]
    pub fn send(&self, frame: &ToWorker) -> bool {
        self.outgoing.try_send(Bytes::from(frame.to_line())).is_ok()
    }
}

async fn read(mut reader: FramedRead<OwnedReadHalf, LineCodec>, tx: mpsc::Sender<LinkIn>) {
    let mut malformed = 0_u32;
    while let Some(Ok(line)) = reader.next().await {
        let item = match read_line(&line) {
            Ok(Some(item)) => {
                malformed = 0;
                item
            }
            Ok(None) => continue,
            Err(fault) => {
                tracing::warn!(%fault, "a frame of a worker was not understood");
                malformed += 1;
                if matches!(fault, FrameFault::Version { .. }) {
                    LinkIn::Broken(fault.to_string())
                } else if malformed >= MAX_MALFORMED_IN_A_ROW {
                    LinkIn::Broken(format!("{malformed} malformed frames in a row"))
                } else {
                    continue;
                }
            }
        };
        if tx.send(item).await.is_err() {
            return;
        }
    }
    // The receiver may be gone, which is fine: then nobody needs to know.
    drop(tx.send(LinkIn::Closed).await);
}

fn read_line(line: &Line) -> Result<Option<LinkIn>, FrameFault> {
    let bytes = match line {
        Line::Whole(bytes) => bytes,
        // Half a line at the end of a stream is not a frame; its event is
        // replayed when the worker connects again.
        Line::Half(_) => return Ok(None),
        Line::TooLong(length) => {
            return Err(FrameFault::Malformed(format!(
                "frame too long: {length} bytes"
            )));
        }
    };
    let text = codec::text(bytes);
    let header = Header::read(&text)?;
    if header.kind == "event" {
        let (Some(seq), Some(event)) = (header.seq, header.event) else {
            return Err(FrameFault::Malformed(
                "`event` needs `seq` and `event`".into(),
            ));
        };
        let persisted = !is_activity(event);
        let event = event.to_owned();
        return Ok(Some(LinkIn::Event(EventLine {
            seq,
            turn_id: header.turn_id,
            event,
            persisted,
        })));
    }
    let kind = header.kind.into_owned();
    match FromWorker::parse_body(&kind, &text)? {
        Known::Frame(frame) => Ok(Some(LinkIn::Frame(Box::new(frame)))),
        Known::UnknownType(kind) => {
            tracing::info!(kind, "a worker sent a frame of an unknown type");
            Ok(None)
        }
    }
}

/// Whether an event is a mere sign of life. Workers write the type first, so
/// one look is enough for theirs; any other order is read properly.
fn is_activity(event: &RawValue) -> bool {
    const ACTIVITY: &str = "activity";
    match event.get().strip_prefix("{\"type\":\"") {
        Some(rest) => rest
            .strip_prefix(ACTIVITY)
            .is_some_and(|rest| rest.starts_with('"')),
        None => ade_protocol::event::event_type(event).is_ok_and(|kind| kind == ACTIVITY),
    }
}

/// Writes queued lines, many at once when many wait.
pub(crate) async fn write<W>(mut writer: W, mut rx: mpsc::Receiver<Bytes>)
where
    W: tokio::io::AsyncWrite + Unpin,
{
    let mut buffer = BytesMut::with_capacity(WRITE_BATCH);
    while let Some(line) = rx.recv().await {
        buffer.clear();
        put(&mut buffer, &line);
        while buffer.len() < WRITE_BATCH {
            let Ok(line) = rx.try_recv() else { break };
            put(&mut buffer, &line);
        }
        if writer.write_all(&buffer).await.is_err() {
            return;
        }
        if buffer.capacity() > 16 * WRITE_BATCH {
            buffer = BytesMut::with_capacity(WRITE_BATCH);
        }
    }
}

fn put(buffer: &mut BytesMut, line: &Bytes) {
    buffer.reserve(line.len() + 1);
    buffer.extend_from_slice(line);
    buffer.extend_from_slice(b"\n");
}

/// Workers whose connection is expected.
#[derive(Debug, Default)]
pub struct Registry {
    expected: Mutex<HashMap<WorkerId, Expected>>,
}

#[derive(Debug)]
struct Expected {
    token_hash: String,
    /// Known once it was spawned.
    pid: Option<i32>,
    tx: mpsc::Sender<Connection>,
}

/// Removes the expectation when dropped.
#[derive(Debug)]
pub struct Expectation<'a> {
    registry: &'a Registry,
    id: WorkerId,
}

impl Drop for Expectation<'_> {
    fn drop(&mut self) {
        self.registry.forget(&self.id);
    }
}

impl Registry {
    /// Expects a worker; each connection that proves itself arrives on the
    /// channel, also when it comes again.
    pub fn expect(&self, id: &WorkerId, token: &str) -> mpsc::Receiver<Connection> {
        self.expect_hash(id, journal::token_hash(token))
    }

    /// The same for a worker of which only the token's hash is known.
    pub fn expect_hash(&self, id: &WorkerId, token_hash: String) -> mpsc::Receiver<Connection> {
        let (tx, rx) = mpsc::channel(1);
        let pid = None;
        let expected = Expected {
            token_hash,
            pid,
            tx,
        };
        self.map().insert(id.clone(), expected);
        rx
    }

    /// Notes the pid of a worker. Before `attach` it starts nothing, so nothing
    /// below it can be here earlier than this.
    pub fn set_pid(&self, id: &WorkerId, pid: i32) {
        if let Some(expected) = self.map().get_mut(id) {
            expected.pid = Some(pid);
        }
    }

    /// Pids of all workers from their start until their tree is dead.
    #[must_use]
    pub fn pids(&self) -> HashSet<i32> {
        self.map()
            .values()
            .filter_map(|expected| expected.pid)
            .collect()
    }

    /// Expects nothing of this worker any more.
    pub fn forget(&self, id: &WorkerId) {
        self.map().remove(id);
    }

    /// Ties an expectation to a scope.
    #[must_use]
    pub fn guard(&self, id: &WorkerId) -> Expectation<'_> {
        Expectation {
            registry: self,
            id: id.clone(),
        }
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<WorkerId, Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, hello: &Hello) -> Option<mpsc::Sender<Connection>> {
        let map = self.map();
        let expected = map.get(&hello.worker_id)?;
        // Hashes of equal length are compared: their prefix tells nothing
        // about the token.
        (expected.token_hash == journal::token_hash(&hello.token)).then(|| expected.tx.clone())
    }

    /// Reads `hello` from a new connection and hands it to whoever waits.
    /// Strangers are dropped without an answer.
    pub async fn welcome(&self, stream: UnixStream) {
        let (reader, writer) = stream.into_split();
        let mut reader = FramedRead::with_capacity(reader, LineCodec::default(), WRITE_BATCH);
        let first = tokio::time::timeout(HELLO_BOUND, reader.next()).await;
        let Ok(Some(Ok(Line::Whole(line)))) = first else {
            tracing::warn!("a connection on the workers' socket said nothing");
            return;
        };
        let hello = match FromWorker::parse(&codec::text(&line)) {
            Ok(Known::Frame(FromWorker::Hello(hello))) => hello,
            Ok(_) => {
                tracing::warn!("a connection on the workers' socket did not begin with hello");
                return;
            }
            Err(fault) => {
                tracing::warn!(%fault, "a connection on the workers' socket spoke no frame");
                return;
            }
        };
        let Some(tx) = self.admit(&hello) else {
            tracing::warn!(worker = %hello.worker_id, "an unknown worker or a wrong token");
            return;
        };
        let connection = Connection {
            hello,
            reader,
            writer,
        };
        if tx.send_timeout(connection, HELLO_BOUND).await.is_err() {
            tracing::warn!("nobody waits for this worker any more");
        }
    }
}
