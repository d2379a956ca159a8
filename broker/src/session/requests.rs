//! What the session asks of its worker, and the bound on each answer.
//!
//! A request whose bound runs out is terminal for its worker: it is not known
//! what it did of it. Answers to cards are in `cards`.

use std::time::Duration;

use ade_protocol::action::{ContextUsed, Steered};
use ade_protocol::event::ErrorCategory;
use ade_protocol::frame::{
    Abort, Attach, Compact, Empty, Prompt, Recovery, Request, Response, Send, SendResult,
    SendStatus, SetModel, SetThinking, ToWorker, code,
};
use ade_protocol::rpc::RpcError;
use ade_protocol::strict;
use ade_protocol::{Generation, RequestId, TurnId, exit};

use super::actor::Actor;
use super::steers::Steer;
use super::worker::Pending;
use super::{Ask, Command, Reply, mark, replay, report, start};
use crate::clock;
use crate::config::RecoveryKind;
use crate::link::Connection;
use crate::turn::{Again, Ending, Failure, SENT};

/// Bounds of requests to a worker, from the contract's table; the worker's own
/// bound to its host is shorter by the way back.
mod bound {
    use std::time::Duration;

    pub(super) const STEER: Duration = Duration::from_secs(16);
    pub(super) const SET_MODEL: Duration = Duration::from_secs(31);
    pub(super) const SET_THINKING: Duration = Duration::from_secs(16);
    pub(super) const CONTEXT_USAGE: Duration = Duration::from_secs(16);
}

impl Actor {
    /// What a fresh agent must be told of the chat, where there is something.
    async fn replay(&mut self, next: &TurnId) -> Option<String> {
        let kind = self.shared.config.recovery(&self.row.provider);
        let file = self.row.session_file.as_ref();
        let written = file.is_some_and(|file| std::path::Path::new(file).exists());
        if kind != RecoveryKind::Replay || !self.row.has_history || written {
            return None;
        }
        let window = self.worker.as_ref().and_then(|worker| worker.window);
        let path = self.shared.home.transcript(&self.row.session_id);
        let (next, bound) = (next.clone(), replay::bound(window));
        let agents = replay::Agents {
            old: self.row.replaced_agent.clone(),
            new: self.row.provider_session_id.clone(),
        };
        let told = tokio::task::spawn_blocking(move || replay::read(&path, &next, bound, &agents));
        match told.await {
            Ok(Ok(replay)) => replay,
            Ok(Err(error)) => {
                tracing::error!(session = %self.row.session_id, %error, "nothing was replayed");
                None
            }
            Err(_) => None,
        }
    }

