//! Chats with the real Pi, end to end: the executable, its broker, its workers
//! and Pi itself, against the fake model.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ade_leases::lease;
use ade_leases::owner::{self, Claim, Owner};
use ade_leases::process::Signal;
use ade_leases::record::OwnerKind;
use ade_tests::ade::{signal, wait_dead};
use ade_tests::pi::{
    PiAde, answer, bash, error_of, next, next_card, of_type, one_branch, session_lines, status_of,
    tool,
};
use ade_tests::rpc::{text_of, types_of};
use ade_tests::wait::{wait_true, wait_within};
use serde_json::{Value, json};

/// What the model says to a message without directives.
const HELLO: &str = "Hello from the fake model.";

/// How soon an abort must be seen.
const SOON: Duration = Duration::from_secs(5);

#[track_caller]
fn lease_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".ade-lease");
    name.into()
}

/// The session files below a store.
fn sessions_in(store: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(store).unwrap().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten());
    let files = files.map(|file| file.path());
    files
        .filter(|file| file.extension().is_some_and(|ending| ending == "jsonl"))
        .collect()
}

#[test]
fn six_chats_in_three_lanes_stream_at_once() {
    let mut pi = PiAde::without_broker(&["--drip-ms", "30"]);
    pi.ade.serve();
    let lanes = ["one", "two", "three"];
    let chat = |lane: &&str| pi.chat(lane, "fake/fake-text", "default");
    let slow: Vec<String> = lanes.iter().map(chat).collect();
    let quick: Vec<String> = lanes.iter().map(chat).collect();
    let all: Vec<&String> = slow.iter().chain(&quick).collect();
    let mut turns: Vec<_> = all.iter().map(|id| pi.send(id, "hello")).collect();
    for (rpc, turn) in &mut turns {
        assert_eq!(text_of(&rpc.until_done(turn)), HELLO);
    }

    for id in &slow {
        pi.set_model(id, "fake/fake-drip");
    }
    let mut drips: Vec<_> = slow.iter().map(|id| pi.send(id, "slowly")).collect();
    for (rpc, _) in &mut drips {
        next(rpc, "text");
    }
    for id in &quick {
        assert_eq!(text_of(&pi.completed(id, "quickly")), HELLO);
    }
    let listed = pi.ade.json(&["ps"]);
    let listed = listed["sessions"].as_array().unwrap();
    let state = |id: &String| listed.iter().find(|one| one["sessionId"] == **id).unwrap();
    for id in &slow {
        assert_eq!(
            state(id)["state"],
            "streaming",
            "the quick ones waited for it"
        );
    }
    for process in ["workerPid", "hostPid"] {
        let pids: HashSet<i64> = listed
            .iter()
            .filter_map(|one| one[process].as_i64())
            .collect();
        assert_eq!(pids.len(), 6, "a {process} for each: {listed:#?}");
    }
    for id in &all {
        let file = pi.session_file(id);
        assert!(
            lease_of(&file).exists() && lease::is_held(&file),
            "{id} works without a lease"
        );
        assert_eq!(state(id)["leaseHeld"], true);
    }
    let words: String = (0..200).map(|n| format!("w{n} ")).collect();
    for (rpc, turn) in &mut drips {
        // One fragment was read above.
        let text = text_of(&rpc.until_done(turn));
        assert!(
            words.ends_with(&text) && words.len() - text.len() < 10,
            "{text}"
        );
    }

    for (id, lane) in all.iter().zip(lanes.iter().cycle()) {
        pi.stop(id);
        let file = pi.session_file(id);
        let lines = one_branch(&file, &pi.ade.lane(lane));
        assert!(
            lines
                .iter()
                .any(|line| line["message"]["role"] == "assistant")
        );
        assert!(!lease_of(&file).exists() && !lease::is_held(&file));
        let claim = Claim {
            kind: OwnerKind::Sdk,
            id: (*id).clone(),
        };
        assert_eq!(owner::read(&file).unwrap(), Owner::Owned(claim));
    }
    pi.wait_only_broker(SOON);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

#[test]
fn a_gated_command_runs_only_when_it_was_allowed() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let chat = pi.chat("lane", "fake/fake-text", "default");

    let (mut rpc, turn) = pi.send(&chat, &bash("touch allowed"));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["origin"], "approval");
    assert_eq!(card["payload"]["kind"], "confirm");
    assert_eq!(card["payload"]["sourceId"], "bash");
    assert!(
        card["payload"]["message"]
            .as_str()
            .unwrap()
            .contains("touch allowed")
    );
    assert_eq!(card["turnId"], json!(turn));
    assert_eq!(pi.ade.session(&chat)["state"], "awaiting_card");
    assert!(
        !lane.join("allowed").exists(),
        "it ran before it was allowed"
    );
    answer(&mut rpc, &card, "allow");
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "completed");
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], true);
    assert!(lane.join("allowed").exists());

    let (mut rpc, turn) = pi.send(&chat, &bash("touch denied"));
    let card = next_card(&mut rpc);
    answer(&mut rpc, &card, "deny");
    let events = rpc.until_done(&turn);
    assert_eq!(
        status_of(&events),
        "completed",
        "a denial is told to the model"
    );
    let result = of_type(&events, "tool_result")[0];
    assert_eq!(result["ok"], false);
    assert!(
        result["text"].as_str().unwrap().contains("denied"),
        "{result}"
    );
    assert_eq!(text_of(&events), "The tool is done.", "the turn goes on");
    assert!(!lane.join("denied").exists());

    let both = format!("{} {}", bash("touch first"), bash("touch second"));
    let (mut rpc, turn) = pi.send(&chat, &both);
    let card = next_card(&mut rpc);
    answer(&mut rpc, &card, "allow_session");
    let events = rpc.until_done(&turn);
    assert!(
        of_type(&events, "card_opened").is_empty(),
        "bash was allowed for the session"
    );
    assert!(lane.join("first").exists() && lane.join("second").exists());
    let events = pi.completed(&chat, &bash("touch third"));
    assert!(of_type(&events, "card_opened").is_empty() && lane.join("third").exists());

    fs::write(lane.join("file"), "old").unwrap();
    let edits = json!({"path": "file", "edits": [{"oldText": "old", "newText": "new"}]});
    let (mut rpc, turn) = pi.send(&chat, &tool("edit", edits));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["sourceId"], "edit", "allowed was bash only");
    answer(&mut rpc, &card, "deny");
    assert_eq!(status_of(&rpc.until_done(&turn)), "completed");
    assert_eq!(fs::read(lane.join("file")).unwrap(), b"old");
}

