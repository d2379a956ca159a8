//! Taking a lease.

use super::error::{AcquireError, Holder};
use super::guard::{Guard, GuardError};
use super::held::{Lease, Replaced};
use super::mine::{Mine, look_for_mine};
use super::place::{Place, Side};
use super::publish::{Published, Staged, publish};
use super::queue::{Baton, Queued, queue, queue_of};
use super::reclaim::{Reclaimed, reclaim};
use super::registry::{Ticket, kept_queue};
use super::seam::{Seam, Step};
use super::seen::{Seen, SeenFile, see};
use super::sides::{blocking_claim, sweep, sweep_own};
use crate::record::{OwnerKind, Record};
use crate::verdict::Verdict;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the path may change under our hands before that is an error.
const ROUNDS: u32 = 8;

/// Bounds of the pause between two looks where there is no queue.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Half to all of it, so that two that poll don't keep step.
fn jittered(pause: Duration) -> Duration {
    let random = std::hash::RandomState::new().build_hasher().finish();
    pause / 2 + pause.mul_f64(f64::from(random as u16) / f64::from(u16::MAX) / 2.0)
}

/// Who wants a lease, and for how long it may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The kind of holder.
    pub owner: OwnerKind,
    /// The live holder: a chat or a terminal handle. Blank gets a fresh uuid.
    pub owner_id: String,
    /// How long to wait for a live holder; `None` refuses at once.
    pub wait: Option<Duration>,
}

/// Takes the lease of a session file that need not exist yet.
///
/// # Errors
/// See [`AcquireError`]; [`AcquireError::is_contention`] tells "somebody has
/// it" from everything else. Whatever happens, nothing is left behind.
pub fn acquire(session_file: &Path, request: &Request) -> Result<Lease, AcquireError> {
    acquire_with(session_file, request, &Seam::default())
}

/// As [`acquire`], with a hook at every step. For tests.
///
/// # Errors
/// As [`acquire`].
pub fn acquire_with(
    session_file: &Path,
    request: &Request,
    seam: &Seam,
) -> Result<Lease, AcquireError> {
    let deadline = request.wait.map(|wait| Instant::now() + wait);
    let place = Place::of(session_file)?;
    let ticket = Ticket::take(place.key(), &request.owner_id, deadline).map_err(|owner_id| {
        let path = place.lease_path();
        AcquireError::AlreadyHere { path, owner_id }
    })?;
    let mut taking = Taking {
        place: &place,
        request,
        seam,
        record: None,
        session: PathBuf::new(),
        replaced: None,
        baton: None,
    };
    let staged = match deadline {
        None => taking.rounds()?,
        Some(deadline) => taking.until(deadline)?,
    };
    let record = taking.record();
    let Taking {
        session,
        baton,
        replaced,
        ..
    } = taking;
    let lease = Lease::new(place, session, record, staged, baton, seam.clone(), ticket);
    Ok(lease.in_place_of(replaced))
}

struct Taking<'a> {
    place: &'a Place,
    request: &'a Request,
    seam: &'a Seam,
    /// Made when it is first needed: a refusal needs none.
    record: Option<Record>,
    session: PathBuf,
    replaced: Option<Replaced>,
    /// The place at the head of the queue, once we have it.
    baton: Option<Baton>,
}

