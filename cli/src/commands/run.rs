//! `ade run`, and the pieces of it that other commands share.

use std::io::Read;
use std::path::{Path, PathBuf};

use ade_protocol::action::{ChatCreate, ChatSend, Sent, SessionInfo, name};
use ade_protocol::event::Event;
use ade_protocol::limits::MAX_LINE;
use ade_protocol::{SessionId, exit};

use crate::args::{NewChat, Run};
use crate::client::{Client, QUICK};
use crate::context::Context;
use crate::error::CommandError;
use crate::live::{Answers, Live, Options, Wake};
use crate::outcome::Outcome;
use crate::output::Style;
use crate::table::short_id;

/// Longest message that is read from standard input, in bytes.
const MAX_PROMPT: u64 = 8 * 1024 * 1024;
/// Room for what stands around a message in a request, in bytes.
const ENVELOPE: usize = 4096;

/// One message, one turn.
pub(super) async fn run(context: &Context, arguments: Run) -> Result<(), CommandError> {
    let prompt = prompt(arguments.prompt)?;
    let create = create_arguments(&arguments.chat)?;
    let mut client = context.broker().await?;
    let chat: SessionInfo = client.call(name::CHAT_CREATE, &create, QUICK).await?;
    let session = chat.session_id;
    let send = ChatSend {
        session_id: session.clone(),
        prompt,
        retry: false,
    };
    let sent: Sent = client.call(name::CHAT_SEND, &send, QUICK).await?;
    let result = follow_turn(context, client, session.clone(), sent, arguments.yes).await;
    let id = session.as_str();
    context
        .out
        .note(Style::Dim, &format!("{id} · ade attach {}", short_id(id)));
    result
}

/// Follows a turn until its end, asks its cards, and ends with the exit code
/// that says how it went.
pub(super) async fn follow_turn(
    context: &Context,
    client: Client,
    session: SessionId,
    sent: Sent,
    yes: bool,
) -> Result<(), CommandError> {
    let options = Options {
        session,
        after: sent.after,
        history: sent.after,
        turn: Some(sent.turn_id.clone()),
        answers: who_answers(context, yes),
        show_user: false,
    };
    if sent.place > 0 {
        context.out.note(
            Style::Dim,
            &format!("queued behind {} in this chat", sent.place),
        );
    }
    let mut live = Live::start(context, client, options).await?;
    live.set_busy(true);
    let mut outcome = Outcome::default();
    let mut interrupted = false;
    loop {
        match live.next(false).await? {
            Wake::Event(envelope) if envelope.turn_id.as_ref() == Some(&sent.turn_id) => {
                outcome.note(&envelope.event);
                if matches!(envelope.event, Event::Done { .. }) {
                    break;
                }
            }
            Wake::Event(_) | Wake::Typed(_) => {}
            Wake::Interrupt if interrupted => return Err(CommandError::silent(exit::INTERRUPTED)),
            Wake::Interrupt => {
                interrupted = true;
                context
                    .out
                    .must_note(Style::Warn, "ending the turn; Ctrl-C again leaves at once");
                live.abort(Some(sent.turn_id.clone())).await?;
            }
        }
    }
    context.out.end_answer_unless_json()?;
    match outcome.exit_code() {
        exit::OK => Ok(()),
        code => Err(CommandError::silent(code)),
    }
}

/// A person answers where one sits at the terminal.
pub(super) fn who_answers(context: &Context, yes: bool) -> Answers {
    use std::io::IsTerminal;
    if yes {
        Answers::Allow
    } else if std::io::stdin().is_terminal() && context.out.err_is_terminal() {
        Answers::Person
    } else {
        Answers::Decline
    }
}

/// The message itself, or what standard input says for `-`.
pub(super) fn prompt(given: String) -> Result<String, CommandError> {
    let text = if given == "-" { read_text()? } else { given };
    if text.trim().is_empty() {
        return Err(CommandError::usage("the message is empty"));
    }
    fits(&text)?;
    Ok(text)
}

