//! Deaths of workers that nobody had told to end: what the start budgets count.
//!
//! Their moments are those of the machine's monotonic clock
//! ([`crate::clock::monotonic_ms`]). One that lies ahead is of an earlier boot and
//! counts no more.

use ade_protocol::SessionId;
use rusqlite::params;

use super::rows::{signed, unsigned};
use super::{State, StateError};

/// A death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Whose worker it was.
    pub session_id: SessionId,
    /// Which kind of agent.
    pub provider: String,
    /// It never got ready: the kind of agent's own budget counts it too.
    pub at_start: bool,
    /// When, by the machine's monotonic clock.
    pub at_ms: u64,
}

impl State {
    /// Keeps a death, and forgets those of the session that were before `oldest_ms`.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_death(&self, death: &Death, oldest_ms: u64) -> Result<(), StateError> {
        const OPERATION: &str = "note the death of a worker";
        let id = death.session_id.as_str();
        self.atomically(|state| {
            let old = "DELETE FROM deaths WHERE session_id = ?1 AND (at_ms < ?2 OR at_ms > ?3)";
            let (oldest, now) = (signed(oldest_ms), signed(death.at_ms));
            state.execute(OPERATION, old, params![id, oldest, now])?;
            let new = "INSERT INTO deaths (session_id, provider, at_start, at_ms)
                       VALUES (?1, ?2, ?3, ?4)";
            let values = params![id, death.provider, death.at_start, now];
            state.execute(OPERATION, new, values).map(drop)
        })
    }

    /// All deaths that are kept, oldest first.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn deaths(&self) -> Result<Vec<Death>, StateError> {
        let sql = "SELECT session_id, provider, at_start, at_ms FROM deaths ORDER BY at_ms";
        self.query("read the deaths of workers", sql, [], |row| {
            Ok(Death {
                session_id: row.get::<_, String>(0)?.into(),
                provider: row.get(1)?,
                at_start: row.get(2)?,
                at_ms: unsigned(row.get(3)?),
            })
        })
    }

    /// A session's own budget counts none of them any more.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn forget_deaths(&self, session: &SessionId) -> Result<(), StateError> {
        let sql = "DELETE FROM deaths WHERE session_id = ?1";
        self.execute("forget deaths", sql, [session.as_str()])
            .map(drop)
    }

    /// A kind of agent's budget counts none of them any more.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn forget_failed_starts(&self, provider: &str) -> Result<(), StateError> {
        let sql = "UPDATE deaths SET at_start = 0 WHERE provider = ?1 AND at_start = 1";
        self.execute("forget failed starts", sql, [provider])
            .map(drop)
    }
}
