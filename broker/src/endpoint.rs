//! The control endpoint: JSON-RPC 2.0 over the local socket, one object a line.
//!
//! Each connection has one reader and one writer. Requests of a connection run
//! concurrently, so many at once and no more; ids come back exactly as sent.
//! Bad input gets an error and the connection stays. A client that does not
//! read holds up nobody but itself.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_protocol::action::{
    ACTIONS, ACTIONS_CALL, ACTIONS_LIST, ActionInfo, ActionSpec, CallParams, PING, SUBSCRIBE,
    SubscribeParams, Subscribed, UNSUBSCRIBE, UnsubscribeParams,
};
use ade_protocol::codec::{self, Line, LineCodec};
use ade_protocol::rpc::{
    self, Call, InitializeParams, InitializeResult, RpcError, error_line, result_line,
};
use ade_protocol::strict;
use ade_protocol::{PROTOCOL_VERSION, exit};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;

use crate::actions::{self, About, Caller};
use crate::link;
use crate::manager::Manager;
use crate::roles::{self, Standing};
use crate::socket::Peer;
use crate::subscription;

/// Requests of one connection that run at once. One more waits unread.
const CONCURRENT: usize = 64;

/// Pieces that may wait for a connection's writer. One is about 100 KiB at most
/// (what a worker says in one read, with its envelopes), but for a single longer
/// line. Whoever has one more waits: subscriptions then fill their own bounded
/// queue. A client that does not read costs these, the one in the writer's hands
/// and that queue: 4.5 MiB as a rule.
const WRITE_QUEUE: usize = 4;

/// Subscriptions of one connection. One more is refused.
const SUBSCRIPTIONS: usize = 256;

/// What a client that stays is offered.
const CAPABILITIES: &[&str] = &["events", "cards"];

/// What the handlers of one connection share.
struct Client {
    manager: Arc<Manager>,
    about: Arc<About>,
    standing: Standing,
    name: Mutex<Option<String>>,
    open_ids: Mutex<HashSet<String>>,
    subscriptions: Mutex<HashMap<u64, CancellationToken>>,
    next_subscription: AtomicU64,
    /// A feed could not go on: the connection ends, so that the client joins again.
    broken: CancellationToken,
    out: mpsc::Sender<Bytes>,
}

