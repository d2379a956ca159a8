//! The control endpoint: its lines, its roles, its slow readers, and the life
//! of the broker around it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, executable, is_alive, report, signal};
use ade_tests::rpc::{Deaf, Rpc, text_of};
use ade_tests::turns::{ended, of_type};
use ade_tests::wait::{PATIENCE, wait_true, wait_until};
use serde_json::{Value, json};

fn started() -> Ade {
    let mut ade = Ade::new();
    ade.serve();
    ade
}

/// A client that sees the bytes of each line.
struct Raw {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Raw {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    fn initialized(socket: &Path) -> Self {
        let mut raw = Self::connect(socket);
        let params = r#"{"protocolVersion":2,"clientName":"raw"}"#;
        raw.say(&format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"ade/initialize","params":{params}}}"#
        ));
        raw.hear();
        raw
    }

    fn say(&mut self, line: &str) {
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn hear_json(&mut self) -> Value {
        let line = self.hear();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }
}

fn fixture(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");
    fs::read_to_string(Path::new(folder).join(name)).unwrap()
}

// ---- lines

#[test]
fn i01_ids_come_back_exactly_as_they_were_sent() {
    let ade = started();
    let mut raw = Raw::initialized(&ade.socket());
    // The handed case, in our words: the same number as a number and a string.
    let mut ids = Vec::new();
    for line in fixture("I01-int-and-string-id.jsonl").lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        ids.push(value["id"].to_string());
    }
    let more = [
        "1.50",
        "-0",
        "1e3",
        "\"\\u0041\"",
        "18446744073709551616",
        "\"\"",
    ];
    ids.extend(more.map(str::to_owned));
    let lines: String = ids
        .iter()
        .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ade/ping\"}}\n"))
        .collect();
    raw.stream.write_all(lines.as_bytes()).unwrap();
    let mut heard: Vec<String> = ids
        .iter()
        .map(|_| {
            let line = raw.hear();
            let rest = line.strip_prefix("{\"jsonrpc\":\"2.0\",\"id\":").unwrap();
            rest.strip_suffix(",\"result\":{}}").unwrap().to_owned()
        })
        .collect();
    heard.sort();
    ids.sort();
    assert_eq!(heard, ids);
}

#[test]
fn i01_an_id_that_is_in_use_is_refused_and_free_again_afterwards() {
    let config = "[providers.scripted]\ndispose_grace_ms = 300\nterm_to_kill_ms = 300\n";
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let tree = ade.grow(&mut rpc, &chat, "!ignore-term\n");
    let mut raw = Raw::initialized(&ade.socket());
    let stop = json!({"name": "chat.stop", "arguments": {"sessionId": chat}});
    let request = |method: &str, params: &Value| {
        json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string()
    };
    // Stopping takes a while; another request of the same id does not wait.
    raw.say(&request("ade/actions/call", &stop));
    ade.wait_state(&chat, "stopping");
    raw.say(&request("ade/ping", &json!({})));
    let refused = raw.hear_json();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(7), &json!(-32600))
    );
    let stopped = raw.hear_json();
    assert_eq!(stopped["result"]["sessionId"], chat.as_str());
    assert_eq!(tree.alive(), Vec::<i32>::new());
    raw.say(&request("ade/ping", &json!({})));
    assert_eq!(raw.hear_json()["result"], json!({}));
}

