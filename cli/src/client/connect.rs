//! Connecting to a broker, and why there is no connection.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_protocol::codec::LineCodec;
use ade_protocol::{PROTOCOL_VERSION, exit};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tokio_util::codec::FramedRead;

use super::Wire;
use crate::error::CommandError;

/// For the connection itself; the listener's queue may be full for a moment.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a stopped broker may stay so, twice.
pub(super) const STOPPED: Duration = Duration::from_secs(1);

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

/// A connection, before anything is said over it.
pub(super) async fn connect(socket: &Path) -> Result<Wire, ConnectError> {
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

/// Ends when the process is stopped, and still is a while later: nobody need
/// wait for it any longer.
pub(super) async fn stays_stopped(pid: Option<i32>) {
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

/// What an error of the handshake says of the connection.
pub(super) fn refused(socket: &Path, error: CommandError) -> ConnectError {
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
