//! One process of ours alone, in scenes that a test can set with real files.

use super::Config;
use super::ours::steps_of;
use super::state::{File, Pc, State};
use ade_leases::lease::Step;

/// What lies around when a single process of ours comes along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scene {
    /// Nothing.
    Free,
    /// A lease of somebody alive.
    Held,
    /// A lease of somebody dead.
    Dead,
    /// A claim of somebody alive.
    LiveClaim,
    /// A dead lease, on a filesystem that can't exchange names.
    DeadNoExchange,
    /// Nothing, but somebody publishes just before us.
    TakenBeforePublish,
    /// Nothing, but a live claim appears just before we publish.
    ClaimBeforePublish,
    /// A dead lease that somebody else has replaced before we have the guard.
    RevivedBeforeGuard,
    /// A dead lease that is gone before we have the guard.
    GoneBeforeGuard,
    /// A dead lease that somebody replaces just before our exchange.
    RevivedBeforeExchange,
    /// A dead lease that is gone just before our exchange.
    GoneBeforeExchange,
    /// A dead lease that somebody replaces just before our rename, where names
    /// can't be exchanged.
    RevivedBeforeRename,
    /// Our lease is gone when we release it.
    LostBeforeRelease,
}

impl Scene {
    /// Every scene.
    pub const ALL: [Self; 13] = [
        Self::Free,
        Self::Held,
        Self::Dead,
        Self::LiveClaim,
        Self::DeadNoExchange,
        Self::TakenBeforePublish,
        Self::ClaimBeforePublish,
        Self::RevivedBeforeGuard,
        Self::GoneBeforeGuard,
        Self::RevivedBeforeExchange,
        Self::GoneBeforeExchange,
        Self::RevivedBeforeRename,
        Self::LostBeforeRelease,
    ];

    /// Whether a dead lease is there from the beginning.
    #[must_use]
    pub const fn starts_dead(self) -> bool {
        matches!(
            self,
            Self::Dead
                | Self::DeadNoExchange
                | Self::RevivedBeforeGuard
                | Self::GoneBeforeGuard
                | Self::RevivedBeforeExchange
                | Self::GoneBeforeExchange
                | Self::RevivedBeforeRename
        )
    }

    /// Whether the filesystem exchanges names and renames without replacing.
    #[must_use]
    pub const fn has_renameat2(self) -> bool {
        !matches!(self, Self::DeadNoExchange | Self::RevivedBeforeRename)
    }

    /// The first step of its kind before which somebody else acts.
    #[must_use]
    pub const fn acts_before(self) -> Option<Step> {
        match self {
            Self::Free | Self::Held | Self::Dead | Self::LiveClaim | Self::DeadNoExchange => None,
            Self::TakenBeforePublish | Self::ClaimBeforePublish => Some(Step::RenameNoReplace),
            Self::RevivedBeforeGuard | Self::GoneBeforeGuard => Some(Step::Guard),
            Self::RevivedBeforeExchange | Self::GoneBeforeExchange => Some(Step::Exchange),
            Self::RevivedBeforeRename => Some(Step::ClaimRename),
            Self::LostBeforeRelease => Some(Step::ReleaseCheck),
        }
    }
}

/// The steps that the model takes, alone and uncrashed, to acquire and, when it
/// got the lease, to release it. The last tells whether it did.
#[must_use]
pub fn solo(scene: Scene) -> (Vec<Step>, bool) {
    let mut config = Config::new(1, 1, 1);
    config.exchange = scene.has_renameat2();
    let mut state = State::first(&config);
    // The other process is in its second life; its first one is the dead one.
    let dead = File::of(1, &state.procs[1]);
    state.procs[1].inc = true;
    let alive = File::of(1, &state.procs[1]);
    match scene {
        Scene::Held => state.path = alive,
        Scene::LiveClaim => state.sides[1][0] = alive,
        scene if scene.starts_dead() => state.path = dead,
        _ => {}
    }
    let (mut steps, mut held, mut acted) = (Vec::new(), false, false);
    let mut next = Vec::new();
    loop {
        let step = state.procs[0].pc.step();
        if step.is_some() && step == scene.acts_before() && !std::mem::replace(&mut acted, true) {
            match scene {
                Scene::ClaimBeforePublish => state.sides[1][0] = alive,
                Scene::GoneBeforeGuard | Scene::GoneBeforeExchange | Scene::LostBeforeRelease => {
                    state.path = File::NONE;
                }
                _ => state.path = alive,
            }
        }
        held |= state.procs[0].pc == Pc::Held;
        steps.extend(step);
        next.clear();
        steps_of(&config, &state, 0, &mut next);
        match next.first() {
            Some(first) => state = *first,
            None => return (steps, held),
        }
        if state.procs[0].pc == Pc::Idle {
            return (steps, held);
        }
    }
}
