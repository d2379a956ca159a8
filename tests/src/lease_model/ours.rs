//! The steps of this library.

use super::judge::Verdict;
use super::state::{File, Pc, Proc, State};
use super::{Config, Without};

/// Whether a process of ours that is here has the guard.
fn has_guard(proc: &Proc) -> bool {
    match proc.pc {
        Pc::JudgeAgain
        | Pc::StageCreate
        | Pc::StageWrite
        | Pc::StageLock
        | Pc::RenameNoReplace
        | Pc::Link
        | Pc::StageUnlink
        | Pc::ScanAgain
        | Pc::ScanAgainEach
        | Pc::WithdrawLook
        | Pc::WithdrawUnlink
        | Pc::WithdrawSweep
        | Pc::Sweep
        | Pc::OwnLook
        | Pc::Unguard
        | Pc::StageClaim
        | Pc::Exchange
        | Pc::ExchangeCheck
        | Pc::ExchangeDrop
        | Pc::BackLook
        | Pc::BackExchange
        | Pc::BackDrop
        | Pc::BackLink
        | Pc::BackLinkDrop
        | Pc::ClaimRename
        | Pc::ClaimCheck
        | Pc::ClaimDrop
        | Pc::ClaimRestore
        | Pc::ClaimRestoreDrop => true,
        Pc::ReleaseCheck | Pc::ReleaseUnlink | Pc::ReleaseSweep => !proc.unguarded,
        _ => false,
    }
}

/// Whether it has published and not yet released: then it heads the queue at
/// its file.
fn has_lease(pc: Pc) -> bool {
    matches!(
        pc,
        Pc::StageUnlink
            | Pc::ScanAgain
            | Pc::ScanAgainEach
            | Pc::Sweep
            | Pc::OwnLook
            | Pc::Unguard
            | Pc::Held
            | Pc::ReleaseGuard
            | Pc::ReleaseCheck
            | Pc::ReleaseUnlink
            | Pc::ReleaseSweep
            | Pc::ExchangeCheck
            | Pc::ExchangeDrop
    )
}

impl State {
    fn guard_is_free(&self) -> bool {
        !self.procs.iter().any(has_guard)
    }

    /// The queue to wait in: the one that a live holder has brought along, or
    /// else the one at its file.
    fn queue_of(&self, file: File) -> u16 {
        let owner = &self.procs[file.owner()];
        if self.writer_runs(file) && has_lease(owner.pc) && owner.baton != 0 {
            owner.baton
        } else {
            file.queue()
        }
    }

    /// Whether nobody but `who` stands at the head of this queue.
    fn queue_is_free(&self, queue: u16, who: usize) -> bool {
        !self.procs.iter().enumerate().any(|(i, proc)| {
            i != who
                && (proc.baton == queue
                    || (has_lease(proc.pc) && File::of(i, proc).queue() == queue))
        })
    }

    /// Whether somebody but `who` waits in it, or has waited and got to its head.
    fn queue_has_waiters(&self, queue: u16, who: usize) -> bool {
        self.procs.iter().enumerate().any(|(i, proc)| {
            let waits = proc.pc == Pc::QueueWait && proc.queue == queue;
            i != who && (waits || proc.baton == queue)
        })
    }

    pub(super) fn is_my_inode(&self, file: File, who: usize) -> bool {
        file.token() == File::of(who, &self.procs[who]) && file.locked()
    }

    /// The holder's look at its own lease. A copy that a foreign process has
    /// put back is ours, and gets the lock.
    fn standing(&mut self, who: usize) -> bool {
        let me = File::of(who, &self.procs[who]);
        if self.path.token() != me {
            return false;
        }
        if !self.path.locked() {
            self.unlock(who);
            self.path = self.path.with_lock(true);
            self.procs[who].there = true;
        }
        true
    }

