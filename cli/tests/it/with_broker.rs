//! Commands against a broker that they start themselves, on the `scripted`
//! provider.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Place, Ran, ran, wait_until};

fn scripted(place: &Place, more: &[&str], prompt: &str) -> Ran {
    let mut arguments = vec!["run", "--provider", "scripted"];
    arguments.extend_from_slice(more);
    arguments.push(prompt);
    let mut command = place.command(&arguments);
    command.current_dir(place.path());
    ran(command)
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn sessions(place: &Place) -> Vec<Value> {
    json(&place.run(&["ps", "--json"]))["sessions"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

fn interrupt(child: &Child) {
    let pid = i32::try_from(child.id()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("a signal");
}

#[test]
fn a_run_streams_the_answer_alone_to_standard_output() {
    let place = Place::new();
    let hello = scripted(&place, &[], "Hello there");
    assert_eq!(hello.code, Some(0), "{hello:?}");
    assert_eq!(hello.out, "You said: Hello there\n");
    assert!(hello.err.contains("ade attach"), "{}", hello.err);

    let quiet = scripted(&place, &["--quiet"], "!reasoning hm\n!emit Hi");
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("Hi\n", ""));

    let lines = scripted(&place, &["--json"], "!emit Hi");
    assert_eq!(lines.code, Some(0), "{lines:?}");
    let kinds: Vec<String> = lines
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an envelope"))
        .map(|envelope| {
            envelope["event"]["type"]
                .as_str()
                .expect("a type")
                .to_owned()
        })
        .collect();
    assert_eq!(kinds.last().map(String::as_str), Some("done"), "{kinds:?}");
    assert!(kinds.contains(&"text".to_owned()), "{kinds:?}");
}

#[test]
fn a_failed_turn_says_why_and_ends_with_a_code() {
    let place = Place::new();
    let failed = scripted(&place, &[], "!emit before\n!error it broke");
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert_eq!(failed.out, "before\n");
    assert!(failed.err.contains("it broke"), "{}", failed.err);
    let crashed = scripted(&place, &[], "!emit before\n!crash 7");
    assert_eq!(crashed.code, Some(1), "{crashed:?}");
    assert!(crashed.err.contains("exit code 7"), "{}", crashed.err);
    let unknown = place.run(&["run", "--provider", "nobody", "--lane", "/", "hello"]);
    assert!(matches!(unknown.code, Some(2 | 6)), "{unknown:?}");
    assert!(unknown.err.contains("nobody"), "{}", unknown.err);
}

#[test]
fn without_a_person_cards_are_denied_visibly_unless_allowed() {
    let place = Place::new();
    let script = "!card Run it | rm -r build | bash\n!emit after";
    let denied = scripted(&place, &[], script);
    assert_eq!(denied.code, Some(0), "{denied:?}");
    assert!(
        denied.err.contains("denied") && denied.err.contains("--yes"),
        "{}",
        denied.err
    );
    assert!(denied.err.contains("✗ bash"), "{}", denied.err);
    let allowed = scripted(&place, &["--yes"], script);
    assert_eq!(allowed.code, Some(0), "{allowed:?}");
    assert!(allowed.err.contains("✓ bash"), "{}", allowed.err);
}

/// Waits for the one open card and gives its id.
fn open_card(place: &Place) -> String {
    wait_until("a card is open", || {
        let list = json(&place.run(&["cards", "--json"]));
        list["cards"][0]["cardId"].as_str().map(str::to_owned)
    })
}

#[test]
fn cards_are_listed_and_answered_by_anybody_once() {
    let place = Place::new();
    let script = "!card Run it | rm -r build | bash\n!ask Which? | red,green\n!secret Password?\n!emit after";
    let create = ["chat", "create", "--provider", "scripted", "--lane", "/"];
    let id = place.run(&create).out.trim().to_owned();
    assert_eq!(place.run(&["chat", "send", &id, script]).code, Some(0));

    let first = open_card(&place);
    assert!(place.run(&["cards"]).out.contains("Run it"));
    let odd = place.run(&["answer", &first, "perhaps"]);
    assert_eq!(odd.code, Some(2), "{odd:?}");
    assert!(odd.err.contains("allow_session"), "{}", odd.err);
    assert_eq!(
        place
            .run(&["answer", &first, "allow", "--session", &id])
            .code,
        Some(0)
    );
    let again = place.run(&["answer", &first, "allow"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.err.contains("already answered"), "{}", again.err);

    let second = open_card(&place);
    assert_eq!(place.run(&["answer", &second, "green"]).code, Some(0));
    let third = open_card(&place);
    let shown = place.run(&["answer", &third, "hunter2"]);
    assert_eq!(shown.code, Some(2), "{shown:?}");
    assert!(shown.err.contains("standard input"), "{}", shown.err);
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(b"hunter2\n").expect("a line");
    drop(writer);
    let mut secret = place.command(&["answer", &third, "-"]);
    secret.stdin(reader);
    assert_eq!(ran(secret).code, Some(0));
    wait_until("the turn is over", || {
        (sessions(&place)[0]["lastStatus"] == "completed").then_some(())
    });
    let transcript = place.run(&["chat", "show", &id, "--json"]);
    assert!(transcript.out.contains("green") && !transcript.out.contains("hunter2"));
}

/// A command with a terminal for what it asks and what is typed.
struct Terminal {
    child: Child,
    keys: File,
    seen: std::sync::Arc<std::sync::Mutex<String>>,
}

impl Terminal {
    fn start(place: &Place, arguments: &[&str]) -> Self {
        let pty = openpty(None, None).expect("a terminal");
        let slave = File::from(pty.slave);
        let keys = File::from(pty.master);
        let child = place
            .command(arguments)
            .current_dir(place.path())
            .stdin(slave.try_clone().expect("a copy"))
            .stderr(slave)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the executable starts");
        let seen = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let (shown, mut screen) = (seen.clone(), keys.try_clone().expect("a copy"));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                shown
                    .lock()
                    .expect("a screen")
                    .push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { child, keys, seen }
    }

    fn screen(&self) -> String {
        self.seen.lock().expect("a screen").clone()
    }

    fn wait_for(&self, text: &str) {
        wait_until(text, || self.screen().contains(text).then_some(()));
    }

    fn type_line(&mut self, line: &str) {
        self.keys
            .write_all(format!("{line}\n").as_bytes())
            .expect("keys");
    }

    fn end(mut self) -> (Option<i32>, String, String) {
        let mut out = String::new();
        let mut stdout = self.child.stdout.take().expect("a pipe");
        stdout.read_to_string(&mut out).expect("text");
        let code = self.child.wait().expect("its end").code();
        (code, out, self.screen())
    }
}

#[test]
fn a_person_is_asked_on_the_terminal() {
    let place = Place::new();
    let script = "!card Run it | rm -r build | bash\n!ask Which colour? | red,green\n!secret Password?\n!emit after";
    let mut terminal = Terminal::start(&place, &["run", "--provider", "scripted", script]);
    terminal.wait_for("[y] allow");
    terminal.type_line("perhaps");
    terminal.wait_for("please type y, a or n");
    terminal.type_line("y");
    terminal.wait_for("[1-2");
    terminal.type_line("2");
    terminal.wait_for("(not shown");
    terminal.type_line("hunter2");
    let (code, out, screen) = terminal.end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(out.contains("after"), "{out}");
    assert!(screen.contains("✓ bash"), "{screen}");
    assert!(!screen.contains("hunter2"), "{screen}");
}

/// A run whose answer has begun.
fn streaming(place: &Place, script: &str) -> Child {
    let child = place
        .command(&["run", "--provider", "scripted", "--lane", "/", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable starts");
    wait_until("the answer begins", || {
        (sessions(place).last()?["state"] == "streaming").then_some(())
    });
    child
}

#[test]
fn ctrl_c_ends_the_turn() {
    let place = Place::new();
    let child = streaming(&place, "!emit here\n!hang");
    interrupt(&child);
    let ended = child.wait_with_output().expect("its end");
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{err}");
    assert!(err.contains("interrupted"), "{err}");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "here\n");
}

#[test]
fn a_second_ctrl_c_leaves_at_once() {
    let place = Place::new();
    let child = streaming(&place, "!emit here\n!stop-reading\n!hang");
    let pid = child.id();
    interrupt(&child);
    // The signals must not melt into one.
    wait_until("the first was taken", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let pending = |line: &&str| line.starts_with("ShdPnd:") && line.ends_with("0000");
        status.lines().any(|line| pending(&line)).then_some(())
    });
    interrupt(&child);
    let ended = child.wait_with_output().expect("its end");
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{err}");
}

#[test]
fn attach_shows_what_was_and_sends_what_is_typed() {
    let place = Place::new();
    assert_eq!(scripted(&place, &[], "first words").code, Some(0));
    let id = sessions(&place)[0]["sessionId"]
        .as_str()
        .expect("an id")
        .to_owned();
    let suffix = &id[id.len() - 12..];
    let mut terminal = Terminal::start(&place, &["attach", suffix]);
    terminal.wait_for("› first words");
    terminal.type_line("second words");
    terminal.wait_for("› second words");
    wait_until("the second turn is over", || {
        let all = sessions(&place);
        let over = all[0]["state"] == "idle" && all[0]["turnId"].is_null();
        let shown = place.run(&["chat", "show", suffix]).out;
        (over && shown.contains("You said: second words")).then_some(())
    });
    terminal.type_line("/wat");
    terminal.wait_for("/steer TEXT");
    terminal.type_line("/quit");
    let (code, out, screen) = terminal.end();
    assert_eq!(code, Some(0), "{screen}");
    assert!(
        out.contains("You said: first words\n") && out.contains("You said: second words"),
        "{out}"
    );
}

#[test]
fn chats_are_named_by_any_unique_piece_of_their_id() {
    let place = Place::new();
    let create = [
        "chat",
        "create",
        "--provider",
        "scripted",
        "--lane",
        "/",
        "--json",
    ];
    let ids: Vec<String> = (0..2)
        .map(|_| {
            json(&place.run(&create))["sessionId"]
                .as_str()
                .expect("an id")
                .to_owned()
        })
        .collect();
    for (given, code, word) in [
        (ids[0].as_str(), 0, ids[0].as_str()),
        (&ids[1][ids[1].len() - 12..], 0, ids[1].as_str()),
        ("ses_", 2, "names 2 chats"),
        ("nothing", 2, "no chat `nothing`"),
    ] {
        let shown = place.run(&["chat", "show", given, "--json"]);
        assert_eq!(shown.code, Some(code), "{given}: {shown:?}");
        assert!(shown.out.contains(word), "{given}: {shown:?}");
    }
    let waited = place.run(&["chat", "send", &ids[0], "hello", "--wait"]);
    assert_eq!(
        (waited.code, waited.out.as_str()),
        (Some(0), "You said: hello\n"),
        "{waited:?}"
    );
    assert_eq!(place.run(&["chat", "delete", &ids[1]]).code, Some(0));
    assert_eq!(sessions(&place).len(), 1);
    assert_eq!(place.run(&["chat", "stop", &ids[0]]).code, Some(0));
    assert_eq!(place.run(&["chat", "abort", &ids[0]]).code, Some(0));
}

#[test]
fn a_second_broker_says_who_runs_and_stop_ends_the_first() {
    let place = Place::new();
    assert_eq!(place.run(&["ps"]).code, Some(0));
    let status = json(&place.run(&["status", "--json"]));
    let pid = status["runtime"]["pid"]
        .as_u64()
        .expect("a pid")
        .to_string();
    let second = place.run(&["serve"]);
    assert_eq!(second.code, Some(3), "{second:?}");
    assert!(
        second.err.contains(&pid) && second.err.contains("ade stop"),
        "{}",
        second.err
    );
    assert_eq!(place.run(&["doctor"]).code, Some(0));
    assert_eq!(place.run(&["stop"]).code, Some(0));
    assert_eq!(place.run(&["status"]).code, Some(5));
    assert_eq!(place.run(&["stop"]).code, Some(0));
}

fn broker_pid(place: &Place) -> i32 {
    let status = json(&place.run(&["status", "--json"]));
    i32::try_from(status["runtime"]["pid"].as_u64().expect("a pid")).expect("a pid")
}

#[test]
fn a_run_outlives_a_broker_that_crashes() {
    let place = Place::new();
    let child = streaming(&place, "!words 100 20");
    kill(Pid::from_raw(broker_pid(&place)), Signal::SIGKILL).expect("a signal");
    let ended = child.wait_with_output().expect("its end");
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    let words = String::from_utf8_lossy(&ended.stdout);
    let expected: Vec<String> = (1..=100).map(|number| format!("word{number}")).collect();
    assert_eq!(words.split_whitespace().collect::<Vec<_>>(), expected);
}

#[test]
fn stop_in_the_middle_of_a_turn_stays_true() {
    let place = Place::new();
    let child = streaming(&place, "!words 1000 20");
    assert_eq!(place.run(&["stop"]).code, Some(0));
    let ended = child.wait_with_output().expect("its end");
    assert_eq!(
        ended.status.code(),
        Some(130),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert_eq!(place.run(&["status"]).code, Some(5));
}

#[test]
fn stop_ends_what_a_crashed_broker_left() {
    let place = Place::new();
    let create = ["chat", "create", "--provider", "scripted", "--lane", "/"];
    let id = place.run(&create).out.trim().to_owned();
    assert_eq!(
        place.run(&["chat", "send", &id, "!emit here\n!hang"]).code,
        Some(0)
    );
    let worker = wait_until("its worker streams", || {
        let chat = sessions(&place).pop()?;
        (chat["state"] == "streaming")
            .then(|| chat["workerPid"].as_u64())
            .flatten()
    });
    kill(Pid::from_raw(broker_pid(&place)), Signal::SIGKILL).expect("a signal");
    let doctor = place.run(&["doctor"]);
    assert!(doctor.out.contains(&worker.to_string()), "{}", doctor.out);
    assert_eq!(place.run(&["stop"]).code, Some(0));
    let worker = Pid::from_raw(i32::try_from(worker).expect("a pid"));
    wait_until("the worker is gone", || {
        kill(worker, None).is_err().then_some(())
    });
    assert_eq!(place.run(&["status"]).code, Some(5));
}

#[test]
fn h04_forty_commands_at_once_end_up_with_one_broker() {
    let place = Place::new();
    let children: Vec<Child> = (0..40)
        .map(|_| {
            place
                .command(&["actions", "run", "broker.status"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the executable starts")
        })
        .collect();
    let mut pids = BTreeSet::new();
    for child in children {
        let ended = child.wait_with_output().expect("its end");
        let err = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{err}");
        let status: Value = serde_json::from_slice(&ended.stdout).expect("a document");
        pids.insert(status["runtime"]["pid"].as_u64());
    }
    assert_eq!(pids.len(), 1, "{pids:?}");
}

#[test]
fn logs_are_private_and_know_no_prompts() {
    let place = Place::new();
    assert_eq!(
        scripted(&place, &[], "a very private sentence").code,
        Some(0)
    );
    assert_eq!(place.run(&["stop"]).code, Some(0));
    let logs = place.home().join("logs");
    let mut seen = 0;
    for entry in fs::read_dir(logs).expect("a folder") {
        let entry = entry.expect("a file");
        let mode = entry.metadata().expect("its mode").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
        let text = fs::read_to_string(entry.path()).expect("text");
        assert!(!text.contains("private sentence"), "{text}");
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn the_demo_goes_right_and_leaves_nothing() {
    let place = Place::new();
    let mut command = place.command(&["demo", "--json"]);
    command.env("TMPDIR", place.path());
    let demo = ran(command);
    let report = json(&demo);
    assert_eq!(demo.code, Some(0), "{report:#}");
    assert_eq!(report["leftoverProcesses"], 0);
    assert_eq!(report["sessions"].as_array().map(Vec::len), Some(6));
    assert!(report["seconds"].as_f64().expect("a figure") < 20.0);
    assert!(!place.home().exists(), "the user's home is not touched");
    assert_eq!(
        fs::read_dir(place.path()).expect("a folder").count(),
        0,
        "the folder is gone"
    );
}
