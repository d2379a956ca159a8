//! Leases, owners and the store from the command line.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ade_leases::process::{Liveness, Pid, ProcessIdentity};
use serde_json::Value;

use crate::support::{Place, Ran, ran, wait_until};

/// A session file in a place of its own.
struct Scene {
    place: Place,
    file: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        let file = place.path().join("S.jsonl");
        let header = r#"{"type":"session","version":3,"id":"s-1","cwd":"/lane"}"#;
        fs::write(&file, format!("{header}\n")).expect("a session");
        Self { place, file }
    }

    fn lease(&self) -> PathBuf {
        self.place.path().join("S.jsonl.ade-lease")
    }

    fn command(&self, words: &[&str], rest: &[&str]) -> Command {
        let mut command = self.place.command(words);
        command.arg(&self.file).args(rest);
        command
    }

    fn run(&self, words: &[&str], rest: &[&str]) -> Ran {
        ran(self.command(words, rest))
    }

    /// A holder without a command, once it holds.
    fn hold(&self, rest: &[&str]) -> (Child, String) {
        let mut command = self.command(&["lease", "hold"], rest);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = child.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("text");
        (child, line)
    }

    fn is_free(&self) -> bool {
        !self.lease().exists()
    }

    /// What the script writes to this file, once it has.
    fn told(&self, name: &str) -> String {
        wait_until(&format!("{name} is written"), || {
            fs::read_to_string(self.place.path().join(name))
                .ok()
                .filter(|text| text.ends_with('\n'))
        })
    }
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn send(child: &Child, signal: nix::sys::signal::Signal) {
    let pid = i32::try_from(child.id()).expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("it runs");
}

fn runs(pid: &str) -> bool {
    let pid = Pid::new(pid.trim().parse().expect("a number")).expect("a usable pid");
    let found = ProcessIdentity::of(pid).expect("the process table");
    found.is_some_and(|found| found.liveness() == Liveness::Alive)
}

