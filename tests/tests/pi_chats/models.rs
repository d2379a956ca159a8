//! Models that fail, fall silent or are not there: what is sent again and what is told.

use std::fs;
use std::process::Output;
use std::time::Duration;

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, signal};
use ade_tests::pi::{PiAde, error_of, next, status_of};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::of_type;
use serde_json::{Value, json};

use crate::HELLO;

#[test]
fn f01_a_silent_agent_is_asked_twice_and_no_third_time() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane").display().to_string();
    let run = [
        "run",
        "--provider",
        "pi",
        "--lane",
        &lane,
        "--model",
        "fake/fake-wedge",
        "--first-event-ms",
        "2500",
        "Are you there?",
    ];
    let (stdout, stderr) = pi.ade.expect_code(8, &run);
    assert_eq!(stdout, "");
    assert_eq!(
        stderr.matches("started a fresh worker").count(),
        1,
        "{stderr}"
    );
    assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    assert_eq!(
        pi.contexts(),
        vec![vec!["Are you there?"]; 2],
        "once in each context"
    );

    let sessions = pi.ade.rpc().call("sessions.list", json!({}));
    let chat = sessions["sessions"][0]["sessionId"]
        .as_str()
        .unwrap()
        .to_owned();
    let transcript = pi.ade.transcript(&chat);
    assert_eq!(status_of(&transcript), "failed");
    assert_eq!(of_type(&transcript, "notice").len(), 1);
    assert_eq!(of_type(&transcript, "user_message").len(), 1);
    let error = error_of(&transcript);
    assert_eq!(error["category"], "timed_out");
    assert!(
        error["message"].as_str().unwrap().contains("twice"),
        "{error}"
    );

    pi.set_model(&chat, "fake/fake-text");
    assert_eq!(text_of(&pi.completed(&chat, "And now?")), HELLO);
    assert_eq!(pi.model.requests().len(), 3);
    assert_eq!(pi.contexts()[2].last().unwrap(), "And now?");
}

/// A chat whose model fell silent after `message`, and whose next worker will
/// use one that answers.
fn wedged(pi: &PiAde, message: &str, first_event_ms: u64) -> (String, Rpc, String) {
    let chat = pi.chat_with(
        "lane",
        json!({"model": "fake/fake-text", "permission": "full-auto",
            "firstEventMs": first_event_ms}),
    );
    pi.completed(&chat, "before");
    pi.set_model(&chat, "fake/fake-wedge");
    let (rpc, turn) = pi.send(&chat, message);
    pi.wait_requests(2);
    pi.set_model(&chat, "fake/fake-text");
    (chat, rpc, turn)
}

#[track_caller]
fn was_sent_again(pi: &PiAde, chat: &str, events: &[Value], message: &str, reason: &str) {
    assert_eq!(status_of(events), "completed", "{events:#?}");
    assert_eq!(text_of(events), HELLO);
    let notices = of_type(events, "notice");
    assert_eq!(notices.len(), 1, "{events:#?}");
    assert!(
        notices[0]["message"].as_str().unwrap().contains(reason),
        "{notices:?}"
    );
    assert_eq!(
        pi.contexts()[1..],
        vec![vec!["before", message]; 2],
        "once in the context"
    );
    assert_eq!(pi.ade.session(chat)["generation"], 2);
    pi.completed(chat, "after");
    assert_eq!(pi.contexts()[3], ["before", message, "after"]);
}

#[test]
fn f05_a_message_sent_again_stands_once_in_the_context() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = wedged(&pi, "lost", 3000);
    let events = rpc.until_done(&turn);
    was_sent_again(&pi, &chat, &events, "lost", "stopped responding");
}

/// Stops a process of a silent turn for good; the watchdog must get past it.
#[track_caller]
fn freeze(which: &str) {
    let config = "[worker]\neof_grace_ms = 300\n\
        [providers.pi]\ndispose_grace_ms = 500\nterm_to_kill_ms = 500\n";
    let pi = PiAde::serve_with(config);
    let (chat, mut rpc, turn) = wedged(&pi, "lost", 1500);
    let frozen = pi.pid(&chat, which);
    signal(frozen, Signal::SIGSTOP);
    let events = rpc.until_done(&turn);
    was_sent_again(&pi, &chat, &events, "lost", "stopped responding");
    assert!(!is_alive(frozen), "{which}");
}

/// A steer that the frozen agent had taken: its model never got it, nor does the one
/// that the message is sent to again, and the chat says so.
#[test]
fn a_steer_that_a_frozen_host_took_is_told_of() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = wedged(&pi, "lost", 4000);
    let asked = json!({"sessionId": chat, "prompt": "and this"});
    assert_eq!(rpc.call("chat.steer", asked)["outcome"], "queued");
    signal(pi.pid(&chat, "hostPid"), Signal::SIGSTOP);
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "completed", "{events:#?}");
    let notices = of_type(&events, "notice");
    let texts: Vec<&str> = notices
        .iter()
        .filter_map(|notice| notice["message"].as_str())
        .collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(
        texts[0].contains("not sent to another one") && texts[0].contains("and this"),
        "{texts:?}"
    );
    assert!(texts[1].contains("stopped responding"), "{texts:?}");
    assert_eq!(pi.contexts()[1..], vec![vec!["before", "lost"]; 2]);
}

