//! Messages that a worker took for a turn of which nothing was seen, and that went
//! with it: the turn goes on with another worker, which is not given them. Each is
//! told once, in its turn, before the other worker is sent anything.

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, signal};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{dones, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

use super::{
    SAID_AND_UNREAD, naming, on_their_way, put_on_its_way, steer, turnless, waits_for_steers,
};

/// Soon given up, soon ended.
const QUICK: &str = "[turns]\ncancel_ms = 300\n[worker]\neof_grace_ms = 200\n\
    [providers.scripted]\ndispose_grace_ms = 200\nterm_to_kill_ms = 200\n";

/// A run that says nothing, reads no message and does not end when it is told to; once.
const SILENT: &str = "!slow-abort 600000\n!steers unread-silent\n!turnless\n!hang-once\n!emit done";

/// A chat in a turn of these steps whose agent is silent for so long.
fn silent(config: &str, first_event_ms: u64, steps: &str) -> (Ade, Rpc, String, String) {
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let more = json!({"firstEventMs": first_event_ms});
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("one"), more);
    let (turn, _) = ade.send(&mut rpc, &chat, steps);
    waits_for_steers(&ade, &chat);
    (ade, rpc, chat, turn)
}

fn takes(rpc: &mut Rpc, chat: &str, prompt: &str) {
    assert_eq!(steer(rpc, chat, prompt)["outcome"], "delivered");
}

/// The notices of a turn, in order.
fn told(lines: &[Value], turn: &str) -> Vec<String> {
    let notices = of_type(&of_turn(lines, turn), "notice");
    let text = |notice: &Value| notice["message"].as_str().expect("a text").to_owned();
    notices.iter().map(text).collect()
}

/// The turn went on with another worker, and all of this was told before that one was
/// sent anything.
#[track_caller]
fn completed(ade: &Ade, chat: &str, turn: &str, prompts: &[&str]) {
    ade.wait_done(chat, turn);
    assert_eq!(text_of(&ade.turn(chat, "next")), "You said: next");
    let lines = ade.checked_transcript(chat);
    assert_eq!(dones(&lines)[0], (turn.to_owned(), "completed".to_owned()));
    assert_eq!(text_of(&of_turn(&lines, turn)), "done");
    for prompt in prompts {
        let naming = naming(&lines, Some(turn), prompt);
        assert_eq!(naming, SAID_AND_UNREAD, "{prompt}");
    }
    let told = told(&lines, turn);
    assert_eq!(told.len(), prompts.len() + 1, "{told:?}");
    for told in &told[..prompts.len()] {
        assert!(told.contains("not sent to another one"), "{told}");
        assert!(told.contains("not known"), "{told}");
        assert!(told.contains("Send it again"), "{told}");
    }
    let again = told.last().expect("a notice");
    assert!(again.contains("started a fresh worker"), "{again}");
    assert_eq!(on_their_way(ade), 0);
}

fn recycled(recovery: &str) {
    let config = format!("{QUICK}recovery = \"{recovery}\"\n");
    let (ade, mut rpc, chat, turn) = silent(&config, 1500, SILENT);
    takes(&mut rpc, &chat, "and this");
    takes(&mut rpc, &chat, "and that");
    completed(&ade, &chat, &turn, &["and this", "and that"]);

    let (ade, mut rpc, chat, turn) = silent(&config, 60_000, SILENT);
    takes(&mut rpc, &chat, "and this");
    signal(ade.host_of(&chat), Signal::SIGKILL);
    completed(&ade, &chat, &turn, &["and this"]);
}

#[test]
fn a_steer_that_a_silent_or_dead_worker_took_is_told_of_when_another_resumes() {
    recycled("resume");
}

#[test]
fn a_steer_that_a_silent_or_dead_worker_took_is_told_of_when_a_fresh_agent_goes_on() {
    recycled("replay");
}

