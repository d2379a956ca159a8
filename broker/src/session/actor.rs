//! The actor's own loop and what it writes.

use std::sync::Arc;
use std::time::Duration;

use ade_protocol::action::SessionInfo;
use ade_protocol::card::{Card, CardOutcome};
use ade_protocol::event::{Event, Origin, TurnStatus};
use ade_protocol::rpc;
use ade_protocol::{RequestId, Seq, TurnId, exit};
use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::worker::{Departing, Leave, Starting, Worker};
use super::{Command, Legacy, View};
use crate::budget::Budget;
use crate::cards::Cards;
use crate::clock;
use crate::hub::Item;
use crate::link::{Connection, LinkIn};
use crate::shared::Shared;
use crate::state::SessionRow;
use crate::transcript::{Transcript, TranscriptError};
use crate::turn::{Effect, Failure, Input, Machine, Mono, State};

/// Frames that are taken from the link in one go; they share one write.
const BATCH: usize = 256;

/// How often the end of a turn that is not on disk is tried again.
const RETRY: std::time::Duration = std::time::Duration::from_secs(5);

/// How old the figures of a view may be while events stream: making one costs
/// more than an event.
const VIEW_LAG: std::time::Duration = std::time::Duration::from_millis(50);

/// Answers that may wait for a worker that is being taken over.
const MAX_DEFERRED: usize = 64;

/// The end of a turn that is not on disk yet.
pub(super) struct Owed {
    turn: TurnId,
    status: TurnStatus,
    error: Option<String>,
    /// For the transcript; none: they stand there already.
    events: Vec<Event>,
}

/// One session.
pub(super) struct Actor {
    pub(super) shared: Arc<Shared>,
    pub(super) row: SessionRow,
    pub(super) machine: Machine,
    pub(super) cards: Cards,
    pub(super) budget: Budget,
    /// Why a worker, or its host, ended last that nobody had told to.
    pub(super) last_death: Option<Failure>,
    pub(super) worker: Option<Worker>,
    pub(super) starting: Option<Starting>,
    pub(super) departing: Option<Departing>,
    pub(super) epoch: u64,
    /// Starts that were cancelled and have not ended yet: each may have a
    /// worker that is being seen off.
    pub(super) cancelled_starts: usize,
    /// For tasks that report back; weak, so that they don't keep the actor.
    pub(super) tx: mpsc::WeakSender<Command>,
    pub(super) stop_replies: Vec<oneshot::Sender<()>>,
    /// No message is taken any more.
    pub(super) closed: bool,
    pub(super) detach_replies: Vec<oneshot::Sender<()>>,
    /// Open cards of a broker that is gone, until the worker has told which
    /// are open still.
    pub(super) legacy_cards: Vec<Card>,
    /// Answers to them that came meanwhile; at most [`MAX_DEFERRED`].
    pub(super) deferred: Vec<Command>,
    pub(super) last_status: Option<TurnStatus>,
    pub(super) last_error: Option<String>,
    /// Messages for a turn whose worker went away before it took them.
    pub(super) lifted: Vec<(String, super::Reply<ade_protocol::action::Steered>)>,
    rx: mpsc::Receiver<Command>,
    transcript: Transcript,
    outbox: Vec<Item>,
    /// Ends of turns that are not on disk yet.
    pub(super) owed: Vec<Owed>,
    /// When they are tried again.
    retry_at: Instant,
    /// What could not be written, until the turn was given up for it.
    pub(super) broken: Option<Failure>,
    view: watch::Sender<Arc<View>>,
    dirty: bool,
    /// When the figures of the view (last event) are published at the latest.
    stale: Option<Instant>,
    /// The time that everything carries which is staged together.
    moment: Option<String>,
    born: Instant,
    idle_since: Instant,
}

