use std::os::unix::fs::PermissionsExt;

use ade_protocol::action::{ChatCreate, PermissionMode};
use ade_protocol::card::{Answer, Card, CardKind, CardOrigin, CardOutcome, CardPayload};
use ade_protocol::event::TurnStatus;
use ade_protocol::{Fence, Generation, Seq, SessionId, TurnId};
use tempfile::TempDir;

use super::*;

fn open(folder: &TempDir) -> State {
    State::open(&folder.path().join("state.db")).unwrap()
}

fn session(id: &str) -> SessionRow {
    let create = ChatCreate {
        provider: "pi".into(),
        lane: "/ignored".into(),
        model: Some("a/b".into()),
        thinking: None,
        permission: PermissionMode::FullAuto,
        session_file: None,
        take_over: false,
        agent_dir: None,
        title: Some("title".into()),
        first_event_ms: Some(1234),
    };
    SessionRow::new(
        id.into(),
        &create,
        "/lane".into(),
        "2026-01-01T00:00:00.000Z".into(),
    )
}

fn turn(session: &str, id: &str) -> TurnRow {
    TurnRow {
        session_id: session.into(),
        turn_id: id.into(),
        prompt: "say it".into(),
        started_at: "t".into(),
        generation: Generation(1),
        sends: 0,
        state: "starting".into(),
        armed_at_ms: 0,
        cause: None,
        after: Seq(7),
    }
}

fn queued(session: &str, id: &str) -> QueuedRow {
    QueuedRow {
        session_id: session.into(),
        turn_id: id.into(),
        prompt: format!("prompt {id}"),
        steers: None,
        queued_at: "t".into(),
        after: Seq(8),
    }
}

fn card(session: &str, id: &str, kind: CardKind) -> Card {
    Card {
        card_id: id.into(),
        session_id: session.into(),
        generation: Generation(1),
        turn_id: None,
        opened_at: "t".into(),
        payload: CardPayload {
            origin: CardOrigin::Tool,
            kind,
            message: "which?".into(),
            title: None,
            placeholder: None,
            default_value: Some("canary".into()),
            options: Vec::new(),
            source_id: None,
            detail: None,
        },
    }
}

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
    assert!(state.delete_session(&id).unwrap());
    assert!(!state.delete_session(&id).unwrap());
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
            .end_turn(&id, &"t0".into(), TurnStatus::Completed, None)
            .unwrap()
    );
    assert!(
        state
            .end_turn(&id, &first, TurnStatus::Failed, Some("boom"))
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
        .end_turn(&id, &"t2".into(), TurnStatus::Completed, None)
        .unwrap();
    let row = state.session(&id).unwrap().unwrap();
    assert!(row.has_history && row.last_error.is_none());
}

#[test]
fn the_queue_keeps_its_order_and_moves_as_one_step() {
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
    let started = state.start_queued(&id, "now").unwrap().unwrap();
    assert_eq!(
        (started.turn_id.as_str(), started.started_at.as_str()),
        ("t1", "now")
    );
    // The running turn stays, and so does the queue.
    assert!(matches!(
        state.start_queued(&id, "now"),
        Err(StateError::TurnRuns(_))
    ));
    let rest: Vec<_> = state
        .queue(&id)
        .unwrap()
        .into_iter()
        .map(|row| row.turn_id)
        .collect();
    assert_eq!(rest, [TurnId::from("t2"), TurnId::from("t4")]);
    assert_eq!(state.clear_queue(&id).unwrap(), 2);
    state
        .end_turn(&id, &"t1".into(), TurnStatus::Interrupted, None)
        .unwrap();
    assert_eq!(state.start_queued(&id, "now").unwrap(), None);
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
    let first = state.start_queued(&id, "now").unwrap().unwrap();
    assert_eq!(first.turn_id.as_str(), "t3");
    assert!(state.remove_queued(&id, &"t2".into()).unwrap());
    assert_eq!(turns(state.cleared(&id).unwrap()), [""; 0]);
}

#[test]
fn cards_are_questions_without_secrets() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let id = SessionId::from("s");
    state.insert_session(&session("s")).unwrap();
    let text = card("s", "1", CardKind::Text);
    let secret = card("s", "2", CardKind::Secret);
    state.put_card(&text, 1).unwrap();
    state.put_card(&secret, 7).unwrap();
    state.put_card(&text, 5).unwrap();
    let kept = state.cards().unwrap();
    let open = CardRow {
        card: text,
        opened_at_ms: 5,
        settled: None,
    };
    assert_eq!(kept[0], open);
    assert_eq!(kept[1].card.payload.default_value, None);
    assert_eq!((kept.len(), kept[1].opened_at_ms), (2, 7));
    assert!(!state.remove_card(&id, Generation(2), &"1".into()).unwrap());
    assert!(state.remove_card(&id, Generation(1), &"1".into()).unwrap());
    assert_eq!(state.remove_cards(&id).unwrap(), 1);
}

#[test]
fn how_a_card_ended_is_kept_and_a_secret_is_not() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let id = SessionId::from("s");
    state.insert_session(&session("s")).unwrap();
    let settled = Settled {
        outcome: CardOutcome::Answered {
            by: "a".into(),
            value: None,
        },
        answer: Some(Answer {
            ok: true,
            value: Some("canary".into()),
        }),
        sequence: Seq(9),
    };
    let (text, secret) = (
        card("s", "1", CardKind::Text),
        card("s", "2", CardKind::Secret),
    );
    for card in [&text, &secret] {
        state.put_card(card, 1).unwrap();
        state.settle_card(card, &settled).unwrap();
    }
    let kept = state.cards().unwrap();
    assert_eq!(kept[0].settled.as_ref(), Some(&settled));
    let ended = kept[1].settled.as_ref().unwrap();
    assert_eq!((&ended.answer, ended.sequence), (&None, Seq(9)));
    let other = card("s", "3", CardKind::Confirm);
    state.put_card(&other, 1).unwrap();
    assert_eq!(state.remove_settled(&id).unwrap(), 2);
    assert_eq!(state.cards().unwrap()[0].card, other);
    // One that asks again under the same name is open again.
    state.settle_card(&other, &settled).unwrap();
    state.put_card(&other, 2).unwrap();
    assert_eq!(state.cards().unwrap()[0].settled, None);
}

