//! Messages for the running turn that went to its worker: what is written of them
//! and told to whoever sent them.
//!
//! One that the worker took stands in its turn as said. Of one that it did not answer
//! in time, or before it ended, whoever sent it and the chat are told that. When the turn's end says
//! that the agent had not read it, that is told in the same turn, before its end;
//! an end that is never heard says nothing. An answer that comes when the turn is
//! over belongs to no other turn.
//!
//! One that was taken while nothing of the turn was seen is lost when that worker is
//! let go: the turn goes on with another one that knows nothing of it, or ends. It is
//! told of then, once, and not sent on (module [`crate::turn`] says why).
//!
//! Each stands in `state.db` while it is on its way, and until its turn is seen or
//! over. When its broker dies in between, the worker tells the next one whether its
//! agent took it; of one of which it knows nothing, or that has no worker any more,
//! the chat is told just that.

use ade_protocol::action::Steered;
use ade_protocol::event::{Event, NoticeLevel, Via};
use ade_protocol::frame::{Response, SendResult, SteerOutcome, SteerResult, WorkerState, code};
use ade_protocol::rpc::RpcError;
use ade_protocol::{Generation, RequestId, TurnId, exit, strict};

use super::Reply;
use super::actor::Actor;
use super::adopt::Resumed;
use super::frames::refusal;
use super::record;
use super::said::{Left, said_already};
use super::worker::Pending;
use crate::state::SteerRow;
use crate::turn::{self, State};

/// A message for a turn, and who waits to hear that its worker took it.
pub(super) struct Steer {
    pub(super) turn: TurnId,
    pub(super) prompt: String,
    pub(super) reply: Reply<Steered>,
    /// Its time was up before the worker answered.
    pub(super) overdue: bool,
}

/// Messages of which that is remembered for one turn. Before it is seen it takes no
/// more.
pub(super) const MAX_TAKEN: usize = WorkerState::MAX_STEERS;

/// A message that a worker took for a turn of which nothing is seen yet.
pub(super) struct Taken {
    id: RequestId,
    turn: TurnId,
    prompt: String,
}

/// One whose worker went away before it said that it took it.
pub(super) struct Lifted {
    pub(super) id: RequestId,
    pub(super) steer: Steer,
    /// The worker.
    pub(super) pid: i32,
}

impl Actor {
    /// A worker has answered to a message for a turn.
    pub(super) async fn steer_answered(&mut self, response: &Response, steer: Steer) {
        let Steer {
            turn,
            prompt,
            reply,
            ..
        } = steer;
        let id = response.request_id.clone();
        let mut steered = self.steered(response, &turn, prompt.clone());
        if is_unknown(response) {
            let why = super::start::refused(response);
            let pid = self.worker.as_ref().map(|worker| worker.process.pid);
            self.tell_of(&turn, turn::steer_unknown(&prompt));
            steered = Err(self.unknown(&why.kind, &why.message, pid));
        } else if steered.is_err() && reply.is_closed() {
            // Whoever sent it may be gone, with the last broker above all.
            self.tell_of(&turn, turn::steer_refused(&prompt));
        }
        if self.flush() {
            match &steered {
                Ok(_) => self.taken(id, turn, prompt).await,
                Err(_) => self.forget_steer(&id).await,
            }
        }
        let _ = reply.send(steered);
    }

    /// A message that was taken is said. Until its turn is seen nobody knows whether
    /// more is to be said of it.
    async fn taken(&mut self, id: RequestId, turn: TurnId, prompt: String) {
        if self.machine.is_unheard(&turn) {
            self.taken_steers.push(Taken { id, turn, prompt });
        } else {
            self.forget_steer(&id).await;
        }
    }

    /// Whether the running turn takes another message.
    pub(super) fn takes_steers(&self) -> bool {
        let asked = self.machine.turn();
        let asked = asked.map_or(0, |turn| self.unanswered(turn).len());
        self.taken_steers.len() + asked < MAX_TAKEN
    }

