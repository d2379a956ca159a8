//! Sessions with the scripted host: handshake, turns, cards, aborts.

mod common;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Rig, TOKEN, runs};
use serde_json::json;

#[tokio::test]
async fn a_session_from_hello_to_dispose() {
    let mut rig = Rig::scripted();
    let hello = rig.accept().await;
    assert_eq!(hello["generation"], 3);
    assert_eq!(hello["lastSeq"], 0);
    assert_eq!(hello["pid"], rig.pid());
    rig.request_as("early", "models", json!({})).await;
    let attach = rig.request("attach", json!({"fence": 7, "ack": 0})).await;
    let attached = rig.response(&attach).await;
    assert_eq!(attached["result"]["state"]["fence"], 7);
    let body = rig.init_body();
    let init = rig.request("init", body).await;
    let ready = rig.response(&init).await;
    assert_eq!(ready["result"]["provider"], "scripted");
    assert_eq!(ready["result"]["currentModel"]["id"], "echo");
    assert!(
        rig.lease_file().exists(),
        "the lease is held before `init` is answered"
    );
    let lifecycle = rig.lifecycle("ready");
    assert_eq!(lifecycle.len(), 1);
    assert_eq!(lifecycle[0]["detail"]["leaseHeld"], true);
    assert!(
        rig.seen.iter().all(|frame| frame["requestId"] != "early"),
        "before `attach` nothing counts"
    );

    let end = rig.turn("t1", "hello to you").await;
    assert_eq!(end["result"]["status"], "completed");
    assert_eq!(end["detail"]["turnId"], "t1");
    assert_eq!(rig.text("t1"), "You said: hello to you");
    assert_eq!(rig.seqs(), (1..=5).collect::<Vec<u64>>());
    let last = rig
        .seen
        .iter()
        .rposition(|frame| frame["type"] == "event")
        .unwrap();
    let answer = rig
        .seen
        .iter()
        .position(|frame| frame["requestId"] == "send-t1")
        .unwrap();
    assert!(last < answer, "no event of the turn comes after its end");

    let owner = std::fs::read_to_string(rig.store().join("ses_test.jsonl.ade-owner")).unwrap();
    assert!(owner.contains(r#""ownerSessionId":"ses_test""#), "{owner}");
    let file = std::fs::read_to_string(rig.session_file()).unwrap();
    assert_eq!(file.lines().count(), 3, "{file}");
    rig.dispose().await;
    rig.exits_in_order();
    assert_eq!(rig.stages(), ["dispose", "sweep"]);
    assert_eq!(rig.stderr(), "");
}

#[tokio::test]
async fn requests_are_answered_or_refused_with_a_word() {
    let mut rig = Rig::scripted();
    rig.attach(1, 0).await;
    let early = rig.turn("t0", "hello").await;
    assert_eq!(early["errorCode"], "not_ready");
    let body = rig.init_body();
    let init = rig.request("init", body.clone()).await;
    rig.response(&init).await;
    let again = rig.request("init", body).await;
    assert_eq!(
        rig.response(&again).await["errorCode"],
        "already_initialised"
    );
    let send = rig.begin("t1", "!hang").await;
    let busy = rig
        .request("send", json!({"turnId": "t2", "prompt": "x"}))
        .await;
    assert_eq!(rig.response(&busy).await["errorCode"], "busy");
    let steer = rig.request("steer", json!({"prompt": "faster"})).await;
    assert_eq!(rig.response(&steer).await["result"]["outcome"], "delivered");
    let models = rig.request("models", json!({})).await;
    assert_eq!(
        rig.response(&models).await["result"][0]["provider"],
        "scripted"
    );
    let model = rig
        .request("set_model", json!({"modelRef": "scripted/parrot"}))
        .await;
    assert_eq!(
        rig.response(&model).await["result"]["currentModel"]["id"],
        "parrot"
    );
    let model = rig
        .request("set_model", json!({"modelRef": "no/such"}))
        .await;
    assert_eq!(rig.response(&model).await["errorCode"], "model_not_found");
    let other = rig.abort("t9").await;
    assert_eq!(rig.response(&other).await["ok"], true);
    let abort = rig.abort("t1").await;
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "interrupted");
    rig.response(&abort).await;
    assert_eq!(rig.text("t1"), "steered: faster");
    let usage = rig.request("context_usage", json!({})).await;
    assert_eq!(
        rig.response(&usage).await["result"]["contextWindow"],
        200_000
    );
    let failed = rig.turn("t2", "!error 429: slow down").await;
    assert_eq!(failed["result"]["status"], "failed");
    assert_eq!(failed["result"]["error"], "429: slow down");
}

#[tokio::test]
async fn a_session_is_resumed_from_its_file() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    rig.turn("t1", "first words").await;
    rig.turn("t2", "second words").await;
    rig.dispose().await;
    rig.exits_in_order();
    let file = rig.session_file();

    let mut next = Rig::scripted();
    let mut body = next.init_body();
    body["store"]["sessionRoot"] = json!(rig.store());
    body["session"] = json!({"sessionFile": file, "resume": true});
    next.ready_with(body.clone()).await;
    next.turn("t3", "!recall").await;
    assert_eq!(next.text("t3"), "first words | second words");
    next.dispose().await;

    let mut gone = Rig::scripted();
    body["session"]["sessionFile"] = json!(rig.store().join("no-such.jsonl"));
    gone.attach(1, 0).await;
    let init = gone.request("init", body).await;
    let refused = gone.response(&init).await;
    assert_eq!(refused["errorCode"], "session_not_found");
    let message = refused["error"].as_str().unwrap();
    assert!(message.contains("start a new chat"), "{message}");
    gone.drain().await;
    gone.exits_in_order();
}

