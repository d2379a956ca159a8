//! Messages for a running turn that are on their way to its worker: from before they
//! are sent until what became of them stands in the transcript.

use ade_protocol::{RequestId, Seq, SessionId, TurnId};
use rusqlite::params;

use super::rows::{signed, unsigned};
use super::{State, StateError};

/// Such a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteerRow {
    /// The session.
    pub session_id: SessionId,
    /// The request to the worker.
    pub request_id: RequestId,
    /// The turn that it is for.
    pub turn_id: TurnId,
    /// The user's message.
    pub prompt: String,
    /// The last event of the transcript when this was written: what stands there
    /// of the message comes after it.
    pub after: Seq,
}

impl State {
    /// Notes a message that is about to be sent.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_steer(&self, steer: &SteerRow) -> Result<(), StateError> {
        let sql = "INSERT INTO steers (session_id, request_id, turn_id, prompt, after_sequence)
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = params![
            steer.session_id.as_str(),
            steer.request_id.as_str(),
            steer.turn_id.as_str(),
            steer.prompt,
            signed(steer.after.0),
        ];
        self.execute("note a message for a turn", sql, values)
            .map(drop)
    }

    /// The messages of a session of which nothing is known, in order.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn steers(&self, session: &SessionId) -> Result<Vec<SteerRow>, StateError> {
        let sql = "SELECT session_id, request_id, turn_id, prompt, after_sequence FROM steers
                   WHERE session_id = ?1 ORDER BY place";
        let id = [session.as_str()];
        self.query("read messages for a turn", sql, id, |row| {
            Ok(SteerRow {
                session_id: row.get::<_, String>(0)?.into(),
                request_id: row.get::<_, String>(1)?.into(),
                turn_id: row.get::<_, String>(2)?.into(),
                prompt: row.get(3)?,
                after: Seq(unsigned(row.get(4)?)),
            })
        })
    }

    /// What became of it is known.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn remove_steer(&self, request: &RequestId) -> Result<(), StateError> {
        let sql = "DELETE FROM steers WHERE request_id = ?1";
        self.execute("settle a message for a turn", sql, [request.as_str()])
            .map(drop)
    }
}
