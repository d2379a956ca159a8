//! What a host's three pipes may carry: cut, broken, foreign and too much.

mod common;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use ade_protocol::boot::HostCommand;
use common::{Rig, fixture, shell, timing};
use serde_json::json;

/// Reads `init`, says the first `ready` line of the fixture and what stands
/// before it, reads `send`, says the rest.
fn play(name: &str) -> HostCommand {
    let file = fixture(name);
    let lines = std::fs::read(&file).unwrap();
    let is_ready = |line: &[u8]| line.windows(7).any(|word| word == b"\"ready\"");
    let ready = lines
        .split(|byte| *byte == b'\n')
        .position(is_ready)
        .unwrap()
        + 1;
    let file = file.display();
    shell(&format!(
        "read -r _; sed {ready}q '{file}'; read -r _; sed 1,{ready}d '{file}'; exec cat >/dev/null"
    ))
}

/// As [`play`], with the rest in the given pieces, one write each.
fn play_cut(name: &str, cut: impl Fn(&[u8]) -> Vec<usize>) -> HostCommand {
    let bytes = std::fs::read(fixture(name)).unwrap();
    let ready = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut script = format!(
        "read -r _; sed 1q '{}'; read -r _\n",
        fixture(name).display()
    );
    let mut rest = &bytes[ready..];
    for size in cut(rest) {
        let (piece, more) = rest.split_at(size.min(rest.len()));
        rest = more;
        script.push_str("printf '");
        for byte in piece {
            write!(script, "\\{byte:03o}").unwrap();
        }
        script.push_str("'\n");
    }
    script.push_str("exec cat >/dev/null");
    shell(&script)
}

async fn run(host: HostCommand) -> (Rig, serde_json::Value) {
    let mut rig = Rig::start(host, timing());
    rig.ready().await;
    let end = rig.turn("t1", "go").await;
    (rig, end)
}

