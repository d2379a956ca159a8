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

use ade_protocol::action::{ACTIONS, ACTIONS_CALL, SUBSCRIBE, SubscribeParams, Subscribed};
use ade_protocol::codec::{Line, LineCodec};
use ade_protocol::limits::MAX_LINE;
use ade_protocol::rpc::{self, Incoming, InitializeParams, InitializeResult};
use ade_protocol::strict;
use ade_protocol::{PROTOCOL_VERSION, exit};
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use tokio_util::codec::FramedRead;

use crate::error::CommandError;

mod connect;
mod events;
#[cfg(test)]
mod tests;

pub(crate) use connect::ConnectError;
pub(crate) use events::{Events, Notification};

use connect::{STOPPED, connect, refused, stays_stopped};

/// For the handshake, and for answers that need no work.
pub(crate) const QUICK: Duration = Duration::from_secs(10);
/// For answers that wait for a worker.
pub(crate) const WORKER: Duration = Duration::from_secs(60);
/// For answers that wait for a model.
pub(crate) const MODEL: Duration = Duration::from_secs(600);
/// Notifications that may come before the answer to `subscribe`; more is a
/// broker that does not keep to the protocol.
const EARLY: usize = 10_000;

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
        let answer = self.request(ACTIONS_CALL, &params, within).await;
        answer.map_err(|error| match error.kind() {
            "not_found" if self.lacks(action, &error) => self.other_build(action),
            _ => error,
        })
    }

    /// Whether the broker does not know an action that this build lists.
    fn lacks(&self, action: &str, error: &CommandError) -> bool {
        let ours = ACTIONS.iter().any(|spec| spec.name == action);
        ours && error.to_string() == format!("there is no action {action:?}")
    }

    fn other_build(&self, action: &str) -> CommandError {
        let broker = &self.broker.runtime_info;
        let message = format!(
            "the broker with pid {} is of another build of ade {} and does not know {action}",
            broker.pid, broker.version
        );
        CommandError::new("version_mismatch", exit::FAILED, message)
            .hint("`ade serve --replace` takes its place, with its running turns")
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
        strict::from_str(text).map_err(|error| {
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
        let subscribed: Subscribed = strict::from_str(text).map_err(|error| {
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
        // A broker that hangs up may have said why before.
        let unwritten = self.wire.write.write_all(line.as_bytes()).await.err();
        let mut early = VecDeque::new();
        loop {
            let incoming = match self.wire.next().await {
                Ok(incoming) => incoming,
                Err(error) => return Err(gone(&self.socket, unwritten.unwrap_or(error))),
            };
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

fn gone(socket: &Path, error: io::Error) -> CommandError {
    CommandError::new(
        "broker_gone",
        exit::NO_BROKER,
        format!("the broker on {} went away", socket.display()),
    )
    .because(error)
    .hint("its workers go on for a while: `ade ps` starts a broker that takes their turns over")
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
            if let Ok(incoming) = strict::from_slice(&line) {
                return Ok(incoming);
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