#[test]
fn an_abort_withdraws_open_cards_and_nothing_runs() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let chat = pi.chat("lane", "fake/fake-text", "default");
    let both = format!("{} {} PARALLEL", bash("touch a"), bash("touch b"));
    let (mut rpc, turn) = pi.send(&chat, &both);
    let cards = [next_card(&mut rpc), next_card(&mut rpc)];
    rpc.call("chat.abort", json!({"sessionId": chat, "turnId": turn}));
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "interrupted");
    let resolved = of_type(&events, "card_resolved");
    assert_eq!(resolved.len(), 2, "{events:#?}");
    for event in resolved {
        assert_eq!(
            event["resolution"],
            json!({"outcome": "withdrawn", "why": "aborted"})
        );
    }
    for card in &cards {
        let late = json!({"cardId": card["cardId"], "sessionId": chat,
            "answer": {"ok": true, "value": "allow"}});
        assert_eq!(
            rpc.try_call("cards.answer", late).unwrap_err().kind,
            "card_gone"
        );
    }
    assert_eq!(rpc.call("cards.list", json!({}))["cards"], json!([]));
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);
    assert!(!lane.join("a").exists() && !lane.join("b").exists());
    one_branch(&pi.session_file(&chat), &lane);
}

#[test]
fn the_mode_says_which_tools_there_are_and_which_ask() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let tools = || {
        let request = pi.model.requests().pop().unwrap();
        let tools = request["body"]["tools"].as_array().unwrap().clone();
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
        tools.iter().map(name).collect::<HashSet<String>>()
    };
    for (mode, writes, runs) in [
        ("plan", false, false),
        ("edit", true, false),
        ("full-auto", true, true),
    ] {
        let chat = pi.chat("lane", "fake/fake-text", mode);
        let (written, touched) = (format!("{mode}-written"), format!("{mode}-touched"));
        let prompt = format!(
            "{} {}",
            tool("write", json!({"path": written, "content": "x"})),
            bash(&format!("touch {touched}"))
        );
        let events = pi.completed(&chat, &prompt);
        assert!(
            of_type(&events, "card_opened").is_empty(),
            "{mode} never asks"
        );
        let offered = tools();
        assert!(offered.contains("read"), "{mode}: {offered:?}");
        for (name, file, allowed) in [("write", written, writes), ("bash", touched, runs)] {
            assert_eq!(offered.contains(name), allowed, "{mode}: {offered:?}");
            assert_eq!(lane.join(file).exists(), allowed, "{name} in {mode}");
        }
        assert_eq!(offered.contains("edit"), writes, "{mode}: {offered:?}");
        pi.stop(&chat);
    }
}

