//! The machine by table and by exhaustive exploration.

use std::collections::BTreeMap;

use super::*;

const FIRST_EVENT: Duration = Duration::from_secs(90);

fn id(text: &str) -> TurnId {
    TurnId::from(text)
}

fn send(turn: &str) -> Input {
    Input::Send {
        turn: id(turn),
        prompt: format!("prompt {turn}"),
    }
}

fn fail(category: ErrorCategory) -> Failure {
    Failure::new("test", category, "it broke")
}

/// The machine with a clock and a record of what it did.
#[derive(Clone)]
struct Rig {
    machine: Machine,
    now: Mono,
    generation: u64,
    effects: Vec<Effect>,
}

impl Rig {
    fn new() -> Self {
        let machine = Machine::new(FIRST_EVENT);
        Self {
            machine,
            now: Duration::ZERO,
            generation: 0,
            effects: Vec::new(),
        }
    }

    fn on(&mut self, input: Input) -> Vec<Effect> {
        let effects = self.machine.on(input, self.now);
        self.effects.extend(effects.iter().cloned());
        effects
    }

    fn ready(&mut self) -> Vec<Effect> {
        self.generation += 1;
        self.on(Input::WorkerReady(Generation(self.generation)))
    }

    fn event(&mut self, turn: &str) {
        self.on(Input::Event(Generation(self.generation), Some(id(turn))));
    }

    fn ended(&mut self, turn: &str, ending: Ending) -> Vec<Effect> {
        self.on(Input::Ended(Generation(self.generation), id(turn), ending))
    }

    fn pass(&mut self, seconds: u64) -> Vec<Effect> {
        self.now += Duration::from_secs(seconds);
        self.on(Input::Tick)
    }

    fn sends(&self, turn: &str) -> usize {
        let sent =
            |effect: &&Effect| matches!(effect, Effect::Send { turn: t, .. } if *t == id(turn));
        self.effects.iter().filter(sent).count()
    }

    fn ends(&self, turn: &str) -> Vec<TurnStatus> {
        self.effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Finish {
                    turn: t, status, ..
                } if *t == id(turn) => Some(*status),
                _ => None,
            })
            .collect()
    }
}

fn completed() -> Ending {
    Ending::Completed {
        stop_reason: None,
        usage: None,
    }
}

#[test]
fn a_plain_turn() {
    let mut rig = Rig::new();
    assert!(rig.on(send("a")).contains(&Effect::Acquire));
    rig.ready();
    assert_eq!(rig.machine.state(), State::AwaitingFirstEvent);
    rig.event("a");
    assert_eq!(rig.machine.deadline(), None);
    rig.pass(100_000);
    rig.ended("a", completed());
    assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
    rig.on(send("b"));
    assert_eq!(
        rig.machine.state(),
        State::AwaitingFirstEvent,
        "the worker is kept"
    );
}

#[test]
fn silence_is_recycled_once_and_then_told() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    assert!(rig.pass(89).is_empty());
    let effects = rig.pass(1);
    assert!(effects.contains(&Effect::Poison) && effects.contains(&Effect::Acquire));
    rig.ready();
    assert_eq!(rig.sends("a"), 2);
    rig.pass(90);
    assert_eq!(rig.sends("a"), 2, "never a third time");
    assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
    let poisons = rig.effects.iter().filter(|e| **e == Effect::Poison).count();
    assert_eq!(poisons, 2, "the second worker is recycled too");
}

#[test]
fn what_does_not_count_as_the_first_event() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.on(Input::Event(Generation(1), None));
    rig.on(Input::Event(Generation(1), Some(id("other"))));
    rig.on(Input::Event(Generation(7), Some(id("a"))));
    assert_eq!(rig.machine.state(), State::AwaitingFirstEvent);
}

