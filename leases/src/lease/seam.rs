//! The steps of the protocol by name, and a hook at each for tests.

use std::fmt;
use std::io;
use std::sync::Arc;

/// One system call of the protocol (or one short look), in the order in which
/// an acquire, a reclaim and a release take them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Step {
    /// Acquire: read the lease file. A refusal ends here.
    Look,
    /// Acquire: list the live claims of others.
    ScanClaims,
    /// Any: take the guard, the lock of the directory.
    Guard,
    /// Publish: make the staging file.
    StageCreate,
    /// Publish: write the whole record into it.
    StageWrite,
    /// Publish: take the kernel lock on it.
    StageLock,
    /// Publish: move it to the lease's name without clobbering.
    RenameNoReplace,
    /// Publish, no such rename here: hard-link it there.
    Link,
    /// Publish, after a link: drop the staging name.
    StageUnlink,
    /// Publish, no links either: create the lease itself, exclusively.
    CreateExclusive,
    /// Reclaim: give the staged file the name of a claim.
    StageClaim,
    /// Acquire: list live claims again; withdraw when there is one.
    ScanAgain,
    /// Reclaim: read the lease again, in the guard.
    JudgeAgain,
    /// Reclaim: exchange the staged file with the lease.
    Exchange,
    /// Reclaim: look at what came out.
    ExchangeCheck,
    /// Reclaim: it was alive; exchange back.
    ExchangeBack,
    /// Reclaim: drop what came out.
    ClaimDrop,
    /// Reclaim, no exchange here: move the lease aside.
    ClaimRename,
    /// Reclaim: read what was moved aside.
    ClaimCheck,
    /// Reclaim: it was alive; put it back without clobbering.
    ClaimRestore,
    /// Any: let the guard go.
    Unguard,
    /// Wait: queue at the holder's file.
    Queue,
    /// Release: see whose the lease file is.
    ReleaseCheck,
    /// Release: remove it.
    ReleaseUnlink,
    /// Release: remove claims that carry our token.
    ReleaseSweep,
}

impl Step {
    /// Every step, in order.
    pub const ALL: [Self; 25] = [
        Self::Look,
        Self::ScanClaims,
        Self::Guard,
        Self::StageCreate,
        Self::StageWrite,
        Self::StageLock,
        Self::RenameNoReplace,
        Self::Link,
        Self::StageUnlink,
        Self::CreateExclusive,
        Self::StageClaim,
        Self::ScanAgain,
        Self::JudgeAgain,
        Self::Exchange,
        Self::ExchangeCheck,
        Self::ExchangeBack,
        Self::ClaimDrop,
        Self::ClaimRename,
        Self::ClaimCheck,
        Self::ClaimRestore,
        Self::Unguard,
        Self::Queue,
        Self::ReleaseCheck,
        Self::ReleaseUnlink,
        Self::ReleaseSweep,
    ];

    /// The name as in `Debug`, which a test can pass to a child process.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|step| format!("{step:?}") == name)
    }
}

/// On which side of the system call the hook stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Moment {
    /// Not made yet. An error here takes its place.
    Before,
    /// Made. An error here is reported although it took effect, as a network
    /// filesystem does.
    After,
}

type Hook = dyn Fn(Step, Moment) -> io::Result<()> + Send + Sync;

/// A hook at every step, for tests: it may stop or kill the process, or hand
/// in an errno. Real callers use [`Seam::default`], which does nothing.
#[derive(Clone, Default)]
pub struct Seam(Option<Arc<Hook>>);

impl fmt::Debug for Seam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Seam(hooked)"
        } else {
            "Seam(none)"
        })
    }
}

impl Seam {
    /// A seam that calls this before and after each step.
    pub fn new(hook: impl Fn(Step, Moment) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(crate) fn run<T>(&self, step: Step, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let Some(hook) = &self.0 else { return call() };
        hook(step, Moment::Before)?;
        let result = call()?;
        hook(step, Moment::After)?;
        Ok(result)
    }
}