#[test]
fn an_abort_ends_a_running_command() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let (mut rpc, turn) = pi.send(&chat, &bash("sleep 300"));
    let sleep = pi.wait_command("sleep 300");
    let began = std::time::Instant::now();
    rpc.call("chat.abort", json!({"sessionId": chat}));
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "interrupted");
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    wait_dead(sleep);
    let again = pi.completed(&chat, "hello");
    assert_eq!(text_of(&again), HELLO);
    assert_eq!(
        pi.ade.session(&chat)["generation"],
        1,
        "an abort costs no worker"
    );
}

#[test]
fn a_chat_goes_on_in_a_new_worker() {
    let mut pi = PiAde::serve_with("[providers.pi]\nidle_put_away_ms = 1500\n");
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    assert_eq!(text_of(&pi.completed(&chat, "one")), "one");
    let file = pi.session_file(&chat);
    pi.stop(&chat);
    assert!(!lease::is_held(&file));
    assert_eq!(text_of(&pi.completed(&chat, "two")), "one\ntwo");
    // An idle worker is put away by itself.
    wait_true("the idle worker is put away", || {
        pi.ade.session(&chat)["workerPid"].is_null() && !lease::is_held(&file)
    });
    assert_eq!(text_of(&pi.completed(&chat, "three")), "one\ntwo\nthree");
    assert_eq!(pi.ade.session(&chat)["generation"], 3);
    assert_eq!(pi.ade.stop_broker(), Some(0));
    pi.ade.serve();
    let all = "one\ntwo\nthree\nfour";
    assert_eq!(
        text_of(&pi.completed(&chat, "four")),
        all,
        "after a new broker"
    );
    assert_eq!(pi.session_file(&chat), file);
    one_branch(&file, &pi.ade.lane("lane"));
}

#[test]
fn a_session_goes_to_and_fro_between_ade_and_the_users_own_pi() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let installed = ade_tests::agents::pi();
    let own = |args: &[&str]| {
        let output = Command::new(&installed.node)
            .arg(installed.package_root.join("dist/bundle/cli.js"))
            .args(["--offline", "-p", "--model", "fake/fake-echo"])
            .args(args)
            .current_dir(&lane)
            .env("HOME", pi.ade.user_home())
            .env("PI_CODING_AGENT_DIR", pi.ade.agent_dir())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    };
    assert_eq!(own(&["one"]), "one");
    let file = sessions_in(&pi.ade.agent_dir().join("sessions"))
        .pop()
        .unwrap();
    let file = file.display().to_string();
    let chat = pi.chat_with("lane", json!({"sessionFile": file}));
    assert_eq!(text_of(&pi.completed(&chat, "two")), "one\ntwo");
    pi.stop(&chat);
    assert_eq!(own(&["--session", &file, "three"]), "one\ntwo\nthree");
    assert_eq!(
        text_of(&pi.completed(&chat, "four")),
        "one\ntwo\nthree\nfour"
    );
    one_branch(Path::new(&file), &lane);
}

#[test]
fn messages_arrive_as_they_were_written() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-echo", "default");
    let long = "0123456789abcdef".repeat(65_536);
    let mut said = Vec::new();
    for text in [
        "  spaces around \n and lines\r\n\n",
        "/help is no command of ours",
        "-dash --yes",
        "é 日本 🦀\u{2028}\u{2029}\u{feff} \u{1b}[31m \"quoted\" \\ {}",
        long.as_str(),
    ] {
        said.push(text);
        let answer = text_of(&pi.completed(&chat, text));
        assert!(
            answer == said.join("\n"),
            "after {:?}",
            &text[..text.len().min(60)]
        );
        assert!(pi.contexts().pop().unwrap() == said);
    }
    let transcript = pi.ade.transcript(&chat);
    let told = of_type(&transcript, "user_message");
    let told: Vec<&str> = told
        .iter()
        .filter_map(|event| event["text"].as_str())
        .collect();
    assert!(told == said);
}

