//! What must be so at the end of the demo. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use ade_protocol::event::TurnStatus;

use super::cast::{Actor, FIRST_EVENT_MS, Role, together};
use super::fight::Side;
use super::report::Check;

/// What was seen beside the chats.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// How each lease stood after the broker's end.
    pub(super) leases: Vec<&'static str>,
    /// Owner files that are there after the broker's end.
    pub(super) owners: usize,
    /// The two sides of the fight.
    pub(super) fight: Vec<Side>,
    /// How the broker ended, and how long that took.
    pub(super) end: Result<Duration, String>,
    /// Processes seen below the broker.
    pub(super) processes: usize,
    /// Those that still live.
    pub(super) leftovers: Vec<i32>,
}

/// What must be so of the chats' turns.
pub(super) fn of_turns(actors: &[Actor]) -> Vec<Check> {
    let mut checks = vec![workers(actors), streaming(actors)];
    for actor in actors {
        match actor.part.role {
            Role::Asks => checks.push(card(actor)),
            Role::Hangs => checks.push(hang(actor)),
            Role::Killed => checks.push(killed(actor)),
            Role::Streams => {}
        }
    }
    checks.push(ends(actors));
    checks.push(numbers(actors));
    checks
}

/// What must be so of everything else.
pub(super) fn of_the_rest(actors: &[Actor], facts: &Facts) -> Vec<Check> {
    vec![
        leases(actors, facts),
        fight(&facts.fight),
        stop(facts),
        leftovers(facts),
    ]
}

fn check(ok: bool, text: String) -> Check {
    Check { ok, text }
}

fn workers(actors: &[Actor]) -> Check {
    let lanes: BTreeSet<_> = actors.iter().map(|actor| actor.part.lane).collect();
    let pids: BTreeSet<_> = actors
        .iter()
        .flat_map(|actor| &actor.seen.workers)
        .collect();
    let shared = actors.iter().any(|actor| actor.seen.workers.is_empty())
        || pids.len()
            != actors
                .iter()
                .map(|actor| actor.seen.workers.len())
                .sum::<usize>();
    check(
        !shared,
        format!(
            "{} chats in {} lanes, each in a worker process of its own ({} workers in all)",
            actors.len(),
            lanes.len(),
            pids.len()
        ),
    )
}

fn streaming(actors: &[Actor]) -> Check {
    let together = together(actors);
    let count = actors
        .iter()
        .filter(|actor| actor.part.role != Role::Hangs)
        .count();
    check(
        !together.is_zero(),
        format!(
            "{count} of them streamed at the same time, for {:.1} s",
            together.as_secs_f64()
        ),
    )
}

fn card(actor: &Actor) -> Check {
    let seen = &actor.seen;
    check(
        seen.cards == 1 && seen.answered == 1 && seen.tools == [true] && completed(actor),
        format!(
            "a chat asked before it ran a command ({} question, {} answer), got yes, and went on",
            seen.cards, seen.answered
        ),
    )
}

fn hang(actor: &Actor) -> Check {
    let seen = &actor.seen;
    let once = seen.user_messages == 1 && seen.notices.len() == 1;
    let notice = seen
        .notices
        .first()
        .map_or("nothing was said about it", String::as_str);
    check(
        once && actor.info.generation.0 == 2 && completed(actor),
        format!(
            "a silent worker was replaced after {FIRST_EVENT_MS} ms (generation {}): \"{notice}\"",
            actor.info.generation
        ),
    )
}

fn killed(actor: &Actor) -> Check {
    let seen = &actor.seen;
    let error = seen
        .errors
        .first()
        .map_or("nothing was said about it", String::as_str);
    check(
        seen.errors.len() == 1 && seen.done == [TurnStatus::Failed],
        format!("a worker was killed with SIGKILL and its turn failed: \"{error}\""),
    )
}

fn ends(actors: &[Actor]) -> Check {
    let ended = actors
        .iter()
        .filter(|actor| actor.seen.done.len() == 1)
        .count();
    let done = actors.iter().filter(|actor| completed(actor)).count();
    let expected = actors
        .iter()
        .filter(|actor| actor.part.role != Role::Killed)
        .count();
    check(
        ended == actors.len() && done == expected,
        format!(
            "each turn has exactly one end: {done} completed, {} failed",
            ended - done.min(ended)
        ),
    )
}

fn numbers(actors: &[Actor]) -> Check {
    let events: u64 = actors.iter().map(|actor| actor.seen.events).sum();
    match actors.iter().find_map(|actor| actor.seen.disorder.as_ref()) {
        None => check(
            true,
            format!("{events} events arrived, numbered without gap or double"),
        ),
        Some(disorder) => check(false, format!("events arrived out of order: {disorder}")),
    }
}

fn leases(actors: &[Actor], facts: &Facts) -> Check {
    let held = actors.iter().filter(|actor| actor.seen.lease).count();
    let free = facts
        .leases
        .iter()
        .filter(|state| **state == "free")
        .count();
    let (chats, owners) = (actors.len(), facts.owners);
    check(
        held == chats && free == chats && owners == chats,
        format!(
            "while they worked {held} of {chats} held the lease of their session file; now {free} leases are free and {owners} owner files stay"
        ),
    )
}

fn fight(sides: &[Side]) -> Check {
    let winners: Vec<&Side> = sides.iter().filter(|side| side.won).collect();
    let losers: Vec<&Side> = sides.iter().filter(|side| !side.won).collect();
    match (winners.as_slice(), losers.as_slice()) {
        ([winner], [loser]) => {
            let right = loser.holder.and_then(|pid| u32::try_from(pid).ok()) == Some(winner.pid);
            let refused = loser
                .refused
                .as_deref()
                .unwrap_or("nothing was said about it");
            check(
                right,
                format!(
                    "two processes fought for one lease: {} won, {} was refused: \"{refused}\"",
                    winner.pid, loser.pid
                ),
            )
        }
        (winners, _) => check(
            false,
            format!(
                "two processes fought for one lease, and {} won",
                winners.len()
            ),
        ),
    }
}

fn stop(facts: &Facts) -> Check {
    match &facts.end {
        Ok(took) => check(
            true,
            format!(
                "the broker and all workers stopped within {:.1} s",
                took.as_secs_f64()
            ),
        ),
        Err(why) => check(
            false,
            format!("the broker did not stop as it should: {why}"),
        ),
    }
}

fn leftovers(facts: &Facts) -> Check {
    let left = facts.leftovers.len();
    let mut text = format!("{left} of {} processes are left", facts.processes);
    if left > 0 {
        text.push_str(&format!(": {:?}", facts.leftovers));
    }
    check(left == 0 && facts.processes > 0, text)
}

fn completed(actor: &Actor) -> bool {
    actor.seen.done == [TurnStatus::Completed]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(pid: u32, holder: Option<i32>) -> Side {
        Side {
            pid,
            won: holder.is_none(),
            refused: None,
            holder,
        }
    }

    #[test]
    fn exactly_one_wins_and_the_other_names_it() {
        let table = [
            (vec![side(7, None), side(8, Some(7))], true),
            (vec![side(7, Some(8)), side(8, None)], true),
            (vec![side(7, None), side(8, Some(9))], false),
            (vec![side(7, None), side(8, None)], false),
            (vec![side(7, Some(8)), side(8, Some(7))], false),
            (vec![], false),
        ];
        for (sides, expected) in table {
            assert_eq!(fight(&sides).ok, expected, "{sides:?}");
        }
    }
}
