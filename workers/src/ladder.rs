//! The stop ladder as a pure machine: inputs and a monotonic `now` in, effects
//! out. It owns no process and sends no signal.
//!
//! Invariants:
//! - a ladder only climbs; a second stop request jumps ahead, nothing goes back;
//! - every stage has a deadline, so that a ladder that was started finishes;
//! - it finishes on [`StopStage::Sweep`] only: a host that is gone is no proof
//!   that its children are.

use std::time::Duration;

use ade_protocol::boot::WorkerTiming;
use tokio::time::Instant;

/// How long the kernel gets to end a group that was sent SIGKILL before the
/// sweep begins without it.
const KILL_GRACE: Duration = Duration::from_secs(1);

/// Pause between two rounds of the sweep. A killed process is gone within
/// microseconds; the pause lets the kernel hand its orphans over.
const SWEEP_ROUND: Duration = Duration::from_millis(20);

/// When a sweep gives up and reports what is left. A process that survives
/// SIGKILL for so long hangs in the kernel and will never run again.
const SWEEP_LIMIT: Duration = Duration::from_secs(3);

/// The stages, from the politest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StopStage {
    /// The host is asked to end.
    Dispose,
    /// Its standard input is closed.
    Eof,
    /// SIGTERM and SIGCONT go to its group.
    Term,
    /// SIGKILL goes to its group.
    Kill,
    /// Everything that is still below this process is killed.
    Sweep,
}

impl StopStage {
    /// The stage's name in frames.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dispose => "dispose",
            Self::Eof => "eof",
            Self::Term => "term",
            Self::Kill => "kill",
            Self::Sweep => "sweep",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Dispose => Self::Eof,
            Self::Eof => Self::Term,
            Self::Term => Self::Kill,
            Self::Kill | Self::Sweep => Self::Sweep,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Somebody wants it to stop, from this stage on. When it stops already and
    /// is that far, this jumps one stage ahead.
    Stop(StopStage),
    /// The host has been reaped, or never ran.
    HostGone,
    /// A round of the sweep left so many processes alive.
    Swept {
        /// How many.
        left: usize,
    },
    /// The kernel says that nothing is below any more.
    Childless,
    /// The deadline passed, or may have.
    Tick,
}

/// What has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Do what the stage stands for. For [`StopStage::Sweep`]: one round.
    Enter(StopStage),
    /// One more round of the sweep.
    Round,
    /// Over. `clean` is false when something survived.
    Finished {
        /// Whether nothing is left.
        clean: bool,
    },
}

/// One stop, from the first request to the end of the sweep.
#[derive(Debug)]
pub(crate) struct Ladder {
    dispose: Duration,
    eof: Duration,
    term: Duration,
    stage: Option<StopStage>,
    host_gone: bool,
    deadline: Option<Instant>,
    sweep_until: Option<Instant>,
    finished: bool,
}

impl Ladder {
    /// A ladder that nobody has stepped on.
    pub(crate) fn new(timing: &WorkerTiming) -> Self {
        Self {
            dispose: Duration::from_millis(timing.dispose_grace_ms),
            eof: Duration::from_millis(timing.eof_grace_ms),
            term: Duration::from_millis(timing.term_to_kill_ms),
            stage: None,
            host_gone: false,
            deadline: None,
            sweep_until: None,
            finished: false,
        }
    }

    /// Where it stands; `None` before the first stop request.
    pub(crate) fn stage(&self) -> Option<StopStage> {
        self.stage
    }

