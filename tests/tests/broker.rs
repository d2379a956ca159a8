//! The life of the broker around its endpoint: many starts at once, modes, other
//! users, closed terminals, and what must be in no log.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, executable, report, signal};
use ade_tests::commands::within;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::ended;
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

fn started() -> Ade {
    let mut ade = Ade::new();
    ade.serve();
    ade
}

fn case_l03() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/L03-prompt.frames");
    fs::read_to_string(path).unwrap()
}

// ---- one broker

#[test]
fn h02_a_broker_on_its_way_out_leaves_its_successors_socket_alone() {
    let mut old = started();
    let socket = old.socket();
    // Another broker takes the path over. The old one would bind it again if it
    // looked before that.
    signal(old.broker_pid(), Signal::SIGSTOP);
    fs::remove_file(&socket).unwrap();
    let new = Ade::new();
    let path = socket.display().to_string();
    let mut serving = new
        .command(&["serve", "--socket", &path])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_true("the successor answers", || {
        let mut status = new.command(&["--json", "status"]);
        let output = status.env("ADE_RPC_SOCKET_PATH", &path).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["runtime"]["pid"] == serving.id()
    });
    signal(old.broker_pid(), Signal::SIGCONT);
    assert_eq!(old.stop_broker(), Some(0));
    let mut rpc = Rpc::connect(&socket, "a test");
    let status = rpc.call("broker.status", json!({}));
    assert_eq!(status["runtime"]["pid"], serving.id());
    signal(i32::try_from(serving.id()).unwrap(), Signal::SIGTERM);
    assert!(serving.wait().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn h04_twenty_commands_at_once_start_one_broker() {
    let ade = Ade::new();
    // A leftover socket that nobody listens on.
    fs::create_dir_all(ade.home().join("sock")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(ade.socket()).unwrap());
    let running: Vec<_> = (0..20)
        .map(|n| {
            let args: &[&str] = match n % 4 {
                0 => &["--json", "ps"],
                1 => &["status", "--json"],
                _ => &["--json", "actions", "run", "broker.status"],
            };
            let mut command = ade.command(args);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            (n, command.spawn().unwrap())
        })
        .collect();
    let mut pids = std::collections::BTreeSet::new();
    for (n, child) in running {
        let output = child.wait_with_output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let code = output.status.code().unwrap();
        // `status` starts nothing: it may come too early.
        let expected: &[i32] = if n % 4 == 1 { &[0, 5] } else { &[0] };
        assert!(expected.contains(&code), "{n}: {code} {stdout}");
        let value: Value = serde_json::from_str(&stdout).unwrap();
        if let Some(pid) = value["runtime"]["pid"].as_i64() {
            pids.insert(pid);
        }
    }
    assert_eq!(pids.len(), 1, "{pids:?}");
    let status = ade.json(&["status"]);
    assert_eq!(status["runtime"]["pid"].as_i64(), pids.first().copied());
    let serving = ade.describe();
    assert_eq!(serving.len(), 1, "{serving:?}");
    ade.expect_code(0, &["stop"]);
    assert_eq!(ade.describe(), Vec::<String>::new());
}

#[test]
fn two_brokers_at_once_are_one() {
    let ade = started();
    let (_, stderr) = ade.expect_code(3, &["serve"]);
    assert!(stderr.contains(&ade.broker_pid().to_string()), "{stderr}");
    assert!(stderr.contains("ade stop"), "{stderr}");
    ade.rpc().request("ade/ping", json!({})).unwrap();
}

#[test]
fn h07_everything_is_private_whatever_the_umask() {
    let mut ade = Ade::new();
    let seen = AtomicBool::new(false);
    let socket = ade.socket();
    // The socket is private from the first moment, not only later.
    let first = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            loop {
                let over = seen.load(Ordering::Relaxed);
                if let Ok(found) = fs::metadata(&socket) {
                    return found.permissions().mode() & 0o777;
                }
                assert!(!over, "the broker answers on no socket");
            }
        });
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "umask 0; exec \"$0\" \"$@\""]);
        ade.serve_within(shell);
        seen.store(true, Ordering::Relaxed);
        watching.join().unwrap()
    });
    assert_eq!(first & 0o077, 0, "{first:o}");
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.turn(&chat, "hello");
    let mut folders = vec![ade.home()];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let Ok(found) = fs::symlink_metadata(entry.path()) else {
                continue;
            };
            let mode = found.permissions().mode() & 0o777;
            let allowed = if found.is_dir() { 0o700 } else { 0o600 };
            count += 1;
            assert_eq!(mode & !allowed, 0, "{mode:o} {}", entry.path().display());
            if found.is_dir() {
                folders.push(entry.path());
            } else if found.file_type().is_socket() {
                assert_eq!(mode, 0o600, "{}", entry.path().display());
            }
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn h07_another_user_is_refused_even_where_the_files_let_him_in() {
    if !nix::unistd::geteuid().is_root() {
        report("skipped: h07 with another user needs root");
        return;
    }
    const NOBODY: u32 = 65_534;
    let mut ade = Ade::new();
    let open = ade.root().join("open");
    fs::create_dir(&open).unwrap();
    let socket = open.join("ade.sock");
    let path = socket.display().to_string();
    ade = ade.with_env("ADE_RPC_SOCKET_PATH", &path);
    ade.serve();
    for folder in [ade.root(), &open] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let mut status = ade.command(&["--json", "status"]);
    status.uid(NOBODY).gid(NOBODY).current_dir("/");
    let output = match status.output() {
        Ok(output) => output,
        Err(error) => {
            report(&format!(
                "skipped: nobody cannot run {}: {error}",
                executable().display()
            ));
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_ne!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("runtime"), "{said}");
    let log = ade.home().join("logs/ade-serve.log");
    wait_true("the refusal is logged", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("another user was refused"))
    });
    // The owner is served as before.
    Rpc::connect(&socket, "a test")
        .request("ade/ping", json!({}))
        .unwrap();
}

