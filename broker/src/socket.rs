//! Local sockets that only the owner of the home can reach.
//!
//! Made with `interprocess`, which sets the mode *before* the socket has a
//! name and knows the peer's user and pid; connections are handed out as
//! tokio's own streams, whose halves can be owned. What `interprocess` would do
//! on drop, remove whatever has the name by then, is turned off: an old broker
//! on its way out must not remove its successor's socket.
//!
//! Invariants:
//! - the caller holds [`crate::lock::BrokerLock`]: nobody else removes or binds;
//! - the socket is bound under another name and renamed, so that under its own
//!   name it always is 0600 and always listens;
//! - only a socket is ever replaced, and only our own (same device and inode)
//!   is removed.
//!
//! What this module does not do: decide about a peer. It only says who it is.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ade_protocol::exit;
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use interprocess::os::unix::uds_local_socket::tokio::{Listener, Stream};
use sha2::{Digest, Sha256};
use tokio::net::UnixStream;

use crate::files::{self, FILE_MODE};
use crate::home::{HOME_ENV, SOCKET_ENV};
use crate::platform::socket_mode;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Something that is no socket has the name. It is left as it is.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The file system does not know sockets.
    #[error(
        "the file system mounted at {} takes no sockets, so {} could not be bound",
        mount.display(),
        path.display()
    )]
    Unsupported {
        /// The path.
        path: PathBuf,
        /// Where its file system begins.
        mount: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It could not be bound.
    #[error("could not bind the socket {}", path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl SocketError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        exit::FAILED
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NotASocket { path } => format!("move {} away", path.display()),
            Self::Unsupported { .. } => format!(
                "set {HOME_ENV} to a folder on a local file system (for the control socket alone, {SOCKET_ENV})"
            ),
            Self::Bind { path, source } => {
                let folder = path.parent().unwrap_or(path);
                files::remedy(folder, source).unwrap_or_else(|| {
                    format!(
                        "check that {} is a folder that you can write to",
                        folder.display()
                    )
                })
            }
        };
        vec![hint]
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user when it connected.
    pub uid: u32,
    /// Its pid when it connected; the system may not tell. 0: it lives outside
    /// of our pid namespace.
    pub pid: Option<i32>,
}

impl Peer {
    /// Whether the peer is the user that we are.
    #[must_use]
    pub fn is_own_user(&self) -> bool {
        self.uid == nix::unistd::geteuid().as_raw()
    }
}

/// A listening socket. Dropping it removes its file, if it still is its own.
#[derive(Debug)]
pub struct BoundSocket {
    listener: Listener,
    path: PathBuf,
    file: (u64, u64),
}

/// Binds `path`. A leftover socket is replaced; whatever else has the name is
/// an error. Must be called inside a tokio runtime, and by the holder of the
/// broker lock.
///
/// # Errors
/// [`SocketError`].
pub fn bind(path: &Path) -> Result<BoundSocket, SocketError> {
    is_free(path)?;
    let staging = staging_name(path);
    let bound = bind_staging(&staging).and_then(|listener| {
        fs::set_permissions(&staging, Permissions::from_mode(FILE_MODE))?;
        let found = fs::symlink_metadata(&staging)?;
        fs::rename(&staging, path)?;
        Ok(BoundSocket {
            listener,
            path: path.to_owned(),
            file: (found.dev(), found.ino()),
        })
    });
    bound.map_err(|source| {
        // Nothing better can be done about a leftover than to try.
        let _ = fs::remove_file(&staging);
        bind_error(path, source)
    })
}

