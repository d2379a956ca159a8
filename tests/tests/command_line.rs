//! The command line end to end: what goes to standard output, exit codes,
//! Ctrl-C, the pieces for scripts, and the demo.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Instant;

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, report, signal};
use ade_tests::rpc::text_of;
use ade_tests::turns::{dones, ended, of_type};
use ade_tests::wait::wait_until;
use serde_json::{Value, json};

/// `ade run` of the scripted provider, in the lane that commands start in.
fn run<'a>(more: &[&'a str], prompt: &'a str) -> Vec<&'a str> {
    let mut args = vec!["run", "--provider", "scripted"];
    args.extend_from_slice(more);
    args.push(prompt);
    args
}

/// Lines of JSON, each of which must parse.
fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// The id of a new chat.
fn create(ade: &Ade) -> String {
    let create = [
        "chat",
        "create",
        "--provider",
        "scripted",
        "--title",
        "Mine",
    ];
    let (stdout, _) = ade.expect_code(0, &create);
    stdout.trim().to_owned()
}

#[test]
fn run_streams_the_answer_and_nothing_else_to_standard_output() {
    let ade = Ade::new();
    let odd = "Grüße \u{1F980} \t\"x\" \\n";
    let (stdout, stderr) = ade.expect_code(0, &run(&[], odd));
    assert_eq!(stdout, format!("You said: {odd}\n"));
    assert!(stderr.contains("ses_"), "names the chat: {stderr}");
    // What is no answer goes beside it.
    let script = "!reasoning thinking hard\n!tool read a file\n!turnless\n!emit the answer";
    let (stdout, stderr) = ade.expect_code(0, &run(&[], script));
    assert_eq!(stdout, "the answer\n");
    for word in ["thinking hard", "read", "a notice without a turn"] {
        assert!(stderr.contains(word), "{stderr}");
    }
    let (stdout, stderr) = ade.expect_code(0, &run(&["--quiet"], script));
    assert_eq!((stdout.as_str(), stderr.as_str()), ("the answer\n", ""));
}

#[test]
fn run_with_json_prints_one_envelope_a_line() {
    let ade = Ade::new();
    let mut args = run(&[], "!words 3 1");
    args.insert(0, "--json");
    let (stdout, _) = ade.expect_code(0, &args);
    let events = lines(&stdout);
    assert_eq!(ended(&events), "completed");
    assert_eq!(text_of(&events), "word1 word2 word3 ");
    let session = events[0]["sessionId"].as_str().unwrap();
    assert_eq!(events, ade.checked_transcript(session));
}

#[test]
fn run_ends_with_the_code_that_says_how_the_turn_went() {
    let ade = Ade::new();
    for (script, code, word) in [
        ("!error it broke", 1, "it broke"),
        ("!emit x\n!crash 5", 1, "exit code 5"),
        ("!error 401 invalid api key", 6, "invalid api key"),
    ] {
        let (_, stderr) = ade.expect_code(code, &run(&[], script));
        assert!(stderr.contains(word), "{stderr}");
        assert!(stderr.contains("error: "), "{stderr}");
    }
    let silent = run(&["--first-event-ms", "300"], "!hang");
    let (_, stderr) = ade.expect_code(8, &silent);
    assert!(stderr.contains("sent twice"), "{stderr}");
}

#[test]
fn without_a_person_a_card_is_denied_and_yes_allows_it() {
    let ade = Ade::new();
    let script = "!card Run it? | touch x | bash\n!emit done";
    let (stdout, stderr) = ade.expect_code(0, &run(&[], script));
    assert_eq!(stdout, "done\n");
    assert!(
        stderr.contains("denied") && stderr.contains("--yes"),
        "{stderr}"
    );
    let (_, stderr) = ade.expect_code(0, &run(&["--yes"], script));
    assert!(stderr.contains("allowed because of --yes"), "{stderr}");
    // Nothing allows a question that is not about permission.
    let elsewhere = Ade::new();
    let (_, stderr) = elsewhere.expect_code(0, &run(&[], "!ask Which? | a,b"));
    assert!(
        stderr.contains("declined") && !stderr.contains("--yes"),
        "{stderr}"
    );
    let list = ade.json(&["ps"]);
    let ok: Vec<Value> = list["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|session| {
            let session = session["sessionId"].as_str().unwrap();
            of_type(&ade.checked_transcript(session), "tool_result")
        })
        .map(|result| result["ok"].clone())
        .collect();
    assert_eq!(ok, [json!(false), json!(true)]);
}