fn sizes(name: &str) -> Vec<usize> {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

#[tokio::test]
async fn d01_frames_do_not_depend_on_the_reads() {
    type Cut = fn(&[u8]) -> Vec<usize>;
    let cuts: [Cut; 3] = [
        |_| sizes("D01.chunks"),
        |rest| vec![1; rest.len()],
        |rest| vec![rest.len()],
    ];
    for cut in cuts {
        let (rig, end) = run(play_cut("D01.frames", cut)).await;
        assert_eq!(end["result"]["status"], "completed");
        assert_eq!(rig.text("t1"), "one");
    }
}

#[tokio::test]
async fn d02_letters_that_are_cut_arrive_whole() {
    let (rig, end) = run(play_cut("D02.frames", |rest| vec![1; rest.len()])).await;
    assert_eq!(end["result"]["status"], "completed");
    let bytes = std::fs::read_to_string(fixture("D02.frames")).unwrap();
    let text = rig.text("t1");
    assert!(!text.is_empty() && bytes.contains(&text), "{text}");
    assert!(text.starts_with("é 日本"));
}

#[tokio::test]
async fn d03_a_long_line_arrives_whole() {
    let began = Instant::now();
    let (rig, end) = run(play("D03-200k.frames")).await;
    assert_eq!(end["result"]["status"], "completed");
    assert!(rig.text("t1").len() >= 200_000 - 64);
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn d06_noise_is_kept_aside() {
    let (mut rig, end) = run(play("D06-noise.frames")).await;
    assert_eq!(end["result"]["status"], "completed");
    assert_eq!(rig.text("t1"), "ok");
    rig.dispose().await;
    let exited = rig.lifecycle("host_exited");
    let detail = &exited[0]["detail"];
    assert_eq!(detail["noiseLines"], 5, "{detail}");
    assert_eq!(detail["malformedFrames"], 1, "{detail}");
    assert!(
        detail["noise"].as_str().unwrap().contains("npm notice"),
        "{detail}"
    );
}

#[tokio::test]
async fn d08_bytes_that_are_no_text_end_nothing() {
    let (rig, end) = run(play("D08-bad-utf8.frames")).await;
    assert_eq!(end["result"]["status"], "completed");
    assert_eq!(rig.text("t1"), "caf\u{fffd}after");
    let mut rig = Rig::scripted();
    rig.ready().await;
    assert_eq!(
        rig.turn("t1", "!bad-utf8\n!emit  on").await["result"]["status"],
        "completed"
    );
    assert_eq!(rig.text("t1"), "caf\u{fffd}on");
}

#[tokio::test]
async fn d10_line_separators_are_text() {
    let (rig, end) = run(play("D10-u2028.frames")).await;
    assert_eq!(end["result"]["status"], "completed");
    assert_eq!(rig.text("t1"), "a\u{2028}b\u{2029}c");
}

#[tokio::test]
async fn d12_malformed_frames_are_counted_and_twenty_in_a_row_end_the_worker() {
    let (mut rig, end) = run(play("D12-malformed.frames")).await;
    assert_eq!(end["result"]["status"], "completed");
    assert_eq!(rig.text("t1"), "still here");
    rig.dispose().await;
    assert_eq!(
        rig.lifecycle("host_exited")[0]["detail"]["malformedFrames"],
        4
    );

    let mut rig = Rig::scripted();
    rig.ready().await;
    let end = rig
        .turn("t1", "!malformed 19\n!emit fine\n!malformed 19")
        .await;
    assert_eq!(end["result"]["status"], "completed");
    let end = rig.turn("t2", "!malformed 25\n!hang").await;
    assert_eq!(end["errorCode"], "protocol_error");
    rig.drain().await;
    rig.exits_in_order();
}

/// A worker whose host answers `init` with this; what the worker made of it.
async fn opened_with(ready: &str) -> serde_json::Value {
    let script = format!("read -r _; echo '{ready}'; exec sleep 300");
    let mut rig = Rig::start(shell(&script), timing());
    rig.attach(1, 0).await;
    let body = rig.init_body();
    let init = rig.request("init", body).await;
    let refused = rig.response(&init).await;
    rig.drain().await;
    rig.exits_in_order();
    refused
}

/// The patience of the tests is shorter than the time that `init` has.
#[tokio::test]
async fn a_ready_that_is_not_valid_ends_the_start_at_once_and_says_what_is_wrong() {
    let table = [
        (
            r#"{"protocolVersion":2,"provider":"x","version":"1","sessionFile":7}"#,
            "field `sessionFile`",
        ),
        (
            r#"{"protocolVersion":2,"provider":"x"}"#,
            "missing field `version`",
        ),
        (
            r#"{"protocolVersion":2,"provider":"secret","version":["secret"]}"#,
            "field `version`",
        ),
        ("7", "`ready` is not valid"),
    ];
    for (ready, wrong) in table {
        let refused = opened_with(&format!(
            r#"{{"protocolVersion":2,"type":"ready","ready":{ready}}}"#
        ))
        .await;
        assert_eq!(refused["errorCode"], "protocol_error", "{refused}");
        let message = refused["error"].as_str().unwrap();
        assert!(
            message.contains("`ready`") && message.contains(wrong),
            "{message}"
        );
        assert!(!message.contains("secret"), "{message}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_valid_is_the_end_of_what_waits_for_it() {
    let ready = r#"{"protocolVersion":2,"type":"ready","ready":{"protocolVersion":2,"provider":"x","version":"1"}}"#;
    // One to nothing is only counted.
    let stray = r#"{"protocolVersion":2,"type":"response","requestId":"nothing","ok":7}"#;
    let bad = r#"{"protocolVersion":2,"type":"response","requestId":"send-t1","ok":"yes"}"#;
    let script = format!(
        "read -r _; echo '{ready}'; read -r _; echo '{stray}'; echo '{bad}'; exec sleep 300"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let end = rig.turn("t1", "go").await;
    assert_eq!(end["errorCode"], "protocol_error", "{end}");
    let message = end["error"].as_str().unwrap();
    assert!(message.contains("answer to `send`"), "{message}");
    rig.drain().await;
    rig.exits_in_order();
}

#[tokio::test]
async fn d14_unknown_types_are_skipped_and_other_versions_refused() {
    let (rig, end) = run(play("D14-unknown-type.frames")).await;
    assert_eq!(end["result"]["status"], "completed");
    assert_eq!(rig.text("t1"), "ok");
    assert!(
        rig.seen
            .iter()
            .any(|frame| frame["type"] == "log" && frame.to_string().contains("sparkle"))
    );

    let mut rig = Rig::start(
        shell(r#"read -r _; echo '{"protocolVersion":3,"type":"ready"}'; exec cat >/dev/null"#),
        timing(),
    );
    rig.attach(1, 0).await;
    let body = rig.init_body();
    let init = rig.request("init", body).await;
    let refused = rig.response(&init).await;
    assert_eq!(refused["errorCode"], "protocol_error");
    let message = refused["error"].as_str().unwrap();
    assert!(message.contains('3') && message.contains('2'), "{message}");
}

#[tokio::test]
async fn d16_frames_of_another_turn_change_nothing() {
    let file = fixture("D16-wrong-turn.frames");
    let file = file.display();
    let script = format!(
        "read -r _; sed 1q '{file}'; read -r _; sed -n 2,3p '{file}'; read -r _; sed 1,3d '{file}'; exec cat >/dev/null"
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let first = rig.turn("t1", "go").await;
    assert_eq!(first["result"]["status"], "completed");
    let second = rig.turn("t2", "go").await;
    assert_eq!(second["result"]["status"], "completed");
    assert_eq!(rig.text("t1"), "t1 text");
    assert_eq!(rig.text("t2"), "t2 begint2 more");
    rig.dispose().await;
    let ends = rig
        .seen
        .iter()
        .filter(|frame| frame["requestId"] == "send-t2")
        .count();
    assert_eq!(ends, 1, "a second end is dropped");
    assert_eq!(rig.lifecycle("host_exited")[0]["detail"]["strayFrames"], 4);
}

#[tokio::test]
async fn half_a_line_counts_only_when_it_is_complete() {
    let ready = r#"{"protocolVersion":2,"type":"ready","ready":{"protocolVersion":2,"provider":"x","version":"1"}}"#;
    let end = r#"{"protocolVersion":2,"type":"response","requestId":"send-t1","ok":true,"result":{"status":"completed"}}"#;
    let script = format!("read -r _; echo '{ready}'; read -r _; printf %s '{end}'");
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    assert_eq!(rig.turn("t1", "go").await["result"]["status"], "completed");

    let mut rig = Rig::scripted();
    rig.ready().await;
    let end = rig.turn("t1", "!emit said\n!half").await;
    assert_eq!(end["errorCode"], "host_exited");
    assert!(
        end["error"]
            .as_str()
            .unwrap()
            .contains("exit code 0 before the turn did"),
        "{end}"
    );
    assert_eq!(rig.text("t1"), "said");
}

#[tokio::test]
async fn a_line_without_an_end_ends_this_worker_only() {
    let ready = r#"{"protocolVersion":2,"type":"ready","ready":{"protocolVersion":2,"provider":"x","version":"1"}}"#;
    let script = format!("read -r _; echo '{ready}'; read -r _; exec tr '\\0' x </dev/zero");
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let end = rig.turn("t1", "go").await;
    assert_eq!(end["errorCode"], "frame_too_long");
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.pid())).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    assert!(peak.is_none_or(|kib| kib < 80 * 1024), "{peak:?} KiB");
    rig.drain().await;
    assert_eq!(rig.exit().code(), Some(0));
}

#[tokio::test]
async fn e01_stderr_is_drained_and_its_end_kept() {
    let file = fixture("E01-stderr.bin");
    let ready = r#"{"protocolVersion":2,"type":"ready","ready":{"protocolVersion":2,"provider":"x","version":"1"}}"#;
    let end = r#"{"protocolVersion":2,"type":"response","requestId":"send-t1","ok":true,"result":{"status":"completed"}}"#;
    let script = format!(
        "cat '{}' >&2; head -c 10000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last words >&2; \
         read -r _; echo '{ready}'; read -r _; echo '{end}'; exec cat >/dev/null",
        file.display()
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    assert_eq!(rig.turn("t1", "go").await["result"]["status"], "completed");
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.pid())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak < 24 * 1024, "{peak} KiB");
    rig.dispose().await;
    let exited = rig.lifecycle("host_exited");
    assert!(
        exited[0]["detail"]["stderr"]
            .as_str()
            .unwrap()
            .ends_with("last words")
    );
    assert!(exited[0]["detail"]["stderrBytes"].as_u64().unwrap() > 10_000_000);
    rig.exits_in_order();
}

#[tokio::test]
async fn a_flood_without_acks_waits_and_loses_nothing() {
    let mut rig = Rig::scripted();
    rig.ready().await;
    rig.acks = false;
    // 48 MiB of events against a buffer of 32 MiB.
    let send = rig.begin("t1", "!events 768 65536\n!emit end").await;
    let mut last = 0;
    while last < 500 {
        last = rig
            .until("an event", |frame| frame["type"] == "event")
            .await["seq"]
            .as_u64()
            .unwrap();
    }
    // As long as one comes the next may: only a pause shows that it waits.
    let pause = Duration::from_millis(400);
    while let Ok(event) = tokio::time::timeout(
        pause,
        rig.until("an event", |frame| frame["type"] == "event"),
    )
    .await
    {
        last = event["seq"].as_u64().unwrap();
    }
    assert!(last < 700, "the host has to wait: {last}");
    rig.acks = true;
    rig.send_line(&json!({"protocolVersion": 2, "type": "ack", "seq": last}).to_string())
        .await;
    rig.response(&send).await;
    assert_eq!(rig.seqs(), (1..=769).collect::<Vec<u64>>());
}

#[tokio::test]
async fn l03_no_secret_reaches_a_log() {
    let canaries = [
        "CANARY-tok-0123456789abcdef",
        "CANARY-pw",
        "CANARY-env-value",
    ];
    let prompt = "use token CANARY-tok-0123456789abcdef and password=CANARY-pw";
    let bad = fixture("L03-bad.frames");
    let ready = r#"{"protocolVersion":2,"type":"ready","ready":{"protocolVersion":2,"provider":"x","version":"1"}}"#;
    let log = format!(
        r#"{{"protocolVersion":2,"type":"log","level":"info","message":"{prompt}","detail":{{"env":"CANARY-env-value"}}}}"#
    );
    let error =
        format!(r#"{{"protocolVersion":2,"type":"error","operation":"send","error":"{prompt}"}}"#);
    let script = format!(
        "read -r _; echo '{ready}'; read -r line; cat '{}'; echo; echo '{log}'; echo '{error}'; \
         echo '{prompt}'; echo \"$line\" >&2; env >&2; exit 9",
        bad.display()
    );
    let mut rig = Rig::start(shell(&script), timing());
    let mut body = rig.init_body();
    body["env"] = json!({"SOME_API_KEY": "CANARY-env-value"});
    rig.ready_with(body).await;
    let end = rig.turn("t1", prompt).await;
    assert_eq!(end["errorCode"], "host_exited");
    rig.drain().await;
    rig.exits_in_order();
    for frame in &rig.seen {
        let text = frame.to_string();
        for canary in canaries {
            assert!(!text.contains(canary), "{canary} in {text}");
        }
    }
    assert!(rig.stderr().is_empty(), "{}", rig.stderr());
    let shown = rig.lifecycle("host_exited")[0]["detail"]["stderr"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        shown.contains("[masked]") && shown.contains("PATH="),
        "{shown}"
    );
}

/// A word that the prompt calls a secret is one wherever it stands: in an error,
/// in what the agent's own log says, in a line of the worker's own.
#[tokio::test]
async fn l03_what_a_prompt_calls_a_secret_is_masked_in_errors_and_logs() {
    const SECRET: &str = "CANARY-tok-0123456789abcdef";
    let script = format!(
        r#"frame() {{ printf '{{"protocolVersion":2,"type":%s}}\n' "$1"; }}
        read -r line
        frame '"ready","ready":{{"protocolVersion":2,"provider":"x","version":"1"}}'
        read -r line
        frame '"{SECRET}","x":1'
        frame '"log","level":"warn","message":"saw {SECRET} here"'
        frame '"response","requestId":"send-t1","ok":false,"error":"cannot use {SECRET} here"'
        cat > /dev/null"#
    );
    let mut rig = Rig::start(shell(&script), timing());
    rig.ready().await;
    let end = rig.turn("t1", &format!("use token {SECRET} now")).await;
    assert_eq!(end["error"], "cannot use [masked] here", "{end}");
    let logs = rig.seen.iter().filter(|frame| frame["type"] == "log");
    assert!(logs.count() >= 2, "{:?}", rig.seen);
    for frame in &rig.seen {
        assert!(!frame.to_string().contains(SECRET), "{frame}");
    }
}
