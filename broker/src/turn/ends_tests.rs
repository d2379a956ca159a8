//! How turns end, by table: what goes with them, and in which order.

use super::tests::{Rig, completed, fail, id, send};
use super::*;

/// Which failures leave a worker that no other message is written to, whoever ended
/// the turn.
#[test]
fn a_worker_that_is_of_no_use_any_more_goes_with_its_turn() {
    let table = [
        (ErrorCategory::Exited, true),
        (ErrorCategory::Protocol, true),
        (ErrorCategory::Lease, true),
        (ErrorCategory::Network, false),
        (ErrorCategory::TimedOut, false),
        (ErrorCategory::Busy, false),
        (ErrorCategory::RateLimit, false),
        (ErrorCategory::Auth, false),
        (ErrorCategory::NotFound, false),
        (ErrorCategory::Unknown, false),
    ];
    for (category, goes) in table {
        for (by_user, status) in [(false, TurnStatus::Failed), (true, TurnStatus::Interrupted)] {
            let mut rig = Rig::new();
            rig.on(send("a"));
            rig.ready();
            rig.event("a");
            if by_user {
                rig.on(Input::Abort);
            }
            let effects = rig.ended("a", Ending::Failed(fail(category)));
            assert_eq!(effects.contains(&Effect::Poison), goes, "{category:?}");
            assert_eq!(rig.ends("a"), [status], "{category:?}");
            let effects = rig.on(send("b"));
            assert_eq!(effects.contains(&Effect::Acquire), goes, "{category:?}");
        }
    }
    // One that is stopped ends by its ladder.
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.on(Input::Stop);
    let effects = rig.ended("a", Ending::Failed(fail(ErrorCategory::Exited)));
    assert!(!effects.contains(&Effect::Poison), "{effects:?}");
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
}

#[test]
fn what_the_user_ends_is_on_disk_before_anything_is_done_for_it_and_once() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    let ended = [
        Effect::NoteEnd(id("a")),
        Effect::Abort(id("a")),
        Effect::Withdraw(ade_protocol::card::Withdrawal::Aborted),
    ];
    assert_eq!(rig.on(Input::Abort), ended);
    assert!(rig.on(Input::Abort).is_empty());
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.pass(90);
    assert_eq!(rig.on(Input::Abort), [Effect::NoteEnd(id("a"))]);
    assert!(rig.on(Input::Abort).is_empty());
}

#[test]
fn a_stop_waits_for_the_worker_and_not_for_ever() {
    let stopped = || {
        let mut rig = Rig::new();
        rig.on(send("a"));
        rig.ready();
        rig.event("a");
        rig.on(Input::Stop);
        rig
    };
    let mut rig = stopped();
    assert!(rig.pass(9).is_empty());
    rig.pass(1);
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    assert_eq!(rig.machine.worker(), None);
    // It may also just end.
    let mut rig = stopped();
    let died = fail(ErrorCategory::Exited);
    rig.on(Input::WorkerExited(Generation(1), died));
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
}

/// Every way in which a turn with an open card stops being answerable, with the
/// word for it and what must have been said before.
#[test]
fn a_card_is_withdrawn_whatever_ends_its_turn_and_in_time() {
    use ade_protocol::card::Withdrawal;
    type End = fn(&mut Rig) -> Vec<Effect>;
    let table: [(&str, End, Withdrawal, Option<Effect>); 5] = [
        (
            // A host that hears the denial first would go on with the turn.
            "abort",
            |rig| rig.on(Input::Abort),
            Withdrawal::Aborted,
            Some(Effect::Abort(id("a"))),
        ),
        (
            "stop",
            |rig| rig.on(Input::Stop),
            Withdrawal::ShuttingDown,
            Some(Effect::Dispose),
        ),
        (
            "the turn's end",
            |rig| rig.ended("a", completed()),
            Withdrawal::TurnEnded,
            None,
        ),
        (
            "a failure",
            |rig| rig.ended("a", Ending::Failed(fail(ErrorCategory::Unknown))),
            Withdrawal::TurnEnded,
            None,
        ),
        (
            "the worker's death",
            |rig| {
                let failure = fail(ErrorCategory::Exited);
                rig.on(Input::WorkerExited(Generation(1), failure))
            },
            Withdrawal::WorkerGone,
            None,
        ),
    ];
    for (what, end, why, before) in table {
        let mut rig = Rig::new();
        rig.on(send("a"));
        rig.ready();
        rig.on(Input::CardOpened(Generation(1), Some(id("a"))));
        assert_eq!(rig.machine.state(), State::AwaitingCard);
        let effects = end(&mut rig);
        let at = |wanted: &Effect| effects.iter().position(|effect| effect == wanted);
        let withdrawn = at(&Effect::Withdraw(why));
        assert!(withdrawn.is_some(), "{what}: {effects:?}");
        if let Some(before) = before {
            assert!(at(&before) < withdrawn, "{what}: {effects:?}");
            assert!(at(&before).is_some(), "{what}: {effects:?}");
        }
        let finished = effects
            .iter()
            .position(|effect| matches!(effect, Effect::Finish { .. }));
        assert!(
            finished.is_none_or(|finished| Some(finished) > withdrawn),
            "{what}: {effects:?}"
        );
    }
}

#[test]
fn after_a_stop_the_next_message_gets_another_worker() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    rig.on(Input::Stop);
    rig.ended("a", Ending::Interrupted);
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    assert_eq!(rig.machine.worker(), None);
    let effects = rig.on(send("b"));
    assert!(effects.contains(&Effect::Acquire), "{effects:?}");
    assert_eq!(rig.sends("b"), 0, "nothing goes to the one that leaves");
}
