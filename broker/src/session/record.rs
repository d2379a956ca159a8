//! What the session writes: its transcript, and its rows in `state.db`.
//!
//! What happened is staged, written in one go, and only then published and
//! acknowledged. What cannot be written has not happened: the turn is given up
//! for it, and its end is owed until there is room.

use std::time::Duration;

use ade_protocol::event::{ErrorCategory, Event, Origin, TurnStatus};
use ade_protocol::{Generation, Seq, TurnId, exit, rpc};

use super::actor::Actor;
use crate::clock;
use crate::link::EventLine;
use crate::state::Flags;
use crate::turn::{Again, ENDED_BY_USER, Failure, Input, SENT, over};

/// How often the end of a turn that is not on disk is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// How old the figures of a view may be while events stream: making one costs
/// more than an event.
const VIEW_LAG: Duration = Duration::from_millis(50);

/// The end of a turn, or of a message that only waited, that is not on disk yet.
#[derive(Clone, Debug)]
pub struct Owed {
    /// The turn. Its row in `state.db` stays until the transcript holds its end.
    pub turn: TurnId,
    /// How it ended.
    pub status: TurnStatus,
    /// Why it failed.
    pub error: Option<String>,
    /// The same as `state.db` keeps it, for a broker that comes before it is told.
    pub cause: Option<String>,
    /// For the transcript; none: they stand there already.
    pub events: Vec<Event>,
}

impl Actor {
    /// Puts a turn on disk. False: there was no room for it.
    pub(super) async fn turn_began(&mut self, turn: &TurnId, event: &Event) -> bool {
        let Event::UserMessage { text, .. } = event else {
            return false;
        };
        let row = crate::state::TurnRow {
            session_id: self.row.session_id.clone(),
            turn_id: turn.clone(),
            prompt: text.clone(),
            started_at: clock::timestamp(),
            generation: self.row.generation,
            sends: 0,
            state: "starting".into(),
            armed_at_ms: 0,
            cause: None,
            after: self.last_sequence(),
        };
        // One step: after a crash the message is in the one place or the other.
        self.store("begin a turn", move |state| {
            state.atomically(|state| {
                state.remove_queued(&row.session_id, &row.turn_id)?;
                state.begin_turn(&row)
            })
        })
        .await
    }

    /// Puts on disk, in one step, what the next start and the next send must do
    /// once, and how the running turn goes on: it is done so also when this
    /// broker dies before.
    pub(super) async fn arm(&mut self, rotate: bool, again: Option<Again>) {
        let force_expire = again.is_some();
        let flags = Flags {
            rotate,
            force_expire,
        };
        self.row.flags.rotate |= rotate;
        self.row.flags.force_expire |= force_expire;
        let session = self.row.session_id.clone();
        let planned = self.machine.turn().cloned().zip(again);
        // That the user has ended it stays.
        let planned = planned.filter(|_| !self.machine.is_ended_by_user());
        let cause = self.machine.cause().map(Failure::note);
        self.store("note a recovery", move |state| {
            state.atomically(|state| {
                state.set_flags(&session, flags)?;
                match planned {
                    Some((turn, again)) => {
                        state.plan_turn(&session, &turn, again.planned(), cause.as_deref())
                    }
                    None => Ok(()),
                }
            })
        })
        .await;
    }

    /// Takes back what [`Actor::arm`] noted: the turn goes on with the worker that
    /// it has.
    pub(super) async fn disarm(&mut self, turn: TurnId) {
        self.row.flags = Flags::default();
        let session = self.row.session_id.clone();
        self.store("take back a recovery", move |state| {
            state.atomically(|state| {
                state.clear_rotate(&session)?;
                state.clear_force_expire(&session)?;
                state.unplan_turn(&session, &turn, Again::Resend.planned(), SENT)
            })
        })
        .await;
    }

    /// Puts on disk that the user has ended the turn: another broker ends it
    /// too.
    pub(super) async fn note_end(&mut self, turn: TurnId) {
        let session = self.row.session_id.clone();
        self.store("note the end of a turn", move |state| {
            state.set_turn_state(&session, &turn, ENDED_BY_USER)
        })
        .await;
    }

