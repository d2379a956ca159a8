//! Trees of processes: whatever of them dies, and in whatever order, nothing is
//! left and nothing is ended twice.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ade_leases::process::{self, Pid, Signal};
use ade_tests::ade::{Ade, is_alive, report, signal, wait_dead};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{GONE, dones, ended, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_until, wait_within};
use serde_json::{Value, json};

/// Configuration that makes the fake agent the host: by itself, or below a shell
/// as `npm exec` and its like leave one.
fn agent(wrapped: bool, at_start: &str, more: &str) -> String {
    let exe = env!("CARGO_BIN_EXE_fake-agent");
    let (host, args) = if wrapped {
        let script = format!("'{exe}' {at_start}; exit $?");
        ("/bin/sh", format!("\"-c\", \"{script}\""))
    } else {
        let args: Vec<String> = at_start
            .split_terminator(',')
            .map(|step| format!("\"{step}\""))
            .collect();
        (exe, args.join(", "))
    };
    format!("[providers.scripted]\nhost = \"{host}\"\nargs = [{args}]\n{more}")
}

fn started(config: &str) -> (Ade, Rpc) {
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let rpc = ade.rpc();
    (ade, rpc)
}

fn chat(ade: &Ade, rpc: &mut Rpc) -> String {
    let lane = ade.lane("lane");
    ade.chat(rpc, "scripted", &lane, json!({"firstEventMs": 60_000}))
}

/// A running turn with processes below it.
#[derive(Debug)]
struct Grown {
    chat: String,
    turn: String,
    worker: i32,
    host: i32,
    all: Vec<i32>,
    file: PathBuf,
}

impl Grown {
    fn alive(&self) -> Vec<i32> {
        self.all
            .iter()
            .copied()
            .filter(|pid| is_alive(*pid))
            .collect()
    }

    #[track_caller]
    fn wait_gone(&self) {
        wait_within(&format!("nothing of {self:?} is left"), GONE, || {
            self.alive().is_empty().then_some(())
        });
    }
}

fn number(info: &Value, name: &str) -> i32 {
    let pid = info[name].as_i64().and_then(|pid| i32::try_from(pid).ok());
    pid.unwrap_or_else(|| panic!("no {name}: {info}"))
}

/// Three children and two grandchildren in sessions of their own, all of which
/// hold the agent's standard output; then text for ever.
fn grow(ade: &Ade, rpc: &mut Rpc, chat: &str, before: &str) -> Grown {
    let script =
        format!("{before}child 300\nchild 300\nchild 300\norphan 300\norphan 300\ntick 20");
    let (turn, _) = ade.send(rpc, chat, &script);
    let lines = ade.wait_transcript(chat, "a stream", |lines| text_of(lines).contains("tick"));
    let said = text_of(&of_turn(&lines, &turn));
    let info = ade.session(chat);
    let (worker, host) = (number(&info, "workerPid"), number(&info, "hostPid"));
    let mut all: Vec<i32> = (said.lines())
        .filter_map(|line| line.split_once(' ')?.1.trim().parse().ok())
        .collect();
    assert_eq!(all.len(), 5, "{said}");
    let table = process::table().expect("the process table");
    let root = Pid::new(i64::from(worker)).expect("a pid");
    let below = process::descendants(root, &table);
    all.extend(below.iter().map(|entry| entry.pid.get()));
    all.push(worker);
    all.sort_unstable();
    all.dedup();
    let grown = Grown {
        chat: chat.to_owned(),
        turn,
        worker,
        host,
        all,
        file: ade.session_file(chat),
    };
    assert_eq!(grown.alive(), grown.all);
    grown
}

fn goes_on(ade: &Ade, chat: &str) {
    let events = ade.turn(chat, "emit back");
    assert_eq!(ended(&events), "completed");
    assert_eq!(text_of(&events), "back");
    let _ = ade.checked_transcript(chat);
}

#[track_caller]
fn ended_once(ade: &Ade, grown: &Grown) {
    let events = of_turn(&ade.wait_done(&grown.chat, &grown.turn), &grown.turn);
    assert_eq!(ended(&events), "failed", "{events:?}");
    assert_eq!(of_type(&events, "error").len(), 1);
    assert_eq!(dones(&ade.checked_transcript(&grown.chat)).len(), 1);
    wait_true("the lease is free", || ade.is_free(&grown.file));
}