/// Whether nothing stands at `path` that is not ours to replace.
///
/// # Errors
/// [`SocketError::NotASocket`].
pub fn is_free(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(SocketError::NotASocket {
            path: path.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Whether a socket could be bound at `path`. Changes nothing.
///
/// # Errors
/// As [`bind`].
pub fn look(path: &Path) -> Result<(), SocketError> {
    is_free(path)?;
    let folder = path.parent().unwrap_or(path);
    let writable = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let usable = fs::read_dir(folder)
        .and_then(|_| rustix::fs::access(folder, writable).map_err(io::Error::from));
    usable.map_err(|source| SocketError::Bind {
        path: path.to_owned(),
        source,
    })
}

fn bind_staging(staging: &Path) -> io::Result<Listener> {
    // A leftover of a broker that died in here; the name is nobody else's.
    if fs::symlink_metadata(staging).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(staging)?;
    }
    let name = staging.to_fs_name::<GenericFilePath>()?;
    let options = ListenerOptions::new().name(name).reclaim_name(false);
    socket_mode(options, FILE_MODE).create_tokio_as::<Listener>()
}

/// A name beside `path` that is as long as the name of `path`, so that it fits
/// wherever `path` fits.
fn staging_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let hash = Sha256::digest(name.as_bytes());
    let mut staging = vec![b'.'];
    staging.extend(hash.iter().map(|byte| b'a' + byte % 26));
    staging.truncate(name.as_bytes().len().max(2));
    path.with_file_name(OsString::from_vec(staging))
}

fn bind_error(path: &Path, source: io::Error) -> SocketError {
    use nix::errno::Errno;
    let path = path.to_owned();
    let unsupported = [Errno::EOPNOTSUPP, Errno::ENOTSUP, Errno::EPERM, Errno::EIO];
    let errno = source.raw_os_error().map(Errno::from_raw);
    if errno.is_some_and(|errno| unsupported.contains(&errno)) {
        let mount = mount_of(&path);
        SocketError::Unsupported {
            path,
            mount,
            source,
        }
    } else {
        SocketError::Bind { path, source }
    }
}

/// The topmost folder above `path` that is on the same file system.
fn mount_of(path: &Path) -> PathBuf {
    let folder = path.parent().unwrap_or(path);
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let Some(own) = device(&folder) else {
        return folder;
    };
    let same = folder.ancestors();
    let same = same.take_while(|above| device(above) == Some(own));
    same.last().unwrap_or(&folder).to_owned()
}

impl BoundSocket {
    /// Waits for the next connection and says who it is from.
    ///
    /// # Errors
    /// The system is out of descriptors or memory, or the peer was gone before
    /// it could be asked for. The next call may succeed; pause before it.
    pub async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        use interprocess::local_socket::traits::tokio::Listener as _;
        let stream: Stream = self.listener.accept().await?;
        let stream = UnixStream::from(stream);
        let peer = peer(&stream)?;
        Ok((stream, peer))
    }

    /// Where it is bound.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Binds anew when the socket's file was removed. What somebody else has put
    /// there is left alone. A failure is logged and the next call tries again.
    pub(crate) fn bind_again(&mut self) {
        let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        if !fs::symlink_metadata(&self.path).is_err_and(gone) {
            return;
        }
        match bind(&self.path) {
            Ok(bound) => {
                tracing::warn!(path = %self.path.display(), "a socket was removed; it was bound again");
                *self = bound;
            }
            Err(error) => tracing::error!(%error, "a socket was removed and not bound again"),
        }
    }

    /// Whether the file at the path still is this socket's.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if self.is_reachable() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether somebody listens on a socket, and who, where the system tells.
pub(crate) async fn listener(path: &Path) -> Option<Option<i32>> {
    let stream = UnixStream::connect(path).await.ok()?;
    Some(peer(&stream).ok().and_then(|peer| peer.pid))
}

/// Who is at the other end of a connection.
///
/// # Errors
/// The peer is gone already.
pub fn peer(stream: &UnixStream) -> io::Result<Peer> {
    let creds = stream.peer_cred()?;
    Ok(Peer {
        uid: creds.uid(),
        pid: creds.pid(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_named_by_where_it_begins() {
        // A file system of its own wherever there is one.
        assert_eq!(
            mount_of(Path::new("/proc/self/ade.sock")),
            Path::new("/proc")
        );
        assert_eq!(mount_of(Path::new("/ade.sock")), Path::new("/"));
        assert_eq!(
            mount_of(Path::new("/nowhere/at/all")),
            Path::new("/nowhere/at")
        );
    }

    #[test]
    fn only_errors_of_the_file_system_blame_it() {
        use nix::errno::Errno;
        for errno in [Errno::EOPNOTSUPP, Errno::EPERM, Errno::EIO] {
            let error = bind_error(Path::new("/x/s"), io::Error::from(errno));
            assert!(matches!(error, SocketError::Unsupported { .. }), "{errno}");
        }
        for errno in [Errno::EACCES, Errno::ENOSPC, Errno::EADDRINUSE] {
            let error = bind_error(Path::new("/x/s"), io::Error::from(errno));
            assert!(matches!(error, SocketError::Bind { .. }), "{errno}");
        }
    }
}
