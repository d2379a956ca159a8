//! Talking: streams at once, messages in both directions, aborts, contexts.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use ade_leases::lease;
use ade_leases::owner::{self, Claim, Owner};
use ade_leases::record::OwnerKind;
use ade_tests::ade::wait_dead;
use ade_tests::pi::{PiAde, answer, bash, next, next_card, one_branch, session_lines, status_of};
use ade_tests::rpc::{text_of, types_of};
use ade_tests::turns::{lease_file, of_turn, of_type};
use serde_json::{Value, json};

use crate::{HELLO, SOON};

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
        let file = pi.ade.session_file(id);
        assert!(
            lease_file(&file).exists() && lease::is_held(&file),
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
        let file = pi.ade.session_file(id);
        let lines = one_branch(&file, &pi.ade.lane(lane));
        assert!(
            lines
                .iter()
                .any(|line| line["message"]["role"] == "assistant")
        );
        assert!(!lease_file(&file).exists() && !lease::is_held(&file));
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
    let lines = session_lines(&pi.ade.session_file(&chat));
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
    let messages = of_type(&transcript, "user_message");
    let said: Vec<(&Value, &Value)> = messages
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

/// Steers that wait behind a command are forgotten when the turn is aborted: Pi
/// never sends them to the model, and the chat says so.
#[test]
fn steers_behind_a_command_that_is_aborted_are_told_to_be_unread() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let (mut rpc, turn) = pi.send(&chat, &bash("sleep 300"));
    let sleep = pi.wait_command("sleep 300");
    for prompt in ["and this", "and that"] {
        let steered = json!({"sessionId": chat, "prompt": prompt});
        assert_eq!(rpc.call("chat.steer", steered)["outcome"], "queued");
    }
    rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(status_of(&rpc.until_done(&turn)), "interrupted");
    wait_dead(sleep);
    pi.completed(&chat, "hello");
    let heard = pi.contexts();
    let last = heard.last().unwrap();
    assert_eq!(last.last().unwrap(), "hello");
    let reached = |prompt: &str| heard.iter().flatten().any(|text| text == prompt);
    assert!(!reached("and this") && !reached("and that"), "{heard:?}");

    let events = of_turn(&pi.ade.checked_transcript(&chat), &turn);
    for prompt in ["and this", "and that"] {
        let messages = of_type(&events, "user_message");
        let said = messages.iter().filter(|event| event["text"] == prompt);
        assert_eq!(said.count(), 1, "{prompt}");
        let notices = of_type(&events, "notice");
        let told = notices.iter().filter_map(|event| event["message"].as_str());
        let named = told.filter(|told| told.contains("had not read") && told.contains(prompt));
        assert_eq!(named.count(), 1, "{prompt}: {notices:?}");
    }
    let (shown, _) = pi.ade.expect_code(0, &["chat", "show", &chat]);
    assert_eq!(shown.matches("had not read").count(), 2, "{shown}");
}

#[test]
fn an_abort_ends_a_running_command() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let (mut rpc, turn) = pi.send(&chat, &bash("sleep 300"));
    let sleep = pi.wait_command("sleep 300");
    let began = Instant::now();
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
    let compacted = of_type(&transcript, "context_compact");
    let phases: Vec<&Value> = compacted.iter().map(|event| &event["phase"]).collect();
    assert_eq!(phases, ["started", "completed"]);
    pi.completed(&chat, "four");
    let last = pi.contexts().pop().unwrap();
    assert!(!last.contains(&"one".to_owned()), "{last:?}");
    assert_eq!(last.last().unwrap(), "four");
}

#[test]
fn pi_says_how_full_its_context_is() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    pi.completed(&chat, "hello");
    let used = pi.ade.json(&["chat", "context", &chat]);
    let window = used["contextWindow"].as_u64().unwrap();
    assert!(window > 0, "{used}");
    let tokens = used["tokens"].as_u64().unwrap();
    assert!(tokens > 0 && tokens < window, "{used}");
}
