//! What not even SIGKILL ends: a stop is bounded all the same, names it, and
//! gives the session to nobody before it is gone. Processes frozen by a cgroup
//! of version 1 are such: they die when they are thawed, and not before.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ade_leases::lease;
use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, report, signal, started, wait_dead};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{Tree, ended, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_until};
use serde_json::{Value, json};

/// Longest ladder with the sweep's own limit, and room for a loaded machine.
const BOUND: Duration = Duration::from_secs(12);

/// A cgroup of the freezer, which is thawed and removed in the end.
struct Freezer {
    path: PathBuf,
}

impl Freezer {
    /// Freezes a process; `None` where this system can't.
    fn freeze(pid: i32) -> Option<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/freezer/ade-t{pid}"));
        if std::fs::create_dir(&path).is_err() {
            report("SKIPPED: no freezer of cgroup version 1 that we may use");
            return None;
        }
        let freezer = Self { path };
        freezer.write("cgroup.procs", &pid.to_string());
        wait_true("it is frozen", || {
            // Once is not enough: one that waits for its vforked child, which was
            // frozen before it, is only frozen when it is asked again.
            freezer.write("freezer.state", "FROZEN");
            let state = std::fs::read_to_string(freezer.path.join("freezer.state"));
            state.is_ok_and(|state| state.trim() == "FROZEN")
        });
        Some(freezer)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path.join(name), text).expect("the freezer");
    }

    fn thaw(&self) {
        self.write("freezer.state", "THAWED");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        let until = Instant::now() + Duration::from_secs(10);
        while std::fs::remove_dir(&self.path).is_err() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

fn grown(ade: &Ade, rpc: &mut Rpc) -> (String, Tree, PathBuf) {
    let lane = ade.lane("lane");
    let chat = ade.chat(rpc, "scripted", &lane, json!({"firstEventMs": 60_000}));
    let tree = ade.grow(rpc, &chat, "");
    let file = ade.session_file(&chat);
    (chat, tree, file)
}

/// The notice that names what survives.
#[track_caller]
fn notice(ade: &Ade, chat: &str, pid: i32) -> String {
    let lines = ade.wait_transcript(chat, "a notice of the survivor", |lines| {
        of_type(lines, "notice")
            .iter()
            .any(|notice| notice["message"].to_string().contains("SIGKILL"))
    });
    let notices = of_type(&lines, "notice");
    assert_eq!(notices.len(), 1, "told once: {notices:?}");
    let text = notices[0]["message"]
        .as_str()
        .expect("a sentence")
        .to_owned();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("its name");
    assert!(text.contains(&format!("{pid} ({}", name.trim())), "{text}");
    text
}

/// A message is refused with a sentence that names the survivor.
#[track_caller]
fn refused(ade: &Ade, chat: &str, pid: i32) {
    let begin = Instant::now();
    let events = ade.turn(chat, "hello");
    assert!(begin.elapsed() < BOUND);
    assert_eq!(ended(&events), "failed", "{events:?}");
    let error = of_type(&events, "error")[0].to_string();
    assert!(error.contains(&pid.to_string()), "{error}");
}

#[track_caller]
fn clean_again(ade: &Ade, rpc: &mut Rpc, chat: &str, file: &Path) {
    wait_true("the lease is free", || ade.is_free(file));
    wait_until("the chat rests", || {
        let info = ade.session(chat);
        (info["state"] == "idle" && info["stopStage"].is_null()).then_some(())
    });
    wait_true("only the broker is left", || ade.processes().len() == 1);
    wait_true("no litter", || ade.litter().is_empty());
    let events = ade.turn(chat, "are you there?");
    assert_eq!(text_of(&events), "You said: are you there?", "{events:?}");
    rpc.call("chat.stop", json!({"sessionId": chat}));
    let (said, _) = ade.expect_code(0, &["doctor"]);
    assert!(!said.contains("survive"), "{said}");
}

fn needs_a_hand(ade: &Ade, pid: i32) {
    let (said, _) = ade.expect_code(1, &["doctor"]);
    assert!(
        said.contains(&format!("survive SIGKILL: {pid} (")),
        "{said}"
    );
}

#[test]
fn a_stop_names_what_survives_and_keeps_the_lease_until_it_is_gone() {
    let (ade, mut rpc) = started("");
    let (chat, tree, file) = grown(&ade, &mut rpc);
    let Some(freezer) = Freezer::freeze(tree.grandchild) else {
        return;
    };
    let begin = Instant::now();
    rpc.call("chat.stop", json!({"sessionId": chat}));
    let took = begin.elapsed();
    report(&format!(
        "a stop with a survivor is answered after {took:?}"
    ));
    assert!(took < BOUND, "{took:?}");
    assert_eq!(tree.alive(), [tree.worker, tree.grandchild]);
    assert!(notice(&ade, &chat, tree.grandchild).contains("locked"));
    let info = ade.session(&chat);
    assert_eq!(
        (&info["state"], &info["stopStage"]),
        (&json!("stopping"), &json!("stuck"))
    );
    assert!(
        lease::is_held(&file),
        "what it was writing may still be written"
    );
    needs_a_hand(&ade, tree.grandchild);
    refused(&ade, &chat, tree.grandchild);
    assert!(lease::is_held(&file));
    // Another chat does not notice.
    let other = ade.chat(&mut rpc, "scripted", &ade.lane("other"), json!({}));
    assert_eq!(text_of(&ade.turn(&other, "hello")), "You said: hello");
    rpc.call("chat.stop", json!({"sessionId": other}));
    freezer.thaw();
    wait_dead(tree.grandchild);
    wait_dead(tree.worker);
    clean_again(&ade, &mut rpc, &chat, &file);
    let done = of_turn(&ade.checked_transcript(&chat), &tree.turn);
    assert_eq!(ended(&done), "interrupted");
}

#[test]
fn a_worker_that_was_killed_leaves_its_survivor_to_the_broker() {
    let (ade, mut rpc) = started("");
    let (chat, tree, file) = grown(&ade, &mut rpc);
    let Some(freezer) = Freezer::freeze(tree.grandchild) else {
        return;
    };
    signal(tree.worker, Signal::SIGKILL);
    ade.wait_done(&chat, &tree.turn);
    notice(&ade, &chat, tree.grandchild);
    needs_a_hand(&ade, tree.grandchild);
    refused(&ade, &chat, tree.grandchild);
    assert_eq!(tree.alive(), [tree.grandchild]);
    freezer.thaw();
    wait_dead(tree.grandchild);
    clean_again(&ade, &mut rpc, &chat, &file);
}

#[test]
fn a_host_that_died_beside_a_survivor_keeps_the_chat_until_that_is_gone() {
    let (ade, mut rpc) = started("");
    let (chat, tree, file) = grown(&ade, &mut rpc);
    let Some(freezer) = Freezer::freeze(tree.grandchild) else {
        return;
    };
    signal(tree.host, Signal::SIGKILL);
    let events = of_turn(&ade.wait_done(&chat, &tree.turn), &tree.turn);
    assert_eq!(ended(&events), "failed");
    notice(&ade, &chat, tree.grandchild);
    assert!(lease::is_held(&file));
    refused(&ade, &chat, tree.grandchild);
    freezer.thaw();
    wait_dead(tree.grandchild);
    clean_again(&ade, &mut rpc, &chat, &file);
}

#[test]
fn a_new_broker_leaves_the_worker_that_waits_for_a_survivor_alone() {
    let (mut ade, mut rpc) = started("");
    let (chat, tree, file) = grown(&ade, &mut rpc);
    let Some(freezer) = Freezer::freeze(tree.grandchild) else {
        return;
    };
    rpc.call("chat.stop", json!({"sessionId": chat}));
    notice(&ade, &chat, tree.grandchild);
    drop(rpc);
    // Neither a broker that ends in order nor one that is killed ends it.
    assert_eq!(ade.stop_broker(), Some(0));
    for _ in 0..2 {
        let begin = Instant::now();
        ade.serve();
        assert!(begin.elapsed() < BOUND);
        assert_eq!(tree.alive(), [tree.worker, tree.grandchild]);
        assert!(lease::is_held(&file));
        needs_a_hand(&ade, tree.grandchild);
        ade.kill_broker();
    }
    ade.serve();
    let events: Vec<Value> = ade.turn(&chat, "hello");
    assert_eq!(ended(&events), "failed", "{events:?}");
    assert!(is_alive(tree.worker));
    freezer.thaw();
    wait_dead(tree.grandchild);
    wait_dead(tree.worker);
    let mut rpc = ade.rpc();
    clean_again(&ade, &mut rpc, &chat, &file);
}

#[test]
fn a_new_broker_starts_nothing_beside_what_a_dead_worker_left() {
    let (mut ade, mut rpc) = started("");
    let (chat, tree, file) = grown(&ade, &mut rpc);
    let Some(freezer) = Freezer::freeze(tree.grandchild) else {
        return;
    };
    drop(rpc);
    ade.kill_broker();
    signal(tree.worker, Signal::SIGKILL);
    wait_dead(tree.worker);
    for _ in 0..2 {
        let begin = Instant::now();
        ade.serve();
        assert!(begin.elapsed() < BOUND);
        // The journal is kept, so that each broker looks again.
        needs_a_hand(&ade, tree.grandchild);
        assert!(!ade.litter().is_empty(), "the journal");
        refused(&ade, &chat, tree.grandchild);
        assert_eq!(ade.births(&chat), 1, "no other worker beside it");
        // However often it is refused, that says nothing of the agent.
        for _ in 0..3 {
            refused(&ade, &chat, tree.grandchild);
        }
        let other = ade.chat(&mut ade.rpc(), "scripted", &ade.lane("other"), json!({}));
        assert_eq!(text_of(&ade.turn(&other, "hello")), "You said: hello");
        ade.rpc().call("chat.delete", json!({"sessionId": other}));
        assert_eq!(tree.alive(), [tree.grandchild]);
        ade.kill_broker();
    }
    ade.serve();
    freezer.thaw();
    wait_dead(tree.grandchild);
    let mut rpc = ade.rpc();
    wait_true("the journal is gone", || ade.litter().is_empty());
    clean_again(&ade, &mut rpc, &chat, &file);
}

#[test]
fn what_outlives_the_worker_that_waited_for_it_is_waited_for_by_the_next_broker() {
    let (mut ade, mut rpc) = started("");
    let (chat, tree, file) = grown(&ade, &mut rpc);
    let Some(freezer) = Freezer::freeze(tree.grandchild) else {
        return;
    };
    rpc.call("chat.stop", json!({"sessionId": chat}));
    drop(rpc);
    ade.kill_broker();
    ade.serve();
    wait_true("the broker has met it", || {
        ended(&ade.turn(&chat, "hello")) == "failed"
    });
    // Now nobody holds the lease.
    signal(tree.worker, Signal::SIGKILL);
    wait_dead(tree.worker);
    refused(&ade, &chat, tree.grandchild);
    assert_eq!(tree.alive(), [tree.grandchild]);
    freezer.thaw();
    wait_dead(tree.grandchild);
    let mut rpc = ade.rpc();
    wait_true("the journal is gone", || ade.litter().is_empty());
    clean_again(&ade, &mut rpc, &chat, &file);
}

/// Whether SIGKILL was sent to a process that has not died of it yet.
fn is_being_killed(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = |name| status.lines().find_map(|line| line.strip_prefix(name));
    ["SigPnd:", "ShdPnd:"].into_iter().any(|name| {
        let mask = pending(name).map(str::trim).unwrap_or_default();
        u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & (1 << 8) != 0)
    })
}

