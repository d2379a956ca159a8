//! Is the holder of a lease alive, dead, or can't we tell? A pure function.
//!
//! Goal: a live lease is never taken, a dead one is always recoverable without
//! a human. Two answers can't serve both, so there are three, and each one
//! carries what it rests on. Only [`Verdict::Dead`] permits a reclaim.
//!
//! The order of the questions is the decision:
//!
//! 1. A taken kernel lock is life, whatever the pid says: the holder may be in
//!    a pid namespace that we can't see into.
//! 2. A file that can't be parsed is nobody's once it is older than 2 s: no
//!    writer of ours ever shows a half file, except on filesystems where
//!    create-exclusive is all there is.
//! 3. The same boot id and the same pid namespace prove that the pid means the
//!    same process here as where it was written. Then the host's name says
//!    nothing (machines are renamed; containers have names of their own).
//!    Without that proof another host is unknown ground.
//! 4. Another boot ends every process. Another pid namespace hides them.
//! 5. Only now the pid is looked at, and only with its start tick, or its
//!    birth against the record's own times, is it more than a number.
//!
//! Age alone proves nothing, and neither does our own pid.
//!
//! Given up: two machines that share a directory *and* a host name see each
//! other as an earlier boot. A kernel lock that the filesystem passes on is
//! then the only protection; such directories need distinct host names.

use std::fmt;

/// What was seen of one lease file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The file's content.
    pub file: FileFact,
    /// The lock on its inode.
    pub kernel_lock: KernelLock,
    /// The record's host against ours.
    pub host: Compared,
    /// The record's boot id against ours.
    pub boot: Compared,
    /// The record's pid namespace against ours.
    pub namespace: Compared,
    /// What has the record's pid now.
    pub process: ProcessFact,
}

/// The content of a lease file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileFact {
    /// A whole record of a version we know.
    Record {
        /// Whether `pid` is a usable positive 32-bit integer.
        usable_pid: bool,
    },
    /// A record of a version that is newer than ours.
    Newer {
        /// Whether `pid` is a usable positive 32-bit integer.
        usable_pid: bool,
    },
    /// Empty or not a record.
    Damaged {
        /// Younger than 2 s: its writer may be at work.
        young: bool,
    },
    /// We may not read it.
    NoPermission,
}

/// The holder's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelLock {
    /// Somebody has it.
    Taken,
    /// Nobody has it. Foreign holders take none, so this proves nothing.
    Free,
    /// The filesystem offers no such lock, or the file can't be opened.
    NotOffered,
}

/// A field of the record against what is so here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compared {
    /// Equal.
    Same,
    /// Told and different.
    Other,
    /// The record does not tell.
    NotTold,
    /// The record tells, but we don't know our own side.
    NotKnown,
}

/// What has a pid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessFact {
    /// Nothing.
    NoSuchProcess,
    /// A process that has ended.
    Zombie,
    /// A running process.
    Runs {
        /// Its start tick against the record's.
        start: Compared,
        /// Born clearly (5 s) after the record says its writer existed.
        born_after: bool,
    },
    /// Something that we are not shown, or `/proc` can't be read.
    Hidden,
}

/// Whether the holder lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It does.
    Alive(Alive),
    /// It does not; the lease may be reclaimed.
    Dead(Dead),
    /// Nobody can tell from here; the lease may not be touched.
    Unknown(Why),
}

/// What life rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alive {
    /// The kernel lock on the lease file is taken.
    KernelLock,
    /// The process with this pid has the recorded start tick.
    SameStart,
    /// The pid exists, and nothing speaks against its being the writer.
    PidExists,
}