/// Serves one connection to its end.
pub async fn serve(stream: UnixStream, peer: Peer, manager: Arc<Manager>, about: Arc<About>) {
    let standing = roles::of(&manager, peer);
    let (reader, writer) = stream.into_split();
    let (out, out_rx) = mpsc::channel(WRITE_QUEUE);
    let writing = tokio::spawn(link::write(writer, out_rx));
    about.clients.fetch_add(1, Ordering::Relaxed);
    let client = Arc::new(Client {
        manager,
        about: Arc::clone(&about),
        standing,
        name: Mutex::new(None),
        open_ids: Mutex::default(),
        subscriptions: Mutex::default(),
        next_subscription: AtomicU64::new(1),
        broken: CancellationToken::new(),
        out,
    });
    let ended = CancellationToken::new();
    let mut reader = FramedRead::new(reader, LineCodec::default());
    let places = Arc::new(Semaphore::new(CONCURRENT));
    let read = async |reader: &mut FramedRead<_, LineCodec>| {
        tokio::select! {
            line = reader.next() => line,
            () = client.broken.cancelled() => None,
        }
    };
    while let Some(Ok(line)) = read(&mut reader).await {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            break;
        };
        let line = match line {
            Line::Whole(line) => line,
            Line::Half(_) => break,
            Line::TooLong(length) => {
                let message = format!("the request has {length} bytes; at most 16 MiB are read");
                let error = RpcError::new(rpc::INVALID_REQUEST, message);
                client.say(error_line(None, &error)).await;
                continue;
            }
        };
        let (client, ended) = (Arc::clone(&client), ended.clone());
        let request = async move {
            client.line(&line).await;
            drop(place);
        };
        tokio::spawn(async move {
            tokio::select! {
                () = request => {}
                () = ended.cancelled() => {}
            }
        });
    }
    about.clients.fetch_sub(1, Ordering::Relaxed);
    // A client may shut its sending side and still read its answers: wait for
    // the running requests, as long as the writer can write.
    let idle = places.acquire_many_owned(u32::try_from(CONCURRENT).unwrap_or(u32::MAX));
    tokio::select! {
        _ = idle => {}
        () = client.out.closed() => {}
    }
    ended.cancel();
    client.end_subscriptions();
    drop(client);
    const LAST_WORDS: Duration = Duration::from_secs(2);
    let aborter = writing.abort_handle();
    if tokio::time::timeout(LAST_WORDS, writing).await.is_err() {
        aborter.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    async fn say(&self, line: String) {
        // A closed writer means that the client is gone.
        drop(self.out.send(Bytes::from(line)).await);
    }

    async fn line(self: &Arc<Self>, line: &[u8]) {
        let text = codec::text(line);
        let call = match Call::parse(&text) {
            Ok(call) => call,
            Err(bad) => return self.say(error_line(bad.id.as_deref(), &bad.error)).await,
        };
        let id_text = call.id.as_ref().map(|id| id.get().to_owned());
        // `null` is an id that tells no two requests apart, so it is never in use.
        let id_text = id_text.filter(|id| id != "null");
        if let Some(id) = &id_text
            && !lock(&self.open_ids).insert(id.clone())
        {
            let error = RpcError::new(rpc::INVALID_REQUEST, "this id is in use by an open request");
            return self.say(error_line(call.id.as_deref(), &error)).await;
        }
        let result = self.method(&call).await;
        if let Some(id) = &id_text {
            lock(&self.open_ids).remove(id);
        }
        // A notification gets no answer, not even an error.
        let Some(id) = call.id.as_deref() else { return };
        match result {
            Ok(Answered { result, then }) => {
                self.say(result_line(id, &result)).await;
                if let Some(then) = then {
                    then.run(self);
                }
            }
            Err(error) => self.say(error_line(Some(id), &error)).await,
        }
    }

    async fn method(self: &Arc<Self>, call: &Call) -> Result<Answered, RpcError> {
        let known = [ACTIONS_LIST, ACTIONS_CALL, SUBSCRIBE, UNSUBSCRIBE];
        match call.method.as_str() {
            PING => return done(&serde_json::json!({})),
            rpc::INITIALIZE => return done(&self.initialize(&params(call)?)?),
            method if !known.contains(&method) => {
                let message = format!("there is no method {method:?}");
                return Err(RpcError::new(rpc::METHOD_NOT_FOUND, message));
            }
            _ => {}
        }
        let Some(name) = lock(&self.name).clone() else {
            let message = format!("{} must come first", rpc::INITIALIZE);
            return Err(RpcError::failed("denied", exit::DENIED, message));
        };
        match call.method.as_str() {
            ACTIONS_LIST => {
                let actions: Vec<ActionInfo> = ACTIONS.iter().map(ActionSpec::info).collect();
                done(&serde_json::json!({ "actions": actions }))
            }
            ACTIONS_CALL => {
                let CallParams {
                    name: action,
                    arguments,
                } = params(call)?;
                let caller = Caller {
                    name,
                    standing: self.standing.clone(),
                };
                let result =
                    actions::call(&self.manager, &self.about, &caller, &action, arguments).await?;
                Ok(Answered { result, then: None })
            }
            SUBSCRIBE => self.subscribe(&params(call)?),
            _ => {
                let UnsubscribeParams { subscription_id } = params(call)?;
                if let Some(end) = lock(&self.subscriptions).remove(&subscription_id) {
                    end.cancel();
                }
                done(&serde_json::json!({}))
            }
        }
    }

    fn initialize(&self, params: &InitializeParams) -> Result<InitializeResult, RpcError> {
        let (name, told) = introduce(&self.about, &self.standing, params, CAPABILITIES)?;
        *lock(&self.name) = Some(name);
        Ok(told)
    }

    fn subscribe(self: &Arc<Self>, params: &SubscribeParams) -> Result<Answered, RpcError> {
        if let Some(session) = &params.session_id {
            self.manager.session(session)?;
        } else if params.after_sequence.is_some() {
            let message = "`afterSequence` needs `sessionId`";
            return Err(RpcError::failed("invalid", exit::USAGE, message));
        }
        if lock(&self.subscriptions).len() >= SUBSCRIPTIONS {
            let message = format!("a connection has at most {SUBSCRIPTIONS} subscriptions");
            return Err(RpcError::failed("too_many", exit::FAILED, message));
        }
        let subscription_id = self.next_subscription.fetch_add(1, Ordering::Relaxed);
        let end = CancellationToken::new();
        lock(&self.subscriptions).insert(subscription_id, end.clone());
        // The feed starts now, its lines go out only behind this answer.
        let feed = subscription::Feed::open(&self.manager, params, subscription_id, end);
        let open_cards = self.manager.cards(params.session_id.as_ref());
        let mut answered = done(&Subscribed {
            subscription_id,
            open_cards,
        })?;
        answered.then = Some(feed);
        Ok(answered)
    }

    fn end_subscriptions(&self) {
        for (_, end) in lock(&self.subscriptions).drain() {
            end.cancel();
        }
    }
}