/// Measures before anything is made for the message: quotes and control
/// characters are longer on the wire than in the text.
fn fits(message: &str) -> Result<(), CommandError> {
    let length = serde_json::to_string(message).map_or(usize::MAX, |json| json.len());
    if length <= MAX_LINE - ENVELOPE {
        return Ok(());
    }
    let text = format!(
        "the message has {length} bytes as JSON, and the broker takes {}",
        MAX_LINE - ENVELOPE
    );
    Err(CommandError::usage(text).hint("put it into a file and name the file"))
}

/// Standard input until its end, as text.
pub(super) fn read_text() -> Result<String, CommandError> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_PROMPT + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| CommandError::failed("standard input could not be read").because(e))?;
    if bytes.len() as u64 > MAX_PROMPT {
        let message = format!("standard input has more than {MAX_PROMPT} bytes");
        return Err(CommandError::usage(message).hint("put it into a file and name the file"));
    }
    String::from_utf8(bytes).map_err(|e| {
        CommandError::usage("standard input is not UTF-8 text").because(e.utf8_error())
    })
}

/// What the broker needs to make the chat.
pub(super) fn create_arguments(chat: &NewChat) -> Result<ChatCreate, CommandError> {
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|path| {
            CommandError::usage(format!("the path {} is not UTF-8", path.to_string_lossy()))
        })
    };
    let optional = |path: &Option<PathBuf>| {
        path.as_deref()
            .map(absolute)
            .transpose()?
            .map(text)
            .transpose()
    };
    Ok(ChatCreate {
        provider: chat.provider.clone(),
        lane: text(lane(chat.lane.as_deref())?)?,
        model: chat.model.clone(),
        thinking: chat.thinking.clone(),
        permission: chat.permission.into(),
        session_file: optional(&chat.session_file)?,
        take_over: chat.take_over,
        agent_dir: chat
            .agent_dir
            .as_deref()
            .map(agent_dir)
            .transpose()?
            .map(text)
            .transpose()?,
        title: chat.title.clone(),
        first_event_ms: chat.first_event_ms,
    })
}

fn lane(given: Option<&Path>) -> Result<PathBuf, CommandError> {
    let path = given.unwrap_or(Path::new("."));
    let missing = |message: String| CommandError::new("lane_missing", exit::USAGE, message);
    let real = std::fs::canonicalize(path).map_err(|error| {
        missing(format!("the lane {} is not there", path.display()))
            .because(error)
            .hint("make the directory, or name another with --lane")
    })?;
    if !real.is_dir() {
        return Err(
            missing(format!("the lane {} is not a directory", path.display()))
                .hint("a lane is the directory that the agent works in"),
        );
    }
    Ok(real)
}

/// The agent's own folder. An agent makes one that is missing, and then knows no
/// model and no key: that is what a misspelt path would end in. So a person has
/// to make it; programs that call `chat.create` may leave it to the agent.
fn agent_dir(path: &Path) -> Result<PathBuf, CommandError> {
    if path.is_dir() {
        return absolute(path);
    }
    let what = if path.exists() {
        "is not a folder"
    } else {
        "is not there"
    };
    let message = format!("the agent's folder {} {what}", path.display());
    Err(CommandError::usage(message)
        .hint("make it first, or leave --agent-dir out for the agent's own"))
}

fn absolute(path: &Path) -> Result<PathBuf, CommandError> {
    std::path::absolute(path).map_err(|e| {
        CommandError::usage(format!("the path {} cannot be used", path.display())).because(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_measured_as_the_wire_carries_it() {
        assert!(fits(&"x".repeat(MAX_PROMPT as usize)).is_ok());
        let error = fits(&"\"".repeat(MAX_PROMPT as usize)).expect_err("twice as long");
        assert_eq!(error.code(), exit::USAGE);
        assert!(error.to_string().starts_with("the message has"), "{error}");
    }
}
