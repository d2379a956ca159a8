//! Clocks: the monotonic one for deadlines, the wall clock for display.
//!
//! The monotonic clock stands still while the machine is suspended
//! (`CLOCK_MONOTONIC` on Linux, `CLOCK_UPTIME_RAW` on macOS), so a deadline does
//! not fire because a lid was closed. This is the only place of the crate that
//! reads the wall clock, and nothing is ever decided by it.

use tokio::time::Instant;

/// Now, for deadlines. In tests tokio can pause it.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Now, for people: RFC 3339, UTC, milliseconds.
#[must_use]
pub fn timestamp() -> String {
    format!("{:.3}", jiff::Timestamp::now())
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
