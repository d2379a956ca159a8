//! What nothing names: no mark, no cgroup, a session of its own.

use std::path::PathBuf;
use std::process::Command;

use ade_leases::process::{self, HiddenList, Pid, Signal};
use ade_tests::ade::{Ade, is_alive, signal, started};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{GONE, dones, ended, of_turn};
use ade_tests::wait::{wait_true, wait_until, wait_within};
use serde_json::json;

use super::{agent, goes_on};

pub(super) const NO_CGROUP: &str = "[worker]\ncgroup = \"off\"\n";

/// A streaming turn with a hidden tree below it: its root and two children.
#[derive(Debug)]
pub(super) struct HiddenTree {
    pub(super) chat: String,
    pub(super) turn: String,
    pub(super) worker: i32,
    pub(super) host: i32,
    pids: Vec<i32>,
}

impl HiddenTree {
    pub(super) fn grow(ade: &Ade, rpc: &mut Rpc) -> Self {
        Self::grow_by(ade, rpc, "hidden-tree 300", 3)
    }

    pub(super) fn grow_by(ade: &Ade, rpc: &mut Rpc, step: &str, size: usize) -> Self {
        let chat = ade.scripted_chat(rpc, 60_000);
        let (turn, _) = ade.send(rpc, &chat, &format!("{step}\ntick 20"));
        let lines = ade.wait_transcript(&chat, "a stream", |lines| text_of(lines).contains("tick"));
        let said = text_of(&of_turn(&lines, &turn));
        let root = said.lines().find_map(|line| line.strip_prefix("hidden "));
        let root: i64 = root.and_then(|pid| pid.parse().ok()).expect("a pid");
        let root = Pid::new(root).expect("a pid");
        let pids = wait_until("its tree", || {
            let table = process::table().expect("the process table");
            let below = process::descendants(root, &table);
            let sleeps = below.iter().filter(|row| row.name == "sleep");
            let mut pids: Vec<i32> = sleeps.map(|row| row.pid.get()).collect();
            pids.push(root.get());
            (pids.len() == size).then_some(pids)
        });
        let (worker, host) = (ade.worker_of(&chat), ade.host_of(&chat));
        Self {
            chat,
            turn,
            worker,
            host,
            pids,
        }
    }

    pub(super) fn alive(&self) -> usize {
        self.pids.iter().filter(|pid| is_alive(**pid)).count()
    }

    /// Waits until its worker has listed all of them.
    #[track_caller]
    pub(super) fn wait_listed(&self, ade: &Ade) {
        wait_true(&format!("{self:?} is listed"), || {
            let lists = lists(ade).into_iter();
            let lists = lists.filter_map(|path| HiddenList::read(&path).expect("a list"));
            let listed: Vec<i32> = lists
                .flat_map(|list| list.identities())
                .map(|identity| identity.pid.get())
                .collect();
            self.pids.iter().all(|pid| listed.contains(pid))
        });
    }

    #[track_caller]
    pub(super) fn wait_gone(&self) {
        wait_within(&format!("nothing of {self:?} is left"), GONE, || {
            (self.alive() == 0).then_some(())
        });
    }
}

impl Drop for HiddenTree {
    fn drop(&mut self) {
        for pid in &self.pids {
            signal(*pid, Signal::SIGKILL);
        }
    }
}

/// Where workers list who hides.
pub(super) fn lists(ade: &Ade) -> Vec<PathBuf> {
    let is_list = |path: &PathBuf| path.extension().is_some_and(|name| name == "hidden");
    ade.litter().into_iter().filter(is_list).collect()
}

