//! The broker's end of a worker's connection.
//!
//! A worker connects, says `hello`, and is handed to whoever waits for it. Its
//! lines are read by whoever asks for the next ones: no task and no queue stand
//! between the socket and the session. A session that does not keep up does
//! not read, so the worker keeps its events; a worker that does not read what
//! it is told is treated as wedged.
//!
//! Events that arrive together are handed on together, and each stays the piece
//! of the socket's own buffer that it came in: it is checked and not copied.

use std::borrow::Cow;
use std::future::poll_fn;
use std::os::fd::AsFd;
use std::pin::pin;
use std::time::Duration;

use ade_protocol::codec::{self, Line, LineCodec};
use ade_protocol::event::{Author, EventKind, EventType, event_type};
use ade_protocol::frame::{FrameFault, FromWorker, Header, Hello, Known, ToWorker};
use ade_protocol::limits::MAX_MALFORMED_IN_A_ROW;
use ade_protocol::{Seq, TurnId};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio_util::codec::{Decoder, FramedRead};

mod registry;

pub use registry::{Expectation, Registry};

/// Bytes that are read from a worker in one go, and so the most that is taken
/// from it before it is on disk, but for a single longer line.
const READ: usize = 64 * 1024;

/// Room for a read behind the beginning of a line that was left by the last.
const BUFFER: usize = READ + READ / 4;

/// Lines that may wait to be written to a worker. When they are full the
/// worker is wedged and is replaced.
const OUT_QUEUE: usize = 256;

/// How long a new connection may take to say `hello`.
pub const HELLO_BOUND: Duration = Duration::from_secs(5);

/// Bytes that are read for `hello`.
const HELLO: usize = 4096;

/// Bytes that are gathered into one write.
const WRITE_BATCH: usize = 64 * 1024;

/// A piece that is written from where it is. Below it a copy is cheaper than
/// one more entry of a vectored write.
const DIRECT: usize = 8 * 1024;

/// Characters of an event's type that are repeated.
const MAX_NAME: usize = 64;

/// What comes from a worker.
#[derive(Debug)]
pub enum LinkIn {
    /// Canonical events of one turn that arrived together; at least one.
    Events(Run),
    /// Any other frame.
    Frame(Box<FromWorker>),
    /// The worker broke the protocol and cannot be trusted any more.
    Broken(String),
}

/// Neighbouring events of one turn.
#[derive(Debug)]
pub struct Run {
    /// The turn that they belong to.
    pub turn_id: Option<TurnId>,
    /// In the order in which they came.
    pub events: Vec<EventLine>,
}

/// A canonical event as it came.
#[derive(Debug)]
pub struct EventLine {
    /// Its number within the worker's generation.
    pub seq: Seq,
    /// The event: one JSON value in one line, not parsed further.
    pub event: Bytes,
    /// What becomes of it.
    pub intake: Intake,
}

/// What becomes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intake {
    /// It belongs in the transcript.
    Kept,
    /// It is a mere sign of life: shown and forgotten.
    Shown,
    /// It is not a worker's to send; the name that it bears.
    Refused(String),
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
    pub incoming: Incoming,
    outgoing: mpsc::Sender<Bytes>,
}

