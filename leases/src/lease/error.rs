//! What can go wrong with a lease, with the remedy in the text.

use super::guard::GUARD_WAIT;
use super::place::FileKind;
use super::seam::Step;
use crate::record::{Record, printable};
use crate::verdict::{Alive, Why};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Who has a lease, and how we know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The lease file.
    pub path: PathBuf,
    /// What stands in it; `None` when it is damaged but its kernel lock is held.
    pub record: Option<Record>,
    /// What its life rests on.
    pub proof: Alive,
}

/// "held by pid 4711 (sdk, ses_…, since 12:03 UTC; its kernel lock is held)".
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.record {
            Some(record) => write!(f, "held by {}", record.display_with(&self.proof)),
            None => write!(
                f,
                "held by somebody whose record can't be read ({})",
                self.proof
            ),
        }
    }
}

/// A lease that was not given.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// A live holder has it.
    #[error("the lease {} is {}; {}, or start a new chat", .0.path.display(), .0, stop(.0.record.as_ref().map_or("", |record| &record.owner_id)))]
    Held(Box<Holder>),
    /// This process has it, or is taking it in another thread.
    #[error("the lease {path} is held or waited for by this very process (for {owner_id}); {stop}, or start a new chat", path = path.display(), owner_id = printable(owner_id), stop = stop(owner_id))]
    AlreadyHere {
        /// The lease file.
        path: PathBuf,
        /// For whom.
        owner_id: String,
    },
    /// Whether the holder lives can't be told from here.
    #[error("{}", unknown(path, record.as_deref(), *why))]
    Unknown {
        /// The lease file.
        path: PathBuf,
        /// What stands in it.
        record: Option<Box<Record>>,
        /// Why there is no answer.
        why: Why,
    },
    /// A live lease was moved aside by a program that is about to judge it.
    #[error("the lease {path} was moved aside to {claim} and {holder}; try again when that one is done", path = path.display(), claim = claim.display())]
    Reclaiming {
        /// The lease file.
        path: PathBuf,
        /// Where the live record is now.
        claim: PathBuf,
        /// Whose it is.
        holder: Box<Holder>,
    },
    /// The file changed under each of our rounds.
    #[error("the lease {path} changed hands {rounds} times while we tried to take it; try again", path = path.display())]
    Contended {
        /// The lease file.
        path: PathBuf,
        /// How often.
        rounds: u32,
    },
    /// The directory of the session file is not there.
    #[error("the directory {path} of the session file does not exist; create it first", path = path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Something else stands where a file belongs; it was not touched.
    #[error("{path} is {what}, not a file; remove it if you don't know it", path = path.display())]
    NotAFile {
        /// Where.
        path: PathBuf,
        /// What stands there.
        what: FileKind,
    },
    /// The directory's guard did not come free: its holder is stopped.
    #[error("another ade process has kept the guard of {dir} for more than {secs} s; continue or end a stopped one", dir = dir.display(), secs = GUARD_WAIT.as_secs())]
    GuardTimeout {
        /// The guarded directory.
        dir: PathBuf,
    },
    /// No space, quota or file size is left.
    #[error("no space left for the lease {path}; free some, nothing was left behind", path = path.display())]
    Full {
        /// The file that could not be written.
        path: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// The filesystem or the directory can't be written.
    #[error("the directory of the lease {path} can't be written; check its mount and its mode", path = path.display())]
    ReadOnly {
        /// The file that could not be written.
        path: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// Any other failure, by the step and the path.
    #[error("could not {} {path}", doing(*step), path = path.display())]
    Io {
        /// The step; `None` while the path was looked up.
        step: Option<Step>,
        /// The path.
        path: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
}

/// How to end a holder. A chat has a command for it; whether the chat is of the
/// reader's own broker can't be told from here.
fn stop(owner_id: &str) -> String {
    if owner_id.starts_with("ses_") {
        let id = printable(owner_id);
        format!("stop that one (`ade chat stop {id}` where it is a chat of yours)")
    } else {
        "stop that one".to_owned()
    }
}

fn doing(step: Option<Step>) -> String {
    step.map_or_else(
        || "look up".to_owned(),
        |step| format!("take the step {step:?} at"),
    )
}

fn unknown(path: &Path, record: Option<&Record>, why: Why) -> String {
    let path = path.display();
    let Some(record) = record else {
        return format!("whether the lease {path} is in use can't be told: {why}; try again");
    };
    let mut ground = String::new();
    if let (Why::OtherHost, Some(host)) = (why, &record.host) {
        ground = format!(" ({})", printable(host));
    }
    if let (Why::OtherNamespace, Some(namespace)) = (why, record.pid_namespace) {
        ground = format!(" (pid:[{namespace}])");
    }
    if why == Why::NewerVersion {
        ground = format!(" (version {})", record.version);
    }
    format!(
        "the lease {path} names {record}, and whether that one lives can't be told: {why}{ground}; \
         if you know that it is gone, remove it with `ade lease break --force`"
    )
}

impl AcquireError {
    pub(crate) fn io(step: Option<Step>, path: &Path, source: io::Error) -> Self {
        use rustix::io::Errno;
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Self::Full { path, source },
            Some(Errno::ROFS | Errno::ACCESS) => Self::ReadOnly { path, source },
            _ => Self::Io { step, path, source },
        }
    }

    /// Whether somebody else has the lease, so that waiting may help.
    #[must_use]
    pub fn is_contention(&self) -> bool {
        matches!(
            self,
            Self::Held(_)
                | Self::AlreadyHere { .. }
                | Self::Reclaiming { .. }
                | Self::Contended { .. }
        ) || matches!(
            self,
            Self::Unknown {
                why: Why::Young,
                ..
            }
        )
    }

    /// Who has it, when that is known.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Held(holder) | Self::Reclaiming { holder, .. } => Some(holder),
            _ => None,
        }
    }
}

/// A lease file that could not be removed at release.
#[derive(Debug, thiserror::Error)]
#[error("could not remove the lease {path}; it is freed when this process ends", path = path.display())]
pub struct ReleaseError {
    /// The lease file.
    pub path: PathBuf,
    /// The errno.
    #[source]
    pub source: io::Error,
}

/// A lease that was not broken.
#[derive(Debug, thiserror::Error)]
pub enum BreakError {
    /// It lives, so only a forced break removes it.
    #[error("the lease {} is {}; {}, or remove it with `ade lease break --force`", .0.path.display(), .0, stop(.0.record.as_ref().map_or("", |record| &record.owner_id)))]
    Held(Box<Holder>),
    /// It is not the record that was seen before.
    #[error("the lease {path} changed meanwhile; look at it again", path = path.display())]
    Changed {
        /// The lease file.
        path: PathBuf,
    },
    /// Any other reason, as for an acquire.
    #[error(transparent)]
    Other(#[from] AcquireError),
}