#[test]
fn h13_a_closed_terminal_and_closed_pipes_leave_the_broker_alone() {
    let mut ade = Ade::new();
    let terminal = nix::pty::openpty(None, None).unwrap();
    // As a shell's foreground job: session leader with that terminal.
    ade.serve_with(|command| {
        let mut leader = Command::new("setsid");
        leader.arg("--ctty");
        let mut leader = within(leader, &command);
        leader.stdin(Stdio::from(terminal.slave.try_clone().unwrap()));
        leader.stdout(Stdio::from(terminal.slave.try_clone().unwrap()));
        leader.stderr(Stdio::from(terminal.slave.try_clone().unwrap()));
        leader
    });
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let (turn, after) = ade.send(&mut rpc, &chat, "!words 1000000 20");
    rpc.subscribe(&chat, after);
    rpc.event("streaming", |e| e["event"]["type"] == "text");
    drop(terminal);
    signal(ade.broker_pid(), Signal::SIGHUP);
    let log = ade.home().join("logs/ade-serve.log");
    wait_true("SIGHUP is seen", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("SIGHUP is ignored"))
    });
    rpc.event("streaming goes on", |e| e["event"]["type"] == "text");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&turn);
    assert_eq!(ended(&ade.turn(&chat, "still there?")), "completed");
    assert_eq!(ade.stop_broker(), Some(0));
}

#[test]
fn h13_a_broker_whose_standard_error_nobody_reads_goes_on() {
    let ade = Ade::new();
    let mut serving = ade
        .command(&["serve"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before the broker says its first word on it.
    drop((serving.stdout.take(), serving.stderr.take()));
    wait_true("the broker answers", || {
        UnixStream::connect(ade.socket()).is_ok()
    });
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    assert_eq!(
        ended(&ade.turn(&chat, "!crash-once 3\n!emit here")),
        "completed"
    );
    drop(rpc);
    signal(i32::try_from(serving.id()).unwrap(), Signal::SIGTERM);
    assert_eq!(serving.wait().unwrap().code(), Some(0));
}

// ---- what must stand nowhere

#[test]
fn l03_l06_prompts_are_in_no_log_no_status_and_no_command_line() {
    let mut ade = Ade::new().with_env("ADE_LOG", "trace");
    ade.serve();
    let case = case_l03();
    let case: Value = serde_json::from_str(case.trim()).unwrap();
    let prompt = case["text"].as_str().unwrap();
    let canaries = ["CANARY-tok-0123456789abcdef", "CANARY-pw"];
    assert!(canaries.iter().all(|canary| prompt.contains(canary)));
    let mut rpc = ade.rpc();
    let lane = ade.lane("lane");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 700}));
    let nowhere = || {
        let mut lines = Vec::new();
        for identity in ade.processes() {
            lines.push(ade_tests::ade::command_line(identity.pid.get()));
            let environ = fs::read(format!("/proc/{}/environ", identity.pid)).unwrap_or_default();
            lines.push(String::from_utf8_lossy(&environ).into_owned());
        }
        let text = lines.join("\n");
        for canary in canaries {
            assert!(!text.contains(canary), "{text}");
        }
    };
    // Plain, steered, with bad frames, with a crash, a silence, a queue, a card.
    ade.turn(&chat, prompt);
    let noisy = format!("!noise {prompt}\n!malformed 3\n!tool bash {prompt}\n!words 1000000 20");
    let (turn, after) = ade.send(&mut rpc, &chat, &noisy);
    rpc.subscribe(&chat, after);
    rpc.event("streaming", |e| e["event"]["type"] == "text");
    rpc.call("chat.steer", json!({"sessionId": chat, "prompt": prompt}));
    let (queued, _) = ade.send(&mut rpc, &chat, prompt);
    nowhere();
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&turn);
    rpc.until_done(&queued);
    ade.turn(&chat, &format!("!emit {prompt}\n!crash 3"));
    ade.turn(&chat, &format!("!hang-once\n!emit {prompt}"));
    let (turn, after) = ade.send(&mut rpc, &chat, &format!("!card {prompt} | {prompt}"));
    rpc.subscribe(&chat, after);
    rpc.card();
    nowhere();
    let (status, _) = ade.expect_code(0, &["--json", "status"]);
    let (doctor, _) = ade.expect_code(0, &["--json", "doctor"]);
    let (ps, _) = ade.expect_code(0, &["--json", "ps"]);
    for canary in canaries {
        for text in [&status, &doctor, &ps] {
            assert!(!text.contains(canary), "{text}");
        }
    }
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&turn);
    drop(rpc);
    assert_eq!(ade.stop_broker(), Some(0));
    // The transcript, the agent's own file and the state hold what was said;
    // nothing else does.
    let home = ade.home();
    for canary in canaries {
        for path in ade.files_with(canary) {
            let inside = path.strip_prefix(&home).unwrap();
            let may = ["transcripts", "agents", "state.db", "state.db-wal"]
                .iter()
                .any(|name| inside.starts_with(name));
            assert!(may, "{canary} is in {}", path.display());
        }
    }
}