/// Starts a command and waits until its standard output has said something.
fn talking(ade: &Ade, args: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = ade
        .command(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let heard = out.fill_buf().unwrap();
    assert!(!heard.is_empty());
    (child, out)
}

#[test]
fn ctrl_c_ends_the_turn_and_exits_with_130() {
    let ade = Ade::new();
    let (mut child, mut out) = talking(&ade, &run(&[], "!words 1000000 20"));
    signal(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    assert!(rest.starts_with("word1 "), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let list = ade.json(&["ps"]);
    let session = list["sessions"][0]["sessionId"].as_str().unwrap();
    let all = dones(&ade.checked_transcript(session));
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].1, "interrupted");
}

#[test]
fn a_reader_that_leaves_ends_the_command_and_not_the_turn() {
    let ade = Ade::new();
    let (mut child, out) = talking(&ade, &run(&[], "!words 40 20"));
    drop(out);
    assert_eq!(child.wait().unwrap().code(), Some(141));
    let list = ade.json(&["ps"]);
    let session = list["sessions"][0]["sessionId"].as_str().unwrap();
    let lines = ade.wait_transcript(session, "the end", |lines| !dones(lines).is_empty());
    assert_eq!(ended(&lines), "completed");
}

#[test]
fn a_chat_in_pieces_for_scripts() {
    let ade = Ade::new();
    let chat = create(&ade);
    let (stdout, _) = ade.expect_code(0, &["chat", "send", "--wait", &chat, "hello"]);
    assert_eq!(stdout, "You said: hello\n");
    let sent = ade.json(&["chat", "send", &chat, "!words 1000000 20"]);
    assert_eq!(sent["place"], 0);
    let turn = sent["turnId"].as_str().unwrap();
    let after = sent["after"].as_u64().unwrap();
    ade.wait_state(&chat, "streaming");
    ade.expect_code(0, &["chat", "steer", &chat, "to the left"]);
    let (stdout, _) = ade.expect_code(0, &["chat", "send", &chat, "behind it"]);
    let behind = stdout.trim().to_owned();
    assert!(behind.starts_with("turn_"), "{behind}");
    assert_eq!(ade.json(&["chat", "abort", &chat])["turnId"], turn);
    ade.wait_done(&chat, &behind);
    assert_eq!(ade.json(&["chat", "abort", &chat])["turnId"], Value::Null);

    let events = ade.checked_transcript(&chat);
    let shown = ade.json(&["chat", "show", &chat]);
    assert_eq!(shown["events"], json!(events));
    let from = after.to_string();
    let shown = ade.json(&["chat", "show", "--after", &from, "--limit", "2", &chat]);
    let (first, last) = (
        usize::try_from(after).unwrap(),
        usize::try_from(after + 2).unwrap(),
    );
    assert_eq!(shown["events"], json!(events[first..last]));
    let (text, _) = ade.expect_code(0, &["chat", "show", &chat]);
    for word in [
        "You said: hello",
        "steered: to the left",
        "interrupted",
        "behind it",
    ] {
        assert!(text.contains(word), "{text}");
    }
    let (mut follow, mut out) = talking(&ade, &["chat", "show", "--follow", &chat]);
    ade.expect_code(0, &["chat", "send", "--wait", &chat, "are you there?"]);
    let mut line = String::new();
    while !line.contains("You said: are you there?") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0);
    }
    signal(i32::try_from(follow.id()).unwrap(), Signal::SIGINT);
    assert!(follow.wait().unwrap().code().is_some());

    ade.expect_code(0, &["chat", "model", &chat, "scripted/parrot"]);
    ade.expect_code(0, &["chat", "compact", &chat]);
    ade.expect_code(0, &["chat", "stop", &chat]);
    let info = ade.session(&chat);
    assert_eq!(
        (&info["model"], &info["title"]),
        (&json!("scripted/parrot"), &json!("Mine"))
    );
    ade.expect_code(0, &["chat", "delete", &chat]);
    assert_eq!(ade.json(&["ps"])["sessions"], json!([]));
}

#[test]
fn cards_are_listed_and_answered_from_any_terminal() {
    let ade = Ade::new();
    let chat = create(&ade);
    let sent = ade.json(&[
        "chat",
        "send",
        &chat,
        "!card Run it? | touch x\n!secret The key?",
    ]);
    let turn = sent["turnId"].as_str().unwrap();
    let card = |kind: &str| {
        wait_until(&format!("a {kind} card"), || {
            let cards = ade.json(&["cards"]);
            let card = &cards["cards"][0];
            let id = card["cardId"].as_str().map(str::to_owned);
            id.filter(|_| card["payload"]["kind"] == kind)
        })
    };
    let id = card("confirm");
    let (text, _) = ade.expect_code(0, &["cards"]);
    assert!(text.contains(&id) && text.contains("Run it?"), "{text}");
    let (_, stderr) = ade.expect_code(2, &["answer", &id, "maybe"]);
    assert!(stderr.contains("allow_session"), "{stderr}");
    ade.expect_code(0, &["answer", &id, "allow"]);
    ade.expect_code(1, &["answer", &id, "allow"]);
    // A secret comes over standard input only.
    let id = card("secret");
    ade.expect_code(2, &["answer", &id, "hunter2"]);
    let mut answer = ade.command(&["answer", &id, "-"]);
    let mut answer = answer
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = answer.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"hunter2\n").unwrap();
    drop(stdin);
    assert!(answer.wait().unwrap().success());
    let lines = ade.wait_done(&chat, turn);
    assert_eq!(text_of(&lines), "secret of 7 characters");
    assert_eq!(of_type(&lines, "tool_result")[0]["ok"], true);
}

