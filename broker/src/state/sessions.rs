//! Sessions.

use ade_protocol::action::{ChatCreate, PermissionMode};
use ade_protocol::{Generation, Seq, SessionId};
use rusqlite::{Row, params};

use super::rows::{from_word, signed, to_word, unsigned};
use super::{Flags, RowFault, SessionRow, State, StateError, failed};

const COLUMNS: &str = "session_id, provider, lane, model, thinking, permission, title, agent_dir,
    first_event_ms, session_file, provider_session_id, has_history, generation, rotate,
    force_expire, failed_reason, last_status, last_error, created_at, policy, replaced_agent,
    agent_told";

/// What is only read: an event that the transcript had at least. The end of a turn
/// leaves one, and so does the beginning of what is not over.
const LAST_SEQUENCE: &str = "max(last_sequence,
    coalesce((SELECT max(after_sequence) FROM turns
              WHERE turns.session_id = sessions.session_id), 0),
    coalesce((SELECT max(after_sequence) FROM queue
              WHERE queue.session_id = sessions.session_id), 0))";

fn session_row(row: &Row<'_>) -> Result<SessionRow, RowFault> {
    let id: String = row.get(0)?;
    let permission = from_word(row.get(5)?).ok_or_else(|| RowFault::Value(id.clone()))?;
    Ok(SessionRow {
        session_id: id.into(),
        provider: row.get(1)?,
        lane: row.get(2)?,
        model: row.get(3)?,
        thinking: row.get(4)?,
        permission,
        title: row.get(6)?,
        agent_dir: row.get(7)?,
        first_event_ms: row.get::<_, Option<i64>>(8)?.map(unsigned),
        session_file: row.get(9)?,
        provider_session_id: row.get(10)?,
        has_history: row.get(11)?,
        generation: Generation(unsigned(row.get(12)?)),
        flags: Flags {
            rotate: row.get(13)?,
            force_expire: row.get(14)?,
        },
        failed_reason: row.get(15)?,
        // A word of a newer version is not worth a session.
        last_status: row.get::<_, Option<String>>(16)?.and_then(from_word),
        last_error: row.get(17)?,
        created_at: row.get(18)?,
        policy: unsigned(row.get(19)?),
        replaced_agent: row.get(20)?,
        agent_told: row.get(21)?,
        last_sequence: Seq(unsigned(row.get(22)?)),
    })
}

