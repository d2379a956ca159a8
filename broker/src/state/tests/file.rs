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
               ALTER TABLE turns DROP COLUMN mark;
               ALTER TABLE queue DROP COLUMN cleared;
               ALTER TABLE queue DROP COLUMN steers;
               ALTER TABLE queue DROP COLUMN after_sequence;
               ALTER TABLE turns DROP COLUMN after_sequence;
               ALTER TABLE sessions DROP COLUMN replaced_agent;
               ALTER TABLE sessions DROP COLUMN agent_told;
               ALTER TABLE sessions DROP COLUMN last_sequence;
               DROP TABLE deaths;
               DROP TABLE steers;
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

/// In a process of its own, this test fills its descriptors; all others would
/// starve with it.
#[test]
fn a_database_that_finds_no_descriptor_says_so_whatever_it_wanted_to_open() {
    const CHILD: &str = "ADE_TEST_STARVED";
    const NAME: &str = "a_database_that_finds_no_descriptor_says_so_whatever_it_wanted_to_open";
    let folder = TempDir::new().unwrap();
    let Some(told) = std::env::var_os(CHILD) else {
        let told = folder.path().join("told");
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([NAME, "--test-threads=1"]).env(CHILD, &told);
        child.stdout(std::process::Stdio::null());
        // Tests of sessions in this process collect and end every child that was
        // not started like this.
        let (child, exit) = crate::reap::spawn(&mut child).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let ended = crate::reap::wait_for(child.id().cast_signed(), &exit, deadline);
        assert!(told.exists(), "{ended:?}");
        return;
    };
    use nix::sys::resource::{Resource, setrlimit};
    setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
    let known = folder.path().join("known.db");
    drop(State::open(&known).unwrap());
    let mut held = Vec::new();
    let mut fill = |free: usize| {
        while let Ok(file) = std::fs::File::open("/dev/null") {
            held.push(file);
        }
        held.truncate(held.len() - free);
    };
    let mut by_sqlite = 0;
    for free in 0..8 {
        let new = folder.path().join(format!("{free}.db"));
        fill(free);
        let opened = [
            State::open(&new).map(drop),
            State::open(&known).map(drop),
            State::look(&known),
        ];
        for error in opened.into_iter().filter_map(Result::err) {
            let hints = error.hints();
            assert!(
                hints.len() == 1 && hints[0].contains("ulimit"),
                "{free}: {error} {hints:?}"
            );
            by_sqlite += usize::from(matches!(error, StateError::NoDescriptor { .. }));
        }
    }
    assert!(by_sqlite > 2, "{by_sqlite}");
    State::open(&known).expect("with eight it works");
    std::fs::write(told, "").unwrap();
}
