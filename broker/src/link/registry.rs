//! Which workers are expected, and who a new connection is.
//!
//! A worker proves itself by its token. One that does and speaks another version
//! of the protocol cannot be served; whoever waits for it is told at once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ade_protocol::codec::{self, Line, LineCodec};
use ade_protocol::frame::{FrameFault, FromWorker, Hello, Known};
use ade_protocol::strict;
use ade_protocol::{SessionId, WorkerId};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_util::codec::FramedRead;

use super::{Connection, HELLO, HELLO_BOUND};
use crate::clock;
use crate::journal;

/// What the `hello` of any version has told so far: enough to know who it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Foreign {
    #[serde(rename = "type")]
    kind: String,
    worker_id: WorkerId,
    token: String,
}

impl Foreign {
    fn read(text: &str) -> Option<Self> {
        let hello: Self = strict::from_str(text).ok()?;
        (hello.kind == "hello").then_some(hello)
    }
}

/// Workers whose connection is expected.
#[derive(Debug, Default)]
pub struct Registry {
    expected: Mutex<HashMap<WorkerId, Expected>>,
}

enum Admitted {
    Expected(mpsc::Sender<Connection>),
    WrongToken,
    /// It spoke another version before.
    Refused,
    Unknown,
}

#[derive(Debug)]
struct Expected {
    token_hash: String,
    /// Known once it was spawned.
    process: Option<(i32, SessionId)>,
    /// `None`: it cannot be served, and nobody waits for it any more.
    tx: Option<mpsc::Sender<Connection>>,
    /// It has been here before.
    met: bool,
    /// Why it cannot be served.
    fault: Option<FrameFault>,
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
        let expected = Expected {
            token_hash,
            process: None,
            tx: Some(tx),
            met: false,
            fault: None,
        };
        self.map().insert(id.clone(), expected);
        rx
    }

    /// Notes the pid of a worker and the chat that it serves. Before `attach` it
    /// starts nothing, so nothing below it can be here earlier than this.
    pub fn set_process(&self, id: &WorkerId, pid: i32, session: &SessionId) {
        if let Some(expected) = self.map().get_mut(id) {
            expected.process = Some((pid, session.clone()));
        }
    }

    /// Pids of all workers from their start until their tree is dead, each with
    /// its chat.
    #[must_use]
    pub fn processes(&self) -> HashMap<i32, SessionId> {
        self.map()
            .values()
            .filter_map(|expected| expected.process.clone())
            .collect()
    }

    /// Why a worker that came cannot be served: it speaks another version. The
    /// channel of [`Registry::expect`] is closed then.
    #[must_use]
    pub fn fault(&self, id: &WorkerId) -> Option<FrameFault> {
        self.map().get(id)?.fault.clone()
    }

    /// Notes that a worker speaks another version, where it is one of ours that
    /// was never here before: whoever waits for it need not wait any longer.
    fn refuse(&self, hello: &Foreign, fault: FrameFault) {
        if let Some(expected) = self.map().get_mut(&hello.worker_id)
            && !expected.met
            && expected.token_hash == journal::token_hash(&hello.token)
        {
            expected.fault = Some(fault);
            expected.tx = None;
        }
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

    fn admit(&self, hello: &Hello) -> Admitted {
        let mut map = self.map();
        let Some(expected) = map.get_mut(&hello.worker_id) else {
            return Admitted::Unknown;
        };
        // Hashes of equal length are compared: their prefix tells nothing
        // about the token.
        if expected.token_hash != journal::token_hash(&hello.token) {
            return Admitted::WrongToken;
        }
        expected.met = true;
        match &expected.tx {
            Some(tx) => Admitted::Expected(tx.clone()),
            None => Admitted::Refused,
        }
    }

    /// Reads `hello` from a new connection and hands it to whoever waits. Who
    /// does not speak, or shows a wrong token, is dropped without an answer; a
    /// worker that nobody knows is given back.
    pub async fn welcome(&self, stream: UnixStream) -> Option<Connection> {
        let (reader, writer) = stream.into_split();
        let mut reader = FramedRead::with_capacity(reader, LineCodec::default(), HELLO);
        let first = clock::in_time(clock::now() + HELLO_BOUND, reader.next()).await;
        let Some(Some(Ok(Line::Whole(line)))) = first else {
            tracing::warn!("a connection on the workers' socket said nothing");
            return None;
        };
        let text = codec::text(&line);
        let hello = match FromWorker::parse(&text) {
            Ok(Known::Frame(FromWorker::Hello(hello))) => hello,
            Ok(_) => {
                tracing::warn!("a connection on the workers' socket did not begin with hello");
                return None;
            }
            Err(fault) => {
                if let (FrameFault::Version { .. }, Some(hello)) = (&fault, Foreign::read(&text)) {
                    self.refuse(&hello, fault.clone());
                }
                tracing::warn!(%fault, "a connection on the workers' socket spoke no frame");
                return None;
            }
        };
        let admitted = self.admit(&hello);
        let connection = Connection {
            hello,
            reader,
            writer,
        };
        let tx = match admitted {
            Admitted::Expected(tx) => tx,
            Admitted::WrongToken => {
                tracing::warn!(worker = %connection.hello.worker_id, "a wrong token");
                return None;
            }
            Admitted::Refused => return None,
            Admitted::Unknown => return Some(connection),
        };
        if tx.send_timeout(connection, HELLO_BOUND).await.is_err() {
            tracing::warn!("nobody waits for this worker any more");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    /// Connects and says `hello` in this version.
    async fn greets(registry: &Registry, version: &str, worker: &str, token: &str) {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let hello = format!(
            "{{\"protocolVersion\":{version},\"type\":\"hello\",\"workerId\":\"{worker}\",\
             \"token\":\"{token}\",\"soMuch\":\"is new\"}}\n"
        );
        theirs.write_all(hello.as_bytes()).await.expect("hello");
        let stranger = registry.welcome(ours).await;
        assert!(stranger.is_none(), "it is served by nobody");
    }

    #[tokio::test]
    async fn f10_a_worker_of_another_version_is_not_waited_for() {
        let registry = Registry::default();
        let (ours, other) = (WorkerId::from("wrk_1"), WorkerId::from("wrk_2"));
        let mut waits = registry.expect(&ours, "secret");
        let mut waits_too = registry.expect(&other, "another");
        greets(&registry, "3", "wrk_1", "secret").await;
        let met = tokio::time::timeout(HELLO_BOUND, waits.recv()).await;
        assert!(met.expect("the wait is over at once").is_none());
        let why = registry.fault(&ours).expect("a reason").to_string();
        assert!(
            why.contains("version 3") && why.contains("speaks 2"),
            "{why}"
        );
        assert_eq!(waits_too.try_recv().unwrap_err(), TryRecvError::Empty);
        assert_eq!(registry.fault(&other), None);
    }

    #[tokio::test]
    async fn who_cannot_prove_to_be_a_worker_ends_no_wait() {
        let registry = Registry::default();
        let ours = WorkerId::from("wrk_1");
        let mut waits = registry.expect(&ours, "secret");
        greets(&registry, "3", "wrk_1", "guessed").await;
        greets(&registry, "3", "wrk_9", "secret").await;
        // No `hello` of this version either.
        greets(&registry, "2", "wrk_1", "secret").await;
        assert_eq!(waits.try_recv().unwrap_err(), TryRecvError::Empty);
        assert_eq!(registry.fault(&ours), None);
    }
}
