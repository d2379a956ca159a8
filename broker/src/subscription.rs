//! One subscription: from the transcript until it has caught up, then live.
//!
//! A subscriber that reads too slowly loses its live feed, gets one `gap`, and
//! catches up from the transcript again: order and completeness of the
//! persisted events are kept, only signs of life are lost.
//!
//! A transcript that cannot be read (too many open files, say) is tried again,
//! and when that goes on the subscription ends with an error: a subscriber never
//! waits for a feed that does not come.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ade_protocol::action::{Gap, SubscribeParams};
use ade_protocol::rpc::{self, RpcError};
use ade_protocol::{Seq, SessionId};
use bytes::{Bytes, BytesMut};
use memchr::memchr_iter;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::hub::{Item, Next, Outgoing, Subscriber};
use crate::manager::Manager;
use crate::transcript::{self, Page, TranscriptError};

/// Bytes of the transcript that are read in one go while catching up.
const CHUNK: usize = 64 * 1024;

/// Lines of so many bytes are not gathered with others into one piece.
const LONG: usize = 8 * 1024;

/// Pause before a transcript that could not be read is tried again; each pause
/// is twice the one before, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After so long without one page read the subscription is given up.
const UNREADABLE: Duration = Duration::from_secs(10);

/// A subscription before its first line was sent.
pub struct Feed {
    manager: Arc<Manager>,
    subscriber: Arc<Subscriber>,
    session: Option<SessionId>,
    /// Everything up to here was sent or is not wanted.
    sent: Seq,
    catching_up: bool,
    id: u64,
    end: CancellationToken,
}

/// Why a feed ends before its subscriber wants it to.
enum Ended {
    /// The writer of the connection is gone.
    WriterGone,
    /// The transcript cannot be read.
    Unreadable(RpcError),
}

impl Feed {
    /// Subscribes; nothing published from now on is missed.
    #[must_use]
    pub fn open(
        manager: &Arc<Manager>,
        params: &SubscribeParams,
        id: u64,
        end: CancellationToken,
    ) -> Self {
        let session = params.session_id.clone();
        let catching_up = params.after_sequence.is_some();
        let subscriber = manager.shared().hub.subscribe(session.clone(), catching_up);
        let sent = params.after_sequence.unwrap_or_default();
        Self {
            manager: Arc::clone(manager),
            subscriber,
            session,
            sent,
            catching_up,
            id,
            end,
        }
    }

    /// Sends lines until the subscription or the connection ends.
    ///
    /// # Errors
    /// What the subscriber is to be told because its feed cannot go on.
    pub async fn pump(mut self, out: mpsc::Sender<Bytes>) -> Result<(), RpcError> {
        let end = self.end.clone();
        let ended = tokio::select! {
            () = end.cancelled() => Ok(()),
            () = out.closed() => Ok(()),
            ended = self.feed(&out) => ended,
        };
        self.manager.shared().hub.unsubscribe(&self.subscriber);
        match ended {
            Err(Ended::Unreadable(error)) => Err(error),
            Ok(()) | Err(Ended::WriterGone) => Ok(()),
        }
    }

    async fn feed(&mut self, out: &mpsc::Sender<Bytes>) -> Result<(), Ended> {
        loop {
            if self.catching_up {
                self.catch_up(out).await?;
            }
            match self.subscriber.next().await {
                Next::Closed => return Ok(()),
                Next::Items(items) => self.live(items, out).await?,
                Next::Missed(session, from, to) => {
                    let gap = Gap {
                        subscription_id: self.id,
                        session_id: session,
                        from,
                        to,
                    };
                    let params = serde_json::to_string(&gap).unwrap_or_default();
                    send(out, Bytes::from(rpc::notification_line(rpc::GAP, &params))).await?;
                    self.catching_up = self.session.is_some();
                }
            }
        }
    }

    /// Sends live items, many lines in one piece.
    async fn live(&mut self, items: Vec<Item>, out: &mpsc::Sender<Bytes>) -> Result<(), Ended> {
        let mut piece = Piece::default();
        for item in items {
            let lines = match item {
                Item::Card(line) | Item::Passing(line) => Some(line),
                Item::Events { first, last, lines } if self.session.is_some() => {
                    // While catching up some of these were read already.
                    let unsent = behind(self.sent, first, last, lines);
                    self.sent = self.sent.max(last);
                    unsent
                }
                Item::Events { lines, .. } => Some(lines),
            };
            if let Some(lines) = lines {
                piece.add(lines, out).await?;
            }
        }
        piece.send(out).await
    }