    /// Nothing more is to be said of messages whose turn was seen, or is over.
    pub(super) async fn settle_taken(&mut self) {
        let machine = &self.machine;
        let is_settled = |taken: &mut Taken| !machine.is_unheard(&taken.turn);
        let settled: Vec<Taken> = self.taken_steers.extract_if(.., is_settled).collect();
        for taken in settled {
            self.forget_steer(&taken.id).await;
        }
    }

    /// The worker of this turn is let go: tells of what it took and nobody read, as
    /// far as that is known. On disk before another worker can be sent anything.
    pub(super) async fn tell_let_go(&mut self, turn: &TurnId) {
        let unread = self.unread.take_if(|(of, _)| of == turn);
        let mut unread = unread.map(|(_, texts)| texts).unwrap_or_default();
        let taken = std::mem::take(&mut self.taken_steers);
        for Taken { prompt, .. } in taken.iter().filter(|taken| taken.turn == *turn) {
            let told = match unread.iter().position(|text| is_of(text, prompt)) {
                Some(at) => {
                    unread.remove(at);
                    turn::steer_unread(true, prompt)
                }
                None => turn::steer_let_go(prompt),
            };
            self.emit(Some(turn), &notice(told));
        }
        for text in unread {
            self.emit(Some(turn), &notice(turn::steer_unread(true, &text)));
        }
        if self.flush() {
            for taken in taken {
                self.forget_steer(&taken.id).await;
            }
        }
    }

    /// What whoever sent a message is told when nobody knows whether it was delivered.
    fn unknown(&self, kind: &str, why: &str, pid: Option<i32>) -> RpcError {
        let provider = &self.row.provider;
        let pid = pid.map_or_else(String::new, |pid| format!(", worker pid {pid}"));
        let message = format!(
            "{why} (agent {provider}{pid}); whether your message for the turn was delivered is not \
             known, and the chat says so too"
        );
        let session = &self.row.session_id;
        let hint =
            format!("see what the agent did before you send it again: `ade chat show {session}`");
        RpcError::failed(kind, crate::actions::exit_code(kind), message).hint(hint)
    }

    /// Tells something of a message for this turn.
    fn tell_of(&mut self, turn: &TurnId, message: String) {
        let runs = self.machine.turn() == Some(turn);
        self.emit(Some(turn).filter(|_| runs), &notice(message));
    }

    /// What the worker took is promised once it is written down.
    fn steered(
        &mut self,
        response: &Response,
        turn: &TurnId,
        prompt: String,
    ) -> Result<Steered, RpcError> {
        let result = response
            .result
            .as_deref()
            .and_then(|raw| strict::from_str::<SteerResult>(raw.get()).ok());
        let outcome = match result {
            Some(SteerResult { outcome }) if response.ok => outcome,
            _ => return Err(refusal(response)),
        };
        self.said(turn, prompt);
        if !self.flush()
            && let Some(failure) = &self.broken
        {
            return Err(record::refusal(failure));
        }
        Ok(Steered {
            outcome,
            turn_id: None,
        })
    }

    /// A message for this turn was taken.
    fn said(&mut self, turn: &TurnId, prompt: String) {
        if self.machine.turn() == Some(turn) {
            let via = Via::Steer;
            self.emit(Some(turn), &Event::UserMessage { text: prompt, via });
        } else {
            // Nothing of a turn stands behind its end, and what the agent did with
            // the message is not known.
            self.emit(None, &notice(turn::steer_told_late(&prompt)));
        }
    }

    /// The run of a turn has ended: keeps for the turn's end what the agent had not
    /// read by then, by its worker's word.
    pub(super) async fn note_unread(
        &mut self,
        generation: Generation,
        turn: &TurnId,
        response: &Response,
    ) {
        if !self.machine.accepts(generation, Some(turn)) {
            return;
        }
        let replaced = self.machine.state() == State::Cancelling;
        let mut unanswered = self.unanswered(turn);
        let mut texts = Vec::new();
        for text in unread(response) {
            let asked = |(_, prompt): &(RequestId, String)| is_of(&text, prompt);
            let asked = unanswered.iter().position(asked);
            let asked = asked.map(|at| unanswered.swap_remove(at).0);
            if replaced && asked.is_some() {
                // It is lifted, and goes to the worker that comes.
                continue;
            }
            texts.push(text);
            if let Some(id) = asked {
                self.refuse_unread(&id).await;
            }
        }
        self.unread = Some((turn.clone(), texts));
    }

