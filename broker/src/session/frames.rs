//! What the actor does with commands and with a worker's frames.

use ade_protocol::action::{Aborted, ContextUsed, Sent, Steered};
use ade_protocol::card::Withdrawal;
use ade_protocol::event::{ErrorCategory, Event, NoticeLevel, Origin};
use ade_protocol::frame::{ErrorFrame, FromWorker, Response, SteerOutcome, code};
use ade_protocol::rpc::RpcError;
use ade_protocol::strict;
use ade_protocol::{Generation, TurnId, exit};

use super::actor::Actor;
use super::depart::{SWEEP, stop_stage};
use super::requests::ending;
use super::worker::Pending;
use super::{Ask, Command, Reply, record};
use crate::link::{EventLine, Intake, Run};
use crate::turn::{Ending, Failure, Input, State};

impl Actor {
    pub(super) async fn command(&mut self, command: Command) {
        match command {
            Command::Send {
                prompt,
                retry,
                reply,
            } => {
                let sent = self.take(prompt, retry).await;
                let _ = reply.send(sent);
            }
            Command::Steer { prompt, reply } => self.steer(prompt, reply).await,
            Command::Interrupt {
                prompt,
                mode,
                reply,
            } => {
                let interrupted = self.interrupt(prompt, mode).await;
                self.flush();
                let _ = reply.send(interrupted);
            }
            Command::Queue { ask, reply } => {
                let queue = self.queue_ask(ask).await;
                self.flush();
                // Not promised: what could not be written down is given up next.
                let failure = self.broken.as_ref();
                let _ = reply.send(failure.map_or(queue, |failure| Err(record::refusal(failure))));
            }
            Command::Abort { turn_id, reply } => {
                let aborted = self.abort(turn_id).await;
                let _ = reply.send(Ok(aborted));
            }
            Command::Stop { last, reply } => {
                self.closed |= last;
                self.stop_replies.push(reply);
                self.input(Input::Stop).await;
            }
            Command::Detach { reply } => self.detach_replies.push(reply),
            Command::Reset { reply } => {
                self.reset().await;
                let _ = reply.send(Ok(()));
            }
            Command::Permit { mode, reply } => {
                let permitted = self.permit(mode).await;
                self.flush();
                let _ = reply.send(permitted);
            }
            Command::Ask { ask, reply } => self.ask_or_note(ask, reply).await,
            Command::Context { reply } => self.ask_context(reply),
            Command::Answer { ref card_id, .. } if self.awaits_legacy(card_id) => {
                self.deferred.push(command);
            }
            Command::Answer {
                card_id,
                answer,
                by,
                reply,
            } => {
                let result = self.answer_card(&card_id, &answer, &by).await;
                let _ = reply.send(result);
            }
            Command::InLine { epoch, place } => self.in_line(epoch, place),
            Command::Started { epoch, outcome } => self.started(epoch, outcome).await,
            Command::StopStage { worker, stage } => self.climbed(&worker, stage),
            Command::Stuck { worker, survivors } => self.stuck(&worker, &survivors),
            Command::Worked(turn) => self.input(Input::Worked(turn)).await,
            Command::Gone => self.gone(),
            Command::Overdue {
                generation,
                request,
            } => self.overdue(generation, &request).await,
        }
    }

    /// Takes a message, once it is written down.
    async fn take(&mut self, prompt: String, retry: bool) -> Result<Sent, RpcError> {
        let sent = self.send(prompt, retry).await?;
        self.written(sent, |sent| &sent.turn_id).await
    }