#[test]
fn what_fails_or_panics_on_the_way_is_taken_back() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    let failed: Result<(), _> = state.atomically(|state| {
        state.insert_session(&session("s1"))?;
        state.atomically(|state| state.insert_session(&session("s2")))?;
        Err(StateError::Closed)
    });
    assert!(failed.is_err());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        state.atomically(|state| {
            state.insert_session(&session("s3")).unwrap();
            panic!("on purpose");
            #[expect(unreachable_code, reason = "names the type")]
            Ok(())
        })
    }));
    assert!(panicked.is_err());
    assert!(state.sessions().unwrap().is_empty());
}

#[test]
fn files_are_private_and_newer_schemas_and_rubbish_are_left_alone() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    state.insert_session(&session("s")).unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(
            file.metadata().unwrap().permissions().mode() & 0o777,
            0o600,
            "{file:?}"
        );
    }
    state.conn.pragma_update(None, "user_version", 999).unwrap();
    drop(state);
    let path = folder.path().join("state.db");
    let before = std::fs::read(&path).unwrap();
    let error = State::open(&path).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("999") && text.contains("state.db"), "{text}");
    assert!(!error.hints().is_empty());
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let rubbish = folder.path().join("rubbish.db");
    std::fs::write(&rubbish, "not a database ".repeat(1000)).unwrap();
    let error = State::open(&rubbish).unwrap_err();
    assert!(matches!(error, StateError::Damaged { .. }), "{error:?}");
}

#[test]
fn a_queue_of_an_older_schema_has_no_steers_and_new_ones_are_kept() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    state.insert_session(&session("s")).unwrap();
    // As the schema before left it.
    let old = "ALTER TABLE turns DROP COLUMN cause;
               ALTER TABLE queue DROP COLUMN cleared;
               ALTER TABLE queue DROP COLUMN steers;
               ALTER TABLE queue DROP COLUMN after_sequence;
               ALTER TABLE turns DROP COLUMN after_sequence;
               INSERT INTO queue (session_id, turn_id, prompt, queued_at)
               VALUES ('s', 't1', 'prompt t1', 't');
               PRAGMA user_version = 3;";
    state.conn.execute_batch(old).unwrap();
    drop(state);
    let state = open(&folder);
    let steer = |id: &str| QueuedRow {
        steers: Some("t0".into()),
        ..queued("s", id)
    };
    state.enqueue(&steer("t2")).unwrap();
    state.enqueue_first(&steer("t3")).unwrap();
    // Where the old row's turn may begin in the transcript nobody knows.
    let old = QueuedRow {
        after: Seq(0),
        ..queued("s", "t1")
    };
    let rows = [steer("t3"), old, steer("t2")];
    assert_eq!(state.queue(&"s".into()).unwrap(), rows);
}

#[test]
fn a_full_database_refuses_and_keeps_what_it_had() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder);
    state.insert_session(&session("s")).unwrap();
    let pages: i64 = state
        .conn
        .pragma_query_value(None, "page_count", |row| row.get(0))
        .unwrap();
    state
        .conn
        .pragma_update(None, "max_page_count", pages + 2)
        .unwrap();
    let long = QueuedRow {
        prompt: "x".repeat(1 << 20),
        ..queued("s", "t1")
    };
    let error = state.enqueue(&long).unwrap_err();
    assert!(matches!(error, StateError::Full { .. }), "{error:?}");
    assert!(error.hints()[0].contains("room"));
    assert!(state.queues().unwrap().is_empty());
    state.enqueue(&queued("s", "t2")).unwrap();
    assert_eq!(state.queues().unwrap().len(), 1);
}

#[tokio::test]
async fn the_handle_does_things_in_order_and_survives_a_panic() {
    let folder = TempDir::new().unwrap();
    let handle = StateHandle::start(open(&folder));
    handle
        .run(|state| state.insert_session(&session("s")))
        .await
        .unwrap();
    for turn in 0..100 {
        let message = queued("s", &format!("t{turn}"));
        handle
            .run(move |state| state.enqueue(&message))
            .await
            .unwrap();
    }
    let panicked: Result<(), _> = handle.run(|_| panic!("on purpose")).await;
    assert!(matches!(panicked, Err(StateError::Closed)));
    let queue = handle.run(|state| state.queue(&"s".into())).await.unwrap();
    assert_eq!(queue.len(), 100);
    assert!(
        queue
            .windows(2)
            .all(|pair| pair[0].turn_id.as_str().len() <= pair[1].turn_id.as_str().len())
    );
}

#[tokio::test]
async fn a_job_is_done_although_its_asker_is_gone() {
    let folder = TempDir::new().unwrap();
    let handle = StateHandle::start(open(&folder));
    {
        let asked = handle.run(|state| state.insert_session(&session("s")));
        tokio::pin!(asked);
        let waker = std::task::Waker::noop();
        let _ = asked
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker));
    }
    assert_eq!(handle.run(State::sessions).await.unwrap().len(), 1);
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