#[test]
fn two_questions_at_once_are_answered_in_any_order() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let chat = pi.chat("lane", "fake/fake-text", "default");
    let both = format!("{} {} PARALLEL", bash("touch a"), bash("touch b"));
    let (mut rpc, turn) = pi.send(&chat, &both);
    let cards = [next_card(&mut rpc), next_card(&mut rpc)];
    let file = |card: &Value| card["payload"]["message"].as_str().unwrap()[6..].to_owned();
    answer(&mut rpc, &cards[1], "allow");
    wait_true("the second call runs", || {
        lane.join(file(&cards[1])).exists()
    });
    assert!(!lane.join(file(&cards[0])).exists());
    answer(&mut rpc, &cards[0], "deny");
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "completed");
    let ok = |event: &&Value| event["ok"] == true;
    assert_eq!(
        of_type(&events, "tool_result")
            .iter()
            .filter(|one| ok(one))
            .count(),
        1
    );
    assert!(!lane.join(file(&cards[0])).exists());
}

#[test]
fn a_chat_that_said_nothing_yet_goes_on_in_a_new_worker() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    let (mut rpc, turn) = pi.send(&chat, "never mind");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(status_of(&rpc.until_done(&turn)), "interrupted");
    // The worker that was being started comes all the same; it has a session,
    // but nothing was written to it.
    wait_true("the worker is ready", || {
        pi.ade.session(&chat)["sessionFile"].is_string()
    });
    pi.stop(&chat);
    assert_eq!(text_of(&pi.completed(&chat, "hello")), "hello");
    let file = pi.session_file(&chat);
    pi.stop(&chat);
    assert_eq!(text_of(&pi.completed(&chat, "again")), "hello\nagain");
    assert_eq!(pi.session_file(&chat), file);
}

#[test]
fn a_session_file_of_nobody_or_of_another_lane_is_refused() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    pi.completed(&chat, "mine");
    pi.stop(&chat);
    let file = pi.session_file(&chat);
    let before = fs::read(&file).unwrap();
    let other = pi.ade.lane("other").display().to_string();
    let name = file.display().to_string();
    let none = file.with_file_name("none.jsonl").display().to_string();
    let outside = pi.ade.lane("lane").join("outside.jsonl");
    fs::copy(&file, &outside).unwrap();
    let outside = outside.display().to_string();
    let lane = pi.ade.lane("lane").display().to_string();
    for (lane, file) in [(&other, &name), (&lane, &none), (&lane, &outside)] {
        let run = [
            "run",
            "--provider",
            "pi",
            "--lane",
            lane,
            "--session-file",
            file,
            "hi",
        ];
        let (stdout, stderr) = pi.ade.expect_code(1, &run);
        assert_eq!(stdout, "");
        assert!(stderr.contains(file.as_str()), "{stderr}");
        let owner_of = owner::read(Path::new(file)).unwrap();
        let claim = Claim {
            kind: OwnerKind::Sdk,
            id: chat.clone(),
        };
        let was = if *file == name {
            Owner::Owned(claim)
        } else {
            Owner::None
        };
        assert_eq!(owner_of, was, "a chat that was refused owns nothing");
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    pi.wait_only_broker(SOON);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

#[test]
fn what_a_command_leaves_behind_ends_with_the_chat() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let leaves = bash("(setsid sleep 300 >/dev/null 2>&1 &) ; nohup sleep 301 >/dev/null 2>&1 & ");
    pi.completed(&chat, &leaves);
    pi.wait_command("sleep 300");
    pi.wait_command("sleep 301");
    let much = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100";
    let events = pi.completed(&chat, &bash(much));
    let result = of_type(&events, "tool_result")[0];
    assert_eq!(result["ok"], true);
    let length = result["text"].as_str().unwrap().len();
    assert!(
        (1_000..100_000).contains(&length),
        "Pi keeps the end: {length}"
    );
    pi.stop(&chat);
    pi.wait_only_broker(Duration::from_secs(1));
}

