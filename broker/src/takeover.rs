//! Which workers of a broker that is gone are taken over.
//!
//! Pure but for reading journals: a worker is taken over when it is proved to
//! be alive, its session is known, and it is the newest one that the session
//! has had. Everything else is swept.

use std::collections::{BTreeMap, BTreeSet};

use ade_leases::process::{Liveness, ProcessIdentity};
use ade_protocol::{SessionId, WorkerId};

use crate::home::Home;
use crate::journal;
use crate::session::Legacy;
use crate::state::{State, StateError, StateHandle};

/// What was found of a broker that is gone.
#[derive(Debug, Default)]
pub struct Takeover {
    /// By session; at most one worker each.
    pub legacies: BTreeMap<SessionId, Legacy>,
}

impl Takeover {
    /// The workers that are not swept.
    #[must_use]
    pub fn workers(&self) -> BTreeSet<WorkerId> {
        self.legacies
            .values()
            .map(|legacy| legacy.entry.worker_id.clone())
            .collect()
    }
}

/// Looks at journals and `state.db`. The caller holds the broker lock.
///
/// # Errors
/// `state.db` cannot be read. Journals that cannot be read are the sweep's.
pub async fn find(home: &Home, state: &StateHandle) -> Result<Takeover, StateError> {
    let rows = state.run(State::sessions).await?;
    let turns = state.run(State::running_turns).await?;
    let cards = state.run(State::open_cards).await?;
    let journals = journal::read_all(home).unwrap_or_default();
    let mut takeover = Takeover::default();
    for entry in journals.entries {
        let newest = rows
            .iter()
            .any(|row| row.session_id == entry.session_id && row.generation == entry.generation);
        let Some(identity) = entry.identity.clone().filter(is_alive) else {
            continue;
        };
        if !newest {
            continue;
        }
        let session = entry.session_id.clone();
        let legacy = Legacy {
            turn: turns
                .iter()
                .find(|turn| turn.session_id == session)
                .cloned(),
            cards: cards
                .iter()
                .filter(|card| card.session_id == session && card.generation == entry.generation)
                .cloned()
                .collect(),
            identity,
            entry,
        };
        takeover.legacies.insert(session, legacy);
    }
    Ok(takeover)
}

fn is_alive(identity: &ProcessIdentity) -> bool {
    identity.liveness() == Liveness::Alive
}
