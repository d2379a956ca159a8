//! The actor's worker: having one, telling it things, sending it away.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ade_leases::process::{self, ProcessIdentity, Signal, Target};
use ade_protocol::card::{Answer, Card, CardOutcome, Withdrawal};
use ade_protocol::frame::{
    Abort, Ack, Attach, Compact, Empty, FromWorker, Lifecycle, Ready, Recovery, Request, Send,
    SetModel, SetThinking, ToWorker, UiResponse, code,
};
use ade_protocol::{Generation, RequestId, Seq, TurnId, WorkerId};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::adopt::{self, Adoption, Resumed};
use super::escort::{Escort, Process};
use super::replay;
use super::start::{self, Plan, Started};
use super::{Ask, Command, Legacy, LegacyTurn, Reply};
use crate::budget::Start;
use crate::clock;
use crate::config::RecoveryKind;
use crate::link::{Connection, Link, LinkIn};
use crate::pool::Place;
use crate::spawn::Exit;
use crate::state::Flags;
use crate::turn::{Adopted, Ending, Failure, Input, Machine, State, Timing};
use ade_protocol::event::{ErrorCategory, Event, NoticeLevel};
use ade_protocol::rpc::RpcError;

/// Bounds of requests to a worker, from the contract's table; the worker's own
/// bound to its host is shorter by the way back.
mod bound {
    use std::time::Duration;

    pub(super) const STEER: Duration = Duration::from_secs(16);
    pub(super) const SET_MODEL: Duration = Duration::from_secs(31);
    pub(super) const SET_THINKING: Duration = Duration::from_secs(16);
}

/// Answers that are kept: as many as cards may be open.
const MAX_ANSWERS: usize = crate::cards::MAX_OPEN;

/// A worker in use.
pub(super) struct Worker {
    pub(super) generation: Generation,
    pub(super) process: Process,
    pub(super) link: Link,
    /// False between the loss of the connection and its return.
    pub(super) linked: bool,
    pub(super) reconnects: mpsc::Receiver<Connection>,
    pub(super) host_pid: Option<i32>,
    pub(super) lease_held: bool,
    pub(super) can_steer: bool,
    /// Tokens that fit into its model's context, where it said so.
    window: Option<u64>,
    /// It was asked to end; until then it is listened to.
    pub(super) leaving: Option<Instant>,
    /// Where it stands on its stop ladder.
    pub(super) stop_stage: Option<String>,
    /// Whether it goes on with another message after a stop.
    pub(super) can_continue: bool,
    /// What the worker said of its host's end, for when it ends itself.
    pub(super) told: Option<Failure>,
    pub(super) pending: HashMap<RequestId, Pending>,
    /// Answers to cards of the running turn. A worker that comes back asks
    /// again when one did not reach it. At most [`MAX_ANSWERS`].
    answers: VecDeque<UiResponse>,
    /// Last event that was taken from the link.
    pub(super) taken: Seq,
    acked: Seq,
    pub(super) place: Place,
    /// Whether the pool knows it as idle.
    pub(super) idle: bool,
}

/// What a response is for.
pub(super) enum Pending {
    /// The end of this turn.
    Send(TurnId),
    /// A message into the running turn.
    Steer {
        prompt: String,
        reply: Reply<ade_protocol::action::Steered>,
    },
    /// Anything that only succeeds or fails.
    Plain {
        ask: Option<Ask>,
        reply: Option<Reply<()>>,
    },
}

/// A start under way.
pub(super) struct Starting {
    pub(super) epoch: u64,
    /// Where it stands in the line for a worker; 0: in front of it.
    pub(super) place: usize,
    /// Whether the chat was told that it waits.
    told: bool,
    cancel: CancellationToken,
    /// The worker of a broker that is gone is taken over.
    takeover: bool,
}

/// How a worker is seen off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// It is asked to end first.
    Ask,
    /// It was asked before.
    Asked,
    /// It has ended.
    Ended,
}

/// A worker on its way out.
pub(super) struct Departing {
    worker: WorkerId,
    identity: ProcessIdentity,
    exit: watch::Receiver<Option<Exit>>,
    pub(super) stage: String,
    pub(super) gone: watch::Receiver<bool>,
}

