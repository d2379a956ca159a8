//! Going on with what a broker that is gone left of the session: its turn, its
//! cards, and its worker where that lives.
//!
//! The takeover of the worker itself is in [`adopt`]; a turn whose worker is
//! gone gets another one, as the machine decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ade_protocol::card::{Card, CardOutcome, Withdrawal};
use ade_protocol::event::{Event, NoticeLevel};
use ade_protocol::{Generation, RequestId, Seq};

use super::actor::Actor;
use super::adopt::{self, Adoption, Resumed};
use super::requests::send_id;
use super::worker::Pending;
use super::{Command, Legacy, LegacyTurn, report};
use crate::clock;
use crate::state::{CardRow, Settled};
use crate::turn::{Adopted, Again, Failure, Input, Machine, Rules, Timing};

/// Cards of a broker that is gone.
#[derive(Default)]
pub(super) struct LegacyCards {
    /// They were open.
    pub(super) open: Vec<CardRow>,
    /// They were settled, and the worker may not have heard it.
    settled: Vec<Ended>,
}

/// A card that the last broker had settled.
struct Ended {
    card: Card,
    settled: Settled,
    /// The transcript holds its end.
    told: bool,
}

impl LegacyCards {
    /// Whether this one was open.
    pub(super) fn is_open(&self, id: &RequestId) -> bool {
        self.open.iter().any(|row| row.card.card_id == *id)
    }

    /// Those that were settled.
    fn answered(&self) -> BTreeSet<RequestId> {
        let settled = self.settled.iter();
        settled.map(|ended| ended.card.card_id.clone()).collect()
    }
}

impl Actor {
    /// Goes on with what a broker that is gone left: its turn, and its worker
    /// where that lives.
    pub(super) fn take_over(&mut self, legacy: Legacy, rules: Rules) {
        let Legacy {
            worker,
            turn,
            cards,
        } = legacy;
        let told = self.last_sequence();
        let living = worker.as_ref().map(|(entry, _)| entry.generation);
        if let Some(turn) = &turn {
            if !turn.begun {
                for event in super::beginning(&turn.row.prompt) {
                    self.emit(Some(&turn.row.turn_id), &event);
                }
            }
            let message = (turn.row.turn_id.clone(), turn.row.prompt.clone());
            let armed = self.row.flags.force_expire;
            let legacy = legacy_turn(turn, living, armed, &rules.timing);
            self.machine = match living {
                Some(_) => Machine::attaching(rules, message, legacy),
                None => Machine::resuming(rules, message, legacy),
            };
            if let Some(cause) = turn.row.cause.as_deref().and_then(Failure::read) {
                self.machine.recall(cause);
            }
            if turn.is_ended_by_user() {
                self.machine.ended_by_user();
            }
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
        self.shared.registry.set_process(
            &entry.worker_id,
            identity.pid.get(),
            &self.row.session_id,
        );
        self.take_over_cards(cards, told);
        let cancel = self.begin_start(true);
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
            tx: tx.clone(),
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
        let answered = self.legacy_cards.answered();
        self.settle_left_steers(Some(resumed)).await;
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
                seen: resumed.seen || !resumed.open_cards.is_empty(),
                // Those that nobody here knows yet are told next.
                card: !resumed.open_cards.is_subset(&answered),
            }
        } else {
            Adopted::NeverSent
        };
        self.input(Input::Adopted(generation, adopted)).await;
    }

    /// Cards of the last broker: open ones wait for the worker's word, settled
    /// ones are known for late answers. `told`: where the transcript ends.
    fn take_over_cards(&mut self, cards: Vec<CardRow>, told: Seq) {
        for row in cards {
            let Some(settled) = row.settled else {
                self.legacy_cards.open.push(row);
                continue;
            };
            let card = row.card;
            let id = card.card_id.clone();
            self.cards.remember(id.clone(), settled.outcome.clone());
            self.kept.push_back((card.generation, id));
            self.legacy_cards.settled.push(Ended {
                told: settled.sequence <= told,
                card,
                settled,
            });
        }
    }

    /// Tells how cards ended where the last broker died before it could.
    pub(super) async fn tell_settled(&mut self) {
        let settled = std::mem::take(&mut self.legacy_cards.settled);
        for Ended { card, settled, .. } in settled.iter().filter(|ended| !ended.told) {
            self.record_end(card, &settled.outcome, settled.answer.as_ref())
                .await;
        }
        self.legacy_cards.settled = settled;
    }

    /// Opens the cards of the last broker that are `open`, for what is left of
    /// their time. Gives back the others.
    pub(super) fn open_legacy_cards(&mut self, open: impl Fn(&RequestId) -> bool) -> Vec<Card> {
        let timeout = self.shared.config.card_timeout();
        let now = clock::monotonic_ms();
        let mut others = Vec::new();
        for row in std::mem::take(&mut self.legacy_cards.open) {
            if open(&row.card.card_id) {
                let until = self.now() + left(timeout, row.opened_at_ms, now);
                self.cards.add(row.card, until);
                self.touch();
            } else {
                others.push(row.card);
            }
        }
        others
    }

    /// Cards that the worker still blocks on stay open under their ids, or are
    /// answered as they were; the others were settled while nobody listened.
    pub(super) async fn settle_legacy_cards(&mut self, open: &BTreeSet<RequestId>) {
        for card in self.open_legacy_cards(|id| open.contains(id)) {
            let outcome = CardOutcome::Withdrawn {
                why: Withdrawal::WorkerGone,
            };
            self.card_settled(&card, outcome, None).await;
        }
        for Ended { card, settled, .. } in std::mem::take(&mut self.legacy_cards.settled) {
            if !open.contains(&card.card_id) {
                continue;
            }
            let (outcome, answer) = (&settled.outcome, settled.answer.as_ref());
            self.write_answer(&card, outcome, answer);
            if answer.is_none() && matches!(outcome, CardOutcome::Answered { .. }) {
                let message = "An answer was lost with the broker, which keeps no secrets; the \
                               agent was told no."
                    .to_owned();
                let level = NoticeLevel::Warn;
                self.emit(card.turn_id.as_ref(), &Event::Notice { level, message });
            }
        }
        for command in std::mem::take(&mut self.deferred) {
            // Boxed: an answer is a command like this one's cause.
            Box::pin(self.command(command)).await;
        }
    }
}

