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

#[cfg(test)]
mod tests {
    use ade_protocol::SessionId;

    use super::*;
    use crate::transcript::Transcript;

    const SESSION: &str = "s";

    fn steer(id: &str, turn: &str, prompt: &str, after: u64) -> SteerRow {
        SteerRow {
            session_id: SESSION.into(),
            request_id: id.into(),
            turn_id: turn.into(),
            prompt: prompt.into(),
            after: Seq(after),
        }
    }

    /// A transcript with these messages of users: turn, text and way.
    fn transcript(said: &[(&str, String, Via)]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("transcript.jsonl");
        let opened = Transcript::open(&path, SessionId::from(SESSION), Seq(0));
        let mut transcript = opened.expect("a transcript");
        for (turn, text, via) in said {
            let (text, via) = (text.clone(), *via);
            let event = serde_json::to_vec(&Event::UserMessage { text, via }).expect("a text");
            transcript.stage("t", Some(&TurnId::from(*turn)), None, &event);
        }
        transcript.commit().expect("written");
        (folder, path)
    }

    /// The requests of those that are left.
    fn left(path: &Path, rows: &[SteerRow]) -> Vec<String> {
        let left = said_already(path, rows.to_vec());
        let all = left.told.len() + left.taken.len() + left.unsaid.len();
        assert_eq!(all, rows.len());
        left.unsaid
            .iter()
            .map(|row| row.request_id.to_string())
            .collect()
    }

    #[test]
    fn a_steer_stands_in_the_transcript_only_as_what_it_is_and_once() {
        let (_folder, path) = transcript(&[
            ("t1", "go left".into(), Via::Steer),
            ("t1", "go right".into(), Via::Send),
        ]);
        let table = [
            (steer("a", "t1", "go left", 0), true),
            (steer("a", "t1", "go", 0), false),
            (steer("a", "t2", "go left", 0), false),
            // It was said before this one was sent.
            (steer("a", "t1", "go left", 1), false),
            // A message of its own, and no steer.
            (steer("a", "t1", "go right", 0), false),
        ];
        for (row, stands) in table {
            assert_eq!(
                left(&path, std::slice::from_ref(&row)).is_empty(),
                stands,
                "{row:?}"
            );
        }
        // Of two with the same words one was said.
        let two = ["a", "b"].map(|id| steer(id, "t1", "go left", 0));
        assert_eq!(left(&path, &two), ["b"]);
        // The newer one does not decide where to look for the older.
        let both = [
            steer("new", "t1", "other", 2),
            steer("old", "t1", "go left", 0),
        ];
        assert_eq!(left(&path, &both), ["new"]);
        let nowhere = path.with_extension("away");
        assert_eq!(left(&nowhere, &both), ["new", "old"]);
    }

    #[test]
    fn a_steer_is_found_behind_much_that_was_said() {
        let long = "x".repeat(PIECE / 2);
        let said = [
            ("t1", long.clone(), Via::Send),
            ("t1", long.clone(), Via::Send),
            ("t1", long, Via::Send),
            ("t1", "go left".to_owned(), Via::Steer),
        ];
        let (_folder, path) = transcript(&said);
        assert!(left(&path, &[steer("a", "t1", "go left", 0)]).is_empty());
    }
}
