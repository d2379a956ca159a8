//! What runs out: descriptors, processes, room on the disk. Whoever is
//! concerned is told so in a sentence; everybody else goes on.

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ade_tests::ade::{Ade, report, started};
use ade_tests::commands::{like, within};
use ade_tests::disk::Disk;
use ade_tests::rpc::text_of;
use ade_tests::turns::{dones, ended, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_until};
use nix::sys::resource::{Resource, getrlimit};
use serde_json::{Value, json};

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        report("SKIPPED: this test needs root");
    }
    root
}

/// What runs its last arguments with a limit, such as `--nofile=64`.
fn limited(limit: &str) -> Command {
    let mut outer = Command::new("prlimit");
    outer.arg(limit);
    outer
}

/// The soft and the hard limit of open files of a process.
fn files_limit(pid: i32) -> (String, String) {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    let line = text.lines().find(|line| line.starts_with("Max open files"));
    let mut words = line
        .expect("a line")
        .split_whitespace()
        .skip(3)
        .map(str::to_owned);
    (words.next().expect("soft"), words.next().expect("hard"))
}

#[test]
fn the_limit_of_open_files_is_raised_at_the_start() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
    let mut ade = Ade::new();
    ade.serve_within(limited("--nofile=64:"));
    let (soft, broker_hard) = files_limit(ade.broker_pid());
    assert_eq!(soft, broker_hard);
    assert_eq!(soft, hard.to_string());
}

#[test]
fn connections_that_cannot_be_accepted_are_told_once_and_not_in_a_loop() {
    let (ade, _) = started("");
    // Not one more than it has.
    set_limit(&ade, "3");
    // One that knocks at each of its doors.
    let doors = [ade.socket(), ade.home().join("run/workers.sock")];
    let knocks = doors.map(|door| UnixStream::connect(door).expect("in the backlog"));
    let log = || fs::read_to_string(ade.home().join("logs/ade-serve.log")).expect("the log");
    let told = || log().matches("was not accepted").count();
    wait_true("it is told", || told() > 0);
    let since = Instant::now();
    wait_true("a while passes", || {
        since.elapsed() > Duration::from_millis(500)
    });
    assert_eq!(told(), 1, "{}", log());
    set_limit(&ade, "20000");
    ade.expect_code(0, &["status"]);
    drop(knocks);
}

#[test]
fn a_broker_that_cannot_open_what_it_needs_says_so_at_the_start() {
    let ade = Ade::new();
    let errors = ade.root().join("errors");
    for limit in 5..=24 {
        let limits = format!("--nofile={limit}:{limit}");
        let mut serve = within(limited(&limits), &ade.command(&["serve"]));
        serve.stderr(fs::File::create(&errors).expect("a file"));
        let mut broker = serve.spawn().expect("prlimit");
        let ended = wait_until("it ends", || broker.try_wait().expect("its status"));
        let said = fs::read_to_string(&errors).expect("its words");
        if said.contains("loading shared libraries") {
            // It did not even get to its first line.
            continue;
        }
        assert_eq!(ended.code(), Some(1), "{limit}: {said}");
        assert!(said.contains("Too many open files"), "{limit}: {said}");
        assert!(said.contains("ulimit"), "{limit}: {said}");
        for word in ["panicked", "must be a file of yours", "readable for you"] {
            assert!(!said.contains(word), "{limit}: {said}");
        }
    }
}

/// Descriptors for a few workers at once, whatever whoever runs the tests left
/// open to us, and so to the broker.
const FEW: &str = "--nofile=96:96";

#[test]
fn what_finds_no_descriptors_waits_and_idle_workers_make_room() {
    let mut ade = Ade::new();
    ade.serve_within(limited(FEW));
    let mut rpc = ade.rpc();
    let mut sent = Vec::new();
    for _ in 0..24 {
        let chat = ade.scripted_chat(&mut rpc, 60_000);
        let (turn, _) = ade.send(&mut rpc, &chat, "!words 10 30");
        sent.push((chat, turn));
    }
    for (chat, turn) in &sent {
        let events = of_turn(&ade.wait_done(chat, turn), turn);
        assert_eq!(ended(&events), "completed", "{events:?}");
        assert!(of_type(&events, "error").is_empty(), "{events:?}");
    }
}

/// Gives a broker that runs another soft limit of open files.
fn set_limit(ade: &Ade, files: &str) {
    let pid = ade.broker_pid().to_string();
    let mut prlimit = Command::new("prlimit");
    prlimit.args(["--pid", &pid, &format!("--nofile={files}:")]);
    assert!(prlimit.status().expect("prlimit").success());
}

