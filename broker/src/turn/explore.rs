//! The machine's invariants: all interleavings of up to seven inputs, and long
//! random sequences.
//!
//! Both give the machine letters of the same alphabet and fold every effect into
//! a [`Ledger`], which knows the invariants. States of machine and ledger that
//! were met before are merged, so that *all* sequences are covered although
//! there are millions of them.

mod ledger;

use std::collections::HashMap;

use proptest::prelude::*;

use self::ledger::{Ledger, Message};
use super::*;

const FIRST_EVENT: Duration = Duration::from_secs(90);

/// An agent that can do all of it.
const ABLE: Recovery = Recovery {
    fresh_agent: true,
    reconnects: true,
};

fn rules(recovery: Recovery) -> Rules {
    Rules {
        timing: Timing::new(FIRST_EVENT),
        recovery,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    machine: Machine,
    ledger: Ledger,
    now: Mono,
    generation: u64,
    given: u32,
}

/// The alphabet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Letter {
    Send,
    Steer,
    Replace,
    Continue,
    RecoverQueue,
    CancelQueued,
    Ready,
    NoWorker,
    Event,
    Card,
    Settled,
    Completed,
    Network,
    /// A login token has expired.
    Stale,
    Unknown,
    Exited,
    Abort,
    /// The worker answers it.
    Aborted,
    Stop,
    PutAway,
    Moment,
    Deadline,
    /// The agent that was to be resumed is gone.
    Gone,
    /// Nothing can be written down any more.
    Unrecordable,
    /// The worker that is taken over never got the message.
    NeverSent,
    /// It has it, and nothing of it was seen.
    Unseen,
    /// It has it, and it streams.
    Seen,
    /// It cannot be taken over.
    TakeoverFailed,
    /// The worker was started with what is not wanted any more.
    Outdated,
    /// Frames of the worker before, and of another turn.
    Old,
}

const PROMPT: &str = "prompt";

const ALPHABET: [Letter; 30] = [
    Letter::Send,
    Letter::Steer,
    Letter::Replace,
    Letter::Continue,
    Letter::RecoverQueue,
    Letter::CancelQueued,
    Letter::Ready,
    Letter::NoWorker,
    Letter::Event,
    Letter::Card,
    Letter::Settled,
    Letter::Completed,
    Letter::Network,
    Letter::Stale,
    Letter::Unknown,
    Letter::Exited,
    Letter::Abort,
    Letter::Aborted,
    Letter::Gone,
    Letter::Stop,
    Letter::PutAway,
    Letter::Moment,
    Letter::Deadline,
    Letter::Unrecordable,
    Letter::NeverSent,
    Letter::Unseen,
    Letter::Seen,
    Letter::TakeoverFailed,
    Letter::Outdated,
    Letter::Old,
];

fn completed() -> Ending {
    Ending::Completed {
        stop_reason: None,
        usage: None,
    }
}

fn failed(kind: &str, category: ErrorCategory) -> Failure {
    Failure::new(kind, category, "it broke")
}

impl World {
    fn new(recovery: Recovery) -> Self {
        let ledger = Ledger {
            recovery,
            ..Ledger::default()
        };
        Self {
            machine: Machine::new(rules(recovery)),
            ledger,
            now: Duration::ZERO,
            generation: 0,
            given: 0,
        }
    }

    /// A broker that finds a turn of another one, which had sent it to `sends`
    /// workers before the one that lives.
    fn taking_over(sends: u8, resumable: bool, noted: bool, again: Option<Again>) -> Self {
        let mut world = Self::new(ABLE);
        let (turn, prompt) = world.message();
        let message = world.ledger.of(&turn);
        (message.begun, message.sends) = (true, sends + u8::from(noted && resumable));
        message.seen = again == Some(Again::Continue);
        message.silent = matches!(again, Some(Again::Reconnect | Again::Continue));
        let legacy = Legacy {
            sends,
            resumable,
            noted,
            again,
            left: Duration::from_secs(30),
        };
        world.machine = Machine::attaching(rules(ABLE), (turn, prompt), legacy);
        world.generation = 1;
        if again.is_some() {
            world.leave_a_steer();
        }
        world
    }

