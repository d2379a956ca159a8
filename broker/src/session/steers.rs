//! Messages for the running turn that went to its worker: what is written of them
//! and told to whoever sent them.
//!
//! One that the worker took stands in its turn as said. When the turn's end says
//! that the agent had not read it, that is told in the same turn, before its end;
//! an end that is never heard says nothing. An answer that comes when the turn is
//! over belongs to no other turn.
//!
//! Each stands in `state.db` while it is on its way. When its broker dies in between,
//! the worker tells the next one whether its agent took it; of one of which it knows
//! nothing, or that has no worker any more, the chat is told just that.

use std::path::Path;

use ade_protocol::action::Steered;
use ade_protocol::event::{Envelope, Event, NoticeLevel, Via};
use ade_protocol::frame::{Response, SendResult, SteerOutcome, SteerResult};
use ade_protocol::rpc::RpcError;
use ade_protocol::{Generation, RequestId, Seq, TurnId, exit, strict};

use super::Reply;
use super::actor::Actor;
use super::adopt::Resumed;
use super::frames::refusal;
use super::record;
use super::worker::Pending;
use crate::state::SteerRow;
use crate::transcript;
use crate::turn::{self, State};

/// Bytes of a transcript that are read at once.
const PIECE: usize = 1024 * 1024;

/// A message for a turn, and who waits to hear that its worker took it.
pub(super) struct Steer {
    pub(super) turn: TurnId,
    pub(super) prompt: String,
    pub(super) reply: Reply<Steered>,
}

/// One whose worker went away before it said that it took it.
pub(super) struct Lifted {
    pub(super) id: RequestId,
    pub(super) steer: Steer,
}

impl Actor {
    /// A worker has answered to a message for a turn.
    pub(super) async fn steer_answered(&mut self, response: &Response, steer: Steer) {
        let Steer {
            turn,
            prompt,
            reply,
        } = steer;
        // Whoever sent it may be gone, with the last broker above all.
        let unheard = reply.is_closed().then(|| prompt.clone());
        let steered = self.steered(response, &turn, prompt);
        if let (Err(_), Some(prompt)) = (&steered, unheard) {
            self.tell_of(&turn, turn::steer_refused(&prompt));
        }
        if self.flush() {
            self.forget_steer(&response.request_id).await;
        }
        let _ = reply.send(steered);
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
            let asked = |(_, prompt): &(RequestId, String)| prompt.starts_with(&text);
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
        let Ok((said, left)) = read.await else { return };
        for row in said {
            self.forget_steer(&row.request_id).await;
        }
        self.left_steers = left;
        let taken_over = (self.starting.as_ref()).is_some_and(|starting| starting.takeover);
        if !taken_over {
            self.settle_left_steers(None).await;
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
            if taken.contains(&id) {
                self.said(&turn, row.prompt);
            } else {
                self.tell_of(&turn, turn::steer_unknown(&row.prompt));
            }
            if self.flush() {
                self.forget_steer(&id).await;
            }
        }
    }

    /// Settles the messages that a worker did not take before it went away:
    /// while its turn is being recovered they wait, else they are refused.
    pub(super) async fn settle_lifted(&mut self) {
        for lifted in std::mem::take(&mut self.lifted) {
            let Lifted { id, steer } = lifted;
            let Steer {
                turn,
                prompt,
                reply,
            } = steer;
            let its_own = self.machine.turn() == Some(&turn);
            let answer = if its_own && self.machine.is_replacing() {
                self.take_steer(prompt).await.map(|sent| Steered {
                    outcome: SteerOutcome::Queued,
                    turn_id: Some(sent.turn_id),
                })
            } else {
                if reply.is_closed() {
                    self.tell_of(&turn, turn::steer_unknown(&prompt));
                    self.flush();
                }
                let message = "the worker went away before it said that it took the message";
                Err(RpcError::failed("worker_gone", exit::FAILED, message))
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

/// Parts messages into those that the transcript holds and the others. One that
/// can't be read holds none. Blocks.
fn said_already(path: &Path, rows: Vec<SteerRow>) -> (Vec<SteerRow>, Vec<SteerRow>) {
    let (mut said, mut left) = (Vec::new(), rows);
    let mut after = left.iter().map(|row| row.after).min().unwrap_or(Seq(0));
    while !left.is_empty() {
        let Ok(page) = transcript::read_after(path, after, PIECE) else {
            break;
        };
        for (seq, line) in &page.events {
            after = *seq;
            let Ok(envelope) = strict::from_slice::<Envelope<Event>>(line) else {
                continue;
            };
            let text = match envelope.event {
                Event::UserMessage {
                    text,
                    via: Via::Steer,
                } => text,
                _ => continue,
            };
            let is = |row: &SteerRow| {
                row.prompt == text
                    && *seq > row.after
                    && Some(&row.turn_id) == envelope.turn_id.as_ref()
            };
            if let Some(at) = left.iter().position(is) {
                said.push(left.remove(at));
            }
        }
        if page.reached_end || page.events.is_empty() {
            break;
        }
    }
    (said, left)
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