impl Taking<'_> {
    /// Our record, with the queue that is ours by now.
    fn record(&mut self) -> Record {
        let mut record = self.record.take().unwrap_or_else(|| {
            self.session = self.place.canonical_session();
            Record::new(self.request.owner, &self.request.owner_id, &self.session)
        });
        record.queue = self.baton.as_ref().and_then(Baton::advertised);
        record
    }

    fn until(&mut self, deadline: Instant) -> Result<Staged, AcquireError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        // Others waited when we released: they come first.
        if let Some(file) = kept_queue(&self.place.key()) {
            queue(&mut self.baton, file, left(), self.seam);
        }
        let mut pause = PAUSE_MIN;
        loop {
            let refusal = match self.rounds() {
                Ok(staged) => return Ok(staged),
                Err(refusal) if !refusal.is_contention() => return Err(refusal),
                Err(refusal) => refusal,
            };
            if left().is_zero() {
                return Err(refusal);
            }
            let queued = match queue_of(self.place, refusal.holder()) {
                Some(file) => queue(&mut self.baton, file, left(), self.seam),
                None => Queued::NoQueue,
            };
            match queued {
                Queued::Next => pause = PAUSE_MIN,
                // The last look tells who has it now.
                Queued::TimedOut => return self.rounds(),
                Queued::NoQueue => {
                    std::thread::sleep(jittered(pause).min(left()));
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    fn rounds(&mut self) -> Result<Staged, AcquireError> {
        for _ in 0..ROUNDS {
            if let Some(staged) = self.round()? {
                return Ok(staged);
            }
        }
        Err(AcquireError::Contended {
            path: self.place.lease_path(),
            rounds: ROUNDS,
        })
    }

    /// `None`: the path changed under our hands.
    fn round(&mut self) -> Result<Option<Staged>, AcquireError> {
        // The first look is without the guard: a refusal costs one read.
        let there = self.judge(Step::Look)?.is_some();
        self.refuse_claims(Step::ScanClaims, "")?;
        let guard = Guard::take(self.place, self.seam).map_err(|error| match error {
            GuardError::Timeout => AcquireError::GuardTimeout {
                dir: self.place.dir_path.clone(),
            },
            GuardError::Io(source) => {
                AcquireError::io(Some(Step::Guard), &self.place.dir_path, source)
            }
        })?;
        let dead = if there {
            self.judge(Step::JudgeAgain)?
        } else {
            None
        };
        let record = self.record();
        let taken = match dead {
            // No record seen means: try to publish, never to reclaim.
            None => match publish(self.place, &record, self.seam)? {
                Published::Ours(staged) => Ok(Some(staged)),
                Published::Taken => return Ok(None),
            },
            Some(dead) => match reclaim(self.place, &record, &dead, self.seam) {
                Ok(Reclaimed::Ours(staged)) => {
                    self.replaced = Replaced::of(dead);
                    Ok(Some(staged))
                }
                Ok(Reclaimed::Changed) => Ok(None),
                Err(error) => Err(error),
            },
        };
        let taken = match taken {
            Ok(Some(staged)) => self.confirm(&guard, staged, &record.token),
            other => other,
        };
        if matches!(taken, Ok(Some(_))) {
            let unguard = || {
                drop(guard);
                Ok(())
            };
            let _ = self.seam.run(Step::Unguard, unguard);
        } else {
            // A foreign program may have moved our file aside while it stood at
            // the name. There it would block everybody for as long as we live.
            let sides = self.place.sides().unwrap_or_default();
            sweep_own(self.place, &sides, &record.token);
        }
        self.record = Some(record);
        taken
    }

    /// What was published is the lease if no live claim lies beside it, and if
    /// it still stands there. Needs the guard.
    fn confirm(
        &self,
        guard: &Guard<'_>,
        staged: Staged,
        token: &str,
    ) -> Result<Option<Staged>, AcquireError> {
        let mine = || {
            look_for_mine(self.place, staged.inode, token).map_err(|source| {
                AcquireError::io(Some(Step::ScanAgain), &self.place.lease_path(), source)
            })
        };
        let sides = match self.refuse_claims(Step::ScanAgain, token) {
            Ok(sides) => sides,
            Err(refusal) => {
                // The foreign program had moved a live lease aside while we
                // published. Only our own file is removed again.
                if let Ok(Mine::Same | Mine::Copy(..) | Mine::Unlocked) = mine() {
                    let _ = self.place.unlink(&self.place.lease);
                }
                return Err(refusal);
            }
        };
        sweep(self.place, guard, &sides);
        match mine()? {
            Mine::Same | Mine::Unlocked => Ok(Some(staged)),
            Mine::Copy(file, inode) => Ok(Some(Staged {
                file,
                inode,
                copied: true,
                ..staged
            })),
            // It was moved away meanwhile, and somebody may have it by now.
            Mine::Gone | Mine::Foreign(_) => Ok(None),
        }
    }

    /// The dead file that may be reclaimed, or nothing; else the refusal.
    fn judge(&self, step: Step) -> Result<Option<SeenFile>, AcquireError> {
        let path = || self.place.lease_path();
        let seen = self
            .seam
            .run(step, || see(self.place, &self.place.lease))
            .map_err(|source| AcquireError::io(Some(step), &path(), source))?;
        match seen {
            Seen::Nothing => Ok(None),
            Seen::NotAFile(what) => Err(AcquireError::NotAFile { path: path(), what }),
            Seen::File(file) => match file.verdict {
                Verdict::Dead(_) => Ok(Some(file)),
                Verdict::Alive(proof) => {
                    let holder = Holder {
                        path: path(),
                        record: file.record,
                        proof,
                    };
                    Err(AcquireError::Held(Box::new(holder)))
                }
                Verdict::Unknown(why) => {
                    let record = file.record.map(Box::new);
                    Err(AcquireError::Unknown {
                        path: path(),
                        record,
                        why,
                    })
                }
            },
        }
    }

    fn refuse_claims(
        &self,
        step: Step,
        own_token: &str,
    ) -> Result<Vec<(Side, OsString)>, AcquireError> {
        let sides = self
            .seam
            .run(step, || self.place.sides())
            .map_err(|source| AcquireError::io(Some(step), &self.place.dir_path, source))?;
        match blocking_claim(self.place, &sides, own_token) {
            Some(refusal) => Err(refusal),
            None => Ok(sides),
        }
    }
}
