//! Runs that show after their deadline that they worked, by table.

use ade_protocol::card::Withdrawal;
use ade_protocol::frame::code;

use super::tests::{Rig, completed, fail, fresh, given_up, id, plain, send};
use super::*;

/// A turn `a` that was silent: its worker is to end it.
fn silent(rules: Rules) -> Rig {
    let mut rig = Rig::of(rules);
    rig.on(send("a"));
    rig.ready();
    let effects = rig.pass(90);
    assert!(effects.contains(&Effect::AbortSilent(id("a"))));
    assert_eq!(rig.machine.state(), State::Cancelling);
    rig
}

/// A turn `a` whose silent worker was evicted.
fn evicted(rules: Rules) -> Rig {
    let mut rig = silent(rules);
    rig.on(Input::AbortAnswered(Generation(1)));
    assert_eq!(rig.machine.state(), State::Recovering);
    rig
}

fn disarmed(rig: &Rig) -> usize {
    let disarm = Effect::Disarm(id("a"));
    let all = rig.effects.iter();
    all.filter(|effect| **effect == disarm).count()
}

fn failure(effects: &[Effect]) -> Failure {
    let failures = effects.iter().filter_map(|effect| match effect {
        Effect::Finish { failure, .. } => failure.clone(),
        _ => None,
    });
    let all: Vec<Failure> = failures.collect();
    assert_eq!(all.len(), 1, "{effects:?}");
    all[0].clone()
}

/// The first thing that was heard: an event, or a card.
type Heard = fn(Generation, Option<TurnId>) -> Input;
const HEARD: [(Heard, State); 2] = [
    (Input::Event, State::Streaming),
    (Input::CardOpened, State::AwaitingCard),
];

#[test]
fn a_run_that_is_heard_while_it_is_to_end_goes_on_with_its_worker() {
    for (heard, state) in HEARD {
        let mut rig = silent(fresh());
        let effects = rig.on(heard(Generation(1), Some(id("a"))));
        assert_eq!(effects, [Effect::Disarm(id("a"))]);
        assert_eq!(rig.machine.state(), state);
        assert_eq!(rig.machine.worker(), Some(Generation(1)));
        // Neither the bound of the abort nor its answer ends it any more.
        rig.on(Input::AbortAnswered(Generation(1)));
        rig.pass(100_000);
        assert_eq!(rig.machine.state(), state);
        let effects = rig.ended("a", completed());
        assert!(!effects.contains(&Effect::Poison));
        assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
        assert_eq!((rig.sends("a"), disarmed(&rig)), (1, 1));
        rig.on(send("b"));
        assert_eq!(rig.sends("b"), 1, "the worker is kept");
        assert_eq!(rig.machine.state(), State::AwaitingFirstEvent);
    }
}

#[test]
fn a_completion_without_any_event_counts_as_one() {
    let mut rig = silent(fresh());
    let effects = rig.ended("a", completed());
    let at = |wanted: &Effect| effects.iter().position(|effect| effect == wanted);
    assert_eq!(at(&Effect::Disarm(id("a"))), Some(0), "{effects:?}");
    assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
    assert!(rig.on(Input::AbortAnswered(Generation(1))).is_empty());
    assert_eq!(rig.sends("a"), 1);
}

#[test]
fn a_run_that_obeys_after_it_was_heard_is_one_failure() {
    for (heard, _) in HEARD {
        let mut rig = silent(plain());
        rig.on(heard(Generation(1), Some(id("a"))));
        let effects = rig.ended("a", Ending::Interrupted);
        let told = failure(&effects);
        let words =
            "only after 90 s, when it had been told to stop; the message was not sent again";
        assert!(told.message.contains(words), "{told:?}");
        assert!(!effects.contains(&Effect::Poison) && rig.machine.worker().is_some());
        // And one that fails for it, in its own words too.
        let mut rig = silent(plain());
        rig.on(heard(Generation(1), Some(id("a"))));
        let effects = rig.ended("a", Ending::Failed(fail(ErrorCategory::Network)));
        let told = failure(&effects);
        assert!(told.message.starts_with("it broke; the agent"), "{told:?}");
        assert!(told.message.contains(words), "{told:?}");
        assert_eq!((rig.sends("a"), told.category), (1, ErrorCategory::Network));
        // Or ends with its worker.
        let mut rig = silent(plain());
        rig.on(heard(Generation(1), Some(id("a"))));
        let died = fail(ErrorCategory::Exited);
        let effects = rig.on(Input::WorkerExited(Generation(1), died));
        assert!(failure(&effects).message.contains(words));
        assert_eq!(rig.sends("a"), 1);
    }
}