impl Departing {
    pub(super) fn is_alive(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// A worker that is told again jumps a rung of its ladder ahead.
    fn hurry(&self) {
        let target = Target::Process(self.identity.clone());
        if let Err(error) = process::signal(&target, Signal::SIGTERM) {
            tracing::warn!(%error, worker = %self.worker, "a worker was not hurried");
        }
    }
}

impl Worker {
    pub(super) fn new(started: Started) -> Self {
        Self {
            generation: started.generation,
            process: started.process,
            link: started.link,
            linked: true,
            reconnects: started.reconnects,
            host_pid: started.host_pid,
            lease_held: started.lease_held,
            can_steer: started.ready.capabilities.steer,
            window: started
                .ready
                .current_model
                .as_ref()
                .and_then(|model| model.context_window),
            leaving: None,
            stop_stage: None,
            can_continue: started.ready.capabilities.interrupt_and_continue,
            told: None,
            pending: HashMap::new(),
            answers: VecDeque::new(),
            taken: Seq(0),
            acked: Seq(0),
            place: started.place,
            idle: false,
        }
    }

    /// Tells the worker what is on disk. It may miss an `ack`: the next one
    /// says more, and after a reconnect `attach` says it again.
    pub(super) fn acknowledge(&mut self) {
        if self.linked && self.taken > self.acked {
            let ack = ToWorker::Ack(Ack { seq: self.taken });
            if self.link.send(&ack) {
                self.acked = self.taken;
            }
        }
    }
}

impl Actor {
    /// Gets a worker, unless one is being had already.
    pub(super) fn acquire(&mut self) {
        // A cancelled start is waited for: two generations never overlap. When
        // it has ended, this is called again.
        if self.starting.is_some() || self.cancelled_starts > 0 {
            return;
        }
        if self
            .worker
            .as_ref()
            .is_some_and(|worker| worker.leaving.is_some())
        {
            self.dismiss();
        }
        self.epoch += 1;
        let cancel = CancellationToken::new();
        self.starting = Some(Starting {
            epoch: self.epoch,
            place: 0,
            told: false,
            cancel: cancel.clone(),
            takeover: false,
        });
        let (epoch, tx) = (self.epoch, self.tx.clone());
        let start = self.may_start_now();
        let plan = Plan {
            shared: std::sync::Arc::clone(&self.shared),
            row: self.row.clone(),
            pause: *start.as_ref().unwrap_or(&Duration::ZERO),
            departing: self
                .departing
                .as_ref()
                .map(|departing| departing.gone.clone()),
            line: start::Line {
                tx: tx.clone(),
                epoch,
            },
            cancel,
        };
        tokio::spawn(async move {
            let outcome = match start {
                Err(failure) => Err(failure),
                Ok(_) => start::run(plan).await,
            };
            report(&tx, Command::Started { epoch, outcome }).await;
        });
    }

    /// The pause before a start, or why there is none: by what this session's
    /// workers did, and by what starts of this kind of agent did.
    fn may_start_now(&self) -> Result<Duration, Failure> {
        let own = match self.budget.start(self.now()) {
            Start::After(pause) => pause,
            Start::Refused { deaths, window } => {
                return Err(budget_used_up(deaths, window, self.last_death.as_ref()));
            }
        };
        match self.shared.pool.may_start(&self.row.provider) {
            Start::After(pause) => Ok(own.max(pause)),
            Start::Refused { deaths, window } => {
                Err(kind_used_up(&self.row.provider, deaths, window))
            }
        }
    }

    /// A start waits in the line for a worker, or does not any more.
    pub(super) fn in_line(&mut self, epoch: u64, place: usize) {
        let starting = self.starting.as_mut();
        let Some(starting) = starting.filter(|starting| starting.epoch == epoch) else {
            return;
        };
        starting.place = place;
        // Once for each start: clients see where it stands in its state. A wait
        // because many start at once is over in a moment and not worth a word.
        let full = place > 0 && self.shared.pool.is_full(&self.row.provider);
        if full && !std::mem::replace(&mut starting.told, true) {
            let message = format!("All workers are in use; place {place} in the line for one.");
            let turn = self.machine.turn().cloned();
            let level = NoticeLevel::Info;
            self.emit(turn.as_ref(), &Event::Notice { level, message });
        }
        self.touch();
    }

    /// Tells the pool whether the worker has something to do.
    pub(super) fn note_idle(&mut self) {
        let idle = self.machine.state() == State::Idle;
        if let Some(worker) = &mut self.worker
            && worker.idle != idle
        {
            worker.idle = idle;
            if idle {
                worker.place.idle();
            } else {
                worker.place.busy();
            }
        }
    }

