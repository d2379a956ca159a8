//! Messages that wait: what clients ask about them and what stands on the disk.

use std::collections::BTreeSet;

use ade_protocol::action::{ChatInterrupted, ChatQueue, InterruptMode, QueuedMessage, Sent};
use ade_protocol::event::{Event, NoticeLevel, TurnStatus};
use ade_protocol::frame::code;
use ade_protocol::rpc::RpcError;
use ade_protocol::{TurnId, exit};

use super::actor::Actor;
use crate::clock;
use crate::state::QueuedRow;
use crate::turn::{Input, Interrupt, Mono, Queued, State};

/// What is asked about the queue.
#[derive(Clone, Debug)]
pub(crate) enum QueueAsk {
    /// Nothing: only show it.
    List,
    /// Another text.
    Edit { turn: TurnId, prompt: String },
    /// A message is not wanted any more.
    Cancel {
        turn: TurnId,
        /// Who says so, for people.
        by: String,
    },
    /// What was cleared is wanted after all.
    Recover,
}

impl Actor {
    /// Takes back what a broker that is gone left waiting. It was never sent.
    pub(super) async fn load_queue(&mut self) {
        let session = self.row.session_id.clone();
        let rows = self
            .shared
            .state
            .run(move |state| state.queue(&session))
            .await;
        match rows {
            Ok(rows) if rows.is_empty() => {}
            Ok(rows) => {
                let rows: Vec<_> = self.unsettled(rows).collect();
                let count = rows.len();
                let rows = rows.into_iter().map(|row| Queued {
                    turn: row.turn_id,
                    prompt: row.prompt,
                    steers: row.steers,
                });
                self.machine.restore_queue(rows);
                if self.machine.is_held() {
                    let message = format!(
                        "Messages that waited when the broker ended: {count}. They were not sent; \
                         they go first when you send the next one (`ade chat queue` shows and \
                         cancels them)."
                    );
                    let level = NoticeLevel::Warn;
                    self.emit(None, &Event::Notice { level, message });
                }
                self.flush();
                self.touch();
            }
            Err(error) => {
                tracing::error!(session = %self.row.session_id, %error, "the queue was not read");
            }
        }
    }

    /// Takes back what had been cleared for a moment when a broker died.
    pub(super) async fn load_cleared(&mut self) {
        let session = self.row.session_id.clone();
        let rows = self.shared.state.run(move |state| state.cleared(&session));
        match rows.await {
            Ok(rows) => {
                let rows = self.unsettled(rows).map(|row| Queued {
                    turn: row.turn_id,
                    prompt: row.prompt,
                    // The turn that a steer was meant for is over.
                    steers: None,
                });
                let (rows, now) = (rows.collect(), self.now());
                self.machine.restore_cleared(rows, now);
            }
            Err(error) => {
                tracing::error!(session = %self.row.session_id, %error, "what was cleared was not read");
            }
        }
    }

    /// Those whose end is not decided: only that of the others is not on disk.
    fn unsettled(&self, rows: Vec<QueuedRow>) -> impl Iterator<Item = QueuedRow> {
        let owed = self.owed.iter();
        let owed: BTreeSet<TurnId> = owed.map(|owed| owed.turn.clone()).collect();
        let open = move |row: &QueuedRow| !owed.contains(&row.turn_id);
        rows.into_iter().filter(open)
    }

    pub(super) fn queue_full(&self) -> RpcError {
        let message = format!("{} messages wait already", self.machine.queued());
        RpcError::failed("queue_full", exit::FAILED, message)
            .hint("wait for the running turn, or end it with `ade chat abort`")
    }

    pub(super) async fn queue_ask(&mut self, ask: QueueAsk) -> Result<ChatQueue, RpcError> {
        match ask {
            QueueAsk::List => {}
            QueueAsk::Edit { turn, prompt } => {
                self.must_wait(&turn)?;
                self.input(Input::EditQueued { turn, prompt }).await;
            }
            QueueAsk::Cancel { turn, by } => {
                self.must_wait(&turn)?;
                self.input(Input::CancelQueued { turn, by }).await;
            }
            QueueAsk::Recover => {
                if self.machine.recoverable() == 0 {
                    let message = "there is nothing to bring back; cleared messages can be \
                                   brought back for a few seconds only";
                    return Err(RpcError::failed("not_found", exit::USAGE, message));
                }
                let recovered = self.machine.recoverable().min(self.machine.room());
                self.input(Input::RecoverQueue).await;
                return Ok(ChatQueue {
                    recovered,
                    ..self.queue_list()
                });
            }
        }
        Ok(self.queue_list())
    }

    fn must_wait(&self, turn: &TurnId) -> Result<(), RpcError> {
        if self.machine.place(turn) > 0 {
            return Ok(());
        }
        if self.machine.turn() == Some(turn) {
            let message = format!("the message of {turn} is being sent already");
            return Err(RpcError::failed("already_sending", exit::FAILED, message)
                .hint("end its turn with `ade chat abort`"));
        }
        let message = format!("no message of {turn} waits");
        Err(RpcError::failed("not_found", exit::USAGE, message)
            .hint("`ade chat queue list` shows what waits"))
    }

