//! Chats: many at once, their transcripts and session files, the queue, and
//! going on in a new worker.

use std::fs;
use std::path::Path;

use ade_leases::lease;
use ade_leases::session_file;
use ade_tests::ade::Ade;
use ade_tests::rpc::text_of;
use ade_tests::turns::{dones, ended, lease_file, of_turn, of_type, owner_file};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

/// Text whose bytes are easily damaged on the way.
const ODD: &str =
    "Grüße \u{1F980}\u{200D} tab\there \u{2028} \\n \"quoted\" e\u{301} </script> \u{7f}";

fn started() -> Ade {
    let mut ade = Ade::new();
    ade.serve();
    ade
}

/// The users' messages in a session file.
fn said(file: &std::path::Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let entries = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries
        .filter(|entry| entry["message"]["role"] == "user")
        .map(|entry| {
            let text = entry["message"]["content"][0]["text"].as_str();
            text.unwrap().to_owned()
        })
        .collect()
}

#[test]
fn six_chats_in_three_lanes_stream_at_once_and_leave_whole_files() {
    let ade = started();
    let mut rpc = ade.rpc();
    let lanes = ["one", "two", "three"].map(|name| ade.lane(name));
    let chats: Vec<String> = (0..6)
        .map(|n| ade.chat(&mut rpc, "scripted", &lanes[n / 2], json!({})))
        .collect();
    // Two that never end by themselves: a slow one and a faster one.
    let mut endless = Vec::new();
    for (chat, pause) in [(&chats[0], 100), (&chats[1], 20)] {
        let (turn, after) = ade.send(&mut rpc, chat, &format!("!words 1000000 {pause}"));
        let mut watch = ade.rpc();
        watch.subscribe(chat, after);
        watch.event("the stream has begun", |e| e["event"]["type"] == "text");
        endless.push((chat, turn, watch));
    }
    // The other four run from end to end beside them, all at once.
    let sent: Vec<_> = chats[2..]
        .iter()
        .map(|chat| {
            let prompt = format!("{ODD} for {chat}");
            let (turn, after) = ade.send(&mut rpc, chat, &prompt);
            (chat, turn, after, prompt)
        })
        .collect();
    for (chat, turn, after, prompt) in &sent {
        let mut watch = ade.rpc();
        watch.subscribe(chat, *after);
        let events = watch.until_done(turn);
        assert_eq!(ended(&events), "completed");
        assert_eq!(text_of(&events), format!("You said: {prompt}"));
        let lines = of_turn(&ade.checked_transcript(chat), turn);
        assert_eq!(lines, events, "what was shown is what is on disk");
    }
    let files: Vec<_> = chats.iter().map(|chat| ade.session_file(chat)).collect();
    for (chat, file) in chats.iter().zip(&files) {
        assert!(lease::is_held(file) && lease_file(file).exists(), "{chat}");
        assert_eq!(ade.session(chat)["leaseHeld"], true);
    }
    for (chat, turn, watch) in &mut endless {
        let before = ade.session(chat)["lastSequence"].as_u64();
        watch.event("the stream goes on", |e| {
            e["sequence"].as_u64() > before && e["event"]["type"] == "text"
        });
        rpc.call("chat.abort", json!({"sessionId": chat}));
        let events = watch.until_done(turn);
        assert_eq!(ended(&events), "interrupted");
        let lines = of_turn(&ade.checked_transcript(chat), turn);
        let text = text_of(&lines);
        let words: Vec<&str> = text.split_terminator(' ').collect();
        for (n, word) in words.iter().enumerate() {
            assert_eq!(*word, format!("word{}", n + 1));
        }
    }
    for (n, (chat, file)) in chats.iter().zip(&files).enumerate() {
        rpc.call("chat.stop", json!({"sessionId": chat}));
        assert!(ade.is_free(file), "{chat}");
        assert!(owner_file(file).exists(), "{chat}");
        let owner: Value = serde_json::from_slice(&fs::read(owner_file(file)).unwrap()).unwrap();
        assert_eq!(owner["ownerSessionId"], chat.as_str());
        let report = session_file::check(file).unwrap();
        assert!(report.forks.is_empty() && report.orphans == 0, "{report:?}");
        assert!(report.objections().is_empty(), "{report:?}");
        let header = fs::read_to_string(file).unwrap();
        let header: Value = serde_json::from_str(header.lines().next().unwrap()).unwrap();
        assert_eq!(header["cwd"], lanes[n / 2].display().to_string());
    }
    assert_eq!(ade.litter(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_chat_goes_on_in_a_new_worker_with_its_file_and_context() {
    let ade = started();
    let mut rpc = ade.rpc();
    let lane = ade.lane("lane");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    ade.turn(&chat, "the first");
    ade.turn(&chat, "the second");
    let file = ade.session_file(&chat);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert_eq!(ade.session(&chat)["workerPid"], Value::Null);
    let events = ade.turn(&chat, "!recall");
    assert_eq!(text_of(&events), "the first | the second");
    assert_eq!(ade.session_file(&chat), file);
    assert_eq!(ade.session(&chat)["generation"], 2);

    // Another chat takes the file over once the first one has given it up.
    let _ = ade.checked_transcript(&chat);
    rpc.call("chat.delete", json!({"sessionId": chat}));
    let named = json!({"sessionFile": file.display().to_string()});
    let other = ade.chat(&mut rpc, "scripted", &lane, named);
    let events = ade.turn(&other, "!recall");
    assert_eq!(text_of(&events), "the first | the second | !recall");
    assert_eq!(ade.session_file(&other), file);
    assert_eq!(said(&file).len(), 4);
    let report = session_file::check(&file).unwrap();
    assert!(report.forks.is_empty(), "{report:?}");
    let _ = ade.checked_transcript(&other);
}

#[test]
fn a_file_of_another_chat_is_refused_with_whose_it_is() {
    let ade = started();
    let mut rpc = ade.rpc();
    let lane = ade.lane("lane");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    ade.turn(&chat, "mine");
    let file = ade.session_file(&chat);
    let owner_file = owner_file(&file);
    let owner = fs::read(&owner_file).unwrap();
    let link = file.with_file_name("link.jsonl");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let create = |path: &Path, more: Value| {
        let mut arguments = json!({"provider": "scripted", "lane": lane, "sessionFile": path});
        let all = arguments.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        ade.rpc().try_call("chat.create", arguments)
    };
    // With a worker and without one, however it is spelled.
    for step in 0..2 {
        for path in [&file, &link] {
            for more in [json!({}), json!({"takeOver": true})] {
                let error = create(path, more).unwrap_err();
                assert_eq!(error.kind, "owned", "{step}: {error:?}");
                let said = format!("{error:?}");
                for word in [chat.as_str(), "ade attach", "ade chat delete"] {
                    assert!(said.contains(word), "{step}: no {word:?} in {said}");
                }
            }
        }
        assert_eq!(fs::read(&owner_file).unwrap(), owner);
        rpc.call("chat.stop", json!({"sessionId": chat}));
    }
    let path = file.display().to_string();
    let run = [
        "run",
        "--provider",
        "scripted",
        "--session-file",
        &path,
        "x",
    ];
    let (_, stderr) = ade.expect_code(7, &run);
    assert!(stderr.contains(&chat), "{stderr}");

    // Given up, it may go to another one; of a stranger it must be taken.
    rpc.call("chat.delete", json!({"sessionId": chat}));
    for owner in ["sdk", "cli"] {
        let text = format!("{{\"owner\":\"{owner}\",\"ownerSessionId\":\"a stranger\"}}\n");
        fs::write(&owner_file, text).unwrap();
        let error = create(&file, json!({})).unwrap_err();
        assert_eq!(error.kind, "owned", "{error:?}");
        let said = format!("{error:?}");
        for word in ["a stranger", "--take-over", "takeOver"] {
            assert!(said.contains(word), "no {word:?} in {said}");
        }
        let taken = create(&file, json!({"takeOver": true})).unwrap();
        let taken = taken["sessionId"].as_str().unwrap().to_owned();
        assert_eq!(ended(&ade.turn(&taken, "mine now")), "completed");
        let now = fs::read_to_string(&owner_file).unwrap();
        assert!(now.contains(&taken), "{now}");
        rpc.call("chat.delete", json!({"sessionId": taken}));
        // Nobody's any more: the deleted chat does not keep it.
        let next = create(&file, json!({})).unwrap();
        // It is another one's from now on, though that one has yet to speak.
        let error = create(&file, json!({"takeOver": true})).unwrap_err();
        assert_eq!(error.kind, "owned", "{error:?}");
        rpc.call("chat.delete", json!({"sessionId": next["sessionId"]}));
    }
}

#[test]
fn a_file_that_was_deleted_or_replaced_is_told_and_not_written() {
    let ade = started();
    let mut rpc = ade.rpc();
    let lane = ade.lane("lane");
    let aside = ade.root().join("aside");
    for (replaced, what) in [(true, "replaced by a link"), (false, "was deleted")] {
        let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
        ade.turn(&chat, "hello");
        let file = ade.session_file(&chat);
        fs::rename(&file, &aside).unwrap();
        if replaced {
            std::os::unix::fs::symlink(&aside, &file).unwrap();
        }
        let before = fs::read(&aside).unwrap();
        let send = ["chat", "send", &chat, "--wait", "again"];
        let (_, stderr) = ade.expect_code(1, &send);
        let name = file.display().to_string();
        for words in [name.as_str(), what, "start a new chat"] {
            assert!(stderr.contains(words), "no {words:?} in {stderr}");
        }
        wait_true("the worker is gone", || {
            ade.session(&chat)["workerPid"].is_null() && ade.is_free(&file)
        });
        // The next worker does not write either.
        ade.expect_code(1, &send);
        assert_eq!(fs::read(&aside).unwrap(), before);
        // Put back, it goes on.
        fs::rename(&aside, &file).unwrap();
        let events = ade.turn(&chat, "!recall");
        assert_eq!(text_of(&events), "hello");
    }
}

#[test]
fn a_file_that_another_writer_holds_is_refused_with_who_and_since_when() {
    let ade = started();
    let mut rpc = ade.rpc();
    let lane = ade.lane("lane");
    let other = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    ade.turn(&other, "mine");
    let file = ade.session_file(&other);
    rpc.call("chat.stop", json!({"sessionId": other}));
    // A chat of another broker, as far as anybody can tell.
    let path = file.display().to_string();
    let hold = [
        "lease",
        "hold",
        &path,
        "--owner",
        "sdk",
        "--id",
        "ses_other",
    ];
    let mut holder = ade
        .command(&hold)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = String::new();
    let stdout = holder.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut held).unwrap();
    assert!(held.contains("held"), "{held}");
    let worker = holder.id().to_string();
    let record: Value = serde_json::from_slice(&fs::read(lease_file(&file)).unwrap()).unwrap();
    let since = record["acquiredAt"].as_str().unwrap();
    let (status, _) = ade.expect_code(0, &["lease", "status", &path]);
    assert!(status.contains("ADE_HOME of that chat"), "{status}");

    let events = ade.turn(&other, "mine too");
    assert_eq!(ended(&events), "failed");
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["category"], "lease");
    let detail = errors[0]["detail"].as_str().unwrap();
    assert_eq!(detail.lines().next(), Some("kind: held"));
    let message = errors[0]["message"].as_str().unwrap();
    assert!(message.contains(&worker), "{message}");
    assert!(message.contains(&since[11..16]), "{message} {since}");
    assert!(
        message.contains("ade chat stop ses_other"),
        "names the remedy: {message}"
    );
    assert_eq!(said(&file), ["mine"], "nothing was written beside it");

    let send = ["chat", "send", &other, "--wait", "x"];
    let (_, stderr) = ade.expect_code(4, &send);
    assert!(stderr.contains(&worker), "{stderr}");

    // The holder is not disturbed, and afterwards the file is free again.
    assert!(holder.try_wait().unwrap().is_none());
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert_eq!(ended(&ade.turn(&other, "now mine")), "completed");
}

#[test]
fn messages_wait_in_order_and_an_abort_ends_only_the_running_one() {
    let ade = started();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let (first, after) = ade.send(&mut rpc, &chat, "!hang");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    let mut turns = vec![first.clone()];
    for n in 1..=32 {
        let prompt = format!("message {n}");
        let sent = rpc.call("chat.send", json!({"sessionId": chat, "prompt": prompt}));
        assert_eq!(sent["place"], n);
        turns.push(sent["turnId"].as_str().unwrap().to_owned());
    }
    let one_more = json!({"sessionId": chat, "prompt": "one too many"});
    let full = rpc.try_call("chat.send", one_more).unwrap_err();
    assert_eq!(full.kind, "queue_full");
    assert!(full.message.contains("32"), "{}", full.message);
    assert_eq!(ade.session(&chat)["queued"], 32);

    // A turn that waits is not the one that runs.
    let wrong = json!({"sessionId": chat, "turnId": turns[5]});
    assert_eq!(rpc.call("chat.abort", wrong)["turnId"], Value::Null);
    ade.wait_state(&chat, "awaiting_first_event");
    let aborted = rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(aborted["turnId"], first.as_str());
    watch.until_done(turns.last().unwrap());
    let lines = ade.checked_transcript(&chat);
    let expected: Vec<(String, String)> = turns
        .iter()
        .zip(0..)
        .map(|(turn, n)| {
            let status = if n == 0 { "interrupted" } else { "completed" };
            (turn.clone(), status.to_owned())
        })
        .collect();
    assert_eq!(dones(&lines), expected);
    for (n, turn) in turns.iter().enumerate().skip(1) {
        assert_eq!(
            text_of(&of_turn(&lines, turn)),
            format!("You said: message {n}")
        );
    }
    // Nothing runs: there is nothing to abort.
    let aborted = rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(aborted["turnId"], Value::Null);
}

#[test]
fn a_steer_lands_in_the_running_turn_and_else_becomes_a_turn() {
    let ade = started();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let (turn, after) = ade.send(&mut rpc, &chat, "!words 1000000 50");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    watch.event("the stream has begun", |e| e["event"]["type"] == "text");
    let steered = rpc.call(
        "chat.steer",
        json!({"sessionId": chat, "prompt": "to the left"}),
    );
    assert_eq!(steered["outcome"], "delivered");
    let seen = watch.event("the steer's effect", |e| {
        let text = e["event"]["text"].as_str();
        text.is_some_and(|text| text.contains("steered: to the left"))
    });
    assert_eq!(seen["turnId"], turn.as_str());
    rpc.call("chat.abort", json!({"sessionId": chat}));
    watch.until_done(&turn);
    let lines = ade.checked_transcript(&chat);
    let users = of_type(&lines, "user_message");
    let vias: Vec<_> = users.iter().map(|user| &user["via"]).collect();
    assert_eq!(vias, ["send", "steer"]);
    assert_eq!(users[1]["text"], "to the left");
    // What the agent makes of it comes behind it.
    let place = |is: &dyn Fn(&Value) -> bool| lines.iter().position(|line| is(&line["event"]));
    let said = place(&|event| event["via"] == "steer");
    let answered = place(&|event| {
        let text = event["text"].as_str();
        text.is_some_and(|text| text.contains("steered: "))
    });
    assert!(said.is_some() && said < answered, "{lines:?}");

    let steered = rpc.call(
        "chat.steer",
        json!({"sessionId": chat, "prompt": "hello again"}),
    );
    assert_eq!(steered["outcome"], "queued");
    let turn = steered["turnId"].as_str().unwrap();
    let lines = ade.wait_done(&chat, turn);
    assert_eq!(text_of(&of_turn(&lines, turn)), "You said: hello again");
}

#[test]
fn events_of_every_kind_reach_client_and_transcript() {
    let ade = started();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let script = "!reasoning hm\n!tool read a file\n!usage\n!emit said\n!noise banner\n!bad-utf8\n\
                  !malformed 3\n!turnless\n!long-tool 10\n!env ADE_HOME\n!env HOME";
    let events = ade.turn(&chat, script);
    assert_eq!(ended(&events), "completed");
    assert_eq!(of_type(&events, "reasoning")[0]["text"], "hm");
    let results = of_type(&events, "tool_result");
    assert_eq!(
        (&results[0]["name"], &results[0]["text"]),
        (&json!("read"), &json!("a file"))
    );
    assert_eq!(results[1]["name"], "bash");
    assert_eq!(of_type(&events, "context_usage")[0]["tokens"], 110);
    assert_eq!(of_type(&events, "done")[0]["usage"]["totalTokens"], 110);
    let text = text_of(&events);
    let home = ade.user_home().display().to_string();
    assert_eq!(text, format!("saidcaf\u{fffd}unset{home}"));
    let notices = of_type(&ade.checked_transcript(&chat), "notice");
    assert_eq!(notices.len(), 1, "{notices:?}");

    let failed = ade.turn(&chat, "!error 429 too many requests");
    assert_eq!(ended(&failed), "failed");
    assert_eq!(of_type(&failed, "error")[0]["category"], "rate_limit");
    // A rate limit is no reason to replace the worker.
    assert_eq!(ade.session(&chat)["generation"], 1);
    let unknown = ade.turn(&chat, "!fly away");
    let error = &of_type(&unknown, "error")[0];
    assert!(
        error["message"].as_str().unwrap().contains("!fly"),
        "{error}"
    );
}

#[test]
fn the_model_can_be_chosen_before_and_while_a_worker_runs() {
    let ade = started();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let set = |rpc: &mut ade_tests::rpc::Rpc, model: &str| {
        rpc.try_call("chat.model", json!({"sessionId": chat, "model": model}))
    };
    set(&mut rpc, "scripted/parrot").unwrap();
    ade.turn(&chat, "hello");
    assert_eq!(ade.session(&chat)["model"], "scripted/parrot");
    set(&mut rpc, "scripted/echo").unwrap();
    assert_eq!(ade.session(&chat)["model"], "scripted/echo");
    let error = set(&mut rpc, "scripted/owl").unwrap_err();
    assert_eq!(error.kind, "model_not_found");
    assert!(error.message.contains("scripted/owl"), "{}", error.message);
    assert_eq!(ade.session(&chat)["model"], "scripted/echo");
}

#[test]
fn a_deleted_chat_leaves_only_the_agents_own_file() {
    let ade = started();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let kept = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.turn(&chat, "remember me");
    ade.turn(&kept, "me too");
    let file = ade.session_file(&chat);
    rpc.call("chat.delete", json!({"sessionId": chat}));
    assert!(ade.is_free(&file) && file.exists());
    assert!(!ade.transcript_path(&chat).exists());
    let gone = rpc.try_call("chat.show", json!({"sessionId": chat}));
    assert_eq!(gone.unwrap_err().kind, "not_found");
    assert_eq!(ended(&ade.turn(&kept, "and again")), "completed");
}

#[test]
fn the_context_is_asked_for_also_while_a_turn_runs() {
    let ade = started();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    let (_, stderr) = ade.expect_code(1, &["chat", "context", &chat]);
    assert!(stderr.contains("send a message first"), "{stderr}");
    ade.turn(&chat, "hello");
    let used = json!({"tokens": 1234, "contextWindow": 200_000, "percent": 0.6});
    assert_eq!(ade.json(&["chat", "context", &chat]), used);
    let (turn, after) = ade.send(&mut rpc, &chat, "!words 30 20");
    let (stdout, _) = ade.expect_code(0, &["chat", "context", &chat]);
    assert_eq!(stdout, "1234 of 200000 tokens (0.6%)\n");
    rpc.subscribe(&chat, after);
    assert_eq!(ended(&rpc.until_done(&turn)), "completed");
}
