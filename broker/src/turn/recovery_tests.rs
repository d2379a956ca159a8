//! A replaced worker, by table.

use super::tests::{Rig, completed, fail, fresh, given_up, id, plain, send};
use super::*;
use crate::classify::{AGENT_NOT_FOUND, STALE_TOKEN};

const RAW: &str = "Authentication error: logged in, try logging out and back in (request id: 7f)";

fn stale() -> Ending {
    Ending::Failed(Failure::new(STALE_TOKEN, ErrorCategory::Auth, RAW))
}

fn gone() -> Failure {
    Failure::new(AGENT_NOT_FOUND, ErrorCategory::NotFound, "agent not found")
}

/// The same of its session, by the provider's word for it.
fn session_gone() -> Failure {
    let kind = ade_protocol::frame::code::SESSION_NOT_FOUND;
    Failure::new(kind, ErrorCategory::NotFound, "no such session")
}

/// A turn `a` whose message was written.
fn sent(rules: Rules) -> Rig {
    let mut rig = Rig::of(rules);
    rig.on(send("a"));
    rig.ready();
    rig
}

/// The failure that a turn ended with.
fn failure(effects: &[Effect]) -> Failure {
    let failures = effects.iter().filter_map(|effect| match effect {
        Effect::Finish { failure, .. } => failure.clone(),
        _ => None,
    });
    let all: Vec<Failure> = failures.collect();
    assert_eq!(all.len(), 1, "{effects:?}");
    all[0].clone()
}

#[test]
fn r07_an_expired_token_before_any_event_is_met_without_a_word() {
    let mut rig = sent(fresh());
    let effects = rig.ended("a", stale());
    assert!(rig.machine.is_silent());
    let again = Some(Again::Reconnect);
    let expected = [
        Effect::Arm {
            rotate: false,
            again,
        },
        Effect::Withdraw(Withdrawal::Recycled),
        Effect::Poison,
        Effect::TellSteers(id("a")),
        Effect::Acquire,
    ];
    assert_eq!(effects, expected, "the same agent, and nothing is told");
    let effects = rig.ready();
    let prompt = "prompt a".to_owned();
    let turn = id("a");
    let same = Effect::Send {
        turn,
        prompt,
        again,
    };
    assert_eq!(effects, [same], "byte for byte");
    rig.event("a");
    rig.ended("a", completed());
    assert_eq!(rig.ends("a"), [TurnStatus::Completed]);
}

#[test]
fn r08_an_expired_token_after_an_event_lets_the_agent_go_on() {
    let mut rig = sent(fresh());
    rig.event("a");
    let effects = rig.ended("a", stale());
    let shown = Event::Activity {
        text: texts::RECONNECTING.into(),
    };
    assert!(effects.contains(&Effect::Emit(id("a"), shown)));
    let again = Some(Again::Continue);
    assert_eq!(rig.armed(), [(false, again)]);
    let effects = rig.ready();
    let prompt = texts::CONTINUE.to_owned();
    let turn = id("a");
    let go_on = Effect::Send {
        turn,
        prompt,
        again,
    };
    assert_eq!(effects, [go_on]);
    // What was written is watched like any message.
    assert_eq!(rig.machine.state(), State::AwaitingFirstEvent);
    let steer = Input::Steer {
        turn: id("s"),
        prompt: "steer".into(),
    };
    rig.on(steer);
    rig.pass(90);
    rig.pass(3);
    assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
    assert_eq!(rig.sends("a"), 2, "that was the one time");
    assert_eq!(
        rig.ends("s"),
        [TurnStatus::Interrupted],
        "nor is it told more"
    );
}

#[test]
fn a_second_expired_token_is_one_error_in_our_words() {
    for seen in [false, true] {
        let mut rig = sent(fresh());
        if seen {
            rig.event("a");
        }
        rig.ended("a", stale());
        rig.ready();
        let effects = rig.ended("a", stale());
        let failure = failure(&effects);
        assert_eq!(failure.category, ErrorCategory::Auth);
        assert!(failure.message.contains("sign in again"), "{failure:?}");
        assert_eq!(failure.detail.as_deref(), Some("request id: 7f"));
        let all = format!("{:?}", rig.effects);
        assert!(!all.contains("logging out"), "{all}");
        assert!(effects.contains(&Effect::Poison), "it is recycled as well");
        assert_eq!((rig.sends("a"), rig.armed().len()), (2, 1), "once");
        rig.on(send("b"));
        rig.ready();
        assert_eq!(rig.sends("b"), 1, "the next message works");
    }
}

