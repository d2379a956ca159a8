//! Turns of another broker, by table.

use ade_protocol::card::Withdrawal;

use super::tests::{FIRST_EVENT, Rig, completed, fail, fresh, id, plain, send};
use super::*;

/// What is left of the time in which a silent worker may end its run.
const CANCEL: Duration = Duration::from_secs(2);

#[test]
fn a_turn_that_was_taken_over_goes_on() {
    let attach = |sends, resumable| {
        let left = Duration::from_secs(30);
        let legacy = Legacy {
            sends,
            noted: false,
            resumable,
            evicted: false,
            again: (sends > 0).then_some(Again::Resend),
            left,
            cancel: CANCEL,
        };
        let machine = Machine::attaching(plain(), (id("a"), "prompt a".into()), legacy);
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
    assert!(rig.pass(1).contains(&Effect::AbortSilent(id("a"))));
    assert_eq!(rig.armed(), [(false, Some(Again::Resend))]);

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

    // What the user had ended is neither sent nor failed.
    for input in [
        Input::Adopted(generation, Adopted::NeverSent),
        Input::TakeoverFailed(fail(ErrorCategory::Exited)),
    ] {
        let mut rig = attach(0, false);
        rig.on(Input::Abort);
        rig.on(input);
        assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
        assert_eq!(rig.sends("a"), 0);
    }

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
    assert!(effects.ends_with(&[Effect::Acquire]), "it was never sent");
    rig.ready();
    assert_eq!(rig.sends("a"), 1);

    // The recovery that the last broker had begun is finished, and is the last.
    let mut rig = attach(1, true);
    let effects = rig.on(Input::Adopted(generation, Adopted::NeverSent));
    assert!(matches!(
        &effects[..],
        [
            Effect::Emit(..),
            Effect::Send {
                again: Some(Again::Resend),
                ..
            }
        ]
    ));
    rig.pass(1000);
    rig.pass(3);
    assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
    assert_eq!(rig.sends("a"), 1);
}

#[test]
fn an_open_card_is_something_of_the_turn_for_the_next_broker_too() {
    let legacy = Legacy {
        sends: 0,
        noted: true,
        resumable: false,
        evicted: false,
        again: None,
        left: FIRST_EVENT,
        cancel: CANCEL,
    };
    let mut rig = Rig::new();
    rig.machine = Machine::attaching(fresh(), (id("a"), "prompt a".into()), legacy);
    rig.generation = 1;
    let (seen, card) = (false, true);
    rig.on(Input::Adopted(Generation(1), Adopted::Has { seen, card }));
    assert_eq!(rig.machine.state(), State::AwaitingCard);
    let kind = crate::classify::STALE_TOKEN;
    let stale = Failure::new(kind, ErrorCategory::Auth, "stale");
    rig.ended("a", Ending::Failed(stale));
    assert_eq!(rig.armed(), [(false, Some(Again::Continue))]);
}

/// The worker that the user's abort had found silent is replaced, whatever it says.
#[test]
fn a_recovery_that_the_user_had_ended_is_completed_by_the_next_broker() {
    let legacy = Legacy {
        sends: 0,
        noted: true,
        resumable: false,
        evicted: true,
        again: None,
        left: Duration::ZERO,
        cancel: CANCEL,
    };
    let mut rig = Rig::new();
    rig.machine = Machine::attaching(plain(), (id("a"), "prompt a".into()), legacy);
    rig.machine.ended_by_user();
    let (seen, card) = (false, false);
    let effects = rig.on(Input::Adopted(Generation(1), Adopted::Has { seen, card }));
    assert!(
        effects.ends_with(&[Effect::Poison, Effect::TellSteers(id("a")), Effect::Acquire]),
        "{effects:?}"
    );
    assert_eq!(rig.ends("a"), []);
    rig.ready();
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    assert_eq!(rig.sends("a"), 0);
}

#[test]
fn a_send_to_a_worker_that_cannot_be_asked_counts() {
    let legacy = Legacy {
        sends: 0,
        noted: true,
        resumable: true,
        evicted: false,
        again: Some(Again::Resend),
        left: Duration::ZERO,
        cancel: CANCEL,
    };
    let mut rig = Rig {
        machine: Machine::attaching(plain(), (id("a"), "prompt a".into()), legacy),
        ..Rig::new()
    };
    rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
    let effects = rig.ready();
    assert!(matches!(effects[1], Effect::Send { again: Some(_), .. }));
    rig.pass(1000);
    rig.pass(3);
    assert_eq!(rig.ends("a"), [TurnStatus::Failed], "no third time");
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
    let (turn, prompt) = (id("n"), "prompt n".to_owned());
    let mode = Interrupt::Replace;
    rig.on(Input::Interrupt { turn, prompt, mode });
    let effects = rig.on(Input::Unrecordable(fail(ErrorCategory::Unknown)));
    assert!(effects.contains(&Effect::Poison) && !effects.contains(&Effect::Acquire));
    for turn in ["a", "n"] {
        assert_eq!(rig.ends(turn), [TurnStatus::Failed], "{turn}");
    }
    assert_eq!(rig.ends("b").len(), 1, "what was cleared ends too");
    assert_eq!(rig.machine.recoverable(), 0);
    assert_eq!(rig.machine.state(), State::Idle);
}

#[test]
fn a_message_is_never_written_to_an_outdated_worker_that_was_taken_over() {
    let legacy = |sends| Legacy {
        sends,
        noted: false,
        resumable: true,
        evicted: false,
        again: None,
        left: FIRST_EVENT,
        cancel: CANCEL,
    };
    for (sends, state) in [(0, State::Starting), (1, State::Recovering)] {
        let mut rig = Rig::new();
        let message = (id("a"), "prompt a".to_owned());
        rig.machine = Machine::attaching(plain(), message, legacy(sends));
        rig.on(Input::Outdated(Generation(1)));
        let effects = rig.on(Input::Adopted(Generation(1), Adopted::NeverSent));
        let replaced = [
            Effect::Withdraw(Withdrawal::Recycled),
            Effect::Dispose,
            Effect::Acquire,
        ];
        assert_eq!(effects, replaced);
        assert_eq!(rig.machine.state(), state);
    }
    // One of an idle session goes at once, and one that a message waits for, too.
    let adopted = || Input::Adopted(Generation(1), Adopted::NeverSent);
    let mut rig = Rig::new();
    rig.on(Input::Outdated(Generation(1)));
    assert!(rig.on(adopted()).contains(&Effect::Dispose));
    let mut rig = Rig::new();
    rig.on(Input::Outdated(Generation(1)));
    rig.on(send("a"));
    assert!(rig.on(adopted()).contains(&Effect::Dispose));
    assert_eq!(rig.sends("a"), 0);
    // One that has it goes on to its end.
    let mut rig = Rig::new();
    let message = (id("a"), "prompt a".to_owned());
    rig.machine = Machine::attaching(plain(), message, legacy(0));
    rig.on(Input::Outdated(Generation(1)));
    let has = Adopted::Has {
        seen: true,
        card: false,
    };
    rig.generation = 1;
    assert!(rig.on(Input::Adopted(Generation(1), has)).is_empty());
    let effects = rig.ended("a", completed());
    assert!(effects.contains(&Effect::Dispose), "{effects:?}");
}

/// A broker died in the recovery of `a`; the steer `s` and the message `b` wait.
fn left_in_recovery(noted: bool, resumable: bool) -> Rig {
    let legacy = Legacy {
        sends: 1,
        noted,
        resumable,
        evicted: false,
        again: Some(Again::Resend),
        left: FIRST_EVENT,
        cancel: CANCEL,
    };
    let mut rig = Rig::new();
    rig.machine = Machine::attaching(plain(), (id("a"), "prompt a".into()), legacy);
    let waits = |turn: &str, steers: Option<&str>| Queued {
        turn: id(turn),
        prompt: format!("prompt {turn}"),
        steers: steers.map(id),
    };
    let rows = [waits("s", Some("a")), waits("b", None)];
    rig.machine.restore_queue(rows);
    rig
}

#[test]
fn a_steer_that_another_broker_left_belongs_to_its_turn_still() {
    let dropped = |rig: &Rig| {
        let told =
            |effect: &&Effect| matches!(effect, Effect::Drop { turn, .. } if *turn == id("s"));
        rig.effects.iter().filter(told).count()
    };
    type Step = fn(&mut Rig);
    let fails: [(bool, bool, Step); 3] = [
        // No worker could be had instead.
        (false, true, |rig| {
            rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
            rig.on(Input::WorkerFailed(fail(ErrorCategory::Exited)));
        }),
        // It had been sent again, and that worker is gone.
        (true, false, |rig| {
            rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
        }),
        // It has been sent again, and that worker is silent too.
        (true, false, |rig| {
            let unseen = Adopted::Has {
                seen: false,
                card: false,
            };
            rig.generation = 1;
            rig.on(Input::Adopted(Generation(1), unseen));
            rig.pass(90);
            rig.pass(3);
        }),
    ];
    for (noted, resumable, fails) in fails {
        let mut rig = left_in_recovery(noted, resumable);
        fails(&mut rig);
        assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
        assert_eq!((rig.ends("s").len(), dropped(&rig)), (1, 1));
        assert_eq!(rig.sends("s"), 0);
        assert_eq!(rig.ends("b"), [], "the message behind it stays");
    }
    let mut rig = left_in_recovery(false, true);
    rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
    rig.ready();
    rig.event("a");
    rig.ended("a", completed());
    assert_eq!(rig.machine.turn(), Some(&id("s")), "as its own turn");
    assert_eq!((rig.sends("s"), dropped(&rig)), (1, 0));
}

#[test]
fn what_waits_behind_a_lost_turn_is_held_until_the_users_next_message_and_no_longer() {
    type Loss = fn(&mut Rig);
    let losses: [(bool, bool, Loss); 2] = [
        (true, false, |_| {}),
        // It had been worked on, which is all that is known.
        (false, true, |rig| drop(rig.on(Input::Worked(id("a"))))),
    ];
    for (noted, resumable, shown) in losses {
        // Also when nothing is left in the end that could be held.
        for cancelled in [false, true] {
            let mut rig = left_in_recovery(noted, resumable);
            shown(&mut rig);
            if cancelled {
                let (turn, by) = (id("b"), "somebody".to_owned());
                rig.on(Input::CancelQueued { turn, by });
            }
            rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
            assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
            assert_eq!(rig.machine.turn(), None, "nobody may be watching");
            assert_eq!(rig.machine.is_held(), !cancelled);
            rig.on(send("c"));
            rig.ready();
            rig.on(send("d"));
            let order = if cancelled { "cd" } else { "bcd" };
            for turn in order.chars().map(|turn| turn.to_string()) {
                assert_eq!(rig.machine.turn(), Some(&id(&turn)), "{cancelled}");
                rig.ended(&turn, completed());
            }
        }
    }
}

/// Why it went on with another worker is told by the next broker too.
#[test]
fn the_cause_of_a_recovery_outlives_its_broker() {
    let crashed = Failure::new("host_exited", ErrorCategory::Exited, "exit code 3");
    let note = crashed.clone().with_detail("stderr").note();
    assert!(!note.contains("stderr"), "{note}");
    let mut rig = left_in_recovery(false, true);
    rig.machine.recall(Failure::read(&note).expect("a cause"));
    assert_eq!(rig.machine.cause(), Some(&crashed));
    rig.on(Input::TakeoverFailed(fail(ErrorCategory::Exited)));
    rig.ready();
    let told = format!("{:?}", rig.effects);
    assert!(told.contains("before it answered: exit code 3;"), "{told}");
    rig.pass(90);
    rig.pass(90);
    let told = format!("{:?}", rig.effects);
    assert!(told.contains("(first: exit code 3)"), "{told}");
    assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
    assert_eq!(Failure::read("no JSON"), None);
}
