//! The line by examples and by properties.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn line(max_workers: usize, max_per_provider: usize, max_starting: usize) -> Line {
    Line::new(PoolLimits {
        max_workers,
        max_per_provider,
        max_starting,
    })
}

fn nobody(_: &SessionId) -> bool {
    false
}

fn at(seconds: u64) -> Mono {
    Duration::from_secs(seconds)
}

#[test]
fn places_are_given_in_order_and_everybody_knows_where_it_stands() {
    let mut line = line(2, 9, 9);
    let all: Vec<Ticket> = ["a", "b", "c", "d"]
        .map(|session| line.ask(session.into(), "x"))
        .to_vec();
    let expected = [
        News::Granted(all[0]),
        News::Granted(all[1]),
        News::Waits(all[2], 1),
        News::Waits(all[3], 2),
    ];
    assert_eq!(line.settle(nobody), expected);
    assert!(line.settle(nobody).is_empty(), "told once");
    line.leave(all[0]);
    let expected = [News::Granted(all[2]), News::Waits(all[3], 1)];
    assert_eq!(line.settle(nobody), expected);
    line.leave(all[3]);
    line.leave(all[1]);
    assert!(line.settle(nobody).is_empty(), "it had left the line");
}

#[test]
fn who_gives_a_place_back_stands_where_it_stood() {
    let mut line = line(2, 9, 9);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|session| line.ask(session.into(), "x"));
    line.settle(nobody);
    // There turns out to be no room for the two.
    line.give_back(b);
    line.give_back(a);
    line.set_room(0);
    let expected = [News::Granted(a)];
    let news = line.settle(nobody);
    assert!(news.starts_with(&expected), "{news:?}");
    line.set_room(3);
    let news = line.settle(nobody);
    assert_eq!(
        news,
        [News::Granted(b), News::Waits(c, 1), News::Waits(d, 2)]
    );
    line.leave(c);
    line.give_back(c);
    assert_eq!(
        line.settle(nobody),
        [News::Waits(d, 1)],
        "who has left stays away"
    );
}

#[test]
fn a_full_kind_of_agent_holds_up_only_its_own() {
    let mut line = line(3, 1, 9);
    let first = line.ask("a".into(), "x");
    let second = line.ask("b".into(), "x");
    let other = line.ask("c".into(), "y");
    let expected = [
        News::Granted(first),
        News::Granted(other),
        News::Waits(second, 1),
    ];
    assert_eq!(line.settle(nobody), expected);
    line.leave(first);
    assert_eq!(line.settle(nobody), [News::Granted(second)]);
}

#[test]
fn only_so_many_start_at_once() {
    let mut line = line(9, 9, 1);
    let first = line.ask("a".into(), "x");
    let second = line.ask("b".into(), "x");
    assert_eq!(
        line.settle(nobody),
        [News::Granted(first), News::Waits(second, 1)]
    );
    assert!(!line.is_full("x"), "that passes by itself");
    line.started(first);
    assert_eq!(line.settle(nobody), [News::Granted(second)]);
    // Nobody is put away for it.
    line.idle(first, at(1));
    let third = line.ask("c".into(), "x");
    assert_eq!(line.settle(nobody), [News::Waits(third, 1)]);
}

#[test]
fn what_the_process_has_no_room_for_waits_and_idle_workers_make_room() {
    let mut line = line(9, 9, 9);
    line.set_room(2);
    let [first, second, third] = ["a", "b", "c"].map(|session| line.ask(session.into(), "x"));
    let expected = [
        News::Granted(first),
        News::Granted(second),
        News::Waits(third, 1),
    ];
    assert_eq!(line.settle(nobody), expected);
    // What starts may not have taken its part yet.
    line.set_room(2);
    assert!(line.settle(nobody).is_empty());
    line.started(first);
    line.started(second);
    line.idle(second, at(1));
    line.set_room(0);
    assert_eq!(line.settle(nobody), [News::WantedBack(second)]);
    line.leave(second);
    line.set_room(1);
    assert_eq!(line.settle(nobody), [News::Granted(third)]);
    for ticket in [first, third] {
        line.leave(ticket);
    }
    // One that is alone is not kept waiting for ever.
    let alone = line.ask("d".into(), "x");
    line.set_room(0);
    assert_eq!(line.settle(nobody), [News::Granted(alone)]);
}

