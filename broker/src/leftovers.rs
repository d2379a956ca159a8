//! What a broker that died left open and nobody takes over: turns get their one
//! terminal event, cards are withdrawn, dead leases are freed.
//!
//! Runs after the sweep, so the workers of these sessions are dead, and before
//! any session is served.

use ade_protocol::SessionId;
use ade_protocol::card::{Card, CardOutcome, Withdrawal};
use ade_protocol::event::{ErrorCategory, Event, NoticeLevel, TurnStatus};

use crate::clock;
use crate::home::Home;
use crate::state::{CardRow, QueuedRow, Settled, State, StateError, StateHandle, TurnRow};
use crate::takeover::Takeover;
use crate::transcript::{Transcript, TranscriptError};
use crate::turn::{Again, DROPPED_BY_RECOVERY, ENDED_BY_USER};

/// Why leftovers could not be closed.
#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    /// `state.db` could not be read or written.
    #[error("the turns that the last broker left open could not be read")]
    State(#[from] StateError),
}

/// Closes what the last broker left open. Returns the number of turns. A
/// transcript that cannot be written is logged and costs only itself.
///
/// # Errors
/// When `state.db` cannot be read.
pub async fn close(
    home: &Home,
    state: &StateHandle,
    taken_over: &Takeover,
) -> Result<usize, LeftoverError> {
    let cards = state.run(crate::state::State::cards).await?;
    let turns = state.run(crate::state::State::running_turns).await?;
    for CardRow { card, settled, .. } in cards {
        if taken_over.generation(&card.session_id) == Some(card.generation) {
            continue;
        }
        note(write_card(home, &card, settled), &card.session_id);
        let session = card.session_id.clone();
        state
            .run(move |state| {
                state
                    .remove_card(&session, card.generation, &card.card_id)
                    .map(drop)
            })
            .await?;
    }
    // What survived the sweep may still write: its journal was kept for it. And
    // so was that of each worker that is taken over.
    let kept: std::collections::BTreeSet<SessionId> = crate::journal::read_all(home)
        .map(|journals| journals.entries.into_iter().map(|entry| entry.session_id))
        .map(Iterator::collect)
        .unwrap_or_default();
    let files = state.run(crate::state::State::sessions).await?;
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
    let turns: Vec<_> = turns
        .into_iter()
        .filter(|turn| !taken_over.goes_on(&turn.session_id))
        .collect();
    let count = turns.len();
    end_halfway(home, state, &taken_over.halfway).await?;
    for turn in turns {
        if Again::read(&turn.state).is_some() {
            drop_steers(home, state, &turn).await?;
        }
        let ended_by_user = turn.state == ENDED_BY_USER;
        let status = if ended_by_user {
            TurnStatus::Interrupted
        } else {
            TurnStatus::Failed
        };
        let message = what_became(&turn.session_id, taken_over);
        let error = (!ended_by_user).then_some(message);
        let mut events = if taken_over.unbegun.contains(&turn.turn_id) {
            crate::session::beginning(&turn.prompt).into()
        } else {
            Vec::new()
        };
        events.extend(lost(error.as_deref(), status));
        note(
            write(home, &turn.session_id, Some(&turn.turn_id), &events),
            &turn.session_id,
        );
        state
            .run(move |state| {
                state
                    .end_turn(&turn.session_id, &turn.turn_id, status, error.as_deref())
                    .map(drop)
            })
            .await?;
    }
    Ok(count)
}

/// A message that a broker without room had begun to write down ends: it was not
/// sent, and whoever sent it may have been told so.
async fn end_halfway(
    home: &Home,
    state: &StateHandle,
    rows: &[QueuedRow],
) -> Result<(), LeftoverError> {
    let message = "the broker ended before it could write this message down, and did not send it; \
                   send it again if you still want it";
    for row in rows.iter().cloned() {
        let (session, turn) = (row.session_id, row.turn_id);
        let events = lost(Some(message), TurnStatus::Failed);
        note(write(home, &session, Some(&turn), &events), &session);
        let remove = move |state: &State| state.remove_queued(&session, &turn);
        state.run(remove).await?;
    }
    Ok(())
}

/// How a turn ends that was lost with its broker. `error`: what that cost.
fn lost(error: Option<&str>, status: TurnStatus) -> Vec<Event> {
    let error = error.map(|message| Event::Error {
        category: ErrorCategory::Exited,
        message: message.to_owned(),
        detail: Some("kind: broker_ended".into()),
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

/// The recovery of a turn has failed with its broker: each message that was meant
/// to go into it ends with one notice, before the turn does.
async fn drop_steers(
    home: &Home,
    state: &StateHandle,
    turn: &TurnRow,
) -> Result<(), LeftoverError> {
    let session = turn.session_id.clone();
    let rows = state.run(move |state| state.queue(&session)).await?;
    let its_own = |row: &QueuedRow| row.steers.as_ref() == Some(&turn.turn_id);
    for row in rows.into_iter().filter(its_own) {
        let status = TurnStatus::Interrupted;
        let events = [
            Event::Notice {
                level: NoticeLevel::Warn,
                message: DROPPED_BY_RECOVERY.to_owned(),
            },
            Event::Status { status },
            Event::Done {
                status,
                stop_reason: None,
                usage: None,
            },
        ];
        note(
            write(home, &row.session_id, Some(&row.turn_id), &events),
            &row.session_id,
        );
        let remove = move |state: &State| state.remove_queued(&row.session_id, &row.turn_id);
        state.run(remove).await?;
    }
    Ok(())
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

fn note(result: Result<(), TranscriptError>, session: &SessionId) {
    if let Err(error) = result {
        tracing::error!(%session, %error, "the end of a turn could not be written");
    }
}

/// Tells how a card ended, unless the transcript does.
fn write_card(home: &Home, card: &Card, settled: Option<Settled>) -> Result<(), TranscriptError> {
    let resolution = match settled {
        Some(settled) => {
            let path = home.transcript(&card.session_id);
            let told = Transcript::open(&path, card.session_id.clone())?.last_sequence();
            if settled.sequence <= told {
                return Ok(());
            }
            settled.outcome
        }
        None => CardOutcome::Withdrawn {
            why: Withdrawal::WorkerGone,
        },
    };
    let event = Event::CardResolved {
        card_id: card.card_id.clone(),
        resolution,
    };
    write(home, &card.session_id, card.turn_id.as_ref(), &[event])
}

fn write(
    home: &Home,
    session: &SessionId,
    turn: Option<&ade_protocol::TurnId>,
    events: &[Event],
) -> Result<(), TranscriptError> {
    let mut transcript = Transcript::open(&home.transcript(session), session.clone())?;
    for event in events {
        if let Ok(raw) = serde_json::value::to_raw_value(event) {
            transcript.stage(&clock::timestamp(), turn, None, raw.get().as_bytes());
        }
    }
    transcript.commit()
}
