//! Whoever served this home before: asked to hand over, or seen off.

use std::time::Duration;

use ade_protocol::codec::{Line, LineCodec};
use ade_protocol::rpc::{self, Incoming, InitializeParams, RpcError};
use futures_util::StreamExt;
use tokio::net::UnixStream;
use tokio_util::codec::FramedRead;

use super::{ServeError, ServeOptions};
use crate::hold::{self, Hold};
use crate::home::Home;
use crate::lock::{self, BrokerLock, Holder, LockError};
use crate::{clock, socket};

/// How long a broker that is being replaced may take to end.
const REPLACE_BOUND: Duration = Duration::from_secs(40);

/// How long a stopped one may take to go on.
const STOPPED: Duration = Duration::from_secs(1);

/// How long a broker may take to notice that its lock file was removed, and to
/// hand over.
const PREDECESSOR_BOUND: Duration = Duration::from_secs(8);

/// Pause between two looks whether it has.
const PREDECESSOR_LOOK: Duration = Duration::from_millis(50);

/// The same for its hold of the home, which goes with its lock.
const HOLD_LOOK: Duration = Duration::from_millis(5);

/// How often it is asked again: the one that was asked may have died, and
/// another taken its place.
const ASK_AGAIN: Duration = Duration::from_secs(6);

/// The same when it said no.
const ASK_A_REFUSING_ONE_AGAIN: Duration = Duration::from_millis(500);

/// For each answer of one that is asked.
const ANSWER: Duration = Duration::from_secs(5);

/// Takes the lock; with `replace`, from whoever has it.
pub(super) async fn take_lock(
    home: &Home,
    options: &ServeOptions,
) -> Result<BrokerLock, ServeError> {
    if !options.replace {
        return Ok(BrokerLock::take(home, &options.version)?);
    }
    let deadline = clock::now() + REPLACE_BOUND;
    loop {
        if let Some(holder) = stopped_holder(home).await {
            return Err(LockError::Stuck(Box::new(holder)).into());
        }
        let refused = ask_to_hand_over(home).await;
        let patience = refused
            .as_ref()
            .map_or(ASK_AGAIN, |_| ASK_A_REFUSING_ONE_AGAIN);
        let (home, version) = (home.clone(), options.version.clone());
        let taken =
            tokio::task::spawn_blocking(move || BrokerLock::take_within(&home, &version, patience));
        match taken.await {
            // It was not at home, or another one has come since.
            Ok(Err(LockError::AlreadyRunning(_))) if clock::now() < deadline => {}
            Ok(Err(LockError::AlreadyRunning(Some(holder)))) => {
                return Err(match refused {
                    Some(why) => LockError::Refused { holder, why },
                    None => LockError::Stuck(holder),
                }
                .into());
            }
            Ok(taken) => return Ok(taken?),
            Err(error) => return Err(ServeError::Signals(std::io::Error::other(error))),
        }
    }
}

/// The broker that runs, when it is stopped and stays so: it hears nobody.
async fn stopped_holder(home: &Home) -> Option<Holder> {
    let stopped = || {
        let holder = lock::holder(home).ok().flatten()?;
        lock::is_stopped(holder.pid).then_some(holder)
    };
    stopped()?;
    tokio::time::sleep(STOPPED).await;
    stopped()
}

/// The lock is ours; and yet a broker may live whose lock file was removed. It
/// notices and hands over; until then nothing of its sessions is touched.
pub(super) async fn see_predecessor_off(home: &Home) -> Result<Hold, LockError> {
    let deadline = clock::now() + PREDECESSOR_BOUND;
    for path in [home.workers_socket(), home.control_socket()] {
        while let Some(pid) = socket::listener(&path).await {
            if clock::now() >= deadline {
                return Err(LockError::StillListening { pid, path });
            }
            tokio::time::sleep(PREDECESSOR_LOOK).await;
        }
    }
    // Its sockets may have been removed with the lock file.
    loop {
        if let Some(hold) = Hold::take(home.root()) {
            return Ok(hold);
        }
        if clock::now() >= deadline {
            let path = home.root().to_owned();
            let pid = hold::holder(&path).ok().flatten();
            return Err(LockError::StillHeld { pid, path });
        }
        tokio::time::sleep(HOLD_LOOK).await;
    }
}

/// Asks a running broker to hand over; whether it did is seen by its lock. Gives
/// why it does not, where it says so.
async fn ask_to_hand_over(home: &Home) -> Option<RpcError> {
    use tokio::io::AsyncWriteExt;
    let stream = UnixStream::connect(home.control_socket()).await.ok()?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = FramedRead::new(reader, LineCodec::default());
    let mut refused = None;
    for line in requests() {
        // One that does not listen may have said why.
        let written = writer.write_all(line.as_bytes()).await;
        let read = tokio::time::timeout(ANSWER, reader.next()).await;
        let Ok(Some(Ok(Line::Whole(answer)))) = read else {
            return refused;
        };
        let answer = ade_protocol::strict::from_slice::<Incoming>(&answer).ok();
        // One that has no place for a client may yet do what it is asked.
        refused = answer.and_then(|answer| answer.error);
        if written.is_err() {
            return refused;
        }
    }
    refused
}

/// What a broker is told that is to hand over.
fn requests() -> [String; 2] {
    let hello = InitializeParams {
        protocol_version: ade_protocol::PROTOCOL_VERSION,
        client_name: "ade serve --replace".into(),
    };
    let hello = serde_json::to_string(&hello).unwrap_or_default();
    [
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\",\"params\":{hello}}}\n",
            rpc::INITIALIZE
        ),
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"{}\",\"params\":{{\"name\":\"{}\"}}}}\n",
            ade_protocol::action::ACTIONS_CALL,
            ade_protocol::action::name::BROKER_HANDOVER
        ),
    ]
}