#[test]
fn what_runs_is_told_by_ps_lease_status_status_and_doctor() {
    let ade = Ade::new();
    let chat = create(&ade);
    ade.expect_code(0, &["chat", "send", "--wait", &chat, "hello"]);
    let list = ade.json(&["ps"]);
    let info = &list["sessions"][0];
    assert_eq!(info["sessionId"], chat.as_str());
    assert_eq!(
        (&info["state"], &info["generation"]),
        (&json!("idle"), &json!(1))
    );
    assert_eq!(info["leaseHeld"], true);
    assert!(
        info["memoryBytes"].as_u64().unwrap() > 1024 * 1024,
        "{info}"
    );
    let (text, _) = ade.expect_code(0, &["ps"]);
    assert!(
        text.contains("SESSION") && text.contains("scripted"),
        "{text}"
    );

    let file = info["sessionFile"].as_str().unwrap();
    let lease = ade.json(&["lease", "status", file]);
    assert_eq!(lease["state"], "held");
    assert_eq!(lease["holder"]["pid"], info["workerPid"]);
    assert_eq!(lease["owner"]["ownerSessionId"], chat.as_str());
    assert!(
        lease["remedy"].as_str().unwrap().contains("ade chat stop"),
        "{lease}"
    );
    ade.expect_code(0, &["chat", "stop", &chat]);
    let lease = ade.json(&["lease", "status", file]);
    assert_eq!(
        (&lease["state"], &lease["holder"]),
        (&json!("free"), &Value::Null)
    );

    let status = ade.json(&["status"]);
    assert_eq!(
        (&status["sessions"], &status["workers"]),
        (&json!(1), &json!(0))
    );
    let doctor = ade.json(&["doctor"]);
    let findings = doctor["findings"].as_array().unwrap();
    let hands: Vec<_> = findings
        .iter()
        .filter(|finding| finding["grade"] == "needs_a_hand")
        .collect();
    assert_eq!(hands, Vec::<&Value>::new());
    let config = doctor["config"].as_array().unwrap();
    assert!(
        config
            .iter()
            .any(|value| value["name"] == "pool.max_workers")
    );
    let (text, _) = ade.expect_code(0, &["actions", "list"]);
    assert!(
        text.contains("chat.send") && text.contains("cards.answer"),
        "{text}"
    );
    let (text, _) = ade.expect_code(0, &["completions", "bash"]);
    assert!(
        text.contains("complete") && text.contains("lease"),
        "{text}"
    );
}

#[test]
fn the_demo_goes_right_and_leaves_nothing() {
    let ade = Ade::new();
    let temporary = ade.root().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let path = temporary.display().to_string();
    let ade = ade.with_env("TMPDIR", &path);
    let begin = Instant::now();
    let (stdout, stderr) = ade.expect_code(0, &["demo"]);
    let took = begin.elapsed();
    assert!(took.as_secs() < 20, "{took:?}");
    report(&format!("demo: {took:.1?}"));
    let text = format!("{stdout}{stderr}");
    assert!(text.contains("LEFTOVER PROCESSES"), "{text}");
    assert_eq!(ade.describe(), Vec::<String>::new());
    let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let home: Vec<_> = std::fs::read_dir(ade.home()).unwrap().collect();
    assert!(
        home.is_empty(),
        "the user's own home is not touched: {home:?}"
    );
}