#[test]
fn a_long_context_is_compacted() {
    let pi = PiAde::without_broker(&[]);
    let settings = pi.ade.agent_dir().join("settings.json");
    let mut wanted: Value = serde_json::from_slice(&fs::read(&settings).unwrap()).unwrap();
    wanted["compaction"] = json!({"keepRecentTokens": 5, "reserveTokens": 1000});
    fs::write(&settings, wanted.to_string()).unwrap();
    let mut pi = pi;
    pi.ade.serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    for prompt in ["one", "two", "three"] {
        pi.completed(&chat, prompt);
    }
    pi.ade
        .rpc()
        .call("chat.compact", json!({"sessionId": chat}));
    let transcript = pi.ade.transcript(&chat);
    let phases: Vec<&Value> = of_type(&transcript, "context_compact")
        .iter()
        .map(|event| &event["phase"])
        .collect();
    assert_eq!(phases, ["started", "completed"]);
    pi.completed(&chat, "four");
    let last = pi.contexts().pop().unwrap();
    assert!(!last.contains(&"one".to_owned()), "{last:?}");
    assert_eq!(last.last().unwrap(), "four");
}

#[test]
fn extensions_of_the_user_can_ask() {
    let pi = PiAde::serve();
    let extensions = pi.ade.agent_dir().join("extensions");
    fs::create_dir(&extensions).unwrap();
    let asks = r#"export default (pi) => pi.on("tool_call", async (event, ctx) => {
        const yes = await ctx.ui.confirm("Really?", event.input.command, { signal: ctx.signal });
        if (!yes) return { block: true, reason: "the extension said no" };
    });"#;
    fs::write(extensions.join("asks.ts"), asks).unwrap();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    for (word, runs) in [("yes", false), ("allow", true)] {
        let (mut rpc, turn) = pi.send(&chat, &bash(&format!("touch {word}")));
        let card = next_card(&mut rpc);
        assert_eq!(card["payload"]["origin"], "extension");
        let given = json!({"cardId": card["cardId"], "sessionId": chat,
            "answer": {"ok": true, "value": word}});
        match rpc.try_call("cards.answer", given) {
            Ok(_) => assert!(runs),
            // Not one of the words: the card is still open.
            Err(error) => {
                assert!(!runs, "{error:?}");
                answer(&mut rpc, &card, "deny");
            }
        }
        assert_eq!(status_of(&rpc.until_done(&turn)), "completed");
        assert_eq!(pi.ade.lane("lane").join(word).exists(), runs);
    }
    // Where calls are gated no foreign code runs beside the gate.
    let gated = pi.chat("lane", "fake/fake-text", "default");
    let (mut rpc, turn) = pi.send(&gated, &bash("true"));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["origin"], "approval");
    answer(&mut rpc, &card, "allow");
    assert!(of_type(&rpc.until_done(&turn), "card_opened").is_empty());
}

#[test]
fn an_interrupt_from_the_terminal_ends_the_turn() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane").display().to_string();
    let call = bash("sleep 300");
    let run = ["run", "--provider", "pi", "--lane", &lane, "--yes", &call];
    let child = pi
        .ade
        .command(&run)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.unwrap();
    let sleep = pi.wait_command("sleep 300");
    signal(i32::try_from(child.id()).unwrap(), Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted"), "{stderr}");
    wait_dead(sleep);
}

