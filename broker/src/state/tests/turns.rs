//! Turns that run and turns that wait.

use ade_protocol::event::TurnStatus;

use super::*;

#[test]
fn a_session_runs_one_turn_and_remembers_how_it_ended() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let (id, first) = (SessionId::from("s"), TurnId::from("t1"));
    state.insert_session(&session("s")).unwrap();
    state.begin_turn(&turn("s", "t1")).unwrap();
    assert!(matches!(
        state.begin_turn(&turn("s", "t2")),
        Err(StateError::TurnRuns(_))
    ));
    state
        .update_turn(&id, &first, Generation(3), 2, "streaming")
        .unwrap();
    state
        .update_turn(&id, &"t0".into(), Generation(9), 9, "odd")
        .unwrap();
    let found = state.running_turns().unwrap();
    let expected = TurnRow {
        generation: Generation(3),
        sends: 2,
        state: "streaming".into(),
        armed_at_ms: 0,
        cause: None,
        ..turn("s", "t1")
    };
    assert_eq!(found, [expected]);

    assert!(
        !state
            .end_turn(&id, &"t0".into(), TurnStatus::Completed, None, Seq(0))
            .unwrap()
    );
    assert!(
        state
            .end_turn(&id, &first, TurnStatus::Failed, Some("boom"), Seq(9))
            .unwrap()
    );
    let row = state.session(&id).unwrap().unwrap();
    assert_eq!(
        (row.last_status, row.last_error.as_deref()),
        (Some(TurnStatus::Failed), Some("boom"))
    );
    assert!(!row.has_history);
    state.begin_turn(&turn("s", "t2")).unwrap();
    state
        .end_turn(&id, &"t2".into(), TurnStatus::Completed, None, Seq(0))
        .unwrap();
    let row = state.session(&id).unwrap().unwrap();
    assert!(row.has_history && row.last_error.is_none());
    // What is known of the transcript only grows.
    assert_eq!(row.last_sequence, Seq(9));
    let next = TurnRow {
        after: Seq(12),
        ..turn("s", "t3")
    };
    state.begin_turn(&next).unwrap();
    assert_eq!(state.last_sequence(&id).unwrap(), Seq(12));
}

#[test]
fn the_first_mark_of_a_turn_stays_and_ends_with_it() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let (id, turn_id) = (SessionId::from("s"), TurnId::from("t1"));
    state.insert_session(&session("s")).unwrap();
    state.begin_turn(&turn("s", "t1")).unwrap();
    let mark = |state: &State| state.turn_mark(&id, &turn_id).unwrap();
    assert_eq!(mark(&state), None, "as an older ade left it");
    state.mark_turn(&id, &"t0".into(), "another's").unwrap();
    assert_eq!(mark(&state), None);
    for text in ["first", "second"] {
        state.mark_turn(&id, &turn_id, text).unwrap();
        assert_eq!(mark(&state).as_deref(), Some("first"));
    }
    state
        .end_turn(&id, &turn_id, TurnStatus::Completed, None, Seq(0))
        .unwrap();
    assert_eq!(mark(&state), None);
}

#[test]
fn the_queue_keeps_its_order() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let id = SessionId::from("s");
    state.insert_session(&session("s")).unwrap();
    for turn in ["t1", "t2", "t3", "t4"] {
        state.enqueue(&queued("s", turn)).unwrap();
    }
    assert!(state.enqueue(&queued("s", "t4")).is_err());
    state.enqueue_first(&queued("s", "t0")).unwrap();
    assert!(state.edit_queued(&id, &"t0".into(), "other").unwrap());
    assert!(!state.edit_queued(&id, &"t9".into(), "other").unwrap());
    let first = state.queue(&id).unwrap().remove(0);
    assert_eq!(
        (first.turn_id.as_str(), first.prompt.as_str()),
        ("t0", "other")
    );
    assert!(state.remove_queued(&id, &"t0".into()).unwrap());
    assert!(state.remove_queued(&id, &"t3".into()).unwrap());
    assert!(!state.remove_queued(&id, &"t3".into()).unwrap());
    let rest: Vec<_> = state
        .queue(&id)
        .unwrap()
        .into_iter()
        .map(|row| row.turn_id)
        .collect();
    assert_eq!(rest, ["t1", "t2", "t4"].map(TurnId::from));
}

