//! The schema and how older ones become it.

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::{StateError, failed};

/// What brings schema `n` to `n + 1`, from `n` = 0, the empty database. An
/// entry never changes once it was released.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY,
        provider TEXT NOT NULL,
        lane TEXT NOT NULL,
        model TEXT,
        thinking TEXT,
        permission TEXT NOT NULL,
        title TEXT,
        agent_dir TEXT,
        first_event_ms INTEGER,
        session_file TEXT,
        provider_session_id TEXT,
        has_history INTEGER NOT NULL DEFAULT 0,
        generation INTEGER NOT NULL DEFAULT 0,
        rotate INTEGER NOT NULL DEFAULT 0,
        force_expire INTEGER NOT NULL DEFAULT 0,
        failed_reason TEXT,
        last_status TEXT,
        last_error TEXT,
        created_at TEXT NOT NULL,
        deleted INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE turns (
        session_id TEXT PRIMARY KEY REFERENCES sessions,
        turn_id TEXT NOT NULL,
        prompt TEXT NOT NULL,
        started_at TEXT NOT NULL,
        generation INTEGER NOT NULL,
        sends INTEGER NOT NULL,
        state TEXT NOT NULL,
        armed_at_ms INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE queue (
        place INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions,
        turn_id TEXT NOT NULL UNIQUE,
        prompt TEXT NOT NULL,
        queued_at TEXT NOT NULL
    ) STRICT;
    CREATE INDEX queue_of_session ON queue (session_id, place);
    CREATE TABLE cards (
        place INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions,
        generation INTEGER NOT NULL,
        card_id TEXT NOT NULL,
        card TEXT NOT NULL,
        UNIQUE (session_id, generation, card_id)
    ) STRICT;
",
    "
    ALTER TABLE sessions ADD COLUMN policy INTEGER NOT NULL DEFAULT 0;
",
    "
    ALTER TABLE cards ADD COLUMN opened_at_ms INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE cards ADD COLUMN settled TEXT;
",
    "
    ALTER TABLE queue ADD COLUMN steers TEXT;
",
    "
    ALTER TABLE queue ADD COLUMN cleared INTEGER NOT NULL DEFAULT 0;
",
    "
    ALTER TABLE turns ADD COLUMN cause TEXT;
",
    "
    ALTER TABLE turns ADD COLUMN after_sequence INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE queue ADD COLUMN after_sequence INTEGER NOT NULL DEFAULT 0;
",
    "
    ALTER TABLE sessions ADD COLUMN replaced_agent TEXT;
    ALTER TABLE sessions ADD COLUMN agent_told INTEGER NOT NULL DEFAULT 1;
",
    "
    ALTER TABLE turns ADD COLUMN mark TEXT;
",
    "
    CREATE TABLE deaths (
        session_id TEXT NOT NULL REFERENCES sessions,
        provider TEXT NOT NULL,
        at_start INTEGER NOT NULL,
        at_ms INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX deaths_of_session ON deaths (session_id);
",
    "
    CREATE TABLE steers (
        place INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions,
        request_id TEXT NOT NULL UNIQUE,
        turn_id TEXT NOT NULL,
        prompt TEXT NOT NULL,
        after_sequence INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX steers_of_session ON steers (session_id, place);
",
    "
    ALTER TABLE sessions ADD COLUMN last_sequence INTEGER NOT NULL DEFAULT 0;
",
];

fn known() -> i64 {
    MIGRATIONS.len().try_into().unwrap_or(i64::MAX)
}

fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Looks before anything is written.
pub(super) fn refuse_newer(conn: &Connection, path: &Path) -> Result<(), StateError> {
    let (found, known) = (version(conn).map_err(failed("read its schema"))?, known());
    if found > known {
        return Err(StateError::NewerSchema {
            path: path.to_owned(),
            found,
            known,
        });
    }
    Ok(())
}

/// Brings the database to the newest schema, in one step.
pub(super) fn migrate(conn: &Connection) -> Result<(), StateError> {
    let failed = failed("bring it to this version's schema");
    let transaction = Transaction::new_unchecked(conn, TransactionBehavior::Immediate);
    let transaction = transaction.map_err(&failed)?;
    let found = usize::try_from(version(conn).map_err(&failed)?).unwrap_or(0);
    for migration in MIGRATIONS.iter().skip(found) {
        conn.execute_batch(migration).map_err(&failed)?;
    }
    if found < MIGRATIONS.len() {
        conn.pragma_update(None, "user_version", known())
            .map_err(&failed)?;
    }
    transaction.commit().map_err(&failed)
}