#[test]
fn only_where_no_worker_at_all_could_start_a_turn_fails_for_it() {
    let (ade, mut rpc) = started("");
    let open = rpc.call("broker.status", json!({}))["fds"][0].as_u64();
    // Enough for a few clients, and too few for a worker.
    set_limit(&ade, &(open.expect("a count") + 20).to_string());
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    for _ in 0..2 {
        let events = ade.turn(&chat, "are you there?");
        let error = &of_type(&events, "error")[0];
        let message = error["message"].as_str().expect("a sentence");
        assert!(message.contains("room for another worker"), "{error}");
        let detail = error["detail"].as_str().expect("a remedy");
        assert!(detail.contains("ulimit"), "{error}");
    }
    assert_eq!(ade.session(&chat)["state"], "idle");
}

/// Gives everything below a folder to a user.
fn give(path: &Path, user: u32) {
    std::os::unix::fs::chown(path, Some(user), Some(user)).expect("chown");
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            give(&entry.path(), user);
        } else {
            std::os::unix::fs::chown(entry.path(), Some(user), Some(user)).expect("chown");
        }
    }
}

#[test]
fn no_process_more_fails_the_one_and_no_other() {
    /// A user that nothing else runs as.
    const USER: u32 = 61_234;
    if !is_root() {
        return;
    }
    let mut ade = Ade::new();
    let lane = ade.lane("lane").display().to_string();
    // A copy that this user can run, whatever the folders above the original.
    let exe = ade.root().join("ade");
    fs::copy(ade_tests::ade::executable(), &exe).expect("a copy");
    give(ade.root(), USER);
    let as_user = |command: &Command, mut outer: Command| {
        outer.arg(&exe).args(command.get_args());
        let mut outer = like(outer, command);
        outer.current_dir(&lane).uid(USER).gid(USER);
        outer
    };
    ade.serve_with(|serve| as_user(&serve, limited("--nproc=30")));
    let act = |name: &str, arguments: Value| -> Result<Value, String> {
        let text = arguments.to_string();
        let command = ade.command(&["--json", "actions", "run", name, &text]);
        let output = as_user(&command, Command::new("/usr/bin/env"))
            .output()
            .expect("ade");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match serde_json::from_str(&said) {
            Ok(value) if output.status.success() => Ok(value),
            _ => Err(said + &String::from_utf8_lossy(&output.stderr)),
        }
    };
    let begin = |chat: &str, prompt: &str| {
        let sent = act("chat.send", json!({"sessionId": chat, "prompt": prompt})).expect("sent");
        sent["turnId"].as_str().expect("a turn").to_owned()
    };
    // Nor may this user make cgroups; everything works without.
    let status = act("broker.status", json!({})).expect("a status");
    let cgroup = status["cgroup"].as_str().unwrap_or_default();
    assert!(cgroup.starts_with("not used: "), "{cgroup}");
    let mut running: Vec<(String, String)> = Vec::new();
    let (chat, errors) = wait_until("a start that fails", || {
        let made = act("chat.create", json!({"provider": "scripted", "lane": lane})).expect("made");
        let chat = made["sessionId"].as_str().expect("a chat").to_owned();
        let turn = begin(&chat, "!words 100000 100");
        let lines = ade.wait_transcript(&chat, "a word or an end", |lines| {
            !text_of(lines).is_empty() || !dones(lines).is_empty()
        });
        let events = of_turn(&lines, &turn);
        if dones(&events).is_empty() {
            running.push((chat, turn));
            return None;
        }
        Some((chat, of_type(&events, "error")))
    });
    report(&format!(
        "{} chats ran; the next one: {errors:?}",
        running.len()
    ));
    assert_eq!(errors.len(), 1);
    let message = errors[0]["message"].as_str().expect("a sentence");
    // Whether the worker, its host, or a thread of one could not be started:
    // the one that could not says so.
    let detail = errors[0]["detail"].as_str().unwrap_or_default();
    assert!(
        format!("{message} {detail}").contains("start"),
        "{errors:?}"
    );
    assert!(!running.is_empty());
    for (chat, turn) in &running {
        act("chat.abort", json!({"sessionId": chat})).expect("aborted");
        let events = of_turn(&ade.wait_done(chat, turn), turn);
        assert_eq!(ended(&events), "interrupted");
        act("chat.stop", json!({"sessionId": chat})).expect("stopped");
    }
    let turn = begin(&chat, "and now?");
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(text_of(&events), "You said: and now?");
    let _ = ade.checked_transcript(&chat);
    act("chat.stop", json!({"sessionId": chat})).expect("stopped");
}