    fn queue_list(&self) -> ChatQueue {
        let messages = self.machine.queue().map(|row| QueuedMessage {
            turn_id: row.turn.clone(),
            prompt: row.prompt.clone(),
            steer: row.steers.is_some(),
        });
        ChatQueue {
            messages: messages.collect(),
            held: self.machine.is_held(),
            recoverable: self.machine.recoverable(),
            recovered: 0,
        }
    }

    /// Sends a message in the running turn's place.
    pub(super) async fn interrupt(
        &mut self,
        prompt: String,
        mode: InterruptMode,
    ) -> Result<ChatInterrupted, RpcError> {
        let mode = match mode {
            InterruptMode::Continue => Interrupt::Continue,
            InterruptMode::Replace => Interrupt::Replace,
        };
        let running = self.machine.state() != State::Idle;
        if mode == Interrupt::Continue {
            let can = self
                .worker
                .as_ref()
                .is_none_or(|worker| worker.can_continue);
            if running && !can {
                let message = "this agent cannot go on with another message after a stop";
                return Err(RpcError::failed(code::UNSUPPORTED, exit::FAILED, message)
                    .hint("use the mode `replace`"));
            }
            if !self.machine.has_room() {
                return Err(self.queue_full());
            }
        }
        self.may_start()?;
        let (after, turn) = (self.last_sequence(), TurnId::generate());
        let ended = self.machine.turn().cloned();
        let turn_id = turn.clone();
        self.input(Input::Interrupt { turn, prompt, mode }).await;
        let cleared = match mode {
            Interrupt::Replace => self.machine.recoverable(),
            Interrupt::Continue => 0,
        };
        let promise = ChatInterrupted {
            turn_id,
            ended,
            cleared,
            after,
        };
        self.written(promise, |promise| &promise.turn_id).await
    }

    /// Queues a steer that no worker can take now, once it is written down.
    pub(super) async fn take_steer(&mut self, prompt: String) -> Result<Sent, RpcError> {
        let sent = self.queue_steer(prompt).await?;
        self.written(sent, |sent| &sent.turn_id).await
    }

    /// Passes on what was promised for a message, once that is on disk.
    pub(super) async fn written<T>(
        &mut self,
        promise: T,
        turn: impl Fn(&T) -> &TurnId,
    ) -> Result<T, RpcError> {
        self.flush();
        match self.broken.take() {
            None => Ok(promise),
            Some(failure) => Err(self.refuse_turn(turn(&promise), failure).await),
        }
    }

    /// Queues a steer that no worker can take now, or sends it.
    async fn queue_steer(&mut self, prompt: String) -> Result<Sent, RpcError> {
        self.may_start()?;
        if !self.machine.has_room() {
            return Err(self.queue_full());
        }
        let (after, turn) = (self.last_sequence(), TurnId::generate());
        let turn_id = turn.clone();
        self.input(Input::Steer { turn, prompt }).await;
        Ok(Sent {
            place: self.machine.place(&turn_id),
            turn_id,
            after,
        })
    }

    /// Tells that nothing was heard for long. Nothing else happens for it.
    pub(super) fn tell_quiet(&mut self, turn: &TurnId, since: Mono) {
        let message = format!("no output since {}", self.wall_clock(since));
        let level = NoticeLevel::Info;
        self.emit(Some(turn), &Event::Notice { level, message });
    }

    pub(super) async fn row_queued(&mut self, row: Queued, first: bool) {
        let row = QueuedRow {
            session_id: self.row.session_id.clone(),
            turn_id: row.turn,
            prompt: row.prompt,
            steers: row.steers,
            queued_at: clock::timestamp(),
            after: self.last_sequence(),
        };
        self.store("queue a message", move |state| {
            if first {
                state.enqueue_first(&row)
            } else {
                state.enqueue(&row)
            }
        })
        .await;
    }

    pub(super) async fn row_edited(&mut self, turn: TurnId, prompt: String) {
        let session = self.row.session_id.clone();
        self.store("edit a message", move |state| {
            state.edit_queued(&session, &turn, &prompt).map(drop)
        })
        .await;
    }

    pub(super) async fn row_cleared(&mut self, turn: TurnId) {
        let session = self.row.session_id.clone();
        self.store("clear a message", move |state| {
            state.clear_queued(&session, &turn).map(drop)
        })
        .await;
    }

    /// A message ends that never was a turn.
    pub(super) async fn row_dropped(&mut self, turn: TurnId, message: String) {
        let level = NoticeLevel::Warn;
        let notice = Event::Notice { level, message };
        self.emit(Some(&turn), &notice);
        // It was no turn: how the last one ended stays as it is.
        let (status, error) = (self.last_status, self.last_error.clone());
        self.finish(&turn, TurnStatus::Interrupted, None, None, None)
            .await;
        (self.last_status, self.last_error) = (status, error);
    }
}