/// What is left of a card's time. Where nobody wrote down when it was opened it
/// has all of it.
fn left(timeout: Duration, opened_at_ms: u64, now_ms: u64) -> Duration {
    let passed = match opened_at_ms {
        0 => 0,
        opened => now_ms.saturating_sub(opened),
    };
    timeout.saturating_sub(Duration::from_millis(passed))
}

/// What is left of a watchdog's time that was armed then, and of the time behind it
/// in which a silent worker may end its run. Of that all is left where nobody wrote
/// down when it was armed.
fn watchdog_left(timing: &Timing, armed_at_ms: u64, now_ms: u64) -> (Duration, Duration) {
    let passed = Duration::from_millis(now_ms.saturating_sub(armed_at_ms));
    let left = timing.first_event.saturating_sub(passed);
    let cancel = match armed_at_ms {
        0 => timing.cancel,
        _ => (timing.first_event + timing.cancel).saturating_sub(passed),
    };
    (left, cancel.min(timing.cancel))
}

/// What the machine must know of a turn of another broker. `living`: the
/// generation of the worker that is taken over. `armed`: a recovery was put on disk,
/// and nothing was sent since.
fn legacy_turn(
    turn: &LegacyTurn,
    living: Option<Generation>,
    armed: bool,
    timing: &Timing,
) -> crate::turn::Legacy {
    let row = &turn.row;
    let sends = u8::try_from(row.sends).unwrap_or(u8::MAX);
    // Noted before it was written: whether that worker got it, it will tell.
    let to_this_one = living == Some(row.generation) && sends > 0;
    let (left, cancel) = watchdog_left(timing, row.armed_at_ms, clock::monotonic_ms());
    crate::turn::Legacy {
        sends: sends - u8::from(to_this_one),
        noted: to_this_one,
        resumable: turn.is_resumable(),
        evicted: turn.is_ended_by_user() && armed,
        again: Again::read(&row.state).map(|(again, _)| again),
        left,
        cancel,
    }
}

