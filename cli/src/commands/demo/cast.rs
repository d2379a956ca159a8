//! Who plays in the demo, and what was seen of each. Pure.

use std::collections::BTreeSet;

use ade_protocol::action::SessionInfo;
use ade_protocol::card::CardOutcome;
use ade_protocol::event::{Event, TurnStatus};
use ade_protocol::{Seq, SessionId};
use tokio::time::Instant;

/// Silence after which the demo's hanging worker is replaced, in milliseconds.
pub(super) const FIRST_EVENT_MS: u64 = 1_500;
/// Fragments of text that count as streaming.
const STREAMING: u64 = 3;

/// What a chat is there to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Streams to its end.
    Streams,
    /// Asks a card in the middle.
    Asks,
    /// Says nothing until its worker is replaced.
    Hangs,
    /// Loses its worker by SIGKILL.
    Killed,
}

/// One chat of the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Name of the lane's folder.
    pub(super) lane: &'static str,
    /// What it shows.
    pub(super) role: Role,
    /// The same in a few words.
    pub(super) about: &'static str,
    /// Its script.
    pub(super) prompt: &'static str,
}

/// Three lanes, two chats each.
pub(super) const CAST: [Part; 6] = [
    Part {
        lane: "api",
        role: Role::Streams,
        about: "streams",
        prompt: "!reasoning Thinking about it first.\n!words 150 30",
    },
    Part {
        lane: "api",
        role: Role::Asks,
        about: "asks before it runs a command",
        prompt: "!words 30 30\n!card Run a command | rm -r build | bash\n!words 40 30",
    },
    Part {
        lane: "web",
        role: Role::Hangs,
        about: "its first worker hangs",
        prompt: "!hang-once\n!words 40 30",
    },
    Part {
        lane: "web",
        role: Role::Streams,
        about: "streams, with a tool",
        prompt: "!tool read src/main.rs\n!words 150 30",
    },
    Part {
        lane: "docs",
        role: Role::Streams,
        about: "streams",
        prompt: "!words 150 30",
    },
    Part {
        lane: "docs",
        role: Role::Killed,
        about: "its worker gets SIGKILL",
        prompt: "!words 2000 30",
    },
];

/// A chat and what was seen of it.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) part: Part,
    pub(super) session: SessionId,
    /// As the broker last told.
    pub(super) info: SessionInfo,
    pub(super) seen: Seen,
}

/// What was seen of a chat.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) events: u64,
    pub(super) texts: u64,
    pub(super) first_text: Option<Instant>,
    pub(super) last_text: Option<Instant>,
    pub(super) user_messages: u64,
    pub(super) cards: u64,
    pub(super) answered: u64,
    pub(super) tools: Vec<bool>,
    pub(super) notices: Vec<String>,
    pub(super) errors: Vec<String>,
    pub(super) done: Vec<TurnStatus>,
    pub(super) last: Seq,
    /// An event whose number was not the one after the last.
    pub(super) disorder: Option<String>,
    pub(super) workers: BTreeSet<i32>,
    pub(super) lease: bool,
}

impl Seen {
    /// Takes note of an event.
    pub(super) fn note(&mut self, sequence: Seq, event: &Event, now: Instant) {
        if !matches!(event, Event::Activity { .. }) {
            self.events += 1;
            if sequence != self.last.next() && self.disorder.is_none() {
                self.disorder = Some(format!("{sequence} after {}", self.last));
            }
            self.last = sequence;
        }
        match event {
            Event::Text { .. } => {
                self.texts += 1;
                self.first_text.get_or_insert(now);
                self.last_text = Some(now);
            }
            Event::UserMessage { .. } => self.user_messages += 1,
            Event::CardOpened { .. } => self.cards += 1,
            Event::CardResolved {
                resolution: CardOutcome::Answered { .. },
                ..
            } => self.answered += 1,
            Event::ToolResult { ok, .. } => self.tools.push(*ok),
            Event::Notice { message, .. } => self.notices.push(message.clone()),
            Event::Error { message, .. } => self.errors.push(message.clone()),
            Event::Done { status, .. } => self.done.push(*status),
            _ => {}
        }
    }

    /// Whether text comes and the turn is not over.
    pub(super) fn streams(&self) -> bool {
        self.texts >= STREAMING && self.done.is_empty()
    }
}

impl Actor {
    /// What it does now, in a word or two.
    pub(super) fn doing(&self) -> &'static str {
        match self.seen.done.first() {
            Some(TurnStatus::Completed) => "completed",
            Some(TurnStatus::Failed) => "failed",
            Some(_) => "interrupted",
            None if self.seen.cards > self.seen.answered => "asks",
            None if self.seen.texts > 0 => "streams",
            None if self.info.generation.0 > 1 => "starts again",
            None if self.seen.workers.is_empty() => "starts",
            None => "is silent",
        }
    }
}

/// How long all streamed at the same time; zero when they did not. The hanging
/// one has its own time.
pub(super) fn together(actors: &[Actor]) -> std::time::Duration {
    let streaming = || actors.iter().filter(|actor| actor.part.role != Role::Hangs);
    let last_first = streaming()
        .map(|actor| actor.seen.first_text)
        .max()
        .flatten();
    let first_last = streaming().filter_map(|actor| actor.seen.last_text).min();
    match (last_first, first_last) {
        (Some(begin), Some(end)) if streaming().all(|actor| actor.seen.first_text.is_some()) => {
            end.saturating_duration_since(begin)
        }
        _ => std::time::Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn numbers_must_follow_one_another() {
        let mut seen = Seen::default();
        let event = Event::Done {
            status: TurnStatus::Completed,
            stop_reason: None,
            usage: None,
        };
        let now = Instant::now();
        seen.note(Seq(1), &event, now);
        seen.note(
            Seq(1),
            &Event::Activity {
                text: String::new(),
            },
            now,
        );
        seen.note(Seq(2), &event, now);
        assert_eq!((seen.events, seen.disorder.clone()), (2, None));
        seen.note(Seq(4), &event, now);
        assert_eq!(seen.disorder.as_deref(), Some("4 after 2"));
    }

    #[test]
    fn together_is_from_the_last_beginning_to_the_first_end() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let actor = |role, first: u64, last: u64| Actor {
            part: Part {
                lane: "x",
                role,
                about: "",
                prompt: "",
            },
            session: "ses_1".into(),
            info: crate::resolve::tests::info("ses_1"),
            seen: Seen {
                first_text: Some(at(first)),
                last_text: Some(at(last)),
                ..Seen::default()
            },
        };
        let cast = [
            actor(Role::Streams, 0, 100),
            actor(Role::Asks, 40, 90),
            actor(Role::Hangs, 500, 600),
        ];
        assert_eq!(together(&cast), Duration::from_millis(50));
        let apart = [actor(Role::Streams, 0, 10), actor(Role::Asks, 40, 90)];
        assert_eq!(together(&apart), Duration::ZERO);
    }
}
