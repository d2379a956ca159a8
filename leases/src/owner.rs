//! `<session file>.ade-owner`: whose session this is, for good.
//!
//! Unlike a lease it is never removed and says nothing about who writes now;
//! it decides who may pick the session up again. A damaged file is not "no
//! owner": the session was somebody's, and giving it away can't be undone.

use crate::record::{OwnerKind, printable};
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SUFFIX: &str = ".ade-owner";

/// A longer file is no owner record.
const MAX: u64 = 64 * 1024;

/// A resumed terminal's own session may have been made so long before its
/// recorded start.
pub const RESUME_GRACE: Duration = Duration::from_secs(60);

/// As [`RESUME_GRACE`], for a launch with an explicit id.
pub const LAUNCH_GRACE: Duration = Duration::from_secs(600);

/// Whose session it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Nobody's: there is no owner file.
    None,
    /// Somebody's.
    Owned(Claim),
    /// Somebody's, but the file does not say whose. Not adoptable; kept.
    Damaged(Damage),
}

/// An owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Chat or terminal.
    pub kind: OwnerKind,
    /// The durable id of the chat or the terminal, trimmed.
    pub id: String,
}

/// What is wrong with an owner file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// Zero bytes, or only white space.
    Empty,
    /// No JSON object, cut off, or far too long.
    Malformed,
    /// `owner` is neither `sdk` nor `cli`.
    UnknownKind,
    /// `ownerSessionId` is missing or blank.
    BlankId,
    /// A symbolic link, a directory or a device; it was not followed.
    NotAFile,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::Malformed => "it is not a JSON object",
            Self::UnknownKind => "its owner is neither sdk nor cli",
            Self::BlankId => "it names no owner id",
            Self::NotAFile => "it is not a regular file",
        })
    }
}

/// An owner file that could not be read or written. None of these needs to
/// stop a session.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// It could not be read.
    #[error("could not read the owner file {path}", path = path.display())]
    Read {
        /// The owner file.
        path: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// It could not be written; the one before is as it was.
    #[error("could not write the owner file {path}; the session goes on without it", path = path.display())]
    Write {
        /// The owner file.
        path: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// A damaged file is not replaced unasked.
    #[error("the owner file {path} is damaged ({damage}) and was kept; take it with `ade owner claim --force` if the session is yours", path = path.display())]
    Damaged {
        /// The owner file.
        path: PathBuf,
        /// What is wrong.
        damage: Damage,
    },
    /// It belongs to somebody else.
    #[error("the session of the owner file {path} belongs to {kind} {id}; use that one, or take it with `ade owner claim --force`", path = path.display(), id = printable(id))]
    Owned {
        /// The owner file.
        path: PathBuf,
        /// The owner's kind.
        kind: OwnerKind,
        /// The owner's id.
        id: String,
    },
    /// An owner without an id can't be written.
    #[error("an owner needs an id that is not blank")]
    BlankId,
}

/// Whether a claim replaces an owner that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replace {
    /// Only nobody's session, or one that is the claimer's already.
    Unowned,
    /// Any whole claim, as the shared rule has it: the last writer wins. A
    /// damaged file is kept.
    Owned,
    /// Whatever is there, because a human has decided so.
    Anything,
}

/// The owner file of a session file.
///
/// A session that exists is resolved first, so that it has one owner however
/// it is spelled.
#[must_use]
pub fn path(session_file: &Path) -> PathBuf {
    let canonical = std::fs::canonicalize(session_file).ok();
    let planned = || {
        let name = session_file.file_name()?;
        Some(
            std::fs::canonicalize(session_file.parent()?)
                .ok()?
                .join(name),
        )
    };
    let mut path: OsString = canonical
        .or_else(planned)
        .unwrap_or_else(|| session_file.to_owned())
        .into();
    path.push(SUFFIX);
    path.into()
}

/// Reads whose session it is. Never follows a link, never writes.
///
/// # Errors
/// The file is there and can't be read.
pub fn read(session_file: &Path) -> Result<Owner, OwnerError> {
    let path = path(session_file);
    read_at(&path).map_err(|source| OwnerError::Read { path, source })
}