/// What death rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dead {
    /// The file is no record, and is not being written.
    Damaged,
    /// The record's pid can't be a pid.
    PidUnusable,
    /// The machine was started again since.
    OtherBoot,
    /// No process has the pid.
    NoSuchProcess,
    /// The process has ended and waits to be reaped.
    Zombie,
    /// The pid was given to another process: other start tick.
    OtherStart,
    /// The pid was given to another process: born after the record.
    BornAfter,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It was written on another host.
    OtherHost,
    /// It was written in another pid namespace.
    OtherNamespace,
    /// The process table can't be read, or hides the process.
    ProcUnreadable,
    /// A newer version of the format, and its process lives or can't be judged.
    NewerVersion,
    /// The file is being written, or was torn less than 2 s ago.
    Young,
    /// We may not read the file.
    NoPermission,
}

/// Judges. Total, and without side effects.
#[must_use]
pub fn verdict(facts: &Facts) -> Verdict {
    if facts.kernel_lock == KernelLock::Taken {
        return Verdict::Alive(Alive::KernelLock);
    }
    let (newer, usable_pid) = match facts.file {
        FileFact::NoPermission => return Verdict::Unknown(Why::NoPermission),
        FileFact::Damaged { young: true } => return Verdict::Unknown(Why::Young),
        FileFact::Damaged { young: false } => return Verdict::Dead(Dead::Damaged),
        FileFact::Record { usable_pid } => (false, usable_pid),
        FileFact::Newer { usable_pid } => (true, usable_pid),
    };
    if !usable_pid {
        // What a newer version means by such a pid is not ours to say.
        return if newer {
            Verdict::Unknown(Why::NewerVersion)
        } else {
            Verdict::Dead(Dead::PidUnusable)
        };
    }
    let same_ground = facts.boot == Compared::Same && facts.namespace == Compared::Same;
    if facts.host == Compared::Other && !same_ground {
        return Verdict::Unknown(Why::OtherHost);
    }
    if facts.boot == Compared::Other {
        return Verdict::Dead(Dead::OtherBoot);
    }
    match facts.namespace {
        Compared::Other => return Verdict::Unknown(Why::OtherNamespace),
        Compared::NotKnown => return Verdict::Unknown(Why::ProcUnreadable),
        Compared::Same | Compared::NotTold => {}
    }
    process(facts.process, newer)
}

fn process(fact: ProcessFact, newer: bool) -> Verdict {
    match fact {
        ProcessFact::NoSuchProcess => Verdict::Dead(Dead::NoSuchProcess),
        ProcessFact::Zombie => Verdict::Dead(Dead::Zombie),
        ProcessFact::Hidden => Verdict::Unknown(Why::ProcUnreadable),
        ProcessFact::Runs { .. } if newer => Verdict::Unknown(Why::NewerVersion),
        ProcessFact::Runs {
            start: Compared::Same,
            ..
        } => Verdict::Alive(Alive::SameStart),
        ProcessFact::Runs {
            start: Compared::Other,
            ..
        } => Verdict::Dead(Dead::OtherStart),
        ProcessFact::Runs {
            born_after: true, ..
        } => Verdict::Dead(Dead::BornAfter),
        ProcessFact::Runs { .. } => Verdict::Alive(Alive::PidExists),
    }
}

impl fmt::Display for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KernelLock => "its kernel lock is held",
            Self::SameStart => "the process is the recorded one",
            Self::PidExists => "the pid exists",
        })
    }
}

impl fmt::Display for Dead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Damaged => "the file is damaged and nobody is writing it",
            Self::PidUnusable => "the recorded pid is none",
            Self::OtherBoot => "the machine was started again since",
            Self::NoSuchProcess => "no such process",
            Self::Zombie => "the process has ended",
            Self::OtherStart => "the pid belongs to another process now",
            Self::BornAfter => "the pid belongs to a process born later",
        })
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherHost => "it was written on another host",
            Self::OtherNamespace => "it was written in another pid namespace",
            Self::ProcUnreadable => "the process can't be looked at from here",
            Self::NewerVersion => "the record is of a newer version than this program knows",
            Self::Young => "the file is being written",
            Self::NoPermission => "the file may not be read",
        })
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
