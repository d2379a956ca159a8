//! Clients that read nothing while much is said: each costs the broker what its
//! queue may hold and little more, again and again, and nobody waits for them.

use ade_tests::ade::{Ade, report, started};
use ade_tests::rpc::Deaf;
use ade_tests::turns::ended;
use serde_json::json;

/// Clients at the same time.
const CLIENTS: usize = 10;

/// What one may cost, in KiB: 4 MiB for its queue, the rest for what is in its
/// writer's hands.
const EACH: usize = 4 * 1024 + 512;

/// For everything else, in KiB: the allocator takes memory in large pieces and
/// keeps what lies between them. Twice the bound, or a leak, is above it.
const SLACK: usize = CLIENTS * EACH / 2;

/// Memory of the broker's own, in KiB.
fn memory(ade: &Ade) -> usize {
    let status = format!("/proc/{}/status", ade.broker_pid());
    let status = std::fs::read_to_string(status).expect("the broker");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let figure = line.expect("RssAnon").trim().trim_end_matches(" kB");
    figure.parse().expect("a number")
}

#[test]
fn clients_that_do_not_read_cost_what_their_queues_may_hold() {
    let (ade, mut rpc) = started("");
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let flood = || {
        let events = ade.turn(&chat, "!events 8000 800");
        assert_eq!(ended(&events), "completed");
    };
    flood();
    let before = memory(&ade);
    let mut most = 0;
    // The second ones get the memory of the first.
    for wave in 1..=2 {
        let mut deaf = Vec::new();
        for _ in 0..CLIENTS {
            // Each stops at another place, so that nothing is shared.
            deaf.push(Deaf::subscribe(&ade.socket(), &chat, None));
            flood();
        }
        let grown = memory(&ade).saturating_sub(before);
        report(&format!(
            "{CLIENTS} clients that do not read cost {grown} KiB, time {wave}"
        ));
        assert!(grown < CLIENTS * EACH + SLACK, "{grown} KiB");
        // One that leaked would cost as much again.
        assert!(
            wave == 1 || grown < most + SLACK,
            "{most}, then {grown} KiB"
        );
        most = grown;
        let last = ade.checked_transcript(&chat).len();
        // One that wakes up gets everything.
        let mut woken = deaf.swap_remove(0).wake();
        let mut next = None;
        while next != Some(last) {
            let line = woken.line(ade_tests::wait::PATIENCE).expect("more");
            if line["method"] == "ade/event" {
                let number = line["params"]["sequence"].as_u64().expect("a number");
                let number = usize::try_from(number).expect("small");
                assert!(
                    next.is_none_or(|last| number == last + 1),
                    "{next:?}, {number}"
                );
                next = Some(number);
            }
        }
    }
    rpc.call("chat.stop", json!({"sessionId": chat}));
}
