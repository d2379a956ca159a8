//! What a fresh agent is told of the chat: the transcript as text, for providers
//! that cannot resume a session.
//!
//! Pure but for reading the transcript. Messages of the user and of the agent
//! are told verbatim, results of tools shortened; the oldest are left out first
//! when all of it would not fit, and one header at the end says what the text
//! is. The message that is about to be sent is not part of it.

use std::collections::VecDeque;
use std::path::Path;

use ade_protocol::event::{Envelope, Event};
use ade_protocol::strict;
use ade_protocol::{Seq, TurnId};

use crate::transcript::{self, TranscriptError};

/// Bytes that are told when the size of the model's context is not known.
const DEFAULT_BOUND: usize = 256 * 1024;

/// Bytes of a tool's result that are told.
const RESULT_BOUND: usize = 2_000;

/// Bytes of a transcript that are read at once.
const PIECE: usize = 4 * 1024 * 1024;

/// What stands between the replay and the user's next message.
pub(super) const HEADER: &str = "[ade: continuity]";

/// How many bytes may be told to a model with a context of so many tokens: half
/// of it, at four bytes a token.
pub(super) fn bound(context_window: Option<u64>) -> usize {
    context_window.map_or(DEFAULT_BOUND, |tokens| {
        usize::try_from(tokens.saturating_mul(2)).unwrap_or(usize::MAX)
    })
}

/// The provider's ids of the agents, where they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Agents {
    /// The one that was told the chat last.
    pub(super) old: Option<String>,
    /// The one that is told it now.
    pub(super) new: Option<String>,
}

/// Reads the transcript and tells it. `None`: there is nothing to tell. Blocks.
pub(super) fn read(
    path: &Path,
    next: &TurnId,
    bound: usize,
    agents: &Agents,
) -> Result<Option<String>, TranscriptError> {
    let mut replay = Replay::new(bound);
    let mut after = Seq(0);
    loop {
        let page = transcript::read_after(path, after, PIECE)?;
        for (seq, line) in &page.events {
            after = *seq;
            let envelope = strict::from_slice::<Envelope<Event>>(line);
            if let Ok(envelope) = envelope
                && envelope.turn_id.as_ref() != Some(next)
            {
                replay.add(envelope.event);
            }
        }
        if page.reached_end || page.events.is_empty() {
            return Ok(replay.finish(agents));
        }
    }
}

/// Gathers entries, and forgets the oldest when they are too much.
struct Replay {
    bound: usize,
    size: usize,
    entries: VecDeque<String>,
    /// The agent's message that the last entry holds.
    speaking: Option<String>,
    trimmed: bool,
}

impl Replay {
    fn new(bound: usize) -> Self {
        Self {
            bound,
            size: 0,
            entries: VecDeque::new(),
            speaking: None,
            trimmed: false,
        }
    }

    fn add(&mut self, event: Event) {
        match event {
            Event::UserMessage { text, .. } => self.entry(format!("User: {text}"), None),
            Event::Text { message_id, text } => {
                if self.speaking.as_ref() == Some(&message_id) {
                    self.size += text.len();
                    if let Some(last) = self.entries.back_mut() {
                        last.push_str(&text);
                    }
                    self.trim();
                } else {
                    self.entry(format!("Agent: {text}"), Some(message_id));
                }
            }
            Event::ToolResult { name, text, .. } => {
                let text = cut(&text, RESULT_BOUND);
                self.entry(format!("Tool {name}: {text}"), None);
            }
            _ => {}
        }
    }

    fn entry(&mut self, text: String, speaking: Option<String>) {
        self.size += text.len();
        self.entries.push_back(text);
        self.speaking = speaking;
        self.trim();
    }

    fn trim(&mut self) {
        while self.size > self.bound && self.entries.len() > 1 {
            if let Some(oldest) = self.entries.pop_front() {
                self.size -= oldest.len();
                self.trimmed = true;
            }
        }
    }

