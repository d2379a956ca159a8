//! Identity and liveness of a process.

use super::platform;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::sync::OnceLock;

/// A process id that can be given to the kernel without naming a group or
/// everybody: greater than 1.
///
/// The single exception is [`Pid::own`] (and what was serialised from it) in a
/// container whose first process we are; [`super::signal`] refuses pid 1 anyway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Pid(i32);

impl Pid {
    /// The pid, when it is greater than 1 and the kernel could have given it.
    #[must_use]
    pub fn new(raw: i64) -> Option<Self> {
        i32::try_from(raw).ok().filter(|pid| *pid > 1).map(Self)
    }

    /// The pid of the calling process.
    #[must_use]
    pub fn own() -> Self {
        Self(nix::unistd::getpid().as_raw())
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> i32 {
        self.0
    }

    pub(crate) fn from_usable(raw: i64) -> Option<Self> {
        i32::try_from(raw).ok().filter(|pid| *pid > 0).map(Self)
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Pid> for i64 {
    fn from(pid: Pid) -> Self {
        Self::from(pid.0)
    }
}

impl TryFrom<i64> for Pid {
    type Error = String;

    fn try_from(raw: i64) -> Result<Self, String> {
        Self::from_usable(raw).ok_or_else(|| format!("{raw} is not a process id"))
    }
}

/// One process and no other, ever: the pid is only unique together with the
/// start tick, the boot and the pid namespace.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessIdentity {
    /// The pid, as the namespace in `pid_namespace` numbers it.
    pub pid: Pid,
    /// Start time in clock ticks since boot: field 22 of `/proc/<pid>/stat`.
    /// On macOS the start time in seconds since the epoch.
    pub start_ticks: u64,
    /// The kernel's id of this boot, a uuid.
    pub boot_id: String,
    /// Inode of the pid namespace; 0 where the system has none.
    pub pid_namespace: u64,
}

/// What can be said about a process that was known before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Liveness {
    /// The very process is there and is no zombie.
    Alive,
    /// It is over.
    Dead(DeadProof),
    /// No answer can be had from here. This is not "dead".
    Unknown(UnknownWhy),
}

/// Why a process is known to be over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadProof {
    /// No process has this pid.
    NoSuchProcess,
    /// It has ended and waits to be reaped.
    Zombie,
    /// The pid belongs to a process with another start tick.
    OtherStart,
    /// The machine was started again since.
    OtherBoot,
}

/// Why nothing can be said about a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnknownWhy {
    /// It was seen in another pid namespace: its pid means nothing here.
    OtherNamespace,
    /// The process table can't be read, or hides this process.
    ProcUnreadable,
}

/// Where we are: what a foreign record is compared with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Here {
    /// `None` when the kernel does not tell.
    pub(crate) boot_id: Option<String>,
    /// `None` when the kernel does not tell.
    pub(crate) pid_namespace: Option<u64>,
    /// `None` when the name is not UTF-8 or can't be had.
    pub(crate) host: Option<String>,
}

/// Boot, namespace and host can't change under a running process (a pid
/// namespace entered by `unshare` is that of the children), so they are read once.
pub(crate) fn here() -> &'static Here {
    static HERE: OnceLock<Here> = OnceLock::new();
    HERE.get_or_init(|| Here {
        boot_id: platform::boot_id().ok(),
        pid_namespace: platform::pid_namespace().ok(),
        host: nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .filter(|name| !name.is_empty()),
    })
}

fn known<T: Clone>(what: Option<&T>, name: &str) -> io::Result<T> {
    what.cloned().ok_or_else(|| {
        io::Error::other(format!(
            "the {name} can't be read; is /proc of this system mounted?"
        ))
    })
}

impl ProcessIdentity {
    /// The calling process.
    ///
    /// # Errors
    /// `/proc` can't be read.
    pub fn current() -> io::Result<Self> {
        Self::assemble(Pid::own(), platform::own_start_ticks()?)
    }

    /// The process that has this pid now; `None` when there is none. A zombie
    /// still has an identity.
    ///
    /// # Errors
    /// The process table can't be read, or hides this process.
    pub fn of(pid: Pid) -> io::Result<Option<Self>> {
        match platform::look(pid) {
            platform::Look::Running {
                start_ticks: Some(ticks),
            }
            | platform::Look::Zombie {
                start_ticks: Some(ticks),
            } => Self::assemble(pid, ticks).map(Some),
            platform::Look::NoSuchProcess => Ok(None),
            _ => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("process {pid} can't be looked at in the process table"),
            )),
        }
    }

    pub(crate) fn assemble(pid: Pid, start_ticks: u64) -> io::Result<Self> {
        let here = here();
        Ok(Self {
            pid,
            start_ticks,
            boot_id: known(here.boot_id.as_ref(), "boot id")?,
            pid_namespace: known(here.pid_namespace.as_ref(), "pid namespace")?,
        })
    }

    /// Whether this very process still runs. Looks once, waits for nothing.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        let here = here();
        let (Some(boot_id), Some(namespace)) = (&here.boot_id, here.pid_namespace) else {
            return Liveness::Unknown(UnknownWhy::ProcUnreadable);
        };
        if *boot_id != self.boot_id {
            return Liveness::Dead(DeadProof::OtherBoot);
        }
        if namespace != self.pid_namespace {
            return Liveness::Unknown(UnknownWhy::OtherNamespace);
        }
        match platform::look(self.pid) {
            platform::Look::NoSuchProcess => Liveness::Dead(DeadProof::NoSuchProcess),
            platform::Look::Zombie { .. } => Liveness::Dead(DeadProof::Zombie),
            platform::Look::Running {
                start_ticks: Some(ticks),
            } if ticks == self.start_ticks => Liveness::Alive,
            platform::Look::Running {
                start_ticks: Some(_),
            } => Liveness::Dead(DeadProof::OtherStart),
            platform::Look::Running { start_ticks: None } | platform::Look::Unreadable => {
                Liveness::Unknown(UnknownWhy::ProcUnreadable)
            }
        }
    }
}
