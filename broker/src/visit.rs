//! Connections of clients for which there is no place.
//!
//! Whoever finds a broker full must be able to look at it and to stop things. So
//! each is heard for a moment, and what only reads, or ends something, is done
//! for it as for anybody. Whoever wants more, or says nothing, is told why there
//! is no place and let go. How many are heard at once is the caller's bound; one
//! more hears it without being listened to ([`brush_off`]).
//!
//! What this module does not do: subscribe anybody, or begin anything.

use std::sync::Arc;
use std::time::Duration;

use ade_protocol::action::{ACTIONS, ACTIONS_CALL, CallParams, Role, name};
use ade_protocol::codec::{self, Line, LineCodec};
use ade_protocol::rpc::{Call, RpcError, error_line, result_line};
use ade_protocol::{exit, rpc};
use futures_util::StreamExt;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio_util::codec::FramedRead;

use crate::actions::{self, About, Caller};
use crate::endpoint::{self, params};
use crate::manager::Manager;
use crate::roles;
use crate::socket::Peer;

/// For the first request.
const PATIENCE: Duration = Duration::from_secs(1);
/// For each further one, and for the reading of an answer: a program may look at
/// other things between two of them.
const PAUSE: Duration = Duration::from_secs(5);
/// A longer request is not read to its end.
const LONGEST: usize = 64 * 1024;
/// Requests that are answered.
const REQUESTS: usize = 16;

/// What a visitor may do besides reading: what ends something.
const STOPS: [&str; 6] = [
    name::CHAT_ABORT,
    name::CHAT_DELETE,
    name::CHAT_QUEUE_CANCEL,
    name::CHAT_STOP,
    name::BROKER_HANDOVER,
    name::BROKER_STOP,
];

/// Why a client cannot stay: there are so many already.
pub(crate) fn too_many(most: usize) -> RpcError {
    refusal(format!(
        "{most} clients are connected to this broker, and it serves no more"
    ))
}

/// The same where descriptors are what is short.
pub(crate) fn no_descriptors() -> RpcError {
    let of_all = crate::limits::fd_usage().map_or_else(
        |_| "too many".to_owned(),
        |(open, limit)| format!("{open} of {limit}"),
    );
    refusal(format!(
        "{of_all} file descriptors are in use, and this broker keeps the last ones for what must \
         go on"
    ))
    .hint("or raise the limit (`ulimit -Hn`) and start the broker again")
}

fn refusal(message: String) -> RpcError {
    RpcError::failed("too_many_clients", exit::FAILED, message).hint(
        "end some clients or chats and try again; `ade ps`, `ade chat stop` and `ade stop` work \
         all the same",
    )
}

/// Hears one for which there is no place. `refused`: why.
pub(crate) async fn receive(
    stream: UnixStream,
    peer: Peer,
    refused: RpcError,
    (manager, about): (&Arc<Manager>, &About),
) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = FramedRead::new(reader, LineCodec::with_max(LONGEST));
    let mut visitor = Visitor {
        manager,
        about,
        refused,
        caller: Caller {
            name: "a client".into(),
            standing: roles::of(manager, peer),
        },
    };
    for count in 0..REQUESTS {
        let patience = if count == 0 { PATIENCE } else { PAUSE };
        let line = match tokio::time::timeout(patience, reader.next()).await {
            Ok(Some(Ok(Line::Whole(line)))) => line,
            Err(_) | Ok(Some(_)) if count == 0 => {
                let line = error_line(None, &visitor.refused);
                say(&mut writer, line).await;
                return;
            }
            _ => return,
        };
        let call = Call::parse(&codec::text(&line));
        let (id, result) = match &call {
            Ok(call) => (call.id.as_deref(), visitor.request(call).await),
            Err(bad) => (bad.id.as_deref(), Err(visitor.refused.clone())),
        };
        let (line, ended) = match (&result, id) {
            (Ok(result), Some(id)) => (result_line(id, result), false),
            // A notification gets no answer.
            (Ok(_), None) => continue,
            (Err(error), id) => (error_line(id, error), *error == visitor.refused),
        };
        if !say(&mut writer, line).await || ended {
            return;
        }
    }
}

/// False: it does not read, or is gone.
async fn say(writer: &mut (impl tokio::io::AsyncWrite + Unpin), mut line: String) -> bool {
    line.push('\n');
    let written = tokio::time::timeout(PAUSE, writer.write_all(line.as_bytes()));
    matches!(written.await, Ok(Ok(())))
}

struct Visitor<'a> {
    manager: &'a Arc<Manager>,
    about: &'a About,
    refused: RpcError,
    caller: Caller,
}

impl Visitor<'_> {
    async fn request(&mut self, call: &Call) -> Result<Box<RawValue>, RpcError> {
        match call.method.as_str() {
            rpc::INITIALIZE => {
                let asked = params(call)?;
                let standing = &self.caller.standing;
                let (name, told) = endpoint::introduce(self.about, standing, &asked, &[])?;
                self.caller.name = name;
                actions::answer(&told)
            }
            ACTIONS_CALL => {
                let CallParams {
                    name: action,
                    arguments,
                } = params(call)?;
                if !may(&action) {
                    return Err(self.refused.clone());
                }
                actions::call(self.manager, self.about, &self.caller, &action, arguments).await
            }
            _ => Err(self.refused.clone()),
        }
    }
}

/// Whether an action is one for visitors.
fn may(action: &str) -> bool {
    let spec = ACTIONS.iter().find(|spec| spec.name == action);
    // An agent is asked for this one, and takes its time.
    let reads = |role: Role| role == Role::Observer && action != name::CHAT_CONTEXT;
    spec.is_some_and(|spec| reads(spec.role)) || STOPS.contains(&action)
}

/// Tells one that is not listened to.
pub(crate) fn brush_off(stream: &UnixStream, refused: &RpcError) {
    let line = format!("{}\n", error_line(None, refused));
    // A fresh connection has room for it; whoever is gone need not know.
    let _ = stream.try_write(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_looks_and_stops_and_begins_nothing() {
        for action in [name::SESSIONS_LIST, name::BROKER_STATUS, name::CHAT_SHOW] {
            assert!(may(action), "{action}");
        }
        for action in STOPS {
            assert!(may(action), "{action}");
        }
        for action in [name::CHAT_CREATE, name::CHAT_SEND, name::CHAT_COMPACT, "x"] {
            assert!(!may(action), "{action}");
        }
    }
}
