//! The actor: its state, its loop, and the effects of its turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ade_protocol::card::Withdrawal;
use ade_protocol::event::{Event, TurnStatus};
use ade_protocol::{Generation, RequestId, Seq, TurnId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::acquire::Starting;
use super::depart::{Departing, Leave};
use super::legacy::LegacyCards;
use super::missing::tell_missing;
use super::record::{Owed, RETRY};
use super::steers::{Lifted, Taken};
use super::view::placeholder;
use super::worker::{News, Worker, from_worker};
use super::{Command, Left, View};
use crate::budget::Budget;
use crate::cards::Cards;
use crate::clock;
use crate::hub::Outgoing;
use crate::shared::Shared;
use crate::state::{SessionRow, SteerRow};
use crate::transcript::{Transcript, TranscriptError};
use crate::turn::{Effect, Failure, Input, Machine, Mono, State};

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
    /// Cards of a broker that is gone, until the worker has told which are open
    /// still.
    pub(super) legacy_cards: LegacyCards,
    /// Settled cards that are kept on disk, until the turn ends; at most
    /// [`super::cards::MAX_ANSWERS`].
    pub(super) kept: VecDeque<(Generation, RequestId)>,
    /// Answers to them that came meanwhile; at most [`super::cards::MAX_DEFERRED`].
    pub(super) deferred: Vec<Command>,
    pub(super) last_status: Option<TurnStatus>,
    pub(super) last_error: Option<String>,
    /// Messages for a turn whose worker went away before it took them.
    pub(super) lifted: Vec<Lifted>,
    /// Messages for a turn of which the last broker had not heard what became of
    /// them, until the worker has told.
    pub(super) left_steers: Vec<SteerRow>,
    /// Messages for the running turn that its worker took while nothing of the turn
    /// was seen; at most [`super::steers::MAX_TAKEN`].
    pub(super) taken_steers: Vec<Taken>,
    /// Messages for this turn that its agent had not read when it ended, until that
    /// is told.
    pub(super) unread: Option<(TurnId, Vec<String>)>,
    rx: mpsc::Receiver<Command>,
    pub(super) transcript: Transcript,
    pub(super) outbox: Outgoing,
    /// The newest message of the user that was staged or written, and its number.
    pub(super) said: Option<(TurnId, Seq)>,
    /// A message that is being refused: the transcript does not hold it, nor is it to
    /// hold its end.
    pub(super) refused: Option<TurnId>,
    /// Ends of turns that are not on disk yet.
    pub(super) owed: Vec<Owed>,
    /// When they are tried again.
    pub(super) retry_at: Instant,
    /// What could not be written, until the turn was given up for it.
    pub(super) broken: Option<Failure>,
    pub(super) view: watch::Sender<Arc<View>>,
    pub(super) dirty: bool,
    /// When the figures of the view (last event) are published at the latest.
    pub(super) stale: Option<Instant>,
    /// The time that everything carries which is staged together.
    pub(super) moment: Option<String>,
    born: Instant,
    pub(super) idle_since: Instant,
    /// Nobody's silence is judged before.
    excused: Option<Instant>,
}

