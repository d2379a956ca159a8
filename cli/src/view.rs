//! What an event looks like. Pure: events in, pieces of text out.
//!
//! Fragments of an answer stay verbatim; everything else becomes one line that
//! cannot steer the terminal.

use std::collections::VecDeque;

use ade_protocol::RequestId;
use ade_protocol::card::{CardKind, CardOutcome, Withdrawal};
use ade_protocol::event::{ErrorCategory, Event, NoticeLevel, TurnStatus, Via};

use crate::output::Style;
use crate::table::{clipped, one_line};

/// Longest line that is made of a tool's input or answer, in characters.
const LINE: usize = 110;

/// Questions with hidden answers that are remembered.
const SECRETS: usize = 64;

/// What to do when the model's provider refused who asks. ade has no keys and no
/// sign-in of its own.
const SIGN_IN: &str = "  hint: sign in with the agent itself (pi: start it and use /login), or correct \
     its key; keys in the environment are those of the broker: `ade stop`, then start it with the new one";

/// One thing to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A fragment of the answer, verbatim.
    Answer(String),
    /// The next fragment belongs to another message: it begins a line.
    NewMessage,
    /// A fragment of running text beside the answer.
    Aside(String),
    /// A line beside the answer.
    Line(Style, String),
    /// What goes on, until something else does.
    Activity(String),
}

/// Turns the events of one session into pieces.
#[derive(Debug, Default)]
pub(crate) struct View {
    message: Option<String>,
    /// Whether what users said is shown: yes where several turns are.
    show_user: bool,
    /// The newest questions that hide their answers.
    secrets: VecDeque<RequestId>,
}

impl View {
    /// Shows what users said only when told so.
    #[must_use]
    pub(crate) fn new(show_user: bool) -> Self {
        Self {
            show_user,
            ..Self::default()
        }
    }

    /// What to show for `event`, in order.
    #[must_use]
    pub(crate) fn pieces(&mut self, event: &Event) -> Vec<Piece> {
        let line = |style, text: String| vec![Piece::Line(style, text)];
        match event {
            Event::Text { message_id, text } => self.fragment(message_id, text),
            Event::Reasoning { text, .. } => vec![Piece::Aside(text.clone())],
            Event::UserMessage { text, via } => {
                self.message = None;
                self.user(text, *via)
            }
            Event::ToolCall { name, input, .. } => line(
                Style::Accent,
                format!("→ {} {}", one_line(name), input_line(input)),
            ),
            Event::ToolResult { name, ok, text, .. } => {
                let (style, mark) = if *ok {
                    (Style::Dim, '✓')
                } else {
                    (Style::Warn, '✗')
                };
                line(
                    style,
                    format!(
                        "{mark} {} {}",
                        one_line(name),
                        clipped(first_line(text), LINE)
                    ),
                )
            }
            Event::Error {
                category,
                message,
                detail,
            } => {
                let mut pieces = error_lines(message, detail.as_deref());
                if *category == ErrorCategory::Auth {
                    pieces.push(Piece::Line(Style::Dim, SIGN_IN.into()));
                }
                pieces
            }
            Event::Notice { level, message } => line(notice_style(*level), one_line(message)),
            Event::Activity { text } => vec![Piece::Activity(one_line(text))],
            Event::ContextCompact { phase, message } => {
                let more = message.as_deref().map(|m| format!(": {}", one_line(m)));
                line(
                    Style::Dim,
                    format!("context: {}{}", one_line(phase), more.unwrap_or_default()),
                )
            }
            Event::CardOpened { card } => {
                if card.payload.kind == CardKind::Secret {
                    self.secrets.truncate(SECRETS - 1);
                    self.secrets.push_front(card.card_id.clone());
                }
                let subject = card
                    .payload
                    .title
                    .as_deref()
                    .unwrap_or(&card.payload.message);
                line(Style::Warn, format!("? {}", clipped(subject, LINE)))
            }
            Event::CardResolved {
                card_id,
                resolution,
            } => line(
                Style::Dim,
                resolved(resolution, self.secrets.contains(card_id)),
            ),
            Event::Done { status, .. } => {
                self.message = None;
                done_lines(*status)
            }
            Event::Status { .. } | Event::ContextUsage { .. } | Event::Unknown => Vec::new(),
        }
    }

    fn fragment(&mut self, message: &str, text: &str) -> Vec<Piece> {
        let answer = Piece::Answer(text.to_owned());
        match self.message.replace(message.to_owned()) {
            Some(before) if before != message => vec![Piece::NewMessage, answer],
            _ => vec![answer],
        }
    }

    fn user(&self, text: &str, via: Via) -> Vec<Piece> {
        if !self.show_user {
            return Vec::new();
        }
        let mark = match via {
            Via::Send => "›",
            Via::Steer => "»",
        };
        text.lines()
            .map(|line| Piece::Line(Style::Bold, format!("{mark} {}", one_line(line))))
            .collect()
    }
}

fn error_lines(message: &str, detail: Option<&str>) -> Vec<Piece> {
    let mut pieces = vec![Piece::Line(
        Style::Bad,
        format!("error: {}", one_line(message)),
    )];
    let detail = detail
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.starts_with("kind: "));
    pieces.extend(
        detail
            .filter(|line| !line.trim().is_empty())
            .map(|line| Piece::Line(Style::Dim, format!("  {}", one_line(line)))),
    );
    pieces
}

