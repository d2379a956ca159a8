use ade_protocol::action::{ChatCreate, PermissionMode};
use ade_protocol::card::{Card, CardKind, CardOrigin, CardPayload};
use ade_protocol::{Generation, Seq, SessionId, TurnId};
use tempfile::TempDir;

use super::*;

mod cards;
mod file;
mod handle;
mod sessions;
mod turns;

fn open(folder: &TempDir) -> State {
    State::open(&folder.path().join("state.db")).unwrap()
}

fn session(id: &str) -> SessionRow {
    let create = ChatCreate {
        provider: "pi".into(),
        lane: "/ignored".into(),
        model: Some("a/b".into()),
        thinking: None,
        permission: PermissionMode::FullAuto,
        session_file: None,
        take_over: false,
        agent_dir: None,
        title: Some("title".into()),
        first_event_ms: Some(1234),
    };
    SessionRow::new(
        id.into(),
        &create,
        "/lane".into(),
        "2026-01-01T00:00:00.000Z".into(),
    )
}

fn turn(session: &str, id: &str) -> TurnRow {
    TurnRow {
        session_id: session.into(),
        turn_id: id.into(),
        prompt: "say it".into(),
        started_at: "t".into(),
        generation: Generation(1),
        sends: 0,
        state: "starting".into(),
        armed_at_ms: 0,
        cause: None,
        after: Seq(7),
    }
}

fn queued(session: &str, id: &str) -> QueuedRow {
    QueuedRow {
        session_id: session.into(),
        turn_id: id.into(),
        prompt: format!("prompt {id}"),
        steers: None,
        queued_at: "t".into(),
        after: Seq(8),
    }
}

fn card(session: &str, id: &str, kind: CardKind) -> Card {
    Card {
        card_id: id.into(),
        session_id: session.into(),
        generation: Generation(1),
        turn_id: None,
        opened_at: "t".into(),
        payload: CardPayload {
            origin: CardOrigin::Tool,
            kind,
            message: "which?".into(),
            title: None,
            placeholder: None,
            default_value: Some("canary".into()),
            options: Vec::new(),
            source_id: None,
            detail: None,
        },
    }
}