    pub(super) async fn write_message(
        &mut self,
        turn: &TurnId,
        prompt: &str,
        again: Option<Again>,
    ) {
        // On disk before it is sent: a message that no transcript holds reaches
        // nobody.
        if !self.flush() {
            return;
        }
        let replay = self.replay(turn).await;
        let mark = self.mark(turn, again).await;
        // Kept of the message itself, and not of what is said on top of it.
        let first = mark.as_ref().filter(|_| again.is_none());
        let first = first.and_then(mark::note);
        let force = again.is_some() || self.row.flags.force_expire;
        let (session, id, generation) = (
            self.row.session_id.clone(),
            turn.clone(),
            self.row.generation,
        );
        let (sends, standing) = again.map_or((1, SENT), |again| (2, again.written()));
        // On disk before it is sent: a new broker must never send it again, nor
        // end a run of it a second time.
        let armed = clock::monotonic_ms();
        let untold = !std::mem::replace(&mut self.row.agent_told, true);
        let noted = self
            .store("note a send", move |state| {
                state.atomically(|state| {
                    state.clear_force_expire(&session)?;
                    if untold {
                        state.set_agent_told(&session)?;
                    }
                    state.update_turn(&session, &id, generation, sends, standing)?;
                    if let Some(mark) = &first {
                        state.mark_turn(&session, &id, mark)?;
                    }
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
            session_mark: mark.filter(|_| force),
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
        let pending = Pending::Send(turn.clone());
        let unsent = self.tell(&ToWorker::Send(request), id, None, pending);
        if unsent.is_none() {
            return;
        }
        // Boxed: giving a worker up is an input, and an input may write.
        Box::pin(self.lost("the worker does not read what it is told")).await;
    }

    /// Asks for the end of the run; `if_silent`: only of one that nothing was seen
    /// of.
    pub(super) fn write_abort(&mut self, turn: &TurnId, if_silent: bool) {
        let turn_id = turn.clone();
        let request = Request::new(Abort { turn_id, if_silent });
        let id = request.request_id.clone();
        // The machine has its own deadline for the answer.
        let pending = Pending::Abort(if_silent.then(|| turn.clone()));
        let _ = self.tell(&ToWorker::Abort(request), id, None, pending);
    }

    /// Writes a request whose response is awaited, for so long at most where that
    /// is bounded. Gives back who waits when the worker does not take it.
    #[must_use]
    fn tell(
        &mut self,
        frame: &ToWorker,
        id: RequestId,
        within: Option<Duration>,
        pending: Pending,
    ) -> Option<Pending> {
        let worker = (self.worker.as_mut()).filter(|worker| worker.link.send(frame));
        let Some(worker) = worker else {
            return Some(pending);
        };
        worker.pending.insert(id.clone(), pending);
        if let Some(within) = within {
            self.watch_request(id, within);
        }
        None
    }

    /// Puts a message into the running turn. It is on disk before it is sent: of one
    /// whose answer this broker does not live to hear, the next one must tell.
    pub(super) async fn steer_worker(
        &mut self,
        turn: TurnId,
        prompt: String,
        reply: Reply<Steered>,
    ) {
        let body = Prompt {
            prompt: prompt.clone(),
        };
        let request = Request::new(body);
        let id = request.request_id.clone();
        if let Err(error) = self.note_steer(&id, &turn, &prompt).await {
            // Whoever asked may have left.
            let _ = reply.send(Err(error));
            return;
        }
        let frame = ToWorker::Steer(request);
        let pending = Pending::Steer(Steer {
            turn,
            prompt,
            reply,
            overdue: false,
        });
        if let Some(unasked) = self.tell(&frame, id.clone(), Some(bound::STEER), pending) {
            self.forget_steer(&id).await;
            let message = "the worker does not take messages now";
            unasked.refuse(&RpcError::failed(code::NOT_READY, exit::FAILED, message));
        }
    }

    /// Waits for the answer to a message of another broker's.
    pub(super) fn await_steer(&mut self, id: RequestId, turn: TurnId, prompt: String) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        // Nobody is there who asked.
        let (reply, _) = tokio::sync::oneshot::channel();
        let pending = Pending::Steer(Steer {
            turn,
            prompt,
            reply,
            overdue: false,
        });
        worker.pending.insert(id.clone(), pending);
        self.watch_request(id, bound::STEER);
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
        if let Some(unasked) = self.tell(&frame, id, within, Pending::Plain { ask, reply }) {
            unasked.refuse(&no_worker());
        }
    }

    /// Asks the agent how full the model's context is.
    pub(super) fn ask_context(&mut self, reply: Reply<ContextUsed>) {
        let request = Request::new(Empty {});
        let id = request.request_id.clone();
        let (frame, within) = (ToWorker::ContextUsage(request), bound::CONTEXT_USAGE);
        if let Some(unasked) = self.tell(&frame, id, Some(within), Pending::Context(reply)) {
            unasked.refuse(&no_worker());
        }
    }

    fn watch_request(&self, request: RequestId, within: Duration) {
        let Some(generation) = self.worker.as_ref().map(|worker| worker.generation) else {
            return;
        };
        let tx = self.tx.clone();
        tokio::spawn(async move {
            clock::time_is_up(clock::now() + within).await;
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
        let worker = self.worker.as_mut();
        let worker = worker.filter(|worker| worker.generation == generation);
        let pending = worker.and_then(|worker| worker.pending.get_mut(request));
        let Some(name) = pending.and_then(Pending::run_out) else {
            return;
        };
        self.lost(&format!("the worker did not answer `{name}` in time"))
            .await;
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

fn no_worker() -> RpcError {
    RpcError::failed(
        code::NOT_READY,
        exit::FAILED,
        "the chat has no running worker",
    )
    .hint("send a message first")
}

/// A request whose id is known before it is made.
fn named<T>(id: &RequestId, body: T) -> Request<T> {
    Request {
        request_id: id.clone(),
        body,
    }
}

pub(super) fn send_id(turn: &TurnId) -> RequestId {
    RequestId::from(turn.as_str())
}

/// The response to `send` as the machine understands it.
pub(super) fn ending(response: &Response) -> Ending {
    if !response.ok {
        return Ending::Failed(start::refused(response));
    }
    let result = response
        .result
        .as_deref()
        .and_then(|raw| strict::from_str::<SendResult>(raw.get()).ok());
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
            let (kind, category) = crate::classify::judge("agent_failed", &message);
            Ending::Failed(Failure::new(kind, category, message))
        }
        None => Ending::Failed(Failure::new(
            code::PROTOCOL_ERROR,
            ErrorCategory::Protocol,
            "the answer to `send` is not what a turn ends with",
        )),
    }
}