    pub(super) fn unlock(&mut self, who: usize) {
        let me = File::of(who, &self.procs[who]);
        let files = self.sides.iter_mut().flatten();
        for file in files.chain(std::iter::once(&mut self.path)) {
            if file.token() == me {
                *file = file.with_lock(false);
            }
        }
    }
}

/// One process that takes its next step.
pub(super) struct Walk<'a> {
    pub(super) config: &'a Config,
    pub(super) state: &'a State,
    pub(super) who: usize,
    pub(super) out: &'a mut Vec<State>,
}

impl Walk<'_> {
    pub(super) fn to(&mut self, pc: Pc) {
        self.with(pc, |_, _| {});
    }

    pub(super) fn with(&mut self, pc: Pc, change: impl FnOnce(&mut State, usize)) {
        let mut next = *self.state;
        change(&mut next, self.who);
        let proc = &mut next.procs[self.who];
        proc.pc = pc;
        if matches!(
            pc,
            Pc::Idle | Pc::Look | Pc::QueueOpen | Pc::JudgeAgain | Pc::StageCreate
        ) {
            proc.there = false;
        }
        if pc == Pc::Idle {
            proc.seen = File::NONE;
            proc.unguarded = false;
            proc.baton = 0;
        }
        self.out.push(next);
    }

    pub(super) fn me(&self) -> File {
        File::of(self.who, &self.state.procs[self.who])
    }

    pub(super) fn judge(&self, file: File) -> Verdict {
        self.state.judge(self.config, self.who, file)
    }

    /// Somebody has it: the end, or a place in the queue.
    fn refused(&mut self) {
        self.to(self.after_refusal());
    }

    fn after_refusal(&self) -> Pc {
        if self.config.wait {
            Pc::QueueOpen
        } else {
            Pc::Idle
        }
    }

    /// The next name of a listing, or on when there is none left. Names that
    /// went away meanwhile are no longer in the mask.
    fn each_claim(&mut self, itself: Pc, refused: Pc, then: Pc) {
        let mask = self.state.procs[self.who].mask;
        if mask == 0 {
            self.to(then);
            return;
        }
        let index = mask.trailing_zeros() as usize;
        let file = self.state.side(index);
        let blocks = file.token() != self.me()
            && (!file.is_release() || file.locked() && self.state.writer_runs(file))
            && matches!(self.judge(file), Verdict::Alive | Verdict::Unknown);
        if blocks {
            self.with(refused, |s, i| s.procs[i].mask = 0);
        } else {
            self.with(itself, |s, i| s.procs[i].mask &= !(1 << index));
        }
    }
}

/// Everything that process `who` may do next, but for crashing.
pub(super) fn steps_of(config: &Config, state: &State, who: usize, out: &mut Vec<State>) {
    let mut walk = Walk {
        config,
        state,
        who,
        out,
    };
    match state.procs[who].pc {
        Pc::QueueOpen
        | Pc::Queue
        | Pc::QueueWait
        | Pc::Idle
        | Pc::Look
        | Pc::ScanClaims
        | Pc::ScanClaimsEach
        | Pc::Guard
        | Pc::JudgeAgain => walk.arrive(),
        Pc::StageCreate
        | Pc::StageWrite
        | Pc::StageLock
        | Pc::RenameNoReplace
        | Pc::Link
        | Pc::StageUnlink
        | Pc::ScanAgain
        | Pc::ScanAgainEach
        | Pc::WithdrawLook
        | Pc::WithdrawUnlink
        | Pc::WithdrawSweep
        | Pc::Sweep
        | Pc::OwnLook
        | Pc::Unguard => walk.publish(),
        Pc::Held | Pc::ReleaseGuard | Pc::ReleaseCheck | Pc::ReleaseUnlink | Pc::ReleaseSweep => {
            walk.hold_and_release();
        }
        Pc::StageClaim
        | Pc::Exchange
        | Pc::ExchangeCheck
        | Pc::ExchangeDrop
        | Pc::BackLook
        | Pc::BackExchange
        | Pc::BackDrop
        | Pc::BackLink
        | Pc::BackLinkDrop => walk.exchange(),
        Pc::ClaimRename
        | Pc::ClaimCheck
        | Pc::ClaimDrop
        | Pc::ClaimRestore
        | Pc::ClaimRestoreDrop => walk.move_aside(),
        _ => {}
    }
}