    /// Goes on with what a broker that is gone left: its turn, and its worker
    /// where that lives.
    pub(super) fn take_over(&mut self, legacy: Legacy, timing: Timing) {
        let Legacy {
            worker,
            turn,
            cards,
        } = legacy;
        let living = worker.as_ref().map(|(entry, _)| entry.generation);
        if let Some(turn) = &turn {
            if !turn.begun {
                for event in super::beginning(&turn.row.prompt) {
                    self.emit(Some(&turn.row.turn_id), &event);
                }
            }
            let message = (turn.row.turn_id.clone(), turn.row.prompt.clone());
            let legacy = legacy_turn(turn, living, timing.first_event);
            self.machine = match living {
                Some(_) => Machine::attaching(timing, message, legacy),
                None => Machine::resuming(timing, message, legacy),
            };
        }
        let Some((entry, identity)) = worker else {
            self.acquire();
            return;
        };
        let taken = self.transcript_origin(entry.generation);
        let place = self
            .shared
            .pool
            .take(&self.row.session_id, &self.row.provider);
        let connections = self
            .shared
            .registry
            .expect_hash(&entry.worker_id, entry.token_hash.clone());
        self.shared
            .registry
            .set_pid(&entry.worker_id, identity.pid.get());
        self.legacy_cards = cards;
        self.epoch += 1;
        let cancel = CancellationToken::new();
        self.starting = Some(Starting {
            epoch: self.epoch,
            place: 0,
            told: false,
            cancel: cancel.clone(),
            takeover: true,
        });
        let (epoch, tx) = (self.epoch, self.tx.clone());
        let adoption = Adoption {
            shared: Arc::clone(&self.shared),
            row: self.row.clone(),
            entry,
            identity,
            connections,
            taken,
            place,
            cancel,
        };
        tokio::spawn(async move {
            let outcome = adopt::run(adoption).await;
            report(&tx, Command::Started { epoch, outcome }).await;
        });
    }

    /// A worker that was taken over has told where it stands.
    async fn resumed(&mut self, generation: Generation, resumed: &Resumed) {
        if let Some(worker) = &mut self.worker {
            worker.taken = resumed.taken;
            worker.acked = resumed.taken;
        }
        self.settle_legacy_cards(&resumed.open_cards).await;
        let turn = self.machine.turn().cloned();
        if resumed.running.is_some() && resumed.running != turn {
            self.lost("the worker runs a turn that nobody here knows")
                .await;
            return;
        }
        if let (Some(turn), Some(worker)) = (&turn, &mut self.worker) {
            worker
                .pending
                .insert(send_id(turn), Pending::Send(turn.clone()));
        }
        let adopted = if turn.is_some() && resumed.last == turn {
            Adopted::Has {
                seen: resumed.seen,
                // Those that nobody here knows yet are told next.
                card: !resumed.open_cards.is_empty(),
            }
        } else {
            Adopted::NeverSent
        };
        self.input(Input::Adopted(generation, adopted)).await;
    }

    /// Cards that the worker still blocks on stay open under their ids; the
    /// others were settled while nobody listened.
    async fn settle_legacy_cards(&mut self, open: &BTreeSet<RequestId>) {
        for card in std::mem::take(&mut self.legacy_cards) {
            if open.contains(&card.card_id) {
                self.cards.add(card);
                self.touch();
            } else {
                let outcome = CardOutcome::Withdrawn {
                    why: Withdrawal::WorkerGone,
                };
                self.card_settled(&card, outcome, None).await;
            }
        }
        for command in std::mem::take(&mut self.deferred) {
            // Boxed: an answer is a command like this one's cause.
            Box::pin(self.command(command)).await;
        }
    }

    /// A start has ended.
    pub(super) async fn started(&mut self, epoch: u64, outcome: Result<Box<Started>, Failure>) {
        if self
            .starting
            .as_ref()
            .is_none_or(|starting| starting.epoch != epoch)
        {
            self.cancelled_starts = self.cancelled_starts.saturating_sub(1);
            // A takeover that was cancelled leaves answers to its worker's cards.
            self.settle_legacy_cards(&BTreeSet::new()).await;
            // It was cancelled, but had succeeded in the same moment.
            if let Ok(started) = outcome {
                self.see_off(Worker::new(*started), Leave::Ask);
            }
            self.acquire_if_wanted();
            return;
        }
        let takeover = self.starting.take().is_some_and(|start| start.takeover);
        match outcome {
            Ok(started) => {
                let generation = started.generation;
                let mut started = *started;
                let resumed = started.resumed.take();
                self.shared.pool.start_worked(&self.row.provider);
                self.adopt(started).await;
                match resumed {
                    Some(resumed) => self.resumed(generation, &resumed).await,
                    None => self.input(Input::WorkerReady(generation)).await,
                }
            }
            Err(failure) if takeover => {
                self.settle_legacy_cards(&BTreeSet::new()).await;
                self.input(Input::TakeoverFailed(failure)).await;
            }
            Err(failure) => {
                if failure.category == ErrorCategory::Exited
                    && ![BUDGET, KIND_BUDGET].contains(&failure.kind.as_str())
                {
                    self.shared.pool.start_failed(&self.row.provider);
                    self.death(&failure);
                }
                self.note_generation().await;
                self.note_budget(&failure).await;
                self.input(Input::WorkerFailed(failure)).await;
            }
        }
    }

