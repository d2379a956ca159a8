//! The machine by table.

use super::*;

pub(super) const FIRST_EVENT: Duration = Duration::from_secs(90);

/// Of an agent that is resumed.
pub(super) fn plain() -> Rules {
    Rules {
        timing: Timing::new(FIRST_EVENT),
        recovery: Recovery::default(),
    }
}

/// Of one that is told the chat, and that reconnects.
pub(super) fn fresh() -> Rules {
    let recovery = Recovery {
        fresh_agent: true,
        reconnects: true,
    };
    Rules {
        recovery,
        ..plain()
    }
}

pub(super) fn id(text: &str) -> TurnId {
    TurnId::from(text)
}

pub(super) fn send(turn: &str) -> Input {
    Input::Send {
        turn: id(turn),
        prompt: format!("prompt {turn}"),
    }
}

pub(super) fn fail(category: ErrorCategory) -> Failure {
    Failure::new("test", category, "it broke")
}

/// The machine with a clock and a record of what it did.
#[derive(Clone)]
pub(super) struct Rig {
    pub(super) machine: Machine,
    pub(super) now: Mono,
    pub(super) generation: u64,
    pub(super) effects: Vec<Effect>,
}

/// A machine that takes over the worker of `a`, which another broker had given up.
pub(super) fn given_up(again: Again) -> Rig {
    let legacy = Legacy {
        sends: 0,
        noted: true,
        resumable: true,
        evicted: false,
        again: Some(again),
        left: Duration::ZERO,
        cancel: Duration::from_secs(2),
    };
    let message = (id("a"), "prompt a".to_owned());
    Rig {
        machine: Machine::attaching(fresh(), message, legacy),
        generation: 1,
        ..Rig::of(fresh())
    }
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::of(plain())
    }

    pub(super) fn of(rules: Rules) -> Self {
        Self {
            machine: Machine::new(rules),
            now: Duration::ZERO,
            generation: 0,
            effects: Vec::new(),
        }
    }

    pub(super) fn on(&mut self, input: Input) -> Vec<Effect> {
        let effects = self.machine.on(input, self.now);
        self.effects.extend(effects.iter().cloned());
        effects
    }

    /// A worker is there. One that is to end its run has done so before.
    pub(super) fn ready(&mut self) -> Vec<Effect> {
        if self.machine.state() == State::Cancelling {
            self.on(Input::AbortAnswered(Generation(self.generation)));
        }
        self.generation += 1;
        self.on(Input::WorkerReady(Generation(self.generation)))
    }

    pub(super) fn event(&mut self, turn: &str) {
        self.on(Input::Event(Generation(self.generation), Some(id(turn))));
    }

    pub(super) fn ended(&mut self, turn: &str, ending: Ending) -> Vec<Effect> {
        self.on(Input::Ended(Generation(self.generation), id(turn), ending))
    }

    pub(super) fn pass(&mut self, seconds: u64) -> Vec<Effect> {
        self.now += Duration::from_secs(seconds);
        self.on(Input::Tick)
    }

    pub(super) fn sends(&self, turn: &str) -> usize {
        let sent =
            |effect: &&Effect| matches!(effect, Effect::Send { turn: t, .. } if *t == id(turn));
        self.effects.iter().filter(sent).count()
    }

    /// What was put on disk of each recovery.
    pub(super) fn armed(&self) -> Vec<(bool, Option<Again>)> {
        let armed = |effect: &Effect| match effect {
            Effect::Arm { rotate, again } => Some((*rotate, *again)),
            _ => None,
        };
        self.effects.iter().filter_map(armed).collect()
    }

    pub(super) fn ends(&self, turn: &str) -> Vec<TurnStatus> {
        self.effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Finish {
                    turn: t, status, ..
                } if *t == id(turn) => Some(*status),
                Effect::Drop { turn: t, .. } if *t == id(turn) => Some(TurnStatus::Interrupted),
                _ => None,
            })
            .collect()
    }
}

pub(super) fn completed() -> Ending {
    Ending::Completed {
        stop_reason: None,
        usage: None,
    }
}