#[test]
fn i04_what_is_no_request_gets_an_error_and_the_connection_stays() {
    let ade = started();
    let mut raw = Raw::initialized(&ade.socket());
    let text = fixture("I04-invalid-requests.jsonl");
    raw.stream.write_all(text.as_bytes()).unwrap();
    raw.stream.write_all(&[0xff, 0xfe, b'\n']).unwrap();
    raw.say(r#"{"jsonrpc":"2.0","id":"end","method":"ade/ping"}"#);
    let mut heard = Vec::new();
    loop {
        let answer = raw.hear_json();
        if answer["id"] == "end" && answer["result"] == json!({}) {
            break;
        }
        heard.push(format!("{} {}", answer["id"], answer["error"]["code"]));
    }
    // What came before may still be answered: requests run side by side.
    while heard.len() < 8 {
        let answer = raw.hear_json();
        heard.push(format!("{} {}", answer["id"], answer["error"]["code"]));
    }
    heard.sort();
    let expected = [
        "100 -32600",
        "101 -32602",
        "102 -32601",
        "103 -32601",
        "99 -32600",
        "null -32700",
        "null -32700",
        "null -32700",
    ];
    assert_eq!(heard, expected);
    raw.say(r#"{"jsonrpc":"2.0","id":"again","method":"ade/ping"}"#);
    assert_eq!(raw.hear_json()["id"], "again");
}

#[test]
fn deep_and_long_lines_cost_only_themselves() {
    let ade = started();
    let mut raw = Raw::initialized(&ade.socket());
    raw.say(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)));
    assert_eq!(raw.hear_json()["error"]["code"], -32700);
    // Its id can be read all the same.
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    raw.say(&format!(
        r#"{{"jsonrpc":"2.0","params":{{"x":{deep}}},"id":"deep"}}"#
    ));
    let answer = raw.hear_json();
    assert_eq!(
        (&answer["error"]["code"], &answer["id"]),
        (&json!(-32700), &json!("deep"))
    );
    let long = vec![b'x'; 17 * 1024 * 1024];
    raw.stream.write_all(&long).unwrap();
    raw.say("");
    let answer = raw.hear_json();
    assert_eq!(answer["error"]["code"], -32600);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("16 MiB"), "{message}");
    raw.say(r#"{"jsonrpc":"2.0","id":1,"method":"ade/ping"}"#);
    assert_eq!(raw.hear_json()["id"], 1);
}

#[test]
fn nothing_is_done_before_initialize() {
    let ade = started();
    let mut early = Rpc::connect_raw(&ade.socket());
    let lane = ade.lane("lane").display().to_string();
    let create = json!({"provider": "scripted", "lane": lane});
    let calls = [
        (
            "ade/actions/call",
            json!({"name": "chat.create", "arguments": create}),
        ),
        (
            "ade/actions/call",
            json!({"name": "broker.stop", "arguments": {}}),
        ),
        ("ade/actions/list", json!({})),
        ("ade/events/subscribe", json!({})),
    ];
    for (method, params) in calls {
        let error = early.request(method, params).unwrap_err();
        assert_eq!(error.kind, "denied", "{method}");
        assert!(
            error.message.contains("ade/initialize"),
            "{}",
            error.message
        );
    }
    early.request("ade/ping", json!({})).unwrap();
    let list = ade.rpc().call("sessions.list", json!({}));
    assert_eq!(list["sessions"], json!([]));
}

#[test]
fn h10_another_protocol_version_is_refused_with_both_versions_and_the_remedy() {
    let ade = started();
    let case = fixture("H10-hello-newer.jsonl");
    let case: Value = serde_json::from_str(case.lines().next().unwrap()).unwrap();
    // The case's daemon speaks 1 and its client 2; here the broker speaks 2.
    let newer = case["params"]["protocol"].as_u64().unwrap() + 1;
    for theirs in [1, newer] {
        let mut client = Rpc::connect_raw(&ade.socket());
        let hello = json!({"protocolVersion": theirs, "clientName": "other"});
        let error = client.request("ade/initialize", hello).unwrap_err();
        assert_eq!(error.kind, "version", "{}", error.message);
        for word in [format!("version {theirs}"), "speaks 2".to_owned()] {
            assert!(error.message.contains(&word), "{}", error.message);
        }
        let refused = client.try_call("broker.stop", json!({})).unwrap_err();
        assert_eq!(refused.kind, "denied", "not before a version that fits");
    }
    assert!(is_alive(ade.broker_pid()));
}