/// What was late was the first run of the turn, and not the one that went on.
#[test]
fn a_late_run_that_goes_on_with_another_worker_is_late_no_more() {
    let mut rig = silent(fresh());
    rig.event("a");
    let stale = Failure::new(crate::classify::STALE_TOKEN, ErrorCategory::Auth, "stale");
    rig.ended("a", Ending::Failed(stale));
    rig.ready();
    rig.event("a");
    let effects = rig.ended("a", Ending::Failed(fail(ErrorCategory::Unknown)));
    assert_eq!(failure(&effects).message, "it broke");
    assert_eq!(rig.sends("a"), 2);
}

#[test]
fn the_hosts_word_that_the_agent_went_on_counts_too() {
    let kind = code::DELIVERED_OUTCOME_UNKNOWN;
    let went_on = Failure::new(kind, ErrorCategory::Unknown, "it went on");
    let mut rig = silent(plain());
    let effects = rig.ended("a", Ending::Failed(went_on));
    let told = failure(&effects);
    assert!(told.message.starts_with("delivered, outcome unknown"));
    assert_eq!((rig.sends("a"), told.kind.as_str()), (1, kind));
    assert!(effects.contains(&Effect::Poison), "it is recycled");
    // Nor does it make a failure of what the user had ended.
    let mut rig = silent(plain());
    rig.on(Input::Abort);
    let went_on = Failure::new(kind, ErrorCategory::Unknown, "it went on");
    let effects = rig.ended("a", Ending::Failed(went_on));
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    assert!(effects.contains(&Effect::Poison), "it is recycled");
}

#[test]
fn a_user_who_ends_a_late_turn_has_it_ended() {
    for (heard, _) in HEARD {
        // Before it is heard.
        let mut rig = silent(plain());
        rig.on(Input::Abort);
        let effects = rig.on(heard(Generation(1), Some(id("a"))));
        assert!(effects.contains(&Effect::Abort(id("a"))), "{effects:?}");
        assert!(effects.contains(&Effect::Withdraw(Withdrawal::Aborted)));
        assert_eq!(rig.machine.state(), State::Interrupting);
        rig.ended("a", Ending::Interrupted);
        assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
        assert_eq!(rig.sends("a"), 1);
        // And it may ignore that as well.
        let mut rig = silent(plain());
        rig.on(Input::Abort);
        rig.on(heard(Generation(1), Some(id("a"))));
        assert!(rig.pass(11).contains(&Effect::Poison));
        assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
        // After it was heard.
        let mut rig = silent(plain());
        rig.on(heard(Generation(1), Some(id("a"))));
        assert!(rig.on(Input::Abort).contains(&Effect::Abort(id("a"))));
        rig.ended("a", Ending::Interrupted);
        assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
        // A stop of the session, before and after.
        for before in [true, false] {
            let mut rig = silent(plain());
            if !before {
                rig.on(heard(Generation(1), Some(id("a"))));
            }
            assert!(rig.on(Input::Stop).contains(&Effect::Dispose));
            rig.on(heard(Generation(1), Some(id("a"))));
            rig.ended("a", Ending::Interrupted);
            assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
            assert_eq!(rig.sends("a"), 1);
        }
    }
}

#[test]
fn the_second_send_may_be_late_too() {
    let mut rig = evicted(plain());
    rig.ready();
    rig.pass(90);
    assert_eq!(rig.machine.state(), State::Cancelling);
    rig.event("a");
    assert_eq!(rig.machine.state(), State::Streaming);
    rig.ended("a", completed());
    assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
    assert_eq!(rig.sends("a"), 2);
}

