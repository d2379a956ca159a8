//! The machine's invariants: all interleavings of up to seven inputs, and long
//! random sequences.
//!
//! Both give the machine letters of the same alphabet and fold every effect into
//! a ledger, which knows the invariants. States of machine and ledger that were
//! met before are merged, so that *all* sequences are covered although there are
//! millions of them.

mod ledger;
mod world;

use std::collections::HashMap;

use proptest::prelude::*;

use self::world::World;
use super::*;

const PROMPT: &str = "prompt";

/// An agent that can do all of it.
const ABLE: Recovery = Recovery {
    fresh_agent: true,
    reconnects: true,
};

/// The alphabet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Letter {
    Send,
    Steer,
    Replace,
    Continue,
    RecoverQueue,
    CancelQueued,
    Ready,
    NoWorker,
    Event,
    Card,
    /// A card of no turn.
    SignIn,
    Settled,
    Completed,
    Network,
    /// A login token has expired.
    Stale,
    Unknown,
    Exited,
    Abort,
    /// The worker answers it.
    Aborted,
    /// The worker takes a message for the running turn.
    Taken,
    /// A worker that was evicted shows that its agent worked on the message.
    Worked,
    Stop,
    PutAway,
    Moment,
    Deadline,
    /// The agent that was to be resumed is gone.
    Gone,
    /// Nothing can be written down any more.
    Unrecordable,
    /// The worker that is taken over never got the message.
    NeverSent,
    /// It has it, and nothing of it was seen.
    Unseen,
    /// It has it, and it streams.
    Seen,
    /// It cannot be taken over.
    TakeoverFailed,
    /// The worker was started with what is not wanted any more.
    Outdated,
    /// Frames of the worker before, and of another turn.
    Old,
}

const ALPHABET: [Letter; 33] = [
    Letter::Send,
    Letter::Steer,
    Letter::Replace,
    Letter::Continue,
    Letter::RecoverQueue,
    Letter::CancelQueued,
    Letter::Ready,
    Letter::NoWorker,
    Letter::Event,
    Letter::Card,
    Letter::SignIn,
    Letter::Settled,
    Letter::Completed,
    Letter::Network,
    Letter::Stale,
    Letter::Unknown,
    Letter::Exited,
    Letter::Abort,
    Letter::Aborted,
    Letter::Taken,
    Letter::Worked,
    Letter::Gone,
    Letter::Stop,
    Letter::PutAway,
    Letter::Moment,
    Letter::Deadline,
    Letter::Unrecordable,
    Letter::NeverSent,
    Letter::Unseen,
    Letter::Seen,
    Letter::TakeoverFailed,
    Letter::Outdated,
    Letter::Old,
];

/// Runs every sequence of letters up to this length.
fn explore(first: World, alphabet: &[Letter], length: u32) {
    // Each world with the number of sequences that lead to it.
    let mut level: HashMap<World, u64> = HashMap::from([(first, 1)]);
    let mut sequences = 0_u64;
    for _ in 0..length {
        let mut deeper: HashMap<World, u64> = HashMap::new();
        for (world, ways) in level {
            for letter in alphabet {
                let mut next = world.clone();
                next.step(*letter);
                next.forget();
                *deeper.entry(next).or_default() += ways;
            }
        }
        sequences += deeper.values().sum::<u64>();
        level = deeper;
    }
    assert!(
        level.len() > 1_000,
        "{} different worlds are too few",
        level.len()
    );
    for world in level.into_keys() {
        world.finish();
    }
    let letters = u64::try_from(alphabet.len()).unwrap();
    let all: u64 = (1..=length).map(|length| letters.pow(length)).sum();
    assert_eq!(sequences, all, "every sequence was covered");
}

#[test]
fn every_interleaving_of_seven_inputs_keeps_the_invariants() {
    explore(World::new(ABLE), &ALPHABET, 7);
}

#[test]
fn every_interleaving_of_an_agent_that_is_resumed_keeps_the_invariants() {
    explore(World::new(Recovery::default()), &ALPHABET, 6);
}

#[test]
fn every_interleaving_after_a_takeover_keeps_the_invariants() {
    let [resend, reconnect, go_on] = [Again::Resend, Again::Reconnect, Again::Continue].map(Some);
    // Never sent, or sent to this worker for the first time.
    for (resumable, noted) in [(true, false), (false, true)] {
        explore(World::taking_over(0, resumable, noted, None), &ALPHABET, 6);
    }
    for again in [resend, reconnect, go_on] {
        // Given up together with this worker, or about to be sent to it, or sent.
        for (sends, resumable, noted) in [(0, true, true), (1, true, false), (1, false, true)] {
            let world = World::taking_over(sends, resumable, noted, again);
            explore(world, &ALPHABET, 5);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn long_random_sequences_keep_the_invariants(
        letters in prop::collection::vec(0..ALPHABET.len(), 200..400)
    ) {
        let mut world = World::new(ABLE);
        for letter in letters {
            world.step(ALPHABET[letter]);
        }
        world.finish();
    }
}
