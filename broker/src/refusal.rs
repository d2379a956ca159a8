//! Connections for which there is no place: each is told why.
//!
//! Two requests are heard all the same, for they make room: to stop the broker,
//! and to hand over to another. How many are told at once is the caller's bound;
//! one more hears it without being listened to ([`brush_off`]).
//!
//! What this module does not do: serve anything else.

use std::time::Duration;

use ade_protocol::action::{ACTIONS, ACTIONS_CALL, CallParams, name};
use ade_protocol::codec::{self, Line, LineCodec};
use ade_protocol::rpc::{Call, RpcError, error_line, result_line};
use ade_protocol::{exit, rpc};
use futures_util::StreamExt;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio_util::codec::FramedRead;

use crate::actions::About;
use crate::manager::Manager;
use crate::roles;
use crate::socket::Peer;

/// For each request, and for its reading of the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// A longer request is not read to its end.
const LONGEST: usize = 64 * 1024;
/// Requests that are read: a greeting, and what it is about.
const REQUESTS: usize = 2;

fn refusal(most: usize) -> RpcError {
    let message = format!("{most} clients are connected to this broker, and it serves no more");
    RpcError::failed("too_many_clients", exit::FAILED, message)
        .hint("end some of them and try again; `ade stop` works all the same")
}

/// Tells a client for which there is no place why, as the answer to its first
/// request where it makes one at once.
pub(crate) async fn refuse(
    stream: UnixStream,
    peer: Peer,
    most: usize,
    (manager, about): (&Manager, &About),
) {
    let refused = refusal(most);
    let (reader, mut writer) = stream.into_split();
    let mut reader = FramedRead::new(reader, LineCodec::with_max(LONGEST));
    for count in 0..REQUESTS {
        let call = match tokio::time::timeout(PATIENCE, reader.next()).await {
            Ok(Some(Ok(Line::Whole(line)))) => Some(Call::parse(&codec::text(&line))),
            _ => None,
        };
        let line = match call {
            Some(Ok(call)) => match way_out(&call) {
                Some(action) => answer(&call, leave(action, peer, manager, about)),
                None => error_line(call.id.as_deref(), &refused),
            },
            Some(Err(bad)) => error_line(bad.id.as_deref(), &refused),
            None if count == 0 => error_line(None, &refused),
            None => return,
        };
        // Whoever does not read it is let go all the same.
        let line = format!("{line}\n");
        let written = tokio::time::timeout(PATIENCE, writer.write_all(line.as_bytes()));
        if !matches!(written.await, Ok(Ok(()))) {
            return;
        }
    }
}

/// The same when too many are being told already: without waiting for a request.
pub(crate) fn brush_off(stream: &UnixStream, most: usize) {
    let line = format!("{}\n", error_line(None, &refusal(most)));
    // A fresh connection has room for it; whoever is gone need not know.
    let _ = stream.try_write(line.as_bytes());
}

/// The action, when it is one that makes room.
fn way_out(call: &Call) -> Option<&'static str> {
    if call.method != ACTIONS_CALL {
        return None;
    }
    let params = call.params.as_deref().map_or("{}", RawValue::get);
    let asked: CallParams = ade_protocol::strict::from_str(params).ok()?;
    [name::BROKER_STOP, name::BROKER_HANDOVER]
        .into_iter()
        .find(|action| *action == asked.name)
}

fn leave(action: &str, peer: Peer, manager: &Manager, about: &About) -> Result<(), RpcError> {
    let needed = ACTIONS.iter().find(|spec| spec.name == action);
    if needed.is_none_or(|spec| roles::of(manager, peer).role < spec.role) {
        let message = format!("{action} is not this connection's to ask for");
        return Err(RpcError::failed("denied", exit::DENIED, message));
    }
    match action {
        name::BROKER_HANDOVER => about.handover.cancel(),
        _ => about.stop.cancel(),
    }
    Ok(())
}

fn answer(call: &Call, done: Result<(), RpcError>) -> String {
    let id = call.id.as_deref();
    let nothing = serde_json::value::to_raw_value(&serde_json::json!({}));
    match (done, nothing) {
        (Ok(()), Ok(nothing)) => id.map_or_else(String::new, |id| result_line(id, &nothing)),
        (Err(error), _) => error_line(id, &error),
        (_, Err(error)) => error_line(id, &RpcError::new(rpc::INVALID_REQUEST, error.to_string())),
    }
}