#[tokio::test]
async fn cards_allow_deny_and_allow_for_the_session() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    let result = |rig: &Rig, turn: &str| {
        let events = rig.events(turn);
        let result = events
            .iter()
            .find(|event| event["type"] == "tool_result")
            .cloned();
        result.expect("a result")["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for (turn, ok, value, expected) in [
        ("t1", true, "allow", "ok"),
        ("t2", false, "allow", "denied"),
        ("t3", true, "Allow", "denied"),
        ("t4", true, "allow_session", "ok"),
    ] {
        let send = rig.begin(turn, "!card Run it? | rm -rf build").await;
        let card = rig.card().await;
        assert_eq!(card["turnId"], turn);
        assert_eq!(card["payload"]["sourceId"], "bash");
        rig.answer(&card, ok, value).await;
        // A second answer must reach nobody.
        rig.answer(&card, true, "allow").await;
        rig.response(&send).await;
        assert_eq!(result(&rig, turn), expected, "{value}");
    }
    let before = rig.seen.len();
    rig.turn("t5", "!card Run it? | make").await;
    assert_eq!(result(&rig, "t5"), "ok");
    assert!(
        rig.seen[before..]
            .iter()
            .all(|frame| frame["type"] != "ui_request"),
        "nobody is asked again"
    );
    let send = rig.begin("t6", "!card Edit it? | a file | edit").await;
    let card = rig.card().await;
    rig.answer(&card, true, "allow").await;
    rig.response(&send).await;

    let send = rig.begin("t7", "!ask Which? | red, blue").await;
    let card = rig.card().await;
    rig.answer(&card, true, "green").await;
    rig.response(&send).await;
    assert_eq!(rig.text("t7"), "unanswered");
    let send = rig.begin("t8", "!secret Your key?").await;
    let card = rig.card().await;
    rig.answer(&card, true, "hunter2!").await;
    rig.response(&send).await;
    assert_eq!(rig.text("t8"), "secret of 8 characters");
    assert!(
        rig.seen
            .iter()
            .all(|frame| !frame.to_string().contains("hunter2!"))
    );
}

#[tokio::test]
async fn an_abort_withdraws_the_card_and_denies_it() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    let send = rig.begin("t1", "!card Run it? | make\n!emit never").await;
    let card = rig.card().await;
    rig.abort("t1").await;
    let cancel = rig
        .until("a cancel", |frame| frame["type"] == "ui_cancel")
        .await;
    assert_eq!(cancel["requestId"], card["requestId"]);
    rig.answer(&card, true, "allow").await;
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "interrupted");
    let results: Vec<_> = rig
        .events("t1")
        .into_iter()
        .filter(|event| event["ok"] == true)
        .collect();
    assert!(results.is_empty(), "{results:?}");
    assert_eq!(
        rig.turn("t2", "!emit on").await["result"]["status"],
        "completed"
    );
}

#[tokio::test]
async fn an_abort_ends_every_kind_of_step_at_once() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    let steps = [
        "!hang",
        "!delay 60000",
        "!words 1000 50",
        "!long-tool 60000",
        "!card Run? | make",
        "!ask Which? | a,b",
        "!secret Key?",
        "!events 100000000 100",
        "!ignore-term\n!hang",
        "!tool read text\n!reasoning hm\n!usage\n!turnless\n!hang",
    ];
    for (index, step) in steps.iter().enumerate() {
        let turn = format!("t{index}");
        let send = rig.begin(&turn, &format!("!emit begun\n{step}")).await;
        rig.until("the turn begins", |frame| frame["event"]["text"] == "begun")
            .await;
        let asked = Instant::now();
        let abort = rig.abort(&turn).await;
        let end = rig.response(&send).await;
        assert_eq!(end["result"]["status"], "interrupted", "{step}");
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(3), "{step} took {took:?}");
        assert_eq!(rig.response(&abort).await["ok"], true, "{step}");
    }
}

