//! A client of the control endpoint.
//!
//! A connection either asks ([`Client`]) or listens ([`Events`]), never both:
//! an answer then never has to wait behind events, and events that nobody reads
//! yet stay where the broker bounds them (`SUBSCRIBER_QUEUE`).
//!
//! Invariants:
//! - every wait for an answer has a deadline;
//! - nothing is asked before both sides have said their protocol version;
//! - an answer is taken by its id: one that came too late is skipped.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_protocol::action::{
    ACTIONS_CALL, CardNotification, SUBSCRIBE, SubscribeParams, Subscribed,
};
use ade_protocol::codec::{Line, LineCodec};
use ade_protocol::limits::MAX_LINE;
use ade_protocol::rpc::{self, Incoming, InitializeParams, InitializeResult};
use ade_protocol::{PROTOCOL_VERSION, exit};
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{sleep, timeout};
use tokio_util::codec::FramedRead;

use crate::error::CommandError;

/// For the connection itself; the listener's queue may be full for a moment.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a stopped broker may stay so, twice.
const STOPPED: Duration = Duration::from_secs(1);
/// For the handshake, and for answers that need no work.
pub(crate) const QUICK: Duration = Duration::from_secs(10);
/// For answers that wait for a worker.
pub(crate) const WORKER: Duration = Duration::from_secs(60);
/// For answers that wait for a model.
pub(crate) const MODEL: Duration = Duration::from_secs(600);
/// Notifications that may come before the answer to `subscribe`; more is a
/// broker that does not keep to the protocol.
const EARLY: usize = 10_000;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// Nothing listens: no socket, or a leftover of a broker that is gone.
    #[error("nothing listens on {}", socket.display())]
    NotListening {
        /// The control socket.
        socket: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be reached.
    #[error("could not connect to {}", socket.display())]
    Unreachable {
        /// The control socket.
        socket: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Somebody listens and does not answer.
    #[error("the broker on {} did not answer within {} s", socket.display(), within.as_secs())]
    Silent {
        /// The control socket.
        socket: PathBuf,
        /// Who listens, where a connection was made and the system tells.
        pid: Option<i32>,
        /// How long was waited.
        within: Duration,
    },
    /// It answered `initialize` with something else than its version.
    #[error("the broker on {} refused the connection", socket.display())]
    Refused {
        /// The control socket.
        socket: PathBuf,
        /// What it said.
        #[source]
        source: Box<CommandError>,
    },
    /// It speaks another protocol.
    #[error(
        "this is ade {} (protocol {PROTOCOL_VERSION}), and the broker with pid {pid} is ade {version} (protocol {protocol})",
        env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// The broker's version.
        version: String,
        /// The broker's protocol.
        protocol: u32,
        /// The broker's pid.
        pid: u32,
    },
}

impl ConnectError {
    /// Whether starting a broker can help.
    #[must_use]
    pub(crate) fn nobody_there(&self) -> bool {
        matches!(self, Self::NotListening { .. })
    }

    /// Whether a broker runs that has no place for one more client.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.kind() == "too_many_clients")
    }
}

impl From<ConnectError> for CommandError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::NotListening { socket, source } => {
                Self::new("no_broker", exit::NO_BROKER, "no broker runs")
                    .because(ConnectError::NotListening { socket, source })
                    .hint("start one with `ade serve`; most commands do it by themselves")
            }
            ConnectError::Unreachable { .. } => {
                Self::new("no_broker", exit::NO_BROKER, "the broker cannot be reached")
                    .because(error)
                    .hint("`ade doctor` looks at the socket and the folder above it")
            }
            ConnectError::Silent { pid, .. } => {
                let told = Self::new("timed_out", exit::TIMED_OUT, "the broker does not answer")
                    .because(error);
                let hints = pid.map_or_else(
                    || vec!["`ade doctor` says which process it is".to_owned()],
                    ade_broker::lock::remedies,
                );
                hints.into_iter().fold(told, Self::hint)
            }
            ConnectError::Refused { source, .. } => *source,
            ConnectError::Version { .. } => {
                Self::new("version_mismatch", exit::FAILED, error.to_string())
                    .hint("`ade serve --replace` takes its place, with its running turns")
            }
        }
    }
}

/// A connection that asks.
#[derive(Debug)]
pub(crate) struct Client {
    wire: Wire,
    socket: PathBuf,
    next_id: u64,
    /// What the broker said of itself.
    pub(crate) broker: InitializeResult,
}

