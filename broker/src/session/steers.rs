//! Messages for the running turn that went to its worker: what is written of them
//! and told to whoever sent them.
//!
//! One that the worker took stands in its turn as said. When the turn's end says
//! that the agent had not read it, that is told in the same turn, before its end;
//! an end that is never heard says nothing. An answer that comes when the turn is
//! over belongs to no other turn.

use ade_protocol::action::Steered;
use ade_protocol::event::{Event, NoticeLevel, Via};
use ade_protocol::frame::{Response, SendResult, SteerOutcome, SteerResult};
use ade_protocol::rpc::RpcError;
use ade_protocol::{Generation, RequestId, TurnId, exit, strict};

use super::actor::Actor;
use super::frames::refusal;
use super::record;
use super::worker::Pending;
use crate::turn::{self, State};

impl Actor {
    /// A worker has answered to a message for `turn`. What it took is promised
    /// once it is written down.
    pub(super) fn steered(
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
        if self.machine.turn() == Some(turn) {
            let via = Via::Steer;
            self.emit(Some(turn), &Event::UserMessage { text: prompt, via });
        } else {
            // Nothing of a turn stands behind its end, and what the agent did with
            // the message is not known.
            self.emit(None, &notice(turn::steer_told_late(&prompt)));
        }
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

    /// The run of a turn has ended: keeps for the turn's end what the agent had not
    /// read by then, by its worker's word.
    pub(super) fn note_unread(
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
            let asked = |(_, prompt): &(RequestId, String)| prompt.starts_with(&text);
            let asked = unanswered.iter().position(asked);
            let asked = asked.map(|at| unanswered.swap_remove(at).0);
            if replaced && asked.is_some() {
                // It is lifted, and goes to the worker that comes.
                continue;
            }
            texts.push(text);
            if let Some(id) = asked {
                self.refuse_unread(&id);
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

    /// Tells of them although the turn has not ended: another worker takes it.
    pub(super) fn tell_unread(&mut self) {
        let Some((turn, texts)) = self.unread.take() else {
            return;
        };
        for text in texts {
            self.emit(Some(&turn), &notice(turn::steer_unread(true, &text)));
        }
    }

    /// The messages for this turn of which nobody was told yet what became of them.
    fn unanswered(&self, turn: &TurnId) -> Vec<(RequestId, String)> {
        let Some(worker) = &self.worker else {
            return Vec::new();
        };
        let waits = |(id, pending): (&RequestId, &Pending)| match pending {
            Pending::Steer {
                turn: of, prompt, ..
            }
            | Pending::Answered {
                turn: of, prompt, ..
            } if of == turn => Some((id.clone(), prompt.clone())),
            _ => None,
        };
        worker.pending.iter().filter_map(waits).collect()
    }

    /// Whoever sent it must not hear later that it was taken.
    fn refuse_unread(&mut self, id: &RequestId) {
        let worker = self.worker.as_mut();
        if let Some(pending) = worker.and_then(|worker| worker.pending.remove(id)) {
            let message = "the turn ended before the agent read the message";
            let hint = "send it again if you still want it";
            pending.refuse(&RpcError::failed("unread", exit::FAILED, message).hint(hint));
        }
    }

    /// Settles the messages that a worker did not take before it went away:
    /// while its turn is being recovered they wait, else they are refused.
    pub(super) async fn settle_lifted(&mut self) {
        for (turn, prompt, reply) in std::mem::take(&mut self.lifted) {
            let its_own = self.machine.turn() == Some(&turn);
            let answer = if its_own && self.machine.is_replacing() {
                self.take_steer(prompt).await.map(|sent| Steered {
                    outcome: SteerOutcome::Queued,
                    turn_id: Some(sent.turn_id),
                })
            } else {
                let message = "the worker went away before it said that it took the message";
                Err(RpcError::failed("worker_gone", exit::FAILED, message))
            };
            // Whoever asked may have left.
            let _ = reply.send(answer);
        }
    }

    /// Tells of messages for the turn that were answered while it was not known
    /// whether it goes on with its worker: it does, or ended with it.
    pub(super) fn settle_answered(&mut self) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        let answered = worker
            .pending
            .extract_if(|_, pending| matches!(pending, Pending::Answered { .. }));
        let answered: Vec<Pending> = answered.map(|(_, pending)| pending).collect();
        for pending in answered {
            if let Pending::Answered {
                response,
                turn,
                prompt,
                reply,
            } = pending
            {
                let steered = self.steered(&response, &turn, prompt);
                let _ = reply.send(steered);
            }
        }
    }
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