#[test]
fn an_expired_token_shares_the_one_time_with_all_other_reasons() {
    // Silent first, then expired.
    let mut rig = sent(fresh());
    rig.pass(90);
    rig.ready();
    let effects = rig.ended("a", stale());
    assert!(failure(&effects).message.contains("sign in again"));
    assert_eq!(rig.sends("a"), 2);
    // Expired first, then the connection drops.
    let mut rig = sent(fresh());
    rig.ended("a", stale());
    rig.ready();
    let effects = rig.ended("a", Ending::Failed(fail(ErrorCategory::Network)));
    let failure = failure(&effects);
    assert!(failure.message.contains("sign-in had expired"));
    assert!(!failure.message.contains("logging out"), "{failure:?}");
    assert_eq!(rig.sends("a"), 2);
}

#[test]
fn an_expired_token_of_an_agent_that_cannot_reconnect_is_its_error() {
    let mut rig = sent(plain());
    let effects = rig.ended("a", stale());
    assert_eq!(failure(&effects).category, ErrorCategory::Auth);
    assert_eq!((rig.sends("a"), rig.armed().len()), (1, 0));
}

#[test]
fn r23_an_agent_that_is_gone_is_replaced_by_a_fresh_one_once() {
    for (recovering, gone) in [false, true]
        .into_iter()
        .flat_map(|recovering| [(recovering, gone()), (recovering, session_gone())])
    {
        let gone = || gone.clone();
        let mut rig = Rig::of(fresh());
        rig.on(send("a"));
        if recovering {
            rig.ready();
            rig.ended("a", stale());
        }
        let effects = rig.on(Input::WorkerFailed(gone()));
        let (rotate, again) = (true, None);
        let expected = [Effect::Arm { rotate, again }, Effect::Acquire];
        assert_eq!(effects, expected, "nothing is poisoned");
        let effects = rig.on(Input::WorkerFailed(gone()));
        assert_eq!(failure(&effects).category, ErrorCategory::NotFound);
        assert_eq!(rig.ends("a"), [TurnStatus::Failed], "no loop");
    }
    let mut rig = Rig::of(plain());
    rig.on(send("a"));
    let effects = rig.on(Input::WorkerFailed(gone()));
    assert_eq!(failure(&effects).category, ErrorCategory::NotFound);
    assert!(rig.armed().is_empty(), "nobody could tell it the chat");
}

#[test]
fn a_fresh_agent_is_never_told_to_go_on_with_what_it_does_not_know() {
    let mut rig = sent(fresh());
    rig.event("a");
    rig.ended("a", stale());
    let effects = rig.on(Input::WorkerFailed(gone()));
    assert_eq!(failure(&effects).category, ErrorCategory::NotFound);
    rig.on(send("b"));
    let effects = rig.on(Input::WorkerFailed(gone()));
    assert!(effects.contains(&Effect::Acquire), "the next turn may");
}

#[test]
fn a_silent_run_has_its_moment_to_end() {
    let turn = id("a");
    let generation = Generation(1);
    type End = fn(&mut Rig) -> Vec<Effect>;
    let ends: [(&str, End); 3] = [
        ("answered", |rig| {
            rig.on(Input::AbortAnswered(Generation(1)))
        }),
        ("gone", |rig| {
            let failure = fail(ErrorCategory::Exited);
            rig.on(Input::WorkerExited(Generation(1), failure))
        }),
        ("wedged", |rig| {
            assert!(rig.pass(2).is_empty(), "not before");
            rig.pass(1)
        }),
    ];
    for (how, end) in ends {
        let mut rig = sent(plain());
        let effects = rig.pass(90);
        assert!(!effects.contains(&Effect::Poison), "{how}");
        assert_eq!(rig.machine.state(), State::Cancelling, "{how}");
        // What says nothing of its work does not change that.
        let network = Ending::Failed(fail(ErrorCategory::Network));
        let late = [
            Input::Ended(generation, turn.clone(), Ending::Interrupted),
            Input::Ended(generation, turn.clone(), network),
            Input::Event(generation, None),
            Input::Event(Generation(0), Some(turn.clone())),
            Input::AbortAnswered(Generation(0)),
        ];
        for input in late {
            assert!(rig.on(input).is_empty(), "{how}");
        }
        let replaced = [
            Effect::Withdraw(Withdrawal::Recycled),
            Effect::Poison,
            Effect::TellSteers(id("a")),
            Effect::Acquire,
        ];
        assert_eq!(end(&mut rig), replaced, "{how}");
        rig.ready();
        assert!(rig.on(Input::AbortAnswered(generation)).is_empty(), "{how}");
        assert_eq!(rig.sends("a"), 2, "{how}");
    }
}