// ---- the disk

/// Every line of a transcript is whole, and the sequences have no gap.
fn whole(ade: &Ade, chat: &str) -> Vec<Value> {
    ade.checked_transcript(chat)
}

#[test]
fn a_full_disk_under_transcripts_costs_the_running_turns_and_nothing_else() {
    if !is_root() {
        return;
    }
    let mut ade = Ade::new();
    let disk = Disk::mount(&ade.home().join("transcripts"), "256k");
    ade.serve();
    let mut rpc = ade.rpc();
    let streaming = ade.scripted_chat(&mut rpc, 60_000);
    let idle = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&idle, "hello");
    let asking = ade.scripted_chat(&mut rpc, 60_000);
    let (asked, after) = ade.send(&mut rpc, &asking, "!card Run it? | x");
    let mut watch = ade.rpc();
    watch.subscribe(&asking, after);
    let _card = watch.card();
    let (turn, after) = ade.send(&mut rpc, &streaming, "!words 1000000 5");
    let (queued, _) = ade.send(&mut rpc, &streaming, "behind it");
    let mut watch = ade.rpc();
    watch.subscribe(&streaming, after);
    watch.event("a word", |event| event["event"]["type"] == "text");
    disk.fill();
    // The turn that streams fails, with a sentence that says why.
    let info = wait_until("the turn fails", || {
        let info = ade.session(&streaming);
        (info["lastStatus"] == "failed").then_some(info)
    });
    let why = info["lastError"].as_str().expect("a sentence");
    assert!(why.contains("could not write the transcript"), "{why}");
    wait_true("its worker is gone", || {
        ade.session(&streaming)["workerPid"].is_null()
    });
    // Who writes nothing is not concerned.
    assert_eq!(ade.session(&asking)["state"], "awaiting_card");
    assert!(!ade.session(&idle)["workerPid"].is_null());
    // A message that can't be written down is not taken, and says so.
    for chat in [&idle, &streaming] {
        // More than what may be left of the file's last block.
        let prompt = "x".repeat(10_000);
        let refused = rpc.try_call("chat.send", json!({"sessionId": chat, "prompt": prompt}));
        let refused = refused.expect_err("no room");
        assert_eq!(refused.kind, "transcript", "{refused:?}");
        assert!(refused.message.contains("could not"), "{refused:?}");
    }
    disk.make_room();
    for chat in [&idle, &streaming] {
        let events = ade.turn(chat, "and now?");
        assert_eq!(text_of(&events), "You said: and now?");
    }
    for turn in [&turn, &queued] {
        let events = of_turn(&whole(&ade, &streaming), turn);
        assert_eq!(ended(&events), "failed", "{events:?}");
        assert_eq!(of_type(&events, "error").len(), 1);
    }
    rpc.call("chat.abort", json!({"sessionId": asking}));
    assert_eq!(
        ended(&of_turn(&ade.wait_done(&asking, &asked), &asked)),
        "interrupted"
    );
    for chat in [&idle, &streaming, &asking] {
        let _ = whole(&ade, chat);
        rpc.call("chat.stop", json!({"sessionId": chat}));
    }
    // The next broker finds nothing to mend.
    assert_eq!(ade.stop_broker(), Some(0));
    ade.serve();
    for chat in [&idle, &streaming, &asking] {
        assert_eq!(ade.session(chat)["state"], "idle");
        let before = whole(&ade, chat).len();
        ade.turn(chat, "again");
        assert!(whole(&ade, chat).len() > before);
    }
    assert_eq!(ade.stop_broker(), Some(0));
}

#[test]
fn a_broker_that_ends_with_a_full_disk_owes_the_ends_to_the_next_one() {
    if !is_root() {
        return;
    }
    let mut ade = Ade::new();
    let disk = Disk::mount(&ade.home().join("transcripts"), "256k");
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 1000000 5");
    ade.wait_transcript(&chat, "a word", |lines| !text_of(lines).is_empty());
    disk.fill();
    wait_true("the turn fails", || {
        ade.session(&chat)["lastStatus"] == "failed"
    });
    assert_eq!(ade.stop_broker(), Some(0));
    disk.make_room();
    ade.serve();
    let events = of_turn(&whole(&ade, &chat), &turn);
    assert_eq!(ended(&events), "failed", "{events:?}");
    let events = ade.turn(&chat, "and now?");
    assert_eq!(text_of(&events), "You said: and now?");
    let _ = whole(&ade, &chat);
    assert_eq!(ade.stop_broker(), Some(0));
}