#[test]
fn a_failure_is_sent_again_only_when_it_may_be() {
    let table = [
        (ErrorCategory::Network, 2),
        (ErrorCategory::Exited, 2),
        (ErrorCategory::Busy, 1),
        (ErrorCategory::RateLimit, 1),
        (ErrorCategory::Auth, 1),
        (ErrorCategory::NotFound, 1),
        (ErrorCategory::Unknown, 1),
    ];
    for (category, sends) in table {
        let mut rig = Rig::new();
        rig.on(send("a"));
        rig.ready();
        rig.ended("a", Ending::Failed(fail(category)));
        if sends == 2 {
            rig.ready();
        }
        assert_eq!(rig.sends("a"), sends, "{category:?}");
    }
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    rig.ended("a", Ending::Failed(fail(ErrorCategory::Network)));
    assert_eq!(rig.sends("a"), 1, "not after an event");
    assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
}

#[test]
fn a_stop_during_recovery_sends_nothing() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.pass(90);
    rig.on(Input::Abort);
    rig.ready();
    assert_eq!(rig.sends("a"), 1);
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
}

#[test]
fn an_abort_that_is_not_answered_costs_the_worker() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    rig.on(Input::Abort);
    assert_eq!(rig.machine.state(), State::Interrupting);
    assert!(rig.pass(11).contains(&Effect::Poison));
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
}

#[test]
fn queued_messages_run_in_order_and_end_with_a_stop() {
    let mut rig = Rig::new();
    for turn in ["a", "b", "c"] {
        rig.on(send(turn));
    }
    rig.ready();
    rig.ended("a", completed());
    assert_eq!(rig.machine.turn(), Some(&id("b")));
    rig.on(Input::Stop);
    rig.ended("b", Ending::Interrupted);
    for turn in ["b", "c"] {
        assert_eq!(rig.ends(turn), [TurnStatus::Interrupted], "{turn}");
    }
    assert_eq!(rig.sends("c"), 0);
}

#[test]
fn a_turn_that_was_taken_over_goes_on() {
    let attach = |sends, resumable| {
        let left = Duration::from_secs(30);
        let legacy = Legacy {
            sends,
            resumable,
            left,
        };
        let machine = Machine::attaching(FIRST_EVENT, (id("a"), "prompt a".into()), legacy);
        Rig {
            machine,
            generation: 4,
            ..Rig::new()
        }
    };
    let generation = Generation(4);

    let mut rig = attach(0, false);
    rig.on(Input::Adopted(
        generation,
        Adopted::Has {
            seen: false,
            card: false,
        },
    ));
    assert!(rig.pass(29).is_empty(), "what was left of the time is kept");
    assert!(rig.pass(1).contains(&Effect::Poison));

    let mut rig = attach(0, false);
    rig.on(Input::Adopted(
        generation,
        Adopted::Has {
            seen: true,
            card: false,
        },
    ));
    rig.pass(1000);
    rig.ended("a", completed());
    assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
    assert_eq!(rig.sends("a"), 0);

    let mut rig = attach(0, false);
    rig.on(Input::Adopted(generation, Adopted::NeverSent));
    assert_eq!(rig.sends("a"), 1, "it is sent for the first time");

    let mut rig = attach(0, false);
    rig.on(Input::Abort);
    let effects = rig.on(Input::Adopted(
        generation,
        Adopted::Has {
            seen: true,
            card: true,
        },
    ));
    assert!(effects.contains(&Effect::Abort(id("a"))));

    let mut rig = attach(0, false);
    rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
    assert_eq!(
        rig.ends("a"),
        [TurnStatus::Failed],
        "nothing is sent again on a guess"
    );
    assert_eq!(rig.sends("a"), 0);

    let mut rig = attach(0, true);
    let effects = rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
    assert_eq!(effects, [Effect::Acquire], "it was never sent");
    rig.ready();
    assert_eq!(rig.sends("a"), 1);

    // The recovery that the last broker had begun is finished, and is the last.
    let mut rig = attach(1, true);
    let effects = rig.on(Input::Adopted(generation, Adopted::NeverSent));
    assert!(matches!(
        &effects[..],
        [Effect::Emit(..), Effect::Send { recovery: true, .. }]
    ));
    rig.pass(1000);
    assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
    assert_eq!(rig.sends("a"), 1);
}

#[test]
fn a_message_during_a_takeover_is_written_to_the_worker_that_was_taken_over() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.on(Input::Adopted(Generation(1), Adopted::NeverSent));
    assert_eq!(rig.sends("a"), 1);
    let mut rig = Rig::new();
    rig.on(send("a"));
    let effects = rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
    assert_eq!(effects, [Effect::Acquire]);
}