    /// A turn that waits for a worker while none is being had gets one.
    fn acquire_if_wanted(&mut self) {
        if matches!(self.machine.state(), State::Starting | State::Recovering) {
            self.acquire();
        }
    }

    /// A worker, or its host, ended that nobody had told to.
    pub(super) fn death(&mut self, failure: &Failure) {
        let now = self.now();
        self.budget.death(now);
        self.last_death = Some(failure.clone());
    }

    /// Workers that never got ready have counted too.
    async fn note_generation(&mut self) {
        let session = self.row.session_id.clone();
        let row = self.shared.state.run(move |state| state.session(&session));
        if let Ok(Some(row)) = row.await {
            self.row.generation = row.generation;
        }
    }

    async fn note_budget(&mut self, failure: &Failure) {
        if failure.kind != BUDGET {
            return;
        }
        self.row.failed_reason = Some(failure.message.clone());
        let (session, reason) = (self.row.session_id.clone(), failure.message.clone());
        self.store("note a failure", move |state| {
            state.set_failed(&session, Some(&reason))
        })
        .await;
    }

    async fn adopt(&mut self, started: Started) {
        let ready = started.ready.clone();
        // Of one that is taken over the same was told when it started.
        let known = started.resumed.is_some();
        self.row.generation = started.generation;
        self.row.session_file = ready.session_file.clone().or(self.row.session_file.take());
        self.row.provider_session_id = ready
            .session_id
            .clone()
            .or(self.row.provider_session_id.take());
        if let Some(model) = &ready.current_model {
            self.row.model = Some(model.reference());
        }
        self.worker = Some(Worker::new(started));
        self.touch();
        // It was started as a fresh agent, if that was to be: once.
        self.row.flags.rotate &= known;
        let row = self.row.clone();
        self.store("note the session file", move |state| {
            let (file, id) = (
                row.session_file.as_deref(),
                row.provider_session_id.as_deref(),
            );
            state.atomically(|state| {
                if !known {
                    state.clear_rotate(&row.session_id)?;
                }
                state.set_session_file(&row.session_id, file, id)
            })
        })
        .await;
        if !known {
            self.tell_what_is_missing(&ready);
        }
    }

    /// A worker can be ready and lack something that the user counts on.
    fn tell_what_is_missing(&mut self, ready: &Ready) {
        let withheld = ready.ungateable_tools.iter().map(|tool| {
            format!("The tool {tool} was withheld: this agent's version cannot gate it.")
        });
        let extensions = ready
            .extensions_error
            .iter()
            .map(|error| format!("The agent runs without some of its extensions: {error}"));
        for message in withheld.chain(extensions) {
            let level = NoticeLevel::Warn;
            self.emit(None, &Event::Notice { level, message });
        }
    }

    /// Puts on disk what the next worker and the next send must do once, because
    /// this worker is not to be trusted. They do it also when this broker dies
    /// before.
    pub(super) async fn arm_flags(&mut self, resend: bool) {
        let flags = Flags {
            rotate: self.shared.config.recovery(&self.row.provider) == RecoveryKind::Replay,
            force_expire: resend,
        };
        self.row.flags.rotate |= flags.rotate;
        self.row.flags.force_expire |= flags.force_expire;
        if flags != Flags::default() {
            let session = self.row.session_id.clone();
            self.store("set flags", move |state| state.set_flags(&session, flags))
                .await;
        }
    }

    /// What a fresh agent must be told of the chat, where there is something.
    async fn replay(&mut self, next: &TurnId) -> Option<String> {
        let kind = self.shared.config.recovery(&self.row.provider);
        let file = self.row.session_file.as_ref();
        let written = file.is_some_and(|file| std::path::Path::new(file).exists());
        if kind != RecoveryKind::Replay || !self.row.has_history || written {
            return None;
        }
        // What was staged is part of it.
        self.flush();
        let window = self.worker.as_ref().and_then(|worker| worker.window);
        let path = self.shared.home.transcript(&self.row.session_id);
        let (next, bound) = (next.clone(), replay::bound(window));
        let told = tokio::task::spawn_blocking(move || replay::read(&path, &next, bound));
        match told.await {
            Ok(Ok(replay)) => replay,
            Ok(Err(error)) => {
                tracing::error!(session = %self.row.session_id, %error, "nothing was replayed");
                None
            }
            Err(_) => None,
        }
    }

