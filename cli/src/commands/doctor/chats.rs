//! Chats that need a hand.

use ade_broker::home::Home;
use ade_broker::preflight;
use ade_protocol::action::{Nothing, SessionList, name};

use super::Report;
use crate::client::{Client, QUICK};
use crate::commands::lists::UNUSABLE;

/// What a broker would find that can't be read.
pub(super) fn unreadable(home: &Home, report: &mut Report) {
    for error in preflight::transcripts(home) {
        report.hand(
            "chats",
            crate::seam::chain(&error),
            error.hints().join("; "),
        );
    }
}

/// Chats that are known and can't be used.
pub(super) async fn unusable(client: &mut Client, report: &mut Report) {
    let listed = client
        .call::<_, SessionList>(name::SESSIONS_LIST, &Nothing {}, QUICK)
        .await;
    let sessions = match listed {
        Ok(list) => list.sessions,
        Err(error) => return report.error("chats", &error),
    };
    for chat in sessions.iter().filter(|chat| chat.state == UNUSABLE) {
        let why = chat.last_error.as_deref().unwrap_or("it cannot be used");
        report.hand(
            "chats",
            format!("{} cannot be used: {why}", chat.session_id),
            "mend that, and the chat is there again; or forget it with `ade chat delete`",
        );
    }
}