impl Connection {
    /// Starts the task that writes to the worker; reading is the caller's.
    #[must_use]
    pub fn open(self) -> (Box<Hello>, Link) {
        let (outgoing, out_rx) = mpsc::channel(OUT_QUEUE);
        tokio::spawn(write(self.writer, out_rx));
        // Nothing comes before `attach` is sent, but for a worker that does not
        // keep to the order.
        let buffer = self.reader.read_buffer().clone();
        let incoming = Incoming {
            buffer,
            reader: self.reader.into_inner(),
            codec: LineCodec::default(),
            held: None,
            malformed: 0,
            ended: false,
        };
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

#[cfg(test)]
impl Link {
    /// A link, and the worker's end of it.
    pub(crate) fn pair() -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (reader, writer) = ours.into_split();
        let (outgoing, out_rx) = mpsc::channel(OUT_QUEUE);
        tokio::spawn(write(writer, out_rx));
        let incoming = Incoming {
            buffer: BytesMut::new(),
            reader,
            codec: LineCodec::default(),
            held: None,
            malformed: 0,
            ended: false,
        };
        (Self { incoming, outgoing }, theirs)
    }
}

/// The reading side of a connection.
#[derive(Debug)]
pub struct Incoming {
    reader: OwnedReadHalf,
    /// What was read and is not cut into lines yet. Without a heap block while
    /// nothing comes: a session at rest costs none.
    buffer: BytesMut,
    codec: LineCodec,
    /// What ended a run of events, and comes right behind it.
    held: Option<LinkIn>,
    malformed: u32,
    ended: bool,
}

impl Incoming {
    /// The next thing that the worker says; `None`: the connection has ended.
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<LinkIn> {
        loop {
            if let Some(item) = self.cut() {
                return Some(item);
            }
            if self.ended {
                return None;
            }
            self.fill().await;
        }
    }

    /// Waits for the next thing and appends it with everything that came with
    /// it. The number of things; 0: the connection has ended. Dropping the
    /// future loses nothing.
    pub async fn recv_many(&mut self, into: &mut Vec<LinkIn>) -> usize {
        let before = into.len();
        into.extend(self.recv().await);
        while let Some(item) = self.cut() {
            into.push(item);
        }
        into.len() - before
    }

    /// Whether something lies in the socket. The kernel is asked: the runtime may
    /// not have heard of it yet.
    #[must_use]
    pub fn has_more(&self) -> bool {
        let stream: &UnixStream = self.reader.as_ref();
        let mut look = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        !self.ended && matches!(nix::poll::poll(&mut look, PollTimeout::ZERO), Ok(1..))
    }

    /// One read.
    async fn fill(&mut self) {
        let read = poll_fn(|cx| {
            if self.buffer.capacity() - self.buffer.len() < READ / 2 {
                let room = if self.buffer.is_empty() { BUFFER } else { READ };
                self.buffer.reserve(room);
            }
            let mut room = (&mut self.buffer).limit(READ);
            let polled = pin!(self.reader.read_buf(&mut room)).poll(cx);
            if polled.is_pending() && self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            polled
        });
        self.ended = !matches!(read.await, Ok(1..));
    }

    /// Cuts the next thing out of what was read. Half a line at the end of a
    /// stream is not a frame: its event is replayed when the worker connects
    /// again.
    fn cut(&mut self) -> Option<LinkIn> {
        let mut run = match self.held.take() {
            Some(LinkIn::Events(run)) => Some(run),
            Some(other) => return Some(other),
            None => None,
        };
        // Cutting lines out of memory cannot fail.
        while let Ok(Some(line)) = self.codec.decode(&mut self.buffer) {
            let text;
            let said = match &line {
                Line::Whole(bytes) | Line::Half(bytes) => {
                    text = codec::text(bytes);
                    read_line(bytes, &text)
                }
                Line::TooLong(length) => Err(FrameFault::Malformed(format!(
                    "frame too long: {length} bytes"
                ))),
            };
            let next = match said {
                Ok(Said::Event(turn, event)) => {
                    self.malformed = 0;
                    match &mut run {
                        Some(run) if run.is_of(turn.as_deref()) => {
                            run.events.push(event);
                            continue;
                        }
                        _ => LinkIn::Events(Run {
                            turn_id: turn.map(|turn| TurnId::from(turn.into_owned())),
                            events: vec![event],
                        }),
                    }
                }
                Ok(Said::Frame(frame)) => {
                    self.malformed = 0;
                    LinkIn::Frame(frame)
                }
                Ok(Said::Unknown) => continue,
                Err(fault) => match self.fault(&fault) {
                    Some(why) => LinkIn::Broken(why),
                    None => continue,
                },
            };
            match (run.take(), next) {
                (None, LinkIn::Events(begun)) => run = Some(begun),
                (None, other) => return Some(other),
                (Some(run), next) => {
                    self.held = Some(next);
                    return Some(LinkIn::Events(run));
                }
            }
        }
        run.map(LinkIn::Events)
    }