    pub(super) async fn write_message(&mut self, turn: &TurnId, prompt: &str, again: bool) {
        let replay = self.replay(turn).await;
        let force = again || self.row.flags.force_expire;
        let (session, id, generation) = (
            self.row.session_id.clone(),
            turn.clone(),
            self.row.generation,
        );
        let sends = if again { 2 } else { 1 };
        // On disk before it is sent: a new broker must never send it again, nor
        // end a run of it a second time.
        let armed = crate::clock::monotonic_ms();
        let noted = self
            .store("note a send", move |state| {
                state.atomically(|state| {
                    state.clear_force_expire(&session)?;
                    state.update_turn(&session, &id, generation, sends, "sent")?;
                    state.set_armed(&session, &id, armed)
                })
            })
            .await;
        if !noted {
            return;
        }
        self.row.flags.force_expire = false;
        let recovery = (force || replay.is_some()).then_some(Recovery {
            force_expire_active_run: force,
            replay,
        });
        let body = Send {
            turn_id: turn.clone(),
            prompt: prompt.to_owned(),
            recovery,
        };
        // The turn names the request, so that another broker knows what the
        // response to it is about.
        let id = send_id(turn);
        let request = named(&id, body);
        if self.tell(&ToWorker::Send(request), id, Pending::Send(turn.clone())) {
            return;
        }
        // Boxed: giving a worker up is an input, and an input may write.
        Box::pin(self.lost("the worker does not read what it is told")).await;
    }

    pub(super) fn write_abort(&mut self, turn: &TurnId) {
        let request = Request::new(Abort {
            turn_id: turn.clone(),
        });
        let id = request.request_id.clone();
        // The machine has its own deadline for the answer.
        let _ = self.tell(
            &ToWorker::Abort(request),
            id,
            Pending::Plain {
                ask: None,
                reply: None,
            },
        );
    }

    /// Passes a card's end to the worker: an answer, or a decline with the
    /// reason. Nothing reaches it twice.
    pub(super) fn write_answer(
        &mut self,
        card: &Card,
        outcome: &CardOutcome,
        answer: Option<&Answer>,
    ) {
        let settled_below = matches!(
            outcome,
            CardOutcome::Withdrawn {
                why: Withdrawal::Cancelled | Withdrawal::WorkerGone
            }
        );
        let Some(worker) = &mut self.worker else {
            return;
        };
        if settled_below || worker.generation != card.generation {
            return;
        }
        let error = match (outcome, answer) {
            (_, Some(_)) => None,
            (CardOutcome::Withdrawn { why }, None) => Some(crate::cards::why_text(*why).to_owned()),
            (_, None) => Some("declined".to_owned()),
        };
        let (ok, value) = match answer {
            Some(answer) => (answer.ok, answer.value.clone()),
            None => (false, None),
        };
        let frame = UiResponse {
            request_id: card.card_id.clone(),
            ok,
            value,
            error,
        };
        if worker.answers.len() == MAX_ANSWERS {
            worker.answers.pop_front();
        }
        worker.answers.push_back(frame.clone());
        if !worker.link.send(&ToWorker::UiResponse(frame)) {
            tracing::warn!(session = %self.row.session_id, "an answer did not reach the worker");
        }
    }

    /// Says an answer again to a worker that asks again. False: there was none.
    pub(super) fn answer_again(&self, card: &RequestId) -> bool {
        let Some(worker) = &self.worker else {
            return false;
        };
        let answer = worker.answers.iter().find(|said| said.request_id == *card);
        // The first of two is the one that counts there too.
        answer.is_some_and(|answer| worker.link.send(&ToWorker::UiResponse(answer.clone())))
    }

    /// No card of a turn that has ended asks again.
    pub(super) fn forget_answers(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.answers.clear();
        }
    }

    /// Writes a request whose response is awaited. False when the worker does
    /// not take it.
    #[must_use]
    fn tell(&mut self, frame: &ToWorker, id: RequestId, pending: Pending) -> bool {
        let Some(worker) = &mut self.worker else {
            return false;
        };
        if !worker.link.send(frame) {
            return false;
        }
        worker.pending.insert(id, pending);
        true
    }