    async fn send(&mut self, prompt: String, retry: bool) -> Result<Sent, RpcError> {
        if self.closed {
            return Err(super::closed());
        }
        if retry {
            self.reset().await;
        }
        self.may_start()?;
        if !self.machine.has_room() {
            return Err(self.queue_full());
        }
        if !self.owed.is_empty() && !self.settle_owed().await {
            let failure = self.broken.take();
            let why = failure.map_or_else(
                || "the end of the last turn could not be written".to_owned(),
                |failure| failure.message,
            );
            return Err(RpcError::failed("transcript", exit::FAILED, why)
                .hint("make room on the disk that ADE_HOME is on"));
        }
        let after = self.last_sequence();
        let turn_id = TurnId::generate();
        self.input(Input::Send {
            turn: turn_id.clone(),
            prompt,
        })
        .await;
        Ok(Sent {
            place: self.machine.place(&turn_id),
            turn_id,
            after,
        })
    }

    /// Whether the chat may start workers at all.
    pub(super) fn may_start(&self) -> Result<(), RpcError> {
        if self.closed {
            return Err(super::closed());
        }
        match &self.row.failed_reason {
            Some(reason) => {
                let reason = reason.clone();
                Err(RpcError::failed("start_budget", exit::FAILED, reason))
            }
            None => Ok(()),
        }
    }

    async fn steer(&mut self, prompt: String, reply: Reply<Steered>) {
        let runs = matches!(
            self.machine.state(),
            State::Streaming | State::AwaitingCard | State::AwaitingFirstEvent
        );
        let running = self.machine.turn().filter(|_| runs).cloned();
        let can = self
            .worker
            .as_ref()
            .is_some_and(|worker| worker.can_steer && worker.linked);
        if let Some(turn) = running.filter(|_| can) {
            if self.takes_steers() {
                self.steer_worker(turn, prompt, reply).await;
            } else {
                let message = "the running turn has too many messages to go on with already";
                let refused = RpcError::failed("queue_full", exit::FAILED, message)
                    .hint("wait until the agent answers, or end the turn with `ade chat abort`");
                let _ = reply.send(Err(refused));
            }
            return;
        }
        let queued = self.take_steer(prompt).await;
        let steered = queued.map(|sent| Steered {
            outcome: SteerOutcome::Queued,
            turn_id: Some(sent.turn_id),
        });
        let _ = reply.send(steered);
    }

    async fn abort(&mut self, turn_id: Option<TurnId>) -> Aborted {
        let running = self.machine.turn().cloned();
        if running.is_none() || turn_id.is_some_and(|wanted| running.as_ref() != Some(&wanted)) {
            return Aborted { turn_id: None };
        }
        self.input(Input::Abort).await;
        Aborted { turn_id: running }
    }

    async fn reset(&mut self) {
        self.budget.clear();
        self.shared.pool.clear(&self.row.provider);
        self.forget_deaths().await;
        self.forget_failed_starts().await;
        if self.row.failed_reason.take().is_some() {
            let session = self.row.session_id.clone();
            self.store("clear a failure", move |state| {
                state.set_failed(&session, None)
            })
            .await;
        }
        self.touch();
    }

    /// Asks the worker; without one the choice is noted for the next.
    async fn ask_or_note(&mut self, ask: Ask, reply: Reply<()>) {
        if self.worker.is_some() || matches!(ask, Ask::Compact(_)) {
            self.ask_worker(ask, reply);
            return;
        }
        self.note_choice(&ask).await;
        let _ = reply.send(Ok(()));
    }

    async fn note_choice(&mut self, ask: &Ask) {
        let session = self.row.session_id.clone();
        match ask.clone() {
            Ask::Model(model) => {
                self.row.model = Some(model.clone());
                self.store("note the model", move |state| {
                    state.set_model(&session, Some(&model))
                })
                .await;
            }
            Ask::Thinking(level) => {
                self.row.thinking.clone_from(&level);
                self.store("note the level", move |state| {
                    state.set_thinking(&session, level.as_deref())
                })
                .await;
            }
            Ask::Compact(_) => {}
        }
        self.touch();
    }