#[test]
fn steers_of_both_workers_of_a_turn_that_fails_twice_are_told_of_once() {
    let steps = "!slow-abort 600000\n!steers unread-silent\n!turnless\n!hang";
    let (ade, mut rpc, chat, turn) = silent(QUICK, 1500, steps);
    takes(&mut rpc, &chat, "one thing");
    ade.wait_transcript(&chat, "both workers take messages", |lines| {
        turnless(lines) == 2
    });
    takes(&mut rpc, &chat, "other thing");
    ade.wait_done(&chat, &turn);
    assert_eq!(text_of(&ade.turn(&chat, "next")), "You said: next");
    let lines = ade.checked_transcript(&chat);
    assert_eq!(dones(&lines)[0], (turn.clone(), "failed".to_owned()));
    for prompt in ["one thing", "other thing"] {
        let naming = naming(&lines, Some(&turn), prompt);
        assert_eq!(naming, SAID_AND_UNREAD, "{prompt}");
    }
    assert_eq!(on_their_way(&ade), 0);
}

/// Its end says what was not read, and that it is told once is enough.
#[test]
fn a_steer_of_a_run_that_is_heard_when_it_is_to_end_is_not_told_of_twice() {
    let steps = "!slow-abort 300 here\n!steers unread-silent\n!turnless\n!hang";
    let (ade, mut rpc, chat, turn) = silent("[turns]\ncancel_ms = 60000\n", 1500, steps);
    takes(&mut rpc, &chat, "and this");
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    assert_eq!(naming(&lines, Some(&turn), "and this"), SAID_AND_UNREAD);
    let told = told(&lines, &turn);
    assert!(told[0].contains("had not read"), "{told:?}");
    wait_true("nothing is on its way", || on_their_way(&ade) == 0);
}

#[test]
fn a_broker_that_is_killed_while_the_silent_run_is_to_end_leaves_its_steer_to_the_next() {
    let config = QUICK.replace("cancel_ms = 300", "cancel_ms = 2500");
    let (mut ade, mut rpc, chat, turn) = silent(&config, 1500, SILENT);
    takes(&mut rpc, &chat, "and this");
    ade.wait_state(&chat, "recovering");
    ade.kill_broker();
    assert_eq!(on_their_way(&ade), 1);
    ade.serve();
    completed(&ade, &chat, &turn, &["and this"]);
}

#[test]
fn a_broker_that_dies_with_the_silent_worker_leaves_its_steer_to_the_next() {
    let config = QUICK.replace("cancel_ms = 300", "cancel_ms = 600000");
    let (mut ade, mut rpc, chat, turn) = silent(&config, 1500, SILENT);
    takes(&mut rpc, &chat, "and this");
    ade.wait_state(&chat, "recovering");
    ade.kill_all_with_broker();
    ade.serve();
    completed(&ade, &chat, &turn, &["and this"]);
}

/// It is told, and the broker dies before the row is off the disk and another worker
/// is there.
#[test]
fn a_steer_that_was_told_of_is_not_told_of_by_the_next_broker() {
    // The worker takes long to leave.
    let config = QUICK.replace("dispose_grace_ms = 200", "dispose_grace_ms = 30000");
    let steps = format!("!ignore-term-once\n{SILENT}");
    let (mut ade, mut rpc, chat, turn) = silent(&config, 1500, &steps);
    takes(&mut rpc, &chat, "and this");
    ade.wait_transcript(&chat, "it is told", |lines| {
        naming(lines, Some(&turn), "and this") == SAID_AND_UNREAD
    });
    wait_true("nothing is on its way", || on_their_way(&ade) == 0);
    assert_eq!(ade.session(&chat)["state"], "recovering");
    ade.kill_all_with_broker();
    put_on_its_way(&ade, &chat, &turn);
    ade.serve();
    completed(&ade, &chat, &turn, &["and this"]);
}

#[test]
fn a_turn_that_says_nothing_takes_so_many_messages_and_no_more() {
    let (ade, mut rpc, chat, turn) = silent(QUICK, 60_000, SILENT);
    let most = 256;
    for nth in 0..most {
        takes(&mut rpc, &chat, &format!("<{nth}>"));
    }
    let asked = json!({"sessionId": chat, "prompt": "one more"});
    let refused = rpc.try_call("chat.steer", asked).expect_err("refused");
    assert_eq!(refused.kind, "queue_full", "{refused:?}");
    signal(ade.host_of(&chat), Signal::SIGKILL);
    ade.wait_done(&chat, &turn);
    let lines = ade.checked_transcript(&chat);
    assert_eq!(told(&lines, &turn).len(), most + 1);
}