    /// Counts a line that is no frame. Why the worker cannot be trusted any
    /// more, once that is so.
    fn fault(&mut self, fault: &FrameFault) -> Option<String> {
        tracing::warn!(%fault, "a frame of a worker was not understood");
        self.malformed += 1;
        if matches!(fault, FrameFault::Version { .. }) {
            return Some(fault.to_string());
        }
        let malformed = self.malformed;
        (malformed >= MAX_MALFORMED_IN_A_ROW)
            .then(|| format!("{malformed} malformed frames in a row"))
    }
}

impl Run {
    fn is_of(&self, turn: Option<&str>) -> bool {
        self.turn_id.as_ref().map(TurnId::as_str) == turn
    }
}

/// What a line says.
enum Said<'a> {
    Event(Option<Cow<'a, str>>, EventLine),
    Frame(Box<FromWorker>),
    /// A frame of a type that is not known here.
    Unknown,
}

/// Reads a line and its `text`, which is either the line or its repaired copy.
fn read_line<'a>(line: &Bytes, text: &'a str) -> Result<Said<'a>, FrameFault> {
    let header = Header::read(text)?;
    if header.kind != "event" {
        return match FromWorker::parse_body(&header.kind, text)? {
            Known::Frame(frame) => Ok(Said::Frame(Box::new(frame))),
            Known::UnknownType(kind) => {
                tracing::info!(kind, "a worker sent a frame of an unknown type");
                Ok(Said::Unknown)
            }
        };
    }
    let (Some(seq), Some(event)) = (header.seq, header.event) else {
        return Err(FrameFault::Malformed(
            "`event` needs `seq` and `event`".into(),
        ));
    };
    let intake = intake(event)?;
    let event = event.get().as_bytes();
    let event = if std::ptr::eq(text.as_ptr(), line.as_ptr()) {
        line.slice_ref(event)
    } else {
        Bytes::copy_from_slice(event)
    };
    Ok(Said::Event(
        header.turn_id,
        EventLine { seq, event, intake },
    ))
}

/// What becomes of an event of a worker. Pure; a worker is not trusted: it reads
/// what an agent writes, and is a process that the user may have replaced.
fn intake(event: &RawValue) -> Result<Intake, FrameFault> {
    let Ok(EventType { kind, name }) = event_type(event) else {
        let why = "`event` is no object with one `type`";
        return Err(FrameFault::Malformed(why.into()));
    };
    Ok(match (kind.author(), kind) {
        (Author::Broker, _) => Intake::Refused(name.chars().take(MAX_NAME).collect()),
        (Author::Worker, EventKind::Activity) => Intake::Shown,
        (Author::Worker, _) => Intake::Kept,
    })
}

/// Writes queued lines, many at once when many wait.
pub(crate) async fn write<W>(mut writer: W, mut rx: mpsc::Receiver<Bytes>)
where
    W: tokio::io::AsyncWrite + Unpin,
{
    let mut buffer = BytesMut::new();
    while let Some(line) = rx.recv().await {
        let mut next = Some(line);
        let mut last = Bytes::new();
        while let Some(line) = next.take() {
            if line.len() >= DIRECT {
                last = line;
                break;
            }
            put(&mut buffer, &line);
            if buffer.len() < WRITE_BATCH {
                next = rx.try_recv().ok();
            }
        }
        let end: &[u8] = if last.is_empty() { b"" } else { b"\n" };
        let mut all = Buf::chain(Buf::chain(&buffer[..], last), end);
        if writer.write_all_buf(&mut all).await.is_err() {
            return;
        }
        buffer.clear();
        // Whoever was told much keeps no memory for it.
        if buffer.capacity() > 2 * WRITE_BATCH || rx.is_empty() {
            buffer = BytesMut::new();
        }
    }
}

fn put(buffer: &mut BytesMut, line: &Bytes) {
    buffer.reserve(line.len() + 1);
    buffer.extend_from_slice(line);
    buffer.extend_from_slice(b"\n");
}
