//! What a broker that died left open and nobody takes over: turns get their one
//! terminal event, cards are withdrawn, dead leases are freed.
//!
//! Runs after the sweep, so the workers of these sessions are dead, and before
//! any session is served.

use std::collections::{BTreeMap, BTreeSet};

use ade_protocol::card::{Card, CardOutcome, Withdrawal};
use ade_protocol::event::{ErrorCategory, Event, NoticeLevel, TurnStatus};
use ade_protocol::{Seq, SessionId, TurnId};

use crate::clock;
use crate::home::Home;
use crate::session::{Owed, tell_missing};
use crate::state::{CardRow, QueuedRow, Settled, State, StateError, StateHandle, TurnRow};
use crate::takeover::Takeover;
use crate::transcript::{Transcript, TranscriptError};
use crate::turn::{Again, ENDED_BY_USER, Failure, dropped_by_recovery, read_over, unsent};

/// Why leftovers could not be closed.
#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    /// `state.db` could not be read or written.
    #[error("the turns that the last broker left open could not be read")]
    State(#[from] StateError),
}

/// Ends that could not be written, by session and in order.
pub type OwedEnds = BTreeMap<SessionId, Vec<Owed>>;

/// What was closed.
#[derive(Debug, Default)]
pub struct Closed {
    /// Turns that had run.
    pub turns: usize,
    /// Ends that could not be written: their rows are kept. Who serves the session
    /// tries again; if it does not get to it, the next broker does.
    pub owed: OwedEnds,
}

/// Closes what the last broker left open. A transcript that cannot be written is
/// logged and costs only itself.
///
/// # Errors
/// When `state.db` cannot be read or written.
pub async fn close(
    home: &Home,
    state: &StateHandle,
    taken_over: &Takeover,
) -> Result<Closed, LeftoverError> {
    let turns = state.run(State::running_turns).await?;
    let untold = close_cards(home, state, taken_over).await?;
    free_leases(home, state).await?;
    let turns: Vec<_> = turns
        .into_iter()
        .filter(|turn| !taken_over.goes_on(&turn.session_id))
        .collect();
    let mut closing = Closing {
        home,
        state,
        untold,
        owed: BTreeMap::new(),
    };
    let count = turns.len();
    for row in taken_over.halfway.iter().cloned() {
        let why = "the broker ended before it could write this message down, and did not send \
                   it; send it again if you still want it.";
        let failure = broker_ended(unsent(why, &row.prompt));
        let end = Owed {
            events: lost(Some(&failure), TurnStatus::Failed),
            ..owed(row.turn_id, TurnStatus::Failed, Some(failure))
        };
        closing.end(&row.session_id, end).await?;
    }
    for turn in turns {
        if Again::read(&turn.state).is_some() {
            closing.drop_steers(&turn).await?;
        }
        let (status, failure) = how_it_ended(&turn, taken_over);
        let mut events = if taken_over.unbegun.contains(&turn.turn_id) {
            crate::session::beginning(&turn.prompt).into()
        } else {
            Vec::new()
        };
        events.extend(lost(failure.as_ref(), status));
        let end = Owed {
            events,
            ..owed(turn.turn_id, status, failure)
        };
        closing.end(&turn.session_id, end).await?;
    }
    Ok(Closed {
        turns: count,
        owed: closing.owed,
    })
}

/// Tells how cards ended of which nobody is asked any more. Gives the ends that
/// could not be told: they go before the end of their turn, and their rows with it.
async fn close_cards(
    home: &Home,
    state: &StateHandle,
    taken_over: &Takeover,
) -> Result<Vec<(Card, Event)>, LeftoverError> {
    let mut untold = Vec::new();
    for CardRow { card, settled, .. } in state.run(State::cards).await? {
        if taken_over.generation(&card.session_id) == Some(card.generation) {
            continue;
        }
        let mut settled = settled.unwrap_or(Settled {
            outcome: CardOutcome::Withdrawn {
                why: Withdrawal::WorkerGone,
            },
            answer: None,
            sequence: NEVER,
        });
        match tell_card(home, state, &card, &mut settled).await? {
            Ok(()) => {
                let remove = move |state: &State| {
                    state.remove_card(&card.session_id, card.generation, &card.card_id)
                };
                state.run(remove).await?;
            }
            Err(error) => {
                tracing::error!(session = %card.session_id, %error, "the end of a card could not be written");
                settled.sequence = NEVER;
                note_card(state, &card, &settled).await?;
                let event = resolved(&card, settled.outcome);
                untold.push((card, event));
            }
        }
    }
    Ok(untold)
}

/// The place in the transcript of a card's end that stands nowhere.
const NEVER: Seq = Seq(u64::MAX);

fn resolved(card: &Card, resolution: CardOutcome) -> Event {
    Event::CardResolved {
        card_id: card.card_id.clone(),
        resolution,
    }
}