    /// A message for the running turn waits, as the other broker had queued it.
    fn leave_a_steer(&mut self) {
        let steers = self.machine.turn().cloned();
        let (turn, prompt) = self.message();
        self.ledger.of(&turn).on_disk = true;
        self.machine.restore_queue([Queued {
            turn,
            prompt,
            steers,
        }]);
    }

    fn on(&mut self, input: Input) {
        for effect in self.machine.on(input, self.now) {
            self.ledger.take(&effect);
        }
        self.ledger.outdated &= self.has_worker();
        self.check();
    }

    /// Whether one is in use or being taken over.
    fn has_worker(&self) -> bool {
        self.machine.worker().is_some() || self.machine.state() == State::Attaching
    }

    /// A message with a name of its own.
    fn message(&mut self) -> (TurnId, String) {
        self.given += 1;
        let turn = TurnId::from(format!("t{}", self.given));
        self.ledger
            .messages
            .insert(turn.clone(), Message::default());
        (turn, PROMPT.to_owned())
    }

    fn stopped_by_user(&mut self) {
        if let Some(turn) = self.machine.turn().cloned() {
            self.ledger.of(&turn).stopped = true;
        }
    }

    fn ended(&mut self, ending: Ending) {
        if let Some(turn) = self.machine.turn().cloned() {
            self.on(Input::Ended(Generation(self.generation), turn, ending));
        }
    }

    fn waits_for_worker(&self) -> bool {
        matches!(self.machine.state(), State::Starting | State::Recovering)
    }

    fn step(&mut self, letter: Letter) {
        let generation = Generation(self.generation);
        let turn = self.machine.turn().cloned();
        match letter {
            Letter::Send => {
                if self.machine.has_room() {
                    let (turn, prompt) = self.message();
                    self.on(Input::Send { turn, prompt });
                }
            }
            Letter::Steer => {
                if self.machine.has_room() {
                    let (turn, prompt) = self.message();
                    self.on(Input::Steer { turn, prompt });
                }
            }
            Letter::Replace => self.interrupt(Interrupt::Replace),
            Letter::Continue => self.interrupt(Interrupt::Continue),
            Letter::RecoverQueue => self.on(Input::RecoverQueue),
            Letter::CancelQueued => {
                let first = self.machine.queue().next().map(|row| row.turn.clone());
                if let Some(turn) = first {
                    self.on(Input::CancelQueued(turn));
                }
            }
            Letter::Ready => {
                if self.waits_for_worker() {
                    self.generation += 1;
                    (self.ledger.worker, self.ledger.starting) = (true, false);
                    self.on(Input::WorkerReady(Generation(self.generation)));
                }
            }
            Letter::NoWorker => {
                if self.waits_for_worker() {
                    self.ledger.starting = false;
                    self.on(Input::WorkerFailed(failed("start", ErrorCategory::Exited)));
                }
            }
            Letter::Event => {
                self.noted(generation);
                self.on(Input::Event(generation, turn));
            }
            Letter::Card => {
                self.noted(generation);
                self.on(Input::CardOpened(generation, turn));
            }
            Letter::Settled => self.on(Input::CardsSettled(generation)),
            Letter::Completed => self.ended(completed()),
            Letter::Network => self.ended(Ending::Failed(failed("n", ErrorCategory::Network))),
            Letter::Stale => {
                let kind = crate::classify::STALE_TOKEN;
                self.ended(Ending::Failed(failed(kind, ErrorCategory::Auth)));
            }
            Letter::Gone => {
                if self.waits_for_worker() {
                    let kind = crate::classify::AGENT_NOT_FOUND;
                    let failure = failed(kind, ErrorCategory::NotFound);
                    self.ledger.starting = false;
                    self.on(Input::WorkerFailed(failure));
                }
            }
            Letter::Unknown => {
                let kind = ade_protocol::frame::code::DELIVERED_OUTCOME_UNKNOWN;
                self.ended(Ending::Failed(failed(kind, ErrorCategory::Unknown)));
            }
            Letter::Exited => {
                let failure = failed("exited", ErrorCategory::Exited);
                self.ledger.worker = false;
                self.on(Input::WorkerExited(generation, failure));
            }
            Letter::Aborted => self.on(Input::AbortAnswered(generation)),
            Letter::Abort => {
                self.stopped_by_user();
                self.on(Input::Abort);
            }
            Letter::Stop => {
                self.stopped_by_user();
                self.on(Input::Stop);
            }
            Letter::PutAway => self.on(Input::PutAway),
            Letter::Moment => self.pass(8),
            Letter::Deadline => self.pass(90),
            Letter::Unrecordable => {
                let failure = failed("state", ErrorCategory::Unknown);
                self.on(Input::Unrecordable(failure));
            }
            Letter::NeverSent => self.adopted(Adopted::NeverSent),
            Letter::Unseen => self.adopted(Adopted::Has {
                seen: false,
                card: false,
            }),
            Letter::Seen => self.adopted(Adopted::Has {
                seen: true,
                card: false,
            }),
            Letter::TakeoverFailed => {
                if self.machine.state() == State::Attaching {
                    let failure = failed("takeover", ErrorCategory::Exited);
                    self.on(Input::TakeoverFailed(failure));
                }
            }
            Letter::Outdated => self.outdated(),
            Letter::Old => self.old(),
        }
    }

