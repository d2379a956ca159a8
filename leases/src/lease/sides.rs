//! What crashes and other programs leave beside a lease: claims that block,
//! and litter that is swept.

use super::error::{AcquireError, Holder};
use super::guard::Guard;
use super::place::{Place, Side};
use super::seen::{Seen, SeenFile, see};
use crate::verdict::{Alive, Verdict, Why};
use std::ffi::OsString;

/// The first claim that may belong to somebody alive, as the refusal that it
/// means. Claims with our own token don't count.
///
/// A file of a foreign release counts only if its kernel lock is taken: then it
/// is a live lease of ours that was moved away by mistake. By its pid alone it
/// would count for as long as the foreign program runs.
pub(crate) fn blocking_claim(
    place: &Place,
    sides: &[(Side, OsString)],
    own_token: &str,
) -> Option<AcquireError> {
    for (side, name) in sides.iter().filter(|(side, _)| *side != Side::Staging) {
        let Ok(Seen::File(SeenFile {
            record, verdict, ..
        })) = see(place, name)
        else {
            continue;
        };
        if *side == Side::Release && verdict != Verdict::Alive(Alive::KernelLock) {
            continue;
        }
        if record
            .as_ref()
            .is_some_and(|record| record.token == own_token)
        {
            continue;
        }
        let claim = place.path_of(name);
        match verdict {
            Verdict::Alive(proof) => {
                return Some(AcquireError::Reclaiming {
                    path: place.lease_path(),
                    claim: claim.clone(),
                    holder: Box::new(Holder {
                        path: claim,
                        record,
                        proof,
                    }),
                });
            }
            // A rename never shows half a file: this was no record before.
            Verdict::Dead(_) | Verdict::Unknown(Why::Young) => {}
            Verdict::Unknown(why) => {
                let record = record.map(Box::new);
                return Some(AcquireError::Unknown {
                    path: claim,
                    record,
                    why,
                });
            }
        }
    }
    None
}

/// Removes what the dead left. Only in a guard that is held: nothing of ours is
/// at work then, so our own staging names are litter whatever is in them, and
/// what a foreign program has at work belongs to somebody alive.
pub(crate) fn sweep(place: &Place, guard: &Guard<'_>, sides: &[(Side, OsString)]) {
    for (side, name) in sides {
        let Ok(Seen::File(file)) = see(place, name) else {
            continue;
        };
        let dead = matches!(file.verdict, Verdict::Dead(_));
        let locked = file.verdict == Verdict::Alive(Alive::KernelLock);
        let ours = *side == Side::Staging && guard.is_held() && place.is_own_staging(name);
        if dead || (ours && !locked) {
            // Litter that can't be removed hinders nobody.
            let _ = place.unlink(name);
        }
    }
}

/// Removes the claims that carry our own token: a foreign program had moved
/// our live lease aside and could not put it back.
pub(crate) fn sweep_own(place: &Place, sides: &[(Side, OsString)], token: &str) {
    for (_, name) in sides {
        if let Ok(Seen::File(SeenFile {
            record: Some(record),
            ..
        })) = see(place, name)
            && record.token == token
        {
            let _ = place.unlink(name);
        }
    }
}