#[test]
fn a_stop_in_that_moment_is_honoured() {
    let mut rig = sent(plain());
    rig.pass(90);
    rig.on(Input::Abort);
    assert_eq!(rig.machine.state(), State::Cancelling);
    rig.ready();
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    assert_eq!(rig.sends("a"), 1, "recovered, and nothing was sent");
    // The second time nothing is to be had any more.
    let mut rig = sent(plain());
    rig.pass(90);
    rig.ready();
    rig.pass(90);
    rig.on(Input::Abort);
    let effects = rig.on(Input::AbortAnswered(Generation(2)));
    assert!(!effects.contains(&Effect::Acquire));
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    // Nor has a turn that is ended already failed for want of a worker.
    let mut rig = sent(plain());
    rig.pass(90);
    rig.on(Input::Abort);
    rig.on(Input::AbortAnswered(Generation(1)));
    rig.on(Input::WorkerFailed(fail(ErrorCategory::Exited)));
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    // A stop of the session waits for nothing.
    let mut rig = sent(plain());
    rig.pass(90);
    let effects = rig.on(Input::Stop);
    assert!(effects.contains(&Effect::Dispose));
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
}

#[test]
fn that_no_worker_can_be_had_is_told_with_what_went_before() {
    let mut rig = sent(plain());
    rig.pass(90);
    rig.on(Input::AbortAnswered(Generation(1)));
    let effects = rig.on(Input::WorkerFailed(fail(ErrorCategory::Exited)));
    let told = failure(&effects).message;
    for words in [
        "sent nothing for 90 s",
        "it broke",
        "nothing was sent again",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn a_run_that_has_ended_by_itself_needs_no_abort() {
    let mut rig = sent(plain());
    let effects = rig.ended("a", Ending::Failed(fail(ErrorCategory::Network)));
    assert!(effects.contains(&Effect::Poison) && effects.contains(&Effect::Acquire));
    let mut rig = sent(plain());
    let failure = fail(ErrorCategory::Exited);
    let effects = rig.on(Input::WorkerExited(Generation(1), failure));
    assert!(effects.contains(&Effect::Poison) && effects.contains(&Effect::Acquire));
}

/// What the next broker does of a recovery that was on disk, by the worker that
/// it finds.
#[test]
fn a_recovery_that_was_decided_is_not_decided_again() {
    let seen = |seen| Adopted::Has { seen, card: false };
    for again in [Again::Resend, Again::Reconnect, Again::Continue] {
        // One that was heard is never sent again: its agent may be told to go on.
        let heard = (again == Again::Continue).then_some(seen(true));
        for adopted in [Adopted::NeverSent, seen(false)].into_iter().chain(heard) {
            let mut rig = given_up(again);
            let mut effects = rig.on(Input::Adopted(Generation(1), adopted));
            if again == Again::Resend && adopted != Adopted::NeverSent {
                assert_eq!(effects, [Effect::AbortSilent(id("a"))]);
                assert!(rig.pass(1).is_empty(), "it has what was left of its time");
                effects = rig.pass(1);
            }
            assert!(
                effects.ends_with(&[Effect::Poison, Effect::TellSteers(id("a")), Effect::Acquire]),
                "{again:?} {adopted:?}: the worker was given up: {effects:?}"
            );
            rig.generation = 1;
            let effects = rig.ready();
            let told = effects
                .iter()
                .any(|effect| matches!(effect, Effect::Emit(..)));
            assert_eq!(told, again == Again::Resend);
            let sent = effects.iter().find_map(|effect| match effect {
                Effect::Send { prompt, again, .. } => Some((prompt.as_str(), *again)),
                _ => None,
            });
            let prompt = match again {
                Again::Continue => texts::CONTINUE,
                _ => "prompt a",
            };
            assert_eq!(sent, Some((prompt, Some(again))));
            rig.pass(90);
            rig.pass(3);
            assert_eq!(rig.ends("a"), [TurnStatus::Failed], "and not a third time");
        }
    }
}

#[test]
fn the_words_on_disk_say_what_is_to_be_done() {
    for again in [Again::Resend, Again::Reconnect, Again::Continue] {
        assert_eq!(Again::read(again.planned()), Some((again, true)));
        assert_eq!(Again::read(again.written()), Some((again, false)));
    }
    for word in [SENT, "starting", ""] {
        assert_eq!(Again::read(word), None);
    }
}
