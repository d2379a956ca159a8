//! Having a worker: one start in flight at most, what came of it, and the tally
//! of starts that did not work.
//!
//! The steps of a start are in [`start`]; here is what the actor knows of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ade_protocol::event::{ErrorCategory, Event, NoticeLevel};
use ade_protocol::frame::Ready;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::depart::Leave;
use super::place::Line;
use super::start::{self, Plan, Started};
use super::worker::Worker;
use super::{Command, report};
use crate::budget::Start;
use crate::turn::{Failure, Input, State};

/// A start under way.
pub(super) struct Starting {
    pub(super) epoch: u64,
    /// Where it stands in the line for a worker; 0: in front of it.
    pub(super) place: usize,
    /// Whether the chat was told that it waits.
    pub(super) told: bool,
    pub(super) cancel: CancellationToken,
    /// The worker of a broker that is gone is taken over.
    pub(super) takeover: bool,
}

const BUDGET: &str = "start_budget";
const KIND_BUDGET: &str = "provider_start_budget";

impl Actor {
    /// Notes that a start is under way; gives what cancels it.
    pub(super) fn begin_start(&mut self, takeover: bool) -> CancellationToken {
        self.epoch += 1;
        let cancel = CancellationToken::new();
        self.starting = Some(Starting {
            epoch: self.epoch,
            place: 0,
            told: false,
            cancel: cancel.clone(),
            takeover,
        });
        cancel
    }

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
        let cancel = self.begin_start(false);
        let (epoch, tx) = (self.epoch, self.tx.clone());
        let start = self.may_start_now();
        let plan = Plan {
            shared: Arc::clone(&self.shared),
            row: self.row.clone(),
            pause: *start.as_ref().unwrap_or(&Duration::ZERO),
            departing: self
                .departing
                .as_ref()
                .map(|departing| departing.gone.clone()),
            line: Line {
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
        let own = match self.budget.start(self.budget_now()) {
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

    /// A start has ended.
    pub(super) async fn started(&mut self, epoch: u64, outcome: Result<Box<Started>, Failure>) {
        if self
            .starting
            .as_ref()
            .is_none_or(|starting| starting.epoch != epoch)
        {
            self.cancelled_starts = self.cancelled_starts.saturating_sub(1);
            self.settle_left_steers(None).await;
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
                let fits = self.fits(started.spec.as_ref());
                let resumed = started.resumed.take();
                if self.shared.pool.start_worked(&self.row.provider) {
                    self.forget_failed_starts().await;
                }
                if !fits && resumed.is_none() {
                    self.start_again(started);
                    return;
                }
                self.adopt(started, resumed.is_some()).await;
                // A fresh agent is still to be had: the broker that decided on it died
                // before this worker, which has the old one, was gone.
                if !fits || self.row.flags.rotate {
                    self.outdated(generation).await;
                }
                match resumed {
                    Some(resumed) => self.resumed(generation, &resumed).await,
                    None => self.input(Input::WorkerReady(generation)).await,
                }
            }
            Err(failure) if takeover => {
                self.settle_left_steers(None).await;
                self.settle_legacy_cards(&BTreeSet::new()).await;
                self.input(Input::TakeoverFailed(failure)).await;
            }
            Err(failure) => {
                if failure.category == ErrorCategory::Exited
                    && ![BUDGET, KIND_BUDGET].contains(&failure.kind.as_str())
                {
                    self.shared.pool.start_failed(&self.row.provider);
                    self.death(&failure, true).await;
                }
                self.note_generation().await;
                self.note_budget(&failure).await;
                self.input(Input::WorkerFailed(failure)).await;
            }
        }
    }

    /// A turn that waits for a worker while none is being had gets one.
    pub(super) fn acquire_if_wanted(&mut self) {
        if matches!(self.machine.state(), State::Starting | State::Recovering) {
            self.acquire();
        }
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

    /// A worker is there. `known`: it is one that was taken over, so what there is
    /// to tell of it was told when it started.
    async fn adopt(&mut self, started: Started, known: bool) {
        let ready = started.ready.clone();
        self.row.generation = started.generation;
        self.row.session_file = ready.session_file.clone().or(self.row.session_file.take());
        let old = self.row.provider_session_id.take();
        let changed =
            (old.as_ref().zip(ready.session_id.as_ref())).is_some_and(|(old, new)| old != new);
        if changed {
            // One that was replaced before it was told anything is not named.
            if self.row.agent_told || self.row.replaced_agent.is_none() {
                self.row.replaced_agent.clone_from(&old);
            }
            self.row.agent_told = false;
        }
        self.row.provider_session_id = ready.session_id.clone().or(old);
        if let Some(model) = &ready.current_model {
            self.row.model = Some(model.reference());
        }
        self.worker = Some(Worker::new(started));
        self.touch();
        // It was started as a fresh agent, if that was to be: once. One that is not
        // the agent that is known was started so by a broker that then died.
        let as_asked = !known || changed;
        self.row.flags.rotate &= !as_asked;
        let row = self.row.clone();
        self.store("note the session file", move |state| {
            let (file, id) = (
                row.session_file.as_deref(),
                row.provider_session_id.as_deref(),
            );
            state.atomically(|state| {
                if as_asked {
                    state.clear_rotate(&row.session_id)?;
                }
                if changed {
                    let replaced = row.replaced_agent.as_deref();
                    state.set_replaced_agent(&row.session_id, replaced)?;
                }
                state.set_session_file(&row.session_id, file, id)
            })
        })
        .await;
        if !known && !self.machine.is_silent() {
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
}

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
