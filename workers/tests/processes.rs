//! Processes: crashes, the stop ladder, orphans, and what outlives whom.

mod common;

use std::time::{Duration, Instant};

use ade_leases::process::{HiddenList, Pid, ProcessIdentity};
use ade_protocol::boot::HostCommand;
use common::{Rig, fixture, runs, shell, signal, timing, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const READY: &str = r#"{"protocolVersion":2,"type":"ready","ready":{"protocolVersion":2,"provider":"x","version":"1"}}"#;

fn pid_of(ready: &Value) -> i32 {
    i32::try_from(ready["hostPid"].as_i64().expect("a pid")).expect("a pid")
}

fn family(rig: &Rig, turn: &str) -> Vec<i32> {
    ["child ", "grandchild "]
        .map(|word| rig.pid_in_text(turn, word))
        .to_vec()
}

#[tokio::test]
async fn a_crash_is_told_with_its_code_and_last_words() {
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    let end = rig.turn("t1", "!emit half\n!stderr 1000\n!crash 7").await;
    assert_eq!(end["errorCode"], "host_exited");
    assert_eq!(
        end["error"],
        "the agent's process ended with exit code 7 before the turn did"
    );
    assert_eq!(end["detail"]["exit"], "exit code 7");
    assert!(
        end["detail"]["stderr"]
            .as_str()
            .unwrap()
            .contains("[scripted]"),
        "{end}"
    );
    assert_eq!(rig.text("t1"), "half");
    assert_eq!(rig.lifecycle("host_exited").len(), 1);
    rig.drain().await;
    rig.exits_in_order();
    assert!(!runs(pid_of(&ready)));

    let mut rig = Rig::scripted();
    rig.ready().await;
    let end = rig.turn("t1", "!kill").await;
    assert_eq!(end["detail"]["exit"], "signal SIGKILL");
}

#[tokio::test]
async fn c16_exit_code_0_is_no_end_of_a_turn() {
    let script = format!(
        "read -r _; cat '{}'; read -r _; cat '{}' >&2; exit 0",
        fixture("C16-exit0-no-end.frames").display(),
        fixture("C16-stderr.txt").display()
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let end = rig.turn("t1", "go").await;
    assert_eq!(end["ok"], false);
    assert!(
        end["error"]
            .as_str()
            .unwrap()
            .contains("exit code 0 before the turn did"),
        "{end}"
    );
    assert!(
        end["detail"]["stderr"]
            .as_str()
            .unwrap()
            .contains("database is locked"),
        "{end}"
    );
}

#[tokio::test]
async fn j09_a_crash_in_the_middle_fails_the_turn_at_once() {
    let file = fixture("J09.frames");
    let file = file.display();
    let script = format!(
        "read -r _; sed 1q '{file}'; read -r _; sed 1d '{file}'; cat '{}' >&2; exit 1",
        fixture("J09-stderr.txt").display()
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let asked = Instant::now();
    let end = rig.turn("t1", "go").await;
    assert!(asked.elapsed() < Duration::from_secs(2));
    assert_eq!(rig.text("t1"), "half an answ");
    assert!(
        end["error"].as_str().unwrap().contains("exit code 1"),
        "{end}"
    );
    assert!(
        end["detail"]["stderr"]
            .as_str()
            .unwrap()
            .contains("401 Missing Authentication header")
    );
    rig.drain().await;
    rig.exits_in_order();
}

#[tokio::test]
async fn a_host_that_cannot_be_run_is_told_by_name() {
    let missing = ade_protocol::boot::HostCommand::Program {
        program: "/no/such/agent".into(),
        args: vec![],
    };
    let mut rig = Rig::start(missing, timing());
    rig.attach(1, 0).await;
    let body = rig.init_body();
    let init = rig.request("init", body).await;
    let refused = rig.response(&init).await;
    assert_eq!(refused["errorCode"], "host_not_started", "{refused}");
    let message = refused["error"].as_str().unwrap();
    assert!(message.contains("/no/such/agent"), "{message}");
    rig.drain().await;
    rig.exits_in_order();

    let mut rig = Rig::scripted();
    rig.attach(1, 0).await;
    let mut body = rig.init_body();
    body["cwd"] = json!("/no/such/lane");
    let init = rig.request("init", body).await;
    let refused = rig.response(&init).await;
    assert_eq!(refused["errorCode"], "lane_missing");
    assert!(
        refused["error"].as_str().unwrap().contains("/no/such/lane"),
        "{refused}"
    );
}

#[tokio::test]
async fn e03_a_write_to_a_dead_host_ends_nothing_else() {
    let big = "x".repeat(1024 * 1024);
    let mut rig = Rig::start(
        shell(&format!("read -r _; echo '{READY}'; sleep 0.2; exit 7")),
        timing(),
    );
    rig.ready().await;
    let end = rig.turn("t1", &big).await;
    assert_eq!(end["errorCode"], "host_exited");
    assert!(
        end["error"].as_str().unwrap().contains("exit code 7"),
        "{end}"
    );
    rig.drain().await;
    rig.exits_in_order();

    let mut rig = Rig::start(
        shell(&format!("read -r _; echo '{READY}'; sleep 60")),
        timing(),
    );
    let ready = rig.ready().await;
    let send = rig.begin("t1", &big).await;
    let waits = rig.request("models", json!({})).await;
    signal(pid_of(&ready), Signal::SIGKILL);
    let end = rig.response(&send).await;
    assert!(end["error"].as_str().unwrap().contains("SIGKILL"), "{end}");
    assert_eq!(rig.response(&waits).await["errorCode"], "host_exited");
    rig.drain().await;
    rig.exits_in_order();
}

#[tokio::test]
async fn e04_a_host_that_closed_its_input_is_noticed() {
    let event = r#"{"protocolVersion":2,"type":"sdk_event","event":{"type":"text","messageId":"m","text":"."}}"#;
    let script = format!(
        "read -r _; echo '{READY}'; read -r _; exec 0<&-; while :; do echo '{event}' || exit 1; sleep 0.02; done"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let send = rig.begin("t1", "go").await;
    rig.until("an event", |frame| frame["type"] == "event")
        .await;
    let asked = Instant::now();
    rig.abort("t1").await;
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "interrupted", "{end}");
    assert!(asked.elapsed() < Duration::from_secs(3));
    rig.drain().await;
    rig.exits_in_order();
}

#[tokio::test]
async fn e05_a_host_that_reads_nothing_can_be_aborted() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    rig.turn("t1", "!stop-reading").await;
    let send = rig.begin("t2", &"x".repeat(1024 * 1024)).await;
    let asked = Instant::now();
    let abort = rig.abort("t2").await;
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "interrupted", "{end}");
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
    let aborted = rig
        .seen
        .iter()
        .find(|frame| frame["requestId"] == abort)
        .expect("an answer");
    assert_eq!(aborted["errorCode"], "timed_out");
    rig.drain().await;
    rig.exits_in_order();
}

#[tokio::test]
async fn an_abort_that_is_not_answered_is_enforced_after_ten_seconds() {
    let script = format!(
        "trap '' TERM; read -r _; echo '{READY}'; while :; do read -r _ || sleep 0.05; done"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let send = rig.begin("t1", "go").await;
    let asked = Instant::now();
    let abort = rig.abort("t1").await;
    assert_eq!(rig.response(&abort).await["errorCode"], "timed_out");
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "interrupted", "{end}");
    let took = asked.elapsed();
    assert!((10..13).contains(&took.as_secs()), "{took:?}");
    rig.drain().await;
    rig.exits_in_order();
    assert_eq!(rig.stages(), ["term", "kill", "sweep"]);
}

#[tokio::test]
async fn e06_a_grandchild_that_holds_the_pipe_keeps_nothing_open() {
    let end = r#"{"protocolVersion":2,"type":"response","requestId":"send-t1","ok":true,"result":{"status":"completed"}}"#;
    let last = r#"{"protocolVersion":2,"type":"log","level":"info","message":"pid"}"#;
    let pid = "sleeper.pid";
    let script = format!(
        "read -r _; echo '{READY}'; read -r _; sleep 300 & echo $! > {pid}; echo '{end}'; echo '{last}'; exit 0"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let asked = Instant::now();
    assert_eq!(rig.turn("t1", "go").await["result"]["status"], "completed");
    rig.drain().await;
    rig.exits_in_order();
    assert!(
        asked.elapsed() < Duration::from_secs(3),
        "{:?}",
        asked.elapsed()
    );
    assert!(
        rig.seen.iter().any(|frame| frame["message"] == "pid"),
        "what was written before the end is delivered"
    );
    let sleeper = std::fs::read_to_string(rig.dir.path().join(pid))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(!runs(sleeper));

    // The same in a turn that is not over: it fails with the exit.
    let mut rig = Rig::scripted();
    rig.ready().await;
    let end = rig
        .turn("t1", "!grandchild 300\n!emit last\n!crash 5")
        .await;
    assert!(
        end["error"].as_str().unwrap().contains("exit code 5"),
        "{end}"
    );
    assert!(rig.text("t1").ends_with("last"));
    rig.drain().await;
    rig.exits_in_order();
    assert!(!runs(rig.pid_in_text("t1", "grandchild ")));
}

#[tokio::test]
async fn j01_nothing_is_left_after_any_end() {
    const FAMILY: &str = "!child 300\n!grandchild 300";
    // By dispose, between turns.
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    rig.turn("t1", FAMILY).await;
    let mut all = family(&rig, "t1");
    all.push(pid_of(&ready));
    assert!(all.iter().all(|pid| runs(*pid)), "{all:?}");
    rig.dispose().await;
    rig.exits_in_order();
    assert!(all.iter().all(|pid| !runs(*pid)), "{all:?}");

    // By SIGTERM to the worker, in a turn.
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    let send = rig
        .begin("t1", &format!("{FAMILY}\n!emit begun\n!hang"))
        .await;
    rig.until("the turn begins", |frame| frame["event"]["text"] == "begun")
        .await;
    let mut all = family(&rig, "t1");
    all.push(pid_of(&ready));
    signal(rig.pid(), Signal::SIGTERM);
    assert_eq!(rig.response(&send).await["result"]["status"], "interrupted");
    rig.drain().await;
    rig.exits_in_order();
    assert!(all.iter().all(|pid| !runs(*pid)), "{all:?}");

    // By SIGKILL of the host.
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    rig.turn("t1", FAMILY).await;
    let all = family(&rig, "t1");
    signal(pid_of(&ready), Signal::SIGKILL);
    rig.drain().await;
    rig.exits_in_order();
    assert!(all.iter().all(|pid| !runs(*pid)), "{all:?}");
}

#[tokio::test]
async fn j08_a_host_that_ignores_sigterm_meets_the_whole_ladder() {
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    rig.turn("t1", "!ignore-term\n!child 300").await;
    let child = rig.pid_in_text("t1", "child ");
    let asked = Instant::now();
    let id = rig.request("dispose", json!({})).await;
    rig.until("the first stage", |frame| frame["event"] == "stopping")
        .await;
    assert!(rig.lease_file().exists(), "the lease outlives the tree");
    rig.response(&id).await;
    assert!(
        !runs(pid_of(&ready)) && !runs(child),
        "the answer comes after the end of the tree"
    );
    assert!(!rig.lease_file().exists());
    let took = asked.elapsed();
    assert!(
        (Duration::from_millis(800)..Duration::from_secs(3)).contains(&took),
        "{took:?}"
    );
    rig.drain().await;
    rig.exits_in_order();
    assert_eq!(rig.stages(), ["dispose", "eof", "term", "kill", "sweep"]);

    // The polite one ends by itself, with its cleanup done.
    let script = format!(
        "trap 'sleep 0.2; echo done > cleaned; exit 0' TERM; read -r _; echo '{READY}'; while :; do read -r _ || sleep 0.05; done"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    rig.dispose().await;
    rig.exits_in_order();
    assert_eq!(rig.stages(), ["dispose", "eof", "term", "sweep"]);
    assert!(rig.dir.path().join("cleaned").exists());
}

#[tokio::test]
async fn a_second_request_jumps_ahead() {
    let mut slow = timing();
    slow.dispose_grace_ms = 60_000;
    slow.eof_grace_ms = 60_000;
    slow.term_to_kill_ms = 60_000;
    let mut rig = Rig::start(ade_protocol::boot::HostCommand::Scripted, slow);
    rig.ready().await;
    rig.turn("t1", "!ignore-term").await;
    let first = rig.request("dispose", json!({})).await;
    for stage in ["dispose", "eof", "term"] {
        rig.until(stage, |frame| frame["detail"]["stage"] == stage)
            .await;
        let models = rig.request("models", json!({})).await;
        assert_eq!(rig.response(&models).await["errorCode"], "stopping");
        signal(rig.pid(), Signal::SIGTERM);
    }
    rig.response(&first).await;
    rig.drain().await;
    rig.exits_in_order();
}

#[tokio::test]
async fn a_stopped_host_is_woken_to_die() {
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    signal(pid_of(&ready), Signal::SIGSTOP);
    let asked = Instant::now();
    rig.dispose().await;
    rig.exits_in_order();
    assert!(asked.elapsed() < Duration::from_secs(2));
    assert!(!runs(pid_of(&ready)));
    assert!(
        !rig.stages().contains(&"kill".to_owned()),
        "{:?}",
        rig.stages()
    );
}

#[tokio::test]
async fn the_host_dies_with_its_worker() {
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    let host = pid_of(&ready);
    let send = rig.begin("t1", "!ignore-term\n!emit begun\n!hang").await;
    rig.until("the turn begins", |frame| frame["event"]["text"] == "begun")
        .await;
    signal(rig.pid(), Signal::SIGKILL);
    rig.exit();
    wait_until("the host dies", || !runs(host));
    drop(send);
}

#[tokio::test]
async fn a_worker_is_a_session_leader_and_a_subreaper() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", rig.pid())).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(fields[3], rig.pid().to_string(), "its own session");
    rig.turn("t1", "!grandchild 300").await;
    let orphan = rig.pid_in_text("t1", "grandchild ");
    let stat = std::fs::read_to_string(format!("/proc/{orphan}/stat")).unwrap();
    let parent = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .to_owned();
    assert_eq!(
        parent,
        rig.pid().to_string(),
        "the orphan came to the worker"
    );
    signal(orphan, Signal::SIGKILL);
    wait_until("the orphan is reaped", || {
        !std::path::Path::new(&format!("/proc/{orphan}")).exists()
    });
    assert_eq!(
        rig.turn("t2", "hello").await["result"]["status"],
        "completed"
    );
}

#[tokio::test]
async fn a_host_that_only_knows_the_end_of_its_input_needs_no_signal() {
    let script = format!("echo '{READY}'; cat > /dev/null; echo over > ended");
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    assert_eq!(rig.dispose().await["ok"], true);
    rig.exits_in_order();
    assert_eq!(rig.stages(), ["dispose", "eof", "sweep"]);
    assert!(rig.dir.path().join("ended").exists(), "it ended by itself");
}

#[tokio::test]
async fn sigterm_goes_to_the_whole_group_of_the_host() {
    // The host lives on, so that its child has the time until SIGKILL.
    let child =
        "trap 'echo bye > child.bye; exit 0' TERM; echo > child.up; while :; do sleep 0.02; done";
    let script = format!(
        "trap : TERM; ({child}) & while [ ! -e child.up ]; do sleep 0.02; done; echo '{READY}'; \
         while :; do sleep 0.02; done"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    assert_eq!(rig.dispose().await["ok"], true);
    rig.exits_in_order();
    assert_eq!(rig.stages(), ["dispose", "eof", "term", "kill", "sweep"]);
    assert!(
        rig.dir.path().join("child.bye").exists(),
        "it was asked too"
    );
}

#[tokio::test]
async fn a_host_that_has_left_its_group_is_asked_all_the_same() {
    let script = format!(
        "trap 'echo bye > host.bye; exit 0' TERM; echo '{READY}'; while :; do sleep 0.02; done"
    );
    let host = HostCommand::Program {
        program: env!("CARGO_BIN_EXE_ade-worker-harness").into(),
        args: vec!["leave-group".into(), script],
    };
    let mut rig = Rig::start(host, timing());
    rig.ready().await;
    assert_eq!(rig.dispose().await["ok"], true);
    rig.exits_in_order();
    assert_eq!(rig.stages(), ["dispose", "eof", "term", "sweep"]);
    assert!(rig.dir.path().join("host.bye").exists(), "it heard SIGTERM");
}

#[test]
fn a_host_whose_worker_was_gone_before_it_could_follow_does_not_run() {
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    let host = |parent: &str| {
        std::process::Command::new(env!("CARGO_BIN_EXE_ade-worker-harness"))
            .arg0("ade-host")
            .args(["--", "/bin/sh", "-c", "echo > ran"])
            .env("ADE_HOST_PARENT", parent)
            .current_dir(folder.path())
            .output()
            .unwrap()
    };
    for parent in ["1", "0", "", "x"] {
        let ended = host(parent);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(70), "{parent:?}: {said}");
        assert!(said.contains("is gone"), "{parent:?}: {said}");
        assert!(!folder.path().join("ran").exists(), "{parent:?}");
    }
    let ended = host(&std::process::id().to_string());
    assert_eq!(ended.status.code(), Some(0));
    assert!(folder.path().join("ran").exists());
}

/// What a worker that is killed leaves, it has listed before.
#[tokio::test]
async fn who_sheds_the_mark_is_listed_until_the_worker_ends() {
    let script = format!(
        "(setsid env -i sleep 300 > /dev/null 2>&1 & echo $! > bare.pid); echo '{READY}'; cat > /dev/null"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let bare = std::fs::read_to_string(rig.dir.path().join("bare.pid")).unwrap();
    let bare: i32 = bare.trim().parse().unwrap();
    let path = rig.dir.path().join("wrk_test.hidden");
    let listed = || {
        let list = HiddenList::read(&path).unwrap();
        list.map_or_else(Vec::new, |list| list.identities())
    };
    // Nobody else, and no process that was only seen for a moment.
    wait_until("it is listed alone", || {
        let listed = listed();
        listed.len() == 1 && listed[0].pid.get() == bare
    });
    let own = ProcessIdentity::of(Pid::new(i64::from(bare)).unwrap()).unwrap();
    assert_eq!(Some(&listed()[0]), own.as_ref());
    assert_eq!(rig.dispose().await["ok"], true);
    rig.exits_in_order();
    assert!(!runs(bare));
    assert!(!path.exists());
}

/// Each of the two ways to find what is left finds what the other can't.
#[tokio::test]
async fn what_lost_its_mark_or_its_place_dies_with_the_worker_all_the_same() {
    use std::os::unix::process::CommandExt;
    let script = format!(
        "setsid env -i sleep 300 > /dev/null 2>&1 & echo $! > bare.pid; echo '{READY}'; cat > /dev/null"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let bare = std::fs::read_to_string(rig.dir.path().join("bare.pid")).unwrap();
    let bare: i32 = bare.trim().parse().unwrap();
    let mut astray = std::process::Command::new("sleep");
    let astray = astray
        .arg("300")
        .env(ade_protocol::boot::MARK_ENV, &rig.mark);
    let mut astray = astray.process_group(0).spawn().unwrap();
    let elsewhere = i32::try_from(astray.id()).unwrap();
    assert!(runs(bare) && runs(elsewhere));
    assert_eq!(rig.dispose().await["ok"], true);
    rig.exits_in_order();
    assert!(!runs(bare), "it was below the worker");
    assert!(!runs(elsewhere), "it carried the worker's mark");
    astray.wait().unwrap();
}
