//! What a transcript holds of messages for a turn that were on their way when a broker
//! died.

use std::path::Path;

use ade_protocol::event::{Envelope, Event, Via};
use ade_protocol::{Seq, TurnId, strict};

use crate::state::SteerRow;
use crate::{transcript, turn};

/// Bytes of a transcript that are read at once.
const PIECE: usize = 1024 * 1024;

/// What the transcript says of the messages that were on their way when a broker
/// died.
pub(super) struct Left {
    /// The chat was told what became of these.
    pub(super) told: Vec<SteerRow>,
    /// They were taken.
    pub(super) taken: Vec<SteerRow>,
    /// It says nothing of these.
    pub(super) unsaid: Vec<SteerRow>,
}

/// Parts messages by what the transcript holds of them. One that can't be read holds
/// nothing. Blocks.
pub(super) fn said_already(path: &Path, rows: Vec<SteerRow>) -> Left {
    let mut left = Left {
        told: Vec::new(),
        taken: Vec::new(),
        unsaid: rows,
    };
    let mut after = left.unsaid.iter().map(|row| row.after).min();
    while let Some(from) = after.filter(|_| !left.is_told()) {
        let Ok(page) = transcript::read_after(path, from, PIECE) else {
            break;
        };
        after = page.events.last().map(|(seq, _)| *seq);
        for (seq, line) in &page.events {
            if let Ok(envelope) = strict::from_slice::<Envelope<Event>>(line)
                && let Some(turn) = &envelope.turn_id
            {
                left.hear(*seq, turn, &envelope.event);
            }
        }
        if page.reached_end {
            break;
        }
    }
    left
}

impl Left {
    fn is_told(&self) -> bool {
        self.taken.is_empty() && self.unsaid.is_empty()
    }

    /// Takes what stands in the transcript of this turn.
    fn hear(&mut self, seq: Seq, turn: &TurnId, event: &Event) {
        let is = |row: &SteerRow| row.turn_id == *turn && seq > row.after;
        match event {
            Event::UserMessage { text, via } if *via == Via::Steer => {
                let said = |row: &SteerRow| is(row) && row.prompt == *text;
                if let Some(at) = self.unsaid.iter().position(said) {
                    self.taken.push(self.unsaid.remove(at));
                }
            }
            Event::Notice { message, .. } => {
                let texts = |row: &SteerRow| {
                    [
                        turn::steer_let_go(&row.prompt),
                        turn::steer_unread(true, &row.prompt),
                    ]
                };
                let told = |row: &SteerRow| is(row) && texts(row).contains(message);
                if let Some(at) = self.taken.iter().position(told) {
                    self.told.push(self.taken.remove(at));
                }
            }
            _ => {}
        }
    }
}
