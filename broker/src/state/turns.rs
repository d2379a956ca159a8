//! Running turns and queued messages.

use ade_protocol::event::TurnStatus;
use ade_protocol::{Generation, Seq, SessionId, TurnId};
use rusqlite::{Row, params};

use super::rows::{signed, to_word, unsigned};
use super::{QueuedRow, RowFault, State, StateError, TurnRow};

const TURN: &str = "session_id, turn_id, prompt, started_at, generation, sends, state, armed_at_ms, \
                    cause, after_sequence";
const QUEUED: &str = "session_id, turn_id, prompt, queued_at, steers, after_sequence";

fn turn_row(row: &Row<'_>) -> Result<TurnRow, RowFault> {
    Ok(TurnRow {
        session_id: row.get::<_, String>(0)?.into(),
        turn_id: row.get::<_, String>(1)?.into(),
        prompt: row.get(2)?,
        started_at: row.get(3)?,
        generation: Generation(unsigned(row.get(4)?)),
        sends: row.get(5)?,
        state: row.get(6)?,
        armed_at_ms: unsigned(row.get(7)?),
        cause: row.get(8)?,
        after: Seq(unsigned(row.get(9)?)),
    })
}

fn queued_row(row: &Row<'_>) -> Result<QueuedRow, RowFault> {
    Ok(QueuedRow {
        session_id: row.get::<_, String>(0)?.into(),
        turn_id: row.get::<_, String>(1)?.into(),
        prompt: row.get(2)?,
        queued_at: row.get(3)?,
        steers: row.get::<_, Option<String>>(4)?.map(TurnId::from),
        after: Seq(unsigned(row.get(5)?)),
    })
}

impl State {
    /// Writes the running turn of a session.
    ///
    /// # Errors
    /// [`StateError::TurnRuns`] when another one runs; other [`StateError`]s.
    pub fn begin_turn(&self, turn: &TurnRow) -> Result<(), StateError> {
        let sql = format!(
            "INSERT INTO turns ({TURN}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
             ON CONFLICT (session_id) DO NOTHING"
        );
        let values = params![
            turn.session_id.as_str(),
            turn.turn_id.as_str(),
            turn.prompt,
            turn.started_at,
            signed(turn.generation.0),
            turn.sends,
            turn.state,
            signed(turn.armed_at_ms),
            turn.cause,
            signed(turn.after.0),
        ];
        match self.execute("begin a turn", &sql, values)? {
            0 => Err(StateError::TurnRuns(turn.session_id.clone())),
            _ => Ok(()),
        }
    }

