//! A state of the world, and how it is packed.

use super::Config;
use ade_leases::lease::Step;

/// Four processes and the fresh contender.
pub(super) const MAX: usize = 5;

/// A file: whose record it has, and whether its inode carries the kernel lock
/// of that owner. A byte, since millions of them are kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct File(pub(super) u8);

const OWNER: u8 = 0b0000_0111;
const INC: u8 = 0b0000_1000;
const TURN: u8 = 0b0001_0000;
const LOCKED: u8 = 0b0010_0000;
const RELEASE: u8 = 0b1000_0000;

impl File {
    pub(super) const NONE: Self = Self(0);

    /// The record that this process writes in its current round.
    pub(super) fn of(who: usize, proc: &Proc) -> Self {
        let mut bits = u8::try_from(who + 1).expect("a handful of processes");
        bits |= if proc.inc { INC } else { 0 };
        bits |= if proc.left & 1 == 1 { TURN } else { 0 };
        Self(bits)
    }

    pub(super) fn is_some(self) -> bool {
        self.0 != 0
    }

    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Must be some.
    pub(super) fn owner(self) -> usize {
        usize::from(self.0 & OWNER) - 1
    }

    pub(super) fn inc(self) -> bool {
        self.0 & INC != 0
    }

    /// The record without what depends on the inode or the name.
    pub(super) fn token(self) -> Self {
        Self(self.0 & (OWNER | INC | TURN))
    }

    pub(super) fn locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    pub(super) fn with_lock(self, locked: bool) -> Self {
        Self(if locked {
            self.0 | LOCKED
        } else {
            self.0 & !LOCKED
        })
    }

    /// Whether it lies under a `.release-` name; else, beside the lease, under
    /// a `.reclaim-` name.
    pub(super) fn is_release(self) -> bool {
        self.0 & RELEASE != 0
    }

    pub(super) fn as_release(self) -> Self {
        Self(self.0 | RELEASE)
    }

    pub(super) fn as_claim(self) -> Self {
        Self(self.0 & !RELEASE)
    }

    /// The queue at this file: a process has one file a round.
    pub(super) fn queue(self) -> u16 {
        1 << (2 * self.owner() + usize::from(self.0 & TURN != 0))
    }

    fn renamed(self, to: &[usize; MAX]) -> Self {
        if self.is_none() {
            return self;
        }
        let owner = u8::try_from(to[self.owner()] + 1).expect("a handful of processes");
        Self((self.0 & !OWNER) | owner)
    }
}

/// Where a process is: the system call that it makes next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[repr(u8)]
pub(super) enum Pc {
    #[default]
    Idle,
    Dead,
    // Ours.
    Look,
    ScanClaims,
    ScanClaimsEach,
    Guard,
    JudgeAgain,
    StageCreate,
    StageWrite,
    StageLock,
    RenameNoReplace,
    Link,
    StageUnlink,
    ScanAgain,
    ScanAgainEach,
    WithdrawLook,
    WithdrawUnlink,
    WithdrawSweep,
    Sweep,
    OwnLook,
    Unguard,
    Held,
    ReleaseGuard,
    ReleaseCheck,
    ReleaseUnlink,
    ReleaseSweep,
    StageClaim,
    Exchange,
    ExchangeCheck,
    ExchangeDrop,
    BackLook,
    BackExchange,
    BackDrop,
    BackLink,
    BackLinkDrop,
    ClaimRename,
    ClaimCheck,
    ClaimDrop,
    ClaimRestore,
    ClaimRestoreDrop,
    QueueOpen,
    Queue,
    QueueWait,
    // Foreign.
    FScan,
    FScanRead,
    FScanDelete,
    FLink,
    FRead,
    FRename,
    FCheck,
    FRestoreLook,
    FRestoreLink,
    FRestoreDrop,
    FClaimDrop,
    FLinkAgain,
    FHeld,
    FRelease,
    FReleaseCheck,
    FReleaseLook,
    FReleaseLink,
    FReleaseDrop,
    FReleaseSweep,
}

