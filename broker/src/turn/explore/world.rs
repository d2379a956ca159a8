//! A machine with its ledger: what each letter gives it, and what must hold
//! after each.

use super::super::heard::Quiet;
use super::super::*;
use super::ledger::{Ledger, Message};
use super::{ABLE, Letter, PROMPT};

const FIRST_EVENT: Duration = Duration::from_secs(90);

fn rules(recovery: Recovery) -> Rules {
    Rules {
        timing: Timing::new(FIRST_EVENT),
        recovery,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    machine: Machine,
    ledger: Ledger,
    now: Mono,
    generation: u64,
    given: u32,
}

fn completed() -> Ending {
    Ending::Completed {
        stop_reason: None,
        usage: None,
    }
}

fn failed(kind: &str, category: ErrorCategory) -> Failure {
    Failure::new(kind, category, "it broke")
}

/// A worker that has the message.
fn has(seen: bool) -> Adopted {
    Adopted::Has { seen, card: false }
}

impl World {
    pub(super) fn new(recovery: Recovery) -> Self {
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
    pub(super) fn taking_over(
        sends: u8,
        resumable: bool,
        noted: bool,
        again: Option<Again>,
    ) -> Self {
        let mut world = Self::new(ABLE);
        let (turn, prompt) = world.message();
        let message = world.ledger.of(&turn);
        (message.begun, message.sends) = (true, sends + u8::from(noted && resumable));
        message.seen = again == Some(Again::Continue);
        message.silent = matches!(again, Some(Again::Reconnect | Again::Continue));
        message.took = noted;
        let legacy = Legacy {
            sends,
            resumable,
            evicted: false,
            noted,
            again,
            left: Duration::from_secs(30),
            cancel: Duration::from_secs(2),
        };
        world.ledger.planned = noted && resumable;
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

    /// The worker that has the message of the running turn shows something of it.
    /// What the machine knows of that worker does not count.
    fn shows(&mut self) {
        if let Some(turn) = self.machine.turn().cloned()
            && self.ledger.worker
        {
            let message = self.ledger.of(&turn);
            message.worked |= message.sends > 0;
        }
    }

    /// The same of a worker that is not in use any more.
    fn worked(&mut self) {
        let Some(turn) = self.machine.turn().cloned() else {
            return;
        };
        // Where another broker has put it on disk, too.
        let sent = match self.machine.state() {
            // To the worker that is taken over.
            State::Attaching => self.machine.is_given_up(),
            _ => self.ledger.of(&turn).sends > 0,
        };
        if sent && !self.ledger.worker {
            self.ledger.of(&turn).worked = true;
            self.on(Input::Worked(turn));
        }
    }

    /// The worker takes a message for the running turn.
    fn taken(&mut self) {
        let turn = self.machine.turn().cloned();
        if let Some(turn) = turn.filter(|turn| self.machine.is_unheard(turn))
            && self.machine.state() == State::AwaitingFirstEvent
        {
            self.ledger.of(&turn).took = true;
        }
    }

    fn ended(&mut self, ending: Ending) {
        if ending.shows_work() {
            self.shows();
        }
        if let Some(turn) = self.machine.turn().cloned() {
            // Of a run that ends as it was told to nothing counts.
            let counts = self.machine.state() != State::Cancelling || ending.shows_work();
            self.ledger.has_last_word = counts;
            self.on(Input::Ended(Generation(self.generation), turn, ending));
            self.ledger.has_last_word = false;
        }
    }

    fn waits_for_worker(&self) -> bool {
        matches!(self.machine.state(), State::Starting | State::Recovering)
    }

    pub(super) fn step(&mut self, letter: Letter) {
        let generation = Generation(self.generation);
        match letter {
            Letter::Send => self.given(|turn, prompt| Input::Send { turn, prompt }),
            Letter::Steer => self.given(|turn, prompt| Input::Steer { turn, prompt }),
            Letter::Replace => self.interrupt(Interrupt::Replace),
            Letter::Continue => self.interrupt(Interrupt::Continue),
            Letter::RecoverQueue => self.on(Input::RecoverQueue),
            Letter::CancelQueued => self.cancel_queued(),
            Letter::Ready => self.ready(),
            Letter::NoWorker => self.no_worker("start", ErrorCategory::Exited),
            Letter::Gone => {
                self.no_worker(crate::classify::AGENT_NOT_FOUND, ErrorCategory::NotFound);
            }
            Letter::Event => self.shown(Input::Event),
            Letter::Card => {
                self.shown(Input::CardOpened);
                self.asked(self.machine.turn().cloned().as_ref());
            }
            Letter::SignIn => {
                self.on(Input::CardOpened(generation, None));
                self.asked(None);
            }
            Letter::Settled => {
                self.ledger.card = false;
                self.on(Input::CardsSettled(generation));
            }
            Letter::Completed => self.ended(completed()),
            Letter::Network => self.failed("n", ErrorCategory::Network),
            Letter::Stale => self.failed(crate::classify::STALE_TOKEN, ErrorCategory::Auth),
            Letter::Unknown => {
                let kind = ade_protocol::frame::code::DELIVERED_OUTCOME_UNKNOWN;
                self.failed(kind, ErrorCategory::Unknown);
            }
            Letter::Exited => {
                let failure = failed("exited", ErrorCategory::Exited);
                self.ledger.worker = false;
                self.on(Input::WorkerExited(generation, failure));
            }
            Letter::Worked => self.worked(),
            Letter::Taken => self.taken(),
            Letter::Aborted => self.on(Input::AbortAnswered(generation)),
            Letter::Abort => self.by_user(Input::Abort),
            Letter::Stop => self.by_user(Input::Stop),
            Letter::PutAway => self.on(Input::PutAway),
            Letter::Moment => self.pass(8),
            Letter::Deadline => self.pass(90),
            Letter::Unrecordable => {
                let failure = failed("state", ErrorCategory::Unknown);
                (self.ledger.has_last_word, self.ledger.unwritable) = (true, true);
                self.on(Input::Unrecordable(failure));
                (self.ledger.has_last_word, self.ledger.unwritable) = (false, false);
            }
            Letter::NeverSent => self.adopted(Adopted::NeverSent),
            Letter::Unseen => self.adopted(has(false)),
            Letter::Seen => self.adopted(has(true)),
            Letter::TakeoverFailed => self.takeover_failed(),
            Letter::Outdated => self.outdated(),
            Letter::Old => self.old(),
        }
    }

    /// A message of the user's, while there is room for it.
    fn given(&mut self, input: impl Fn(TurnId, String) -> Input) {
        if self.machine.has_room() {
            let (turn, prompt) = self.message();
            self.on(input(turn, prompt));
        }
    }

    fn by_user(&mut self, input: Input) {
        self.stopped_by_user();
        self.on(input);
        self.check_end_noted();
    }

    /// A turn that the user has ended and that goes on is ended by the next broker
    /// too. A stop of the session is carried out at once.
    fn check_end_noted(&mut self) {
        if self.machine.state() == State::Stopping {
            return;
        }
        if let Some(turn) = self.machine.turn().cloned() {
            let message = self.ledger.of(&turn);
            assert!(message.end_noted || !message.stopped, "{turn}: not on disk");
        }
    }

    fn cancel_queued(&mut self) {
        let first = self.machine.queue().next().map(|row| row.turn.clone());
        if let Some(turn) = first {
            let by = "somebody".to_owned();
            self.on(Input::CancelQueued { turn, by });
        }
    }

    fn ready(&mut self) {
        if self.waits_for_worker() {
            self.generation += 1;
            (self.ledger.worker, self.ledger.starting) = (true, false);
            self.ledger.rotates = false;
            self.on(Input::WorkerReady(Generation(self.generation)));
        }
    }

    fn no_worker(&mut self, kind: &str, category: ErrorCategory) {
        if self.waits_for_worker() {
            self.ledger.starting = false;
            self.on(Input::WorkerFailed(failed(kind, category)));
        }
    }

    fn failed(&mut self, kind: &str, category: ErrorCategory) {
        self.ended(Ending::Failed(failed(kind, category)));
    }

    fn takeover_failed(&mut self) {
        if self.machine.state() == State::Attaching {
            let failure = failed("takeover", ErrorCategory::Exited);
            self.on(Input::TakeoverFailed(failure));
        }
    }

    /// Something of the turn that runs. What the machine takes of it was seen.
    fn shown(&mut self, input: impl Fn(Generation, Option<TurnId>) -> Input) {
        self.shows();
        let generation = Generation(self.generation);
        let turn = self.machine.turn().cloned();
        if let Some(turn) = &turn
            && self.machine.accepts(generation, Some(turn))
        {
            let message = self.ledger.of(turn);
            (message.seen, message.took) = (true, false);
        }
        self.on(input(generation, turn));
    }

    /// The worker waits for the answer to a card of this turn, unless nobody asks for
    /// it: what ends takes no card.
    fn asked(&mut self, turn: Option<&TurnId>) {
        let ends = matches!(self.machine.state(), State::Interrupting | State::Stopping);
        let accepts = (self.machine).accepts(Generation(self.generation), turn);
        self.ledger.card |= accepts && !ends;
        self.check();
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
            let given_up = self.machine.is_given_up();
            if let Adopted::Has { seen, card } = adopted {
                self.ledger.of(&turn).worked |= seen || card;
            }
            if let Adopted::Has { seen, card } = adopted
                && !given_up
            {
                let message = self.ledger.of(&turn);
                message.sends += 1;
                message.seen |= seen || card;
                message.took &= !message.seen;
                message.silent = false;
            }
            if adopted == Adopted::NeverSent {
                self.ledger.of(&turn).took = false;
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
            self.check_end_noted();
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
        if self.machine.state() == State::Recovering {
            // Evicted already: it is of an old generation too.
            let given_up = Generation(self.generation);
            let ended = |turn| Input::Ended(given_up, turn, completed());
            inputs.extend(now_runs.clone().map(ended));
            inputs.push(Input::Event(given_up, now_runs.clone()));
            inputs.push(Input::CardOpened(given_up, now_runs.clone()));
            inputs.push(Input::AbortAnswered(given_up));
        }
        inputs.push(Input::Worked(TurnId::from("another")));
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
        let goes_on = [State::Streaming, State::AwaitingCard];
        if goes_on.contains(&self.machine.state()) {
            self.ledger.goes_on();
            let running = self.machine.running.as_ref();
            let first = running.filter(|running| running.sends == 1);
            assert!(
                first.is_none_or(|first| first.again.is_none() && first.cause.is_none()),
                "nor is it so in memory"
            );
        }
        let bounded = [
            State::AwaitingFirstEvent,
            State::Cancelling,
            State::Interrupting,
            State::Stopping,
        ];
        assert_eq!(
            self.machine.deadline.is_some(),
            bounded.contains(&self.machine.state()),
            "{:?}: a wait without an end, or an end of no wait",
            self.machine.state()
        );
        assert_eq!(
            self.machine.quiet != Quiet::Off,
            self.machine.state() == State::Streaming,
            "silence counts exactly while the agent may speak"
        );
        assert!(
            !self.ledger.card || self.has_worker(),
            "a card whose worker is gone"
        );
        let unseen = [State::AwaitingFirstEvent, State::Cancelling];
        let seen = (self.machine.running.as_ref()).is_some_and(|running| running.seen);
        assert!(
            !seen || !unseen.contains(&self.machine.state()),
            "heard and still awaited"
        );
        assert!(
            !self.machine.held || idle,
            "messages are held though the user is there"
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
    pub(super) fn forget(&mut self) {
        const BASE: Mono = Duration::from_secs(100_000);
        self.machine.rebase(self.now, BASE);
        self.now = BASE;
        self.ledger.messages.retain(|_, message| message.ends == 0);
    }

    /// Whatever happened, everything ends when the worker does its part.
    pub(super) fn finish(mut self) {
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
