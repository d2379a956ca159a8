//! Waiting for what will become true, with a name for when it does not.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(10);

/// How long [`wait_until`] waits: generous, because a loaded machine is slow
/// and a wait that succeeds costs only as long as it takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `look` finds something and returns it.
///
/// # Panics
/// With `label`, when nothing was found for [`PATIENCE`].
#[track_caller]
pub fn wait_until<T>(label: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_within(label, PATIENCE, look)
}

/// The same with another bound, for when the bound is what is tested.
///
/// # Panics
/// With `label`, when nothing was found within `bound`.
#[track_caller]
pub fn wait_within<T>(label: &str, bound: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + bound;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            Instant::now() < until,
            "waited {bound:?} in vain for: {label}"
        );
        sleep(STEP);
    }
}

/// Waits until `look` is true.
///
/// # Panics
/// With `label`, when it was not for [`PATIENCE`].
#[track_caller]
pub fn wait_true(label: &str, mut look: impl FnMut() -> bool) {
    wait_until(label, || look().then_some(()));
}
