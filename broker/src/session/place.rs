//! Waiting for a place among all workers, and for the room that a worker takes.

use std::time::Duration;

use tokio::sync::mpsc;

use super::Command;
use super::start::Plan;
use crate::limits;
use crate::pool::Place;
use crate::spawn::DESCRIPTORS;

/// Pause of a start that has found no room, until it asks for a place again.
const ROOM_LOOK: Duration = Duration::from_millis(250);

/// Tells the session where its start stands in the line for a worker.
pub(super) struct Line {
    pub(super) tx: mpsc::WeakSender<Command>,
    pub(super) epoch: u64,
}

/// A place, and room for a worker: clients may have taken meanwhile what was free
/// when the place was given. Whoever has the only place is told by its start.
pub(super) async fn a_place_with_room(plan: &Plan) -> Place {
    loop {
        let place = a_place(plan).await;
        let alone = plan.shared.pool.counts().0 <= 1;
        if alone || limits::room_for(DESCRIPTORS) > 0 {
            return place;
        }
        drop(place);
        tokio::time::sleep(ROOM_LOOK).await;
    }
}

/// Waits in the line for a place among all workers and among those that start.
async fn a_place(plan: &Plan) -> Place {
    let Plan {
        shared, row, line, ..
    } = plan;
    let mut place = shared.pool.ask(&row.session_id, &row.provider);
    let mut last = 0;
    loop {
        let next = place.next(last).await;
        if next.is_none() && last == 0 {
            return place;
        }
        last = next.unwrap_or(0);
        if let Some(tx) = line.tx.upgrade() {
            let told = Command::InLine {
                epoch: line.epoch,
                place: last,
            };
            // The actor may have ended; then nobody needs to know.
            drop(tx.send(told).await);
        }
        if next.is_none() {
            return place;
        }
    }
}