#[tokio::test]
async fn the_environment_holds_the_mark_and_no_token() {
    let mut rig = Rig::scripted();
    let mut body = rig.init_body();
    body["env"] = json!({"FOR_THE_HOST": "yes", "ADE_WORKER_MARK": "forged"});
    let ready = rig.ready_with(body).await;
    rig.turn(
        "t1",
        "!env FOR_THE_HOST\n!emit  \n!env ADE_WORKER_MARK\n!emit  \n!env HOME",
    )
    .await;
    assert_eq!(
        rig.text("t1").replace('\n', " "),
        format!("yes{}unset", rig.mark)
    );
    let host = ready["hostPid"].as_i64().unwrap();
    for pid in [host, i64::from(rig.pid())] {
        for file in ["environ", "cmdline"] {
            let content = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(
                !String::from_utf8_lossy(&content).contains(TOKEN),
                "{file} of {pid}"
            );
        }
    }
}

#[tokio::test]
async fn nothing_leaks_into_the_host() {
    // The worker inherits a descriptor that nobody marked close-on-exec.
    let (stray, _other) = nix::unistd::pipe().unwrap();
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    let host = ready["hostPid"].as_i64().unwrap();
    let open = |pid: i64| -> Vec<(i32, String)> {
        let mut open: Vec<(i32, String)> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let target = std::fs::read_link(entry.path()).unwrap_or_default();
                let fd = entry.file_name().to_str().unwrap().parse().unwrap();
                (fd, target.to_string_lossy().into_owned())
            })
            .collect();
        open.sort();
        open
    };
    let fds = open(host);
    assert_eq!(fds.len(), 3, "{fds:?}");
    assert!(
        fds.iter()
            .all(|(fd, target)| *fd < 3 && target.starts_with("pipe:")),
        "{fds:?}"
    );
    let stray = std::fs::read_link(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&stray)
    ))
    .unwrap();
    let inherited = open(i64::from(rig.pid()));
    assert!(
        inherited
            .iter()
            .all(|(_, target)| *target != stray.to_string_lossy()),
        "{inherited:?}"
    );
    assert_eq!(inherited[0].1, "/dev/null");
}

#[tokio::test]
async fn a_held_session_is_refused_and_the_worker_ends() {
    let mut holder = Rig::scripted();
    holder.ready().await;
    holder.turn("t1", "mine").await;

    for with_file in [true, false] {
        let mut other = Rig::scripted();
        other.attach(1, 0).await;
        let mut body = other.init_body();
        body["store"]["sessionRoot"] = json!(holder.store());
        if with_file {
            body["session"] = json!({"sessionFile": holder.session_file()});
        }
        let init = other.request("init", body).await;
        let refused = other.response(&init).await;
        assert_eq!(refused["errorCode"], "held", "{refused}");
        let message = refused["error"].as_str().unwrap();
        assert!(message.contains(&holder.pid().to_string()), "{message}");
        assert!(message.contains("ses_test"), "{message}");
        other.drain().await;
        assert_eq!(other.exit().code(), Some(0));
        let started = other.lifecycle("host_exited");
        assert_eq!(
            started.is_empty(),
            with_file,
            "no host is started for a file that is held"
        );
    }
    assert!(holder.lease_file().exists());
    assert_eq!(
        holder.turn("t2", "still mine").await["result"]["status"],
        "completed"
    );
}

#[tokio::test]
async fn a_lost_lease_stops_the_host_at_once() {
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    let send = rig.begin("t1", "!ignore-term\n!emit begun\n!hang").await;
    rig.until("the turn begins", |frame| frame["event"]["text"] == "begun")
        .await;
    std::fs::remove_file(rig.lease_file()).unwrap();
    let lost = Instant::now();
    let end = rig.response(&send).await;
    assert!(
        lost.elapsed() < Duration::from_secs(3),
        "{:?}",
        lost.elapsed()
    );
    assert_eq!(end["errorCode"], "lease_lost");
    assert!(
        rig.seen
            .iter()
            .any(|frame| frame["type"] == "error" && frame["operation"] == "lease_lost")
    );
    rig.drain().await;
    assert_eq!(rig.exit().code(), Some(0));
    assert!(!runs(
        i32::try_from(ready["hostPid"].as_i64().unwrap()).unwrap()
    ));
    assert_eq!(rig.stages(), ["kill", "sweep"]);
}