#[test]
fn the_longest_idle_worker_that_nobody_watches_makes_room() {
    let mut line = line(4, 9, 9);
    let [busy, watched, old, young] = ["busy", "watched", "old", "young"].map(|session| {
        let ticket = line.ask(session.into(), "x");
        line.settle(nobody);
        line.started(ticket);
        ticket
    });
    line.idle(watched, at(1));
    line.idle(old, at(2));
    line.idle(young, at(3));
    let seen = |session: &SessionId| session.as_str() == "watched";
    let first = line.ask("n".into(), "x");
    assert_eq!(
        line.settle(seen),
        [News::WantedBack(old), News::Waits(first, 1)]
    );
    assert!(line.settle(seen).is_empty(), "one is enough");
    // A message for the old one came in the same moment.
    line.busy(old);
    assert_eq!(line.settle(seen), [News::WantedBack(young)]);
    line.leave(young);
    assert_eq!(line.settle(seen), [News::Granted(first)]);
    let second = line.ask("m".into(), "x");
    assert_eq!(line.settle(seen), [News::Waits(second, 1)], "nobody may go");
    assert_eq!(line.settle(nobody), [News::WantedBack(watched)]);
    line.leave(busy);
    assert_eq!(line.settle(nobody), [News::Granted(second)]);
}

#[test]
fn each_request_gets_room_of_its_own_from_whoever_is_idle_longest() {
    let mut line = line(2, 9, 9);
    let [young, old] = ["young", "old"].map(|session| line.ask(session.into(), "x"));
    line.settle(nobody);
    line.idle(young, at(2));
    line.idle(old, at(1));
    let first = line.ask("a".into(), "x");
    let expected = [News::WantedBack(old), News::Waits(first, 1)];
    assert_eq!(line.settle(nobody), expected);
    let second = line.ask("b".into(), "x");
    let expected = [News::WantedBack(young), News::Waits(second, 2)];
    assert_eq!(line.settle(nobody), expected);
}

#[test]
fn room_for_a_full_kind_is_made_among_its_own() {
    let mut line = line(3, 1, 9);
    let x = line.ask("a".into(), "x");
    let y = line.ask("b".into(), "y");
    line.settle(nobody);
    line.idle(y, at(1));
    line.idle(x, at(2));
    let again = line.ask("c".into(), "x");
    assert_eq!(
        line.settle(nobody),
        [News::WantedBack(x), News::Waits(again, 1)]
    );
}

#[test]
fn workers_that_were_taken_over_may_be_too_many() {
    let mut line = line(1, 1, 1);
    let first = line.take("a".into(), "x");
    let second = line.take("b".into(), "x");
    let asks = line.ask("c".into(), "x");
    line.settle(nobody);
    line.leave(first);
    assert!(line.settle(nobody).is_empty());
    line.leave(second);
    assert_eq!(line.settle(nobody), [News::Granted(asks)]);
}

proptest! {
    #[test]
    fn limits_hold_and_nobody_is_forgotten(steps in prop::collection::vec((0..7_u8, 0..16_usize), 1..300)) {
        let mut line = line(4, 3, 2);
        let mut known: Vec<(Ticket, bool)> = Vec::new();
        for (now, (what, which)) in steps.into_iter().enumerate() {
            let picked = (!known.is_empty()).then(|| known[which % known.len()]);
            match (what, picked) {
                (0, _) => {
                    let provider = if which % 2 == 0 { "x" } else { "y" };
                    known.push((line.ask(format!("s{now}").into(), provider), false));
                }
                (1, Some((ticket, true))) => line.started(ticket),
                (2, Some((ticket, true))) => line.idle(ticket, at(now as u64)),
                (3, Some((ticket, true))) => line.busy(ticket),
                (4, Some((ticket, _))) => {
                    line.leave(ticket);
                    known.retain(|(other, _)| *other != ticket);
                }
                (5, Some((ticket, true))) => {
                    line.give_back(ticket);
                    for (other, granted) in &mut known {
                        *granted &= *other != ticket;
                    }
                }
                _ => {}
            }
            prop_assert!(line.waiting.iter().is_sorted_by_key(|waiting| waiting.ticket));
            for news in line.settle(nobody) {
                if let News::Granted(ticket) = news {
                    for (other, granted) in &mut known {
                        *granted |= *other == ticket;
                    }
                }
            }
            prop_assert!(line.holders.len() <= 4);
            for provider in ["x", "y"] {
                prop_assert!(line.of_provider(provider) <= 3);
            }
            prop_assert!(line.holders.values().filter(|holder| holder.starting).count() <= 2);
            prop_assert_eq!(line.holders.len() + line.waiting.len(), known.len());
        }
        // When everybody leaves in time, everybody gets its turn.
        while line.waiting.front().is_some() {
            let holders: Vec<Ticket> = line.holders.keys().copied().collect();
            prop_assert!(!holders.is_empty(), "somebody waits for nothing");
            for ticket in holders {
                line.leave(ticket);
            }
            line.settle(nobody);
        }
    }
}