#[test]
fn a_full_disk_under_everything_is_survived() {
    if !is_root() {
        return;
    }
    let mut ade = Ade::new();
    let disk = Disk::mount(&ade.home(), "3m");
    ade.serve();
    let mut rpc = ade.rpc();
    let streaming = ade.scripted_chat(&mut rpc, 60_000);
    let idle = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&idle, "hello");
    let (turn, _) = ade.send(&mut rpc, &streaming, "!words 1000000 5");
    ade.wait_transcript(&streaming, "a word", |lines| !text_of(lines).is_empty());
    disk.fill();
    wait_true("the turn fails", || {
        ade.session(&streaming)["lastStatus"] == "failed"
    });
    let prompt = "x".repeat(10_000);
    let refused = rpc.try_call("chat.send", json!({"sessionId": idle, "prompt": prompt}));
    let refused = refused.expect_err("no room");
    assert!(
        ["transcript", "state"].contains(&refused.kind.as_str()),
        "{refused:?}"
    );
    // Nothing can be made either, and it is said why.
    let lane = ade.lane("other").display().to_string();
    let made = rpc.try_call("chat.create", json!({"provider": "scripted", "lane": lane}));
    if let Ok(made) = made {
        let sent = json!({"sessionId": made["sessionId"], "prompt": "x".repeat(10_000)});
        let refused = rpc.try_call("chat.send", sent).expect_err("no room");
        assert!(!refused.message.is_empty());
    }
    disk.make_room();
    for chat in [&streaming, &idle] {
        let events = ade.turn(chat, "and now?");
        assert_eq!(ended(&events), "completed");
        assert_eq!(text_of(&events), "You said: and now?");
    }
    let events = of_turn(&whole(&ade, &streaming), &turn);
    assert_eq!(ended(&events), "failed");
    for chat in [&streaming, &idle] {
        rpc.call("chat.stop", json!({"sessionId": chat}));
        let _ = whole(&ade, chat);
    }
    wait_true("no litter", || ade.litter().is_empty());
    assert_eq!(ade.stop_broker(), Some(0));
}

/// Rows of a chat in `state.db`.
fn rows(ade: &Ade, chat: &str) -> (i64, i64) {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let count = |table: &str| {
        let query = format!("SELECT count(*) FROM {table} WHERE session_id = ?1");
        db.query_row(&query, [chat], |row| row.get(0))
            .expect("a count")
    };
    (count("turns"), count("queue"))
}

/// `state.db` can be neither extended nor put right: its log is empty, and there
/// is no room to begin one.
fn lock_in(ade: &Ade, disk: &Disk) {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    wait_true("an empty log", || {
        let emptied: i64 = db
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .expect("a checkpoint");
        emptied == 0
    });
    disk.fill();
}

#[test]
fn turns_that_ended_for_a_full_disk_are_over_for_the_next_broker() {
    if !is_root() {
        return;
    }
    let mut ade = Ade::new();
    let disk = Disk::mount(&ade.home(), "3m");
    // The transcript has room, so the ends are told.
    let _transcripts = Disk::mount(&ade.home().join("transcripts"), "256k");
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (running, _) = ade.send(&mut rpc, &chat, "!emit begun\n!hang");
    let (first, _) = ade.send(&mut rpc, &chat, "first");
    let (second, _) = ade.send(&mut rpc, &chat, "second");
    ade.wait_transcript(&chat, "a word", |lines| text_of(lines) == "begun");
    lock_in(&ade, &disk);
    let refused = rpc.try_call("chat.send", json!({"sessionId": chat, "prompt": "third"}));
    assert_eq!(refused.expect_err("no room").kind, "state");
    for turn in [&running, &first, &second] {
        assert_eq!(ended(&of_turn(&ade.wait_done(&chat, turn), turn)), "failed");
    }
    drop(rpc);
    ade.kill_broker();
    disk.make_room();
    assert_eq!(rows(&ade, &chat), (1, 2), "`state.db` knows of no end");
    ade.serve();
    assert_eq!(rows(&ade, &chat), (0, 0));
    assert_eq!(text_of(&ade.turn(&chat, "and now?")), "You said: and now?");
    let lines = whole(&ade, &chat);
    for turn in [&running, &first, &second] {
        let events = of_turn(&lines, turn);
        let ends = dones(&events).len();
        assert_eq!((ends, ended(&events)), (1, "failed"), "{events:?}");
        let messages = usize::from(turn == &running);
        assert_eq!(of_type(&events, "user_message").len(), messages);
    }
    assert_eq!(ade.stop_broker(), Some(0));
}