    /// Sends from the transcript until there is nothing more in it.
    async fn catch_up(&mut self, out: &mpsc::Sender<Bytes>) -> Result<(), Ended> {
        let Some(session) = self.session.clone() else {
            return Ok(());
        };
        let path: PathBuf = self.manager.shared().home.transcript(&session);
        let (mut next, mut trouble) = (None, Trouble::default());
        loop {
            let until = self.manager.shared().hub.head(&session);
            let last = until.unwrap_or(Seq(u64::MAX));
            let page = match read(path.clone(), next, self.sent, last).await {
                Ok(page) => page,
                Err(error) => {
                    trouble.pause(&session, error).await?;
                    continue;
                }
            };
            trouble = Trouble::default();
            next = Some(page.next);
            let mut piece = Outgoing::default();
            let bytes = page.events.iter().map(|(_, line)| line.len()).sum();
            piece.expect(page.events.len(), bytes);
            for (sequence, line) in page.events {
                self.sent = sequence;
                piece.event(sequence, &line);
            }
            for item in piece.take() {
                if let Item::Events { lines, .. } = item {
                    send(out, lines).await?;
                }
            }
            // What the file lacks of the committed events is damaged, and does
            // not come by being waited for.
            let read = until.map_or(self.sent, |until| until.max(self.sent));
            let hub = &self.manager.shared().hub;
            if page.reached_end && hub.resume(&self.subscriber, &session, read) {
                break;
            }
        }
        self.catching_up = false;
        Ok(())
    }
}

/// One page, read where reading may block.
async fn read(
    path: PathBuf,
    next: Option<u64>,
    after: Seq,
    until: Seq,
) -> Result<Page, TranscriptError> {
    let file = path.clone();
    let read = move || transcript::read_on(&file, next, after, until, CHUNK);
    let joined = tokio::task::spawn_blocking(read).await;
    joined.unwrap_or_else(|error| {
        let source = std::io::Error::other(error);
        Err(TranscriptError::Read { path, source })
    })
}

/// How long a transcript has not been readable.
#[derive(Debug, Default)]
struct Trouble {
    since: Option<Instant>,
    tries: u32,
}

impl Trouble {
    /// One more try failed: the pause before the next one. `None`: there is
    /// none, it went on for too long.
    fn again(&mut self, now: Instant) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.tries.min(8));
        self.tries += 1;
        (now - since < UNREADABLE).then(|| pause.min(LONGEST_PAUSE))
    }

    /// Waits before the next try, or says why there is none. The log hears of
    /// the first and of the last one only.
    async fn pause(&mut self, session: &SessionId, error: TranscriptError) -> Result<(), Ended> {
        let first = self.since.is_none();
        let pause = self.again(Instant::now());
        if first || pause.is_none() {
            let error: &dyn std::error::Error = &error;
            tracing::error!(%session, error, "a transcript could not be read");
        }
        let Some(pause) = pause else {
            return Err(Ended::Unreadable(unreadable(&error)));
        };
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// What a subscriber is told whose transcript cannot be read.
fn unreadable(error: &TranscriptError) -> RpcError {
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    let told = RpcError::failed("transcript", error.exit_code(), message);
    error.hints().into_iter().fold(told, RpcError::hint)
}

/// The lines of the events `first` to `last` that come after `sent`.
fn behind(sent: Seq, first: Seq, last: Seq, lines: Bytes) -> Option<Bytes> {
    if sent < first {
        return Some(lines);
    }
    if sent >= last {
        return None;
    }
    // One line an event, and no number is left out.
    let skip = usize::try_from(sent.0 - first.0).ok()?;
    let end = memchr_iter(b'\n', &lines).nth(skip)?;
    Some(lines.slice(end + 1..))
}

/// Lines that are written in one piece; the writer ends the last one.
#[derive(Default)]
struct Piece(BytesMut);

impl Piece {
    /// Adds lines. What is long already goes by itself, without a copy.
    async fn add(&mut self, lines: Bytes, out: &mpsc::Sender<Bytes>) -> Result<(), Ended> {
        if lines.len() >= LONG {
            std::mem::take(self).send(out).await?;
            return send(out, lines).await;
        }
        if !self.0.is_empty() {
            self.0.extend_from_slice(b"\n");
        }
        self.0.extend_from_slice(&lines);
        Ok(())
    }

    async fn send(self, out: &mpsc::Sender<Bytes>) -> Result<(), Ended> {
        if self.0.is_empty() {
            return Ok(());
        }
        send(out, self.0.freeze()).await
    }
}

async fn send(out: &mpsc::Sender<Bytes>, line: Bytes) -> Result<(), Ended> {
    out.send(line).await.map_err(|_| Ended::WriterGone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_tried_again_ever_more_rarely_and_not_for_ever() {
        let mut trouble = Trouble::default();
        let (begun, mut waited) = (Instant::now(), Duration::ZERO);
        let mut pauses = Vec::new();
        while let Some(pause) = trouble.again(begun + waited) {
            pauses.push(pause);
            waited += pause;
            assert!(pauses.len() < 100, "it has no end");
        }
        assert_eq!(pauses[..3], [100, 200, 400].map(Duration::from_millis));
        assert_eq!(pauses.iter().max(), Some(&LONGEST_PAUSE));
        assert!(waited >= UNREADABLE && waited < UNREADABLE + LONGEST_PAUSE);
    }

    #[test]
    fn of_a_run_of_events_only_the_unsent_ones_are_left() {
        let lines = Bytes::from_static(b"three\nfour\nfive");
        let left = |sent| behind(Seq(sent), Seq(3), Seq(5), lines.clone());
        assert_eq!(left(2), Some(lines.clone()));
        assert_eq!(left(3).as_deref(), Some(&b"four\nfive"[..]));
        assert_eq!(left(4).as_deref(), Some(&b"five"[..]));
        assert_eq!(left(5), None);
        assert_eq!(left(9), None);
    }
}