#[test]
fn what_does_not_exist_or_does_not_fit_is_said_so() {
    let ade = started();
    let mut rpc = ade.rpc();
    let unknown = rpc.try_call("chat.fly", json!({})).unwrap_err();
    assert_eq!((unknown.code, unknown.kind.as_str()), (-32601, "not_found"));
    let lane = ade.lane("lane").display().to_string();
    for arguments in [
        json!({"provider": "scripted"}),
        json!({"provider": "scripted", "lane": lane, "lanes": 2}),
        json!({"provider": "scripted", "lane": 7}),
        json!({"provider": "scripted", "lane": lane, "permission": "yolo"}),
        json!([1, 2]),
    ] {
        let error = rpc.try_call("chat.create", arguments.clone()).unwrap_err();
        assert_eq!(
            (error.code, error.kind.as_str()),
            (-32602, "invalid"),
            "{arguments}"
        );
    }
    let wrong = json!({"afterSequence": 3});
    let error = rpc.request("ade/events/subscribe", wrong).unwrap_err();
    assert_eq!(error.kind, "invalid");
    let nobody = json!({"sessionId": "ses_nobody"});
    let error = rpc.request("ade/events/subscribe", nobody).unwrap_err();
    assert_eq!(error.kind, "not_found");
    let list = rpc.call("sessions.list", json!({}));
    assert_eq!(list["sessions"], json!([]));
}

#[test]
fn every_listed_action_has_a_schema_a_role_and_an_example() {
    let ade = started();
    let mut rpc = ade.rpc();
    let list = rpc.request("ade/actions/list", json!({})).unwrap();
    let actions = list["actions"].as_array().unwrap();
    assert!(actions.len() >= 15, "{}", actions.len());
    for action in actions {
        assert!(action["arguments"].is_object(), "{action}");
        assert!(action["result"].is_object(), "{action}");
        assert!(action["example"].is_object(), "{action}");
        let roles = ["observer", "agent", "cto"];
        assert!(
            roles.contains(&action["role"].as_str().unwrap()),
            "{action}"
        );
    }
}

// ---- roles

#[test]
fn i05_what_runs_below_a_worker_is_an_agent_and_answers_no_cards() {
    let ade = Ade::new();
    let root = ade.root().display().to_string();
    let host = ade.root().join("ade-host");
    std::os::unix::fs::symlink(executable(), &host).unwrap();
    // A host that is a shell first: below it a client waits for its turn, as a
    // tool of the agent would. Its parent is the worker, as the host wants it.
    let ours = format!(
        "{} --home {} --json",
        executable().display(),
        ade.home().display()
    );
    // Without its environment it is still below the worker.
    let call = |name: &str, args: &str| {
        let bare = if name == "bare" { "env -i " } else { "" };
        format!("{bare}{ours} {args} > {root}/{name}.out 2>&1; echo $? > {root}/{name}.code; ")
    };
    let script = format!(
        "(while [ ! -e {root}/go ]; do sleep 0.05; done; {}{}{}{}{}) & \
         ADE_HOST_PARENT=$PPID exec {} --scripted",
        call(
            "permission",
            &format!("chat permission $(cat {root}/chat) full-auto")
        ),
        call("stop", "actions run broker.stop"),
        call("bare", "actions run broker.handover"),
        call("list", "actions run sessions.list"),
        call("answer", &format!("answer $(cat {root}/go) allow")),
        host.display()
    );
    let config =
        format!("[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n");
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let (turn, after) = ade.send(&mut rpc, &chat, "!card Run it? | x");
    rpc.subscribe(&chat, after);
    let card = rpc.card();
    fs::write(ade.root().join("chat"), &chat).unwrap();
    fs::write(ade.root().join("going"), &card).unwrap();
    fs::rename(ade.root().join("going"), ade.root().join("go")).unwrap();
    let result = |name: &str| {
        let path = ade.root().join(format!("{name}.code"));
        let code = wait_until(&format!("the agent's call {name}"), || {
            fs::read_to_string(&path)
                .ok()
                .filter(|text| text.ends_with('\n'))
        });
        let said = fs::read_to_string(ade.root().join(format!("{name}.out"))).unwrap();
        (code.trim().parse::<i32>().unwrap(), said)
    };
    for name in ["permission", "stop", "bare", "answer"] {
        let (code, said) = result(name);
        assert_eq!(code, 7, "{name}: {said}");
        assert!(said.contains("denied"), "{said}");
    }
    let (code, said) = result("list");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(&chat), "{said}");
    // Nothing came of it, and the user still answers.
    assert!(is_alive(ade.broker_pid()));
    rpc.answer(&card, &ade_tests::turns::no()).unwrap();
    let events = rpc.until_done(&turn);
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], false);
    assert_eq!(ade.session(&chat)["permission"], "default");
    // One line in the log for each.
    let log = fs::read_to_string(ade.home().join("logs/ade-serve.log")).unwrap();
    for action in [
        "chat.permission",
        "broker.stop",
        "broker.handover",
        "cards.answer",
    ] {
        let lines = log.lines().filter(|line| line.contains(action));
        assert_eq!(lines.count(), 1, "{action} in {log}");
    }
}