    /// Whether everything is done.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// When [`Input::Tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Takes one input.
    pub(crate) fn on(&mut self, input: Input, now: Instant) -> Option<Effect> {
        if self.finished {
            return None;
        }
        match input {
            Input::HostGone => {
                self.host_gone = true;
                match self.stage {
                    Some(stage) if stage < StopStage::Sweep => self.enter(StopStage::Sweep, now),
                    _ => None,
                }
            }
            Input::Stop(wanted) => self.stop(wanted, now),
            Input::Swept { left } => self.swept(left, now),
            // A round that finds nobody: the pause before the next one is over.
            Input::Childless => {
                let waits = self.stage == Some(StopStage::Sweep) && self.deadline.is_some();
                waits.then_some(Effect::Round)
            }
            Input::Tick => match self.deadline {
                Some(deadline) if now >= deadline => self.overdue(now),
                _ => None,
            },
        }
    }

    fn stop(&mut self, wanted: StopStage, now: Instant) -> Option<Effect> {
        let target = match self.stage {
            None if self.host_gone => StopStage::Sweep,
            None => wanted,
            Some(StopStage::Sweep) => return None,
            Some(stage) if wanted > stage => wanted,
            Some(stage) => stage.next(),
        };
        self.enter(target, now)
    }

    fn overdue(&mut self, now: Instant) -> Option<Effect> {
        match self.stage? {
            StopStage::Sweep => {
                self.deadline = None;
                Some(Effect::Round)
            }
            stage => self.enter(stage.next(), now),
        }
    }

    fn swept(&mut self, left: usize, now: Instant) -> Option<Effect> {
        let until = self.sweep_until?;
        if left == 0 || now >= until {
            self.finished = true;
            self.deadline = None;
            return Some(Effect::Finished { clean: left == 0 });
        }
        self.deadline = Some((now + SWEEP_ROUND).min(until));
        None
    }