#[tokio::test]
async fn a_link_is_no_session_file_of_the_scripted_host() {
    let mut rig = Rig::scripted();
    let aside = rig.dir.path().join("aside");
    std::fs::create_dir(rig.store()).unwrap();
    std::fs::write(&aside, "").unwrap();
    symlink(&aside, rig.session_file()).unwrap();
    rig.attach(1, 0).await;
    let init = rig.request("init", rig.init_body()).await;
    let refused = rig.response(&init).await;
    assert_eq!(refused["errorCode"], "session_invalid", "{refused}");
    let message = refused["error"].as_str().unwrap();
    assert!(message.contains("is a link"), "{message}");
    rig.drain().await;
    rig.exits_in_order();
    assert_eq!(std::fs::read(&aside).unwrap(), b"");
}

/// The refusal of a message after `change` was done to the idle session's file,
/// which is moved to `aside` before; and what the worker does then.
async fn refused_after(change: impl FnOnce(&Path, &Path), what: &str) -> Rig {
    let mut rig = Rig::scripted();
    let ready = rig.ready().await;
    for turn in ["t1", "t2"] {
        let end = rig.turn(turn, "hello").await;
        assert_eq!(end["result"]["status"], "completed", "{end}");
    }
    let (file, aside) = (rig.session_file(), rig.dir.path().join("aside"));
    std::fs::rename(&file, &aside).unwrap();
    let before = std::fs::read(&aside).unwrap();
    change(&file, &aside);
    let end = rig.turn("t3", "hello").await;
    assert_eq!(end["errorCode"], "session_changed", "{end}");
    let message = end["error"].as_str().unwrap();
    for words in [file.to_str().unwrap(), what, "start a new chat"] {
        assert!(message.contains(words), "no {words:?} in {message}");
    }
    rig.drain().await;
    assert_eq!(rig.exit().code(), Some(0));
    assert_eq!(rig.stages(), ["kill", "sweep"]);
    let host = i32::try_from(ready["hostPid"].as_i64().unwrap()).unwrap();
    assert!(!runs(host));
    assert!(!rig.lease_file().exists(), "the lease is free");
    assert_eq!(
        std::fs::read(&aside).unwrap(),
        before,
        "nothing was written"
    );
    rig
}

#[tokio::test]
async fn a_session_file_that_became_a_link_is_not_written_through() {
    let link = |file: &Path, aside: &Path| symlink(aside, file).unwrap();
    let rig = refused_after(link, "replaced by a link").await;
    assert!(rig.session_file().is_symlink());
}

#[tokio::test]
async fn a_session_file_that_was_deleted_is_not_made_again() {
    let rig = refused_after(|_, _| {}, "was deleted").await;
    assert!(!rig.session_file().exists());
}

#[tokio::test]
async fn a_session_file_that_was_exchanged_is_not_written() {
    let copy = |file: &Path, aside: &Path| {
        std::fs::copy(aside, file).unwrap();
    };
    let rig = refused_after(copy, "replaced by another file").await;
    let same = std::fs::read(rig.dir.path().join("aside")).unwrap();
    assert_eq!(std::fs::read(rig.session_file()).unwrap(), same);
}

#[tokio::test]
async fn a_store_that_moved_behind_a_link_is_not_written() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    rig.turn("t1", "hello").await;
    let moved = rig.dir.path().join("moved");
    std::fs::rename(rig.store(), &moved).unwrap();
    symlink(&moved, rig.store()).unwrap();
    let model = rig
        .request("set_model", json!({"modelRef": "scripted/parrot"}))
        .await;
    let refused = rig.response(&model).await;
    assert_eq!(refused["errorCode"], "session_changed", "{refused}");
    rig.drain().await;
    assert_eq!(rig.exit().code(), Some(0));
}

#[tokio::test]
async fn what_waited_behind_a_refused_message_is_told_why_as_well() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    rig.turn("t1", "hello").await;
    std::fs::remove_file(rig.session_file()).unwrap();
    let send = |turn: &str| {
        let frame = json!({
            "protocolVersion": 2, "type": "send", "requestId": turn,
            "turnId": turn, "prompt": "hello",
        });
        frame.to_string()
    };
    // In one piece: the worker has both before it can be over.
    let both = format!("{}\n{}\n", send("t2"), send("t3"));
    rig.send_line(&both).await;
    let first = rig.response("t2").await;
    let second = rig.response("t3").await;
    assert_eq!(second["errorCode"], "session_changed", "{second}");
    assert_eq!(second["error"], first["error"]);
    rig.drain().await;
    assert_eq!(rig.exit().code(), Some(0));
}
