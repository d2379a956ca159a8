//! The connection to the broker: connect, lose, connect again.
//!
//! It carries bytes and knows no request. A broker that is away costs one
//! connection attempt a second at most; a broker that does not read costs no
//! more than what the [`Outbox`] keeps.
//!
//! The socket is tokio's own `UnixStream`. The workers' socket is a path in
//! the file system on every system that ade runs on, so a portable layer above
//! it would add code to a process whose memory is counted and no reach.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use ade_protocol::codec::{Line, LineCodec};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;
use tokio_util::codec::FramedRead;

use crate::outbox::Outbox;

/// First pause after a lost connection; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// Longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Capacity that an empty wire may keep after a large frame went through it.
const WIRE_KEPT: usize = 256 * 1024;

/// What the link has to tell.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// A connection stands; nothing was said on it yet.
    Opened,
    /// The connection is gone; the next attempt is under way.
    Lost,
    /// A whole line arrived.
    Line(Bytes),
    /// A line over the limit was skipped.
    TooLong(u64),
    /// The broker has everything that it was owed.
    Settled,
}

enum State {
    Down {
        next: Instant,
        pause: Duration,
    },
    /// An attempt is under way. It is a part of the link, so that a wait that is
    /// dropped does not drop a connection that may stand already.
    Connecting {
        attempt: Attempt,
        pause: Duration,
    },
    Up(Box<Connection>),
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<UnixStream>>>>;

struct Connection {
    read: FramedRead<OwnedReadHalf, LineCodec>,
    write: OwnedWriteHalf,
    wire: BytesMut,
}

/// The link; owns what is still to be sent.
pub(crate) struct Link {
    path: PathBuf,
    state: State,
    pause: Duration,
    /// What is still to be sent.
    pub(crate) out: Outbox,
}

impl Link {
    /// A link that connects as soon as it is polled.
    pub(crate) fn new(path: PathBuf) -> Self {
        let state = State::Down {
            next: Instant::now(),
            pause: BACKOFF_MIN,
        };
        Self {
            path,
            state,
            pause: BACKOFF_MIN,
            out: Outbox::default(),
        }
    }

    /// Puts a line on the connection ahead of everything that is queued. Lost
    /// with the connection, and without one.
    pub(crate) fn send_first(&mut self, line: &str) {
        if let State::Up(connection) = &mut self.state {
            connection.wire.put_slice(line.as_bytes());
            connection.wire.put_u8(b'\n');
        }
    }

    /// The broker accepted us: attempts after the next loss are quick again.
    pub(crate) fn accepted(&mut self) {
        self.pause = BACKOFF_MIN;
    }

    /// Closes the connection; the next attempt comes after the usual pause.
    pub(crate) fn hang_up(&mut self) {
        self.state = State::Down {
            next: Instant::now() + self.pause,
            pause: self.pause,
        };
        self.pause = (self.pause * 2).min(BACKOFF_MAX);
        self.out.detach();
    }

    /// Connects, writes what is queued, and returns what arrives. Dropping the
    /// future loses nothing.
    pub(crate) async fn next(&mut self) -> LinkEvent {
        loop {
            match &mut self.state {
                State::Down { next, pause } => {
                    // The timer's grain is a millisecond, and it would round up
                    // a moment that has come already.
                    if *next > Instant::now() {
                        tokio::time::sleep_until(*next).await;
                    }
                    let pause = *pause;
                    let attempt = Box::pin(UnixStream::connect(self.path.clone()));
                    self.state = State::Connecting { attempt, pause };
                }
                State::Connecting { attempt, pause } => match attempt.await {
                    Ok(stream) => {
                        let (read, write) = stream.into_split();
                        let read = FramedRead::with_capacity(read, LineCodec::default(), 4096);
                        let connection = Connection {
                            read,
                            write,
                            wire: BytesMut::new(),
                        };
                        self.state = State::Up(Box::new(connection));
                        return LinkEvent::Opened;
                    }
                    Err(_) => {
                        self.state = State::Down {
                            next: Instant::now() + *pause,
                            pause: (*pause * 2).min(BACKOFF_MAX),
                        };
                    }
                },
                State::Up(connection) => {
                    if let Some(event) = connection.turn(&mut self.out).await {
                        if matches!(event, LinkEvent::Lost) {
                            self.hang_up();
                        }
                        return event;
                    }
                }
            }
        }
    }
}

impl Connection {
    /// One read or one write.
    async fn turn(&mut self, out: &mut Outbox) -> Option<LinkEvent> {
        if self.wire.is_empty() {
            if self.wire.capacity() > WIRE_KEPT {
                self.wire = BytesMut::new();
            }
            out.fill(&mut self.wire);
        }
        tokio::select! {
            biased;
            written = self.write.write_buf(&mut self.wire), if !self.wire.is_empty() => {
                if written.is_err() {
                    return Some(LinkEvent::Lost);
                }
                if !self.wire.is_empty() {
                    return None;
                }
                out.written();
                out.is_settled().then_some(LinkEvent::Settled)
            }
            line = self.read.next() => Some(match line {
                Some(Ok(Line::Whole(line))) => LinkEvent::Line(line),
                Some(Ok(Line::TooLong(length))) => LinkEvent::TooLong(length),
                // What a dying broker left half written was never said.
                Some(Ok(Line::Half(_)) | Err(_)) | None => LinkEvent::Lost,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_wait_that_is_dropped_keeps_the_attempt_that_it_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workers.sock");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut link = Link::new(path);
        // As the main loop does while the host talks without a pause.
        while link.next().now_or_never().is_none() {
            tokio::task::yield_now().await;
        }
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock, "it stands");
        assert!(listener.accept().is_err(), "one connection");
    }
}
