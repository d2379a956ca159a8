//! Which workers of a broker that is gone are taken over.
//!
//! A worker is taken over when it is proved to be alive, its session is known,
//! and it is the newest one that the session has had. Everything else is swept.
//! A turn whose worker is not there any more goes on with another one when its
//! message had reached nobody, or was to be sent again anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ade_leases::process::{Liveness, ProcessIdentity};
use ade_protocol::{Generation, Seq, SessionId, TurnId, WorkerId};

use crate::home::Home;
use crate::journal;
use crate::session::{Legacy, LegacyTurn};
use crate::state::{QueuedRow, State, StateError, StateHandle};
use crate::sweep::Kept;
use crate::transcript::{self, Standing};

/// What was found of a broker that is gone.
#[derive(Debug, Default)]
pub struct Takeover {
    /// By session; at most one worker each.
    pub legacies: BTreeMap<SessionId, Legacy>,
    /// Running turns of which the transcript knows nothing yet.
    pub unbegun: BTreeSet<TurnId>,
    /// Messages that wait, of which the transcript has something, but no end: there
    /// was no room for the rest. They were not sent, and must not be begun again.
    pub halfway: Vec<QueuedRow>,
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
    let open = reconcile(home, state).await?;
    let mut turns = open.running;
    takeover.halfway = open.halfway;
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
            // One that is over has its end written, and does not go on.
            turn: turns.remove(&session).filter(|turn| !turn.is_over()),
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

/// Compares what `state.db` says of turns, running or waiting, with the ends of
/// transcripts: a broker that dies, or that has no room to write, may have told
/// an end that `state.db` knows nothing of. Such a turn is over, and its row goes.
/// This comes before anything is written. Gives the turns that run, by session,
/// and the messages that wait although something stands there of them.
async fn reconcile(home: &Home, state: &StateHandle) -> Result<Open, StateError> {
    let running = state.run(State::running_turns).await?;
    let queued = state.run(State::queues).await?;
    let mut wanted: BTreeMap<SessionId, (Vec<TurnId>, Seq)> = BTreeMap::new();
    let running_ids = running
        .iter()
        .map(|row| (&row.session_id, &row.turn_id, row.after));
    let queued_ids = queued
        .iter()
        .map(|row| (&row.session_id, &row.turn_id, row.after));
    for (session, turn, after) in running_ids.chain(queued_ids) {
        let (turns, oldest) = wanted
            .entry(session.clone())
            .or_insert_with(|| (Vec::new(), after));
        turns.push(turn.clone());
        *oldest = after.min(*oldest);
    }
    // A transcript that can't be read is looked after by its session.
    let mut standings = BTreeMap::new();
    for (session, (turns, after)) in wanted {
        let path = home.transcript(&session);
        let read = tokio::task::spawn_blocking(move || transcript::standings(&path, turns, after));
        if let Some(found) = read.await.ok().and_then(Result::ok) {
            standings.insert(session, found);
        }
    }
    let mut open = Open::default();
    for row in running {
        let found = standings.get(&row.session_id);
        let standing = found.map(|found| found.get(&row.turn_id));
        if let Some(Some(Standing::Ended(status))) = standing {
            let (session, turn, status) = (row.session_id, row.turn_id, *status);
            state
                .run(move |state| {
                    state
                        .end_turn(&session, &turn, status, None, Seq(0))
                        .map(drop)
                })
                .await?;
            continue;
        }
        let begun = standing != Some(None);
        open.running
            .insert(row.session_id.clone(), LegacyTurn { row, begun });
    }
    for row in queued {
        let found = standings.get(&row.session_id);
        match found.and_then(|found| found.get(&row.turn_id)) {
            Some(Standing::Ended(_)) => {
                let remove =
                    move |state: &State| state.remove_queued(&row.session_id, &row.turn_id);
                state.run(remove).await?;
            }
            Some(Standing::Begun) => open.halfway.push(row),
            None => {}
        }
    }
    Ok(open)
}

/// What is not over.
#[derive(Default)]
struct Open {
    running: BTreeMap<SessionId, LegacyTurn>,
    halfway: Vec<QueuedRow>,
}

fn is_alive(identity: &ProcessIdentity) -> bool {
    identity.liveness() == Liveness::Alive
}

#[cfg(test)]
mod tests;