    /// Writes where the running turn stands. A turn that is not the running one
    /// changes nothing.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn update_turn(
        &self,
        session: &SessionId,
        turn: &TurnId,
        generation: Generation,
        sends: u32,
        state: &str,
    ) -> Result<(), StateError> {
        let sql = "UPDATE turns SET generation = ?3, sends = ?4, state = ?5
                   WHERE session_id = ?1 AND turn_id = ?2";
        let values = params![
            session.as_str(),
            turn.as_str(),
            signed(generation.0),
            sends,
            state
        ];
        self.execute("update a turn", sql, values).map(drop)
    }

    /// Writes where the running turn stands, and nothing else.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_turn_state(
        &self,
        session: &SessionId,
        turn: &TurnId,
        state: &str,
    ) -> Result<(), StateError> {
        let sql = "UPDATE turns SET state = ?3 WHERE session_id = ?1 AND turn_id = ?2";
        let values = params![session.as_str(), turn.as_str(), state];
        self.execute("update a turn", sql, values).map(drop)
    }

    /// Writes how the running turn goes on with another worker, and why.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn plan_turn(
        &self,
        session: &SessionId,
        turn: &TurnId,
        state: &str,
        cause: Option<&str>,
    ) -> Result<(), StateError> {
        let sql = "UPDATE turns SET state = ?3, cause = ?4 WHERE session_id = ?1 AND turn_id = ?2";
        let values = params![session.as_str(), turn.as_str(), state, cause];
        self.execute("update a turn", sql, values).map(drop)
    }

    /// Takes back how the running turn was to go on with another worker: where that
    /// is `planned` still, it stands as before.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn unplan_turn(
        &self,
        session: &SessionId,
        turn: &TurnId,
        planned: &str,
        before: &str,
    ) -> Result<(), StateError> {
        let sql = "UPDATE turns SET state = ?4, cause = NULL
                   WHERE session_id = ?1 AND turn_id = ?2 AND state = ?3";
        let values = params![session.as_str(), turn.as_str(), planned, before];
        self.execute("update a turn", sql, values).map(drop)
    }

    /// Writes when the running turn's message was written.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_armed(
        &self,
        session: &SessionId,
        turn: &TurnId,
        armed_at_ms: u64,
    ) -> Result<(), StateError> {
        let sql = "UPDATE turns SET armed_at_ms = ?3 WHERE session_id = ?1 AND turn_id = ?2";
        let values = params![session.as_str(), turn.as_str(), signed(armed_at_ms)];
        self.execute("note a send", sql, values).map(drop)
    }

    /// Writes where the session file ended before the running turn's message was
    /// sent. The first mark stays: what a worker may have written of the message
    /// stands behind it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn mark_turn(
        &self,
        session: &SessionId,
        turn: &TurnId,
        mark: &str,
    ) -> Result<(), StateError> {
        let sql = "UPDATE turns SET mark = coalesce(mark, ?3)
                   WHERE session_id = ?1 AND turn_id = ?2";
        let values = params![session.as_str(), turn.as_str(), mark];
        self.execute("mark a turn", sql, values).map(drop)
    }

    /// The mark of the running turn. `None`: it is not the running one, or nobody
    /// has marked it, as an older ade never did.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn turn_mark(
        &self,
        session: &SessionId,
        turn: &TurnId,
    ) -> Result<Option<String>, StateError> {
        let sql = "SELECT mark FROM turns WHERE session_id = ?1 AND turn_id = ?2";
        let values = [session.as_str(), turn.as_str()];
        let marks = self.query(
            "read the mark of a turn",
            sql,
            values,
            |row| Ok(row.get(0)?),
        )?;
        Ok(marks.into_iter().next().flatten())
    }

    /// Ends the running turn and remembers how, as one step. A completed turn
    /// leaves history in the session file. A message that waits does so no more, and
    /// nobody asks about the turn's cards. `last`: the last event of the transcript
    /// by now, as far as it is known. False: this turn did not run.
    ///
    /// # Errors
    /// [`StateError`]; then it still runs.
    pub fn end_turn(
        &self,
        session: &SessionId,
        turn: &TurnId,
        status: TurnStatus,
        error: Option<&str>,
        last: Seq,
    ) -> Result<bool, StateError> {
        const OPERATION: &str = "end a turn";
        self.atomically(|state| {
            state.remove_queued(session, turn)?;
            let sql = "DELETE FROM cards WHERE session_id = ?1 AND card ->> 'turnId' = ?2";
            state.execute(OPERATION, sql, [session.as_str(), turn.as_str()])?;
            let sql = "DELETE FROM turns WHERE session_id = ?1 AND turn_id = ?2";
            if state.execute(OPERATION, sql, [session.as_str(), turn.as_str()])? == 0 {
                return Ok(false);
            }
            let sql = "UPDATE sessions SET last_status = ?2, last_error = ?3,
                       has_history = max(has_history, ?4),
                       last_sequence = max(last_sequence, ?5) WHERE session_id = ?1";
            let completed = status == TurnStatus::Completed;
            let values = params![
                session.as_str(),
                to_word(&status),
                error,
                completed,
                signed(last.0)
            ];
            state.execute(OPERATION, sql, values)?;
            Ok(true)
        })
    }

    /// Every running turn: at the start of a broker, what a dead one left.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn running_turns(&self) -> Result<Vec<TurnRow>, StateError> {
        let sql = format!("SELECT {TURN} FROM turns ORDER BY rowid");
        self.query("read the running turns", &sql, [], turn_row)
    }

    /// Queues a message behind those of its session, also one that was cleared.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn enqueue(&self, message: &QueuedRow) -> Result<(), StateError> {
        self.atomically(|state| {
            let cleared = "DELETE FROM queue WHERE turn_id = ?1 AND cleared = 1";
            state.execute("queue a message", cleared, [message.turn_id.as_str()])?;
            // SQLite gives the next place.
            state.insert_queued("NULL", message)
        })
    }

    /// Queues a message before all others of its session.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn enqueue_first(&self, message: &QueuedRow) -> Result<(), StateError> {
        self.insert_queued("(SELECT coalesce(min(place), 0) - 1 FROM queue)", message)
    }

    fn insert_queued(&self, place: &str, message: &QueuedRow) -> Result<(), StateError> {
        let sql =
            format!("INSERT INTO queue (place, {QUEUED}) VALUES ({place}, ?1, ?2, ?3, ?4, ?5, ?6)");
        let values = params![
            message.session_id.as_str(),
            message.turn_id.as_str(),
            message.prompt,
            message.queued_at,
            message.steers.as_ref().map(TurnId::as_str),
            signed(message.after.0),
        ];
        self.execute("queue a message", &sql, values).map(drop)
    }

    /// Changes the text of a queued message. False: it was not queued any more.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn edit_queued(
        &self,
        session: &SessionId,
        turn: &TurnId,
        prompt: &str,
    ) -> Result<bool, StateError> {
        let sql = "UPDATE queue SET prompt = ?3 WHERE session_id = ?1 AND turn_id = ?2";
        let values = params![session.as_str(), turn.as_str(), prompt];
        Ok(self.execute("edit a message", sql, values)? > 0)
    }

    /// The queue of a session, in order, without what was cleared from it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn queue(&self, session: &SessionId) -> Result<Vec<QueuedRow>, StateError> {
        self.queued(session, false)
    }

    /// What was cleared from the queue of a session, in order: it runs only
    /// when it is queued again.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn cleared(&self, session: &SessionId) -> Result<Vec<QueuedRow>, StateError> {
        self.queued(session, true)
    }

    fn queued(&self, session: &SessionId, cleared: bool) -> Result<Vec<QueuedRow>, StateError> {
        let sql = format!(
            "SELECT {QUEUED} FROM queue WHERE session_id = ?1 AND cleared = ?2 ORDER BY place"
        );
        let values = params![session.as_str(), cleared];
        self.query("read a queue", &sql, values, queued_row)
    }

    /// Marks a message of a queue as cleared. False: it was not in it any more.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn clear_queued(&self, session: &SessionId, turn: &TurnId) -> Result<bool, StateError> {
        let sql = "UPDATE queue SET cleared = 1 WHERE session_id = ?1 AND turn_id = ?2";
        let values = [session.as_str(), turn.as_str()];
        Ok(self.execute("clear a message", sql, values)? > 0)
    }

    /// The queues of all sessions, each in order.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn queues(&self) -> Result<Vec<QueuedRow>, StateError> {
        let sql = format!("SELECT {QUEUED} FROM queue ORDER BY place");
        self.query("read the queues", &sql, [], queued_row)
    }

    /// Takes one message out of a queue. False: it was not in it any more.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn remove_queued(&self, session: &SessionId, turn: &TurnId) -> Result<bool, StateError> {
        let sql = "DELETE FROM queue WHERE session_id = ?1 AND turn_id = ?2";
        let changed = self.execute(
            "take a message out of a queue",
            sql,
            [session.as_str(), turn.as_str()],
        )?;
        Ok(changed > 0)
    }
}
