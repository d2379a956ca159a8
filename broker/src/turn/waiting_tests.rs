//! Messages that wait, by table.

use super::tests::{Rig, completed, fail, id, send};
use super::*;

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

fn steer(turn: &str) -> Input {
    Input::Steer {
        turn: id(turn),
        prompt: format!("prompt {turn}"),
    }
}

fn cancel(turn: &str) -> Input {
    Input::CancelQueued {
        turn: id(turn),
        by: "somebody".into(),
    }
}

/// A turn `a` in recovery with a steer `s` and a message `b` behind it.
fn recovering() -> Rig {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.pass(90);
    rig.on(steer("s"));
    rig.on(send("b"));
    rig
}

fn notices(rig: &Rig) -> usize {
    let told = |effect: &&Effect| matches!(effect, Effect::Drop { .. });
    rig.effects.iter().filter(told).count()
}

#[test]
fn a_steer_runs_behind_a_turn_that_was_recovered() {
    let mut rig = recovering();
    rig.ready();
    rig.event("a");
    rig.ended("a", completed());
    assert_eq!(rig.machine.turn(), Some(&id("s")));
    rig.event("s");
    rig.ended("s", completed());
    assert_eq!(
        (rig.sends("s"), rig.ends("s")),
        (1, vec![TurnStatus::Completed])
    );
    assert_eq!((rig.machine.turn(), notices(&rig)), (Some(&id("b")), 0));
}

/// As it is behind one that was recovered and failed later, by itself.
#[test]
fn a_steer_outlives_a_failure_after_the_recovery() {
    let mut rig = recovering();
    rig.ready();
    rig.event("a");
    rig.ended("a", Ending::Failed(fail(ErrorCategory::Unknown)));
    assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
    assert_eq!((rig.machine.turn(), notices(&rig)), (Some(&id("s")), 0));
}

#[test]
fn a_steer_is_dropped_once_when_its_turn_was_not_recovered_and_messages_go_on() {
    let failed: [fn(&mut Rig); 3] = [
        |rig| {
            rig.ready();
            rig.pass(90);
            rig.pass(3);
        },
        |rig| {
            rig.pass(3);
            rig.on(Input::WorkerFailed(fail(ErrorCategory::Exited)));
        },
        |rig| {
            rig.ready();
            rig.ended("a", Ending::Failed(fail(ErrorCategory::Auth)));
        },
    ];
    for fails in failed {
        let mut rig = recovering();
        fails(&mut rig);
        assert_eq!(rig.ends("a"), [TurnStatus::Failed]);
        assert_eq!(
            (rig.ends("s"), rig.sends("s")),
            (vec![TurnStatus::Interrupted], 0)
        );
        assert_eq!(notices(&rig), 1);
        assert_eq!(rig.machine.turn(), Some(&id("b")), "the next message runs");
    }
}

#[test]
fn an_abort_drops_the_steers_of_its_turn_and_nothing_else() {
    let mut rig = recovering();
    rig.on(Input::Abort);
    assert_eq!(
        (rig.ends("s"), notices(&rig)),
        (vec![TurnStatus::Interrupted], 1)
    );
    rig.on(steer("late"));
    rig.ready();
    assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
    assert_eq!(rig.machine.turn(), Some(&id("b")));
    assert_eq!(
        rig.machine.place(&id("late")),
        1,
        "said after the abort: it waits"
    );
    // Nor one of another turn, behind which it waits.
    let mut rig = Rig::new();
    for input in [send("a"), send("b"), steer("s")] {
        rig.on(input);
    }
    rig.ready();
    rig.ended("a", completed());
    assert_eq!(rig.machine.turn(), Some(&id("b")));
    rig.on(Input::Abort);
    rig.ended("b", Ending::Interrupted);
    assert_eq!(rig.machine.turn(), Some(&id("s")));
    // One that rides through an interrupt is not dropped by an abort behind it.
    let mut rig = recovering();
    rig.ready();
    rig.on(interrupt("n", Interrupt::Continue));
    rig.on(Input::Abort);
    assert_eq!(notices(&rig), 0);
}

