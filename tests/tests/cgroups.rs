//! The net of cgroup v2: used where it can be had, needed nowhere.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use ade_leases::process::{self, HiddenList, Signal};
use ade_tests::ade::{Ade, is_alive, report, signal, wait_dead};
use ade_tests::cgroups::{below, folder, is_below, place};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{GONE, ended, of_turn};
use ade_tests::wait::{wait_true, wait_within};
use serde_json::json;

fn started(more: &str) -> (Ade, Rpc) {
    let exe = env!("CARGO_BIN_EXE_fake-agent");
    let config = format!("[providers.scripted]\nhost = \"{exe}\"\n{more}");
    ade_tests::ade::started(&config)
}

const OFF: &str = "[worker]\ncgroup = \"off\"\n";

/// A turn that streams, with a process below it that hides from every other
/// net: nothing but its cgroup, and in time its worker's list, tells whose it is.
struct Hidden {
    chat: String,
    turn: String,
    worker: i32,
    host: i32,
    pid: i32,
}

impl Hidden {
    fn grow(ade: &Ade, rpc: &mut Rpc) -> Self {
        let lane = ade.lane("lane");
        let chat = ade.chat(rpc, "scripted", &lane, json!({"firstEventMs": 60_000}));
        let (turn, _) = ade.send(rpc, &chat, "hidden 300\ntick 20");
        let lines = ade.wait_transcript(&chat, "a stream", |lines| text_of(lines).contains("tick"));
        let said = text_of(&of_turn(&lines, &turn));
        let pid = said.lines().find_map(|line| line.strip_prefix("hidden "));
        let pid = pid.and_then(|pid| pid.parse().ok()).expect("a pid");
        if let Ok(folder) = place(rpc) {
            wait_true("it is in the cgroup", || is_below(&folder, pid));
        }
        Self {
            turn,
            worker: ade.worker_of(&chat),
            host: ade.host_of(&chat),
            pid,
            chat,
        }
    }

    /// Kills the broker, the worker and the host, in this order.
    fn kill_all_three(&self, ade: &mut Ade) {
        ade.kill_broker();
        signal(self.worker, Signal::SIGKILL);
        signal(self.host, Signal::SIGKILL);
        wait_dead(self.worker);
        wait_dead(self.host);
        // Its parent is somebody else now, and nothing in it names us.
        let table = process::table().expect("the process table");
        let row = table.iter().find(|row| row.pid.get() == self.pid);
        let row = row.expect("it is alive");
        assert!(![self.worker, self.host].contains(&row.ppid), "{row:?}");
        assert_eq!(
            (row.pgid == self.host, row.session == self.worker),
            (false, false)
        );
        assert!(ade.processes().is_empty(), "{:?}", ade.describe());
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        signal(self.pid, Signal::SIGKILL);
    }
}

#[test]
fn what_hides_from_every_other_net_is_swept_by_its_cgroup() {
    let (mut ade, mut rpc) = started("");
    let Some(folder) = folder(&mut rpc) else {
        return;
    };
    let hidden = Hidden::grow(&ade, &mut rpc);
    assert_eq!(below(&folder).len(), 1);
    drop(rpc);
    hidden.kill_all_three(&mut ade);
    assert!(is_alive(hidden.pid));
    ade.serve();
    wait_within("the hidden one is gone", GONE, || {
        (!is_alive(hidden.pid)).then_some(())
    });
    let events = of_turn(&ade.wait_done(&hidden.chat, &hidden.turn), &hidden.turn);
    assert_eq!(ended(&events), "failed");
    wait_true("its cgroup is removed", || below(&folder).is_empty());
    let events = ade.turn(&hidden.chat, "emit back");
    assert_eq!(text_of(&events), "back");
    assert_eq!(below(&folder).len(), 1, "the new worker has its own");
    assert_eq!(ade.stop_broker(), Some(0));
    assert!(!folder.exists(), "the last one removes the folder");
}

#[test]
fn without_the_net_it_is_swept_by_the_list_of_its_worker() {
    let (mut ade, mut rpc) = started(OFF);
    let status = rpc.call("broker.status", json!({}));
    let about = status["cgroup"].as_str().expect("a sentence");
    assert!(about.starts_with("not used: the configuration"), "{about}");
    let (said, _) = ade.expect_code(0, &["doctor"]);
    assert!(said.contains("not used: the configuration"), "{said}");
    let hidden = Hidden::grow(&ade, &mut rpc);
    wait_true("its worker lists it", || {
        let lists = ade.litter().into_iter();
        let lists = lists.filter_map(|path| HiddenList::read(&path).ok().flatten());
        let mut listed = lists.flat_map(|list| list.identities());
        listed.any(|one| one.pid.get() == hidden.pid)
    });
    drop(rpc);
    hidden.kill_all_three(&mut ade);
    assert!(is_alive(hidden.pid));
    ade.serve();
    wait_within("the hidden one is gone", GONE, || {
        (!is_alive(hidden.pid)).then_some(())
    });
    let events = of_turn(&ade.wait_done(&hidden.chat, &hidden.turn), &hidden.turn);
    assert_eq!(ended(&events), "failed");
    wait_true("only the broker is left", || ade.processes().len() == 1);
    let events = ade.turn(&hidden.chat, "emit back");
    assert_eq!(text_of(&events), "back");
}