#[test]
fn a_second_answer_says_who_was_faster() {
    let ade = Ade::new();
    let chat = create(&ade);
    let script = "!card Run it? | touch x | bash\n!ask Which? | a,b\n!secret Word?\n!hang";
    ade.expect_code(0, &["chat", "send", &chat, script]);
    let open = |kind: &str| {
        wait_until(&format!("a {kind} is asked"), || {
            let cards = ade.json(&["cards"]);
            let card = cards["cards"].as_array().unwrap().first()?.clone();
            (card["payload"]["kind"] == kind).then_some(card)
        })
    };
    let again = |card: &str, more: &[&str], words: &[&str]| {
        for value in ["allow", "a", "-"] {
            let mut args = vec!["answer", card, value];
            args.extend(more);
            let (_, stderr) = ade.expect_code(1, &args);
            for word in words {
                assert!(stderr.contains(word), "no {word:?} in {stderr}");
            }
        }
    };
    let card = open("confirm")["cardId"].as_str().unwrap().to_owned();
    ade.expect_code(0, &["answer", &card, "deny"]);
    again(&card, &[], &["already answered by ade "]);
    again(&card, &["--session", &chat], &["already answered by ade "]);
    let select = open("select");
    // The offered values stand apart from the question.
    let (stdout, _) = ade.expect_code(0, &["cards"]);
    assert!(stdout.contains("Which? [a, b]"), "{stdout}");
    let card = select["cardId"].as_str().unwrap().to_owned();
    ade.expect_code(0, &["answer", &card, "b"]);
    again(&card, &[], &["already answered by ade ", "\"b\""]);
    let card = open("secret")["cardId"].as_str().unwrap().to_owned();
    ade.expect_code(0, &["chat", "abort", &chat]);
    wait_until("the card is withdrawn", || {
        ade.json(&["cards"])["cards"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    });
    again(&card, &[], &["the card is gone", "aborted"]);
    let (_, stderr) = ade.expect_code(2, &["answer", "nosuch", "allow"]);
    assert!(
        stderr.contains("no open question is named `nosuch`"),
        "{stderr}"
    );

    let (shown, _) = ade.expect_code(0, &["chat", "show", &chat]);
    assert!(shown.contains("declined by ade "), "{shown}");
    assert!(shown.contains(": b"), "{shown}");
}

#[test]
fn a_refused_key_comes_with_what_to_do() {
    let ade = Ade::new();
    for script in ["!error 401 invalid api key", "!error 403 forbidden"] {
        let (_, stderr) = ade.expect_code(6, &run(&[], script));
        for word in ["hint: ", "sign in", "/login", "ade stop"] {
            assert!(stderr.contains(word), "no {word:?} in {stderr}");
        }
    }
    let (_, stderr) = ade.expect_code(1, &run(&[], "!error it broke"));
    assert!(!stderr.contains("/login"), "{stderr}");
}

/// Stands between a command and its broker on a socket of its own. The broker
/// dies, and this socket goes, when the answer to `chat.send` has been passed on.
fn let_it_die_after_send(ade: &mut Ade, socket: &std::path::Path) -> std::thread::JoinHandle<()> {
    use std::os::unix::net::{UnixListener, UnixStream};
    let listener = UnixListener::bind(socket).unwrap();
    let real = ade.socket();
    let broker = ade.broker_pid();
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        // The first connection is the one that asks.
        let (client, _) = listener.accept().unwrap();
        let server = UnixStream::connect(real).unwrap();
        let mut to_client = client.try_clone().unwrap();
        let mut to_server = server.try_clone().unwrap();
        let asked = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let heard = std::sync::Arc::clone(&asked);
        let up = std::thread::spawn(move || {
            for line in BufReader::new(client).lines() {
                let Ok(line) = line else { return };
                heard.lock().unwrap().clone_from(&line);
                if std::io::Write::write_all(&mut to_server, format!("{line}\n").as_bytes())
                    .is_err()
                {
                    return;
                }
            }
        });
        for line in BufReader::new(server).lines() {
            let Ok(line) = line else { break };
            let sent = asked.lock().unwrap().contains("chat.send");
            if sent {
                signal(broker, Signal::SIGKILL);
                std::fs::remove_file(&socket).unwrap();
                drop(listener);
                std::io::Write::write_all(&mut to_client, format!("{line}\n").as_bytes()).unwrap();
                break;
            }
            std::io::Write::write_all(&mut to_client, format!("{line}\n").as_bytes()).unwrap();
        }
        to_client.shutdown(std::net::Shutdown::Both).unwrap();
        up.join().unwrap();
    })
}

#[test]
fn run_goes_on_when_the_broker_dies_between_its_message_and_the_first_event() {
    let mut ade = Ade::new();
    ade.serve();
    let socket = ade.root().join("between.sock");
    let between = let_it_die_after_send(&mut ade, &socket);
    let output = ade
        .command(&run(&[], "!words 40 20"))
        .env("ADE_RPC_SOCKET_PATH", &socket)
        .output()
        .unwrap();
    between.join().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said.split_whitespace().count(), 40, "{said}");
    assert!(stderr.contains("connected again"), "{stderr}");
    ade.kill_broker();
    // Of the broker that the command started.
    let stopped = ade
        .command(&["stop"])
        .env("ADE_RPC_SOCKET_PATH", &socket)
        .output()
        .unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
}
