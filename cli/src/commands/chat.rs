//! `ade chat`: making, using and removing chats.

use std::collections::HashSet;

use ade_protocol::action::{
    Aborted, ChatAbort, ChatCompact, ChatModel, ChatPermission, ChatRef, ChatSend, ChatShow,
    ChatShown, ChatSteer, ChatThinking, ContextUsed, Nothing, PermissionMode, Sent, SessionInfo,
    Steered, name,
};
use ade_protocol::event::{Envelope, Event, TurnStatus};
use ade_protocol::strict;
use ade_protocol::{Seq, SessionId, TurnId, exit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::run::{create_arguments, follow_turn, prompt};
use crate::args::{self, Chat, NewChat};
use crate::client::{Client, MODEL, QUICK, WORKER};
use crate::context::Context;
use crate::error::CommandError;
use crate::live::{Answers, Live, Options, Wake};
use crate::output::Style;
use crate::view::{Piece, View};

/// Events fetched at once.
const PAGE: usize = 1_000;

/// Runs one of the chat commands.
pub(super) async fn run(context: &Context, command: Chat) -> Result<(), CommandError> {
    match command {
        Chat::Create(chat) => create(context, &chat).await,
        Chat::Send(arguments) => send(context, arguments).await,
        Chat::Steer { session, prompt } => steer(context, &session, prompt).await,
        Chat::Interrupt {
            session,
            prompt,
            replace,
        } => super::queue::interrupt(context, &session, prompt, replace).await,
        Chat::Queue(command) => super::queue::run(context, command).await,
        Chat::Abort { session, turn } => abort(context, &session, turn).await,
        Chat::Stop { session } => {
            let (mut client, id) = named(context, &session).await?;
            let info: SessionInfo = client.call(name::CHAT_STOP, &chat_ref(id), WORKER).await?;
            told(
                context,
                &info,
                "the worker is stopped; the chat goes on with the next message",
            )
        }
        Chat::Reset { session } => {
            let (mut client, id) = named(context, &session).await?;
            let info: SessionInfo = client.call(name::CHAT_RESET, &chat_ref(id), QUICK).await?;
            told(context, &info, "the chat may start workers again")
        }
        Chat::Delete { session } => {
            let (mut client, id) = named(context, &session).await?;
            let _: Nothing = client
                .call(name::CHAT_DELETE, &chat_ref(id.clone()), WORKER)
                .await?;
            told(
                context,
                &json!({"sessionId": id}),
                "the chat is forgotten; the agent's own file stays",
            )
        }
        Chat::Model { session, model } => {
            let (mut client, session_id) = named(context, &session).await?;
            let text = format!("the model is {model}");
            let arguments = ChatModel { session_id, model };
            let info: SessionInfo = client.call(name::CHAT_MODEL, &arguments, WORKER).await?;
            told(context, &info, &text)
        }
        Chat::Thinking { session, level } => {
            let (mut client, session_id) = named(context, &session).await?;
            let text = format!(
                "thinking is {}",
                level.as_deref().unwrap_or("the agent's default")
            );
            let arguments = ChatThinking { session_id, level };
            let info: SessionInfo = client.call(name::CHAT_THINKING, &arguments, WORKER).await?;
            told(context, &info, &text)
        }
        Chat::Permission { session, mode } => permission(context, &session, mode.into()).await,
        Chat::Context { session } => context_used(context, &session).await,
        Chat::Compact {
            session,
            instructions,
        } => {
            let (mut client, session_id) = named(context, &session).await?;
            let arguments = ChatCompact {
                session_id,
                instructions,
            };
            let done: Nothing = client.call(name::CHAT_COMPACT, &arguments, MODEL).await?;
            told(context, &done, "the context is shorter")
        }
        Chat::Show(arguments) => show(context, &arguments).await,
    }
}

async fn context_used(context: &Context, session: &str) -> Result<(), CommandError> {
    let (mut client, id) = named(context, session).await?;
    let used: ContextUsed = client
        .call(name::CHAT_CONTEXT, &chat_ref(id), WORKER)
        .await?;
    if context.out.json() {
        return context.out.document(&used);
    }
    let or_unknown = |count: Option<u64>| count.map_or_else(|| "?".into(), |n| n.to_string());
    let percent = used
        .percent
        .map_or_else(String::new, |percent| format!(" ({percent:.1}%)"));
    context.out.line(&format!(
        "{} of {} tokens{percent}",
        or_unknown(used.tokens),
        or_unknown(used.context_window)
    ))
}

pub(super) async fn named(
    context: &Context,
    session: &str,
) -> Result<(Client, SessionId), CommandError> {
    let mut client = context.broker().await?;
    let id = context.session_id(&mut client, session).await?;
    Ok((client, id))
}

fn chat_ref(session_id: SessionId) -> ChatRef {
    ChatRef { session_id }
}

/// What was done: the answer for programs, a sentence for people.
pub(super) fn told(
    context: &Context,
    answer: &impl Serialize,
    text: &str,
) -> Result<(), CommandError> {
    if context.out.json() {
        return context.out.document(answer);
    }
    context.out.note(Style::Plain, text);
    Ok(())
}

async fn create(context: &Context, chat: &NewChat) -> Result<(), CommandError> {
    let arguments = create_arguments(chat)?;
    let mut client = context.broker().await?;
    let info: SessionInfo = client.call(name::CHAT_CREATE, &arguments, QUICK).await?;
    if context.out.json() {
        context.out.document(&info)
    } else {
        context.out.line(info.session_id.as_str())
    }
}

async fn send(context: &Context, arguments: args::ChatSend) -> Result<(), CommandError> {
    let prompt = prompt(arguments.prompt)?;
    let (mut client, session) = named(context, &arguments.session).await?;
    let send = ChatSend {
        session_id: session.clone(),
        prompt,
        retry: arguments.retry,
    };
    let sent: Sent = client.call(name::CHAT_SEND, &send, QUICK).await?;
    if arguments.wait {
        return follow_turn(context, client, session, sent, arguments.yes).await;
    }
    if context.out.json() {
        return context.out.document(&sent);
    }
    let place = match sent.place {
        0 => "sent".to_owned(),
        place => format!("queued, place {place}"),
    };
    context.out.note(Style::Dim, &place);
    context.out.line(sent.turn_id.as_str())
}

async fn steer(context: &Context, session: &str, text: String) -> Result<(), CommandError> {
    let prompt = prompt(text)?;
    let (mut client, session_id) = named(context, session).await?;
    let arguments = ChatSteer { session_id, prompt };
    let steered: Steered = client.call(name::CHAT_STEER, &arguments, WORKER).await?;
    let text = match &steered.turn_id {
        Some(turn) => format!("queued as the next turn, {turn}"),
        None => "put into the running turn".into(),
    };
    told(context, &steered, &text)
}

async fn abort(context: &Context, session: &str, turn: Option<String>) -> Result<(), CommandError> {
    let (mut client, session_id) = named(context, session).await?;
    let turn_id = turn.map(TurnId::from);
    let aborted: Aborted = client
        .call(
            name::CHAT_ABORT,
            &ChatAbort {
                session_id,
                turn_id,
            },
            QUICK,
        )
        .await?;
    let text = match &aborted.turn_id {
        Some(turn) => format!("{turn} was told to end"),
        None => "no turn runs".into(),
    };
    told(context, &aborted, &text)
}

async fn permission(
    context: &Context,
    session: &str,
    permission: PermissionMode,
) -> Result<(), CommandError> {
    let (mut client, session_id) = named(context, session).await?;
    let arguments = ChatPermission {
        session_id,
        permission,
    };
    let info: SessionInfo = client
        .call(name::CHAT_PERMISSION, &arguments, QUICK)
        .await?;
    let name = info.permission.name();
    let text = match &info.turn_id {
        Some(_) => format!("the permission is {name} from the next turn on"),
        None => format!("the permission is {name}"),
    };
    told(context, &info, &text)
}

async fn show(context: &Context, arguments: &args::ChatShow) -> Result<(), CommandError> {
    if arguments.limit == Some(0) {
        return Err(CommandError::usage("--limit must be at least 1"));
    }
    let mut client = context.broker().await?;
    let info = context.session(&mut client, &arguments.session).await?;
    let after = Seq(arguments.after);
    if arguments.follow {
        return follow(context, client, &info, after).await;
    }
    let (session, events) = read(
        &mut client,
        info.session_id,
        after,
        arguments.limit.unwrap_or(usize::MAX),
    )
    .await?;
    if context.out.json() {
        return context
            .out
            .document(&json!({"session": session, "events": events}));
    }
    let about = format!(
        "{} in {}, permission {}",
        session.provider,
        session.lane,
        session.permission.name()
    );
    context.out.note(Style::Dim, &about);
    let mut view = View::new(true);
    // Turns that began before what is shown are not known.
    let mut begun = (arguments.after == 0).then(HashSet::new);
    for event in events {
        let Ok(envelope) = strict::from_value::<Envelope<Event>>(event) else {
            continue;
        };
        if let (Some(begun), Some(turn)) = (&mut begun, &envelope.turn_id) {
            match envelope.event {
                Event::UserMessage { .. } => drop(begun.insert(turn.clone())),
                // Its notice said so: no turn was interrupted.
                Event::Done {
                    status: TurnStatus::Interrupted,
                    ..
                } if !begun.contains(turn) => continue,
                _ => {}
            }
        }
        print(context, &mut view, &dated(envelope))?;
    }
    context.out.end_answer()
}

/// The event; a notice tells in its text when it was said, which in a transcript
/// nothing else does.
fn dated(envelope: Envelope<Event>) -> Event {
    let Envelope {
        timestamp, event, ..
    } = envelope;
    match event {
        Event::Notice { level, message } => {
            let at = timestamp.get(..19).unwrap_or(&timestamp).replace('T', " ");
            let message = format!("{at} UTC: {message}");
            Event::Notice { level, message }
        }
        event => event,
    }
}

/// The transcript is the asked thing here, so all of it goes to standard
/// output.
fn print(context: &Context, view: &mut View, event: &Event) -> Result<(), CommandError> {
    let out = &context.out;
    for piece in view.pieces(event) {
        match piece {
            Piece::Answer(text) => out.answer(&text)?,
            Piece::NewMessage => out.end_answer()?,
            Piece::Line(style, text) => out.line(&out.paint(style, &text))?,
            Piece::Aside(text) => out.answer_styled(Style::Dim, &text)?,
            Piece::Activity(_) => {}
        }
    }
    Ok(())
}

async fn read(
    client: &mut Client,
    session: SessionId,
    mut after: Seq,
    limit: usize,
) -> Result<(SessionInfo, Vec<serde_json::Value>), CommandError> {
    let mut events = Vec::new();
    loop {
        let limit = PAGE.min(limit - events.len());
        let arguments = ChatShow {
            session_id: session.clone(),
            after,
            limit,
        };
        let shown: ChatShown = call(client, name::CHAT_SHOW, &arguments).await?;
        let reached = shown
            .events
            .last()
            .and_then(|event| event["sequence"].as_u64());
        events.extend(shown.events);
        match reached {
            Some(reached) if shown.more && limit == PAGE => after = Seq(reached),
            _ => return Ok((shown.session, events)),
        }
    }
}

async fn call<A: Serialize, R: DeserializeOwned>(
    client: &mut Client,
    action: &str,
    arguments: &A,
) -> Result<R, CommandError> {
    client.call(action, arguments, QUICK).await
}

async fn follow(
    context: &Context,
    client: Client,
    info: &SessionInfo,
    after: Seq,
) -> Result<(), CommandError> {
    let options = Options {
        session: info.session_id.clone(),
        after,
        history: info.last_sequence,
        turn: None,
        answers: Answers::Elsewhere,
        show_user: true,
    };
    let mut live = Live::start(context, client, options).await?;
    loop {
        if let Wake::Interrupt = live.next(false).await? {
            return Err(CommandError::silent(exit::INTERRUPTED));
        }
    }
}
