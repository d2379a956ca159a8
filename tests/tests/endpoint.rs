//! The control endpoint: its lines, its roles and its slow readers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use ade_tests::ade::{Ade, executable, is_alive, report};
use ade_tests::rpc::{Deaf, Rpc, text_of};
use ade_tests::turns::{ended, of_type};
use ade_tests::wait::{PATIENCE, wait_until};
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

/// One object a line: no list that could be read as one, and no batch. `null` is
/// an id; only a request without one is a notification.
#[test]
fn a_list_is_no_request_and_null_is_an_id() {
    let ade = started();
    let mut raw = Raw::initialized(&ade.socket());
    for line in [
        r#"["2.0",7,"ade/ping",{}]"#,
        "[]",
        r#"[{"jsonrpc":"2.0","id":7,"method":"ade/ping"}]"#,
    ] {
        raw.say(line);
        let answer = raw.hear_json();
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            said.contains("batches are not supported"),
            "{line}: {answer}"
        );
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&json!(null), &json!(-32600))
        );
    }
    let params = r#"{"jsonrpc":"2.0","id":8,"method":"ade/actions/call","params":PARAMS}"#;
    for list in [
        r#"["chat.send",{}]"#,
        r#"{"name":"chat.send","arguments":[]}"#,
    ] {
        raw.say(&params.replace("PARAMS", list));
        let answer = raw.hear_json();
        assert_eq!(answer["error"]["code"], -32602, "{list}: {answer}");
    }
    let ping = r#"{"jsonrpc":"2.0","id":null,"method":"ade/ping"}"#;
    raw.stream
        .write_all(format!("{ping}\n{ping}\n").as_bytes())
        .unwrap();
    for _ in 0..2 {
        assert_eq!(
            raw.hear_json(),
            json!({"jsonrpc": "2.0", "id": null, "result": {}})
        );
    }
    raw.say(r#"{"jsonrpc":"2.0","id":null,"method":"nothing"}"#);
    assert_eq!(raw.hear_json()["error"]["code"], -32601);
    raw.say(r#"{"jsonrpc":"2.0","method":"ade/ping"}"#);
    raw.say(r#"{"jsonrpc":"2.0","id":9,"method":"ade/ping"}"#);
    assert_eq!(raw.hear_json()["id"], 9, "a notification has no answer");
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
    rpc.answer(&card, &ade_tests::cards::no()).unwrap();
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
