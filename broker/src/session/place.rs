//! Waiting for a place among all workers, and for the room that a worker takes.

use tokio::sync::mpsc;

use super::Command;
use super::start::Plan;
use crate::pool::Place;

/// Tells the session where its start stands in the line for a worker.
pub(super) struct Line {
    pub(super) tx: mpsc::WeakSender<Command>,
    pub(super) epoch: u64,
}

impl Line {
    async fn tell(&self, place: usize) {
        if let Some(tx) = self.tx.upgrade() {
            let epoch = self.epoch;
            // The actor may have ended; then nobody needs to know.
            drop(tx.send(Command::InLine { epoch, place }).await);
        }
    }
}

/// Waits in the line for a place among all workers and among those that start,
/// and for room for a worker.
pub(super) async fn a_place_with_room(plan: &Plan) -> Place {
    let Plan {
        shared, row, line, ..
    } = plan;
    let mut place = shared.pool.ask(&row.session_id, &row.provider);
    let mut last = 0;
    loop {
        match place.next(last).await {
            Some(next) => {
                last = next;
                line.tell(next).await;
            }
            None if place.confirm() => {
                if last != 0 {
                    line.tell(0).await;
                }
                return place;
            }
            // It waits on, where it stood.
            None => {}
        }
    }
}