impl Walk<'_> {
    fn arrive(&mut self) {
        let s = self.state;
        let proc = &s.procs[self.who];
        match proc.pc {
            Pc::Idle if proc.left > 0 => {
                let first = if proc.queue != 0 { Pc::Queue } else { Pc::Look };
                self.with(first, |s, i| s.procs[i].left -= 1);
            }
            Pc::Look => match () {
                () if s.path.is_none() => self.to(Pc::ScanClaims),
                () if self.judge(s.path) == Verdict::Dead => {
                    self.with(Pc::ScanClaims, |s, i| s.procs[i].there = true);
                }
                () => self.refused(),
            },
            Pc::ScanClaims => {
                self.with(Pc::ScanClaimsEach, |s, i| {
                    s.procs[i].mask = s.listed(self.config.without != Without::ReleaseLook);
                });
            }
            Pc::ScanClaimsEach => {
                self.each_claim(Pc::ScanClaimsEach, self.after_refusal(), Pc::Guard);
            }
            Pc::Guard if s.guard_is_free() || self.config.without == Without::Guard => {
                self.to(if proc.there {
                    Pc::JudgeAgain
                } else {
                    Pc::StageCreate
                });
            }
            Pc::JudgeAgain => match () {
                () if s.path.is_none() && self.config.without == Without::SeenDead => {
                    self.to(Pc::ClaimRename);
                }
                () if s.path.is_none() => self.to(Pc::StageCreate),
                () if self.judge(s.path) == Verdict::Dead => {
                    self.with(Pc::StageCreate, |s, i| s.procs[i].seen = s.path.token());
                }
                () => self.refused(),
            },
            Pc::QueueOpen => match () {
                () if s.path.is_none() || proc.baton == s.queue_of(s.path) => self.to(Pc::Look),
                () => self.with(Pc::Queue, |s, i| s.procs[i].queue = s.queue_of(s.path)),
            },
            Pc::Queue | Pc::QueueWait if s.queue_is_free(proc.queue, self.who) => {
                self.with(Pc::Look, |s, i| {
                    let proc = &mut s.procs[i];
                    proc.baton = std::mem::take(&mut proc.queue);
                });
            }
            Pc::Queue => self.with(Pc::QueueWait, |s, i| s.procs[i].baton = 0),
            _ => {}
        }
    }

    fn publish(&mut self) {
        let s = self.state;
        let me = self.me();
        match s.procs[self.who].pc {
            Pc::StageCreate => self.to(Pc::StageWrite),
            Pc::StageWrite => self.to(Pc::StageLock),
            Pc::StageLock if s.procs[self.who].seen.is_some() => self.to(Pc::StageClaim),
            Pc::StageLock => self.to(Pc::RenameNoReplace),
            Pc::RenameNoReplace if !self.config.exchange => self.to(Pc::Link),
            Pc::RenameNoReplace => self.appear(self.after_publish()),
            Pc::Link => self.appear(Pc::StageUnlink),
            Pc::StageUnlink => self.to(self.after_publish()),
            Pc::ScanAgain => {
                self.with(Pc::ScanAgainEach, |s, i| {
                    s.procs[i].mask = s.listed(self.config.without != Without::ReleaseLook);
                });
            }
            Pc::ScanAgainEach => {
                self.each_claim(Pc::ScanAgainEach, Pc::WithdrawLook, Pc::Sweep);
            }
            Pc::WithdrawLook if s.path.token() == me => self.to(Pc::WithdrawUnlink),
            Pc::WithdrawLook => self.to(Pc::WithdrawSweep),
            Pc::WithdrawUnlink => self.with(Pc::WithdrawSweep, |s, _| s.path = File::NONE),
            Pc::WithdrawSweep => self.leave(self.after_refusal()),
            Pc::Sweep => {
                let dead: Vec<_> = (0..2 * self.config.all())
                    .filter(|index| {
                        let file = s.side(*index);
                        file.is_some() && self.judge(file) == Verdict::Dead
                    })
                    .collect();
                self.with(Pc::OwnLook, |s, _| {
                    for index in dead {
                        s.drop_side(index / 2, index % 2);
                    }
                });
            }
            Pc::OwnLook => {
                let mut next = *s;
                if next.standing(self.who) || self.config.without == Without::OwnLook {
                    next.procs[self.who].pc = Pc::Unguard;
                    self.out.push(next);
                } else {
                    self.changed();
                }
            }
            Pc::Unguard => self.with(Pc::Held, |s, i| s.procs[i].seen = File::NONE),
            _ => {}
        }
    }

    /// The lease's name is made, unless it is there.
    fn appear(&mut self, then: Pc) {
        let me = self.me();
        match () {
            () if self.state.path.is_none() => {
                self.with(then, |s, _| s.path = me.with_lock(true));
            }
            () if self.config.without == Without::SeenDead => self.to(Pc::JudgeAgain),
            () => self.to(Pc::Look),
        }
    }

    fn after_publish(&self) -> Pc {
        if self.config.without == Without::SecondLook {
            Pc::Unguard
        } else {
            Pc::ScanAgain
        }
    }

    fn hold_and_release(&mut self) {
        let s = self.state;
        let me = self.me();
        match s.procs[self.who].pc {
            Pc::Held => {
                self.with(Pc::ReleaseGuard, |s, i| {
                    let queues = [s.procs[i].baton, me.queue()].into_iter();
                    let mut queues = queues.filter(|_| self.config.wait);
                    let waited_for = queues.find(|queue| s.queue_has_waiters(*queue, i));
                    s.procs[i].queue = waited_for.unwrap_or(0);
                });
                if self.config.watch {
                    let mut looked = *s;
                    if !looked.standing(self.who) {
                        looked.procs[self.who].pc = Pc::ReleaseGuard;
                    }
                    self.out.push(looked);
                }
            }
            Pc::ReleaseGuard => {
                if s.guard_is_free() || self.config.without == Without::Guard {
                    self.to(Pc::ReleaseCheck);
                } else if self.config.stopped {
                    // Its holder may be stopped: after 5 s we go on without.
                    self.with(Pc::ReleaseCheck, |s, i| s.procs[i].unguarded = true);
                }
            }
            Pc::ReleaseCheck => {
                let mut next = *s;
                let ours = next.standing(self.who);
                next.procs[self.who].pc = if ours {
                    Pc::ReleaseUnlink
                } else {
                    Pc::ReleaseSweep
                };
                self.out.push(next);
            }
            // Our first inode has no name left, so it lies nowhere else.
            Pc::ReleaseUnlink if s.is_my_inode(s.path, self.who) && !s.procs[self.who].there => {
                self.with(Pc::Idle, |s, i| {
                    s.path = File::NONE;
                    s.unlock(i);
                });
            }
            Pc::ReleaseUnlink => self.with(Pc::ReleaseSweep, |s, _| s.path = File::NONE),
            Pc::ReleaseSweep => self.with(Pc::Idle, |s, i| {
                s.unlock(i);
                s.sweep_own(me);
            }),
            _ => {}
        }
    }
}

impl State {
    pub(super) fn sweep_own(&mut self, token: File) {
        for maker in 0..self.sides.len() {
            for slot in 0..2 {
                let file = self.sides[maker][slot];
                if file.is_some() && file.token() == token {
                    self.drop_side(maker, slot);
                }
            }
        }
    }
}
