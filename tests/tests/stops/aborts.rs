//! Aborts, whatever the worker is at.

use ade_tests::ade::{Ade, started};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{dones, ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::json;

use super::notices;

#[test]
fn an_abort_ends_a_silent_turn_and_the_worker_goes_on() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!hang");
    ade.wait_state(&chat, "awaiting_first_event");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "interrupted");
    assert_eq!(of_type(&events, "error").len(), 0);
    ade.goes_on(&chat, 1);
}

#[test]
fn an_abort_during_recovery_lets_it_finish_and_sends_nothing() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 500);
    // A host that climbs the whole ladder leaves time for the abort.
    let (turn, _) = ade.send(&mut rpc, &chat, "!ignore-term\n!hang");
    ade.wait_state(&chat, "recovering");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(ade.session(&chat)["state"], "recovering");
    assert_eq!(ade.sends(&chat), 1);
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "interrupted");
    assert_eq!(notices(&events).len(), 0, "nothing was sent again");
    assert_eq!(of_type(&events, "error").len(), 0);
    ade.goes_on(&chat, 2);
}

#[test]
fn an_abort_while_the_worker_starts_ends_the_turn_at_once() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    // The answer to the message does not wait for the worker.
    let (turn, _) = ade.send(&mut rpc, &chat, "!hang");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let lines = ade.wait_done(&chat, &turn);
    assert_eq!(ended(&lines), "interrupted");
    let events = ade.turn(&chat, "and now?");
    assert_eq!(ended(&events), "completed");
    // The start that was given up may have had its number, and one more has.
    assert!(ade.session(&chat)["generation"].as_u64().unwrap() <= 2);
}

/// A broker whose first agent never answers `init`, is deaf to polite words and
/// takes its time on SIGTERM; the others work. Each writes into the log when it
/// begins and ends, and `meets` when it finds an older one alive.
fn first_start_hangs() -> Ade {
    let ade = Ade::new();
    let root = ade.root().display().to_string();
    let script = format!(
        "for old in $(cat {root}/pids); do [ -d /proc/$old ] && echo meets >> {root}/log; done; \
         echo $$ >> {root}/pids; echo begins >> {root}/log; \
         mkdir {root}/hung || exec '{agent}'; \
         trap 'sleep 0.5; echo ends >> {root}/log; exit' TERM; while :; do sleep 0.05; done",
        agent = env!("CARGO_BIN_EXE_fake-agent"),
    );
    std::fs::write(ade.root().join("pids"), "").unwrap();
    let config = format!(
        "[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n\
         dispose_grace_ms = 300\nterm_to_kill_ms = 10000\n[worker]\neof_grace_ms = 300\n"
    );
    let mut ade = ade.with_config(&config);
    ade.serve();
    ade
}

/// The turn of a start that hangs ends at once, and the next message simply
/// works: if it waited for that start it would fail together with it.
#[test]
fn the_message_behind_an_abort_does_not_wait_for_a_start_that_hangs() {
    type Next = fn(&mut Rpc, &Ade, &str) -> String;
    let said_after: Next = |rpc, ade, chat| {
        rpc.call("chat.abort", json!({"sessionId": chat}));
        ade.send(rpc, chat, "emit works").0
    };
    let queued: Next = |rpc, ade, chat| {
        let (next, _) = ade.send(rpc, chat, "emit works");
        rpc.call("chat.abort", json!({"sessionId": chat}));
        next
    };
    let replace: Next = |rpc, _, chat| {
        let more = json!({"sessionId": chat, "prompt": "emit works", "mode": "replace"});
        let promise = rpc.call("chat.interrupt", more);
        promise["turnId"].as_str().unwrap().to_owned()
    };
    let go_on: Next = |rpc, _, chat| {
        let more = json!({"sessionId": chat, "prompt": "emit works", "mode": "continue"});
        let promise = rpc.call("chat.interrupt", more);
        promise["turnId"].as_str().unwrap().to_owned()
    };
    for next in [said_after, queued, replace, go_on] {
        let ade = first_start_hangs();
        let mut rpc = ade.rpc();
        let chat = ade.scripted_chat(&mut rpc, 60_000);
        let (hangs, _) = ade.send(&mut rpc, &chat, "emit never");
        wait_true("the agent hangs", || ade.root().join("hung").exists());
        let works = next(&mut rpc, &ade, &chat);
        let lines = ade.wait_done(&chat, &works);
        assert_eq!(ended(&of_turn(&lines, &hangs)), "interrupted");
        let events = of_turn(&lines, &works);
        assert_eq!(
            (ended(&events), text_of(&events).as_str()),
            ("completed", "works")
        );
        let order = [(hangs, "interrupted"), (works, "completed")];
        assert_eq!(
            dones(&lines),
            order.map(|(turn, end)| (turn, end.to_owned()))
        );
        let log = std::fs::read_to_string(ade.root().join("log")).unwrap();
        assert_eq!(log, "begins\nends\nbegins\n", "two generations met");
        let _ = ade.checked_transcript(&chat);
    }
}