async fn note_card(state: &StateHandle, card: &Card, settled: &Settled) -> Result<(), StateError> {
    let (card, settled) = (card.clone(), settled.clone());
    let note = move |state: &State| state.settle_card(&card, &settled);
    state.run(note).await
}

/// Tells how a card ended, unless the transcript does. Where it is about to stand
/// is noted before: a broker that dies in between leaves no second telling.
async fn tell_card(
    home: &Home,
    state: &StateHandle,
    card: &Card,
    settled: &mut Settled,
) -> Result<Result<(), TranscriptError>, LeftoverError> {
    let told = match open(home, state, &card.session_id).await? {
        Ok(transcript) => transcript.last_sequence(),
        Err(error) => return Ok(Err(error)),
    };
    if settled.sequence <= told {
        return Ok(Ok(()));
    }
    settled.sequence = told.next();
    note_card(state, card, settled).await?;
    let event = resolved(card, settled.outcome.clone());
    let turn = card.turn_id.as_ref();
    let written = write(home, state, &card.session_id, turn, &[event]).await?;
    Ok(written.map(drop))
}

/// Frees the leases of dead workers. What survived the sweep may still write: its
/// journal was kept for it. And so was that of each worker that is taken over.
async fn free_leases(home: &Home, state: &StateHandle) -> Result<(), LeftoverError> {
    let kept: BTreeSet<SessionId> = crate::journal::read_all(home)
        .map(|journals| journals.entries.into_iter().map(|entry| entry.session_id))
        .map(Iterator::collect)
        .unwrap_or_default();
    let files = state.run(State::sessions).await?;
    let files: Vec<std::path::PathBuf> = files
        .into_iter()
        .filter(|row| !kept.contains(&row.session_id))
        .filter_map(|row| crate::providers::session_file(home, &row))
        .collect();
    let freed = tokio::task::spawn_blocking(move || {
        for file in &files {
            crate::session::free_lease(file);
        }
    });
    if let Err(error) = freed.await {
        tracing::error!(%error, "leases of dead workers were left");
    }
    Ok(())
}

/// Ends of turns on their way to the disk.
struct Closing<'a> {
    home: &'a Home,
    state: &'a StateHandle,
    untold: Vec<(Card, Event)>,
    owed: OwedEnds,
}

impl Closing<'_> {
    /// Writes an end, and only then takes the turn, or the message that waited, out
    /// of `state.db`. Behind one that could not be written none of its session is:
    /// they keep their order.
    async fn end(&mut self, session: &SessionId, mut end: Owed) -> Result<(), LeftoverError> {
        let its_own = |(card, _): &mut (Card, Event)| {
            card.session_id == *session && card.turn_id.as_ref() == Some(&end.turn)
        };
        let cards: Vec<_> = self.untold.extract_if(.., its_own).collect();
        let cards = cards.into_iter().map(|(_, event)| event);
        end.events = cards.chain(end.events).collect();
        if let Some(before) = self.owed.get_mut(session) {
            before.push(end);
            return Ok(());
        }
        let turn = Some(&end.turn);
        let last = match write(self.home, self.state, session, turn, &end.events).await? {
            Ok(last) => last,
            Err(error) => {
                tracing::error!(%session, %error, "the end of a turn could not be written");
                self.owed.insert(session.clone(), vec![end]);
                return Ok(());
            }
        };
        let session = session.clone();
        let ended = move |state: &State| {
            let error = end.error.as_deref();
            state.end_turn(&session, &end.turn, end.status, error, last)
        };
        self.state.run(ended).await?;
        Ok(())
    }

    /// The recovery of a turn has failed with its broker: each message that was
    /// meant to go into it ends with one notice, before the turn does.
    async fn drop_steers(&mut self, turn: &TurnRow) -> Result<(), LeftoverError> {
        let session = turn.session_id.clone();
        let rows = self.state.run(move |state| state.queue(&session)).await?;
        let its_own = |row: &QueuedRow| row.steers.as_ref() == Some(&turn.turn_id);
        for row in rows.into_iter().filter(its_own) {
            let status = TurnStatus::Interrupted;
            let notice = Event::Notice {
                level: NoticeLevel::Warn,
                message: dropped_by_recovery(&row.prompt),
            };
            let end = Owed {
                events: std::iter::once(notice).chain(lost(None, status)).collect(),
                ..owed(row.turn_id, status, None)
            };
            self.end(&row.session_id, end).await?;
        }
        Ok(())
    }
}

/// How a turn ended: as the last broker had ended it, or with that one.
fn how_it_ended(turn: &TurnRow, taken_over: &Takeover) -> (TurnStatus, Option<Failure>) {
    if let Some(status) = read_over(&turn.state) {
        return (status, turn.cause.as_deref().and_then(Failure::read));
    }
    if turn.state == ENDED_BY_USER {
        return (TurnStatus::Interrupted, None);
    }
    let failure = broker_ended(what_became(&turn.session_id, taken_over));
    (TurnStatus::Failed, Some(failure))
}