impl Actor {
    pub(super) fn new(
        shared: Arc<Shared>,
        row: SessionRow,
        tx: mpsc::WeakSender<Command>,
        rx: mpsc::Receiver<Command>,
        legacy: Option<Legacy>,
    ) -> Result<(Self, watch::Receiver<Arc<View>>), TranscriptError> {
        let path = shared.home.transcript(&row.session_id);
        let transcript = Transcript::open(&path, row.session_id.clone())?;
        let first_event = row.first_event_ms.map(Duration::from_millis);
        let timing = shared.config.turn_timing(&row.provider, first_event);
        let (last_status, last_error) = (row.last_status, row.last_error.clone());
        let now = clock::now();
        let mut actor = Self {
            machine: Machine::new(timing),
            cards: Cards::default(),
            budget: Budget::new(shared.config.start_limits()),
            last_death: None,
            worker: None,
            starting: None,
            departing: None,
            epoch: 0,
            cancelled_starts: 0,
            tx,
            stop_replies: Vec::new(),
            closed: false,
            detach_replies: Vec::new(),
            legacy_cards: Vec::new(),
            deferred: Vec::new(),
            last_status,
            last_error,
            lifted: Vec::new(),
            rx,
            transcript,
            outbox: Vec::new(),
            owed: Vec::new(),
            retry_at: now,
            broken: None,
            view: watch::Sender::new(Arc::new(View {
                info: placeholder(&row),
                cards: Vec::new(),
            })),
            dirty: false,
            stale: None,
            moment: None,
            born: now,
            idle_since: now,
            shared,
            row,
        };
        if let Some(legacy) = legacy {
            actor.take_over(legacy, timing);
        }
        actor.publish_view();
        let view = actor.view.subscribe();
        Ok((actor, view))
    }

    pub(super) async fn run(mut self) {
        // Commits are not flushed one by one: after a power cut the transcript
        // may know of a generation that `state.db` has forgotten.
        let (session, newest) = (
            self.row.session_id.clone(),
            self.transcript.last_generation(),
        );
        if newest > self.row.generation {
            self.row.generation = newest;
            self.store("raise the generation", move |state| {
                state.raise_generation(&session, newest)
            })
            .await;
        }
        let mut batch = Vec::with_capacity(BATCH);
        self.load_queue().await;
        // What a takeover began with.
        self.flush();
        if self.dirty {
            self.publish_view();
        }
        loop {
            let deadline = self.next_deadline();
            tokio::select! {
                command = self.rx.recv() => match command {
                    Some(command) => self.command(command).await,
                    None => break,
                },
                news = from_worker(self.worker.as_mut(), &mut batch) => match news {
                    News::Frames(count) => self.frames(&mut batch, count).await,
                    News::Exited => self.worker_exited().await,
                    News::Reconnected(connection) => self.reconnected(*connection),
                    News::WantedBack => self.put_away("its place is wanted").await,
                },
                () = until(deadline) => self.deadline().await,
            }
            self.settle_lifted().await;
            self.flush();
            if let Some(failure) = self.broken.take() {
                self.give_up(failure).await;
            }
            self.answer_stops();
            if self.view_is_due() {
                self.publish_view();
            }
            // A start under way is not waited for: its worker has a journal, and
            // a turn whose message reached nobody is begun again.
            if !self.detach_replies.is_empty() {
                // Dropping the link is all: the worker connects to the next
                // broker, and what was not acknowledged is said again there.
                return;
            }
        }
        // The last handle is gone: the session was deleted or the broker ends.
        if let Some(worker) = self.worker.take() {
            self.see_off(worker, Leave::Ask);
        }
    }

    /// Time since the actor was made: the machine's clock.
    pub(super) fn now(&self) -> Mono {
        clock::now().saturating_duration_since(self.born)
    }

