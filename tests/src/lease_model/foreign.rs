//! The steps of the public app: it knows no guard and no kernel lock, judges by
//! the pid, and reclaims a lease that it could not read.

use super::Config;
use super::state::{File, Pc, State};

struct Walk<'a> {
    config: &'a Config,
    state: &'a State,
    who: usize,
    out: &'a mut Vec<State>,
}

impl Walk<'_> {
    fn to(&mut self, pc: Pc) {
        self.with(pc, |_, _| {});
    }

    fn with(&mut self, pc: Pc, change: impl FnOnce(&mut State, usize)) {
        let mut next = *self.state;
        change(&mut next, self.who);
        next.procs[self.who].pc = pc;
        if matches!(pc, Pc::Idle | Pc::FHeld | Pc::FScan) {
            next.procs[self.who].seen = File::NONE;
        }
        self.out.push(next);
    }

    /// It has three attempts; here it may give up after any.
    fn next_attempt(&mut self, change: impl Fn(&mut State, usize)) {
        self.with(Pc::FScan, &change);
        self.with(Pc::Idle, &change);
    }

    fn link(&mut self, then: impl FnOnce(&mut Self)) {
        let me = File::of(self.who, &self.state.procs[self.who]);
        if self.state.path.is_none() {
            self.with(Pc::FHeld, |s, _| s.path = me);
        } else {
            then(self);
        }
    }
}

/// Everything that the foreign process `who` may do next, but for crashing.
pub(super) fn steps_of(config: &Config, state: &State, who: usize, out: &mut Vec<State>) {
    let mut walk = Walk {
        config,
        state,
        who,
        out,
    };
    match state.procs[who].pc {
        Pc::FHeld
        | Pc::FRelease
        | Pc::FReleaseCheck
        | Pc::FReleaseLook
        | Pc::FReleaseLink
        | Pc::FReleaseDrop
        | Pc::FReleaseSweep => walk.release(),
        Pc::FRename
        | Pc::FCheck
        | Pc::FRestoreLook
        | Pc::FRestoreLink
        | Pc::FRestoreDrop
        | Pc::FClaimDrop => walk.reclaim(),
        _ => walk.acquire(),
    }
}

impl Walk<'_> {
    fn acquire(&mut self) {
        let s = self.state;
        let proc = &s.procs[self.who];
        match proc.pc {
            Pc::Idle if proc.left > 0 => self.with(Pc::FScan, |s, i| s.procs[i].left -= 1),
            Pc::FScan => self.with(Pc::FScanRead, |s, i| s.procs[i].mask = s.listed(false)),
            Pc::FScanRead if proc.mask == 0 => self.to(Pc::FLink),
            Pc::FScanRead => {
                let file = s.side(proc.mask.trailing_zeros() as usize);
                if s.foreign_says_alive(self.config, file) {
                    self.with(Pc::Idle, |s, i| s.procs[i].mask = 0);
                } else {
                    self.to(Pc::FScanDelete);
                }
            }
            // Were the name gone by now, we would be back at the reading.
            Pc::FScanDelete => {
                let next = proc.mask.trailing_zeros() as usize;
                self.with(Pc::FScanRead, |s, _| s.drop_side(next / 2, next % 2));
            }
            Pc::FLink => self.link(|walk| walk.to(Pc::FRead)),
            Pc::FRead if s.path.is_none() => self.to(Pc::FRename),
            Pc::FRead if s.foreign_says_alive(self.config, s.path) => self.to(Pc::Idle),
            Pc::FRead => self.with(Pc::FRename, |s, i| s.procs[i].seen = s.path.token()),
            Pc::FLinkAgain => self.link(|walk| walk.next_attempt(|_, _| {})),
            _ => {}
        }
    }

    fn reclaim(&mut self) {
        let s = self.state;
        let who = self.who;
        let out = s.sides[who][0];
        let seen = s.procs[who].seen;
        match s.procs[who].pc {
            Pc::FRename if s.path.is_none() => self.next_attempt(|_, _| {}),
            Pc::FRename => {
                let mut next = *s;
                next.procs[who].pc = Pc::FCheck;
                next.path = File::NONE;
                match next.make_side(who, s.path.as_claim()) {
                    Some(()) => self.out.push(next),
                    None => super::explore::overflow(),
                }
            }
            Pc::FCheck => {
                let changed = seen.is_some() && out.token() != seen;
                let alive = out.is_some() && s.foreign_says_alive(self.config, out);
                if changed || alive {
                    self.with(Pc::FRestoreLook, |s, i| s.procs[i].seen = out.token());
                } else {
                    self.to(Pc::FClaimDrop);
                }
            }
            Pc::FRestoreLook if seen.is_none() => self.next_attempt(|s, i| s.drop_side(i, 0)),
            Pc::FRestoreLook if s.path.is_none() => self.to(Pc::FRestoreLink),
            Pc::FRestoreLook => self.next_attempt(|_, _| {}),
            Pc::FRestoreLink if s.path.is_none() => {
                self.with(Pc::FRestoreDrop, |s, _| s.path = seen);
            }
            Pc::FRestoreLink => self.next_attempt(|_, _| {}),
            Pc::FRestoreDrop => self.next_attempt(|s, i| s.drop_side(i, 0)),
            Pc::FClaimDrop => self.with(Pc::FLinkAgain, |s, i| {
                s.drop_side(i, 0);
                s.procs[i].seen = File::NONE;
            }),
            _ => {}
        }
    }

    fn release(&mut self) {
        let s = self.state;
        let who = self.who;
        let out = s.sides[who][0];
        let me = File::of(who, &s.procs[who]);
        match s.procs[who].pc {
            Pc::FHeld => self.to(Pc::FRelease),
            Pc::FRelease if s.path.is_none() => self.to(Pc::Idle),
            Pc::FRelease => {
                let mut next = *s;
                next.procs[who].pc = Pc::FReleaseCheck;
                next.path = File::NONE;
                match next.make_side(who, s.path.as_release()) {
                    Some(()) => self.out.push(next),
                    None => super::explore::overflow(),
                }
            }
            Pc::FReleaseCheck if out.is_none() || out.token() == me => {
                self.with(Pc::FReleaseSweep, |s, i| s.drop_side(i, 0));
            }
            Pc::FReleaseCheck => {
                self.with(Pc::FReleaseLook, |s, i| s.procs[i].seen = out.token());
            }
            Pc::FReleaseLook if s.path.is_none() => self.to(Pc::FReleaseLink),
            Pc::FReleaseLook => self.to(Pc::FReleaseSweep),
            Pc::FReleaseLink if s.path.is_none() => {
                let seen = s.procs[who].seen;
                self.with(Pc::FReleaseDrop, |s, _| s.path = seen);
            }
            Pc::FReleaseLink => self.to(Pc::FReleaseSweep),
            Pc::FReleaseDrop => self.with(Pc::FReleaseSweep, |s, i| s.drop_side(i, 0)),
            Pc::FReleaseSweep => self.with(Pc::Idle, |s, _| {
                for maker in 0..s.sides.len() {
                    for slot in 0..2 {
                        let file = s.sides[maker][slot];
                        if file.is_some() && !file.is_release() && file.token() == me {
                            s.drop_side(maker, slot);
                        }
                    }
                }
            }),
            _ => {}
        }
    }
}