    /// Puts a message into the running turn, or queues it.
    pub(super) fn steer_worker(
        &mut self,
        prompt: String,
        reply: Reply<ade_protocol::action::Steered>,
    ) {
        let request = Request::new(ade_protocol::frame::Prompt {
            prompt: prompt.clone(),
        });
        let id = request.request_id.clone();
        let frame = ToWorker::Steer(request);
        if self
            .worker
            .as_ref()
            .is_some_and(|worker| worker.link.send(&frame))
        {
            self.watch_request(id.clone(), bound::STEER);
            if let Some(worker) = &mut self.worker {
                worker.pending.insert(id, Pending::Steer { prompt, reply });
            }
            return;
        }
        let error = RpcError::failed(
            code::NOT_READY,
            ade_protocol::exit::FAILED,
            "the worker does not take messages now",
        );
        // Whoever asked may have left.
        let _ = reply.send(Err(error));
    }

    /// Passes a request through.
    pub(super) fn ask_worker(&mut self, ask: Ask, reply: Reply<()>) {
        let id = RequestId::generate();
        let (frame, within) = match &ask {
            Ask::Model(model) => {
                let model_ref = model.clone();
                let request = named(&id, SetModel { model_ref });
                (ToWorker::SetModel(request), Some(bound::SET_MODEL))
            }
            Ask::Thinking(level) => {
                let thinking_level = level.clone();
                let request = named(&id, SetThinking { thinking_level });
                (ToWorker::SetThinking(request), Some(bound::SET_THINKING))
            }
            Ask::Compact(instructions) => {
                let custom_instructions = instructions.clone();
                let request = named(
                    &id,
                    Compact {
                        custom_instructions,
                    },
                );
                (ToWorker::Compact(request), None)
            }
        };
        let sent = self
            .worker
            .as_ref()
            .is_some_and(|worker| worker.link.send(&frame));
        if !sent {
            let error = RpcError::failed(
                code::NOT_READY,
                ade_protocol::exit::FAILED,
                "the chat has no running worker",
            )
            .hint("send a message first");
            let _ = reply.send(Err(error));
            return;
        }
        if let Some(within) = within {
            self.watch_request(id.clone(), within);
        }
        if let Some(worker) = &mut self.worker {
            worker.pending.insert(
                id,
                Pending::Plain {
                    ask: Some(ask),
                    reply: Some(reply),
                },
            );
        }
    }

    fn watch_request(&self, request: RequestId, within: Duration) {
        let Some(generation) = self.worker.as_ref().map(|worker| worker.generation) else {
            return;
        };
        let tx = self.tx.clone();
        tokio::spawn(async move {
            tokio::time::sleep(within).await;
            report(
                &tx,
                Command::Overdue {
                    generation,
                    request,
                },
            )
            .await;
        });
    }

    /// A timed request that runs out is terminal for its worker.
    pub(super) async fn overdue(&mut self, generation: Generation, request: &RequestId) {
        let waits = self.worker.as_ref().is_some_and(|worker| {
            worker.generation == generation && worker.pending.contains_key(request)
        });
        if waits {
            self.lost("the worker did not answer a request in time")
                .await;
        }
    }

    /// The worker cannot be trusted any more.
    pub(super) async fn lost(&mut self, why: &str) {
        let Some(generation) = self.worker.as_ref().map(|worker| worker.generation) else {
            return;
        };
        tracing::warn!(session = %self.row.session_id, why, "a worker is given up");
        self.dismiss();
        let failure = Failure::new(code::PROTOCOL_ERROR, ErrorCategory::Protocol, why);
        self.input(Input::WorkerExited(generation, failure)).await;
    }

    /// Cancels a start, or asks the worker to end and goes on listening to it:
    /// what the agent says on its way out belongs to the turn. A worker that
    /// does not end in time is sent away.
    pub(super) fn ask_to_leave(&mut self) {
        self.cancel_start();
        let timing = self.shared.config.worker_timing(&self.row.provider);
        let Some(worker) = &mut self.worker else {
            if let Some(departing) = &self.departing {
                departing.hurry();
            }
            return;
        };
        let dispose = ToWorker::Dispose(Request::new(Empty {}));
        if worker.leaving.is_some() {
            // Asked again it jumps a rung ahead. That it does not read is what
            // its deadline is for.
            let _ = worker.link.send(&dispose);
            return;
        }
        if worker.linked && worker.link.send(&dispose) {
            worker.leaving = Some(clock::now() + super::escort::ladder(timing));
        } else {
            self.dismiss();
        }
    }

    fn cancel_start(&mut self) {
        if let Some(starting) = self.starting.take() {
            starting.cancel.cancel();
            self.cancelled_starts += 1;
        }
    }