#[test]
fn a_command_runs_under_the_lease_and_its_exit_code_is_ours() {
    let scene = Scene::new();
    let script = "cat \"$0.ade-lease\"; ls -l /proc/self/fd >&2; exit 7";
    let file = scene.file.display().to_string();
    let held = scene.run(
        &["lease", "hold"],
        &["--id", "pty-1", "--", "sh", "-c", script, &file],
    );
    assert_eq!(held.code, Some(7), "{held:?}");
    let record: Value = serde_json::from_str(&held.out).expect("the record");
    assert_eq!(
        (&record["owner"], &record["ownerId"]),
        (&"cli".into(), &"pty-1".into())
    );
    assert!(
        !held.err.contains("ade-lease"),
        "no descriptor of it: {}",
        held.err
    );
    assert!(scene.is_free());
    let ended = scene.run(&["lease", "hold"], &["--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(ended.code, Some(137), "{ended:?}");
    let missing = scene.run(&["lease", "hold"], &["--", "/no/such/program"]);
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert!(
        missing.err.contains("/no/such/program could not be run"),
        "{}",
        missing.err
    );
    assert!(scene.is_free());
}

#[test]
fn whoever_comes_second_is_refused_or_waits() {
    let scene = Scene::new();
    let (mut holder, line) = scene.hold(&["--json", "--owner", "sdk", "--id", "ses_9"]);
    let held: Value = serde_json::from_str(&line).expect("one line of JSON");
    assert_eq!(
        (&held["state"], &held["holder"]["ownerId"]),
        (&"held".into(), &"ses_9".into())
    );
    let second = scene.run(&["lease", "hold"], &["--", "true"]);
    assert_eq!(second.code, Some(4), "{second:?}");
    assert!(second.err.contains("held by pid"), "{}", second.err);
    let second = scene.run(
        &["--json", "lease", "hold"],
        &["--wait", "100ms", "--", "true"],
    );
    assert_eq!(
        (second.code, &json(&second)["error"]["kind"]),
        (Some(4), &"held".into())
    );
    let waiter = scene
        .command(&["lease", "hold"], &["--wait", "10s", "--", "echo", "mine"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(holder.stdin.take());
    assert_eq!(holder.wait().expect("it ends").code(), Some(0));
    let waited = waiter.wait_with_output().expect("it ends");
    assert_eq!(
        (waited.status.code(), &*waited.stdout),
        (Some(0), &b"mine\n"[..])
    );
    assert!(scene.is_free());
}

#[test]
fn a_holder_without_a_command_ends_by_time_or_signal() {
    use nix::sys::signal::Signal;
    let scene = Scene::new();
    let timed = scene.run(&["lease", "hold"], &["--for", "50ms"]);
    assert_eq!(timed.code, Some(0), "{timed:?}");
    assert!(timed.out.starts_with("held  "), "{}", timed.out);
    for (signal, code) in [(Signal::SIGTERM, 0), (Signal::SIGINT, 130)] {
        let (mut holder, _) = scene.hold(&[]);
        // Waiting for it would close this.
        let _stdin = holder.stdin.take();
        send(&holder, signal);
        assert_eq!(holder.wait().expect("it ends").code(), Some(code));
        assert!(scene.is_free());
    }
}

#[test]
fn a_signal_reaches_the_command_and_its_orphans_end_before_the_lease() {
    let scene = Scene::new();
    let dir = scene.place.path().display().to_string();
    // The orphan notes whether the lease is still there when it is ended.
    let script = r#"
        cd "$0"
        (trap 'ls S.jsonl.ade-lease > last; exit' TERM; echo $$ > x; setsid sh -c 'trap "ls S.jsonl.ade-lease > orphan; exit" TERM; echo $$ > pid; while :; do sleep 0.05; done' & wait) &
        trap 'echo usr1 > signal' USR1
        trap 'exit 3' TERM
        echo > ready
        while :; do sleep 0.05; done"#;
    let holder = scene
        .command(&["lease", "hold"], &["--", "sh", "-c", script, &dir])
        .spawn();
    let mut holder = holder.expect("it starts");
    scene.told("ready");
    let orphan = scene.told("pid");
    send(&holder, nix::sys::signal::Signal::SIGUSR1);
    assert_eq!(scene.told("signal"), "usr1\n");
    send(&holder, nix::sys::signal::Signal::SIGTERM);
    assert_eq!(holder.wait().expect("it ends").code(), Some(3));
    assert!(!runs(&orphan));
    assert_eq!(scene.told("orphan"), "S.jsonl.ade-lease\n");
    assert!(scene.is_free());
}

#[test]
fn a_command_that_is_too_long_or_loses_its_lease_is_stopped() {
    let scene = Scene::new();
    let over = scene.run(&["lease", "hold"], &["--for", "100ms", "--", "sleep", "60"]);
    assert_eq!(over.code, Some(8), "{over:?}");
    assert!(over.err.contains("its time was over"), "{}", over.err);
    assert!(scene.is_free());

    let dir = scene.place.path().display().to_string();
    let script = "echo $$ > \"$0/pid\"; exec sleep 60";
    let holder = scene
        .command(&["lease", "hold"], &["--", "sh", "-c", script, &dir])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let pid = scene.told("pid");
    fs::remove_file(scene.lease()).expect("it is there");
    let lost = holder.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&lost.stderr);
    assert_eq!(lost.status.code(), Some(1), "{said}");
    assert!(said.contains("was lost: it was removed"), "{said}");
    assert!(!runs(&pid));
}

#[test]
fn a_killed_holder_takes_its_command_along_and_its_lease_is_dead() {
    let scene = Scene::new();
    let dir = scene.place.path().display().to_string();
    let script = "echo $$ > \"$0/pid\"; exec sleep 60";
    let mut holder = scene
        .command(&["lease", "hold"], &["--", "sh", "-c", script, &dir])
        .spawn()
        .expect("it starts");
    let pid = scene.told("pid");
    holder.kill().expect("it runs");
    holder.wait().expect("it ends");
    wait_until("the command is gone", || (!runs(&pid)).then_some(()));
    assert!(!scene.is_free());
    assert_eq!(scene.run(&["lease", "hold"], &["--", "true"]).code, Some(0));
    assert!(scene.is_free());
}

#[test]
fn only_a_dead_lease_is_broken_unless_by_force() {
    let scene = Scene::new();
    let nothing = scene.run(&["lease", "break"], &[]);
    assert_eq!(nothing.code, Some(0), "{nothing:?}");
    assert!(nothing.out.contains("there is no lease"), "{}", nothing.out);
    let (mut holder, _) = scene.hold(&[]);
    let held = scene.run(&["lease", "break"], &[]);
    assert_eq!(held.code, Some(4), "{held:?}");
    assert!(held.err.contains("--force"), "{}", held.err);
    assert!(!scene.is_free());
    let _stdin = holder.stdin.take();
    let forced = scene.run(&["--json", "lease", "break"], &["--force"]);
    assert_eq!(
        (forced.code, &json(&forced)["broken"]),
        (Some(0), &true.into())
    );
    assert!(json(&forced)["warning"].is_string());
    assert_eq!(holder.wait().expect("it notices").code(), Some(1));

    let (mut holder, _) = scene.hold(&[]);
    holder.kill().expect("it runs");
    holder.wait().expect("it ends");
    let dead = scene.run(&["lease", "break"], &[]);
    assert_eq!(dead.code, Some(0), "{dead:?}");
    assert!(dead.out.starts_with("removed  "), "{}", dead.out);
    assert!(scene.is_free());
}

#[test]
fn an_owner_is_shown_and_claimed_once() {
    let scene = Scene::new();
    let none = scene.run(&["owner", "show"], &[]);
    assert_eq!(
        (none.code, none.out.starts_with("none  ")),
        (Some(0), true),
        "{none:?}"
    );
    let claimed = scene.run(&["--json", "owner", "claim"], &["--id", "pty-1"]);
    assert_eq!(
        (claimed.code, &json(&claimed)["ownerSessionId"]),
        (Some(0), &"pty-1".into()),
        "{claimed:?}"
    );
    assert_eq!(
        scene.run(&["owner", "claim"], &["--id", "pty-1"]).code,
        Some(0)
    );
    let other = scene.run(&["owner", "claim"], &["--id", "ses_2", "--owner", "sdk"]);
    assert_eq!(other.code, Some(7), "{other:?}");
    let file = scene.place.path().join("S.jsonl.ade-owner");
    fs::write(&file, "").expect("a damaged one");
    let damaged = scene.run(&["owner", "show"], &[]);
    assert!(damaged.out.starts_with("damaged  "), "{damaged:?}");
    assert_eq!(
        scene.run(&["owner", "claim"], &["--id", "pty-1"]).code,
        Some(7)
    );
    assert_eq!(fs::read_to_string(&file).expect("kept"), "");
    let forced = scene.run(&["owner", "claim"], &["--id", "pty-1", "--force"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    let (mut holder, _) = scene.hold(&[]);
    let held = scene.run(&["owner", "claim"], &["--id", "x", "--force"]);
    assert_eq!(held.code, Some(4), "{held:?}");
    drop(holder.stdin.take());
    holder.wait().expect("it ends");
    let missing = scene
        .place
        .run(&["owner", "claim", "/no/such.jsonl", "--id", "x"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
}

#[test]
fn the_store_is_listed_and_checked_by_line() {
    let place = Place::new();
    let root = place.path().join("store");
    let lane = root.join("--lane--");
    fs::create_dir_all(&lane).expect("a folder");
    let write = |name: &str, id: &str, cwd: &str, rest: &str| {
        let header = format!(r#"{{"type":"session","version":3,"id":"{id}","cwd":"{cwd}"}}"#);
        let mut file = fs::File::create(lane.join(name)).expect("a file");
        file.write_all(format!("{header}\n{rest}").as_bytes())
            .expect("room");
        lane.join(name)
    };
    let sound = write("a.jsonl", "s-a", "/lane/one", "");
    let bad = write("b.jsonl", "s-b", "/lane/two", "not json\n{\"type\":\"x\",");
    let run = |words: &[&str]| {
        let mut command = place.command(words);
        command.env("PI_CODING_AGENT_SESSION_DIR", &root);
        ran(command)
    };
    let listed = run(&["--json", "store", "list"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let document = json(&listed);
    assert_eq!(document["source"], "PI_CODING_AGENT_SESSION_DIR");
    let sessions = document["sessions"].as_array().expect("a list");
    let of = |at: usize| (&sessions[at]["id"], &sessions[at]["torn"]);
    assert_eq!(of(0), (&"s-a".into(), &false.into()));
    assert_eq!(of(1), (&"s-b".into(), &true.into()));
    let table = run(&["store", "list", "--lane", "/lane/two"]);
    let lines: Vec<_> = table.out.lines().collect();
    assert_eq!(lines.len(), 2, "{table:?}");
    assert!(
        lines[0].starts_with("ID ") && lines[1].starts_with("s-b "),
        "{table:?}"
    );

    let before = fs::read(&bad).expect("it is there");
    let checked = run(&["store", "check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.out.contains("  line 2: "), "{}", checked.out);
    assert!(
        checked.out.contains("torn after 12 bytes"),
        "{}",
        checked.out
    );
    assert_eq!(fs::read(&bad).expect("it is there"), before);
    let one = run(&["--json", "store", "check", &sound.display().to_string()]);
    assert_eq!(
        (one.code, &json(&one)["damaged"]),
        (Some(0), &0.into()),
        "{one:?}"
    );
    let two = run(&["--json", "store", "check", &bad.display().to_string()]);
    assert_eq!(two.code, Some(1));
    assert_eq!(json(&two)["reports"][0]["badLines"][0]["line"], 2);
    let missing = run(&["store", "check", "/no/such.jsonl"]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
}
