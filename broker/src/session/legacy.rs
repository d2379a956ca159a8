//! Going on with what a broker that is gone left of the session: its turn, its
//! cards, and its worker where that lives.
//!
//! The takeover of the worker itself is in [`adopt`]; a turn whose worker is
//! gone gets another one, as the machine decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ade_protocol::card::{CardOutcome, Withdrawal};
use ade_protocol::{Generation, RequestId};
use tokio_util::sync::CancellationToken;

use super::acquire::Starting;
use super::actor::Actor;
use super::adopt::{self, Adoption, Resumed};
use super::requests::send_id;
use super::worker::Pending;
use super::{Command, Legacy, LegacyTurn, report};
use crate::clock;
use crate::turn::{Adopted, Again, Input, Machine, Rules};

impl Actor {
    /// Goes on with what a broker that is gone left: its turn, and its worker
    /// where that lives.
    pub(super) fn take_over(&mut self, legacy: Legacy, rules: Rules) {
        let Legacy {
            worker,
            turn,
            cards,
        } = legacy;
        let living = worker.as_ref().map(|(entry, _)| entry.generation);
        if let Some(turn) = &turn {
            if !turn.begun {
                for event in super::beginning(&turn.row.prompt) {
                    self.emit(Some(&turn.row.turn_id), &event);
                }
            }
            let message = (turn.row.turn_id.clone(), turn.row.prompt.clone());
            let legacy = legacy_turn(turn, living, rules.timing.first_event);
            self.machine = match living {
                Some(_) => Machine::attaching(rules, message, legacy),
                None => Machine::resuming(rules, message, legacy),
            };
        }
        let Some((entry, identity)) = worker else {
            self.acquire();
            return;
        };
        let taken = self.transcript_origin(entry.generation);
        let place = self
            .shared
            .pool
            .take(&self.row.session_id, &self.row.provider);
        let connections = self
            .shared
            .registry
            .expect_hash(&entry.worker_id, entry.token_hash.clone());
        self.shared
            .registry
            .set_pid(&entry.worker_id, identity.pid.get());
        self.legacy_cards = cards;
        self.epoch += 1;
        let cancel = CancellationToken::new();
        self.starting = Some(Starting {
            epoch: self.epoch,
            place: 0,
            told: false,
            cancel: cancel.clone(),
            takeover: true,
        });
        let (epoch, tx) = (self.epoch, self.tx.clone());
        let adoption = Adoption {
            shared: Arc::clone(&self.shared),
            row: self.row.clone(),
            entry,
            identity,
            connections,
            taken,
            place,
            cancel,
        };
        tokio::spawn(async move {
            let outcome = adopt::run(adoption).await;
            report(&tx, Command::Started { epoch, outcome }).await;
        });
    }

    /// A worker that was taken over has told where it stands.
    pub(super) async fn resumed(&mut self, generation: Generation, resumed: &Resumed) {
        if let Some(worker) = &mut self.worker {
            worker.taken = resumed.taken;
            worker.acked = resumed.taken;
        }
        self.settle_legacy_cards(&resumed.open_cards).await;
        let turn = self.machine.turn().cloned();
        if resumed.running.is_some() && resumed.running != turn {
            self.lost("the worker runs a turn that nobody here knows")
                .await;
            return;
        }
        if let (Some(turn), Some(worker)) = (&turn, &mut self.worker) {
            worker
                .pending
                .insert(send_id(turn), Pending::Send(turn.clone()));
        }
        let adopted = if turn.is_some() && resumed.last == turn {
            Adopted::Has {
                seen: resumed.seen,
                // Those that nobody here knows yet are told next.
                card: !resumed.open_cards.is_empty(),
            }
        } else {
            Adopted::NeverSent
        };
        self.input(Input::Adopted(generation, adopted)).await;
    }

    /// Cards that the worker still blocks on stay open under their ids; the
    /// others were settled while nobody listened.
    pub(super) async fn settle_legacy_cards(&mut self, open: &BTreeSet<RequestId>) {
        for card in std::mem::take(&mut self.legacy_cards) {
            if open.contains(&card.card_id) {
                self.cards.add(card);
                self.touch();
            } else {
                let outcome = CardOutcome::Withdrawn {
                    why: Withdrawal::WorkerGone,
                };
                self.card_settled(&card, outcome, None).await;
            }
        }
        for command in std::mem::take(&mut self.deferred) {
            // Boxed: an answer is a command like this one's cause.
            Box::pin(self.command(command)).await;
        }
    }
}

/// What the machine must know of a turn of another broker. `living`: the
/// generation of the worker that is taken over.
fn legacy_turn(
    turn: &LegacyTurn,
    living: Option<Generation>,
    first_event: Duration,
) -> crate::turn::Legacy {
    let row = &turn.row;
    let sends = u8::try_from(row.sends).unwrap_or(u8::MAX);
    // Noted before it was written: whether that worker got it, it will tell.
    let to_this_one = living == Some(row.generation) && sends > 0;
    let passed = clock::monotonic_ms().saturating_sub(row.armed_at_ms);
    crate::turn::Legacy {
        sends: sends - u8::from(to_this_one),
        noted: to_this_one,
        resumable: turn.is_resumable(),
        again: Again::read(&row.state).map(|(again, _)| again),
        left: first_event.saturating_sub(Duration::from_millis(passed)),
    }
}
