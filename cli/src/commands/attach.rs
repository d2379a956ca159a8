//! `ade attach`: a chat followed live, with a prompt line.

use ade_protocol::action::{ChatSend, ChatSteer, Sent, SessionInfo, Steered, name};
use ade_protocol::event::{Event, TurnStatus};
use ade_protocol::{Seq, SessionId, TurnId, exit};

use super::run::who_answers;
use crate::args::Attach;
use crate::client::{QUICK, WORKER};
use crate::context::Context;
use crate::error::CommandError;
use crate::live::{Live, Options, Wake};
use crate::output::Style;
use crate::table::{short_id, tilde};

const HELP: &str =
    "/abort ends the turn · /steer TEXT goes into it · /quit leaves · all else is sent";

/// What a typed line is.
#[derive(Debug, PartialEq, Eq)]
enum Typed<'a> {
    Nothing,
    Message(&'a str),
    Steer(&'a str),
    Abort,
    Quit,
    Help,
}

fn typed(line: &str) -> Typed<'_> {
    let text = line.trim();
    let Some(command) = text.strip_prefix('/') else {
        return if text.is_empty() {
            Typed::Nothing
        } else {
            Typed::Message(line)
        };
    };
    let (word, rest) = command
        .split_once(char::is_whitespace)
        .unwrap_or((command, ""));
    match (word, rest.trim()) {
        ("abort", "") => Typed::Abort,
        ("quit" | "q" | "exit", "") => Typed::Quit,
        ("steer", text) if !text.is_empty() => Typed::Steer(text),
        // A path or a word with a slash is what somebody wants to say.
        (word, _) if word.contains('/') => Typed::Message(line),
        _ => Typed::Help,
    }
}

/// Follows a chat and sends what is typed.
pub(super) async fn run(context: &Context, arguments: &Attach) -> Result<(), CommandError> {
    let mut client = context.broker().await?;
    let info = context.session(&mut client, &arguments.session).await?;
    tell(context, &info);
    let options = Options {
        session: info.session_id.clone(),
        after: Seq(info.last_sequence.0.saturating_sub(arguments.last)),
        history: info.last_sequence,
        turn: None,
        answers: who_answers(context, false).or_elsewhere(),
        show_user: true,
    };
    let mut live = Live::start(context, client, options).await?;
    live.set_busy(info.turn_id.is_some());
    let mut session = Attached {
        id: info.session_id,
        turn: info.turn_id,
        waiting: info.queued,
        input_ended: false,
    };
    loop {
        let woken = live.next(!session.input_ended).await?;
        if session.handle(context, &mut live, woken).await? == Next::Leave {
            return Ok(());
        }
    }
}

fn tell(context: &Context, info: &SessionInfo) {
    let home = std::env::var("HOME").ok();
    let text = format!(
        "{} · {} in {} · {}",
        short_id(info.session_id.as_str()),
        info.provider,
        tilde(&info.lane, home.as_deref()),
        info.state.replace('_', " "),
    );
    context.out.note(Style::Dim, &text);
    context.out.note(Style::Dim, HELP);
}

#[derive(PartialEq, Eq)]
enum Next {
    Stay,
    Leave,
}

struct Attached {
    id: SessionId,
    turn: Option<TurnId>,
    /// Messages queued behind the running turn.
    waiting: usize,
    input_ended: bool,
}

impl Attached {
    async fn handle(
        &mut self,
        context: &Context,
        live: &mut Live<'_>,
        woken: Wake,
    ) -> Result<Next, CommandError> {
        match woken {
            Wake::Event(envelope) => {
                self.note(live, envelope.turn_id, &envelope.event);
                let over = self.input_ended && self.turn.is_none() && self.waiting == 0;
                return Ok(if over { Next::Leave } else { Next::Stay });
            }
            Wake::Typed(Some(line)) => return self.line(context, live, &line).await,
            // A pipe that has said everything waits for the answer.
            Wake::Typed(None) if self.turn.is_some() && !live.person_types() => {
                self.input_ended = true;
            }
            Wake::Typed(None) => return Ok(Next::Leave),
            Wake::Interrupt if self.turn.is_none() => return Ok(Next::Leave),
            Wake::Interrupt => {
                context.out.must_note(Style::Warn, "ending the turn");
                self.abort(context, live).await?;
            }
        }
        Ok(Next::Stay)
    }

