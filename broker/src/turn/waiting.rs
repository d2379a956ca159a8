//! Messages that wait: behind the running turn, or for the user.

use ade_protocol::TurnId;

use super::machine::{Cleared, Machine};
use super::{Effect, Interrupt, MAX_QUEUE, Mono, Queued, State, texts};

impl Machine {
    /// Takes back the messages that a broker which is gone left waiting. They
    /// were never sent. Without a running turn they are held until the user's
    /// next message. A steer belongs to its turn if that one goes on.
    pub fn restore_queue(&mut self, rows: impl IntoIterator<Item = Queued>) {
        let running = self.turn().cloned();
        let rows = rows.into_iter().map(|row| Queued {
            steers: row.steers.filter(|turn| running.as_ref() == Some(turn)),
            ..row
        });
        self.queue.extend(rows);
        self.held = self.state == State::Idle;
    }

    /// Takes back the messages that were cleared when a broker died. How long
    /// ago that was does not count: whoever wants them back could not say so.
    pub fn restore_cleared(&mut self, rows: Vec<Queued>, now: Mono) {
        if !rows.is_empty() {
            let until = now + self.rules.timing.queue_recovery;
            self.cleared = Some(Cleared { rows, until });
        }
    }

    /// Messages that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The messages that wait, next one first.
    pub fn queue(&self) -> impl Iterator<Item = &Queued> {
        self.queue.iter()
    }

    /// Place of a message that waits, from 1; 0: it runs, or is not known.
    #[must_use]
    pub fn place(&self, turn: &TurnId) -> usize {
        self.queue
            .iter()
            .position(|row| row.turn == *turn)
            .map_or(0, |index| index + 1)
    }

    /// Whether the queue waits for the user's next message.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held && !self.queue.is_empty()
    }

    /// Messages that can be brought back.
    #[must_use]
    pub fn recoverable(&self) -> usize {
        self.cleared
            .as_ref()
            .map_or(0, |cleared| cleared.rows.len())
    }

    /// Whether another message fits.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// How many more messages fit.
    #[must_use]
    pub fn room(&self) -> usize {
        MAX_QUEUE.saturating_sub(self.queue.len())
    }

    pub(super) fn send(&mut self, turn: TurnId, prompt: String, now: Mono, out: &mut Vec<Effect>) {
        if self.state == State::Idle && self.queue.is_empty() {
            self.begin(turn, prompt, now, out);
            return;
        }
        self.enqueue(turn, prompt, None, out);
        if self.state == State::Idle {
            // The user is there again: what was held goes first.
            self.next(now, out);
        }
    }

    pub(super) fn steer(&mut self, turn: TurnId, prompt: String, now: Mono, out: &mut Vec<Effect>) {
        let into = match (self.state, &self.running) {
            // Said after the end was asked for: it is meant for what comes then.
            (State::Interrupting | State::Stopping, _) => None,
            (_, Some(running)) if !running.stop_requested => Some(running.id.clone()),
            _ => None,
        };
        match into {
            Some(into) => self.enqueue(turn, prompt, Some(into), out),
            None => self.send(turn, prompt, now, out),
        }
    }

    pub(super) fn enqueue(
        &mut self,
        turn: TurnId,
        prompt: String,
        steers: Option<TurnId>,
        out: &mut Vec<Effect>,
    ) {
        let row = Queued {
            turn,
            prompt,
            steers,
        };
        out.push(Effect::Enqueue {
            row: row.clone(),
            first: false,
        });
        self.queue.push_back(row);
    }

    pub(super) fn interrupt(
        &mut self,
        turn: TurnId,
        prompt: String,
        mode: Interrupt,
        now: Mono,
        out: &mut Vec<Effect>,
    ) {
        if mode == Interrupt::Replace {
            self.clear_queue(now, out);
        }
        let row = Queued {
            turn,
            prompt,
            steers: None,
        };
        out.push(Effect::Enqueue {
            row: row.clone(),
            first: true,
        });
        self.queue.push_front(row);
        let within = match mode {
            Interrupt::Continue => self.rules.timing.interrupt,
            Interrupt::Replace => self.rules.timing.abort,
        };
        match self.state {
            State::Idle => self.next(now, out),
            _ => self.end_running(now + within, now, out),
        }
    }

    /// Takes every message out of the queue; they can be brought back for a
    /// moment.
    pub(super) fn clear_queue(&mut self, now: Mono, out: &mut Vec<Effect>) {
        if self.queue.is_empty() {
            return;
        }
        self.drop_cleared(out);
        let rows: Vec<Queued> = self.queue.drain(..).collect();
        out.extend(rows.iter().map(|row| Effect::Clear(row.turn.clone())));
        let until = now + self.rules.timing.queue_recovery;
        self.cleared = Some(Cleared { rows, until });
    }

    /// The moment is over: the cleared messages end.
    pub(super) fn drop_cleared(&mut self, out: &mut Vec<Effect>) {
        if let Some(cleared) = self.cleared.take() {
            let rows = cleared.rows.into_iter();
            out.extend(rows.map(|row| dropped(row, texts::CLEARED)));
        }
    }

    pub(super) fn recover_queue(&mut self, now: Mono, out: &mut Vec<Effect>) {
        let Some(cleared) = self.cleared.take() else {
            return;
        };
        for row in cleared.rows {
            if self.has_room() {
                // The turn that a steer was meant for is over.
                self.enqueue(row.turn, row.prompt, None, out);
            } else {
                out.push(dropped(row, texts::NO_ROOM));
            }
        }
        if self.state == State::Idle && !self.held {
            self.next(now, out);
        }
    }

    pub(super) fn edit(&mut self, turn: TurnId, prompt: String, out: &mut Vec<Effect>) {
        if let Some(row) = self.queue.iter_mut().find(|row| row.turn == turn) {
            row.prompt.clone_from(&prompt);
            out.push(Effect::Edit { turn, prompt });
        }
    }

    pub(super) fn cancel(&mut self, turn: &TurnId, by: &str, out: &mut Vec<Effect>) {
        let place = self.queue.iter().position(|row| row.turn == *turn);
        if let Some(row) = place.and_then(|place| self.queue.remove(place)) {
            let notice = texts::cancelled(by, &row.prompt);
            out.push(Effect::Drop {
                turn: row.turn,
                notice,
            });
        }
    }

    /// Drops the messages that were meant to go into this turn.
    pub(super) fn drop_steers(&mut self, of: &TurnId, why: &str, out: &mut Vec<Effect>) {
        let queue = std::mem::take(&mut self.queue);
        for row in queue {
            if row.steers.as_ref() == Some(of) {
                out.push(dropped(row, why));
            } else {
                self.queue.push_back(row);
            }
        }
    }
}

/// A message that waited ends without ever having been sent.
pub(super) fn dropped(row: Queued, why: &str) -> Effect {
    let notice = texts::unsent(why, &row.prompt);
    Effect::Drop {
        turn: row.turn,
        notice,
    }
}