impl Actor {
    pub(super) fn new(
        shared: Arc<Shared>,
        row: SessionRow,
        tx: mpsc::WeakSender<Command>,
        rx: mpsc::Receiver<Command>,
        Left {
            legacy,
            owed,
            deaths,
        }: Left,
    ) -> Result<(Self, watch::Receiver<Arc<View>>), TranscriptError> {
        let path = shared.home.transcript(&row.session_id);
        let mut transcript = Transcript::open(&path, row.session_id.clone(), row.last_sequence)?;
        // Before anybody reads it: nobody takes what is left for all there was.
        if let Err(error) = tell_missing(&mut transcript) {
            tracing::error!(session = %row.session_id, %error, "what is missing was not told");
        }
        transcript.rest();
        shared
            .hub
            .begin(&row.session_id, transcript.last_sequence());
        let first_event = row.first_event_ms.map(Duration::from_millis);
        let rules = shared.config.turn_rules(&row.provider, first_event);
        let (last_status, last_error) = match owed.last() {
            Some(owed) => (Some(owed.status), owed.error.clone()),
            None => (row.last_status, row.last_error.clone()),
        };
        let now = clock::now();
        let mut actor = Self {
            machine: Machine::new(rules),
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
            legacy_cards: LegacyCards::default(),
            kept: VecDeque::new(),
            deferred: Vec::new(),
            last_status,
            last_error,
            lifted: Vec::new(),
            unread: None,
            taken_steers: Vec::new(),
            left_steers: Vec::new(),
            rx,
            transcript,
            outbox: Outgoing::default(),
            said: None,
            refused: None,
            owed,
            retry_at: now + RETRY,
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
            excused: None,
            shared,
            row,
        };
        actor.budget.recall(actor.budget_now(), &deaths);
        if let Some(legacy) = legacy {
            actor.take_over(legacy, rules);
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
        let mut batch = Vec::new();
        self.load_queue().await;
        self.load_cleared().await;
        self.load_steers().await;
        // What a takeover began with.
        self.tell_settled().await;
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
            if self.machine.state() != State::Cancelling {
                self.settle_answered().await;
            }
            self.settle_lifted().await;
            self.flush();
            self.settle_taken().await;
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

    /// When the silence of the worker, or of whoever is to answer a card, is judged
    /// next.
    fn judged_at(&self) -> Option<Instant> {
        let turn = self.machine.deadline().map(|at| self.born + at);
        let leaving = self.worker.as_ref().and_then(|worker| worker.leaving);
        let card = self.cards.deadline().map(|at| self.born + at);
        let at = [turn, leaving, card].into_iter().flatten().min()?;
        Some(self.excused.map_or(at, |until| at.max(until)))
    }

    /// Whether that is due.
    pub(super) fn judges(&self) -> bool {
        self.judged_at().is_some_and(|at| clock::now() >= at)
    }

    /// Whether nothing is to be judged now: this process did not run when it was
    /// due, nor did perhaps the others. They have a moment, once.
    fn excuses(&mut self) -> bool {
        let (at, now) = (self.judged_at(), clock::now());
        let late = at.is_some_and(|at| now.saturating_duration_since(at) > clock::LATE);
        let excused = late && at != self.excused;
        if excused {
            self.excused = Some(now + clock::GRACE);
        }
        excused
    }

    fn next_deadline(&self) -> Option<Instant> {
        let idle = (self.machine.state() == State::Idle && self.has_idle_worker())
            .then(|| self.idle_since + self.shared.config.timing(&self.row.provider).idle_put_away);
        let owed = (!self.owed.is_empty()).then_some(self.retry_at);
        [self.judged_at(), idle, owed, self.stale]
            .into_iter()
            .flatten()
            .min()
    }

    fn has_idle_worker(&self) -> bool {
        self.worker
            .as_ref()
            .is_some_and(|worker| worker.leaving.is_none())
    }

    pub(super) async fn deadline(&mut self) {
        if self.stale.is_some_and(|at| clock::now() >= at) {
            // The loop publishes the view, and comes back for the rest.
        } else if self.judges() {
            if !self.excuses() {
                self.hear_first().await;
                self.judge().await;
            }
        } else if !self.owed.is_empty() && clock::now() >= self.retry_at {
            self.settle_owed().await;
        } else if self.machine.state() == State::Idle {
            if self.shared.hub.watches(&self.row.session_id) {
                // Somebody is there: it is looked at again after the same time.
                self.idle_since = clock::now();
            } else {
                self.put_away("nobody needed it for long").await;
            }
        }
    }

    /// Does what is due when nothing was said until now.
    async fn judge(&mut self) {
        let now = self.now();
        let leaving = self.worker.as_ref().and_then(|worker| worker.leaving);
        if !self.judges() {
            // It was not silent.
        } else if leaving.is_some_and(|until| clock::now() >= until) {
            self.dismiss();
        } else if self.cards.deadline().is_some_and(|at| now >= at) {
            self.expire_cards().await;
        } else {
            self.input(Input::Tick).await;
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

    pub(super) async fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Acquire => self.acquire(),
            Effect::CancelStart => self.give_up_start(),
            Effect::Send {
                turn,
                prompt,
                again,
            } => {
                self.write_message(&turn, &prompt, again).await;
            }
            Effect::NoteEnd(turn) => self.note_end(turn).await,
            Effect::Abort(turn) => self.write_abort(&turn, false),
            Effect::AbortSilent(turn) => self.write_abort(&turn, true),
            Effect::Arm { rotate, again } => self.arm(rotate, again).await,
            Effect::Disarm(turn) => self.disarm(turn).await,
            Effect::Poison => self.dismiss(),
            Effect::TellSteers(turn) => self.tell_let_go(&turn).await,
            Effect::Dispose => self.ask_to_leave(),
            Effect::Withdraw(why) => {
                self.open_legacy_cards(|_| true);
                let why = match why {
                    // A chat that takes messages again has only been stopped.
                    Withdrawal::ShuttingDown if !self.closed => Withdrawal::Stopped,
                    why => why,
                };
                for (card, outcome) in self.cards.withdraw_all(why) {
                    self.card_settled(&card, outcome, None).await;
                }
            }
            Effect::Emit(turn, event) => {
                let begins = matches!(event, Event::UserMessage { .. });
                if begins && !self.turn_began(&turn, &event).await {
                    // A message of which `state.db` knows nothing would have no
                    // end if this broker died now.
                    return;
                }
                let sequence = self.emit(Some(&turn), &event);
                if begins {
                    self.said = Some((turn, sequence));
                }
            }
            Effect::Quiet { turn, since } => self.tell_quiet(&turn, since),
            Effect::Enqueue { row, first } => self.row_queued(row, first).await,
            Effect::Edit { turn, prompt } => self.row_edited(turn, prompt).await,
            Effect::Clear(turn) => self.row_cleared(turn).await,
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
                self.forget_answers().await;
            }
        }
    }

    fn answer_stops(&mut self) {
        // What was asked to end. A message that came since may have another
        // worker by now, and whoever asked for the stop is not kept by that.
        let ending = self.cancelled_starts > 0
            || (self.departing.as_ref()).is_some_and(|departing| departing.stuck.is_none())
            || (self.worker.as_ref()).is_some_and(|worker| worker.leaving.is_some())
            || self.machine.state() == State::Stopping;
        if !ending && self.worker.is_none() && self.outbox.is_empty() {
            // A chat that rests, or waits for a worker, keeps no descriptor: any
            // number of them may.
            self.transcript.rest();
        }
        if !ending {
            for reply in self.stop_replies.drain(..) {
                // Whoever asked may have left.
                let _ = reply.send(());
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
