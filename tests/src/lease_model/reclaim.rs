//! Reclaiming: by an exchange of names, or else by moving the dead lease aside.

use super::Without;
use super::explore::overflow;
use super::judge::Verdict;
use super::ours::Walk;
use super::state::{File, Pc, State};

impl Walk<'_> {
    pub(super) fn exchange(&mut self) {
        let s = self.state;
        let who = self.who;
        let me = self.me();
        let mine = s.sides[who][0];
        let seen = s.procs[who].seen;
        let swap = |s: &mut State, i: usize| {
            let side = s.sides[i][0];
            s.sides[i][0] = s.path.as_claim();
            s.path = side.as_claim();
        };
        match s.procs[who].pc {
            Pc::StageClaim => {
                let mut next = *s;
                next.procs[who].pc = Pc::Exchange;
                match next.make_side(who, me.with_lock(true)) {
                    Some(()) => self.out.push(next),
                    None => overflow(),
                }
            }
            Pc::Exchange if !self.config.exchange => {
                self.with(Pc::ClaimRename, |s, i| s.drop_side(i, 0));
            }
            Pc::Exchange if s.path.is_none() || mine.is_none() => {
                self.with(Pc::Look, |s, i| {
                    s.drop_side(i, 0);
                    s.procs[i].seen = File::NONE;
                });
            }
            Pc::Exchange => self.with(Pc::ExchangeCheck, swap),
            Pc::ExchangeCheck => match () {
                () if mine.is_none()
                    || mine.token() == seen
                    || self.judge(mine) == Verdict::Dead
                    || self.config.without == Without::GiveBack =>
                {
                    self.to(Pc::ExchangeDrop);
                }
                () => self.to(Pc::BackLook),
            },
            Pc::ExchangeDrop => self.with(Pc::ScanAgain, |s, i| {
                s.drop_side(i, 0);
                s.procs[i].seen = File::NONE;
            }),
            Pc::BackLook if s.is_my_inode(s.path, who) => self.to(Pc::BackExchange),
            Pc::BackLook if s.path.is_none() => self.to(Pc::BackLink),
            Pc::BackLook => self.changed(),
            Pc::BackExchange if s.path.is_none() || mine.is_none() => self.failed(),
            Pc::BackExchange => self.with(Pc::BackDrop, swap),
            Pc::BackDrop if s.is_my_inode(mine, who) => {
                self.changed_and_dropped();
            }
            Pc::BackDrop => self.changed(),
            Pc::BackLink if mine.is_none() => self.failed(),
            Pc::BackLink if s.path.is_some() => self.changed(),
            Pc::BackLink => self.with(Pc::BackLinkDrop, |s, _| s.path = mine),
            Pc::BackLinkDrop => self.changed_and_dropped(),
            _ => {}
        }
    }

    /// The path changed under our hands.
    pub(super) fn changed(&mut self) {
        self.leave(Pc::Look);
    }

    fn changed_and_dropped(&mut self) {
        self.changed();
        if let Some(next) = self.out.last_mut() {
            next.drop_side(self.who, 0);
        }
    }

    /// An errno that ends the acquire.
    fn failed(&mut self) {
        self.leave(Pc::Idle);
    }

    /// Without the lease: the staged file is closed, and what carries our
    /// token beside the lease is removed.
    pub(super) fn leave(&mut self, pc: Pc) {
        let me = self.me();
        let sweeps = self.config.without != Without::RefusalSweep;
        self.with(pc, |s, i| {
            s.unlock(i);
            s.procs[i].seen = File::NONE;
            if sweeps {
                s.sweep_own(me);
            }
        });
    }

    pub(super) fn move_aside(&mut self) {
        let s = self.state;
        let who = self.who;
        let out = s.sides[who][0];
        let seen = s.procs[who].seen;
        match s.procs[who].pc {
            Pc::ClaimRename if s.path.is_none() => {
                self.with(Pc::Look, |s, i| s.procs[i].seen = File::NONE);
            }
            Pc::ClaimRename => {
                let mut next = *s;
                next.procs[who].pc = Pc::ClaimCheck;
                next.path = File::NONE;
                match next.make_side(who, s.path.as_claim()) {
                    Some(()) => self.out.push(next),
                    None => overflow(),
                }
            }
            Pc::ClaimCheck => match () {
                () if out.is_none()
                    || out.token() == seen
                    || self.judge(out) == Verdict::Dead
                    || self.config.without == Without::SeenDead =>
                {
                    self.to(Pc::ClaimDrop);
                }
                () => self.to(Pc::ClaimRestore),
            },
            Pc::ClaimDrop => self.with(Pc::StageCreate, |s, i| {
                s.drop_side(i, 0);
                s.procs[i].seen = File::NONE;
            }),
            Pc::ClaimRestore if out.is_none() => self.failed(),
            Pc::ClaimRestore if s.path.is_some() => self.changed(),
            Pc::ClaimRestore => self.with(Pc::ClaimRestoreDrop, |s, _| s.path = out),
            Pc::ClaimRestoreDrop => {
                self.with(Pc::Look, |s, i| {
                    s.drop_side(i, 0);
                    s.procs[i].seen = File::NONE;
                });
            }
            _ => {}
        }
    }
}