    fn finish(self, agents: &Agents) -> Option<String> {
        if self.entries.is_empty() {
            return None;
        }
        let mut text = String::new();
        if self.trimmed {
            text.push_str("(What was said before this is left out.)\n\n");
        }
        for entry in &self.entries {
            text.push_str(entry);
            text.push_str("\n\n");
        }
        let named = |id: &Option<String>| {
            let id = id.as_deref().filter(|id| !id.is_empty());
            id.map_or_else(String::new, |id| format!(" ({id})"))
        };
        let (old, new) = (named(&agents.old), named(&agents.new));
        text.push_str(HEADER);
        text.push_str(&format!(
            " The agent of this conversation{old} could not go on and was replaced by you{new}. \
             Above is what was said; go on from there. The user's next message follows."
        ));
        Some(text)
    }
}

/// The beginning of a text, at a character's end.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use ade_protocol::event::Via;

    use super::*;

    fn user(text: &str) -> Event {
        Event::UserMessage {
            text: text.into(),
            via: Via::Send,
        }
    }

    fn said(message: &str, text: &str) -> Event {
        Event::Text {
            message_id: message.into(),
            text: text.into(),
        }
    }

    fn told(bound: usize, events: Vec<Event>) -> Option<String> {
        let mut replay = Replay::new(bound);
        for event in events {
            replay.add(event);
        }
        replay.finish(&Agents::default())
    }

    #[test]
    fn fragments_are_one_message_and_the_header_comes_once_at_the_end() {
        let text = told(
            1_000,
            vec![
                user("one"),
                said("a", "It "),
                said("a", "is."),
                said("b", "More."),
                user("two"),
            ],
        );
        let text = text.expect("a replay");
        let body = "User: one\n\nAgent: It is.\n\nAgent: More.\n\nUser: two\n\n";
        assert!(text.starts_with(body), "{text}");
        assert_eq!(text.matches(HEADER).count(), 1);
        assert!(told(1_000, Vec::new()).is_none(), "nothing was said");
    }

    #[test]
    fn the_header_names_the_agents_that_are_known() {
        let header = |old: Option<&str>, new: Option<&str>| {
            let mut replay = Replay::new(1_000);
            replay.add(user("one"));
            let agents = Agents {
                old: old.map(str::to_owned),
                new: new.map(str::to_owned),
            };
            let text = replay.finish(&agents).expect("a replay");
            text.split_once(HEADER).expect("one header").1.to_owned()
        };
        let both = header(Some("agent-1"), Some("agent-2"));
        let sentence = "The agent of this conversation (agent-1) could not go on and was replaced \
                        by you (agent-2).";
        assert!(both.contains(sentence), "{both}");
        for (old, new) in [(None, None), (Some(""), Some(""))] {
            let neither = header(old, new);
            let sentence = "this conversation could not go on and was replaced by you. Above";
            assert!(neither.contains(sentence), "{neither}");
        }
        let one = header(Some("agent-1"), None);
        assert!(
            one.contains("conversation (agent-1) could") && one.contains("by you."),
            "{one}"
        );
    }

    #[test]
    fn the_oldest_are_left_out_first() {
        let all = (0..100).map(|n| user(&format!("message {n:03}"))).collect();
        let text = told(200, all).expect("a replay");
        assert!(text.contains("message 099") && !text.contains("message 000"));
        assert!(text.starts_with("(What was said before"), "{text}");
        assert!(text.len() < 700, "{text}");
        let long = "x".repeat(5_000);
        let text = told(10, vec![user("old"), user(&long)]).expect("a replay");
        assert!(
            text.contains(&long) && !text.contains("old"),
            "the last one stays"
        );
    }

    #[test]
    fn what_a_tool_said_is_shortened_at_a_whole_character() {
        let result = Event::ToolResult {
            call_id: "c".into(),
            name: "bash".into(),
            ok: true,
            text: "ü".repeat(3_000),
        };
        let text = told(100_000, vec![result]).expect("a replay");
        assert!(text.contains("Tool bash: ü") && text.contains('…'));
        assert!(text.len() < 2_500);
    }
}