impl Pc {
    /// The library's name of the call. `None` where the library is between two
    /// named ones (looks at single names that a listing has found, the second
    /// half of a restore), or where the process is not in it at all.
    pub(super) fn step(self) -> Option<Step> {
        Some(match self {
            Self::Look => Step::Look,
            Self::ScanClaims => Step::ScanClaims,
            Self::Guard | Self::ReleaseGuard => Step::Guard,
            Self::JudgeAgain => Step::JudgeAgain,
            Self::StageCreate => Step::StageCreate,
            Self::StageWrite => Step::StageWrite,
            Self::StageLock => Step::StageLock,
            Self::RenameNoReplace => Step::RenameNoReplace,
            Self::Link => Step::Link,
            Self::StageClaim => Step::StageClaim,
            Self::StageUnlink => Step::StageUnlink,
            Self::ScanAgain => Step::ScanAgain,
            Self::Unguard => Step::Unguard,
            Self::ReleaseCheck => Step::ReleaseCheck,
            Self::ReleaseUnlink => Step::ReleaseUnlink,
            Self::ReleaseSweep => Step::ReleaseSweep,
            Self::Exchange => Step::Exchange,
            Self::ExchangeCheck => Step::ExchangeCheck,
            Self::BackLook => Step::ExchangeBack,
            Self::ExchangeDrop | Self::ClaimDrop => Step::ClaimDrop,
            Self::ClaimRename => Step::ClaimRename,
            Self::ClaimCheck => Step::ClaimCheck,
            Self::ClaimRestore => Step::ClaimRestore,
            Self::Queue => Step::Queue,
            _ => return None,
        })
    }
}

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Proc {
    pub(super) pc: Pc,
    /// Whether it has crashed and come back.
    pub(super) inc: bool,
    /// Whether it came back under its old pid.
    pub(super) same_pid: bool,
    /// Rounds that are left; the lowest bit tells its tokens apart.
    pub(super) left: u8,
    /// The first look saw a dead lease; once it holds: its lease is a copy.
    pub(super) there: bool,
    /// It goes on without the guard, which did not come free.
    pub(super) unguarded: bool,
    /// Side names that a listing has found and that are to be looked at.
    pub(super) mask: u16,
    /// What was read: the judged record, or what came out of a rename.
    pub(super) seen: File,
    /// The queue at whose head it stands, as a set of at most one.
    pub(super) baton: u16,
    /// The queue that it waits in, or that its last release has left.
    pub(super) queue: u16,
}

/// The world.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct State {
    pub(super) procs: [Proc; MAX],
    /// The lease.
    pub(super) path: File,
    /// Side names by who made them: the current one, and one that was left.
    pub(super) sides: [[File; 2]; MAX],
    /// Crashes that are left.
    pub(super) crashes: u8,
}

/// A state packed without loss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key([u64; 3]);

struct Packer {
    words: [u64; 3],
    at: u32,
}

impl Packer {
    fn put(&mut self, value: u64, bits: u32) {
        debug_assert!(value < 1 << bits);
        let word = (self.at / 64) as usize;
        let shift = self.at % 64;
        self.words[word] |= value << shift;
        if shift + bits > 64 {
            self.words[word + 1] |= value >> (64 - shift);
        }
        self.at += bits;
    }
}

impl State {
    pub(super) fn first(config: &Config) -> Self {
        let mut state = Self {
            crashes: config.crashes,
            ..Self::default()
        };
        for proc in &mut state.procs[..config.all()] {
            proc.left = config.rounds;
        }
        state
    }

    pub(super) fn key(&self, config: &Config) -> Key {
        let n = config.all();
        let mut packer = Packer {
            words: [0; 3],
            at: 0,
        };
        for proc in &self.procs[..n] {
            let flags = u64::from(proc.inc)
                | u64::from(proc.same_pid) << 1
                | u64::from(proc.there) << 2
                | u64::from(proc.unguarded) << 3
                | u64::from(proc.left) << 4
                | (proc.pc as u64) << 6;
            packer.put(flags, 12);
            packer.put(u64::from(proc.mask), 8);
            packer.put(u64::from(proc.seen.token().0), 5);
            if config.wait {
                packer.put(u64::from(proc.baton), 8);
                packer.put(u64::from(proc.queue), 8);
            }
        }
        packer.put(u64::from(self.path.0), 8);
        for sides in &self.sides[..n] {
            packer.put(u64::from(sides[0].0), 8);
            packer.put(u64::from(sides[1].0), 8);
        }
        packer.put(u64::from(self.crashes), 4);
        Key(packer.words)
    }