fn read_at(path: &Path) -> io::Result<Owner> {
    use rustix::io::Errno;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(Owner::None),
        Err(Errno::LOOP | Errno::NXIO) => return Ok(Owner::Damaged(Damage::NotAFile)),
        Err(errno) => return Err(errno.into()),
    };
    if !file.metadata()?.is_file() {
        return Ok(Owner::Damaged(Damage::NotAFile));
    }
    let mut bytes = Vec::new();
    file.take(MAX + 1).read_to_end(&mut bytes)?;
    Ok(parse(&bytes))
}

fn parse(bytes: &[u8]) -> Owner {
    if bytes.len() as u64 > MAX {
        return Owner::Damaged(Damage::Malformed);
    }
    if bytes.trim_ascii().is_empty() {
        return Owner::Damaged(Damage::Empty);
    }
    let Ok(Value::Object(map)) = serde_json::from_slice(bytes) else {
        return Owner::Damaged(Damage::Malformed);
    };
    let Some(kind) = map
        .get("owner")
        .and_then(Value::as_str)
        .and_then(OwnerKind::parse)
    else {
        return Owner::Damaged(Damage::UnknownKind);
    };
    match map
        .get("ownerSessionId")
        .and_then(Value::as_str)
        .map(str::trim)
    {
        None | Some("") => Owner::Damaged(Damage::BlankId),
        Some(id) => Owner::Owned(Claim {
            kind,
            id: id.to_owned(),
        }),
    }
}

/// Writes whose session it is: atomically, 0600, in place of a link rather
/// than through it.
///
/// Two claims at once: the last one wins, whole. The lease keeps them apart.
///
/// # Errors
/// See [`OwnerError`]; what was there before is then unchanged.
pub fn claim(session_file: &Path, claim: &Claim, replace: Replace) -> Result<(), OwnerError> {
    let id = claim.id.trim();
    if id.is_empty() {
        return Err(OwnerError::BlankId);
    }
    let path = path(session_file);
    if replace != Replace::Anything {
        match read_at(&path).map_err(|source| OwnerError::Read {
            path: path.clone(),
            source,
        })? {
            Owner::None => {}
            Owner::Damaged(damage) => return Err(OwnerError::Damaged { path, damage }),
            Owner::Owned(now) if now.kind == claim.kind && now.id == id => return Ok(()),
            Owner::Owned(now) if replace == Replace::Unowned => {
                return Err(OwnerError::Owned {
                    path,
                    kind: now.kind,
                    id: now.id,
                });
            }
            Owner::Owned(_) => {}
        }
    }
    let line = format!(
        "{}\n",
        serde_json::json!({"owner": claim.kind, "ownerSessionId": id})
    );
    write_at(&path, line.as_bytes()).map_err(|source| OwnerError::Write { path, source })
}

fn write_at(path: &Path, line: &[u8]) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut prefix = name.to_owned();
    prefix.push(".new-");
    let mut file = tempfile::Builder::new().prefix(&prefix).tempfile_in(dir)?;
    // Filesystems without modes refuse this and protect the whole mount.
    let _ = file
        .as_file()
        .set_permissions(Permissions::from_mode(0o600));
    file.write_all(line)?;
    // The claim outlives this boot, so its content must be on disk before the
    // name points to it.
    file.as_file().sync_data()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Whether this terminal may pick the session up: nobody's, or its own.
#[must_use]
pub fn adoptable(owner: &Owner, terminal_id: &str) -> bool {
    match owner {
        Owner::None => true,
        Owner::Owned(claim) => claim.kind == OwnerKind::Cli && claim.id == terminal_id.trim(),
        Owner::Damaged(_) => false,
    }
}

/// Whether a session made at `created` can be the own one of a terminal that
/// started at `started`. `false` means that the stored pointer is wrong and is
/// to be replaced. What isn't known is no reason to repair.
#[must_use]
pub fn could_belong(
    created: Option<Timestamp>,
    started: Option<Timestamp>,
    grace: Duration,
) -> bool {
    let (Some(created), Some(started)) = (created, started) else {
        return true;
    };
    started.duration_since(created)
        <= SignedDuration::try_from(grace).unwrap_or(SignedDuration::MAX)
}