#[test]
fn what_hides_below_a_killed_worker_comes_to_the_broker_and_is_ended() {
    let (mut ade, mut rpc) = started(&agent(false, "", NO_CGROUP));
    let (dead, other) = (
        HiddenTree::grow(&ade, &mut rpc),
        HiddenTree::grow(&ade, &mut rpc),
    );
    signal(dead.worker, Signal::SIGKILL);
    dead.wait_gone();
    let events = of_turn(&ade.wait_done(&dead.chat, &dead.turn), &dead.turn);
    assert_eq!(ended(&events), "failed");
    goes_on(&ade, &dead.chat);
    // A worker that lives keeps its own.
    let ticks = text_of(&ade.transcript(&other.chat)).len();
    wait_true("the other one streams on", || {
        text_of(&ade.transcript(&other.chat)).len() > ticks
    });
    assert_eq!((other.alive(), is_alive(other.worker)), (3, true));
    assert_eq!(dones(&ade.transcript(&other.chat)).len(), 0);
    assert_eq!(ade.stop_broker(), Some(0));
    assert_eq!(other.alive(), 0);
}

#[test]
fn what_hides_is_gone_before_the_next_send_a_deletion_and_a_stop() {
    let (mut ade, mut rpc) = started(&agent(false, "", NO_CGROUP));
    let sent = HiddenTree::grow(&ade, &mut rpc);
    signal(sent.worker, Signal::SIGKILL);
    goes_on(&ade, &sent.chat);
    assert_eq!(sent.alive(), 0, "gone before the next worker");
    let deleted = HiddenTree::grow(&ade, &mut rpc);
    signal(deleted.worker, Signal::SIGKILL);
    rpc.call("chat.delete", json!({"sessionId": deleted.chat}));
    assert_eq!(deleted.alive(), 0, "gone before the answer");
    let stopped = [
        HiddenTree::grow(&ade, &mut rpc),
        HiddenTree::grow(&ade, &mut rpc),
    ];
    for tree in &stopped {
        signal(tree.worker, Signal::SIGKILL);
    }
    assert_eq!(ade.stop_broker(), Some(0));
    assert_eq!(stopped.map(|tree| tree.alive()), [0, 0]);
}

#[test]
fn a_broker_that_had_children_before_ends_only_what_is_proved_to_be_its_own() {
    let mut ade = Ade::new().with_config(&agent(false, "", NO_CGROUP));
    let said = ade.root().join("inherited");
    // A child that stays, and one whose own child is left to the broker.
    let script = format!(
        "sleep 300 & echo $! >>{0}; sh -c 'sleep 300 & echo $! >>{0}; \
         until test -e {0}.go; do sleep 0.02; done' & exec \"$@\"",
        said.display()
    );
    let mut outer = Command::new("/bin/sh");
    outer.args(["-c", &script, "sh"]);
    ade.serve_within(outer);
    let mut rpc = ade.rpc();
    let strangers: Vec<i32> = wait_until("two pids", || {
        let text = std::fs::read_to_string(&said).ok()?;
        let pids = text.lines().filter_map(|pid| pid.parse().ok());
        Some(pids.collect()).filter(|pids: &Vec<i32>| pids.len() == 2)
    });
    std::fs::write(ade.root().join("inherited.go"), "").expect("a file");
    let broker = ade.broker_pid();
    wait_true("both are the broker's", || {
        let table = process::table().expect("the process table");
        let of_broker =
            |row: &&process::ProcessEntry| strangers.contains(&row.pid.get()) && row.ppid == broker;
        table.iter().filter(of_broker).count() == 2
    });
    let bare = HiddenTree::grow_by(&ade, &mut rpc, "bare 300", 1);
    signal(bare.worker, Signal::SIGKILL);
    bare.wait_gone();
    goes_on(&ade, &bare.chat);
    // Who left that session too was listed by the worker.
    let tree = HiddenTree::grow(&ade, &mut rpc);
    tree.wait_listed(&ade);
    signal(tree.worker, Signal::SIGKILL);
    tree.wait_gone();
    assert_eq!(ade.stop_broker(), Some(0));
    let spared = strangers.iter().filter(|pid| is_alive(**pid)).count();
    for pid in strangers {
        signal(pid, Signal::SIGKILL);
    }
    assert_eq!(spared, 2);
}