#[derive(Debug)]
struct Wire {
    read: FramedRead<OwnedReadHalf, LineCodec>,
    write: OwnedWriteHalf,
    /// Who listens, by the word of the system.
    pid: Option<i32>,
}

impl Client {
    /// Connects and says which protocol this is.
    ///
    /// # Errors
    /// See [`ConnectError`]; every wait is bounded.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, ConnectError> {
        let wire = connect(socket).await?;
        let mut client = Self {
            wire,
            socket: socket.to_owned(),
            next_id: 1,
            broker: InitializeResult {
                protocol_version: 0,
                runtime_info: rpc::RuntimeInfo {
                    version: String::new(),
                    build_hash: String::new(),
                    default_role: String::new(),
                    project_root: String::new(),
                    pid: 0,
                },
                capabilities: Vec::new(),
            },
        };
        let params = InitializeParams {
            protocol_version: PROTOCOL_VERSION,
            client_name: format!("ade {}", std::process::id()),
        };
        let pid = client.wire.pid;
        let silent = |within| ConnectError::Silent {
            socket: socket.to_owned(),
            pid,
            within,
        };
        let answer = tokio::select! {
            answer = client.request::<_, InitializeResult>(rpc::INITIALIZE, &params, QUICK) => answer,
            () = stays_stopped(pid) => return Err(silent(STOPPED * 2)),
        };
        client.broker = answer.map_err(|error| match error.kind() {
            "timed_out" => silent(QUICK),
            _ => refused(socket, error),
        })?;
        let broker = &client.broker;
        if broker.protocol_version != PROTOCOL_VERSION {
            return Err(ConnectError::Version {
                version: broker.runtime_info.version.clone(),
                protocol: broker.protocol_version,
                pid: broker.runtime_info.pid,
            });
        }
        Ok(client)
    }

    /// Does an action.
    ///
    /// # Errors
    /// The broker's own error, or `timed_out`, or `broker_gone`.
    pub(crate) async fn call<A: Serialize, R: DeserializeOwned>(
        &mut self,
        action: &str,
        arguments: &A,
        within: Duration,
    ) -> Result<R, CommandError> {
        #[derive(Serialize)]
        struct Call<'a, A> {
            name: &'a str,
            arguments: &'a A,
        }
        let params = Call {
            name: action,
            arguments,
        };
        self.request(ACTIONS_CALL, &params, within).await
    }

    /// Asks with any method.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn request<P: Serialize, R: DeserializeOwned>(
        &mut self,
        method: &str,
        params: &P,
        within: Duration,
    ) -> Result<R, CommandError> {
        let (answer, _) = self.exchange(method, params, within).await?;
        let text = answer.as_ref().map_or("null", |raw| raw.get());
        serde_json::from_str(text).map_err(|error| {
            CommandError::failed(format!("the broker's answer to {method} is not understood"))
                .because(error)
                .hint("`ade status` and `ade --version` say which versions meet here")
        })
    }

    /// Makes this a connection that listens.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn subscribe(
        mut self,
        params: &SubscribeParams,
    ) -> Result<Events, CommandError> {
        let (answer, early) = self.exchange(SUBSCRIBE, params, QUICK).await?;
        let text = answer.as_ref().map_or("null", |raw| raw.get());
        let subscribed: Subscribed = serde_json::from_str(text).map_err(|error| {
            CommandError::failed("the broker's answer to subscribe is not understood")
                .because(error)
        })?;
        Ok(Events {
            wire: self.wire,
            early,
            open_cards: subscribed.open_cards,
        })
    }

    async fn exchange<P: Serialize>(
        &mut self,
        method: &str,
        params: &P,
        within: Duration,
    ) -> Result<(Option<Box<RawValue>>, VecDeque<Notification>), CommandError> {
        let id = self.next_id;
        self.next_id += 1;
        let waited = timeout(within, self.exchange_unbounded(id, method, params)).await;
        waited.unwrap_or_else(|_| {
            Err(CommandError::new(
                "timed_out",
                exit::TIMED_OUT,
                format!(
                    "the broker did not answer {method} within {} s",
                    within.as_secs()
                ),
            ))
        })
    }

    async fn exchange_unbounded<P: Serialize>(
        &mut self,
        id: u64,
        method: &str,
        params: &P,
    ) -> Result<(Option<Box<RawValue>>, VecDeque<Notification>), CommandError> {
        let params = serde_json::to_string(params)
            .map_err(|e| CommandError::failed("the request is no JSON").because(e))?;
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n"
        );
        if line.len() > MAX_LINE {
            return Err(CommandError::usage(format!(
                "the request has {} bytes, and the broker takes {MAX_LINE}",
                line.len()
            )));
        }
        self.wire
            .write
            .write_all(line.as_bytes())
            .await
            .map_err(|e| gone(&self.socket, e))?;
        let mut early = VecDeque::new();
        loop {
            let incoming = self.wire.next().await.map_err(|e| gone(&self.socket, e))?;
            if let Some(method) = &incoming.method {
                if early.len() == EARLY {
                    return Err(CommandError::failed(
                        "the broker sends events nobody asked for",
                    ));
                }
                early.extend(Notification::from_parts(method, incoming.params));
                continue;
            }
            // An error that answers no request is about the connection.
            let ours = incoming
                .id
                .as_ref()
                .map_or(incoming.error.is_some(), |to| to.get() == id.to_string());
            if ours {
                return match incoming.error {
                    Some(error) => Err(error.into()),
                    None => Ok((incoming.result, early)),
                };
            }
        }
    }
}