#[test]
fn a_frozen_host_is_replaced() {
    freeze("hostPid");
}

#[test]
fn a_frozen_worker_is_replaced() {
    freeze("workerPid");
}

#[test]
fn a_host_that_dies_before_it_answered_is_replaced_once() {
    let pi = PiAde::serve();
    let (chat, mut rpc, turn) = wedged(&pi, "lost", 60_000);
    signal(pi.pid(&chat, "hostPid"), Signal::SIGKILL);
    let events = rpc.until_done(&turn);
    was_sent_again(&pi, &chat, &events, "lost", "SIGKILL");
}

#[test]
fn a_turn_that_spoke_is_never_sent_again() {
    let pi = PiAde::serve();
    let chat = pi.chat_with(
        "lane",
        json!({"model": "fake/fake-wedge-mid", "permission": "full-auto", "firstEventMs": 1500}),
    );
    let (mut rpc, turn) = pi.send(&chat, "speak");
    assert_eq!(next(&mut rpc, "text")["text"], "half");
    // Longer than the silence that would replace a worker which had said nothing.
    let more = rpc.line(Duration::from_millis(2500));
    assert!(more.is_none(), "{more:?}");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(status_of(&rpc.until_done(&turn)), "interrupted");
    assert_eq!(pi.model.requests().len(), 1);

    let (mut rpc, turn) = pi.send(&chat, "speak again");
    next(&mut rpc, "text");
    signal(pi.pid(&chat, "hostPid"), Signal::SIGKILL);
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "failed");
    let error = error_of(&events);
    assert_eq!(error["category"], "exited");
    assert!(
        error["message"].as_str().unwrap().contains("SIGKILL"),
        "{error}"
    );
    assert_eq!(pi.model.requests().len(), 2);
    assert!(of_type(&pi.ade.transcript(&chat), "notice").is_empty());
}

#[test]
fn failures_of_the_model_are_told_by_their_class() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    pi.completed(&chat, "hello");
    for (model, category, word) in [
        ("fake-401", "auth", "bad key"),
        ("fake-429", "rate_limit", "fake rate limit"),
        ("fake-500", "unknown", "fake internal error"),
        ("fake-cut", "network", "closed"),
    ] {
        let before = pi.model.requests().len();
        pi.set_model(&chat, &format!("fake/{model}"));
        let events = pi.ade.turn(&chat, "hello");
        assert_eq!(status_of(&events), "failed", "{model}");
        let error = error_of(&events);
        assert_eq!(error["category"], category, "{model}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(word),
            "{model}: {error}"
        );
        assert!(
            of_type(&events, "notice").is_empty(),
            "{model}: {events:#?}"
        );
        assert_eq!(
            pi.model.requests().len(),
            before + 1,
            "{model} was asked once"
        );
    }
    assert_eq!(pi.ade.session(&chat)["generation"], 1);
    pi.set_model(&chat, "fake/fake-text");
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);

    let id = chat.as_str();
    pi.set_model(id, "fake/fake-401");
    let (_, stderr) = pi
        .ade
        .expect_code(6, &["chat", "send", id, "--wait", "hello"]);
    assert!(stderr.contains("bad key"), "{stderr}");
}

#[test]
fn a_connection_that_breaks_is_tried_once_more() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    pi.completed(&chat, "hello");
    let PiAde { ade, model } = pi;
    model.stop();
    let events = ade.turn(&chat, "anybody?");
    assert_eq!(status_of(&events), "failed");
    assert_eq!(error_of(&events)["category"], "network");
    let notices = of_type(&events, "notice");
    assert_eq!(notices.len(), 1, "{events:#?}");
    assert!(
        notices[0]["message"]
            .as_str()
            .unwrap()
            .contains("connection dropped")
    );
    assert_eq!(ade.session(&chat)["generation"], 2);
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

/// Runs a command without the keys that a developer's environment may hold.
fn without_keys(ade: &Ade, args: &[&str]) -> Output {
    let mut command = ade.command(args);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.ends_with("_KEY") || name.ends_with("_TOKEN") {
            command.env_remove(name);
        }
    }
    command.output().unwrap()
}

#[test]
fn a_pi_without_a_usable_model_says_what_to_do() {
    let broken = "{\"providers\": {";
    for (models, words) in [
        ("{\"providers\": {}}", ["/login", "models.json", "API key"]),
        (
            broken,
            ["Failed to parse models.json", "models.json", "/login"],
        ),
    ] {
        let pi = PiAde::without_broker(&[]);
        fs::write(pi.ade.agent_dir().join("models.json"), models).unwrap();
        let lane = pi.ade.lane("lane").display().to_string();
        let run = ["run", "--provider", "pi", "--lane", &lane, "hello"];
        let output = without_keys(&pi.ade, &run);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{models}: {stderr}");
        assert!(output.stdout.is_empty());
        for word in words {
            assert!(stderr.contains(word), "{models}: no {word:?} in {stderr}");
        }
        if models == broken {
            let text = fs::read_to_string(pi.ade.agent_dir().join("models.json")).unwrap();
            assert_eq!(text, broken, "the user's file is not ours to write");
        }
    }
}