    fn note(&mut self, live: &mut Live<'_>, turn: Option<TurnId>, event: &Event) {
        match event {
            Event::Status {
                status: TurnStatus::Started,
            } if turn != self.turn => {
                self.waiting = self.waiting.saturating_sub(1);
                self.turn = turn.or(self.turn.take());
                live.set_busy(true);
            }
            Event::Done { .. } if self.turn.is_none() || self.turn == turn => {
                self.turn = None;
                live.set_busy(false);
            }
            _ => {}
        }
    }

    async fn line(
        &mut self,
        context: &Context,
        live: &mut Live<'_>,
        line: &str,
    ) -> Result<Next, CommandError> {
        let told = match typed(line) {
            Typed::Nothing => Ok(()),
            Typed::Help => {
                context.out.must_note(Style::Dim, HELP);
                Ok(())
            }
            Typed::Quit => return Ok(Next::Leave),
            Typed::Abort => self.abort(context, live).await,
            Typed::Steer(text) => self.steer(context, live, text).await,
            Typed::Message(text) => self.send(context, live, text).await,
        };
        match told {
            Ok(()) => Ok(Next::Stay),
            // What the broker refuses is told; the view goes on.
            Err(error) if error.code() != exit::NO_BROKER && !error.is_silent() => {
                context.out.error_beside(&error);
                Ok(Next::Stay)
            }
            Err(error) => Err(error),
        }
    }

    async fn send(
        &mut self,
        context: &Context,
        live: &mut Live<'_>,
        text: &str,
    ) -> Result<(), CommandError> {
        let send = ChatSend {
            session_id: self.id.clone(),
            prompt: text.to_owned(),
            retry: false,
        };
        let sent: Sent = live.calls.call(name::CHAT_SEND, &send, QUICK).await?;
        if sent.place > 0 {
            self.waiting += 1;
            context
                .out
                .note(Style::Dim, &format!("queued, place {}", sent.place));
        } else {
            self.turn = Some(sent.turn_id);
            live.set_busy(true);
        }
        Ok(())
    }

    async fn steer(
        &mut self,
        context: &Context,
        live: &mut Live<'_>,
        text: &str,
    ) -> Result<(), CommandError> {
        let steer = ChatSteer {
            session_id: self.id.clone(),
            prompt: text.to_owned(),
        };
        let steered: Steered = live.calls.call(name::CHAT_STEER, &steer, WORKER).await?;
        if steered.turn_id.is_some() {
            context.out.note(Style::Dim, "queued as the next turn");
        }
        Ok(())
    }

    async fn abort(&mut self, context: &Context, live: &mut Live<'_>) -> Result<(), CommandError> {
        if live.abort(None).await?.is_none() {
            context.out.note(Style::Dim, "no turn runs");
            self.turn = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_words_are_for_us_and_paths_are_not() {
        let table = [
            ("", Typed::Nothing),
            ("  ", Typed::Nothing),
            ("hello /quit", Typed::Message("hello /quit")),
            ("/quit", Typed::Quit),
            (" /abort ", Typed::Abort),
            ("/steer  only the tests ", Typed::Steer("only the tests")),
            ("/steer", Typed::Help),
            ("/quit now", Typed::Help),
            ("/wat", Typed::Help),
            ("/usr/bin is full", Typed::Message("/usr/bin is full")),
        ];
        for (line, expected) in table {
            assert_eq!(typed(line), expected, "{line:?}");
        }
    }
}