    pub(super) async fn finish(
        &mut self,
        turn: &TurnId,
        mut status: TurnStatus,
        stop_reason: Option<String>,
        usage: Option<serde_json::Value>,
        mut failure: Option<Failure>,
    ) {
        if !self.flush() {
            // Part of it is lost: that is not how a turn completes.
            status = TurnStatus::Failed;
            failure = failure.or_else(|| self.broken.clone());
        }
        self.last_status = Some(status);
        self.last_error = failure.as_ref().map(|failure| failure.message.clone());
        let cause = failure.as_ref().map(Failure::note);
        let mut events = self.unread_at_end(turn);
        if let Some(failure) = failure {
            let detail = match &failure.detail {
                Some(detail) => format!("kind: {}\n{detail}", failure.kind),
                None => format!("kind: {}", failure.kind),
            };
            let Failure {
                category, message, ..
            } = failure;
            events.push(Event::Error {
                category,
                message,
                detail: Some(detail),
            });
        } else if status == TurnStatus::Completed && self.budget.success() {
            self.forget_deaths().await;
        }
        events.push(Event::Status { status });
        events.push(Event::Done {
            status,
            stop_reason,
            usage,
        });
        if self.refused.as_ref() == Some(turn) {
            events.clear();
        }
        self.owed.push(Owed {
            turn: turn.clone(),
            status,
            error: self.last_error.clone(),
            cause,
            events,
        });
        self.settle_owed().await;
    }

    /// Writes the ends of turns: first to the transcript, then to `state.db`. A
    /// broker that comes between the two finds the end in the transcript. True:
    /// nothing is owed any more.
    pub(super) async fn settle_owed(&mut self) -> bool {
        self.retry_at = clock::now() + RETRY;
        for owed in std::mem::take(&mut self.owed) {
            for event in &owed.events {
                self.emit(Some(&owed.turn), event);
            }
            self.owed.push(owed);
        }
        if !self.flush() {
            self.hold_back_owed().await;
            return false;
        }
        for mut owed in std::mem::take(&mut self.owed) {
            owed.events.clear();
            let (session, turn) = (self.row.session_id.clone(), owed.turn.clone());
            let (status, error) = (owed.status, owed.error.clone());
            let last = self.last_sequence();
            let ended = self.shared.state.run(move |state| {
                state
                    .end_turn(&session, &turn, status, error.as_deref(), last)
                    .map(drop)
            });
            if let Err(error) = ended.await {
                tracing::error!(session = %self.row.session_id, %error, "the end of a turn was not noted");
                self.owed.push(owed);
            }
        }
        self.owed.is_empty()
    }

    /// A message that is over is not to run when another broker comes before its end
    /// is written: that one ends it, as it was ended here. One that waited it ends as
    /// it does what was cleared.
    async fn hold_back_owed(&self) {
        let session = self.row.session_id.clone();
        let ends = self.owed.iter();
        let ends: Vec<_> = ends
            .map(|owed| (owed.turn.clone(), over(owed.status), owed.cause.clone()))
            .collect();
        let held = self.shared.state.run(move |state| {
            state.atomically(|state| {
                let mut ends = ends.iter();
                ends.try_for_each(|(turn, standing, cause)| {
                    state.clear_queued(&session, turn)?;
                    state.plan_turn(&session, turn, standing, cause.as_deref())
                })
            })
        });
        if let Err(error) = held.await {
            tracing::error!(session = %self.row.session_id, %error, "a message that is over is not so on disk");
        }
    }

