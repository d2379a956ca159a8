//! One subscription: from the transcript until it has caught up, then live.
//!
//! A subscriber that reads too slowly loses its live feed, gets one `gap`, and
//! catches up from the transcript again: order and completeness of the
//! persisted events are kept, only signs of life are lost.

use std::path::PathBuf;
use std::sync::Arc;

use ade_protocol::action::{Gap, SubscribeParams};
use ade_protocol::rpc;
use ade_protocol::{Seq, SessionId};
use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::hub::{Item, Next, Subscriber};
use crate::manager::Manager;
use crate::transcript;

/// Bytes of the transcript that are read in one go while catching up.
const CHUNK: usize = 64 * 1024;

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

/// The writer of the connection is gone.
struct WriterGone;

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
    pub async fn pump(mut self, out: mpsc::Sender<Bytes>) {
        let end = self.end.clone();
        tokio::select! {
            () = end.cancelled() => {}
            () = out.closed() => {}
            _ = self.feed(&out) => {}
        }
        self.manager.shared().hub.unsubscribe(&self.subscriber);
    }

    async fn feed(&mut self, out: &mpsc::Sender<Bytes>) -> Result<(), WriterGone> {
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
    async fn live(
        &mut self,
        items: Vec<Item>,
        out: &mpsc::Sender<Bytes>,
    ) -> Result<(), WriterGone> {
        let mut piece = Piece::default();
        for item in items {
            match item {
                Item::Card(line) => piece.add(&line),
                Item::Event {
                    sequence,
                    persisted,
                    line,
                    ..
                } => {
                    // While catching up some of these were read already.
                    if persisted && self.session.is_some() && sequence <= self.sent {
                        continue;
                    }
                    if persisted {
                        self.sent = sequence;
                    }
                    piece.add(&line);
                }
            }
        }
        piece.send(out).await
    }

    /// Sends from the transcript until there is nothing more in it.
    async fn catch_up(&mut self, out: &mpsc::Sender<Bytes>) -> Result<(), WriterGone> {
        let Some(session) = self.session.clone() else {
            return Ok(());
        };
        let path: PathBuf = self.manager.shared().home.transcript(&session);
        loop {
            let (path, after) = (path.clone(), self.sent);
            let read =
                tokio::task::spawn_blocking(move || transcript::read_after(&path, after, CHUNK));
            let page = match read.await {
                Ok(Ok(page)) => page,
                Ok(Err(error)) => {
                    tracing::error!(%session, %error, "a transcript could not be read");
                    break;
                }
                Err(_) => break,
            };
            let mut piece = Piece::default();
            for (sequence, line) in page.events {
                self.sent = sequence;
                let text = String::from_utf8_lossy(&line);
                piece.add(rpc::notification_line(rpc::EVENT, &text).as_bytes());
            }
            piece.send(out).await?;
            if page.reached_end
                && self
                    .manager
                    .shared()
                    .hub
                    .resume(&self.subscriber, &session, self.sent)
            {
                break;
            }
        }
        self.catching_up = false;
        Ok(())
    }
}

/// Lines that are written in one piece; the writer ends the last one.
#[derive(Default)]
struct Piece(BytesMut);

impl Piece {
    fn add(&mut self, line: &[u8]) {
        if !self.0.is_empty() {
            self.0.extend_from_slice(b"\n");
        }
        self.0.extend_from_slice(line);
    }

    async fn send(self, out: &mpsc::Sender<Bytes>) -> Result<(), WriterGone> {
        if self.0.is_empty() {
            return Ok(());
        }
        send(out, self.0.freeze()).await
    }
}

async fn send(out: &mpsc::Sender<Bytes>, line: Bytes) -> Result<(), WriterGone> {
    out.send(line).await.map_err(|_| WriterGone)
}