#[test]
fn i05_a_host_that_asks_before_it_is_ready_is_an_agent_already() {
    let ade = Ade::new();
    let out = ade.root().join("out");
    // A host that never answers `init`: it only calls.
    let script = format!(
        "{} --home {} --json actions run broker.stop > {out} 2>&1; echo code $? >> {out}; cat",
        executable().display(),
        ade.home().display(),
        out = out.display()
    );
    let config =
        format!("[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n");
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.send(&mut rpc, &chat, "hello");
    let said = wait_until("the host's call", || {
        fs::read_to_string(&out)
            .ok()
            .filter(|text| text.contains("code "))
    });
    assert!(said.contains("denied") && said.contains("code 7"), "{said}");
    assert!(is_alive(ade.broker_pid()));
    rpc.call("chat.stop", json!({"sessionId": chat}));
}

/// What lost its place in the process tree is known by the mark that everything
/// below a worker inherits.
#[test]
fn i05_what_carries_a_workers_mark_is_an_agent_wherever_it_runs() {
    let ade = started();
    let stop = ["--json", "actions", "run", "broker.stop"];
    let mut command = ade.command(&stop);
    let ran = command
        .env("ADE_WORKER_MARK", "some-mark")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(ran.status.code(), Some(7), "{said}");
    assert!(said.contains("denied"), "{said}");
    assert!(is_alive(ade.broker_pid()));
}

#[test]
fn no_client_gains_a_role_by_asking_for_it() {
    let ade = started();
    let case = fixture("I05-observer.jsonl");
    let case: Value = serde_json::from_str(case.lines().next().unwrap()).unwrap();
    let mut client = Rpc::connect_raw(&ade.socket());
    let role = &case["params"]["role"];
    let hello = json!({"protocolVersion": 2, "clientName": "x", "role": role, "defaultRole": role});
    let answer = client.request("ade/initialize", hello).unwrap();
    assert_eq!(
        answer["runtimeInfo"]["defaultRole"], "cto",
        "whatever it says"
    );
    assert_eq!(answer["runtimeInfo"]["pid"], ade.broker_pid());
}

// ---- slow readers

/// Sends a script and reads along to its end with a client that keeps pace.
fn read_along(ade: &Ade, rpc: &mut Rpc, chat: &str, script: &str) -> Vec<Value> {
    let (turn, after) = ade.send(rpc, chat, script);
    let mut quick = ade.rpc();
    quick.subscribe(chat, after);
    quick.until_done(&turn)
}

