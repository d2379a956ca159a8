//! The file: transactions, other schemas, damage, and no room.

use std::os::unix::fs::PermissionsExt;

use super::*;

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
               ALTER TABLE sessions DROP COLUMN replaced_agent;
               ALTER TABLE sessions DROP COLUMN agent_told;
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
    let row = state.session(&"s".into()).unwrap().unwrap();
    // Of an agent that is there already nobody knows better.
    assert!(row.agent_told && row.replaced_agent.is_none());
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