    /// Writes to `state.db`. What cannot be written costs the running turn; the
    /// chat goes on as soon as there is room again.
    pub(super) async fn store<F>(&mut self, what: &'static str, change: F) -> bool
    where
        F: FnOnce(&crate::state::State) -> Result<(), crate::state::StateError> + Send + 'static,
    {
        let Err(error) = self.shared.state.run(change).await else {
            return true;
        };
        tracing::error!(session = %self.row.session_id, %error, "could not {what}");
        let failure = unwritten("state", &error, &error.hints());
        self.broken.get_or_insert(failure);
        false
    }

    /// Stages an event of the broker's own; its number, 0 for one that the
    /// transcript does not hold.
    pub(super) fn emit(&mut self, turn: Option<&TurnId>, event: &Event) -> Seq {
        let Ok(raw) = serde_json::value::to_raw_value(event) else {
            return Seq(0);
        };
        let persisted = !matches!(event, Event::Activity { .. });
        self.stage(turn, None, raw.get().as_bytes(), persisted)
    }

    /// Makes room for events that are about to be staged.
    pub(super) fn expect(&mut self, events: &[EventLine], turn: Option<&TurnId>) {
        let bytes: usize = events.iter().map(|line| line.event.len()).sum();
        let bytes = bytes + events.len() * self.transcript.envelope(turn);
        self.transcript.expect(bytes);
        self.outbox.expect(events.len(), bytes);
    }

    /// Stages an event for the transcript and for the subscribers.
    pub(super) fn stage(
        &mut self,
        turn: Option<&TurnId>,
        origin: Option<Origin>,
        event: &[u8],
        persisted: bool,
    ) -> Seq {
        // One reading of the clock for all that is written in one go.
        let timestamp = self.moment.take().unwrap_or_else(clock::timestamp);
        let sequence = if persisted {
            let (sequence, envelope) = self.transcript.stage(&timestamp, turn, origin, event);
            self.outbox.event(sequence, envelope);
            sequence
        } else {
            let envelope = self.transcript.transient(&timestamp, turn, event);
            self.outbox.passing(&envelope);
            Seq(0)
        };
        self.moment = Some(timestamp);
        self.stale.get_or_insert_with(|| clock::now() + VIEW_LAG);
        sequence
    }

    /// Writes what was staged, then publishes and acknowledges it. False: it
    /// could not be written, so nothing of it has happened for anybody else.
    pub(super) fn flush(&mut self) -> bool {
        if self.outbox.is_empty() {
            return true;
        }
        self.moment = None;
        let written = self.transcript.commit();
        if let Err(error) = &written {
            tracing::error!(session = %self.row.session_id, %error, "the transcript was not written");
            let failure = unwritten("transcript", error, &error.hints());
            self.broken.get_or_insert(failure);
            self.dirty = true;
            // Cards stand in `state.db`.
            self.outbox.drop_events();
            self.said = None;
        }
        let items = self.outbox.take();
        let head = self.transcript.last_sequence();
        if self.worker.is_none() {
            // Any number of chats may wait for a worker, and all end at once.
            self.transcript.rest();
        }
        self.shared.hub.publish(&self.row.session_id, head, &items);
        if written.is_err() {
            return false;
        }
        if let Some(worker) = &mut self.worker {
            worker.acknowledge();
        }
        true
    }

    /// Ends the turn and the queue because something of them could not be
    /// written down. Their ends are owed until there is room.
    pub(super) async fn give_up(&mut self, failure: Failure) {
        self.last_error = Some(failure.message.clone());
        let now = self.now();
        for effect in self.machine.on(Input::Unrecordable(failure), now) {
            self.effect(effect).await;
        }
        // The same disk is full for what was tried on the way.
        self.broken = None;
        self.idle_since = clock::now();
        self.dirty = true;
    }

    /// A message that was not written down was never taken. One that stands in the
    /// transcript has its end there too, whatever could not be written of it.
    pub(super) async fn refuse_turn(&mut self, turn: &TurnId, failure: Failure) -> rpc::RpcError {
        let error = refusal(&failure);
        let stands = (self.said.as_ref())
            .is_some_and(|(said, sequence)| said == turn && *sequence <= self.last_sequence());
        self.refused = (!stands).then(|| turn.clone());
        self.give_up(failure).await;
        self.refused = None;
        error
    }

    /// Last event of a generation, when it is the newest one in the transcript.
    pub(super) fn transcript_origin(&self, generation: Generation) -> Seq {
        self.transcript.last_origin(generation)
    }

    /// Last event of the transcript.
    pub(super) fn last_sequence(&self) -> Seq {
        self.transcript.last_sequence()
    }
}

/// What a client is told whose wish could not be written down.
pub(super) fn refusal(failure: &Failure) -> rpc::RpcError {
    let error = rpc::RpcError::failed(&failure.kind, exit::FAILED, failure.message.clone());
    let hints = failure.detail.clone();
    hints.into_iter().fold(error, rpc::RpcError::hint)
}

/// What a failed write means to a turn.
fn unwritten(kind: &str, error: &dyn std::error::Error, hints: &[String]) -> Failure {
    let mut message = error.to_string();
    if let Some(source) = error.source() {
        message = format!("{message}: {source}");
    }
    let failure = Failure::new(kind, ErrorCategory::Unknown, message);
    if hints.is_empty() {
        failure
    } else {
        failure.with_detail(hints.join("\n"))
    }
}
