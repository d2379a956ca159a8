//! What the demo expects, what it saw, and the table at the end.

use serde::Serialize;

use super::cast::Actor;
use crate::table::{Table, short_id};
use ade_protocol::event::TurnStatus;

/// One expectation.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// Whether it is as expected.
    pub(super) ok: bool,
    /// What was expected, and what was seen.
    pub(super) text: String,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    session: String,
    lane: &'static str,
    provider: String,
    generation: u64,
    events: u64,
    turn: String,
    lease: String,
    leftover_processes: usize,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) ok: bool,
    pub(super) seconds: f64,
    pub(super) checks: Vec<Check>,
    pub(super) sessions: Vec<Row>,
    pub(super) fight: Vec<super::fight::Side>,
    pub(super) leftover_processes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kept: Option<String>,
}

/// The line of a chat.
pub(super) fn row(actor: &Actor, lease: &str, leftover: usize) -> Row {
    let turn = match actor.seen.done.as_slice() {
        [] => "no end".to_owned(),
        [TurnStatus::Completed] => "completed".to_owned(),
        [TurnStatus::Failed] => "failed".to_owned(),
        [TurnStatus::Interrupted] => "interrupted".to_owned(),
        [TurnStatus::Started] => "started".to_owned(),
        several => format!("{} ends", several.len()),
    };
    Row {
        session: actor.session.to_string(),
        lane: actor.part.lane,
        provider: actor.info.provider.clone(),
        generation: actor.info.generation.0,
        events: actor.seen.events,
        turn,
        lease: lease.to_owned(),
        leftover_processes: leftover,
    }
}

/// The rows for people.
pub(super) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "SESSION",
        "LANE",
        "PROVIDER",
        ">GENERATION",
        ">EVENTS",
        "TURN",
        "LEASE",
        ">LEFTOVER PROCESSES",
    ]);
    for row in rows {
        table.row(&[
            short_id(&row.session).to_owned(),
            row.lane.to_owned(),
            row.provider.clone(),
            row.generation.to_string(),
            row.events.to_string(),
            row.turn.clone(),
            row.lease.clone(),
            row.leftover_processes.to_string(),
        ]);
    }
    table
}