#[test]
fn a_plain_turn() {
    let mut rig = Rig::new();
    let message = Event::UserMessage {
        text: "prompt a".into(),
        via: ade_protocol::event::Via::Send,
    };
    let status = TurnStatus::Started;
    let begun = [
        Effect::Emit(id("a"), message),
        Effect::Emit(id("a"), Event::Status { status }),
        Effect::Acquire,
    ];
    assert_eq!(rig.on(send("a")), begun);
    rig.ready();
    assert_eq!(rig.machine.state(), State::AwaitingFirstEvent);
    rig.event("a");
    let told = Some(Duration::from_secs(60));
    assert_eq!(rig.machine.deadline(), told, "only silence is told now");
    rig.pass(100_000);
    let (stop_reason, usage) = (
        Some("length".to_owned()),
        Some(serde_json::json!({"in": 7})),
    );
    let effects = rig.ended(
        "a",
        Ending::Completed {
            stop_reason: stop_reason.clone(),
            usage: usage.clone(),
        },
    );
    let finish = Effect::Finish {
        turn: id("a"),
        status: TurnStatus::Completed,
        stop_reason,
        usage,
        failure: None,
    };
    assert!(effects.contains(&finish), "{effects:?}");
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
    // On disk before it is done.
    let again = Some(Again::Resend);
    let armed = Effect::Arm {
        rotate: false,
        again,
    };
    assert_eq!(effects, [armed, Effect::AbortSilent(id("a"))]);
    assert!(rig.machine.is_replacing() && !rig.machine.is_silent());
    let effects = rig.on(Input::AbortAnswered(Generation(1)));
    assert!(
        effects.ends_with(&[Effect::Poison, Effect::TellSteers(id("a")), Effect::Acquire]),
        "{effects:?}"
    );
    rig.ready();
    assert_eq!(rig.sends("a"), 2);
    rig.pass(90);
    let effects = rig.on(Input::AbortAnswered(Generation(2)));
    assert!(effects.contains(&Effect::Poison), "the second one goes too");
    assert_eq!(rig.sends("a"), 2, "never a third time");
    assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
    assert_eq!(rig.armed(), [(false, again)]);
}

#[test]
fn what_does_not_count_as_the_first_event() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.on(Input::Event(Generation(1), None));
    rig.on(Input::Event(Generation(1), Some(id("other"))));
    rig.on(Input::Event(Generation(7), Some(id("a"))));
    rig.on(Input::CardOpened(Generation(1), None));
    assert_eq!(rig.machine.state(), State::AwaitingFirstEvent);
    rig.event("a");
    rig.on(Input::CardOpened(Generation(1), None));
    assert_eq!(
        rig.machine.state(),
        State::Streaming,
        "nor does the turn wait for such a card"
    );
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
        (ErrorCategory::TimedOut, 1),
        (ErrorCategory::Protocol, 1),
        (ErrorCategory::Lease, 1),
        (ErrorCategory::Unknown, 1),
    ];
    for (category, sends) in table {
        let mut rig = Rig::new();
        rig.on(send("a"));
        rig.ready();
        let effects = rig.ended("a", Ending::Failed(fail(category)));
        let replaced = effects.contains(&Effect::Acquire);
        assert_eq!(replaced, sends == 2, "{category:?}");
        // Whoever waits for a worker would send to this one.
        rig.ready();
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
fn a_delivered_message_of_unknown_outcome_is_recycled_and_not_sent_again() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.pass(90);
    rig.ready();
    let kind = ade_protocol::frame::code::DELIVERED_OUTCOME_UNKNOWN;
    let failure = Failure::new(kind, ErrorCategory::Unknown, "the agent went on");
    let effects = rig.ended("a", Ending::Failed(failure));
    assert!(effects.contains(&Effect::Poison));
    assert_eq!(
        (rig.sends("a"), rig.ends("a")),
        (2, vec![TurnStatus::Failed])
    );
    let told = effects.iter().any(|effect| {
        matches!(effect, Effect::Finish { failure: Some(failure), .. }
            if failure.message.starts_with("delivered, outcome unknown") && failure.kind == kind)
    });
    assert!(told, "{effects:?}");
    rig.on(send("b"));
    rig.ready();
    assert_eq!(rig.sends("b"), 1, "the next message works");
}