#[test]
fn what_an_evicted_worker_shows_forbids_the_second_send() {
    let mut rig = evicted(fresh());
    rig.on(Input::Steer {
        turn: id("s"),
        prompt: "prompt s".into(),
    });
    let effects = rig.on(Input::Worked(id("a")));
    assert_eq!(effects[0], Effect::CancelStart);
    let told = failure(&effects);
    let begin = "delivered, outcome unknown: the agent sent nothing for 90 s";
    assert!(told.message.starts_with(begin), "{told:?}");
    assert_eq!(told.kind, code::DELIVERED_OUTCOME_UNKNOWN);
    assert_eq!(rig.sends("a"), 1);
    assert_eq!(rig.ends("s").len(), 1, "dropped as when no worker is had");
    assert_eq!(rig.armed(), [(true, Some(Again::Resend))]);
    assert_eq!(disarmed(&rig), 0, "the next start still has a fresh agent");
    rig.on(send("b"));
    rig.ready();
    assert_eq!(rig.sends("b"), 1, "the next message works");
}

#[test]
fn what_an_evicted_worker_shows_changes_nothing_else() {
    // Of another turn.
    let mut rig = evicted(plain());
    assert!(rig.on(Input::Worked(id("b"))).is_empty());
    rig.ready();
    assert_eq!(rig.sends("a"), 2);
    // Too late.
    assert!(rig.on(Input::Worked(id("a"))).is_empty());
    rig.event("a");
    rig.ended("a", completed());
    assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
    // For a turn that the user has ended, nothing is sent anyway.
    let mut rig = evicted(plain());
    rig.on(Input::Abort);
    assert!(rig.on(Input::Worked(id("a"))).is_empty());
    rig.ready();
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    // An agent that is told to go on was seen before.
    let mut rig = Rig::of(fresh());
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    let stale = Failure::new(crate::classify::STALE_TOKEN, ErrorCategory::Auth, "stale");
    rig.ended("a", Ending::Failed(stale));
    assert!(rig.on(Input::Worked(id("a"))).is_empty());
    rig.ready();
    assert_eq!(rig.sends("a"), 2);
}

fn takes_over(rig: &mut Rig, seen: bool, card: bool) -> Vec<Effect> {
    rig.on(Input::Adopted(Generation(1), Adopted::Has { seen, card }))
}

#[test]
fn what_the_worker_of_another_broker_shows_forbids_the_second_send() {
    // Its run has ended: nothing more comes of it.
    for (seen, card) in [(true, false), (false, true)] {
        let mut rig = given_up(Again::Reconnect);
        let effects = takes_over(&mut rig, seen, card);
        assert!(effects.contains(&Effect::Poison), "{effects:?}");
        let told = failure(&effects);
        assert_eq!(told.kind, code::DELIVERED_OUTCOME_UNKNOWN);
        assert_eq!(rig.sends("a"), 0, "not by this broker");
        // What the user has ended is no failure for that.
        let mut rig = given_up(Again::Reconnect);
        rig.on(Input::Abort);
        takes_over(&mut rig, seen, card);
        rig.ready();
        assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    }
    // It had shown it before it was taken over.
    let mut rig = given_up(Again::Reconnect);
    rig.on(Input::Worked(id("a")));
    let effects = takes_over(&mut rig, false, false);
    assert_eq!(failure(&effects).kind, code::DELIVERED_OUTCOME_UNKNOWN);
    // A message for the turn goes with it: it can't be recovered.
    let mut rig = given_up(Again::Resend);
    takes_over(&mut rig, true, false);
    rig.on(Input::Steer {
        turn: id("s"),
        prompt: "steer".into(),
    });
    rig.on(Input::AbortAnswered(Generation(1)));
    let of_both = (rig.ends("a"), rig.ends("s"));
    assert_eq!(
        of_both,
        (vec![TurnStatus::Failed], vec![TurnStatus::Interrupted])
    );
    // One that could not be taken over after all.
    for (shown, expected) in [(true, 0), (false, 1)] {
        let mut rig = given_up(Again::Resend);
        if shown {
            assert!(rig.on(Input::Worked(id("a"))).is_empty());
        }
        let gone = fail(ErrorCategory::Exited);
        let effects = rig.on(Input::TakeoverFailed(gone));
        assert_eq!(effects.contains(&Effect::Acquire), !shown);
        if shown {
            assert_eq!(failure(&effects).kind, code::DELIVERED_OUTCOME_UNKNOWN);
        }
        rig.ready();
        assert_eq!(rig.sends("a"), expected);
    }
}