    /// Sends the worker away, or cancels its start.
    pub(super) fn dismiss(&mut self) {
        self.cancel_start();
        if let Some(worker) = self.worker.take() {
            let leave = if worker.leaving.is_some() {
                Leave::Asked
            } else {
                Leave::Ask
            };
            self.see_off(worker, leave);
        }
    }

    /// Sees a worker off in a task of its own.
    pub(super) fn see_off(&mut self, mut worker: Worker, leave: Leave) {
        self.touch();
        self.lifted.extend(settle_pending(&mut worker));
        let (gone_tx, gone) = watch::channel(false);
        let id = worker.process.worker_id.clone();
        self.departing = Some(Departing {
            worker: id.clone(),
            identity: worker.process.identity.clone(),
            exit: worker.process.exit.clone(),
            stage: match leave {
                Leave::Ended => "sweep".into(),
                _ => worker.stop_stage.take().unwrap_or_else(|| "dispose".into()),
            },
            gone,
        });
        let timing = self.shared.config.worker_timing(&self.row.provider);
        let asked = match leave {
            Leave::Ask => {
                let dispose = ToWorker::Dispose(Request::new(Empty {}));
                worker.linked && worker.link.send(&dispose)
            }
            Leave::Asked => worker.linked,
            Leave::Ended => true,
        };
        let Worker {
            process,
            link,
            place,
            reconnects,
            ..
        } = worker;
        let escort = Escort::new(
            &self.shared,
            process,
            timing,
            place,
            crate::providers::session_file(&self.shared.home, &self.row),
        );
        let tx = self.tx.clone();
        tokio::spawn(async move {
            let survivors = match (leave, asked) {
                (Leave::Ended, _) => escort.tidy().await,
                (_, true) => {
                    // The link is drained, so that the worker is never held up
                    // by its own events on the way out.
                    let drain = tokio::spawn(drain(link, id, tx.clone()));
                    let survivors = escort.farewell().await;
                    drain.abort();
                    survivors
                }
                (_, false) => escort.depart().await,
            };
            drop(reconnects);
            gone_tx.send_replace(true);
            report(&tx, Command::Gone { survivors }).await;
        });
    }

    /// A departing worker has climbed its ladder.
    pub(super) fn climbed(&mut self, worker: &WorkerId, stage: String) {
        if let Some(departing) = &mut self.departing
            && departing.worker == *worker
        {
            departing.stage = stage;
            self.touch();
        }
    }

    /// A departing worker and its tree are gone.
    pub(super) fn gone(&mut self, survivors: &[i32]) {
        if self
            .departing
            .as_ref()
            .is_some_and(|departing| *departing.gone.borrow())
        {
            self.departing = None;
        }
        if !survivors.is_empty() {
            let message = format!("These processes survived SIGKILL: {survivors:?}.");
            let level = ade_protocol::event::NoticeLevel::Error;
            self.emit(None, &ade_protocol::event::Event::Notice { level, message });
        }
        self.touch();
    }

    /// The worker process has ended.
    pub(super) async fn worker_exited(&mut self) {
        // What it wrote before it ended is still in the link.
        self.drain_link().await;
        let Some(worker) = self.worker.take() else {
            return;
        };
        let failure =
            super::figures::exited(&self.shared.home, &worker.process, worker.told.as_ref());
        let generation = worker.generation;
        tracing::info!(session = %self.row.session_id, reason = failure.message, "a worker ended");
        let asked = worker.leaving.is_some();
        if !asked {
            self.death(&failure);
        }
        self.see_off(worker, Leave::Ended);
        self.input(Input::WorkerExited(generation, failure)).await;
    }

    /// The worker has connected again: it goes on after what the transcript
    /// holds.
    pub(super) fn reconnected(&mut self, connection: Connection) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        let (_, link) = connection.open();
        let attach = Attach {
            fence: self.shared.fence,
            ack: worker.taken,
        };
        if link.send(&ToWorker::Attach(Request::new(attach))) {
            worker.link = link;
            worker.linked = true;
        }
    }
}

/// What the machine must know of a turn of another broker. `living`: the
/// generation of the worker that is taken over.
fn legacy_turn(
    turn: &LegacyTurn,
    living: Option<Generation>,
    first_event: Duration,
) -> crate::turn::Legacy {
    let row = &turn.row;
    let sends = u8::try_from(row.sends).unwrap_or(u8::MAX);
    // Noted before it was written: whether that worker got it, it will tell.
    let to_this_one = living == Some(row.generation) && sends > 0;
    let passed = crate::clock::monotonic_ms().saturating_sub(row.armed_at_ms);
    crate::turn::Legacy {
        sends: sends - u8::from(to_this_one),
        noted: to_this_one,
        resumable: turn.is_resumable(),
        left: first_event.saturating_sub(Duration::from_millis(passed)),
    }
}