/// Ends when the process is stopped, and still is a while later: nobody need
/// wait for it any longer.
async fn stays_stopped(pid: Option<i32>) {
    let Some(pid) = pid else {
        return std::future::pending().await;
    };
    let mut before = false;
    loop {
        sleep(STOPPED).await;
        let now = ade_broker::lock::is_stopped(pid);
        if now && before {
            return;
        }
        before = now;
    }
}

fn refused(socket: &Path, error: CommandError) -> ConnectError {
    let socket = socket.to_owned();
    match error.kind() {
        "broker_gone" => {
            let source = io::Error::new(io::ErrorKind::ConnectionReset, error.to_string());
            ConnectError::NotListening { socket, source }
        }
        _ => ConnectError::Refused {
            socket,
            source: Box::new(error),
        },
    }
}

fn gone(socket: &Path, error: io::Error) -> CommandError {
    CommandError::new(
        "broker_gone",
        exit::NO_BROKER,
        format!("the broker on {} went away", socket.display()),
    )
    .because(error)
    .hint("its workers go on for a while: `ade ps` starts a broker that takes their turns over")
}

async fn connect(socket: &Path) -> Result<Wire, ConnectError> {
    let path = socket.to_owned();
    let stream = match timeout(CONNECT, patiently(socket)).await {
        Err(_) => {
            return Err(ConnectError::Silent {
                socket: path,
                pid: None,
                within: CONNECT,
            });
        }
        Ok(Err(source)) => {
            use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound};
            return Err(match source.kind() {
                NotFound | ConnectionRefused | ConnectionReset => ConnectError::NotListening {
                    socket: path,
                    source,
                },
                _ => ConnectError::Unreachable {
                    socket: path,
                    source,
                },
            });
        }
        Ok(Ok(stream)) => stream,
    };
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let (read, write) = stream.into_split();
    Ok(Wire {
        pid,
        read: FramedRead::new(read, LineCodec::default()),
        write,
    })
}

/// Connects. While the listener's queue is full the system refuses at once:
/// then again a little later, for as long as the caller lets it.
async fn patiently(socket: &Path) -> io::Result<UnixStream> {
    const PAUSE: Duration = Duration::from_millis(20);
    loop {
        match UnixStream::connect(socket).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(PAUSE).await,
            connected => return connected,
        }
    }
}