#[test]
fn a_session_that_another_worker_writes_is_refused() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    pi.completed(&chat, "mine");
    let file = pi.session_file(&chat);
    let before = fs::read(&file).unwrap();
    let lane = pi.ade.lane("lane").display().to_string();
    let name = file.display().to_string();
    let run = [
        "run",
        "--provider",
        "pi",
        "--lane",
        &lane,
        "--session-file",
        &name,
        "yours",
    ];
    let (stdout, stderr) = pi.ade.expect_code(4, &run);
    assert_eq!(stdout, "");
    let worker = format!("pid {}", pi.ade.session(&chat)["workerPid"]);
    for word in [worker.as_str(), "since", "stop", chat.as_str()] {
        assert!(stderr.contains(word), "no {word:?} in {stderr}");
    }
    let mut with_json = vec!["--json"];
    with_json.extend(run);
    let (stdout, _) = pi.ade.expect_code(4, &with_json);
    let lines: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let error = error_of(&lines);
    assert_eq!(error["category"], "lease");
    assert!(
        error["detail"].as_str().unwrap().starts_with("kind: held"),
        "{error}"
    );
    assert_eq!(fs::read(&file).unwrap(), before, "nobody else wrote to it");
    assert_eq!(text_of(&pi.completed(&chat, "again")), "mine\nagain");

    pi.stop(&chat);
    // The session goes on with the model that it had.
    let (stdout, _) = pi.ade.expect_code(0, &run);
    assert_eq!(stdout, "mine\nagain\nyours\n");
    let lines = one_branch(&file, &pi.ade.lane("lane"));
    let users = lines
        .iter()
        .filter(|line| line["message"]["role"] == "user");
    assert_eq!(
        users.count(),
        3,
        "the other chat goes on where the first one was"
    );
}

#[test]
fn a_message_during_a_turn_joins_it_or_waits() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "default");
    let (mut rpc, turn) = pi.send(&chat, &bash("true"));
    let card = next_card(&mut rpc);
    let steered = rpc.call(
        "chat.steer",
        json!({"sessionId": chat, "prompt": "and this"}),
    );
    assert_eq!(steered["outcome"], "queued");
    let waiting = rpc.call("chat.send", json!({"sessionId": chat, "prompt": "later"}));
    assert_eq!(waiting["place"], 1);
    answer(&mut rpc, &card, "allow");
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "completed");
    let events = rpc.until_done(waiting["turnId"].as_str().unwrap());
    assert_eq!(status_of(&events), "completed");
    let last = pi.contexts().pop().unwrap();
    assert_eq!(last, [&bash("true"), "and this", "later"]);
    let transcript = pi.ade.transcript(&chat);
    let said: Vec<(&Value, &Value)> = of_type(&transcript, "user_message")
        .iter()
        .map(|event| (&event["text"], &event["via"]))
        .collect();
    assert_eq!(
        json!(said),
        json!([
            [bash("true"), "send"],
            ["and this", "steer"],
            ["later", "send"]
        ])
    );
}

#[test]
fn the_agent_can_ask_the_user() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let question = json!({"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]});
    let (mut rpc, turn) = pi.send(&chat, &tool("ask_user", question));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["origin"], "tool");
    assert_eq!(card["payload"]["kind"], "select");
    let value = card["payload"]["options"][1]["value"]
        .as_str()
        .unwrap()
        .to_owned();
    answer(&mut rpc, &card, &value);
    let events = rpc.until_done(&turn);
    let result = of_type(&events, "tool_result")[0];
    assert_eq!(result["text"], "The user chose: B");
}

#[test]
fn reasoning_usage_and_what_cannot_be_compacted() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-think", "full-auto");
    let events = pi.completed(&chat, "hello");
    let reasoning: String = of_type(&events, "reasoning")
        .iter()
        .filter_map(|event| event["text"].as_str())
        .collect();
    assert_eq!(reasoning, "Let me think.");
    assert_eq!(text_of(&events), HELLO);
    let kinds = types_of(&events);
    assert_eq!(kinds[..2], ["user_message", "status"]);
    assert_eq!(kinds.last(), Some(&"done"));
    assert_eq!(of_type(&events, "done")[0]["usage"]["totalTokens"], 110);

    let mut rpc = pi.ade.rpc();
    rpc.call("chat.thinking", json!({"sessionId": chat, "level": "high"}));
    let refused = rpc
        .try_call("chat.compact", json!({"sessionId": chat}))
        .unwrap_err();
    assert!(refused.message.contains("session too small"), "{refused:?}");
    assert_eq!(status_of(&pi.completed(&chat, "hello")), "completed");
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/nonesuch", "full-auto");
    let error = error_of(&pi.ade.turn(&chat, "hello"));
    assert_eq!(error["category"], "not_found");
    let words = [&error["message"], &error["detail"]].map(|text| text.as_str().unwrap());
    assert!(
        words[0].contains("fake/nonesuch") && words[0].contains("fake/fake-text"),
        "{error}"
    );
    assert!(words[1].starts_with("kind: model_not_found"), "{error}");
    let lane = pi.ade.lane("lane").display().to_string();
    let run = [
        "run",
        "--provider",
        "pi",
        "--lane",
        &lane,
        "--model",
        "fake/nonesuch",
        "hi",
    ];
    let (_, stderr) = pi.ade.expect_code(6, &run);
    assert!(stderr.contains("fake/nonesuch"), "{stderr}");

    pi.set_model(&chat, "fake/fake-text");
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);
    let unknown = json!({"sessionId": chat, "model": "fake/another"});
    let refused = pi.ade.rpc().try_call("chat.model", unknown).unwrap_err();
    assert_eq!(refused.kind, "model_not_found");
    assert!(refused.message.contains("fake/another"), "{refused:?}");
    assert_eq!(pi.ade.session(&chat)["model"], "fake/fake-text");
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);
}