fn broker_ended(message: String) -> Failure {
    Failure::new("broker_ended", ErrorCategory::Exited, message)
}

/// The end of a turn, without its events.
fn owed(turn: TurnId, status: TurnStatus, failure: Option<Failure>) -> Owed {
    Owed {
        turn,
        status,
        cause: failure.as_ref().map(Failure::note),
        error: failure.map(|failure| failure.message),
        events: Vec::new(),
    }
}

/// How a turn ends that was lost with its broker. `failure`: what that cost.
fn lost(failure: Option<&Failure>, status: TurnStatus) -> Vec<Event> {
    let error = failure.map(|failure| Event::Error {
        category: failure.category,
        message: failure.message.clone(),
        detail: Some(format!("kind: {}", failure.kind)),
    });
    let end = [
        Event::Status { status },
        Event::Done {
            status,
            stop_reason: None,
            usage: None,
        },
    ];
    error.into_iter().chain(end).collect()
}

/// What is known of a turn whose worker is not taken over.
fn what_became(session: &SessionId, taken_over: &Takeover) -> String {
    let worker = match taken_over.damaged.as_slice() {
        _ if taken_over.recorded.contains(session) => "its worker was stopped".to_owned(),
        [] => "its worker is gone".to_owned(),
        damaged => {
            let names: Vec<_> = damaged
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            let (names, are) = (names.join(", "), if names.len() > 1 { "are" } else { "is" });
            format!(
                "what became of its worker is not known, for {names} {are} damaged; if it still \
                 runs, it is told to stop when it reports"
            )
        }
    };
    format!(
        "the broker ended in the middle of this turn and {worker}; send the message again if you \
         still want it"
    )
}

/// Opens a transcript. What is missing from it is told in it before anything else.
async fn open(
    home: &Home,
    state: &StateHandle,
    session: &SessionId,
) -> Result<Result<Transcript, TranscriptError>, StateError> {
    let asked = session.clone();
    let known = state.run(move |state| state.last_sequence(&asked)).await?;
    let opened = Transcript::open(&home.transcript(session), session.clone(), known);
    Ok(opened.and_then(|mut transcript| {
        tell_missing(&mut transcript)?;
        Ok(transcript)
    }))
}

/// Gives the last event of the transcript by then.
async fn write(
    home: &Home,
    state: &StateHandle,
    session: &SessionId,
    turn: Option<&ade_protocol::TurnId>,
    events: &[Event],
) -> Result<Result<Seq, TranscriptError>, StateError> {
    let opened = open(home, state, session).await?;
    Ok(opened.and_then(|mut transcript| {
        for event in events {
            if let Ok(raw) = serde_json::value::to_raw_value(event) {
                transcript.stage(&clock::timestamp(), turn, None, raw.get().as_bytes());
            }
        }
        transcript.commit()?;
        Ok(transcript.last_sequence())
    }))
}

#[cfg(test)]
mod tests {
    use ade_protocol::action::{ChatCreate, PermissionMode};

    use super::*;
    use crate::state::SessionRow;

    #[tokio::test]
    async fn a_message_that_was_half_written_down_ends_with_its_words() {
        let folder = tempfile::TempDir::new().unwrap();
        let home = Home::at(folder.path().to_owned(), None).unwrap();
        let home = home.prepare().unwrap();
        let state = StateHandle::start(State::open(&home.state_db()).unwrap());
        let create = ChatCreate {
            provider: "scripted".into(),
            lane: "/lane".into(),
            model: None,
            thinking: None,
            permission: PermissionMode::Default,
            session_file: None,
            take_over: false,
            agent_dir: None,
            title: None,
            first_event_ms: None,
        };
        let session = SessionRow::new("ses_1".into(), &create, "/lane".into(), "t".into());
        let row = QueuedRow {
            session_id: session.session_id.clone(),
            turn_id: "t1".into(),
            prompt: "mend the bridge".into(),
            steers: None,
            queued_at: "t".into(),
            after: Seq(0),
        };
        let queued = row.clone();
        let written = state.run(move |state| {
            state.insert_session(&session)?;
            state.enqueue(&queued)
        });
        written.await.unwrap();
        let found = Takeover {
            halfway: vec![row.clone()],
            ..Takeover::default()
        };
        close(&home, &state, &found).await.unwrap();
        let text = std::fs::read_to_string(home.transcript(&row.session_id)).unwrap();
        assert!(text.contains("mend the bridge"), "{text}");
        assert!(text.contains("\"type\":\"done\""), "{text}");
        assert!(state.run(State::queues).await.unwrap().is_empty());
    }
}