fn interrupt(turn: &str, mode: Interrupt) -> Input {
    Input::Interrupt {
        turn: id(turn),
        prompt: format!("prompt {turn}"),
        mode,
    }
}

#[test]
fn interrupt_and_continue_goes_first_and_the_queue_rides_through() {
    let mut rig = Rig::new();
    for turn in ["a", "b"] {
        rig.on(send(turn));
    }
    rig.ready();
    rig.event("a");
    let effects = rig.on(interrupt("n", Interrupt::Continue));
    let first = |effect: &Effect| matches!(effect, Effect::Enqueue { first: true, .. });
    assert!(effects.iter().any(first), "on disk too: {effects:?}");
    assert_eq!(rig.machine.state(), State::Interrupting);
    assert!(rig.pass(29).is_empty(), "the same agent gets its time");
    rig.ended("a", Ending::Interrupted);
    assert_eq!(rig.machine.turn(), Some(&id("n")));
    assert!(!rig.effects.contains(&Effect::Poison), "on the same worker");
    rig.event("n");
    rig.ended("n", completed());
    assert_eq!(rig.machine.turn(), Some(&id("b")));

    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    rig.on(interrupt("n", Interrupt::Continue));
    assert!(
        rig.pass(30).contains(&Effect::Poison),
        "it does not wait for ever"
    );
    assert_eq!(rig.machine.turn(), Some(&id("n")));
}

#[test]
fn interrupt_and_replace_clears_a_queue_that_can_be_brought_back_for_a_moment() {
    for back in [true, false] {
        let mut rig = Rig::new();
        for turn in ["a", "b", "c"] {
            rig.on(send(turn));
        }
        rig.ready();
        rig.event("a");
        rig.on(interrupt("n", Interrupt::Replace));
        assert_eq!((rig.machine.queued(), rig.machine.recoverable()), (1, 2));
        rig.ended("a", Ending::Interrupted);
        rig.pass(7);
        assert!(rig.ends("b").is_empty(), "not yet");
        if back {
            rig.on(Input::RecoverQueue);
        }
        rig.pass(1);
        rig.on(Input::RecoverQueue);
        rig.event("n");
        rig.ended("n", completed());
        if back {
            assert_eq!(rig.machine.turn(), Some(&id("b")));
            assert_eq!(rig.machine.queued(), 1);
        } else {
            assert_eq!(rig.ends("b"), [TurnStatus::Interrupted]);
            assert_eq!(rig.ends("c"), [TurnStatus::Interrupted]);
            assert_eq!((rig.sends("b"), rig.machine.turn()), (0, None));
        }
    }
}

#[test]
fn a_run_that_is_replaced_has_the_time_of_an_abort() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    rig.on(interrupt("n", Interrupt::Replace));
    assert!(rig.pass(10).is_empty());
    assert!(rig.pass(1).contains(&Effect::Poison));
    assert_eq!(rig.machine.turn(), Some(&id("n")));
}

#[test]
fn a_stop_ends_what_was_cleared_too() {
    let mut rig = Rig::new();
    for turn in ["a", "b"] {
        rig.on(send(turn));
    }
    rig.ready();
    rig.on(interrupt("n", Interrupt::Replace));
    rig.on(Input::Stop);
    assert_eq!(rig.ends("b"), [TurnStatus::Interrupted]);
    assert_eq!(rig.machine.recoverable(), 0);
}

#[test]
fn what_was_cleared_when_a_broker_died_has_its_moment_and_waits_with_what_is_held() {
    let row = |turn: &str, steers: Option<&str>| Queued {
        turn: id(turn),
        prompt: format!("prompt {turn}"),
        steers: steers.map(id),
    };
    let restored = |held: bool| {
        let mut rig = Rig::new();
        if held {
            rig.machine.restore_queue([row("x", None)]);
        }
        rig.machine
            .restore_cleared(vec![row("s", Some("lost"))], rig.now);
        rig
    };
    let mut rig = restored(true);
    assert_eq!(rig.machine.deadline(), Some(Duration::from_secs(8)));
    assert!(rig.pass(7).is_empty());
    rig.on(Input::RecoverQueue);
    assert!(rig.machine.is_held() && rig.machine.turn().is_none());
    let rows: Vec<&Queued> = rig.machine.queue().collect();
    assert_eq!(rows, [&row("x", None), &row("s", None)]);
    let mut rig = restored(true);
    rig.pass(8);
    assert_eq!(rig.ends("s"), [TurnStatus::Interrupted]);
    // Nothing is held: it runs.
    let mut rig = restored(false);
    rig.on(Input::RecoverQueue);
    assert_eq!(rig.machine.turn(), Some(&id("s")));
}