#[test]
fn what_was_cleared_is_kept_and_runs_only_when_it_is_queued_again() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let id = SessionId::from("s");
    state.insert_session(&session("s")).unwrap();
    for turn in ["t1", "t2", "t3"] {
        state.enqueue(&queued("s", turn)).unwrap();
    }
    assert!(state.clear_queued(&id, &"t1".into()).unwrap());
    assert!(state.clear_queued(&id, &"t2".into()).unwrap());
    assert!(!state.clear_queued(&id, &"t9".into()).unwrap());
    let turns = |rows: Vec<QueuedRow>| -> Vec<String> {
        rows.iter().map(|row| row.turn_id.to_string()).collect()
    };
    assert_eq!(turns(state.queue(&id).unwrap()), ["t3"]);
    assert_eq!(turns(state.cleared(&id).unwrap()), ["t1", "t2"]);
    state.enqueue(&queued("s", "t1")).unwrap();
    assert_eq!(turns(state.queue(&id).unwrap()), ["t3", "t1"]);
    assert!(state.remove_queued(&id, &"t2".into()).unwrap());
    assert_eq!(turns(state.cleared(&id).unwrap()), [""; 0]);
}

#[test]
fn only_the_running_turn_is_written_of() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let (id, own, other) = (SessionId::from("s"), TurnId::from("t1"), "t0".into());
    state.insert_session(&session("s")).unwrap();
    state.begin_turn(&turn("s", "t1")).unwrap();
    let write = |turn: &TurnId| {
        state.set_turn_state(&id, turn, "ending").unwrap();
        state.set_armed(&id, turn, 5).unwrap();
        state
            .plan_turn(&id, turn, "recovering", Some("why"))
            .unwrap();
    };
    write(&other);
    assert_eq!(state.running_turns().unwrap(), [turn("s", "t1")]);
    write(&own);
    let planned = TurnRow {
        state: "recovering".into(),
        armed_at_ms: 5,
        cause: Some("why".into()),
        ..turn("s", "t1")
    };
    assert_eq!(
        state.running_turns().unwrap(),
        std::slice::from_ref(&planned)
    );
    // Taken back is only what was planned.
    for (turn, planned_as) in [(&other, "recovering"), (&own, "ending")] {
        state.unplan_turn(&id, turn, planned_as, "sent").unwrap();
        assert_eq!(
            state.running_turns().unwrap(),
            std::slice::from_ref(&planned)
        );
    }
    state.unplan_turn(&id, &own, "recovering", "sent").unwrap();
    let before = TurnRow {
        state: "sent".into(),
        cause: None,
        ..planned
    };
    assert_eq!(state.running_turns().unwrap(), [before]);
}

#[test]
fn what_belongs_to_a_turn_ends_with_it_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let (id, own) = (SessionId::from("s"), TurnId::from("t1"));
    state.insert_session(&session("s")).unwrap();
    state.set_has_history(&id).unwrap();
    state.begin_turn(&turn("s", "t1")).unwrap();
    let of = |card_id: &str, turn: Option<&str>| Card {
        turn_id: turn.map(TurnId::from),
        ..card("s", card_id, CardKind::Text)
    };
    for card in [of("1", Some("t1")), of("2", Some("t2")), of("3", None)] {
        state.put_card(&card, 1).unwrap();
    }
    for waits in ["t1", "t2"] {
        state.enqueue(&queued("s", waits)).unwrap();
    }
    let end = |turn: &TurnId| state.end_turn(&id, turn, TurnStatus::Failed, None, Seq(0));
    assert!(end(&own).unwrap());
    let cards = state.cards().unwrap();
    let cards: Vec<&str> = cards.iter().map(|row| row.card.card_id.as_str()).collect();
    assert_eq!(cards, ["2", "3"]);
    assert_eq!(state.queue(&id).unwrap(), [queued("s", "t2")]);
    assert!(state.session(&id).unwrap().unwrap().has_history, "it stays");
}