/// Who dies.
#[derive(Clone, Copy, Debug)]
enum Who {
    Broker,
    Worker,
    Host,
}

#[track_caller]
fn deaths_in_order(wrapped: bool, order: &[Who]) {
    let (mut ade, mut rpc) = started(&agent(wrapped, "", ""));
    let chat = chat(&ade, &mut rpc);
    let grown = grow(&ade, &mut rpc, &chat, "");
    drop(rpc);
    for who in order {
        match who {
            Who::Broker => ade.kill_broker(),
            Who::Worker => signal(grown.worker, Signal::SIGKILL),
            Who::Host => signal(grown.host, Signal::SIGKILL),
        }
    }
    if !ade.has_broker() {
        ade.serve();
    }
    grown.wait_gone();
    ended_once(&ade, &grown);
    wait_true("only the broker is left", || ade.processes().len() == 1);
    goes_on(&ade, &chat);
    ade.rpc().call("chat.stop", json!({"sessionId": chat}));
    wait_true("no litter", || ade.litter().is_empty());
}

#[test]
fn worker_and_host_die_in_every_order() {
    use Who::{Host, Worker};
    for wrapped in [false, true] {
        for order in [&[Worker][..], &[Host], &[Worker, Host], &[Host, Worker]] {
            deaths_in_order(wrapped, order);
        }
    }
}

#[test]
fn the_broker_and_one_of_them_die_in_every_order() {
    use Who::{Broker, Host, Worker};
    for wrapped in [false, true] {
        for order in [
            [Broker, Worker],
            [Worker, Broker],
            [Broker, Host],
            [Host, Broker],
        ] {
            deaths_in_order(wrapped, &order);
        }
    }
}

#[test]
fn all_three_die_in_every_order() {
    use Who::{Broker, Host, Worker};
    let orders = [
        [Broker, Worker, Host],
        [Broker, Host, Worker],
        [Worker, Broker, Host],
        [Worker, Host, Broker],
        [Host, Broker, Worker],
        [Host, Worker, Broker],
    ];
    for (index, order) in orders.iter().enumerate() {
        deaths_in_order(index % 2 == 0, order);
    }
}

#[test]
fn j01_nothing_is_left_by_a_normal_end_an_abort_a_stop_and_a_recycle() {
    let (ade, mut rpc) = started(&agent(true, "", ""));
    // An abort that the agent does not answer: its worker is replaced.
    let chat = chat(&ade, &mut rpc);
    let grown = grow(&ade, &mut rpc, &chat, "");
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert_eq!(grown.alive(), Vec::<i32>::new(), "dead before the answer");
    assert!(ade.is_free(&grown.file));
    goes_on(&ade, &chat);
    rpc.call("chat.stop", json!({"sessionId": chat}));

    // A turn that ended leaves its servers to the session; its stop ends them.
    let lane = ade.lane("lane");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let events = ade.turn(&chat, "child 300\norphan 300");
    let servers: Vec<i32> = (text_of(&events).lines())
        .filter_map(|line| line.split_once(' ')?.1.trim().parse().ok())
        .collect();
    assert_eq!(servers.len(), 2);
    assert!(servers.iter().all(|pid| is_alive(*pid)));
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(!servers.iter().any(|pid| is_alive(*pid)));

    // Silence: the worker is recycled, with all that it had started.
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 700}));
    let (turn, _) = ade.send(&mut rpc, &chat, "hang");
    ade.wait_state(&chat, "awaiting_first_event");
    let first = number(&ade.session(&chat), "workerPid");
    ade.wait_done(&chat, &turn);
    wait_dead(first);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    wait_true("only the broker is left", || ade.processes().len() == 1);
}