#[test]
fn run_prints_the_answer_and_nothing_else() {
    let pi = PiAde::without_broker(&[]);
    let lane = pi.ade.lane("lane").display().to_string();
    let run = |more: &[&str]| {
        let mut all = vec!["run", "--provider", "pi", "--lane", &lane, "--model"];
        all.extend(more);
        all.iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<String>>()
    };
    let expect = |code: i32, args: Vec<String>| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        pi.ade.expect_code(code, &args)
    };
    pi.ade.expect_code(5, &["status"]);
    let (stdout, stderr) = expect(0, run(&["fake/fake-text", "hello"]));
    assert_eq!(stdout, format!("{HELLO}\n"));
    assert!(stderr.contains("ses_"), "how to go on: {stderr}");
    pi.ade.expect_code(0, &["status"]);

    let (stdout, _) = expect(0, run(&["fake/fake-text", "--json", "hello"]));
    let lines: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(text_of(&lines), HELLO);
    assert_eq!(lines.last().unwrap()["event"]["type"], "done");
    assert!(
        lines
            .iter()
            .all(|line| line["sessionId"] == lines[0]["sessionId"])
    );

    // Nobody can be asked here, so the call is denied, unless --yes was said.
    let call = bash("touch ran");
    let ran = pi.ade.lane("lane").join("ran");
    let (stdout, stderr) = expect(0, run(&["fake/fake-text", &call]));
    assert_eq!(stdout, "I will use a tool.\nThe tool is done.\n");
    assert!(stderr.contains("--yes") && !ran.exists(), "{stderr}");
    let (stdout, _) = expect(0, run(&["fake/fake-text", "--yes", &call]));
    assert_eq!(stdout, "I will use a tool.\nThe tool is done.\n");
    assert!(ran.exists());

    // What a command prints does not steer the terminal.
    let colours = bash(r"printf '\033[31mred\033[0m \377\a'; exit 7");
    let (_, stderr) = expect(0, run(&["fake/fake-text", "--yes", &colours]));
    assert!(
        stderr.contains("red") && !stderr.contains(['\x1b', '\x07']),
        "{stderr:?}"
    );

    pi.ade.expect_code(0, &["stop"]);
    pi.ade.expect_code(5, &["status"]);
    pi.ade.wait_empty(SOON);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

#[test]
fn a_flood_of_fragments_arrives_whole() {
    let pi = PiAde::serve();
    let settings = pi.ade.agent_dir().join("settings.json");
    let before = fs::read(&settings).unwrap();
    let lane = pi.ade.lane("lane").display().to_string();
    let model = "fake/fake-flood";
    let run = [
        "run",
        "--provider",
        "pi",
        "--lane",
        &lane,
        "--model",
        model,
        "much",
    ];
    let (stdout, _) = pi.ade.expect_code(0, &run);
    let sessions = pi.ade.rpc().call("sessions.list", json!({}));
    let chat = sessions["sessions"][0]["sessionId"]
        .as_str()
        .unwrap()
        .to_owned();
    let transcript = pi.ade.transcript(&chat);
    let told = text_of(&transcript);
    assert_eq!(told.len(), 5_000_000);
    assert_eq!(
        stdout.strip_suffix('\n'),
        Some(told.as_str()),
        "standard output"
    );
    let lines = session_lines(&pi.session_file(&chat));
    let message = lines
        .iter()
        .find(|line| line["message"]["role"] == "assistant")
        .unwrap();
    assert_eq!(
        message["message"]["content"][0]["text"], told,
        "the session file"
    );
    assert_eq!(status_of(&transcript), "completed");
    for (index, line) in transcript.iter().enumerate() {
        assert_eq!(line["sequence"], index + 1, "a number is missing");
    }
    assert_eq!(
        fs::read(&settings).unwrap(),
        before,
        "the user's settings are not ours"
    );
}

