//! Clocks: the monotonic one for deadlines, the wall clock for display.
//!
//! The monotonic clock stands still while the machine is suspended
//! (`CLOCK_MONOTONIC` on Linux, `CLOCK_UPTIME_RAW` on macOS), so a deadline does
//! not fire because a lid was closed. This is the only place of the crate that
//! reads the wall clock, and nothing is ever decided by it.

use std::time::Duration;

use tokio::time::Instant;

use crate::platform;

/// Now, for deadlines. In tests tokio can pause it.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// How late a deadline may be seen that ends somebody's time to speak. Whoever
/// sees it later did not run meanwhile (it was stopped, or the machine was busy),
/// and what was said to it may lie unread.
pub const LATE: Duration = Duration::from_millis(500);

/// How much longer is waited then, once.
pub const GRACE: Duration = Duration::from_secs(1);

/// How much longer is waited otherwise: the runtime may see the clock before it
/// sees what came in the same moment.
const BREATH: Duration = Duration::from_millis(20);

/// Waits until somebody's time to speak is over, and what was said in it could be
/// read.
pub async fn time_is_up(at: Instant) {
    tokio::time::sleep_until(at).await;
    let late = now().saturating_duration_since(at) > LATE;
    tokio::time::sleep(if late { GRACE } else { BREATH }).await;
}

/// What `said` gives until then. `None`: it was not said in time.
pub async fn in_time<T>(at: Instant, said: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        said = said => Some(said),
        () = time_is_up(at) => None,
    }
}

/// Now, for people: RFC 3339, UTC, milliseconds.
#[must_use]
pub fn timestamp() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// The moment that lies so far back, for people.
#[must_use]
pub fn ago(time: Duration) -> String {
    let then = jiff::SignedDuration::try_from(time)
        .ok()
        .and_then(|time| jiff::Timestamp::now().checked_sub(time).ok());
    then.map_or_else(timestamp, |then| format!("{then:.3}"))
}

/// Milliseconds on the machine's monotonic clock, without the time that it was
/// suspended. All processes of one boot see
/// the same clock, so a number that one of them wrote means something to the
/// next.
#[must_use]
pub fn monotonic_ms() -> u64 {
    let now = nix::time::clock_gettime(platform::STEADY_CLOCK).map(std::time::Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_timestamp_is_utc_with_milliseconds() {
        let text = super::timestamp();
        assert_eq!(text.len(), "2026-01-02T03:04:05.678Z".len(), "{text}");
        assert!(text.ends_with('Z') && text.as_bytes()[19] == b'.', "{text}");
    }
}