    /// The bit of a side name in a mask.
    pub(super) fn bit(maker: usize, slot: usize) -> u16 {
        1 << (2 * maker + slot)
    }

    pub(super) fn side(&self, index: usize) -> File {
        self.sides[index / 2][index % 2]
    }

    /// Removes a side name. Whoever has listed it finds nothing there.
    pub(super) fn drop_side(&mut self, maker: usize, slot: usize) {
        self.sides[maker][slot] = File::NONE;
        let bit = Self::bit(maker, slot);
        for proc in &mut self.procs {
            if proc.pc == Pc::FScanDelete && proc.mask & proc.mask.wrapping_neg() == bit {
                proc.pc = Pc::FScanRead;
            }
            proc.mask &= !bit;
        }
    }

    /// Makes a side name. One that a crash or a failed restore has left stays
    /// beside it; `None` when there are two already.
    pub(super) fn make_side(&mut self, maker: usize, file: File) -> Option<()> {
        if self.sides[maker][0].is_some() {
            if self.sides[maker][1].is_some() {
                return None;
            }
            self.sides[maker][1] = self.sides[maker][0];
            let (from, to) = (Self::bit(maker, 0), Self::bit(maker, 1));
            for proc in &mut self.procs {
                if proc.mask & from != 0 {
                    proc.mask = (proc.mask & !from) | to;
                }
            }
        }
        self.sides[maker][0] = file;
        Some(())
    }

    /// The claims beside the lease, and the releases too when asked for.
    pub(super) fn listed(&self, releases: bool) -> u16 {
        let mut mask = 0;
        for maker in 0..MAX {
            for slot in 0..2 {
                let file = self.sides[maker][slot];
                if file.is_some() && (releases || !file.is_release()) {
                    mask |= Self::bit(maker, slot);
                }
            }
        }
        mask
    }

    /// Our processes can't be told apart but by their number, so states that
    /// differ only in that are one. A sort is enough: where it leaves a choice
    /// the states may stay two, which costs time and nothing else.
    pub(super) fn canonical(&self, config: &Config) -> Self {
        let alike = config.ours - usize::from(config.namespace);
        let mut order: [usize; MAX] = std::array::from_fn(|i| i);
        let keys: [u128; MAX] =
            std::array::from_fn(|i| if i < alike { self.sort_key(i) } else { 0 });
        if keys[..alike].is_sorted() {
            return *self;
        }
        order[..alike].sort_by_key(|i| keys[*i]);
        let mut to = [0; MAX];
        for (new, old) in order.iter().enumerate() {
            to[*old] = new;
        }
        let pairs = |mask: u16| {
            let mut moved = 0;
            for (old, new) in to.iter().enumerate() {
                moved |= (mask >> (2 * old) & 0b11) << (2 * new);
            }
            moved
        };
        let mut state = *self;
        state.path = self.path.renamed(&to);
        for (new, old) in order.iter().enumerate() {
            let mut proc = self.procs[*old];
            proc.mask = pairs(proc.mask);
            proc.baton = pairs(proc.baton);
            proc.queue = pairs(proc.queue);
            proc.seen = proc.seen.renamed(&to);
            state.procs[new] = proc;
            state.sides[new] = self.sides[*old].map(|side| side.renamed(&to));
        }
        state
    }

    fn sort_key(&self, i: usize) -> u128 {
        let proc = &self.procs[i];
        let own = |file: File| {
            let mine = file.is_some() && file.owner() == i;
            u128::from(file.0 & !OWNER) << 1 | u128::from(mine)
        };
        let mut key = (proc.pc as u128) << 8
            | u128::from(proc.left) << 4
            | u128::from(proc.inc) << 3
            | u128::from(proc.same_pid) << 2
            | u128::from(proc.there) << 1
            | u128::from(proc.unguarded);
        key = key << 9 | own(self.sides[i][0]);
        key = key << 9 | own(self.sides[i][1]);
        key = key << 9 | own(proc.seen);
        let path_is_mine = self.path.is_some() && self.path.owner() == i;
        key << 1 | u128::from(path_is_mine)
    }
}