#[test]
fn keys_and_session_folders_come_from_the_environment() {
    let mut pi = PiAde::without_broker(&[]);
    let models = pi.ade.agent_dir().join("models.json");
    let text = fs::read_to_string(&models).unwrap();
    fs::write(&models, text.replace("sk-fake", "$MY_FAKE_KEY")).unwrap();
    let folder = pi.ade.root().join("sessions of mine");
    pi.ade = pi
        .ade
        .with_env("MY_FAKE_KEY", "sk-from-the-environment")
        .with_env("PI_CODING_AGENT_SESSION_DIR", &folder.display().to_string());
    pi.ade.serve();
    let chat = pi.chat("lane", "fake/fake-echo", "default");
    pi.completed(&chat, "one");
    let headers = pi.model.requests()[0]["headers"].clone();
    assert_eq!(headers["authorization"], "Bearer sk-from-the-environment");
    let file = pi.session_file(&chat);
    assert_eq!(file.parent(), Some(folder.as_path()));
    pi.stop(&chat);
    assert_eq!(text_of(&pi.completed(&chat, "two")), "one\ntwo");
    assert_eq!(pi.session_file(&chat), file);
}

#[test]
fn l01_and_l06_neither_secrets_nor_prompts_leak() {
    let mut pi = PiAde::without_broker(&[]);
    pi.ade = pi
        .ade
        .with_env("SECRET_CANARY", "canary-of-the-broker")
        .with_env("BROKER_TOKEN", "canary-token");
    pi.ade.serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let events = pi.completed(&chat, &format!("prompt-canary {}", bash("env")));
    let result = of_type(&events, "tool_result")[0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        result.contains("PATH=") && result.contains("HOME="),
        "{result}"
    );
    assert!(
        !result.contains("canary") && !result.contains("ADE_HOME"),
        "{result}"
    );

    let (mut rpc, turn) = pi.send(&chat, &format!("prompt-canary {}", bash("sleep 300")));
    pi.wait_command("sleep 300");
    let broker = pi.ade.broker_pid();
    for process in pi.ade.processes() {
        let pid = process.pid.get();
        for name in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).replace('\0', " ");
            assert!(!text.contains("prompt-canary"), "{name} of {pid}: {text}");
            let inherited = name == "environ" && pid == broker;
            assert!(
                inherited || !text.contains("canary"),
                "{name} of {pid}: {text}"
            );
        }
    }
    rpc.call("chat.abort", json!({"sessionId": chat}));
    rpc.until_done(&turn);
    let mut folders = vec![pi.ade.home().join("logs"), pi.ade.home().join("run")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if let Ok(bytes) = fs::read(entry.path()) {
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains("canary"), "{}", entry.path().display());
            }
        }
    }
}

#[test]
fn stop_ends_every_turn_once() {
    let mut pi = PiAde::serve();
    let working = pi.chat("lane", "fake/fake-text", "full-auto");
    let asking = pi.chat("lane", "fake/fake-text", "default");
    let (_working, _) = pi.send(&working, &bash("sleep 300"));
    let (mut rpc, _) = pi.send(&asking, &bash("touch ran"));
    pi.wait_command("sleep 300");
    next_card(&mut rpc);
    pi.ade.expect_code(0, &["stop"]);
    assert_eq!(pi.ade.stop_broker(), Some(0));
    pi.wait_alone(None, Duration::from_secs(1));
    for chat in [&working, &asking] {
        assert_eq!(status_of(&pi.ade.transcript(chat)), "interrupted");
    }
    assert!(!pi.ade.lane("lane").join("ran").exists());
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
    let resolved = wait_within("the card's end", SOON, || {
        let transcript = pi.ade.transcript(&asking);
        of_type(&transcript, "card_resolved")
            .first()
            .map(|event| event["resolution"].clone())
    });
    assert_eq!(
        resolved,
        json!({"outcome": "withdrawn", "why": "shutting_down"})
    );
}