#[test]
fn a_turn_of_which_only_a_card_was_seen_is_never_sent_again() {
    for settled in [false, true] {
        let mut rig = Rig::new();
        rig.on(send("a"));
        rig.ready();
        rig.on(Input::CardOpened(Generation(1), Some(id("a"))));
        rig.pass(100_000);
        assert_eq!(rig.machine.state(), State::AwaitingCard, "nothing fires");
        if settled {
            rig.on(Input::CardsSettled(Generation(1)));
            let quiet = rig.pass(60);
            assert!(matches!(quiet[..], [Effect::Quiet { .. }]), "{quiet:?}");
        }
        rig.pass(100_000);
        rig.on(Input::WorkerExited(
            Generation(1),
            fail(ErrorCategory::Exited),
        ));
        assert_eq!(
            (rig.sends("a"), rig.ends("a")),
            (1, vec![TurnStatus::Failed])
        );
    }
}

#[test]
fn silence_of_a_running_turn_is_told_once_a_period_and_kills_nothing() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    rig.pass(30);
    rig.event("a");
    assert!(rig.pass(59).is_empty());
    let since = Duration::from_secs(30);
    let quiet = Effect::Quiet {
        turn: id("a"),
        since,
    };
    assert_eq!(rig.pass(1), [quiet]);
    assert_eq!(rig.machine.quiet_since(), Some(since));
    assert!(rig.pass(100_000).is_empty(), "once");
    rig.event("a");
    assert_eq!(rig.machine.quiet_since(), None);
    rig.on(Input::CardOpened(Generation(1), Some(id("a"))));
    assert!(rig.pass(100_000).is_empty(), "not while a card is open");
    rig.on(Input::CardsSettled(Generation(1)));
    assert_eq!(rig.pass(60).len(), 1, "a new period");
    rig.on(Input::Abort);
    rig.ended("a", Ending::Interrupted);
    assert_eq!(
        (rig.machine.quiet_since(), rig.machine.deadline()),
        (None, None)
    );
}

#[test]
fn only_an_idle_worker_is_put_away() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    assert!(rig.on(Input::PutAway).is_empty());
    rig.ended("a", completed());
    assert!(rig.on(Input::PutAway).contains(&Effect::Dispose));
    rig.on(send("b"));
    assert_eq!(rig.machine.state(), State::Starting);
}

#[test]
fn an_outdated_worker_ends_its_turn_and_serves_no_other() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    rig.on(send("b"));
    let outdated = Input::Outdated(Generation(rig.generation));
    assert!(rig.on(outdated.clone()).is_empty(), "the turn goes on");
    assert!(rig.on(outdated).is_empty());
    let effects = rig.ended("a", completed());
    let at = |wanted: &Effect| effects.iter().position(|effect| effect == wanted);
    let (dispose, acquire) = (at(&Effect::Dispose), at(&Effect::Acquire));
    assert!(dispose.is_some() && dispose < acquire, "{effects:?}");
    assert_eq!(
        (rig.ends("a"), rig.sends("b")),
        (vec![TurnStatus::Completed], 0)
    );
    rig.ready();
    assert_eq!(rig.sends("b"), 1);
    rig.ended("b", completed());
    assert!(rig.machine.worker().is_some(), "the new one is kept");
}

#[test]
fn an_idle_worker_that_is_outdated_goes_at_once_and_others_stay() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.ended("a", completed());
    assert!(rig.on(Input::Outdated(Generation(0))).is_empty());
    assert!(rig.machine.worker().is_some());
    let effects = rig.on(Input::Outdated(Generation(1)));
    assert!(effects.contains(&Effect::Dispose), "{effects:?}");
    assert!(rig.on(send("b")).contains(&Effect::Acquire));
}