/// Reads until the event of this number; gaps that were told, and all numbers.
fn catch_up(client: &mut Rpc, last: u64) -> (Vec<(u64, u64)>, Vec<u64>) {
    let (mut gaps, mut seen) = (Vec::new(), Vec::new());
    while seen.last() != Some(&last) {
        let line = client.line(PATIENCE).expect("more lines");
        let number = |name: &str| line["params"][name].as_u64().unwrap();
        if line["method"] == "ade/gap" {
            gaps.push((number("from"), number("to")));
        } else if line["method"] == "ade/event" {
            seen.push(number("sequence"));
        }
    }
    (gaps, seen)
}

#[test]
fn i07_a_client_that_does_not_read_holds_up_nobody_and_misses_nothing() {
    let ade = started();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.turn(&chat, "warm up");
    let before = resident(ade.broker_pid());
    let deaf = Deaf::subscribe(&ade.socket(), &chat, None);
    // 20 MB of events, while the other client takes each of them.
    let events = read_along(&ade, &mut rpc, &chat, "!events 5000 4000");
    assert_eq!(ended(&events), "completed");
    assert_eq!(text_of(&events).len(), 5000 * 4000);
    let after = resident(ade.broker_pid());
    report(&format!(
        "i07: the broker had {before} KiB, and {after} KiB after 20 MB beside a client that reads nothing"
    ));
    let last = events.last().unwrap()["sequence"].as_u64().unwrap();
    let mut woken = deaf.wake();
    let (gaps, seen) = catch_up(&mut woken, last);
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    let first = events[0]["sequence"].as_u64().unwrap();
    let expected: Vec<u64> = (first..=last).collect();
    assert_eq!(seen, expected, "all events, in order");
    assert!(gaps[0].0 > first && gaps[0].1 <= last, "{gaps:?} of {last}");
    // The connection is as good as before.
    woken.request("ade/ping", json!({})).unwrap();
    let (turn, _) = ade.send(&mut rpc, &chat, "and live again");
    assert_eq!(ended(&woken.until_done(&turn)), "completed");
    // 4 MiB for the queue, as much again for what is being written, and slack.
    assert!(after < before + 40 * 1024, "{before} KiB, then {after} KiB");
}

/// The most memory that a process has had, in KiB.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let figure = line.unwrap().trim().trim_end_matches(" kB");
    figure.parse().unwrap()
}

#[test]
fn i08_a_client_that_pauses_again_and_again_goes_on_from_its_last_number() {
    let ade = started();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let mut seen_to = 0;
    for _ in 0..4 {
        let deaf = Deaf::subscribe(&ade.socket(), &chat, Some(seen_to));
        let events = read_along(&ade, &mut rpc, &chat, "!events 1500 4000");
        let last = events.last().unwrap()["sequence"].as_u64().unwrap();
        let (gaps, seen) = catch_up(&mut deaf.wake(), last);
        // None, where it was still reading what was before.
        assert!(gaps.len() <= 1, "no storm: {gaps:?}");
        let expected: Vec<u64> = (seen_to + 1..=last).collect();
        assert_eq!(seen, expected);
        seen_to = last;
    }
}

// ---- one broker

#[test]
fn h02_a_broker_on_its_way_out_leaves_its_successors_socket_alone() {
    let mut old = started();
    let socket = old.socket();
    fs::remove_file(&socket).unwrap();
    // Another broker takes the path over.
    let new = Ade::new();
    let path = socket.display().to_string();
    let mut serving = new
        .command(&["serve", "--socket", &path])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_true("the successor answers", || {
        UnixStream::connect(&socket).is_ok()
    });
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
        ade.serve_with(|command| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "umask 0; exec \"$0\" \"$@\""]);
            shell.arg(command.get_program()).args(command.get_args());
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            shell
        });
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
    ade.serve_with(|command| command);
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
        leader
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
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
    let case = fixture("L03-prompt.frames");
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