/// A queue that was held and is empty by now holds up nobody.
#[test]
fn messages_run_in_order_again_once_the_user_is_there() {
    type Empties = fn(&mut Rig);
    let empties: [Empties; 4] = [
        |rig| drop(rig.on(cancel("x"))),
        |rig| drop(rig.on(Input::Stop)),
        |rig| drop(rig.on(Input::Unrecordable(fail(ErrorCategory::Unknown)))),
        |rig| {
            rig.on(interrupt("n", Interrupt::Replace));
            rig.ready();
            rig.ended("n", completed());
        },
    ];
    for empty in empties {
        let mut rig = Rig::new();
        rig.machine.restore_queue([Queued {
            turn: id("x"),
            prompt: "prompt x".into(),
            steers: None,
        }]);
        empty(&mut rig);
        rig.on(send("a"));
        rig.ready();
        rig.on(send("b"));
        rig.ended("a", completed());
        assert_eq!(rig.machine.turn(), Some(&id("b")));
    }
}

#[test]
fn waiting_messages_can_be_edited_and_cancelled_until_they_run() {
    let mut rig = Rig::new();
    for turn in ["a", "b", "c"] {
        rig.on(send(turn));
    }
    rig.on(Input::EditQueued {
        turn: id("b"),
        prompt: "other".into(),
    });
    rig.on(cancel("c"));
    let running = Input::EditQueued {
        turn: id("a"),
        prompt: "too late".into(),
    };
    assert!(rig.on(running).is_empty());
    assert!(rig.on(cancel("a")).is_empty());
    rig.ready();
    rig.ended("a", completed());
    let sent = Effect::Send {
        turn: id("b"),
        prompt: "other".into(),
        again: None,
    };
    assert!(rig.effects.contains(&sent));
    assert_eq!(rig.ends("c"), [TurnStatus::Interrupted]);
}

/// What was told of the messages that were dropped.
fn told(rig: &Rig) -> Vec<&str> {
    let told = rig.effects.iter().filter_map(|effect| match effect {
        Effect::Drop { notice, .. } => Some(notice.as_str()),
        _ => None,
    });
    told.collect()
}

#[test]
fn every_message_that_is_not_sent_is_named_with_what_ended_it() {
    let waiting = || {
        let mut rig = Rig::new();
        rig.on(send("a"));
        rig.on(send("b"));
        rig
    };
    let interrupt = || Input::Interrupt {
        turn: id("i"),
        prompt: "prompt i".into(),
        mode: Interrupt::Replace,
    };
    type Ending = fn(&mut Rig, Input);
    let endings: [(Ending, &str); 5] = [
        (|rig, _| drop(rig.on(cancel("b"))), "cancelled by somebody"),
        (|rig, _| drop(rig.on(Input::Stop)), "the chat was stopped"),
        (
            |rig, interrupt| {
                rig.on(interrupt);
                rig.pass(9);
            },
            "took the running turn's place",
        ),
        (
            |rig, interrupt| {
                rig.on(interrupt);
                for number in 0..MAX_QUEUE {
                    rig.on(send(&number.to_string()));
                }
                rig.on(Input::RecoverQueue);
            },
            "the queue was full",
        ),
        (
            |rig, _| {
                rig.on(steer("b2"));
                rig.on(cancel("b"));
                rig.on(Input::Abort);
            },
            "cancelled by somebody",
        ),
    ];
    for (end, why) in endings {
        let mut rig = waiting();
        end(&mut rig, interrupt());
        let first = told(&rig)[0];
        assert!(first.contains(why) && first.contains("not sent"), "{first}");
        assert!(first.contains("“prompt b”"), "{first}");
    }
    let mut rig = Rig::new();
    rig.on(send("a"));
    let prompt = "ü".repeat(1_000);
    rig.on(Input::Send {
        turn: id("long"),
        prompt,
    });
    rig.on(cancel("long"));
    assert!(told(&rig)[0].len() < 600, "shortened at a whole character");
    assert!(told(&rig)[0].ends_with("ü…”"), "and said so");
    // Nor is one lost that nothing can be written of.
    let mut rig = waiting();
    let effects = rig.on(Input::Unrecordable(fail(ErrorCategory::Unknown)));
    let named = effects.iter().any(|effect| {
        matches!(effect, Effect::Finish { turn, failure: Some(failure), .. }
            if *turn == id("b") && failure.message.contains("“prompt b”"))
    });
    assert!(named, "{effects:?}");
}

