//! Rows of sessions, and what counts for each of them.

use ade_protocol::Fence;

use super::*;

#[test]
fn sessions_come_back_as_they_were_written() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let (one, two) = (session("ses_1"), session("ses_2"));
    state.insert_session(&one).unwrap();
    state.insert_session(&two).unwrap();
    assert!(state.insert_session(&one).is_err());
    drop(state);
    let state = open(&folder);
    assert_eq!(state.sessions().unwrap(), [one.clone(), two]);
    assert_eq!(state.session(&one.session_id).unwrap(), Some(one.clone()));
    assert_eq!(state.count_sessions().unwrap(), 2);

    let id = one.session_id;
    state.set_session_file(&id, Some("/f"), None).unwrap();
    state.set_session_file(&id, None, Some("p1")).unwrap();
    state.set_model(&id, None).unwrap();
    state.set_thinking(&id, Some("high")).unwrap();
    state.set_failed(&id, Some("three deaths")).unwrap();
    let row = state.session(&id).unwrap().unwrap();
    assert_eq!(row.session_file.as_deref(), Some("/f"));
    assert_eq!(row.provider_session_id.as_deref(), Some("p1"));
    assert_eq!((row.model, row.thinking.as_deref()), (None, Some("high")));
    assert_eq!(row.failed_reason.as_deref(), Some("three deaths"));

    let error = state.set_failed(&"ses_9".into(), None).unwrap_err();
    assert!(matches!(&error, StateError::NoSession(id) if id.as_str() == "ses_9"));
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn a_deleted_session_is_gone_with_all_that_hangs_on_it() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    state.insert_session(&session("s")).unwrap();
    state.begin_turn(&turn("s", "t1")).unwrap();
    state.enqueue(&queued("s", "t2")).unwrap();
    state.put_card(&card("s", "c", CardKind::Text), 1).unwrap();
    let id = SessionId::from("s");
    let steer = SteerRow {
        session_id: id.clone(),
        request_id: "r".into(),
        turn_id: "t1".into(),
        prompt: "steer".into(),
        after: Seq(3),
    };
    state.put_steer(&steer).unwrap();
    assert_eq!(state.steers(&id).unwrap(), [steer]);
    state.put_death(&death("s", 7), 0).unwrap();
    assert!(state.delete_session(&id).unwrap());
    assert!(!state.delete_session(&id).unwrap());
    assert!(state.steers(&id).unwrap().is_empty() && state.deaths().unwrap().is_empty());
    assert!(state.session(&id).unwrap().is_none() && state.sessions().unwrap().is_empty());
    assert!(state.running_turns().unwrap().is_empty() && state.queues().unwrap().is_empty());
    assert!(state.cards().unwrap().is_empty());
    assert!(
        state.insert_session(&session("s")).is_err(),
        "an id is never given out twice"
    );
    assert!(state.next_generation(&id).is_err());
}

#[test]
fn fences_and_generations_only_grow() {
    let folder = TempDir::new().unwrap();
    let id = SessionId::from("s");
    for expected in 1..=3 {
        let state = open(&folder);
        if expected == 1 {
            state.insert_session(&session("s")).unwrap();
        }
        assert_eq!(state.next_fence().unwrap(), Fence(expected));
        assert_eq!(state.next_generation(&id).unwrap(), Generation(expected));
    }
    let state = open(&folder);
    state.raise_generation(&id, Generation(2)).unwrap();
    assert_eq!(state.next_generation(&id).unwrap(), Generation(4));
    state.raise_generation(&id, Generation(70)).unwrap();
    assert_eq!(state.next_generation(&id).unwrap(), Generation(71));
}

#[test]
fn flags_are_consumed_once() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let id = SessionId::from("s");
    state.insert_session(&session("s")).unwrap();
    state
        .set_flags(
            &id,
            Flags {
                rotate: true,
                force_expire: false,
            },
        )
        .unwrap();
    state
        .set_flags(
            &id,
            Flags {
                rotate: false,
                force_expire: true,
            },
        )
        .unwrap();
    drop(state);
    let state = open(&folder);
    assert_eq!(
        state.session(&id).unwrap().unwrap().flags,
        Flags {
            rotate: true,
            force_expire: true
        }
    );
    state.clear_rotate(&id).unwrap();
    let left = state.session(&id).unwrap().unwrap().flags;
    assert!(left.force_expire && !left.rotate, "each by itself");
    state.clear_force_expire(&id).unwrap();
    let left = state.session(&id).unwrap().unwrap().flags;
    assert_eq!(left, Flags::default());
}

