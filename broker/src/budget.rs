//! How often a worker may be started again after it died.
//!
//! Pure: time comes in as a duration since any fixed moment. Three deaths within
//! 60 s, or ten within 300 s, use the budget up; then nothing is started until a
//! user says so. Between two deaths and the next start there are pauses, so that
//! a host that dies at once never makes a storm of processes.

use std::collections::VecDeque;
use std::time::Duration;

/// Deaths within [`SHORT_WINDOW`] that use the budget up.
pub const SHORT_LIMIT: usize = 3;
/// The short window.
pub const SHORT_WINDOW: Duration = Duration::from_secs(60);
/// Deaths within [`LONG_WINDOW`] that use the budget up.
pub const LONG_LIMIT: usize = 10;
/// The long window.
pub const LONG_WINDOW: Duration = Duration::from_secs(300);
/// Pause before the start after the first, second and every later death.
pub const PAUSES: [Duration; 3] = [
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// What the budget says about a start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After this pause.
    After(Duration),
    /// Not before a user clears it; so many deaths in so long a time.
    Refused {
        /// Deaths counted.
        deaths: usize,
        /// Within this window.
        window: Duration,
    },
}

/// Deaths of one session's workers.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    deaths: VecDeque<Duration>,
    refused: Option<(usize, Duration)>,
}

impl Budget {
    /// A worker died that nobody had told to stop.
    pub fn death(&mut self, now: Duration) {
        self.deaths.push_back(now);
        while self
            .deaths
            .front()
            .is_some_and(|first| now.saturating_sub(*first) > LONG_WINDOW)
        {
            self.deaths.pop_front();
        }
        let recent = |window| {
            self.deaths
                .iter()
                .filter(|at| now.saturating_sub(**at) <= window)
                .count()
        };
        for (limit, window) in [(SHORT_LIMIT, SHORT_WINDOW), (LONG_LIMIT, LONG_WINDOW)] {
            let deaths = recent(window);
            if deaths >= limit {
                self.refused = Some((deaths, window));
                return;
            }
        }
    }

    /// Whether a worker may be started now.
    #[must_use]
    pub fn start(&self, now: Duration) -> Start {
        if let Some((deaths, window)) = self.refused {
            return Start::Refused { deaths, window };
        }
        let recent = self
            .deaths
            .iter()
            .filter(|at| now.saturating_sub(**at) <= SHORT_WINDOW)
            .count();
        match (recent, self.deaths.back()) {
            (0, _) | (_, None) => Start::After(Duration::ZERO),
            (count, Some(last)) => {
                let pause = PAUSES[(count - 1).min(PAUSES.len() - 1)];
                Start::After(pause.saturating_sub(now.saturating_sub(*last)))
            }
        }
    }

    /// A turn ended well: what happened before it says nothing any more.
    pub fn success(&mut self) {
        if self.refused.is_none() {
            self.deaths.clear();
        }
    }

    /// A user asked for another try.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn three_deaths_in_a_minute_are_enough() {
        let mut budget = Budget::default();
        assert_eq!(budget.start(at(0)), Start::After(Duration::ZERO));
        budget.death(at(0));
        assert_eq!(budget.start(at(0)), Start::After(PAUSES[0]));
        budget.death(at(1));
        assert_eq!(budget.start(at(1)), Start::After(PAUSES[1]));
        assert_eq!(budget.start(at(2)), Start::After(Duration::ZERO));
        budget.death(at(59));
        assert!(matches!(
            budget.start(at(59)),
            Start::Refused { deaths: 3, .. }
        ));
        assert!(
            matches!(budget.start(at(10_000)), Start::Refused { .. }),
            "only a user clears it"
        );
        budget.success();
        assert!(matches!(budget.start(at(10_000)), Start::Refused { .. }));
        budget.clear();
        assert_eq!(budget.start(at(10_000)), Start::After(Duration::ZERO));
    }

    #[test]
    fn slow_deaths_use_the_long_window() {
        let mut budget = Budget::default();
        for n in 0..9 {
            budget.death(at(n * 31));
            assert!(matches!(budget.start(at(n * 31)), Start::After(_)), "{n}");
        }
        budget.death(at(9 * 31));
        assert!(matches!(
            budget.start(at(9 * 31)),
            Start::Refused { deaths: 10, .. }
        ));
    }
}