#[test]
fn a_restored_queue_is_held_until_the_users_next_message() {
    let rows = ["x", "y"].map(|turn| Queued {
        turn: id(turn),
        prompt: format!("prompt {turn}"),
        steers: Some(id("lost")),
    });
    let mut rig = Rig::new();
    rig.machine.restore_queue(rows);
    assert!(rig.machine.is_held() && rig.machine.queued() == 2);
    let belongs = rig.machine.queue().any(|row| row.steers.is_some());
    assert!(!belongs, "to a turn that is lost");
    rig.pass(1_000);
    assert_eq!(rig.machine.state(), State::Idle);
    rig.on(send("n"));
    for turn in ["x", "y", "n"] {
        assert_eq!(rig.machine.turn(), Some(&id(turn)));
        if turn == "x" {
            rig.ready();
        }
        rig.ended(turn, completed());
        assert_eq!(rig.sends(turn), 1);
    }
    assert!(!rig.machine.is_held());
}

#[test]
fn the_queue_has_a_bound_and_a_late_steer_belongs_to_no_turn() {
    let mut rig = Rig::new();
    rig.on(send("a"));
    rig.ready();
    rig.event("a");
    rig.on(Input::Abort);
    let turn = id("late");
    let prompt = "steer".to_owned();
    rig.on(Input::Steer { turn, prompt });
    let row = rig.machine.queue().next().expect("it waits");
    assert_eq!(
        row.steers, None,
        "the turn was being ended when it was said"
    );
    for number in rig.machine.queued()..MAX_QUEUE {
        assert!(rig.machine.has_room(), "{number}");
        rig.on(send(&format!("q{number}")));
    }
    assert!(!rig.machine.has_room());
}

/// Nothing was sent yet, so the start is cancelled, and what comes next asks for
/// one of its own behind that.
#[test]
fn a_turn_that_ends_while_its_worker_starts_takes_the_start_with_it() {
    let ends = [
        Input::Abort,
        interrupt("n", Interrupt::Replace),
        interrupt("n", Interrupt::Continue),
    ];
    for end in ends {
        let mut rig = Rig::new();
        rig.on(send("a"));
        rig.on(send("b"));
        let effects = rig.on(end.clone());
        let at = |wanted: &Effect| effects.iter().position(|effect| effect == wanted);
        let (cancelled, another) = (at(&Effect::CancelStart), at(&Effect::Acquire));
        assert!(cancelled.is_some() && cancelled < another, "{effects:?}");
        assert_eq!(rig.ends("a"), [TurnStatus::Interrupted]);
        let next = if end == Input::Abort { "b" } else { "n" };
        assert_eq!(rig.machine.turn(), Some(&id(next)));
        rig.ready();
        assert_eq!((rig.sends("a"), rig.sends(next)), (0, 1));
    }
    let mut rig = Rig::new();
    rig.on(send("a"));
    let effects = rig.on(Input::Abort);
    assert!(effects.contains(&Effect::CancelStart), "{effects:?}");
    assert_eq!(rig.machine.state(), State::Idle);
    assert!(rig.on(send("b")).contains(&Effect::Acquire));
}