    fn enter(&mut self, stage: StopStage, now: Instant) -> Option<Effect> {
        self.stage = Some(stage);
        self.deadline = match stage {
            StopStage::Dispose => Some(now + self.dispose),
            StopStage::Eof => Some(now + self.eof),
            StopStage::Term => Some(now + self.term),
            StopStage::Kill => Some(now + KILL_GRACE),
            StopStage::Sweep => {
                self.sweep_until = Some(now + SWEEP_LIMIT);
                None
            }
        };
        Some(Effect::Enter(stage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: StopStage = StopStage::Dispose;

    /// Milliseconds after the start, the input, the effect.
    type Step = (u64, Input, Option<Effect>);

    fn play(steps: &[Step]) {
        let timing = WorkerTiming::default();
        let begin = Instant::now();
        let mut ladder = Ladder::new(&timing);
        for (index, (at, input, effect)) in steps.iter().enumerate() {
            let now = begin + Duration::from_millis(*at);
            assert_eq!(ladder.on(*input, now), *effect, "step {index} of {steps:?}");
        }
    }

    fn enter(stage: StopStage) -> Option<Effect> {
        Some(Effect::Enter(stage))
    }

    #[test]
    fn a_deaf_host_meets_every_stage_in_order() {
        play(&[
            (0, Input::Stop(START), enter(StopStage::Dispose)),
            (1_499, Input::Tick, None),
            (1_500, Input::Tick, enter(StopStage::Eof)),
            (2_000, Input::Tick, enter(StopStage::Term)),
            (3_499, Input::Tick, None),
            (3_500, Input::Tick, enter(StopStage::Kill)),
            (3_501, Input::HostGone, enter(StopStage::Sweep)),
            (3_502, Input::Childless, None),
            (3_502, Input::Swept { left: 2 }, None),
            (3_503, Input::Childless, Some(Effect::Round)),
            (3_503, Input::Swept { left: 1 }, None),
            (3_522, Input::Tick, None),
            (3_523, Input::Tick, Some(Effect::Round)),
            // Not again before that one is over.
            (3_524, Input::Tick, None),
            (
                3_524,
                Input::Swept { left: 0 },
                Some(Effect::Finished { clean: true }),
            ),
            (3_525, Input::Childless, None),
            (3_526, Input::Swept { left: 0 }, None),
            (9_999, Input::Stop(START), None),
        ]);
    }

    #[test]
    fn a_polite_host_is_only_swept_after() {
        play(&[
            (0, Input::Stop(START), enter(StopStage::Dispose)),
            (30, Input::HostGone, enter(StopStage::Sweep)),
            (
                31,
                Input::Swept { left: 0 },
                Some(Effect::Finished { clean: true }),
            ),
        ]);
    }

    #[test]
    fn a_second_request_jumps_ahead_and_never_back() {
        play(&[
            (0, Input::Stop(START), enter(StopStage::Dispose)),
            (1, Input::Stop(START), enter(StopStage::Eof)),
            (2, Input::Stop(StopStage::Kill), enter(StopStage::Kill)),
            (3, Input::Stop(START), enter(StopStage::Sweep)),
            (4, Input::Stop(START), None),
            (5, Input::HostGone, None),
            (
                6,
                Input::Swept { left: 0 },
                Some(Effect::Finished { clean: true }),
            ),
        ]);
    }

    #[test]
    fn without_a_host_only_the_sweep_is_left() {
        play(&[
            (0, Input::HostGone, None),
            (1, Input::Stop(START), enter(StopStage::Sweep)),
            (
                2,
                Input::Swept { left: 0 },
                Some(Effect::Finished { clean: true }),
            ),
        ]);
    }

    #[test]
    fn a_sweep_that_cannot_finish_gives_up_and_says_so() {
        play(&[
            (0, Input::Stop(StopStage::Kill), enter(StopStage::Kill)),
            (1_000, Input::Tick, enter(StopStage::Sweep)),
            (1_001, Input::Swept { left: 1 }, None),
            (3_990, Input::Tick, Some(Effect::Round)),
            (3_990, Input::Swept { left: 1 }, None),
            // The last round is not later than the limit.
            (4_000, Input::Tick, Some(Effect::Round)),
            (
                4_000,
                Input::Swept { left: 1 },
                Some(Effect::Finished { clean: false }),
            ),
        ]);
    }

    #[test]
    fn nothing_is_due_once_it_is_over() {
        let (mut ladder, now) = (Ladder::new(&WorkerTiming::default()), Instant::now());
        ladder.on(Input::Stop(StopStage::Sweep), now);
        ladder.on(Input::Swept { left: 1 }, now);
        assert!(ladder.deadline().is_some(), "another round");
        // The kernel said before that that nothing is left.
        assert_eq!(ladder.on(Input::Childless, now), Some(Effect::Round));
        let over = ladder.on(Input::Swept { left: 0 }, now);
        assert_eq!(over, Some(Effect::Finished { clean: true }));
        assert_eq!(ladder.deadline(), None);
    }

    #[test]
    fn inputs_before_a_request_do_nothing() {
        play(&[
            (0, Input::Tick, None),
            (1, Input::Swept { left: 0 }, None),
            (2, Input::Childless, None),
        ]);
    }

    #[test]
    fn every_start_stage_ends_within_its_bounds() {
        let timing = WorkerTiming::default();
        let begin = Instant::now();
        for stage in [
            START,
            StopStage::Eof,
            StopStage::Term,
            StopStage::Kill,
            StopStage::Sweep,
        ] {
            let mut ladder = Ladder::new(&timing);
            let mut effect = ladder.on(Input::Stop(stage), begin);
            let mut now = begin;
            while !ladder.is_finished() {
                if matches!(
                    effect,
                    Some(Effect::Round | Effect::Enter(StopStage::Sweep))
                ) {
                    effect = ladder.on(Input::Swept { left: 1 }, now);
                    continue;
                }
                now = ladder.deadline().expect("every stage has a deadline");
                effect = ladder.on(Input::Tick, now);
            }
            assert_eq!(ladder.deadline(), None, "nothing is due any more");
            assert!(
                now - begin <= Duration::from_millis(7_500),
                "{stage:?}: {:?}",
                now - begin
            );
        }
    }
}