#[cfg(test)]
mod tests {
    use ade_protocol::event::TurnStatus;

    use super::*;
    use crate::state::TurnRow;
    use crate::turn::{ENDED_BY_USER, SENT, over};

    const RESEND: Again = Again::Resend;

    fn left_turn(sends: u32, state: &str) -> LegacyTurn {
        let row = TurnRow {
            session_id: "s".into(),
            turn_id: "t".into(),
            prompt: "hello".into(),
            started_at: "now".into(),
            generation: Generation(4),
            sends,
            state: state.into(),
            armed_at_ms: 0,
            cause: None,
            after: Seq(0),
        };
        LegacyTurn { row, begun: true }
    }

    /// What a broker may do by itself for the message of one that is gone.
    #[test]
    fn only_what_nobody_has_seen_or_ended_goes_to_another_worker() {
        let table = [
            (0, "starting", true),
            (1, SENT, false),
            (1, RESEND.planned(), true),
            (2, RESEND.written(), false),
            (1, Again::Reconnect.planned(), true),
            (1, Again::Continue.planned(), true),
            (0, ENDED_BY_USER, false),
            (1, ENDED_BY_USER, false),
            (0, over(TurnStatus::Failed), false),
            (1, over(TurnStatus::Completed), false),
        ];
        for (sends, state, resumable) in table {
            let turn = left_turn(sends, state);
            assert_eq!(turn.is_resumable(), resumable, "{sends} {state}");
        }
    }

    #[test]
    fn a_send_that_was_noted_counts_once_its_worker_has_told_of_it() {
        let timing = Timing::new(Duration::from_secs(10));
        let (own, other) = (Some(Generation(4)), Some(Generation(5)));
        // Sends that are certain, and whether the worker has to tell of one.
        let table = [
            (0, "starting", own, (0, false), None),
            (1, SENT, own, (0, true), None),
            (1, SENT, other, (1, false), None),
            (1, SENT, None, (1, false), None),
            (1, RESEND.planned(), own, (0, true), Some(RESEND)),
            (1, RESEND.planned(), other, (1, false), Some(RESEND)),
            (2, RESEND.written(), own, (1, true), Some(RESEND)),
        ];
        for (sends, state, living, expected, again) in table {
            let legacy = legacy_turn(&left_turn(sends, state), living, false, &timing);
            let found = (legacy.sends, legacy.noted);
            assert_eq!(found, expected, "{sends} {state} {living:?}");
            assert_eq!(legacy.again, again, "{sends} {state} {living:?}");
        }
        // The worker goes only where its recovery was on disk before the user's end.
        for (state, armed, evicted) in [
            (ENDED_BY_USER, true, true),
            (ENDED_BY_USER, false, false),
            (SENT, true, false),
        ] {
            let legacy = legacy_turn(&left_turn(1, state), own, armed, &timing);
            assert_eq!(legacy.evicted, evicted, "{state} {armed}");
        }
    }

    #[test]
    fn a_card_has_what_is_left_of_its_time() {
        let hour = Duration::from_secs(3_600);
        let table = [
            (1_000, 1_000, hour),
            (1_000, 61_000, Duration::from_secs(3_540)),
            (1_000, 10_000_000, Duration::ZERO),
            // Of another boot, and not written down.
            (9_000, 1_000, hour),
            (0, 50_000_000, hour),
        ];
        for (opened, now, expected) in table {
            assert_eq!(left(hour, opened, now), expected, "{opened} {now}");
        }
    }

    #[test]
    fn a_silent_worker_has_what_is_left_of_its_time_to_end() {
        let timing = Timing::new(Duration::from_secs(10));
        let table = [
            (1_000, 5_000, (6_000, 3_000)),
            (1_000, 12_000, (0, 2_000)),
            (1_000, 20_000, (0, 0)),
            // Of another boot, and not written down.
            (9_000, 1_000, (10_000, 3_000)),
            (0, 50_000, (0, 3_000)),
        ];
        for (armed, now, (left, cancel)) in table {
            let expected = (Duration::from_millis(left), Duration::from_millis(cancel));
            assert_eq!(
                watchdog_left(&timing, armed, now),
                expected,
                "{armed} {now}"
            );
        }
    }
}