/// A machine under load lets a process wait that was sent SIGKILL. A while later
/// it is dead, and nothing has survived.
#[test]
fn what_dies_late_is_no_survivor() {
    let ade = Ade::new();
    let host = ade_tests::hosts::deaf_at_first(ade.root(), "");
    let config = format!("{host}dispose_grace_ms = 100\nterm_to_kill_ms = 100\n");
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    ade.send(&mut rpc, &chat, "one");
    wait_true("the first host runs", || lane.join("first").exists());
    let first = std::fs::read_to_string(lane.join("first")).expect("its pid");
    let first: i32 = first.trim().parse().expect("a pid");
    let Some(freezer) = Freezer::freeze(first) else {
        return;
    };
    let (mut other, session) = (ade.rpc(), chat.clone());
    let stop = std::thread::spawn(move || other.call("chat.stop", json!({"sessionId": session})));
    wait_true("it was sent SIGKILL", || is_being_killed(first));
    let (turn, after) = ade.send(&mut rpc, &chat, "two");
    // Longer than the worker's ladder.
    let killed = Instant::now();
    wait_true("it is not dead for a while", || {
        killed.elapsed() > Duration::from_millis(1_500)
    });
    freezer.thaw();
    rpc.subscribe(&chat, after);
    let events = rpc.until_done(&turn);
    assert_eq!(text_of(&events), "here", "{events:?}");
    stop.join().expect("the answer to the stop");
    assert!(of_type(&ade.transcript(&chat), "notice").is_empty());
}