    /// A moment of the machine's clock, for people.
    pub(super) fn wall_clock(&self, at: Mono) -> String {
        clock::ago(self.now().saturating_sub(at))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let turn = self.machine.deadline().map(|at| self.born + at);
        let idle = (self.machine.state() == State::Idle && self.has_idle_worker())
            .then(|| self.idle_since + self.shared.config.timing(&self.row.provider).idle_put_away);
        let leaving = self.worker.as_ref().and_then(|worker| worker.leaving);
        let owed = (!self.owed.is_empty()).then_some(self.retry_at);
        [turn, idle, leaving, owed, self.stale]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the view has to be published now: its state changed, or its
    /// figures are as old as they may be.
    fn view_is_due(&self) -> bool {
        self.dirty || self.stale.is_some_and(|at| clock::now() >= at)
    }

    /// Whether a worker that was asked to end is alive.
    fn is_stopping(&self) -> bool {
        let leaving = self.worker.as_ref().map(|worker| worker.leaving.is_some());
        leaving.unwrap_or(self.departing.as_ref().is_some_and(Departing::is_alive))
    }

    fn has_idle_worker(&self) -> bool {
        self.worker
            .as_ref()
            .is_some_and(|worker| worker.leaving.is_none())
    }

    async fn deadline(&mut self) {
        let now = self.now();
        let leaving = self.worker.as_ref().and_then(|worker| worker.leaving);
        if self.stale.is_some_and(|at| clock::now() >= at) {
            // The loop publishes the view, and comes back for the rest.
        } else if leaving.is_some_and(|until| clock::now() >= until) {
            self.dismiss();
        } else if !self.owed.is_empty() && clock::now() >= self.retry_at {
            self.settle_owed().await;
        } else if self.machine.deadline().is_some_and(|at| now >= at) {
            self.input(Input::Tick).await;
        } else if self.machine.state() == State::Idle {
            if self.shared.hub.watches(&self.row.session_id) {
                // Somebody is there: it is looked at again after the same time.
                self.idle_since = clock::now();
            } else {
                self.put_away("nobody needed it for long").await;
            }
        }
    }

    /// Stops the worker of an idle session; the next message gets another.
    async fn put_away(&mut self, why: &str) {
        tracing::info!(session = %self.row.session_id, why, "an idle worker is put away");
        self.input(Input::PutAway).await;
    }

    /// Gives one input to the machine and carries out what it says.
    pub(super) async fn input(&mut self, input: Input) {
        let before = self.machine.state();
        let was_idle = before == State::Idle;
        let now = self.now();
        let effects = self.machine.on(input, now);
        let quiet = effects.is_empty();
        for effect in effects {
            if self.broken.is_some() {
                // What can't be written down is not done: the turn is given up.
                break;
            }
            self.effect(effect).await;
        }
        if self.machine.state() == State::Idle && !was_idle {
            self.idle_since = clock::now();
        }
        self.note_idle();
        self.dirty |= !quiet || self.machine.state() != before;
    }

    async fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Acquire => {
                self.note_recovery().await;
                self.acquire();
            }
            Effect::Send {
                turn,
                prompt,
                recovery,
            } => {
                self.write_message(&turn, &prompt, recovery).await;
            }
            Effect::Abort(turn) => self.write_abort(&turn),
            Effect::Recycle { resend } => {
                self.arm_flags(resend).await;
                self.dismiss();
            }
            Effect::Poison => self.dismiss(),
            Effect::Dispose => self.ask_to_leave(),
            Effect::Withdraw(why) => {
                for card in std::mem::take(&mut self.legacy_cards) {
                    self.cards.add(card);
                }
                for (card, outcome) in self.cards.withdraw_all(why) {
                    self.card_settled(&card, outcome, None).await;
                }
            }
            Effect::Emit(turn, event) => {
                if matches!(event, Event::UserMessage { .. }) {
                    self.turn_began(&turn, &event).await;
                }
                self.emit(Some(&turn), &event);
            }
            Effect::Quiet { turn, since } => self.tell_quiet(&turn, since),
            Effect::Enqueue { row, first } => self.row_queued(row, first).await,
            Effect::Edit { turn, prompt } => self.row_edited(turn, prompt).await,
            Effect::Dequeue(turn) => self.row_gone(turn).await,
            Effect::Drop { turn, notice } => self.row_dropped(turn, notice).await,
            Effect::Finish {
                turn,
                status,
                stop_reason,
                usage,
                failure,
            } => {
                self.finish(&turn, status, stop_reason, usage, failure)
                    .await;
            }
        }
    }

    async fn turn_began(&mut self, turn: &TurnId, event: &Event) {
        let Event::UserMessage { text, .. } = event else {
            return;
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
        };
        // One step: after a crash the message is in the one place or the other.
        self.store("begin a turn", move |state| {
            state.atomically(|state| {
                state.remove_queued(&row.session_id, &row.turn_id)?;
                state.begin_turn(&row)
            })
        })
        .await;
    }

    /// A turn that is to be sent again is so for another broker too.
    async fn note_recovery(&mut self) {
        if self.machine.state() != State::Recovering {
            return;
        }
        let Some(turn) = self.machine.turn().cloned() else {
            return;
        };
        let session = self.row.session_id.clone();
        self.store("note a recovery", move |state| {
            state.set_turn_state(&session, &turn, super::adopt::RECOVERING)
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
        let mut events = Vec::new();
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
        } else if status == TurnStatus::Completed {
            self.budget.success();
        }
        events.push(Event::Status { status });
        events.push(Event::Done {
            status,
            stop_reason,
            usage,
        });
        self.forget_answers();
        self.owed.push(Owed {
            turn: turn.clone(),
            status,
            error: self.last_error.clone(),
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
            return false;
        }
        for mut owed in std::mem::take(&mut self.owed) {
            owed.events.clear();
            let (session, turn) = (self.row.session_id.clone(), owed.turn.clone());
            let (status, error) = (owed.status, owed.error.clone());
            let ended = self.shared.state.run(move |state| {
                state
                    .end_turn(&session, &turn, status, error.as_deref())
                    .map(drop)
            });
            if let Err(error) = ended.await {
                tracing::error!(session = %self.row.session_id, %error, "the end of a turn was not noted");
                self.owed.push(owed);
            }
        }
        self.owed.is_empty()
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

    /// Stages an event of the broker's own.
    pub(super) fn emit(&mut self, turn: Option<&TurnId>, event: &Event) {
        let Ok(raw) = serde_json::value::to_raw_value(event) else {
            return;
        };
        self.stage(turn, None, &raw, true);
    }

    /// Stages an event for the transcript and for the subscribers.
    pub(super) fn stage(
        &mut self,
        turn: Option<&TurnId>,
        origin: Option<Origin>,
        event: &RawValue,
        persisted: bool,
    ) {
        // One reading of the clock for all that is written in one go.
        let timestamp = self.moment.take().unwrap_or_else(clock::timestamp);
        let (sequence, envelope) = if persisted {
            self.transcript.stage(&timestamp, turn, origin, event)
        } else {
            self.transcript.transient(&timestamp, turn, event)
        };
        self.moment = Some(timestamp);
        let line = notification(rpc::EVENT, &envelope);
        self.outbox.push(Item::Event {
            sequence,
            persisted,
            line,
        });
        self.stale.get_or_insert_with(|| clock::now() + VIEW_LAG);
    }

    /// Writes what was staged, then publishes and acknowledges it. False: it
    /// could not be written, so nothing of it has happened for anybody else.
    pub(super) fn flush(&mut self) -> bool {
        if self.outbox.is_empty() {
            return true;
        }
        self.moment = None;
        let mut items = std::mem::take(&mut self.outbox);
        let written = self.transcript.commit();
        if let Err(error) = &written {
            tracing::error!(session = %self.row.session_id, %error, "the transcript was not written");
            let failure = unwritten("transcript", error, &error.hints());
            self.broken.get_or_insert(failure);
            self.dirty = true;
            // Cards stand in `state.db`.
            items.retain(|item| matches!(item, Item::Card(_)));
        }
        let head = self.transcript.last_sequence();
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

    /// A message that was not written down was never taken.
    pub(super) async fn refuse_turn(&mut self, turn: &TurnId, failure: Failure) -> rpc::RpcError {
        let error = rpc::RpcError::failed(&failure.kind, exit::FAILED, failure.message.clone());
        let hints = failure.detail.clone();
        self.give_up(failure).await;
        for owed in self.owed.iter_mut().filter(|owed| owed.turn == *turn) {
            owed.events.clear();
        }
        hints.into_iter().fold(error, rpc::RpcError::hint)
    }

    pub(super) async fn card_opened(&mut self, card: Card) {
        let stored = card.clone();
        self.store("keep a card", move |state| state.put_card(&stored))
            .await;
        let turn = card.turn_id.clone();
        self.emit(
            turn.as_ref(),
            &Event::CardOpened {
                card: Box::new(card.clone()),
            },
        );
        self.announce(&card, None);
    }

    /// Tells everybody how a card ended, the worker too.
    pub(super) async fn card_settled(
        &mut self,
        card: &Card,
        outcome: CardOutcome,
        answer: Option<&ade_protocol::card::Answer>,
    ) {
        // First for the transcript: a broker that comes in the middle asks
        // again at most, and no card stays open there for ever.
        let event = Event::CardResolved {
            card_id: card.card_id.clone(),
            resolution: outcome.clone(),
        };
        self.emit(card.turn_id.as_ref(), &event);
        self.announce(card, Some(outcome.clone()));
        self.flush();
        let (session, generation, id) = (
            card.session_id.clone(),
            card.generation,
            card.card_id.clone(),
        );
        self.store("drop a card", move |state| {
            state.remove_card(&session, generation, &id).map(drop)
        })
        .await;
        self.write_answer(card, &outcome, answer);
    }

    fn announce(&mut self, card: &Card, resolution: Option<CardOutcome>) {
        let note = ade_protocol::action::CardNotification {
            card: card.clone(),
            resolution,
        };
        let Ok(params) = serde_json::to_string(&note) else {
            return;
        };
        self.outbox
            .push(Item::Card(notification(rpc::CARD, params.as_bytes())));
        self.dirty = true;
    }

    /// Whether an answer has to wait until the worker has told which cards are
    /// open still. Past the bound it is refused as unknown.
    pub(super) fn awaits_legacy(&self, id: &RequestId) -> bool {
        self.deferred.len() < MAX_DEFERRED
            && self.legacy_cards.iter().any(|card| card.card_id == *id)
    }

    /// Something that clients see has changed.
    pub(super) fn touch(&mut self) {
        self.dirty = true;
    }

    /// Whether a card is open.
    pub(super) fn has_open_card(&self, id: &RequestId) -> bool {
        self.cards.open().iter().any(|card| card.card_id == *id)
    }

    fn answer_stops(&mut self) {
        // What was asked to end. A message that came since may have another
        // worker by now, and whoever asked for the stop is not kept by that.
        let ending = self.cancelled_starts > 0
            || self.departing.is_some()
            || (self.worker.as_ref()).is_some_and(|worker| worker.leaving.is_some())
            || self.machine.state() == State::Stopping;
        let at_work =
            self.worker.is_some() || self.starting.is_some() || self.machine.state() != State::Idle;
        if !ending && !at_work {
            // A chat that rests keeps no descriptor.
            self.transcript.rest();
        }
        if !ending {
            for reply in self.stop_replies.drain(..) {
                // Whoever asked may have left.
                let _ = reply.send(());
            }
        }
    }

    /// Last event of a generation, when it is the newest one in the transcript.
    pub(super) fn transcript_origin(&self, generation: ade_protocol::Generation) -> Seq {
        self.transcript.last_origin(generation)
    }

    /// Last event of the transcript.
    pub(super) fn last_sequence(&self) -> Seq {
        self.transcript.last_sequence()
    }

    fn publish_view(&mut self) {
        self.dirty = false;
        self.stale = None;
        let line = self.starting.as_ref().map(|starting| starting.place);
        let line = line.filter(|place| *place > 0);
        let info = SessionInfo {
            place: line,
            state: match (&self.row.failed_reason, self.machine.state()) {
                (_, State::Idle) if self.is_stopping() => State::Stopping.name().into(),
                (Some(_), State::Idle) => "failed".into(),
                (_, State::Starting | State::Recovering) if line.is_some() => "waiting".into(),
                (_, state) => state.name().into(),
            },
            quiet_since: self
                .machine
                .quiet_since()
                .map(|since| self.wall_clock(since)),
            turn_id: self.machine.turn().cloned(),
            queued: self.machine.queued(),
            generation: self.row.generation,
            worker_pid: self.worker.as_ref().map(|worker| worker.process.pid),
            host_pid: self.worker.as_ref().and_then(|worker| worker.host_pid),
            stop_stage: (self.worker.as_ref())
                .and_then(|worker| worker.stop_stage.clone())
                .or_else(|| Some(self.departing.as_ref()?.stage.clone())),
            session_file: self.row.session_file.clone(),
            lease_held: self.worker.as_ref().is_some_and(|worker| worker.lease_held),
            last_sequence: self.transcript.last_sequence(),
            last_event_at: self.transcript.last_event_at().map(str::to_owned),
            last_status: self.last_status,
            last_error: self
                .row
                .failed_reason
                .clone()
                .or_else(|| self.last_error.clone()),
            ..placeholder(&self.row)
        };
        let mut cards = self.legacy_cards.clone();
        cards.extend_from_slice(self.cards.open());
        let view = View { info, cards };
        self.view.send_replace(Arc::new(view));
    }
}

/// What a failed write means to a turn.
fn unwritten(kind: &str, error: &dyn std::error::Error, hints: &[String]) -> Failure {
    let mut message = error.to_string();
    if let Some(source) = error.source() {
        message = format!("{message}: {source}");
    }
    let failure = Failure::new(kind, ade_protocol::event::ErrorCategory::Unknown, message);
    if hints.is_empty() {
        failure
    } else {
        failure.with_detail(hints.join("\n"))
    }
}

/// What is known of a session from its row alone.
fn placeholder(row: &SessionRow) -> SessionInfo {
    SessionInfo {
        session_id: row.session_id.clone(),
        provider: row.provider.clone(),
        lane: row.lane.clone(),
        model: row.model.clone(),
        permission: row.permission,
        title: row.title.clone(),
        created_at: row.created_at.clone(),
        state: State::Idle.name().into(),
        place: None,
        quiet_since: None,
        turn_id: None,
        queued: 0,
        generation: row.generation,
        worker_pid: None,
        host_pid: None,
        stop_stage: None,
        session_file: row.session_file.clone(),
        lease_held: false,
        last_sequence: Seq(0),
        last_event_at: None,
        last_status: None,
        last_error: None,
        cpu_percent: None,
        memory_bytes: None,
    }
}

/// A notification line around parameters that are JSON text already.
fn notification(method: &str, params: &[u8]) -> Bytes {
    let head = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":");
    let mut line = Vec::with_capacity(head.len() + params.len() + 1);
    line.extend_from_slice(head.as_bytes());
    line.extend_from_slice(params);
    line.push(b'}');
    Bytes::from(line)
}

/// What a worker has for its session.
enum News {
    /// So many frames were taken; none: the link has ended.
    Frames(usize),
    /// The process has ended.
    Exited,
    /// It has connected again.
    Reconnected(Box<Connection>),
    /// It is idle, and another session wants its place.
    WantedBack,
}

/// Waits for the worker. Dropping the future loses nothing.
async fn from_worker(worker: Option<&mut Worker>, batch: &mut Vec<LinkIn>) -> News {
    let Some(worker) = worker else {
        return std::future::pending().await;
    };
    let Worker {
        link,
        linked,
        process,
        reconnects,
        place,
        idle,
        leaving,
        ..
    } = worker;
    tokio::select! {
        // Frames first: what a worker said before it ended is heard.
        biased;
        count = link.incoming.recv_many(batch, BATCH), if *linked => News::Frames(count),
        Some(connection) = reconnects.recv() => News::Reconnected(Box::new(connection)),
        // An error means that the reaper is gone, and so is the broker.
        _ = process.exit.wait_for(Option::is_some) => News::Exited,
        () = place.wanted_back(), if *idle && leaving.is_none() => News::WantedBack,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
