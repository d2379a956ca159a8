//! What nothing names when worker and broker are killed together: no mark, no
//! cgroup, a session of its own, and its parents gone. The worker listed it while
//! it lived, and the next broker ends exactly that.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ade_leases::process::{HiddenList, Pid, ProcessIdentity, Signal};
use ade_tests::ade::{Ade, is_alive, signal, started};
use ade_tests::rpc::Rpc;
use ade_tests::turns::{ended, of_turn};
use ade_tests::wait::{wait_true, wait_until};
use serde_json::json;

use super::hidden::{HiddenTree, NO_CGROUP, lists};
use super::{agent, goes_on};

fn config() -> String {
    agent(false, "", NO_CGROUP)
}

/// Broker, worker and host, in this order: no net of a living one is cast.
fn kill_all_three(ade: &mut Ade, tree: &HiddenTree) {
    for pid in [ade.broker_pid(), tree.worker, tree.host] {
        signal(pid, Signal::SIGKILL);
    }
    ade.kill_broker();
    wait_true("all three are dead", || {
        !is_alive(tree.worker) && !is_alive(tree.host)
    });
}

fn ended_and_goes_on(ade: &Ade, tree: &HiddenTree) {
    let events = of_turn(&ade.wait_done(&tree.chat, &tree.turn), &tree.turn);
    assert_eq!(ended(&events), "failed");
    goes_on(ade, &tree.chat);
    let stop = json!({"sessionId": tree.chat});
    ade.rpc().call("chat.stop", stop);
    wait_true("no litter", || ade.litter().is_empty());
}

#[test]
fn what_hides_is_ended_by_the_next_broker_when_all_above_it_were_killed() {
    for (step, size) in [("hidden 300", 1), ("hidden-tree 300", 3), ("bare 300", 1)] {
        let (mut ade, mut rpc) = started(&config());
        let tree = HiddenTree::grow_by(&ade, &mut rpc, step, size);
        tree.wait_listed(&ade);
        drop(rpc);
        kill_all_three(&mut ade, &tree);
        assert_eq!(tree.alive(), size, "{step}: nobody else ends it");
        ade.serve();
        tree.wait_gone();
        ended_and_goes_on(&ade, &tree);
    }
}

#[test]
fn a_stranger_that_got_a_listed_pid_is_spared() {
    let (mut ade, mut rpc) = started(&config());
    let tree = HiddenTree::grow(&ade, &mut rpc);
    tree.wait_listed(&ade);
    drop(rpc);
    kill_all_three(&mut ade, &tree);
    let mut stranger = Command::new("sleep");
    let stranger = stranger.arg("300").env_clear().stdin(Stdio::null());
    let mut stranger = stranger.spawn().expect("a stranger");
    let pid = Pid::new(i64::from(stranger.id())).expect("a pid");
    let identity = ProcessIdentity::of(pid).expect("a look").expect("alive");
    // The list as it would be had the pid been somebody else's before.
    let path = lists(&ade).pop().expect("a list");
    let list = HiddenList::read(&path).expect("a list").expect("a list");
    let listed = list.identities().into_iter();
    let mut listed: Vec<(Pid, u64)> = listed.map(|one| (one.pid, one.start_ticks)).collect();
    listed.push((pid, identity.start_ticks - 1));
    let list = HiddenList::new(list.worker().clone(), listed);
    list.write(&path).expect("written");
    ade.serve();
    tree.wait_gone();
    ended_and_goes_on(&ade, &tree);
    let spared = is_alive(pid.get());
    stranger.kill().expect("killed");
    stranger.wait().expect("its status");
    assert!(spared);
}

#[test]
fn the_list_is_there_while_somebody_hides_and_goes_with_the_worker() {
    let (ade, mut rpc) = started(&config());
    let tree = HiddenTree::grow(&ade, &mut rpc);
    tree.wait_listed(&ade);
    rpc.call("chat.stop", json!({"sessionId": tree.chat}));
    assert_eq!(tree.alive(), 0, "gone before the answer");
    wait_true("no litter", || ade.litter().is_empty());

    // A worker at rest notices the end of the last one.
    let (chat, worker) = rests_above(&ade, &mut rpc, "hidden 4");
    wait_true("it is listed", || !lists(&ade).is_empty());
    wait_true("the list is removed", || lists(&ade).is_empty());
    assert!(is_alive(worker), "not by the end of the worker");
    rpc.call("chat.stop", json!({"sessionId": chat}));
}

/// A chat whose turn has ended and left something that hides, and its worker.
fn rests_above(ade: &Ade, rpc: &mut Rpc, step: &str) -> (String, i32) {
    let chat = ade.chat(rpc, "scripted", &ade.lane("lane"), json!({}));
    assert_eq!(ended(&ade.turn(&chat, step)), "completed");
    let worker = ade.worker_of(&chat);
    (chat, worker)
}

#[test]
fn what_comes_to_a_worker_at_rest_is_listed_too() {
    let (ade, mut rpc) = started(&config());
    let (chat, _) = rests_above(&ade, &mut rpc, "late 4");
    let list = wait_until("it is listed", || {
        let list = HiddenList::read(lists(&ade).first()?);
        list.expect("a list")
    });
    let listed = list.identities();
    assert!(is_alive(listed[0].pid.get()), "{listed:?}");
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(!is_alive(listed[0].pid.get()));
}

/// How often the threads of a process have gone to sleep.
fn sleeps(pid: i32) -> u64 {
    let mut sum = 0;
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    for thread in threads.flatten() {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let line = (status.lines()).find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count = line.and_then(|count| count.trim().parse::<u64>().ok());
        sum += count.unwrap_or_default();
    }
    sum
}

#[test]
fn a_worker_at_rest_is_not_woken_to_look_at_what_hides() {
    /// Time for two looks, were there any.
    const WINDOW: Duration = Duration::from_millis(2_500);
    let (ade, mut rpc) = started(&config());
    let (chat, worker) = rests_above(&ade, &mut rpc, "hidden 300");
    wait_true("it is listed", || !lists(&ade).is_empty());
    // At rest: for a whole window it sleeps.
    let begun = Instant::now();
    let mut since = (Instant::now(), sleeps(worker));
    let rested = wait_until("it rests, or never does", || {
        let now = sleeps(worker);
        if now > since.1 {
            since = (Instant::now(), now);
        }
        let rested = since.0.elapsed() >= WINDOW;
        (rested || begun.elapsed() >= 6 * WINDOW).then_some(rested)
    });
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(rested);
}