#[test]
fn e06_a_server_that_holds_the_pipe_of_an_agent_that_ended_holds_nothing_up() {
    for wrapped in [false, true] {
        let (ade, mut rpc) = started(&agent(wrapped, "", ""));
        let chat = chat(&ade, &mut rpc);
        let begin = Instant::now();
        let events = ade.turn(&chat, "child 300\norphan 300\nemit last words\nexit 7");
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(ended(&events), "failed");
        assert!(text_of(&events).ends_with("last words"));
        let errors = of_type(&events, "error");
        assert!(
            errors[0]["message"]
                .as_str()
                .is_some_and(|text| text.contains("exit code 7"))
        );
        for line in text_of(&events).lines() {
            if let Some(pid) = line.split_once(' ').and_then(|(_, pid)| pid.parse().ok()) {
                wait_within("the server is gone", GONE, || {
                    (!is_alive(pid)).then_some(())
                });
            }
        }
        goes_on(&ade, &chat);
    }
}

#[test]
fn j05_a_host_that_left_its_group_is_killed_alone() {
    // It joins its worker's group: a kill of "its" group must not hit that.
    let (ade, mut rpc) = started(&agent(false, "join-group", SHORT));
    let chat = chat(&ade, &mut rpc);
    let other = ade.chat(&mut rpc, "scripted", &ade.lane("other"), json!({}));
    let streaming = grow(&ade, &mut rpc, &other, "");
    let grown = grow(&ade, &mut rpc, &chat, "ignore-term\n");
    let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(grown.host)));
    assert_eq!(group.expect("a group").as_raw(), grown.worker);
    let begin = Instant::now();
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert_eq!(grown.alive(), Vec::<i32>::new());
    // The worker was not hit, or it could not have ended the turn in order.
    let events = of_turn(&ade.checked_transcript(&chat), &grown.turn);
    assert_eq!(ended(&events), "interrupted");
    assert!(is_alive(ade.broker_pid()));
    assert_eq!(streaming.alive(), streaming.all);
    rpc.call("chat.stop", json!({"sessionId": other}));
}

/// Rungs that are short but for the polite one.
const SHORT: &str =
    "dispose_grace_ms = 300\nterm_to_kill_ms = 3000\n[worker]\neof_grace_ms = 300\n";

/// What `ade ps` shows of a stop, until the worker is gone.
fn watch_stop(ade: &Ade, chat: &str, worker: i32) -> Vec<(String, String)> {
    let mut rpc = ade.rpc();
    let mut seen = Vec::new();
    wait_until("the worker is gone", || {
        let list = rpc.call("sessions.list", json!({}));
        let all = list["sessions"].as_array().expect("chats");
        let info = all
            .iter()
            .find(|info| info["sessionId"] == chat)
            .expect("the chat");
        let word = |name: &str| info[name].as_str().unwrap_or_default().to_owned();
        let now = (word("state"), word("stopStage"));
        let alive = is_alive(worker);
        if alive && seen.last() != Some(&now) {
            seen.push(now);
        }
        (!alive).then_some(())
    });
    seen
}

#[test]
fn j08_a_polite_host_gets_its_time_and_a_deaf_one_is_killed_and_ps_shows_the_stage() {
    let (ade, mut rpc) = started(&agent(false, "", SHORT));
    for (deaf, chat) in [(false, chat(&ade, &mut rpc)), (true, chat(&ade, &mut rpc))] {
        let proof = ade.root().join("proof");
        let manners = if deaf {
            "ignore-term\n".to_owned()
        } else {
            format!("clean-up 1000 {}\n", proof.display())
        };
        let grown = grow(&ade, &mut rpc, &chat, &manners);
        let stop = std::thread::spawn({
            let (mut rpc, chat) = (ade.rpc(), chat.clone());
            move || rpc.call("chat.stop", json!({"sessionId": chat}))
        });
        let seen = watch_stop(&ade, &chat, grown.worker);
        stop.join().expect("the answer");
        grown.wait_gone();
        let stages: Vec<&str> = seen.iter().map(|(_, stage)| stage.as_str()).collect();
        assert!(stages.contains(&"dispose"), "{seen:?}");
        assert!(stages.contains(&"term"), "{seen:?}");
        assert!(
            seen.iter().skip(1).all(|(state, _)| state == "stopping"),
            "never shown as stopped before it is: {seen:?}"
        );
        assert_eq!(proof.exists(), !deaf);
        let _ = std::fs::remove_file(proof);
    }
}