/// A request whose id is known before it is made.
fn named<T>(id: &RequestId, body: T) -> Request<T> {
    Request {
        request_id: id.clone(),
        body,
    }
}

fn send_id(turn: &TurnId) -> RequestId {
    RequestId::from(turn.as_str())
}

const BUDGET: &str = "start_budget";
const KIND_BUDGET: &str = "provider_start_budget";

fn budget_used_up(deaths: usize, window: Duration, last: Option<&Failure>) -> Failure {
    let seconds = window.as_secs();
    let why = last.map_or_else(String::new, |last| format!(" (last: {})", last.message));
    let message = format!(
        "the agent ended {deaths} times within {seconds} s{why} and is not started again; \
         run `ade chat reset` or send with --retry when that is mended"
    );
    let failure = Failure::new(BUDGET, ErrorCategory::Exited, message);
    match last.and_then(|last| last.detail.clone()) {
        Some(detail) => failure.with_detail(detail),
        None => failure,
    }
}

/// The same for all sessions of a kind of agent; none of them is marked for it.
fn kind_used_up(provider: &str, deaths: usize, window: Duration) -> Failure {
    let seconds = window.as_secs();
    let message = format!(
        "{deaths} starts of {provider} failed within {seconds} s, and none worked; it is not \
         started again until `ade chat reset` or a send with --retry says so"
    );
    Failure::new(KIND_BUDGET, ErrorCategory::Exited, message)
}

async fn report(tx: &mpsc::WeakSender<Command>, command: Command) {
    if let Some(tx) = tx.upgrade() {
        // The actor may have ended; then nobody needs to know.
        drop(tx.send(command).await);
    }
}

/// Takes what a worker says on its way out; only the stage is of interest.
async fn drain(mut link: Link, worker: WorkerId, tx: mpsc::WeakSender<Command>) {
    while let Some(said) = link.incoming.recv().await {
        if let LinkIn::Frame(frame) = said
            && let FromWorker::Lifecycle(lifecycle) = *frame
            && let Some(stage) = stop_stage(&lifecycle)
        {
            let worker = worker.clone();
            report(&tx, Command::StopStage { worker, stage }).await;
        }
    }
}

/// The stage of the stop ladder that a worker tells of.
pub(super) fn stop_stage(lifecycle: &Lifecycle) -> Option<String> {
    let stage = lifecycle.detail.as_ref()?.get("stage")?.as_str()?;
    (lifecycle.event == "stopping").then(|| stage.to_owned())
}

/// Whoever waits for a response of this worker will not get one. Gives back the
/// messages for its turn that it may not have taken.
fn settle_pending(worker: &mut Worker) -> Vec<(String, Reply<ade_protocol::action::Steered>)> {
    let mut lifted = Vec::new();
    for (_, pending) in worker.pending.drain() {
        match pending {
            Pending::Send(_) | Pending::Plain { reply: None, .. } => {}
            Pending::Steer { prompt, reply } => lifted.push((prompt, reply)),
            Pending::Plain {
                reply: Some(reply), ..
            } => {
                let (kind, code) = ("worker_gone", ade_protocol::exit::FAILED);
                let error = RpcError::failed(kind, code, "the worker is gone");
                drop(reply.send(Err(error)));
            }
        }
    }
    lifted
}

/// The response to `send` as the machine understands it.
pub(super) fn ending(response: &ade_protocol::frame::Response) -> Ending {
    use ade_protocol::frame::{SendResult, SendStatus};
    if !response.ok {
        return Ending::Failed(start::refused(response));
    }
    let result = response
        .result
        .as_deref()
        .and_then(|raw| serde_json::from_str::<SendResult>(raw.get()).ok());
    match result {
        Some(SendResult {
            status: SendStatus::Completed,
            stop_reason,
            usage,
            ..
        }) => Ending::Completed { stop_reason, usage },
        Some(SendResult {
            status: SendStatus::Interrupted,
            ..
        }) => Ending::Interrupted,
        Some(SendResult {
            status: SendStatus::Failed,
            error,
            ..
        }) => {
            let message = error.unwrap_or_else(|| "the agent gave no reason".into());
            let category = crate::classify::classify(&message);
            Ending::Failed(Failure::new("agent_failed", category, message))
        }
        None => Ending::Failed(Failure::new(
            code::PROTOCOL_ERROR,
            ErrorCategory::Protocol,
            "the answer to `send` is not what a turn ends with",
        )),
    }
}