impl Wire {
    /// The next object; lines that are none are skipped. May be dropped while it
    /// waits.
    async fn next(&mut self) -> io::Result<Incoming> {
        loop {
            let line = match self.read.next().await {
                Some(Ok(Line::Whole(line))) => line,
                Some(Ok(Line::TooLong(_) | Line::Half(_))) => continue,
                Some(Err(error)) => return Err(error),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            if let Ok(incoming) = serde_json::from_slice(&line) {
                return Ok(incoming);
            }
        }
    }
}

/// What a connection that listens hears.
#[derive(Debug)]
pub(crate) enum Notification {
    /// An event: the text of an envelope.
    Event(Box<RawValue>),
    /// A card was opened or settled.
    Card(Box<CardNotification>),
}

impl Notification {
    fn from_parts(method: &str, params: Option<Box<RawValue>>) -> Option<Self> {
        let params = params?;
        match method {
            rpc::EVENT => Some(Self::Event(params)),
            rpc::CARD => serde_json::from_str(params.get())
                .ok()
                .map(|card| Self::Card(Box::new(card))),
            // The subscription of a session goes on from the transcript by itself.
            _ => None,
        }
    }
}

/// A connection that listens.
#[derive(Debug)]
pub(crate) struct Events {
    wire: Wire,
    early: VecDeque<Notification>,
    /// Cards that were open when it began to listen.
    pub(crate) open_cards: Vec<ade_protocol::card::Card>,
}

impl Events {
    /// The next notification. May be dropped while it waits: nothing is lost.
    ///
    /// # Errors
    /// The connection ended.
    pub(crate) async fn next(&mut self) -> io::Result<Notification> {
        if let Some(notification) = self.early.pop_front() {
            return Ok(notification);
        }
        loop {
            let incoming = self.wire.next().await?;
            let Some(method) = incoming.method else {
                continue;
            };
            if let Some(notification) = Notification::from_parts(&method, incoming.params) {
                return Ok(notification);
            }
        }
    }
}

/// Whether an error says that what was asked for cannot happen any more:
/// a card that somebody else answered or that was withdrawn.
#[must_use]
pub(crate) fn card_is_settled(error: &CommandError) -> bool {
    matches!(error.kind(), "already_answered" | "card_gone")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::UnixListener;

    /// Answers one connection: a line for each line that comes.
    async fn broker(listener: UnixListener, answers: Vec<&'static str>) {
        let (stream, _) = listener.accept().await.expect("a client");
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        for answer in answers {
            let _ = lines.next_line().await.expect("a request");
            write
                .write_all(answer.as_bytes())
                .await
                .expect("an open connection");
        }
    }

    async fn against(
        answers: Vec<&'static str>,
    ) -> (tempfile::TempDir, Result<Client, ConnectError>) {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        tokio::spawn(broker(listener, answers));
        let client = Client::connect(&socket).await;
        (folder, client)
    }

    const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":2,"runtimeInfo":{"version":"9","buildHash":"0","defaultRole":"cto","projectRoot":"/","pid":7},"capabilities":[]}}
"#;

    #[tokio::test]
    async fn answers_are_taken_by_id_and_noise_is_skipped() {
        let answer = "not json\n{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":1}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"cards\":[]}}\n";
        let (_folder, client) = against(vec![HELLO, answer]).await;
        let mut client = client.expect("a connection");
        let list: ade_protocol::action::CardList = client
            .call("cards.list", &serde_json::json!({}), QUICK)
            .await
            .expect("a list");
        assert!(list.cards.is_empty());
    }

    #[tokio::test]
    async fn events_before_the_answer_are_not_lost() {
        let answer = "{\"jsonrpc\":\"2.0\",\"method\":\"ade/event\",\"params\":{\"a\":1}}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"subscriptionId\":1,\"openCards\":[]}}\n{\"jsonrpc\":\"2.0\",\"method\":\"ade/event\",\"params\":{\"a\":2}}\n";
        let (_folder, client) = against(vec![HELLO, answer]).await;
        let client = client.expect("a connection");
        let mut events = client
            .subscribe(&SubscribeParams::default())
            .await
            .expect("events");
        for expected in ["{\"a\":1}", "{\"a\":2}"] {
            let Ok(Notification::Event(raw)) = events.next().await else {
                panic!("an event")
            };
            assert_eq!(raw.get(), expected);
        }
    }

    #[tokio::test]
    async fn h10_both_versions_and_the_remedy_are_named() {
        let old = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"runtimeInfo":{"version":"0.0.9","buildHash":"0","defaultRole":"cto","projectRoot":"/","pid":7},"capabilities":[]}}
"#;
        let (_folder, client) = against(vec![old]).await;
        let error = CommandError::from(client.expect_err("another protocol"));
        assert_eq!(error.kind(), "version_mismatch");
        let text = error.to_string();
        assert!(
            text.contains("0.0.9") && text.contains(env!("CARGO_PKG_VERSION")),
            "{text}"
        );
        assert!(error.hints()[0].contains("ade serve --replace"));
    }

    #[tokio::test]
    async fn nothing_there_is_told_apart_from_a_silent_broker() {
        let folder = tempfile::tempdir().expect("a folder");
        let none = Client::connect(&folder.path().join("none"))
            .await
            .expect_err("no socket");
        assert!(none.nobody_there());
        let leftover = folder.path().join("leftover");
        drop(UnixListener::bind(&leftover).expect("a socket"));
        let refused = Client::connect(&leftover)
            .await
            .expect_err("nobody listens");
        assert!(refused.nobody_there());
        assert_eq!(CommandError::from(refused).code(), exit::NO_BROKER);
    }
}