/// A worker that is stopped hears nothing over its link. It is woken to end as
/// politely as any other.
#[test]
fn a_stopped_worker_is_woken_and_its_host_gets_its_time() {
    let (ade, mut rpc) = started(&agent(false, "", SHORT));
    let chat = chat(&ade, &mut rpc);
    let proof = ade.root().join("proof");
    let manners = format!("clean-up 100 {}\n", proof.display());
    let grown = grow(&ade, &mut rpc, &chat, &manners);
    signal(grown.worker, Signal::SIGSTOP);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    grown.wait_gone();
    assert!(proof.exists(), "it was killed with its worker");
    goes_on(&ade, &chat);
}

#[test]
fn a_second_stop_jumps_ahead() {
    let long =
        "dispose_grace_ms = 60000\nterm_to_kill_ms = 60000\n[worker]\neof_grace_ms = 60000\n";
    let (ade, mut rpc) = started(&agent(false, "", long));
    let chat = chat(&ade, &mut rpc);
    let grown = grow(&ade, &mut rpc, &chat, "ignore-term\n");
    let begin = Instant::now();
    let stops: Vec<_> = ["dispose", "eof", "term", "kill"]
        .map(|stage| {
            let (mut rpc, session) = (ade.rpc(), chat.clone());
            let stop =
                std::thread::spawn(move || rpc.call("chat.stop", json!({"sessionId": session})));
            if stage != "kill" {
                wait_true(&format!("the stage {stage}"), || {
                    ade.session(&chat)["stopStage"] == stage
                });
            }
            stop
        })
        .into_iter()
        .collect();
    for stop in stops {
        stop.join().expect("the answer");
    }
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_eq!(grown.alive(), Vec::<i32>::new());
    goes_on(&ade, &chat);
}

#[test]
fn j10_an_agent_that_never_starts_is_tried_a_few_times_and_then_left() {
    let config = "[providers.scripted]\nhost = \"/bin/false\"\n";
    let (ade, mut rpc) = started(config);
    let chat = chat(&ade, &mut rpc);
    let mut turns = Vec::new();
    for _ in 0..5 {
        match rpc.try_call("chat.send", json!({"sessionId": chat, "prompt": "emit x"})) {
            Ok(sent) => turns.push(sent["turnId"].as_str().expect("a turn").to_owned()),
            Err(refused) => assert_eq!(refused.kind, "start_budget"),
        }
    }
    for turn in &turns {
        let events = of_turn(&ade.wait_done(&chat, turn), turn);
        assert_eq!(ended(&events), "failed");
        assert_eq!(of_type(&events, "error").len(), 1, "{events:?}");
    }
    let births = ade.births(&chat);
    assert!((1..=6).contains(&births), "{births} births");
    let lines = ade.checked_transcript(&chat).len();
    assert!(lines < 60, "{lines} events");
    wait_true("only the broker is left", || ade.processes().len() == 1);
    assert_eq!(ade.births(&chat), births, "nothing is tried by itself");
}

// ---- what a child is given

/// What the descriptors of a process are, without the standard three.
fn descriptors(pid: i32) -> BTreeSet<String> {
    let folder = format!("/proc/{pid}/fd");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("descriptors").flatten() {
        let number: i32 = entry
            .file_name()
            .to_string_lossy()
            .parse()
            .expect("a number");
        if number > 2
            && let Ok(target) = std::fs::read_link(entry.path())
        {
            let target = target.display().to_string();
            // Without the inode.
            let kind = target.split(":[").next().unwrap_or_default();
            found.insert(kind.to_owned());
        }
    }
    found
}

