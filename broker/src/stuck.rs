//! Sessions whose last worker left what survives SIGKILL.
//!
//! What waits in the kernel may still write when it goes on, so nothing is
//! started beside it. Whoever sees a worker off notes it here, for as long as
//! something is left; whoever starts one looks. Its journal says the same to
//! the next broker.
//!
//! Locks here are held for the length of a look, never across an await.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ade_protocol::SessionId;

/// The sessions, and what is left of each, in words.
#[derive(Debug, Default)]
pub struct Stuck {
    sessions: Mutex<HashMap<SessionId, String>>,
}

impl Stuck {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, String>> {
        // A panic while holding the lock leaves whole values behind.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is left of the last worker of a session.
    pub fn note(&self, session: &SessionId, left: String) {
        self.lock().insert(session.clone(), left);
    }

    /// Nothing is left any more.
    pub fn forget(&self, session: &SessionId) {
        self.lock().remove(session);
    }

    /// What is left, if anything.
    #[must_use]
    pub fn of(&self, session: &SessionId) -> Option<String> {
        self.lock().get(session).cloned()
    }
}