#[test]
fn what_hides_needs_no_net_while_its_worker_or_the_broker_lives() {
    for more in ["", OFF] {
        let (ade, mut rpc) = started(more);
        let hidden = Hidden::grow(&ade, &mut rpc);
        rpc.call("chat.stop", json!({"sessionId": hidden.chat}));
        assert!(!is_alive(hidden.pid), "dead before the answer");
        let hidden = Hidden::grow(&ade, &mut rpc);
        signal(hidden.worker, Signal::SIGKILL);
        wait_within("it is gone", GONE, || (!is_alive(hidden.pid)).then_some(()));
        ade.wait_done(&hidden.chat, &hidden.turn);
    }
}

#[test]
fn the_last_rung_empties_the_cgroup_too_and_a_stop_leaves_none() {
    let (mut ade, mut rpc) = started("");
    let Some(folder) = folder(&mut rpc) else {
        return;
    };
    let hidden = Hidden::grow(&ade, &mut rpc);
    let cgroups = below(&folder);
    // One that came into it from elsewhere: no descendant, no mark.
    let script = format!(
        "echo 0 >{}/cgroup.procs; exec sleep 300",
        cgroups[0].display()
    );
    let mut stranger = Command::new("/bin/sh")
        .args(["-c", &script])
        .env_clear()
        .stdin(Stdio::null())
        .spawn()
        .expect("a shell");
    let pid = i32::try_from(stranger.id()).expect("a pid");
    wait_true("it has joined", || {
        let text = std::fs::read_to_string(cgroups[0].join("cgroup.procs")).unwrap_or_default();
        text.lines().any(|line| line == pid.to_string())
    });
    // The worker is not in it: it lives through the net's use.
    let inside = std::fs::read_to_string(cgroups[0].join("cgroup.procs")).expect("its pids");
    for (who, expected) in [
        (hidden.worker, false),
        (hidden.host, true),
        (hidden.pid, true),
    ] {
        assert_eq!(inside.lines().any(|line| line == who.to_string()), expected);
    }
    rpc.call("chat.stop", json!({"sessionId": hidden.chat}));
    assert!(!is_alive(pid) && !is_alive(hidden.pid));
    assert_eq!(stranger.wait().expect("its status").code(), None, "killed");
    let events = of_turn(&ade.checked_transcript(&hidden.chat), &hidden.turn);
    assert_eq!(
        ended(&events),
        "interrupted",
        "the worker ended it in order"
    );
    assert!(!folder.exists(), "an empty folder is no use");
    // One that a killed broker made and no journal names.
    ade.kill_broker();
    std::fs::create_dir_all(folder.join("wrk_leftover")).expect("a cgroup");
    ade.serve();
    assert_eq!(below(&folder), Vec::<PathBuf>::new());
}

#[test]
fn a_path_in_a_journal_is_no_proof() {
    let (mut ade, mut rpc) = started("");
    let Some(folder) = folder(&mut rpc) else {
        return;
    };
    let hidden = Hidden::grow(&ade, &mut rpc);
    hidden.kill_all_three(&mut ade);
    let journals = std::fs::read_dir(ade.home().join("run/workers")).expect("journals");
    let journal = journals
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ext| ext == "json"))
        .expect("a journal");
    let text = std::fs::read_to_string(&journal).expect("a journal");
    let mut entry: serde_json::Value = serde_json::from_str(&text).expect("a journal");
    // Another one stands at the path than the one that was made.
    let inode = entry["cgroup"]["inode"].as_u64().expect("an inode");
    entry["cgroup"]["inode"] = (inode + 1).into();
    std::fs::write(&journal, entry.to_string()).expect("written");
    ade.serve();
    wait_true("the dead worker is forgotten", || !journal.exists());
    assert!(is_alive(hidden.pid), "it is not proved to be ours");
    signal(hidden.pid, Signal::SIGKILL);
    wait_dead(hidden.pid);
    // Empty by now, and in our folder: the next broker removes it.
    ade.kill_broker();
    ade.serve();
    assert_eq!(below(&folder), Vec::<PathBuf>::new());
}

#[test]
fn a_read_only_hierarchy_is_not_used_and_nothing_is_missing() {
    if !nix::unistd::geteuid().is_root() {
        return report("SKIPPED: a mount namespace of its own needs root");
    }
    let exe = env!("CARGO_BIN_EXE_fake-agent");
    let mut ade = Ade::new().with_config(&format!("[providers.scripted]\nhost = \"{exe}\"\n"));
    // As containers have it.
    let script = "for at in $(awk '$0 ~ / - cgroup2 / {print $5}' /proc/self/mountinfo); do \
                  mount --bind -o remount,ro $at || exit 1; done; exec \"$@\"";
    let mut outer = Command::new("unshare");
    outer.args(["--mount", "/bin/sh", "-c", script, "sh"]);
    ade.serve_within(outer);
    let mut rpc = ade.rpc();
    let status = rpc.call("broker.status", json!({}));
    let about = status["cgroup"].as_str().expect("a sentence");
    assert!(about.starts_with("not used: "), "{about}");
    let hidden = Hidden::grow(&ade, &mut rpc);
    rpc.call("chat.stop", json!({"sessionId": hidden.chat}));
    assert!(!is_alive(hidden.pid));
    let (said, _) = ade.expect_code(0, &["doctor"]);
    assert!(said.contains(about), "{said}");
}

#[test]
fn a_test_that_fails_leaves_no_cgroup() {
    let (ade, mut rpc) = ade_tests::ade::started("");
    let Some(folder) = folder(&mut rpc) else {
        return;
    };
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.turn(&chat, "hello");
    assert_eq!(below(&folder).len(), 1);
    let broker = ade.broker_pid();
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _ade = ade;
        signal(broker, Signal::SIGKILL);
        std::panic::panic_any(());
    }));
    assert!(failed.is_err() && !folder.exists());
}