    /// Takes neighbouring events of one turn.
    pub(super) async fn events(&mut self, run: Run) {
        let Run {
            turn_id,
            mut events,
        } = run;
        let Some(worker) = &mut self.worker else {
            return;
        };
        let generation = worker.generation;
        // A replay may say again what is on disk already.
        events.retain(|line| {
            let is_new = line.seq > worker.taken;
            worker.taken = worker.taken.max(line.seq);
            is_new
        });
        let refused = refused(&mut events);
        let turn = turn_id.as_ref();
        if !refused.is_empty() {
            self.refuse_events(generation, turn, &refused);
        }
        if events.is_empty() {
            return;
        }
        if !self.machine.accepts(generation, turn) {
            tracing::debug!(session = %self.row.session_id, "events of another turn were dropped");
            return;
        }
        if turn.is_some() {
            self.note_history().await;
            // One for all of them: they came in the same moment.
            self.input(Input::Event(generation, turn_id.clone())).await;
        }
        self.expect(&events, turn);
        for EventLine { seq, event, intake } in events {
            let origin = Origin { generation, seq };
            self.stage(turn, Some(origin), &event, intake == Intake::Kept);
        }
    }

    /// Leaves out what only the broker writes; the turn goes on. A worker refuses
    /// such events of its agent itself, so this one does not keep to the
    /// protocol: that is said once a turn.
    fn refuse_events(&mut self, generation: Generation, turn: Option<&TurnId>, names: &[String]) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        worker.refused += names.len() as u64;
        let told = worker.refused_in.replace(turn.cloned());
        let count = worker.refused;
        if self.outbox.is_empty() {
            // Nothing will be written for them, so nothing else acknowledges them.
            worker.acknowledge();
        }
        if told.as_ref().map(Option::as_ref) == Some(turn) {
            return;
        }
        let provider = &self.row.provider;
        let name = names.first().map_or("?", String::as_str);
        let message = format!(
            "The worker of {provider} sent an event `{name}`, which is not a worker's to send. \
             It was left out."
        );
        tracing::warn!(session = %self.row.session_id, count, "{message}");
        if self.machine.accepts(generation, turn) {
            let level = NoticeLevel::Warn;
            self.emit(turn, &Event::Notice { level, message });
        }
    }

    /// Something was said: from now on a worker must resume the session file
    /// and never begin afresh.
    async fn note_history(&mut self) {
        if !self.row.has_history {
            self.row.has_history = true;
            let session = self.row.session_id.clone();
            self.store("note the history", move |state| {
                state.set_has_history(&session)
            })
            .await;
        }
    }

    pub(super) async fn frame(&mut self, frame: FromWorker) {
        match frame {
            FromWorker::Response(response) => self.response(response).await,
            FromWorker::UiRequest(request) => self.card(*request).await,
            FromWorker::UiCancel(cancel) => {
                let Some(generation) = self.machine.worker() else {
                    return;
                };
                let withdrawn =
                    self.cards
                        .withdraw(&cancel.request_id, generation, Withdrawal::Cancelled);
                if let Some((card, outcome)) = withdrawn {
                    self.card_settled(&card, outcome, None).await;
                    self.cards_settled().await;
                }
            }
            FromWorker::UiNotice(notice) => {
                let event = Event::Notice {
                    level: notice.payload.level,
                    message: notice.payload.message.clone(),
                };
                // Which turn it is for is the agent's word: only the running one.
                let running = self.machine.turn().cloned();
                let turn = running.filter(|turn| notice.turn_id.as_ref() == Some(turn));
                self.emit(turn.as_ref(), &event);
            }
            FromWorker::Lifecycle(lifecycle) => {
                let Some(worker) = &mut self.worker else {
                    return;
                };
                let mut progress = super::start::Progress {
                    host_pid: worker.host_pid,
                    lease_held: worker.lease_held,
                };
                progress.note(&lifecycle);
                let stage = stop_stage(&lifecycle);
                worker.stop_stage = stage.or(worker.stop_stage.take());
                worker.host_pid = progress.host_pid;
                worker.lease_held = progress.lease_held;
                self.touch();
            }
            FromWorker::Error(error) if error.operation == SWEEP => {
                self.cannot_end(error.error).await;
            }
            FromWorker::Error(error) => self.error(&error),
            FromWorker::Log(log) => {
                tracing::info!(session = %self.row.session_id, level = log.level, "{}", log.message);
            }
            FromWorker::Ready(_) => {
                self.lost("the worker sent `ready` that nobody asked for")
                    .await;
            }
            // A second hello on a connection, and host frames on this hop, say
            // nothing that is needed here.
            FromWorker::Hello(_) | FromWorker::SdkEvent(_) | FromWorker::Event(_) => {}
        }
    }

    fn error(&mut self, error: &ErrorFrame) {
        tracing::warn!(session = %self.row.session_id, operation = error.operation, "{}", error.error);
        let Some(worker) = &mut self.worker else {
            return;
        };
        let category = match error.operation.as_str() {
            "lease_lost" => ErrorCategory::Lease,
            "host_exited" => ErrorCategory::Exited,
            "protocol_error" | "frame_too_long" => ErrorCategory::Protocol,
            _ => return,
        };
        worker.told = Some(Failure::new(
            &error.operation,
            category,
            error.error.clone(),
        ));
    }

    async fn response(&mut self, response: Response) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        let generation = worker.generation;
        match worker.pending.remove(&response.request_id) {
            None => {}
            Some(Pending::Send(turn)) => {
                let ending = ending(&response);
                if let Ending::Failed(failure) = &ending
                    && failure.category == ErrorCategory::Exited
                {
                    self.death(failure, false).await;
                }
                if ending.shows_work() {
                    self.settle_answered().await;
                }
                self.note_unread(generation, &turn, &response).await;
                self.input(Input::Ended(generation, turn, ending)).await;
            }
            Some(Pending::Abort(Some(turn))) if self.machine.turn() == Some(&turn) => {
                self.input(Input::AbortAnswered(generation)).await;
            }
            Some(Pending::Abort(_)) => {}
            // What a run took that is given up is not delivered.
            Some(Pending::Steer(steer) | Pending::Answered(_, steer))
                if self.machine.state() == State::Cancelling =>
            {
                let id = response.request_id.clone();
                let answered = Pending::Answered(Box::new(response), steer);
                worker.pending.insert(id, answered);
            }
            Some(Pending::Context(reply)) => {
                let used = context_used(&response);
                let _ = reply.send(used);
            }
            Some(Pending::Steer(steer) | Pending::Answered(_, steer)) => {
                self.steer_answered(&response, steer).await;
            }
            Some(Pending::Plain { ask, reply }) => {
                let result = if response.ok {
                    Ok(())
                } else {
                    Err(refusal(&response))
                };
                if result.is_ok() {
                    self.note_choice(&ask).await;
                }
                let _ = reply.send(result);
            }
        }
    }
}

/// Takes the events out that are not a worker's to send; their names.
fn refused(events: &mut Vec<EventLine>) -> Vec<String> {
    let mut names = Vec::new();
    events.retain(|line| {
        if let Intake::Refused(name) = &line.intake {
            names.push(name.clone());
            return false;
        }
        true
    });
    names
}

/// How full the context is, by the agent's word; `null`: it does not know.
fn context_used(response: &Response) -> Result<ContextUsed, RpcError> {
    if !response.ok {
        return Err(refusal(response));
    }
    let text = response.result.as_deref().map_or("null", |raw| raw.get());
    let used: Option<ContextUsed> = strict::from_str(text).map_err(|error| {
        let message = format!("the agent's answer about its context is not understood: {error}");
        RpcError::failed(code::PROTOCOL_ERROR, exit::FAILED, message)
    })?;
    Ok(used.unwrap_or_default())
}

/// A response that says no, for a client.
pub(super) fn refusal(response: &Response) -> RpcError {
    let failure = super::start::refused(response);
    let code = crate::actions::exit_code(&failure.kind);
    RpcError::failed(&failure.kind, code, failure.message)
}
