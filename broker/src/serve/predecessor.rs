//! Whoever served this home before: asked to hand over, or seen off.

use std::time::Duration;

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
        ask_to_hand_over(home).await;
        let (home, version) = (home.clone(), options.version.clone());
        let taken = tokio::task::spawn_blocking(move || {
            BrokerLock::take_within(&home, &version, ASK_AGAIN)
        });
        match taken.await {
            // It was not at home, or another one has come since.
            Ok(Err(LockError::AlreadyRunning(_))) if clock::now() < deadline => {}
            Ok(Err(LockError::AlreadyRunning(Some(holder)))) => {
                return Err(LockError::Stuck(holder).into());
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

/// Asks a running broker to hand over; whether it did is seen by its lock.
async fn ask_to_hand_over(home: &Home) {
    use ade_protocol::rpc::InitializeParams;
    use tokio::io::AsyncWriteExt;
    let Ok(mut stream) = tokio::net::UnixStream::connect(home.control_socket()).await else {
        return;
    };
    let hello = InitializeParams {
        protocol_version: ade_protocol::PROTOCOL_VERSION,
        client_name: "ade serve --replace".into(),
    };
    let hello = serde_json::to_string(&hello).unwrap_or_default();
    let lines = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\",\"params\":{hello}}}\n",
        ade_protocol::rpc::INITIALIZE
    );
    let stop = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"{}\",\"params\":{{\"name\":\"{}\"}}}}\n",
        ade_protocol::action::ACTIONS_CALL,
        ade_protocol::action::name::BROKER_HANDOVER
    );
    let mut answer = [0_u8; 4096];
    for line in [lines, stop] {
        if stream.write_all(line.as_bytes()).await.is_err() {
            return;
        }
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut answer);
        if tokio::time::timeout(Duration::from_secs(5), read)
            .await
            .is_err()
        {
            return;
        }
    }
}