/// What can be read of a row that is damaged.
fn salvaged(row: &Row<'_>) -> SessionRow {
    let text = |column: usize| {
        let value = row.get_ref(column).ok()?;
        let bytes = value.as_bytes().ok()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    let create = ChatCreate {
        provider: text(1).unwrap_or_default(),
        lane: String::new(),
        model: text(3),
        thinking: text(4),
        permission: PermissionMode::Plan,
        session_file: text(9),
        take_over: false,
        agent_dir: None,
        title: text(6),
        first_event_ms: None,
    };
    let word = |column| text(column).unwrap_or_default();
    SessionRow {
        generation: Generation(row.get(12).map_or(0, unsigned)),
        ..SessionRow::new(word(0).into(), &create, word(2), word(18))
    }
}

/// A row, or what can be read of a damaged one and why it is one.
fn any_row(row: &Row<'_>) -> Result<Result<SessionRow, (SessionRow, StateError)>, RowFault> {
    use rusqlite::Error::{
        FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error,
    };
    let damaged = |id| {
        let operation = READ_ALL;
        Ok(Err((salvaged(row), StateError::Row { operation, id })))
    };
    match session_row(row) {
        Ok(row) => Ok(Ok(row)),
        Err(RowFault::Value(id)) => damaged(id),
        Err(RowFault::Sql(
            FromSqlConversionFailure(..)
            | IntegralValueOutOfRange(..)
            | InvalidColumnType(..)
            | Utf8Error(..),
        )) => damaged(salvaged(row).session_id.to_string()),
        Err(fault) => Err(fault),
    }
}

const READ_ALL: &str = "read the sessions";

impl State {
    /// Writes a new session.
    ///
    /// # Errors
    /// [`StateError`]; also when a session of this id exists.
    pub fn insert_session(&self, row: &SessionRow) -> Result<(), StateError> {
        let sql = format!(
            "INSERT INTO sessions ({COLUMNS}) VALUES
             (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
              ?20, ?21, ?22)"
        );
        let values = params![
            row.session_id.as_str(),
            row.provider,
            row.lane,
            row.model,
            row.thinking,
            to_word(&row.permission),
            row.title,
            row.agent_dir,
            row.first_event_ms.map(signed),
            row.session_file,
            row.provider_session_id,
            row.has_history,
            signed(row.generation.0),
            row.flags.rotate,
            row.flags.force_expire,
            row.failed_reason,
            row.last_status.as_ref().and_then(to_word),
            row.last_error,
            row.created_at,
            signed(row.policy),
            row.replaced_agent,
            row.agent_told,
        ];
        self.execute("write a session", &sql, values).map(drop)
    }

    /// A session; `None`: there is none, or it was deleted.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn session(&self, session: &SessionId) -> Result<Option<SessionRow>, StateError> {
        let sql = format!(
            "SELECT {COLUMNS}, {LAST_SEQUENCE} FROM sessions WHERE session_id = ?1 AND deleted = 0"
        );
        Ok(self
            .query("read a session", &sql, [session.as_str()], session_row)?
            .pop())
    }

    /// An event that the transcript of a session had at least; 0: none is known of.
    /// The row may be damaged otherwise.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn last_sequence(&self, session: &SessionId) -> Result<Seq, StateError> {
        let sql = format!("SELECT {LAST_SEQUENCE} FROM sessions WHERE session_id = ?1");
        let known = self.query(
            "read where a transcript ended",
            &sql,
            [session.as_str()],
            |row| Ok(Seq(unsigned(row.get(0)?))),
        )?;
        Ok(known.into_iter().next().unwrap_or_default())
    }

    /// All sessions but the deleted ones, oldest first. One whose row is damaged is
    /// among [`State::damaged_sessions`].
    ///
    /// # Errors
    /// [`StateError`].
    pub fn sessions(&self) -> Result<Vec<SessionRow>, StateError> {
        let rows = self.any_sessions()?;
        Ok(rows.into_iter().filter_map(Result::ok).collect())
    }

    /// What can be read of the sessions whose rows are not what this version
    /// writes, and why not all.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn damaged_sessions(&self) -> Result<Vec<(SessionRow, StateError)>, StateError> {
        let rows = self.any_sessions()?;
        Ok(rows.into_iter().filter_map(Result::err).collect())
    }

    #[expect(clippy::type_complexity, reason = "it is taken apart at once")]
    fn any_sessions(
        &self,
    ) -> Result<Vec<Result<SessionRow, (SessionRow, StateError)>>, StateError> {
        let sql = format!(
            "SELECT {COLUMNS}, {LAST_SEQUENCE} FROM sessions WHERE deleted = 0 ORDER BY rowid"
        );
        self.query(READ_ALL, &sql, [], any_row)
    }

    /// Forgets a session with its turn, its queue and its cards. The row stays,
    /// marked, so that its id is never given out twice. False: there was none.
    ///
    /// # Errors
    /// [`StateError`]; then nothing was forgotten.
    pub fn delete_session(&self, session: &SessionId) -> Result<bool, StateError> {
        self.atomically(|state| {
            let id = [session.as_str()];
            for sql in [
                "DELETE FROM turns WHERE session_id = ?1",
                "DELETE FROM queue WHERE session_id = ?1",
                "DELETE FROM cards WHERE session_id = ?1",
                "DELETE FROM deaths WHERE session_id = ?1",
                "DELETE FROM steers WHERE session_id = ?1",
            ] {
                state.execute("delete a session", sql, id)?;
            }
            let sql = "UPDATE sessions SET deleted = 1 WHERE session_id = ?1 AND deleted = 0";
            Ok(state.execute("delete a session", sql, id)? > 0)
        })
    }

    /// Whether this was a chat of ours that was deleted.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn was_deleted(&self, session: &SessionId) -> Result<bool, StateError> {
        let sql = "SELECT 1 FROM sessions WHERE session_id = ?1 AND deleted = 1";
        let found = self.query("look for a session", sql, [session.as_str()], |_| Ok(()))?;
        Ok(!found.is_empty())
    }

    /// Changes one session; it must exist.
    fn update_session(
        &self,
        operation: &'static str,
        session: &SessionId,
        set: &str,
        values: &[&dyn rusqlite::ToSql],
    ) -> Result<(), StateError> {
        let sql = format!("UPDATE sessions SET {set} WHERE session_id = ?1 AND deleted = 0");
        let id = session.as_str();
        let mut all: Vec<&dyn rusqlite::ToSql> = vec![&id];
        all.extend_from_slice(values);
        match self.execute(operation, &sql, all.as_slice())? {
            0 => Err(StateError::NoSession(session.clone())),
            _ => Ok(()),
        }
    }

    /// Counts a new worker of the session and gives its number.
    ///
    /// # Errors
    /// [`StateError`]; no number was given out.
    pub fn next_generation(&self, session: &SessionId) -> Result<Generation, StateError> {
        let sql = "UPDATE sessions SET generation = generation + 1
                   WHERE session_id = ?1 AND deleted = 0 RETURNING generation";
        let number = |row: &Row<'_>| Ok(Generation(unsigned(row.get(0)?)));
        self.query("count a worker", sql, [session.as_str()], number)?
            .pop()
            .ok_or_else(|| StateError::NoSession(session.clone()))
    }

    /// Makes sure that the next generation is greater than `seen`, the newest
    /// one in the transcript. Only after a power cut this changes anything.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn raise_generation(
        &self,
        session: &SessionId,
        seen: Generation,
    ) -> Result<(), StateError> {
        let set = "generation = max(generation, ?2)";
        self.update_session("raise the generation", session, set, &[&signed(seen.0)])
    }

    /// Remembers where the provider keeps the session. What is absent stays.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_session_file(
        &self,
        session: &SessionId,
        file: Option<&str>,
        provider_session_id: Option<&str>,
    ) -> Result<(), StateError> {
        let set = "session_file = coalesce(?2, session_file),
                   provider_session_id = coalesce(?3, provider_session_id)";
        self.update_session(
            "note the session file",
            session,
            set,
            &[&file, &provider_session_id],
        )
    }

    /// Remembers which agent the present one stands in for. Nobody has told that one
    /// anything yet.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_replaced_agent(
        &self,
        session: &SessionId,
        replaced: Option<&str>,
    ) -> Result<(), StateError> {
        let set = "replaced_agent = ?2, agent_told = 0";
        self.update_session("note the replaced agent", session, set, &[&replaced])
    }

    /// Remembers that the present agent is about to be told something.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_agent_told(&self, session: &SessionId) -> Result<(), StateError> {
        let set = "agent_told = 1";
        self.update_session("note that an agent is told", session, set, &[])
    }

    /// Remembers that something was said in the session file.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_has_history(&self, session: &SessionId) -> Result<(), StateError> {
        self.update_session("note the history", session, "has_history = 1", &[])
    }

    /// Changes the model.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_model(&self, session: &SessionId, model: Option<&str>) -> Result<(), StateError> {
        self.update_session("note the model", session, "model = ?2", &[&model])
    }

    /// Changes how much is thought.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_thinking(&self, session: &SessionId, level: Option<&str>) -> Result<(), StateError> {
        self.update_session(
            "note the thinking level",
            session,
            "thinking = ?2",
            &[&level],
        )
    }

    /// Changes the permission mode and gives the number of changes so far.
    ///
    /// # Errors
    /// [`StateError`]; then it is as it was.
    pub fn set_permission(
        &self,
        session: &SessionId,
        mode: PermissionMode,
    ) -> Result<u64, StateError> {
        let sql = "UPDATE sessions SET permission = ?2, policy = policy + 1
                   WHERE session_id = ?1 AND deleted = 0 RETURNING policy";
        let values = params![session.as_str(), to_word(&mode)];
        let number = |row: &Row<'_>| Ok(unsigned(row.get(0)?));
        self.query("change the permission", sql, values, number)?
            .pop()
            .ok_or_else(|| StateError::NoSession(session.clone()))
    }

    /// Remembers why no worker is started any more, or that one may be again.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_failed(&self, session: &SessionId, reason: Option<&str>) -> Result<(), StateError> {
        self.update_session("note a failure", session, "failed_reason = ?2", &[&reason])
    }

    /// Sets flags; those that are set already stay.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_flags(&self, session: &SessionId, flags: Flags) -> Result<(), StateError> {
        let set = "rotate = max(rotate, ?2), force_expire = max(force_expire, ?3)";
        let values: [&dyn rusqlite::ToSql; 2] = [&flags.rotate, &flags.force_expire];
        self.update_session("set flags", session, set, &values)
    }

    /// A fresh agent was started, as the flag asked for.
    ///
    /// # Errors
    /// [`StateError`]; then it is still set.
    pub fn clear_rotate(&self, session: &SessionId) -> Result<(), StateError> {
        self.update_session("clear a flag", session, "rotate = 0", &[])
    }

    /// A send that ends an older run is about to be written, as the flag asked
    /// for.
    ///
    /// # Errors
    /// [`StateError`]; then it is still set.
    pub fn clear_force_expire(&self, session: &SessionId) -> Result<(), StateError> {
        self.update_session("clear a flag", session, "force_expire = 0", &[])
    }

    /// How many sessions there are.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn count_sessions(&self) -> Result<usize, StateError> {
        let sql = "SELECT count(*) FROM sessions WHERE deleted = 0";
        let count = self.conn.query_row(sql, [], |row| row.get::<_, i64>(0));
        let count = count.map_err(failed("count the sessions"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }
}