#[test]
fn a_run_that_is_to_end_is_heard_by_the_next_broker_too() {
    for (heard, state) in HEARD {
        // Before it was taken over, or after.
        for seen in [true, false] {
            let mut rig = given_up(Again::Resend);
            let told = takes_over(&mut rig, seen, false).contains(&Effect::AbortSilent(id("a")));
            assert_eq!(told, !seen, "one that was heard is not told to end");
            assert_eq!(rig.machine.state(), State::Cancelling);
            let effects = rig.on(heard(Generation(1), Some(id("a"))));
            assert_eq!(effects, [Effect::Disarm(id("a"))]);
            rig.pass(100_000);
            assert_eq!(rig.machine.state(), state);
            rig.ended("a", completed());
            assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
            assert_eq!(rig.sends("a"), 0, "not by this broker");
            assert_eq!(rig.machine.worker(), Some(Generation(1)), "it is kept");
        }
    }
    // A card may be known already, so that nothing more is said.
    let mut rig = given_up(Again::Resend);
    let effects = takes_over(&mut rig, true, true);
    assert_eq!(effects, [Effect::Disarm(id("a"))]);
    assert_eq!(rig.machine.state(), State::AwaitingCard);
    // That is something of the turn.
    let stale = || {
        let kind = crate::classify::STALE_TOKEN;
        Ending::Failed(Failure::new(kind, ErrorCategory::Auth, "stale"))
    };
    rig.ended("a", stale());
    assert_eq!(rig.armed(), [(false, Some(Again::Continue))]);
    // What the worker before it had shown says nothing of the one that went on.
    let mut rig = given_up(Again::Resend);
    takes_over(&mut rig, true, false);
    rig.event("a");
    rig.ended("a", stale());
    rig.ready();
    rig.pass(90);
    let effects = rig.pass(3);
    assert_eq!(failure(&effects).kind, "silent");
    // A completion without a word.
    let mut rig = given_up(Again::Resend);
    takes_over(&mut rig, false, false);
    assert!(
        rig.ended("a", completed())
            .contains(&Effect::Disarm(id("a")))
    );
    assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
}

#[test]
fn a_run_that_is_to_end_has_what_is_left_of_its_time_with_the_next_broker() {
    type End = fn(&mut Rig) -> Vec<Effect>;
    let ends: [End; 3] = [
        |rig| {
            assert!(rig.pass(1).is_empty(), "it is listened to");
            rig.pass(1)
        },
        |rig| rig.on(Input::AbortAnswered(Generation(1))),
        |rig| {
            rig.on(Input::WorkerExited(
                Generation(1),
                fail(ErrorCategory::Exited),
            ))
        },
    ];
    for end in ends {
        let mut rig = given_up(Again::Resend);
        takes_over(&mut rig, false, false);
        let effects = end(&mut rig);
        assert!(
            effects.ends_with(&[Effect::Poison, Effect::TellSteers(id("a")), Effect::Acquire]),
            "{effects:?}"
        );
        rig.ready();
        assert_eq!(rig.sends("a"), 1);
        // One that was heard between the brokers, and of which nothing comes.
        let mut rig = given_up(Again::Resend);
        takes_over(&mut rig, true, false);
        let effects = end(&mut rig);
        assert!(effects.contains(&Effect::Poison), "{effects:?}");
        assert_eq!(failure(&effects).kind, code::DELIVERED_OUTCOME_UNKNOWN);
        assert_eq!(rig.sends("a"), 0);
    }
    // For a turn that the user has ended nothing is waited for.
    let mut rig = given_up(Again::Resend);
    rig.on(Input::Abort);
    let effects = takes_over(&mut rig, false, false);
    assert!(effects.contains(&Effect::Poison), "{effects:?}");
    // Nor is it a failure then that the message was worked on.
    let mut rig = given_up(Again::Resend);
    takes_over(&mut rig, true, false);
    rig.on(Input::Abort);
    rig.on(Input::AbortAnswered(Generation(1)));
    rig.ready();
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
}
