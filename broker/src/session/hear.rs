//! Taking what a worker has said: as it comes, before its silence is judged, and
//! what is left of it when it has ended.

use std::time::Duration;

use super::actor::Actor;
use super::evidence;
use crate::clock;
use crate::link::LinkIn;
use crate::turn::Input;

/// How long what lies in a link may take to be read.
const DRAIN: Duration = Duration::from_secs(1);

impl Actor {
    /// Takes what came over the link.
    pub(super) async fn frames(&mut self, batch: &mut Vec<LinkIn>, count: usize) {
        if count == 0 {
            self.link_closed();
        }
        let first = self
            .worker
            .as_ref()
            .map(|worker| (worker.generation, worker.taken));
        for item in batch.drain(..) {
            let now = self.worker.as_ref().map(|worker| worker.generation);
            if let Some((generation, taken)) = first
                && now != Some(generation)
            {
                // Something in front of it made an end of the worker's use.
                if let Some(turn) = evidence::said(&item, taken) {
                    self.input(Input::Worked(turn)).await;
                }
                continue;
            }
            match item {
                LinkIn::Events(run) => self.events(run).await,
                LinkIn::Frame(frame) => self.frame(*frame).await,
                LinkIn::Broken(why) => self.lost(&why).await,
            }
        }
    }

    fn link_closed(&mut self) {
        if let Some(worker) = &mut self.worker {
            // It connects again, or its exit is reported.
            worker.linked = false;
        }
    }

    /// Takes what is left in the link of a worker that has ended. The reader
    /// ends with the connection, so this does too; what the kernel holds of it is
    /// finite.
    pub(super) async fn drain_link(&mut self) {
        while let Some(worker) = &mut self.worker {
            if !worker.linked {
                return;
            }
            let until = clock::now() + DRAIN;
            match clock::in_time(until, worker.link.incoming.recv()).await {
                Some(Some(item)) => self.frames(&mut vec![item], 1).await,
                Some(None) | None => return,
            }
        }
    }

    /// Takes what the worker has said by now, before its silence is judged: the
    /// clock may be seen before the link is, above all by a process that was stopped.
    pub(super) async fn hear_first(&mut self) {
        let until = clock::now() + DRAIN;
        let mut batch = Vec::new();
        while clock::now() < until && self.judges() {
            let Some(worker) = &mut self.worker else {
                return;
            };
            if !worker.linked {
                let Ok(connection) = worker.reconnects.try_recv() else {
                    return;
                };
                self.reconnected(connection);
                continue;
            }
            let incoming = &mut worker.link.incoming;
            if !incoming.has_more() {
                return;
            }
            let taken = tokio::time::timeout_at(until, incoming.recv_many(&mut batch));
            let Ok(count) = taken.await else { return };
            self.frames(&mut batch, count).await;
        }
    }
}