#[test]
fn l01_workers_inherit_no_secret_of_the_broker() {
    let mut ade = Ade::new()
        .with_env("BROKER_TOKEN", "s3cr3t-canary")
        .with_env("OTHER_PROVIDER_KEY", "canary2")
        .with_env("ANTHROPIC_API_KEY", "canary3");
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let script =
        "!env BROKER_TOKEN\n!env OTHER_PROVIDER_KEY\n!env ANTHROPIC_API_KEY\n!env ADE_HOME";
    assert_eq!(text_of(&ade.turn(&chat, script)), "unset".repeat(4));
    for identity in ade.processes() {
        let pid = identity.pid.get();
        if pid == ade.broker_pid() {
            continue;
        }
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environ = String::from_utf8_lossy(&environ).into_owned();
        assert!(!environ.contains("canary"), "{environ}");
    }
}

#[test]
fn many_connections_come_and_go_and_leave_no_descriptor() {
    let ade = started();
    let fds = || {
        let status = ade.rpc().call("broker.status", json!({}));
        status["fds"][0].as_u64().unwrap()
    };
    let before = fds();
    for _ in 0..5 {
        let clients: Vec<Rpc> = (0..60).map(|_| ade.rpc()).collect();
        drop(clients);
    }
    let bound = Duration::from_secs(10);
    ade_tests::wait::wait_within("all descriptors are closed", bound, || {
        (fds() <= before + 5).then_some(())
    });
    drop(ade);
}

/// Whoever sends one meant another process, or wanted to look.
#[test]
fn a_signal_that_means_nothing_ends_no_broker_and_is_told_of_once() {
    let ade = started();
    let mut rpc = ade.rpc();
    let pid = ade.broker_pid();
    let stray = [
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGVTALRM,
        Signal::SIGPROF,
        Signal::SIGIO,
        Signal::SIGXCPU,
        Signal::SIGXFSZ,
    ];
    let told = |name: &str| {
        let logs = fs::read_dir(ade.home().join("logs")).expect("the logs");
        let texts = logs.flatten().map(|log| fs::read_to_string(log.path()));
        let word = format!("{name} is ignored:");
        texts
            .flatten()
            .map(|text| text.matches(&word).count())
            .sum::<usize>()
    };
    for sent in stray {
        signal(pid, sent);
        wait_true(&format!("{sent} is told of"), || told(sent.as_str()) == 1);
        signal(pid, sent);
    }
    signal(pid, Signal::SIGPIPE);
    rpc.request("ade/ping", json!({})).expect("it lives");
    assert_eq!(ade.broker_pid(), pid);
    for sent in stray {
        assert_eq!(told(sent.as_str()), 1, "{sent}");
    }
}

#[test]
fn a_provider_that_is_not_there_has_the_exit_code_of_its_kind() {
    let ade = started();
    let lane = ade.lane("lane").display().to_string();
    let args = [
        "--json",
        "run",
        "--provider",
        "claude",
        "--lane",
        &lane,
        "go",
    ];
    let (stdout, _) = ade.expect_code(6, &args);
    assert!(stdout.contains("provider_not_usable"), "{stdout}");
}
