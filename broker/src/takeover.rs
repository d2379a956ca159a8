//! Which workers of a broker that is gone are taken over.
//!
//! A worker is taken over when it is proved to be alive, its session is known,
//! and it is the newest one that the session has had. Everything else is swept.
//! A turn whose worker is not there any more goes on with another one when its
//! message had reached nobody, or was to be sent again anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ade_leases::process::{Liveness, ProcessIdentity};
use ade_protocol::{Generation, SessionId, TurnId, WorkerId};

use crate::home::Home;
use crate::journal;
use crate::session::{Legacy, LegacyTurn};
use crate::state::{State, StateError, StateHandle, TurnRow};
use crate::sweep::Kept;
use crate::transcript::{self, Standing};

/// What was found of a broker that is gone.
#[derive(Debug, Default)]
pub struct Takeover {
    /// By session; at most one worker each.
    pub legacies: BTreeMap<SessionId, Legacy>,
    /// Running turns of which the transcript knows nothing yet.
    pub unbegun: BTreeSet<TurnId>,
    /// Sessions whose worker has a journal, whatever became of it.
    pub recorded: BTreeSet<SessionId>,
    /// Workers of which something survived the sweep.
    pub kept: Vec<Kept>,
    /// Files that were journals.
    pub damaged: Vec<PathBuf>,
}

impl Takeover {
    /// The workers that are not swept.
    #[must_use]
    pub fn workers(&self) -> BTreeSet<WorkerId> {
        self.legacies
            .values()
            .filter_map(|legacy| Some(legacy.worker.as_ref()?.0.worker_id.clone()))
            .collect()
    }

    /// The generation of the worker that a session gets back.
    #[must_use]
    pub fn generation(&self, session: &SessionId) -> Option<Generation> {
        let (entry, _) = self.legacies.get(session)?.worker.as_ref()?;
        Some(entry.generation)
    }

    /// Whether the running turn of a session goes on.
    #[must_use]
    pub fn goes_on(&self, session: &SessionId) -> bool {
        self.legacies
            .get(session)
            .is_some_and(|legacy| legacy.turn.is_some())
    }
}

/// Looks at journals, `state.db` and the ends of transcripts. The caller holds
/// the broker lock. A turn whose end is in its transcript is ended in `state.db`.
///
/// # Errors
/// `state.db` cannot be read. Journals that cannot be read are the sweep's.
pub async fn find(home: &Home, state: &StateHandle) -> Result<Takeover, StateError> {
    let rows = state.run(State::sessions).await?;
    let cards = state.run(State::cards).await?;
    let journals = journal::read_all(home).unwrap_or_default();
    let mut takeover = Takeover::default();
    let mut turns = running(home, state).await?;
    forget_dropped(home, state).await?;
    for turn in turns.values().filter(|turn| !turn.begun) {
        takeover.unbegun.insert(turn.row.turn_id.clone());
    }
    takeover.damaged = journals.damaged;
    for entry in journals.entries {
        takeover.recorded.insert(entry.session_id.clone());
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
            turn: turns.remove(&session),
            cards: cards
                .iter()
                .filter(|row| {
                    row.card.session_id == session && row.card.generation == entry.generation
                })
                .cloned()
                .collect(),
            worker: Some((entry, identity)),
        };
        takeover.legacies.insert(session, legacy);
    }
    for (session, turn) in turns {
        if turn.is_resumable() {
            let legacy = Legacy {
                worker: None,
                turn: Some(turn),
                cards: Vec::new(),
            };
            takeover.legacies.insert(session, legacy);
        }
    }
    Ok(takeover)
}

/// The turns that run, by session.
async fn running(
    home: &Home,
    state: &StateHandle,
) -> Result<BTreeMap<SessionId, LegacyTurn>, StateError> {
    let rows: Vec<TurnRow> = state.run(State::running_turns).await?;
    let mut running = BTreeMap::new();
    for row in rows {
        let (path, turn) = (home.transcript(&row.session_id), row.turn_id.clone());
        let read = tokio::task::spawn_blocking(move || transcript::standing(&path, &turn));
        // One that can't be read is looked after by its session.
        let standing = read.await.ok().and_then(Result::ok);
        if let Some(Standing::Ended(status)) = standing {
            let (session, turn) = (row.session_id, row.turn_id);
            state
                .run(move |state| state.end_turn(&session, &turn, status, None).map(drop))
                .await?;
            continue;
        }
        let begun = standing != Some(Standing::Absent);
        running.insert(row.session_id.clone(), LegacyTurn { row, begun });
    }
    Ok(running)
}

/// Takes messages out of the queues that were dropped while they waited: a
/// broker that dies in between has told it, and the row is still there. It is
/// the last thing that such a broker has written, so this must come before
/// anything is written for it.
async fn forget_dropped(home: &Home, state: &StateHandle) -> Result<(), StateError> {
    for row in state.run(State::queues).await? {
        let (path, turn) = (home.transcript(&row.session_id), row.turn_id.clone());
        let read = tokio::task::spawn_blocking(move || transcript::standing(&path, &turn));
        // One that can't be read is looked after by its session.
        if let Some(Standing::Ended(_)) = read.await.ok().and_then(Result::ok) {
            let remove = move |state: &State| state.remove_queued(&row.session_id, &row.turn_id);
            state.run(remove).await?;
        }
    }
    Ok(())
}

fn is_alive(identity: &ProcessIdentity) -> bool {
    identity.liveness() == Liveness::Alive
}
