//! `ade chat queue` and `ade chat interrupt`: messages that wait, and the one
//! that goes before them.

use ade_protocol::TurnId;
use ade_protocol::action::{
    ChatInterrupt, ChatInterrupted, ChatQueue, ChatQueueCancel, ChatQueueEdit, ChatRef,
    InterruptMode, name,
};

use super::chat::{named, told};
use super::lists::print_table;
use super::run::prompt;
use crate::args::Queue;
use crate::client::QUICK;
use crate::context::Context;
use crate::error::CommandError;
use crate::output::Style;
use crate::table::{Table, clipped};

/// Characters of a message that a line shows.
const SHOWN: usize = 60;

/// Runs one of the queue's commands.
pub(super) async fn run(context: &Context, command: Queue) -> Result<(), CommandError> {
    match command {
        Queue::List { session } => list(context, &session).await,
        Queue::Edit {
            session,
            turn,
            prompt: text,
        } => {
            let prompt = prompt(text)?;
            let (mut client, session_id) = named(context, &session).await?;
            let text = format!("{turn} says something else now");
            let arguments = ChatQueueEdit {
                session_id,
                turn_id: TurnId::from(turn),
                prompt,
            };
            let queue: ChatQueue = client
                .call(name::CHAT_QUEUE_EDIT, &arguments, QUICK)
                .await?;
            told(context, &queue, &text)
        }
        Queue::Cancel { session, turn } => {
            let (mut client, session_id) = named(context, &session).await?;
            let text = format!("{turn} is cancelled");
            let arguments = ChatQueueCancel {
                session_id,
                turn_id: TurnId::from(turn),
            };
            let queue: ChatQueue = client
                .call(name::CHAT_QUEUE_CANCEL, &arguments, QUICK)
                .await?;
            told(context, &queue, &text)
        }
        Queue::Recover { session } => {
            let (mut client, session_id) = named(context, &session).await?;
            let queue: ChatQueue = client
                .call(name::CHAT_QUEUE_RECOVER, &ChatRef { session_id }, QUICK)
                .await?;
            let (back, waiting) = (queue.recovered, queue.messages.len());
            let text = match back {
                1 => format!("1 message is back; {waiting} in the queue"),
                _ => format!("{back} messages are back; {waiting} in the queue"),
            };
            told(context, &queue, &text)
        }
    }
}

async fn list(context: &Context, session: &str) -> Result<(), CommandError> {
    let (mut client, session_id) = named(context, session).await?;
    let queue: ChatQueue = client
        .call(name::CHAT_QUEUE, &ChatRef { session_id }, QUICK)
        .await?;
    if context.out.json() {
        return context.out.document(&queue);
    }
    if queue.messages.is_empty() {
        context.out.note(Style::Dim, "nothing waits");
    } else {
        let mut table = Table::new(&[">PLACE", "TURN", "KIND", "MESSAGE"]);
        for (index, message) in queue.messages.iter().enumerate() {
            table.row(&[
                (index + 1).to_string(),
                message.turn_id.to_string(),
                if message.steer { "steer" } else { "message" }.into(),
                clipped(&message.prompt, SHOWN),
            ]);
        }
        print_table(context, &table)?;
    }
    if queue.held {
        let text = "they are held since a broker ended and go first with your next message";
        context.out.note(Style::Plain, text);
    }
    if queue.recoverable > 0 {
        let text = format!(
            "{} were cleared and can be brought back for a moment with `ade chat queue recover`",
            queue.recoverable
        );
        context.out.note(Style::Plain, &text);
    }
    Ok(())
}

/// Sends a message in the running turn's place.
pub(super) async fn interrupt(
    context: &Context,
    session: &str,
    text: String,
    replace: bool,
) -> Result<(), CommandError> {
    let prompt = prompt(text)?;
    let (mut client, session_id) = named(context, session).await?;
    let arguments = ChatInterrupt {
        session_id,
        prompt,
        mode: if replace {
            InterruptMode::Replace
        } else {
            InterruptMode::Continue
        },
    };
    let done: ChatInterrupted = client.call(name::CHAT_INTERRUPT, &arguments, QUICK).await?;
    if context.out.json() {
        return context.out.document(&done);
    }
    let ended = match &done.ended {
        Some(turn) => format!("{turn} was told to end"),
        None => "no turn ran".into(),
    };
    let cleared = match done.cleared {
        0 => String::new(),
        count => format!("; {count} waiting were cleared"),
    };
    context.out.note(Style::Dim, &format!("{ended}{cleared}"));
    context.out.line(done.turn_id.as_str())
}
