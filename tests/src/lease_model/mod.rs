//! The lease protocol as a state machine, explored state by state.
//!
//! One transition is one system call of one process; any process may crash
//! between any two, and come back once, under a fresh pid or under its old one.
//! Our processes take the steps of [`ade_leases::lease::Step`]; foreign ones
//! follow the public app's rules: they judge by the pid alone, know no guard
//! and no kernel lock, and reclaim what they could not read.
//!
//! Invariants, checked in every state: no two of ours hold at once, somebody
//! can always move, and wherever everything has come to rest a fresh contender
//! gets the lease and leaves nothing behind. What a foreign process breaks all
//! the same is counted by kind, see [`Report`].
//!
//! Not modelled: time (a wait has no end), staging names (nobody but a sweep
//! looks at them, under the guard), and the create-exclusive publish of
//! filesystems that can't do better. A directory
//! is listed in one step, since a name that is there all along is always listed.

mod explore;
mod foreign;
mod judge;
mod ours;
mod reclaim;
mod scene;
mod state;

pub use explore::{Hazard, Report, explore, way_to};
pub use scene::{Scene, solo};

/// What is explored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Processes that use this library; they come first. At most 3, or 4 when
    /// there is no foreign one.
    pub ours: usize,
    /// Processes that follow the public app's rules.
    pub foreign: usize,
    /// How often each process wants the lease: 1 or 2.
    pub rounds: u8,
    /// How many times a process may crash in all, over all processes.
    pub crashes: u8,
    /// Whether the filesystem can exchange two names, and rename without
    /// replacing; else it makes hard links, and a dead lease is moved aside.
    pub exchange: bool,
    /// Our processes wait for a live holder instead of giving up. Only without
    /// foreign ones, because a restored copy has no queue of its own.
    pub wait: bool,
    /// A holder may look at its own lease at any time, and stops when it is lost.
    pub watch: bool,
    /// The last of our processes lives in a pid namespace of its own.
    pub namespace: bool,
    /// A process may be stopped while it has the guard, so that releases go on
    /// without it after their 5 s.
    pub stopped: bool,
    /// A part of the protocol that is left out, to see that it is needed.
    pub without: Without,
}

/// A part of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Without {
    /// Nothing is left out.
    Nothing,
    /// No look for claims after the publish.
    SecondLook,
    /// No look at our own lease before it counts as held.
    OwnLook,
    /// A live holder's file under a `.release-` name doesn't block.
    ReleaseLook,
    /// Who leaves without the lease leaves his claims, too.
    RefusalSweep,
    /// Reclaim and publish without the guard.
    Guard,
    /// A record is judged by its pid alone, without the start tick.
    StartTicks,
    /// A lease that could not be read is reclaimed unseen, as the public app does.
    SeenDead,
    /// A live lease that came out of an exchange is not given back.
    GiveBack,
}

impl Config {
    /// So many of ours and so many foreign processes, with everything the
    /// protocol has, on a filesystem that can exchange names.
    #[must_use]
    pub const fn new(ours: usize, foreign: usize, rounds: u8) -> Self {
        Self {
            ours,
            foreign,
            rounds,
            crashes: 8,
            exchange: true,
            wait: false,
            watch: false,
            namespace: false,
            stopped: false,
            without: Without::Nothing,
        }
    }

    /// All processes.
    #[must_use]
    pub const fn all(&self) -> usize {
        self.ours + self.foreign
    }
}