#[test]
fn what_can_no_longer_be_written_down_ends_everything_at_once() {
    let mut rig = Rig::new();
    for turn in ["a", "b"] {
        rig.on(send(turn));
    }
    rig.ready();
    let effects = rig.on(Input::Unrecordable(fail(ErrorCategory::Unknown)));
    assert!(effects.contains(&Effect::Poison) && !effects.contains(&Effect::Acquire));
    for turn in ["a", "b"] {
        assert_eq!(rig.ends(turn), [TurnStatus::Failed], "{turn}");
    }
    assert_eq!(rig.machine.state(), State::Idle);
}

/// Runs every sequence of up to seven inputs from a small alphabet and checks
/// the invariants of the module's documentation after each.
#[test]
fn every_interleaving_of_seven_inputs_keeps_the_invariants() {
    let mut explored = 0_u64;
    explore(&Rig::new(), 0, &mut explored);
    assert!(
        explored > 100_000,
        "{explored} sequences are too few to mean anything"
    );
}

const DEPTH: usize = 7;

fn explore(rig: &Rig, depth: usize, explored: &mut u64) {
    *explored += 1;
    check(rig);
    if depth == DEPTH {
        return;
    }
    for choice in 0..9 {
        let mut next = rig.clone();
        if step(&mut next, choice, depth) {
            explore(&next, depth + 1, explored);
        }
    }
}

/// Applies one letter of the alphabet; false when it makes no sense here and
/// would only double another sequence.
fn step(rig: &mut Rig, choice: usize, depth: usize) -> bool {
    let current = rig.machine.turn().cloned();
    let generation = Generation(rig.generation);
    match choice {
        0 => drop(rig.on(send(&format!("t{depth}")))),
        1 => {
            let waits = matches!(rig.machine.state(), State::Starting | State::Recovering);
            if !waits {
                return false;
            }
            rig.ready();
        }
        2 => drop(rig.on(Input::Event(generation, current))),
        3 => drop(rig.on(Input::CardOpened(generation, current))),
        4 => {
            let Some(turn) = current else { return false };
            drop(rig.on(Input::Ended(generation, turn, completed())));
        }
        5 => {
            let Some(turn) = current else { return false };
            let failed = Ending::Failed(fail(ErrorCategory::Network));
            drop(rig.on(Input::Ended(generation, turn, failed)));
        }
        6 => drop(rig.on(Input::WorkerExited(generation, fail(ErrorCategory::Exited)))),
        7 => drop(rig.on(if depth.is_multiple_of(2) {
            Input::Abort
        } else {
            Input::Stop
        })),
        _ => drop(rig.pass(90)),
    }
    true
}

fn check(rig: &Rig) {
    let mut begun = 0_usize;
    let mut ends: BTreeMap<&TurnId, usize> = BTreeMap::new();
    let mut sends: BTreeMap<&TurnId, usize> = BTreeMap::new();
    for effect in &rig.effects {
        match effect {
            Effect::Emit(_, Event::UserMessage { .. }) => begun += 1,
            Effect::Finish { turn, status, .. } => {
                assert_ne!(*status, TurnStatus::Started);
                *ends.entry(turn).or_default() += 1;
            }
            Effect::Send { turn, recovery, .. } => {
                assert!(!ends.contains_key(turn), "sent after its end");
                let count = sends.entry(turn).or_default();
                *count += 1;
                assert!(*count <= 2, "sent more than twice");
                assert_eq!(*recovery, *count == 2);
            }
            _ => {}
        }
    }
    assert!(ends.values().all(|count| *count == 1), "a turn ended twice");
    let running = usize::from(rig.machine.turn().is_some());
    // Turns that were dropped from the queue end without having begun.
    assert!(begun <= ends.len() + running, "a turn was lost");
    let idle = rig.machine.state() == State::Idle;
    assert_eq!(idle, running == 0, "idle exactly when nothing runs");
    assert!(
        !idle || rig.machine.queued() == 0,
        "a message waits for nothing"
    );
}