#[test]
fn each_change_of_the_permission_counts_and_only_for_its_session() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    for id in ["a", "b"] {
        state.insert_session(&session(id)).unwrap();
    }
    let a = "a".into();
    for (mode, count) in [(PermissionMode::Plan, 1), (PermissionMode::FullAuto, 2)] {
        assert_eq!(state.set_permission(&a, mode).unwrap(), count);
        let row = state.session(&a).unwrap().unwrap();
        assert_eq!((row.permission, row.policy), (mode, count));
    }
    assert_eq!(state.session(&"b".into()).unwrap().unwrap(), session("b"));
    let nobody = state.set_permission(&"c".into(), PermissionMode::Plan);
    assert!(
        matches!(nobody, Err(StateError::NoSession(_))),
        "{nobody:?}"
    );
}

#[test]
fn a_damaged_row_costs_its_own_session_and_says_what_can_be_read() {
    let damages = [
        "UPDATE sessions SET permission = 'of-tomorrow' WHERE session_id = 'ses_1'",
        "UPDATE sessions SET title = CAST(x'ff41' AS TEXT) WHERE session_id = 'ses_1'",
    ];
    for damage in damages {
        let folder = TempDir::new().unwrap();
        let state = open(&folder);
        state.insert_session(&session("ses_1")).unwrap();
        state.insert_session(&session("ses_2")).unwrap();
        assert!(state.damaged_sessions().unwrap().is_empty());
        state.conn.execute(damage, []).unwrap();
        assert_eq!(state.sessions().unwrap(), [session("ses_2")], "{damage}");
        let damaged = state.damaged_sessions().unwrap();
        let [(row, error)] = damaged.as_slice() else {
            panic!("{damaged:?}");
        };
        assert_eq!(row.session_id.as_str(), "ses_1");
        assert_eq!((row.provider.as_str(), row.lane.as_str()), ("pi", "/lane"));
        assert_eq!(row.permission, PermissionMode::Plan, "the least of all");
        assert!(error.to_string().contains("ses_1"), "{error}");
        assert!(state.delete_session(&row.session_id).unwrap());
        assert!(state.damaged_sessions().unwrap().is_empty());
    }
}

#[test]
fn a_damaged_row_of_a_card_costs_itself() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    state.insert_session(&session("s")).unwrap();
    state
        .put_card(&card("s", "c1", CardKind::Confirm), 1)
        .unwrap();
    state
        .put_card(&card("s", "c2", CardKind::Confirm), 2)
        .unwrap();
    let damage = "UPDATE cards SET card = '{' WHERE card_id = 'c1'";
    state.conn.execute(damage, []).unwrap();
    let cards = state.cards().unwrap();
    let ids: Vec<_> = cards.iter().map(|row| row.card.card_id.as_str()).collect();
    assert_eq!(ids, ["c2"]);
}

fn death(session: &str, at_ms: u64) -> Death {
    Death {
        session_id: session.into(),
        provider: "pi".into(),
        at_start: true,
        at_ms,
    }
}

#[test]
fn deaths_count_as_long_as_they_are_new_and_for_whom_they_count() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    for id in ["a", "b"] {
        state.insert_session(&session(id)).unwrap();
    }
    // The clock began anew with the machine: 900 lies ahead.
    for at in [10, 20, 900] {
        state.put_death(&death("a", at), 0).unwrap();
    }
    state.put_death(&death("b", 5), 0).unwrap();
    state.put_death(&death("a", 30), 20).unwrap();
    let kept = [death("b", 5), death("a", 20), death("a", 30)];
    assert_eq!(state.deaths().unwrap(), kept);
    // The kind of agent is well; the sessions count for themselves.
    state.forget_failed_starts("pi").unwrap();
    let own = kept.map(|death| Death {
        at_start: false,
        ..death
    });
    assert_eq!(state.deaths().unwrap(), own);
    state.forget_deaths(&"a".into()).unwrap();
    assert_eq!(state.deaths().unwrap(), own[..1]);
}

#[test]
fn a_new_agent_has_been_told_nothing() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let id = SessionId::from("s");
    state.insert_session(&session("s")).unwrap();
    state.set_agent_told(&id).unwrap();
    state.set_replaced_agent(&id, Some("old")).unwrap();
    let row = state.session(&id).unwrap().unwrap();
    assert_eq!(row.replaced_agent.as_deref(), Some("old"));
    assert!(!row.agent_told);
}