    /// What is told of them when the turn ends: it is written in one go with its
    /// end, so that no other broker tells it once more.
    pub(super) fn unread_at_end(&mut self, turn: &TurnId) -> Vec<Event> {
        let unread = self.unread.take_if(|(of, _)| of == turn);
        let texts = unread.map(|(_, texts)| texts).unwrap_or_default();
        let told = |text: String| notice(turn::steer_unread(false, &text));
        texts.into_iter().map(told).collect()
    }

    /// The messages for this turn of which nobody was told yet what became of them.
    fn unanswered(&self, turn: &TurnId) -> Vec<(RequestId, String)> {
        let Some(worker) = &self.worker else {
            return Vec::new();
        };
        let waits = |(id, pending): (&RequestId, &Pending)| match pending {
            Pending::Steer(steer) | Pending::Answered(_, steer) if steer.turn == *turn => {
                Some((id.clone(), steer.prompt.clone()))
            }
            _ => None,
        };
        worker.pending.iter().filter_map(waits).collect()
    }

    /// Whoever sent it must not hear later that it was taken.
    async fn refuse_unread(&mut self, id: &RequestId) {
        let worker = self.worker.as_mut();
        if let Some(pending) = worker.and_then(|worker| worker.pending.remove(id)) {
            self.forget_steer(id).await;
            let message = "the turn ended before the agent read the message";
            let hint = "send it again if you still want it";
            pending.refuse(&RpcError::failed("unread", exit::FAILED, message).hint(hint));
        }
    }

    /// Notes a message that is about to be sent to the worker.
    pub(super) async fn note_steer(
        &self,
        id: &RequestId,
        turn: &TurnId,
        prompt: &str,
    ) -> Result<(), RpcError> {
        let row = SteerRow {
            session_id: self.row.session_id.clone(),
            request_id: id.clone(),
            turn_id: turn.clone(),
            prompt: prompt.to_owned(),
            after: self.last_sequence(),
        };
        let noted = self.shared.state.run(move |state| state.put_steer(&row));
        noted.await.map_err(|error| {
            let refused = RpcError::failed("state", exit::FAILED, error.to_string());
            error.hints().into_iter().fold(refused, RpcError::hint)
        })
    }

    /// What became of it is known, or stands in the transcript.
    pub(super) async fn forget_steer(&mut self, id: &RequestId) {
        let id = id.clone();
        let gone = self.shared.state.run(move |state| state.remove_steer(&id));
        if let Err(error) = gone.await {
            // The next broker finds it in the transcript.
            tracing::error!(session = %self.row.session_id, %error, "a steer was not settled on disk");
        }
    }

