//! How often a worker may be started again after it died.
//!
//! Pure: time comes in as a duration since any fixed moment. Three deaths within
//! 60 s, or ten within 300 s, use the budget up; then nothing is started until a
//! user says so. Between two deaths and the next start there are pauses, so that
//! a host that dies at once never makes a storm of processes.

use std::collections::VecDeque;
use std::time::Duration;

/// What uses a budget up, and the pauses before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// So many deaths within the short window use it up.
    pub short_deaths: usize,
    /// The short window.
    pub short_window: Duration,
    /// So many deaths within the long window use it up.
    pub long_deaths: usize,
    /// The long window.
    pub long_window: Duration,
    /// Pause before the start after the first, second and every later death.
    pub pauses: [Duration; 3],
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            short_deaths: 3,
            short_window: Duration::from_secs(60),
            long_deaths: 10,
            long_window: Duration::from_secs(300),
            pauses: [
                Duration::from_millis(250),
                Duration::from_secs(1),
                Duration::from_secs(5),
            ],
        }
    }
}

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

/// Deaths of one session's workers, or failed starts of one kind of agent.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    limits: Limits,
    deaths: VecDeque<Duration>,
    refused: Option<(usize, Duration)>,
}

impl Budget {
    /// A budget of which nothing is used.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A worker died that nobody had told to stop.
    pub fn death(&mut self, now: Duration) {
        self.deaths.push_back(now);
        while self
            .deaths
            .front()
            .is_some_and(|first| now.saturating_sub(*first) > self.limits.long_window)
        {
            self.deaths.pop_front();
        }
        let recent = |window| {
            self.deaths
                .iter()
                .filter(|at| now.saturating_sub(**at) <= window)
                .count()
        };
        let Limits {
            short_deaths,
            short_window,
            long_deaths,
            long_window,
            ..
        } = self.limits;
        for (limit, window) in [(short_deaths, short_window), (long_deaths, long_window)] {
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
            .filter(|at| now.saturating_sub(**at) <= self.limits.short_window)
            .count();
        match (recent, self.deaths.back()) {
            (0, _) | (_, None) => Start::After(Duration::ZERO),
            (count, Some(last)) => {
                let pauses = self.limits.pauses;
                let pause = pauses[(count - 1).min(pauses.len() - 1)];
                Start::After(pause.saturating_sub(now.saturating_sub(*last)))
            }
        }
    }

    /// A turn ended well: what happened before it says nothing any more. True:
    /// something did.
    pub fn success(&mut self) -> bool {
        let counted = self.refused.is_none() && !self.deaths.is_empty();
        if counted {
            self.deaths.clear();
        }
        counted
    }

    /// Deaths that were counted so long ago, oldest first, by whoever had the budget
    /// before.
    pub fn recall(&mut self, now: Duration, ages: &[Duration]) {
        for age in ages {
            if *age <= self.limits.long_window.min(now) {
                self.death(now - *age);
            }
        }
    }

    /// A user asked for another try.
    pub fn clear(&mut self) {
        *self = Self::new(self.limits);
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
        let pauses = Limits::default().pauses;
        assert_eq!(budget.start(at(0)), Start::After(Duration::ZERO));
        budget.death(at(0));
        assert_eq!(budget.start(at(0)), Start::After(pauses[0]));
        budget.death(at(1));
        assert_eq!(budget.start(at(1)), Start::After(pauses[1]));
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
        // Nor is it forgotten on disk for it.
        assert!(!budget.success());
        assert!(matches!(budget.start(at(10_000)), Start::Refused { .. }));
        budget.clear();
        assert_eq!(budget.start(at(10_000)), Start::After(Duration::ZERO));
    }

    #[test]
    fn a_turn_that_ends_well_wipes_out_what_was_before_it() {
        let mut budget = Budget::default();
        budget.death(at(0));
        budget.death(at(1));
        budget.success();
        assert_eq!(budget.start(at(1)), Start::After(Duration::ZERO));
        budget.death(at(2));
        budget.death(at(3));
        assert!(matches!(budget.start(at(3)), Start::After(_)));
    }

    #[test]
    fn deaths_that_are_recalled_count_by_their_age() {
        let ages = |seconds: &[u64]| -> Vec<Duration> { seconds.iter().map(|s| at(*s)).collect() };
        let now = at(1000);
        let mut budget = Budget::default();
        budget.recall(now, &ages(&[20, 10]));
        assert!(matches!(budget.start(now), Start::After(_)));
        budget.death(now);
        assert!(matches!(
            budget.start(now),
            Start::Refused { deaths: 3, .. }
        ));
        let mut budget = Budget::default();
        budget.recall(now, &ages(&[400, 290, 200, 10]));
        budget.death(now);
        assert!(matches!(budget.start(now), Start::After(_)), "too old");
        assert!(budget.success(), "there were some");
        assert!(!budget.success());
    }

    #[test]
    fn a_window_holds_what_is_as_old_as_it_and_nothing_older() {
        let refused = |deaths: &[u64]| {
            let mut budget = Budget::default();
            for death in deaths {
                budget.death(at(*death));
            }
            matches!(budget.start(at(300)), Start::Refused { .. })
        };
        assert!(refused(&[0, 30, 60]));
        assert!(!refused(&[0, 30, 61]));
        let slow = [0, 33, 66, 100, 133, 166, 200, 233, 266];
        assert!(refused(&[&slow[..], &[300]].concat()));
        assert!(!refused(&[&slow[..], &[301]].concat()));
        // Nor is the pause longer for what is long ago.
        let mut budget = Budget::default();
        budget.death(at(0));
        budget.death(at(100));
        let first = Limits::default().pauses[0];
        assert_eq!(budget.start(at(100)), Start::After(first));
        // What is older than the clock is not recalled either.
        let mut budget = Budget::default();
        budget.recall(at(1000), &[at(301)]);
        budget.recall(at(1), &[at(2)]);
        assert!(!budget.success());
        budget.recall(at(1000), &[at(300)]);
        assert!(budget.success());
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