#[test]
fn every_child_has_only_its_own_descriptors_and_no_token() {
    let (ade, mut rpc) = started(&agent(false, "", ""));
    let mut chats = Vec::new();
    let file = ade.root().join("report");
    for index in 0..3 {
        let chat = ade.chat(
            &mut rpc,
            "scripted",
            &ade.lane(&index.to_string()),
            json!({}),
        );
        let before = format!("report {}\n", file.display());
        chats.push(grow(&ade, &mut rpc, &chat, &before));
    }
    let lease = |grown: &Grown| format!("{}.ade-lease", grown.file.display());
    for grown in &chats {
        let worker = descriptors(grown.worker);
        // The lease names its folder by a descriptor, so that nobody can put
        // another folder in its place.
        let folder = grown.file.parent().expect("a folder").display().to_string();
        let mut allowed = BTreeSet::from([lease(grown), folder]);
        for kind in ["socket", "pipe", "anon_inode", "/dev/null"] {
            allowed.insert(kind.to_owned());
        }
        let strange: Vec<_> = worker
            .difference(&allowed)
            .filter(|target| !target.starts_with("anon_inode:"))
            .collect();
        assert!(strange.is_empty(), "{strange:?}");
        let standard = std::fs::read_link(format!("/proc/{}/fd/0", grown.worker));
        assert_eq!(standard.expect("stdin"), Path::new("/dev/null"));
        for pid in grown.all.iter().filter(|pid| **pid != grown.worker) {
            assert_eq!(descriptors(*pid), BTreeSet::new(), "pid {pid}");
        }
        // The worker's sockets: the link to the broker, and those of its runtime.
        let sockets = std::fs::read_dir(format!("/proc/{}/fd", grown.worker)).expect("descriptors");
        let sockets = sockets
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"));
        let count = sockets.count();
        assert!(count <= 4, "{count} sockets");
    }
    let said: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("a report")).expect("a report");
    let env: Vec<(String, String)> = serde_json::from_value(said["env"].clone()).expect("pairs");
    assert!(
        env.iter().any(|(name, _)| name == "ADE_WORKER_MARK"),
        "{env:?}"
    );
    let journals = std::fs::read_dir(ade.home().join("run/workers")).expect("journals");
    for path in journals.flatten().map(|entry| entry.path()) {
        let Ok(journal) = serde_json::from_slice::<Value>(&std::fs::read(path).expect("a file"))
        else {
            continue;
        };
        let hash = journal["tokenHash"].as_str().expect("a hash");
        assert!(!env.iter().any(|(_, value)| value.contains(hash)));
    }
    assert!(
        !env.iter().any(|(name, _)| name.contains("TOKEN")),
        "{env:?}"
    );
    for grown in &chats {
        rpc.call("chat.stop", json!({"sessionId": grown.chat}));
    }
}

// ---- the first process of a container

#[test]
fn j12_a_broker_that_is_pid_1_reaps_strangers_and_loses_no_status() {
    if !nix::unistd::geteuid().is_root() {
        report("SKIPPED: a pid namespace of its own needs root");
        return;
    }
    let mut ade = Ade::new().with_config(&agent(false, "", ""));
    ade.serve_with(|serve| {
        let mut outer = std::process::Command::new("unshare");
        outer.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        outer.arg(serve.get_program()).args(serve.get_args());
        for (name, value) in serve.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        outer.current_dir(serve.get_current_dir().expect("a folder"));
        outer.stdin(std::process::Stdio::null());
        outer
    });
    let mut rpc = ade.rpc();
    let status = rpc.call("broker.status", json!({}));
    assert_eq!(
        status["pid"].as_i64().or(status["runtime"]["pid"].as_i64()),
        Some(1),
        "{status}"
    );
    let lane = ade.lane("lane");
    let chats: Vec<String> = (0..3)
        .map(|_| ade.chat(&mut rpc, "scripted", &lane, json!({})))
        .collect();
    for chat in &chats {
        let events = ade.turn(chat, "orphans 50\nemit left");
        assert_eq!(text_of(&events), "left");
    }
    // Orphans whose worker is gone come to the first process.
    let outside = |name: &str| -> Vec<i32> {
        ade.processes()
            .iter()
            .map(|identity| identity.pid.get())
            .filter(|pid| ade_tests::ade::command_line(*pid).contains(name))
            .collect()
    };
    let (turn, _) = ade.send(&mut rpc, &chats[0], "orphan 300\norphan 300\ntick 20");
    ade.wait_transcript(&chats[0], "a stream", |lines| {
        text_of(lines).contains("tick")
    });
    assert_eq!(outside("sleep 300").len(), 2);
    // Another program's orphan comes to it too, and is none of ours.
    let stranger = stranger_below(outside("serve").into_iter().max().expect("the broker"));
    let workers = outside("ade-worker");
    let inside = number(&ade.session(&chats[0]), "workerPid");
    let victim = workers.iter().find(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.starts_with("NSpid:"))
            .unwrap_or_default();
        line.split_whitespace().last() == Some(&inside.to_string())
    });
    signal(*victim.expect("the worker"), Signal::SIGKILL);
    let events = of_turn(&ade.wait_done(&chats[0], &turn), &turn);
    let errors = of_type(&events, "error");
    let message = errors[0]["message"].as_str().expect("a sentence");
    assert!(
        message.contains("SIGKILL"),
        "its own status is not lost: {message}"
    );
    wait_within("the strangers are dead", GONE, || {
        outside("sleep 300").is_empty().then_some(())
    });
    goes_on(&ade, &chats[0]);
    // Zombies have no environment: they are looked for by their parent.
    let broker = outside("serve").into_iter().max().expect("the broker");
    wait_true("no zombie is left", || {
        let table = process::table().expect("the process table");
        let root = Pid::new(i64::from(broker)).expect("a pid");
        !process::descendants(root, &table)
            .iter()
            .any(process::ProcessEntry::is_zombie)
    });
    assert!(is_alive(stranger), "the stranger is spared");
    rpc.call("broker.stop", json!({}));
    ade.expect_broker_ended(0);
    assert_eq!(ade.describe(), Vec::<String>::new());
}