/// A result, and a feed that starts behind it.
struct Answered {
    result: Box<RawValue>,
    then: Option<subscription::Feed>,
}

impl subscription::Feed {
    fn run(self, client: &Arc<Client>) {
        let client = Arc::clone(client);
        tokio::spawn(async move {
            if let Err(error) = self.pump(client.out.clone()).await {
                // It answers no request: it is about the connection.
                client.say(error_line(None, &error)).await;
                client.broken.cancel();
            }
        });
    }
}

/// What a client is called, and what it is told of the broker.
///
/// # Errors
/// It speaks another version.
pub(crate) fn introduce(
    about: &About,
    standing: &Standing,
    params: &InitializeParams,
    capabilities: &[&str],
) -> Result<(String, InitializeResult), RpcError> {
    if params.protocol_version != PROTOCOL_VERSION {
        let message = format!(
            "this client speaks version {}, the broker (pid {}, ade {}) speaks {PROTOCOL_VERSION}",
            params.protocol_version, about.runtime.pid, about.runtime.version
        );
        return Err(RpcError::failed("version", exit::FAILED, message)
            .hint("`ade serve --replace` starts a broker of this client's version"));
    }
    // Who answers is shown to other people; it is only a name.
    let name: String = params
        .client_name
        .chars()
        .filter(|c| !c.is_control())
        .take(64)
        .collect();
    let name = if name.is_empty() {
        "a client".into()
    } else {
        name
    };
    let mut runtime_info = about.runtime.clone();
    runtime_info.default_role = format!("{:?}", standing.role).to_lowercase();
    let told = InitializeResult {
        protocol_version: PROTOCOL_VERSION,
        runtime_info,
        capabilities: capabilities.iter().map(ToString::to_string).collect(),
    };
    Ok((name, told))
}

fn done<T: Serialize>(result: &T) -> Result<Answered, RpcError> {
    let result = actions::answer(result)?;
    Ok(Answered { result, then: None })
}

/// The parameters of a request.
///
/// # Errors
/// They are others.
pub(crate) fn params<T: DeserializeOwned>(call: &Call) -> Result<T, RpcError> {
    let text = call.params.as_deref().map_or("{}", RawValue::get);
    strict::from_str(text).map_err(|error| {
        let message = format!("the parameters of {} do not fit: {error}", call.method);
        RpcError::new(rpc::INVALID_PARAMS, message)
    })
}