fn done_lines(status: TurnStatus) -> Vec<Piece> {
    match status {
        TurnStatus::Completed | TurnStatus::Started => Vec::new(),
        TurnStatus::Interrupted => {
            vec![Piece::Line(Style::Warn, "the turn was interrupted".into())]
        }
        TurnStatus::Failed => vec![Piece::Line(Style::Bad, "the turn failed".into())],
    }
}

fn notice_style(level: NoticeLevel) -> Style {
    match level {
        NoticeLevel::Info | NoticeLevel::Progress => Style::Dim,
        NoticeLevel::Warn => Style::Warn,
        NoticeLevel::Error => Style::Bad,
    }
}

/// How a card ended, in words. `secret`: its answer is told to nobody.
#[must_use]
pub(crate) fn resolved(outcome: &CardOutcome, secret: bool) -> String {
    match outcome {
        CardOutcome::Answered {
            by,
            value: Some(value),
        } => {
            format!("answered by {}: {}", one_line(by), clipped(value, 60))
        }
        CardOutcome::Answered { by, value: None } if secret => {
            format!("answered by {}", one_line(by))
        }
        CardOutcome::Answered { by, value: None } => format!("declined by {}", one_line(by)),
        CardOutcome::AllowedForSession => "allowed for this session".into(),
        CardOutcome::Withdrawn { why } => format!("question withdrawn: {}", withdrawn(*why)),
    }
}

fn withdrawn(why: Withdrawal) -> &'static str {
    match why {
        Withdrawal::Aborted => "the turn was aborted",
        Withdrawal::TurnEnded => "the turn ended",
        Withdrawal::WorkerGone => "the worker ended",
        Withdrawal::Recycled => "the worker was replaced",
        Withdrawal::Cancelled => "the agent settled it itself",
        Withdrawal::TimedOut => "nobody answered in time",
        Withdrawal::Stopped => "the chat was stopped",
        Withdrawal::ShuttingDown => "the broker is stopping, or the chat is being deleted",
    }
}

/// The arguments of a tool as one short line: the value alone where there is
/// one telling field, else compact JSON.
#[must_use]
pub(crate) fn input_line(input: &serde_json::Value) -> String {
    const TELLING: [&str; 7] = [
        "command",
        "path",
        "file_path",
        "file",
        "pattern",
        "query",
        "url",
    ];
    if let Some(text) = input.as_str() {
        return clipped(text, LINE);
    }
    let telling = TELLING.iter().find_map(|name| input.get(name)?.as_str());
    match telling {
        Some(text) => clipped(text, LINE),
        None if input.is_null() => String::new(),
        None => clipped(&input.to_string(), LINE),
    }
}

fn first_line(text: &str) -> &str {
    text.lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(json: &str) -> Event {
        serde_json::from_str(json).expect("an event")
    }

    #[test]
    fn fragments_stay_verbatim_and_messages_are_parted() {
        let mut view = View::default();
        let mut shown = Vec::new();
        for line in [
            r#"{"type":"text","messageId":"1","text":"a \u001b[1m"}"#,
            r#"{"type":"text","messageId":"1","text":"b\n"}"#,
            r#"{"type":"text","messageId":"2","text":"c"}"#,
        ] {
            shown.extend(view.pieces(&event(line)));
        }
        let answer = |text: &str| Piece::Answer(text.into());
        assert_eq!(
            shown,
            [
                answer("a \u{1b}[1m"),
                answer("b\n"),
                Piece::NewMessage,
                answer("c")
            ]
        );
    }

    #[test]
    fn everything_else_is_one_line_each() {
        let table = [
            (
                r#"{"type":"tool_call","callId":"1","name":"bash","input":{"command":"ls\n-la","timeout":3}}"#,
                "→ bash ls -la",
            ),
            (
                r#"{"type":"tool_result","callId":"1","name":"bash","ok":false,"text":"\ndenied\nmore"}"#,
                "✗ bash denied",
            ),
            (
                r#"{"type":"notice","level":"warn","message":"a\u001b[2Jb"}"#,
                "a [2Jb",
            ),
            (
                r#"{"type":"done","status":"interrupted"}"#,
                "the turn was interrupted",
            ),
            (
                r#"{"type":"card_resolved","cardId":"1","resolution":{"outcome":"withdrawn","why":"timed_out"}}"#,
                "question withdrawn: nobody answered in time",
            ),
        ];
        for (json, expected) in table {
            let pieces = View::default().pieces(&event(json));
            let [Piece::Line(_, text)] = pieces.as_slice() else {
                panic!("{json}: {pieces:?}")
            };
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn the_brokers_kind_is_for_programs_and_unknown_events_are_silent() {
        let json = r#"{"type":"error","category":"lease","message":"held","detail":"kind: held\nstop it\n"}"#;
        assert_eq!(
            View::default().pieces(&event(json)),
            [
                Piece::Line(Style::Bad, "error: held".into()),
                Piece::Line(Style::Dim, "  stop it".into()),
            ]
        );
        assert!(
            View::default()
                .pieces(&event(r#"{"type":"from_the_future","x":1}"#))
                .is_empty()
        );
    }
}