/// Leaves an orphan in the pid namespace of a process; its pid out here.
fn stranger_below(first: i32) -> i32 {
    let mut enter = std::process::Command::new("nsenter");
    enter.args(["--target", &first.to_string(), "--pid", "sh", "-c"]);
    enter.arg("env -i setsid sleep 302 >/dev/null 2>&1 &");
    assert!(enter.status().expect("nsenter").success());
    wait_until("the stranger is the broker's child", || {
        let table = process::table().expect("the process table");
        let root = Pid::new(i64::from(first)).expect("a pid");
        let below = process::children(root, &table);
        let pids = below.iter().map(|row| row.pid.get());
        pids.into_iter()
            .find(|pid| ade_tests::ade::command_line(*pid).contains("sleep 302"))
    })
}

// ---- what nothing names: no mark, no cgroup, a session of its own

const NO_CGROUP: &str = "[worker]\ncgroup = \"off\"\n";

/// A streaming turn with a hidden tree below it: its root and two children.
#[derive(Debug)]
struct HiddenTree {
    chat: String,
    turn: String,
    worker: i32,
    pids: Vec<i32>,
}

impl HiddenTree {
    fn grow(ade: &Ade, rpc: &mut Rpc) -> Self {
        Self::grow_by(ade, rpc, "hidden-tree 300", 3)
    }

    fn grow_by(ade: &Ade, rpc: &mut Rpc, step: &str, size: usize) -> Self {
        let chat = chat(ade, rpc);
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
        let worker = number(&ade.session(&chat), "workerPid");
        Self {
            chat,
            turn,
            worker,
            pids,
        }
    }

    fn alive(&self) -> usize {
        self.pids.iter().filter(|pid| is_alive(**pid)).count()
    }

    #[track_caller]
    fn wait_gone(&self) {
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
    ade.serve_with(|serve| {
        // A child that stays, and one whose own child is left to the broker.
        let script = format!(
            "sleep 300 & echo $! >>{0}; sh -c 'sleep 300 & echo $! >>{0}; \
             until test -e {0}.go; do sleep 0.02; done' & exec \"$@\"",
            said.display()
        );
        let mut outer = std::process::Command::new("/bin/sh");
        outer.args(["-c", &script, "sh"]);
        outer.arg(serve.get_program()).args(serve.get_args());
        for (name, value) in serve.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        outer.current_dir(serve.get_current_dir().expect("a folder"));
        outer.stdin(std::process::Stdio::null());
        outer
    });
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
    assert_eq!(ade.stop_broker(), Some(0));
    let spared = strangers.iter().filter(|pid| is_alive(**pid)).count();
    for pid in strangers {
        signal(pid, Signal::SIGKILL);
    }
    assert_eq!(spared, 2);
}