    /// What the machine takes of a turn was seen of it.
    fn noted(&mut self, generation: Generation) {
        let turn = self.machine.turn().cloned();
        if let Some(turn) = turn.filter(|turn| self.machine.accepts(generation, Some(turn))) {
            self.ledger.of(&turn).seen = true;
        }
    }

    /// Said of the worker that is in use, or of the one that is taken over.
    fn outdated(&mut self) {
        self.ledger.outdated = self.has_worker();
        self.on(Input::Outdated(Generation(self.generation)));
    }

    /// A worker of another broker is taken over.
    fn adopted(&mut self, adopted: Adopted) {
        let Some(turn) = self.machine.turn().cloned() else {
            return;
        };
        if self.machine.state() == State::Attaching {
            if let Adopted::Has { seen, card } = adopted
                && !self.machine.is_given_up()
            {
                let message = self.ledger.of(&turn);
                message.sends += 1;
                message.seen |= seen || card;
                message.silent = false;
            }
            self.ledger.worker = true;
            self.on(Input::Adopted(Generation(self.generation), adopted));
        }
    }

    fn interrupt(&mut self, mode: Interrupt) {
        if self.machine.has_room() {
            self.stopped_by_user();
            let (turn, prompt) = self.message();
            self.on(Input::Interrupt { turn, prompt, mode });
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.on(Input::Tick);
    }

    /// No frame of an older worker or of another turn has an effect.
    fn old(&mut self) {
        let before = self.machine.clone();
        let old = Generation(self.generation.wrapping_sub(1));
        let now_runs = self.machine.turn().cloned();
        let other = TurnId::from("another");
        let failure = failed("exited", ErrorCategory::Exited);
        let mut inputs = vec![
            Input::Event(old, now_runs.clone()),
            Input::CardOpened(old, now_runs.clone()),
            Input::CardsSettled(old),
            Input::WorkerExited(old, failure),
            Input::AbortAnswered(old),
            Input::Event(Generation(self.generation), Some(other.clone())),
            Input::CardOpened(Generation(self.generation), Some(other.clone())),
            Input::Ended(Generation(self.generation), other, completed()),
        ];
        if self.machine.state() == State::Cancelling {
            // Let go of already: it is of an old generation too.
            let given_up = Generation(self.generation);
            let ended = |turn| Input::Ended(given_up, turn, Ending::Interrupted);
            inputs.extend(now_runs.clone().map(ended));
            inputs.push(Input::Event(given_up, now_runs.clone()));
            inputs.push(Input::CardOpened(given_up, now_runs.clone()));
        }
        inputs.extend(now_runs.map(|turn| Input::Ended(old, turn, completed())));
        for input in inputs {
            let effects = self.machine.on(input.clone(), self.now);
            assert!(effects.is_empty(), "{input:?}: {effects:?}");
        }
        assert_eq!(self.machine, before, "a stale frame changed something");
    }

    fn check(&self) {
        let running = self.machine.turn();
        let idle = self.machine.state() == State::Idle;
        assert_eq!(idle, running.is_none(), "idle exactly when nothing runs");
        // Without this an abort would leave the next message to a start that may hang.
        assert_eq!(
            self.ledger.starting,
            self.waits_for_worker(),
            "a worker is being had exactly while a turn waits for one"
        );
        let waits = self.machine.queued() > 0 && !self.machine.is_held();
        assert!(!idle || !waits, "a message waits for nothing");
        for (turn, message) in &self.ledger.messages {
            let runs = message.begun && message.ends == 0;
            assert_eq!(runs, running == Some(turn), "{turn} was lost");
            let queued = self.machine.queue().any(|row| row.turn == *turn);
            assert_eq!(queued, message.on_disk, "{turn}: disk and memory differ");
        }
    }

    /// Drops what no later input can tell apart: the time that has passed, and
    /// messages that have ended. An effect on one of those is a panic from then
    /// on, as it must be.
    fn forget(&mut self) {
        const BASE: Mono = Duration::from_secs(100_000);
        self.machine.rebase(self.now, BASE);
        self.now = BASE;
        self.ledger.messages.retain(|_, message| message.ends == 0);
    }

    /// Whatever happened, everything ends when the worker does its part.
    fn finish(mut self) {
        for _ in 0..6 * (MAX_QUEUE + 4) {
            self.step(Letter::TakeoverFailed);
            self.step(Letter::Ready);
            self.ended(completed());
            self.pass(1_000);
            if self.machine.is_held() {
                // It waits for a message of the user's.
                self.step(Letter::Send);
            } else if self.machine.state() == State::Idle {
                break;
            }
        }
        assert_eq!(self.machine.state(), State::Idle, "{self:?}");
        let ends = self.ledger.messages.values().map(|message| message.ends);
        assert!(ends.into_iter().all(|ends| ends == 1), "{:?}", self.ledger);
    }
}

/// Runs every sequence of letters up to this length.
fn explore(first: World, alphabet: &[Letter], length: u32) {
    // Each world with the number of sequences that lead to it.
    let mut level: HashMap<World, u64> = HashMap::from([(first, 1)]);
    let mut sequences = 0_u64;
    for _ in 0..length {
        let mut deeper: HashMap<World, u64> = HashMap::new();
        for (world, ways) in level {
            for letter in alphabet {
                let mut next = world.clone();
                next.step(*letter);
                next.forget();
                *deeper.entry(next).or_default() += ways;
            }
        }
        sequences += deeper.values().sum::<u64>();
        level = deeper;
    }
    assert!(
        level.len() > 1_000,
        "{} different worlds are too few",
        level.len()
    );
    for world in level.into_keys() {
        world.finish();
    }
    let letters = u64::try_from(alphabet.len()).unwrap();
    let all: u64 = (1..=length).map(|length| letters.pow(length)).sum();
    assert_eq!(sequences, all, "every sequence was covered");
}

#[test]
fn every_interleaving_of_seven_inputs_keeps_the_invariants() {
    explore(World::new(ABLE), &ALPHABET, 7);
}

#[test]
fn every_interleaving_of_an_agent_that_is_resumed_keeps_the_invariants() {
    explore(World::new(Recovery::default()), &ALPHABET, 6);
}

#[test]
fn every_interleaving_after_a_takeover_keeps_the_invariants() {
    let [resend, reconnect, go_on] = [Again::Resend, Again::Reconnect, Again::Continue].map(Some);
    // Never sent, or sent to this worker for the first time.
    for (resumable, noted) in [(true, false), (false, true)] {
        explore(World::taking_over(0, resumable, noted, None), &ALPHABET, 6);
    }
    for again in [resend, reconnect, go_on] {
        // Given up together with this worker, or about to be sent to it, or sent.
        for (sends, resumable, noted) in [(0, true, true), (1, true, false), (1, false, true)] {
            let world = World::taking_over(sends, resumable, noted, again);
            explore(world, &ALPHABET, 5);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn long_random_sequences_keep_the_invariants(
        letters in prop::collection::vec(0..ALPHABET.len(), 200..400)
    ) {
        let mut world = World::new(ABLE);
        for letter in letters {
            world.step(ALPHABET[letter]);
        }
        world.finish();
    }
}
