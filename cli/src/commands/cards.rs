//! `ade cards` and `ade answer`.

use ade_protocol::action::{CardAnswer, CardAnswered, CardList, Nothing, name};
use ade_protocol::card::{Answer, Card, CardKind};
use ade_protocol::{RequestId, SessionId, exit};
use jiff::Timestamp;
use serde_json::json;

use super::lists::{NONE, age, print_table};
use crate::args;
use crate::client::{Client, QUICK};
use crate::context::Context;
use crate::error::CommandError;
use crate::input::Input;
use crate::output::Style;
use crate::table::{Table, clipped, short_id};

/// Lists open cards.
pub(super) async fn list(context: &Context) -> Result<(), CommandError> {
    let mut client = context.broker().await?;
    let list: CardList = client.call(name::CARDS_LIST, &Nothing {}, QUICK).await?;
    if context.out.json() {
        return context.out.document(&list);
    }
    if list.cards.is_empty() {
        context.out.note(Style::Dim, "no open questions");
        return Ok(());
    }
    let now = Timestamp::now();
    let mut table = Table::new(&["CARD", "SESSION", "KIND", ">AGE", "QUESTION"]);
    for card in &list.cards {
        table.row(&[
            card.card_id.to_string(),
            short_id(card.session_id.as_str()).to_owned(),
            kind(card.payload.kind).into(),
            age(&card.opened_at, now).unwrap_or_else(|| NONE.into()),
            question(card),
        ]);
    }
    print_table(context, &table)
}

fn question(card: &Card) -> String {
    let payload = &card.payload;
    let text = match &payload.title {
        Some(title) => format!("{title}: {}", payload.message),
        None => payload.message.clone(),
    };
    let offered: Vec<&str> = payload
        .options
        .iter()
        .map(|option| option.value.as_str())
        .collect();
    let offered = if offered.is_empty() {
        String::new()
    } else {
        format!("[{}]", offered.join(", "))
    };
    format!("{} {}", clipped(&text, 80), clipped(&offered, 60))
        .trim_end()
        .to_owned()
}

fn kind(kind: CardKind) -> &'static str {
    match kind {
        CardKind::Text => "text",
        CardKind::Secret => "secret",
        CardKind::Select => "select",
        CardKind::Confirm => "confirm",
        CardKind::ManualCode => "code",
    }
}

/// Answers a card.
pub(super) async fn answer(context: &Context, given: args::Answer) -> Result<(), CommandError> {
    let mut client = context.broker().await?;
    let session = match &given.session {
        Some(session) => Some(context.session_id(&mut client, session).await?),
        None => None,
    };
    let list: CardList = client.call(name::CARDS_LIST, &Nothing {}, QUICK).await?;
    let meant = list.cards.into_iter().filter(|card| {
        card.card_id.as_str() == given.card
            && session.as_ref().is_none_or(|s| *s == card.session_id)
    });
    let meant: Vec<Card> = meant.collect();
    if meant.is_empty() {
        return Err(not_open(&mut client, given, session).await);
    }
    let card = one(meant, &given.card)?;
    let answer = read_answer(&card, given.value).await?;
    let arguments = CardAnswer {
        card_id: card.card_id.clone(),
        session_id: Some(card.session_id.clone()),
        answer,
    };
    let answered: CardAnswered = client.call(name::CARDS_ANSWER, &arguments, QUICK).await?;
    if context.out.json() {
        return context.out.document(&json!({
            "cardId": answered.card_id, "sessionId": card.session_id,
        }));
    }
    context.out.note(Style::Good, "answered");
    Ok(())
}

/// What became of a card that is not open. The broker is asked with the answer
/// itself: it still knows who was faster, and of a card that it never had it
/// says so. A secret is not read for it.
async fn not_open(
    client: &mut Client,
    given: args::Answer,
    session_id: Option<SessionId>,
) -> CommandError {
    let answer = Answer {
        ok: given.value.is_some(),
        value: given.value.filter(|value| value != "-"),
    };
    let arguments = CardAnswer {
        card_id: RequestId::from(given.card.as_str()),
        session_id,
        answer,
    };
    let answered = client
        .call::<_, CardAnswered>(name::CARDS_ANSWER, &arguments, QUICK)
        .await;
    let unknown = || {
        let message = format!("no open question is named `{}`", given.card);
        CommandError::new("not_found", exit::USAGE, message)
            .hint("`ade cards` lists the open ones; one that was answered or withdrawn is gone")
    };
    match answered {
        Err(error) if error.kind() == "not_found" => unknown(),
        Err(error) => error,
        // Nothing can be answered that was not listed a moment ago, and no id
        // comes twice.
        Ok(_) => unknown(),
    }
}

fn one(mut meant: Vec<Card>, given: &str) -> Result<Card, CommandError> {
    match meant.len() {
        1 => Ok(meant.remove(0)),
        several => {
            let message = format!("{several} chats have a question named `{given}`");
            let error = CommandError::new("ambiguous", exit::USAGE, message);
            Err(meant.iter().fold(error, |error, card| {
                error.hint(format!(
                    "--session {} for: {}",
                    card.session_id,
                    question(card)
                ))
            }))
        }
    }
}

async fn read_answer(card: &Card, value: Option<String>) -> Result<Answer, CommandError> {
    let secret = card.payload.kind == CardKind::Secret;
    let value = match value.as_deref() {
        None => return Ok(Answer::deny()),
        Some("-") => {
            let mut input = Input::new();
            let echo = if secret { input.without_echo() } else { None };
            let line = input.line().await;
            drop(echo);
            line.ok_or_else(|| CommandError::usage("standard input is empty"))?
        }
        Some(_) if secret => {
            return Err(CommandError::usage(
                "a secret must not be on a command line, where others see it",
            )
            .hint(format!(
                "`ade answer {} -` reads it from standard input",
                card.card_id
            )));
        }
        Some(value) => value.to_owned(),
    };
    if card.payload.kind == CardKind::Confirm && value == "deny" {
        return Ok(Answer::deny());
    }
    let answer = Answer {
        ok: true,
        value: Some(value),
    };
    answer.fits(&card.payload).map_err(|offered| {
        CommandError::usage("the question has other answers")
            .hint(format!("one of: {}", offered.join(", ")))
    })?;
    Ok(answer)
}
