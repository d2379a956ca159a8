//! Messages for a turn that the agent or its worker does not answer: whoever sent one
//! hears who is silent, that nobody knows what became of it, and what to do; and so
//! does the chat.

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, signal};
use ade_tests::turns::dones;
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

use super::{hanging, naming, on_their_way};

/// What `ade chat steer` says of a message that nobody answers in time.
#[track_caller]
fn steers_in_vain(ade: &Ade, chat: &str) -> String {
    let (_, stderr) = ade.expect_code(8, &["chat", "steer", chat, "and this"]);
    assert!(!stderr.contains("the broker did not answer"), "{stderr}");
    stderr
}

/// The turn has failed, and the chat was told once that nothing is known.
#[track_caller]
fn told_once(ade: &Ade, chat: &str, turn: &str) {
    ade.wait_done(chat, turn);
    let lines = ade.wait_transcript(chat, "it is told", |lines| told(lines, turn) == 1);
    assert_eq!(dones(&lines), [(turn.to_owned(), "failed".to_owned())]);
    wait_true("nothing is on its way", || on_their_way(ade) == 0);
    let lines = ade.checked_transcript(chat);
    assert_eq!(told(&lines, turn), 1);
}

fn told(lines: &[Value], turn: &str) -> usize {
    let of = [Some(turn), None].map(|turn| naming(lines, turn, "It said: \u{201c}and this"));
    of.iter()
        .flatten()
        .filter(|kind| **kind == "notice")
        .count()
}

#[test]
fn an_agent_that_does_not_answer_a_steer_is_named() {
    let (ade, _, chat, turn) = hanging("!steers late");
    let pid = ade.session(&chat)["workerPid"].clone();
    let said = steers_in_vain(&ade, &chat);
    assert!(said.contains("the agent did not answer `steer`"), "{said}");
    assert!(
        said.contains(&format!("agent scripted, worker pid {pid}")),
        "{said}"
    );
    assert!(said.contains("is not known"), "{said}");
    assert!(said.contains("before you send it again"), "{said}");
    told_once(&ade, &chat, &turn);
}

#[test]
fn a_worker_that_does_not_answer_a_steer_is_named() {
    let (ade, _, chat, turn) = hanging("!delay 1");
    let pid = ade.session(&chat)["workerPid"].clone();
    signal(
        i32::try_from(pid.as_i64().expect("a pid")).expect("a pid"),
        Signal::SIGSTOP,
    );
    let said = steers_in_vain(&ade, &chat);
    assert!(said.contains("the worker did not answer in time"), "{said}");
    assert!(
        said.contains(&format!("agent scripted, worker pid {pid}")),
        "{said}"
    );
    assert!(said.contains("is not known"), "{said}");
    told_once(&ade, &chat, &turn);
}

#[test]
fn a_steer_whose_worker_dies_before_it_answers_is_not_known_to_be_delivered() {
    let (ade, mut rpc, chat, turn) = hanging("!steers late");
    let pid = ade.session(&chat)["workerPid"].as_i64().expect("a pid");
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    let refused = std::thread::scope(|scope| {
        let steered = scope.spawn(|| rpc.try_call("chat.steer", asked));
        wait_true("it is on its way", || on_their_way(&ade) == 1);
        signal(i32::try_from(pid).expect("a pid"), Signal::SIGKILL);
        steered.join().expect("an answer").expect_err("refused")
    });
    assert_eq!(refused.kind, "worker_gone", "{refused:?}");
    assert!(refused.message.contains("is not known"), "{refused:?}");
    assert!(refused.hints[0].contains("ade chat show"), "{refused:?}");
    told_once(&ade, &chat, &turn);
}