    /// Takes back the messages whose answer the last broker did not live to hear.
    pub(super) async fn load_steers(&mut self) {
        let session = self.row.session_id.clone();
        let path = self.shared.home.transcript(&session);
        let rows = self.shared.state.run(move |state| state.steers(&session));
        let rows = match rows.await {
            Ok(rows) if rows.is_empty() => return,
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(session = %self.row.session_id, %error, "steers were not read");
                return;
            }
        };
        let read = tokio::task::spawn_blocking(move || said_already(&path, rows));
        let Ok(Left {
            told,
            taken,
            unsaid,
        }) = read.await
        else {
            return;
        };
        for row in told {
            self.forget_steer(&row.request_id).await;
        }
        for row in taken {
            self.taken(row.request_id, row.turn_id, row.prompt).await;
        }
        self.left_steers = unsaid;
        let taken_over = (self.starting.as_ref()).is_some_and(|starting| starting.takeover);
        if taken_over {
            return;
        }
        self.settle_left_steers(None).await;
        if let Some(turn) = self.machine.turn().cloned() {
            // It goes on with another worker than the one that took them.
            self.tell_let_go(&turn).await;
        }
    }

    /// The worker of the last broker has told what it knows of them, or is gone.
    pub(super) async fn settle_left_steers(&mut self, resumed: Option<&Resumed>) {
        let left = std::mem::take(&mut self.left_steers);
        let (taken, open) = resumed.map_or((&[][..], &[][..]), |resumed| {
            (&resumed.steers_taken[..], &resumed.steers_open[..])
        });
        for row in left {
            let (id, turn) = (row.request_id, row.turn_id);
            if open.contains(&id) {
                self.await_steer(id, turn, row.prompt);
                continue;
            }
            let is_taken = taken.contains(&id);
            if is_taken {
                self.said(&turn, row.prompt.clone());
            } else {
                self.tell_of(&turn, turn::steer_unknown(&row.prompt));
            }
            if !self.flush() {
                continue;
            }
            if is_taken {
                self.taken(id, turn, row.prompt).await;
            } else {
                self.forget_steer(&id).await;
            }
        }
    }

    /// Settles the messages that a worker did not take before it went away:
    /// while its turn is being recovered they wait, else they are refused.
    pub(super) async fn settle_lifted(&mut self) {
        for lifted in std::mem::take(&mut self.lifted) {
            let Lifted { id, steer, pid } = lifted;
            let Steer {
                turn,
                prompt,
                reply,
                overdue,
            } = steer;
            let its_own = self.machine.turn() == Some(&turn);
            let answer = if its_own && self.machine.is_replacing() {
                self.take_steer(prompt).await.map(|sent| Steered {
                    outcome: SteerOutcome::Queued,
                    turn_id: Some(sent.turn_id),
                })
            } else {
                self.tell_of(&turn, turn::steer_unknown(&prompt));
                self.flush();
                let (kind, why) = if overdue {
                    (code::TIMED_OUT, "the worker did not answer in time")
                } else {
                    let why = "the worker ended before it said whether it took the message";
                    ("worker_gone", why)
                };
                Err(self.unknown(kind, why, Some(pid)))
            };
            self.forget_steer(&id).await;
            // Whoever asked may have left.
            let _ = reply.send(answer);
        }
    }

    /// Tells of messages for the turn that were answered while it was not known
    /// whether it goes on with its worker: it does, or ended with it.
    pub(super) async fn settle_answered(&mut self) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        let answered = worker
            .pending
            .extract_if(|_, pending| matches!(pending, Pending::Answered(..)));
        let answered: Vec<Pending> = answered.map(|(_, pending)| pending).collect();
        for pending in answered {
            if let Pending::Answered(response, steer) = pending {
                self.steer_answered(&response, steer).await;
            }
        }
    }
}

/// Whether this names the message, by its beginning where it is long.
fn is_of(named: &str, prompt: &str) -> bool {
    let whole = named.chars().count() < SendResult::UNDELIVERED_CHARS;
    (whole && named == prompt) || (!whole && prompt.starts_with(named))
}

/// Whether a worker that says no does not know itself what its agent did.
fn is_unknown(response: &Response) -> bool {
    let unknown = [
        code::TIMED_OUT,
        code::HOST_EXITED,
        code::PROTOCOL_ERROR,
        code::FRAME_TOO_LONG,
        code::STOPPING,
    ];
    let said = response.error_code.as_deref();
    !response.ok && said.is_some_and(|said| unknown.contains(&said))
}

fn notice(message: String) -> Event {
    let level = NoticeLevel::Warn;
    Event::Notice { level, message }
}

/// What the end of a run says of messages that were not read; bounded.
fn unread(response: &Response) -> Vec<String> {
    let result = response.result.as_deref().filter(|_| response.ok);
    let result = result.and_then(|raw| strict::from_str::<SendResult>(raw.get()).ok());
    let mut unread = result.map(|result| result.undelivered).unwrap_or_default();
    unread.truncate(SendResult::MAX_UNDELIVERED);
    unread
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_not_read_is_told_by_an_end_and_bounded() {
        let many = vec!["x"; SendResult::MAX_UNDELIVERED + 1];
        let result = json!({"status": "completed", "undelivered": many});
        let mut response = Response::ok("t1".into(), &result);
        assert_eq!(unread(&response).len(), SendResult::MAX_UNDELIVERED);
        response.ok = false;
        assert_eq!(unread(&response), [""; 0]);
        assert_eq!(unread(&Response::ok("t1".into(), &())), [""; 0]);
    }
}
