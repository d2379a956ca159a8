//! Every frame survives the trip over the wire, and what is no frame is told
//! apart from what is a broken one.

use std::collections::BTreeSet;

use ade_protocol::frame::{FrameFault, FromWorker, Known, ToWorker};

const TO_WORKER: &[&str] = &[
    r#"{"protocolVersion":2,"type":"init","requestId":"r1","sessionKey":"ses_1","provider":"pi","cwd":"/lane","agentDir":"/agent","package":{"packageRoot":"/pi"},"store":{"sessionRoot":"/agent/sessions"},"session":{"sessionFile":"/agent/sessions/a.jsonl","resume":true},"modelRef":"fake/text","tools":["read"],"approvalTools":["bash"],"extensions":false,"askUserTool":true,"inventoryOnly":false,"env":{"A":"b"}}"#,
    r#"{"protocolVersion":2,"type":"send","requestId":"r2","turnId":"t","prompt":"hi","recovery":{"forceExpireActiveRun":true}}"#,
    r#"{"protocolVersion":2,"type":"send","requestId":"r2","turnId":"t","prompt":"hi","recovery":{"forceExpireActiveRun":true,"replay":"User: hi","sessionMark":{"sessionFile":"/a.jsonl","bytes":9,"tail":"00ff"}}}"#,
    r#"{"protocolVersion":2,"type":"steer","requestId":"r3","prompt":"left"}"#,
    r#"{"protocolVersion":2,"type":"follow_up","requestId":"r4","prompt":"then right"}"#,
    r#"{"protocolVersion":2,"type":"abort","requestId":"r5","turnId":"t"}"#,
    r#"{"protocolVersion":2,"type":"dispose","requestId":"r6"}"#,
    r#"{"protocolVersion":2,"type":"set_model","requestId":"r7","modelRef":"fake/text"}"#,
    r#"{"protocolVersion":2,"type":"set_thinking","requestId":"r8","thinkingLevel":null}"#,
    r#"{"protocolVersion":2,"type":"compact","requestId":"r9","customInstructions":"short"}"#,
    r#"{"protocolVersion":2,"type":"context_usage","requestId":"r10"}"#,
    r#"{"protocolVersion":2,"type":"models","requestId":"r11"}"#,
    r#"{"protocolVersion":2,"type":"auth","requestId":"r12"}"#,
    r#"{"protocolVersion":2,"type":"ui_response","requestId":"card","ok":true,"value":"allow"}"#,
    r#"{"protocolVersion":2,"type":"attach","requestId":"r13","fence":3,"ack":7}"#,
    r#"{"protocolVersion":2,"type":"ack","seq":9}"#,
];

const FROM_WORKER: &[&str] = &[
    r#"{"protocolVersion":2,"type":"hello","workerId":"wrk_1","token":"t","sessionKey":"ses_1","generation":1,"pid":42,"identity":{"pid":42,"startTicks":5,"bootId":"b","pidNamespace":6},"provider":"pi","lastSeq":0,"state":{"seenEvent":false,"fence":0}}"#,
    r#"{"protocolVersion":2,"type":"lifecycle","event":"worker_started"}"#,
    r#"{"protocolVersion":2,"type":"ready","ready":{"protocolVersion":2,"provider":"pi","version":"1.6.0","sessionFile":"/a.jsonl","sessionId":"x","currentModel":{"provider":"fake","id":"text"},"thinkingLevel":"off","availableModels":[{"provider":"fake","id":"text"}],"capabilities":{"steer":true}}}"#,
    r#"{"protocolVersion":2,"type":"response","requestId":"r1","ok":true,"result":{"status":"completed"}}"#,
    r#"{"protocolVersion":2,"type":"sdk_event","event":{"type":"agent_start"}}"#,
    r#"{"protocolVersion":2,"type":"event","seq":1,"turnId":"t","event":{"type":"text","messageId":"m","text":"h"}}"#,
    r#"{"protocolVersion":2,"type":"ui_request","requestId":"card","turnId":"t","payload":{"origin":"approval","kind":"confirm","message":"rm -rf"}}"#,
    r#"{"protocolVersion":2,"type":"ui_notice","payload":{"origin":"extension","level":"info","message":"note"}}"#,
    r#"{"protocolVersion":2,"type":"ui_cancel","requestId":"card"}"#,
    r#"{"protocolVersion":2,"type":"error","operation":"receive","error":"what"}"#,
    r#"{"protocolVersion":2,"type":"log","level":"info","message":"line"}"#,
];

#[test]
fn every_type_to_a_worker_survives_the_trip() {
    let mut seen = BTreeSet::new();
    for line in TO_WORKER {
        let Known::Frame(frame) = ToWorker::parse(line).unwrap_or_else(|e| panic!("{line}: {e}"))
        else {
            panic!("unknown type in {line}");
        };
        seen.insert(frame.kind());
        assert_same_json(line, &frame.to_line());
    }
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        sorted(ToWorker::TYPES)
    );
}

#[test]
fn every_type_from_a_worker_survives_the_trip() {
    let mut seen = BTreeSet::new();
    for line in FROM_WORKER {
        let Known::Frame(frame) = FromWorker::parse(line).unwrap_or_else(|e| panic!("{line}: {e}"))
        else {
            panic!("unknown type in {line}");
        };
        seen.insert(frame.kind());
        assert_same_json(line, &frame.to_line());
    }
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        sorted(FromWorker::TYPES)
    );
}

fn sorted(types: &[&'static str]) -> Vec<&'static str> {
    let mut types = types.to_vec();
    types.sort_unstable();
    types
}

/// Every field that was read is written again with the same value; what is
/// written beyond that are defaults that readers fill in anyway.
fn assert_same_json(read: &str, written: &str) {
    let read: serde_json::Value = serde_json::from_str(read).unwrap();
    let written: serde_json::Value = serde_json::from_str(written).unwrap();
    assert!(
        contains(&written, &read),
        "read    {read}\nwritten {written}"
    );
}

fn contains(all: &serde_json::Value, some: &serde_json::Value) -> bool {
    match (all, some) {
        (serde_json::Value::Object(all), serde_json::Value::Object(some)) => {
            some.iter().all(|(key, value)| {
                // Defaults may be left out: absent equals false, null and empty.
                all.get(key)
                    .map_or_else(|| is_default(value), |found| contains(found, value))
            })
        }
        (all, some) => all == some,
    }
}

fn is_default(value: &serde_json::Value) -> bool {
    value.is_null() || value == &serde_json::Value::Bool(false)
}

/// What is derived for a struct would take the fields in their order.
#[test]
fn a_list_is_no_part_of_a_frame() {
    let within = |lines: &'static [&str], kind: &str, object: &str, list: &str| {
        let kind = format!(r#""type":"{kind}""#);
        let line = lines.iter().find(|line| line.contains(&kind)).expect("it");
        assert!(line.contains(object), "{line}");
        line.replace(object, list)
    };
    let recovery = r#"{"forceExpireActiveRun":true}"#;
    let line = within(TO_WORKER, "send", recovery, "[true,null]");
    assert!(ToWorker::parse(&line).is_err(), "{line}");
    let identity = r#"{"pid":42,"startTicks":5,"bootId":"b","pidNamespace":6}"#;
    let capabilities = "[true,false,false,false,false,false,false,false]";
    let payload = r#"{"origin":"extension","level":"info","message":"note"}"#;
    let notice = r#"["extension","info","note",null,null]"#;
    for line in [
        within(FROM_WORKER, "hello", identity, r#"[42,5,"b",6]"#),
        within(FROM_WORKER, "ready", r#"{"steer":true}"#, capabilities),
        within(
            FROM_WORKER,
            "ready",
            r#"{"provider":"fake","id":"text"}"#,
            r#"["fake","text"]"#,
        ),
        within(FROM_WORKER, "ui_notice", payload, notice),
    ] {
        assert!(FromWorker::parse(&line).is_err(), "{line}");
    }
}

#[test]
fn what_is_no_frame_is_told_apart() {
    let noise = [
        "",
        "   ",
        "npm notice",
        "✔ done",
        "[1,2]",
        "\"x\"",
        "3",
        "{\"level\":30}",
        "\u{1b}[1mhi",
    ];
    for line in noise {
        assert_eq!(
            FromWorker::parse(line).unwrap_err(),
            FrameFault::Noise,
            "{line:?}"
        );
    }
}

#[test]
fn d12_broken_frames_are_malformed_and_never_quoted() {
    let secret = "s3cr3t-canary";
    let lines = [
        format!(r#"{{"protocolVersion":2,"type":"log","message":"{secret}""#),
        format!(r#"{{"protocolVersion":2,"type":"log","message":"{secret}",}}"#),
        format!(r#"{{"protocolVersion":2,"type":"event","seq":NaN,"event":"{secret}"}}"#),
        format!("{{'protocolVersion':2,'type':'{secret}'}}"),
        format!(r#"{{"protocolVersion":2,"type":"event","seq":"{secret}","event":{{}}}}"#),
        format!(r#"{{"protocolVersion":2,"type":"event","seq":-1,"event":"{secret}"}}"#),
        format!(r#"{{"protocolVersion":2,"type":"ui_notice","payload":"{secret}"}}"#),
        format!(r#"{{"protocolVersion":2,"type":"log","type":"log","level":"{secret}"}}"#),
        format!(r#"{{"protocolVersion":2,"type":"response","ok":true,"result":"{secret}"}}"#),
    ];
    for line in lines {
        let fault = FromWorker::parse(&line).unwrap_err();
        assert!(
            matches!(fault, FrameFault::Malformed(_)),
            "{line}: {fault:?}"
        );
        assert!(!fault.to_string().contains(secret), "{fault}");
    }
    let deep = format!(
        r#"{{"protocolVersion":2,"type":"sdk_event","event":{}{}}}"#,
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    assert!(matches!(
        FromWorker::parse(&deep),
        Err(FrameFault::Malformed(_))
    ));
}

#[test]
fn d14_other_versions_are_refused_and_new_types_are_skipped() {
    let versions = [
        r#"{"protocolVersion":3,"type":"log"}"#,
        r#"{"protocolVersion":1,"type":"ready"}"#,
        r#"{"protocolVersion":"2","type":"log"}"#,
        r#"{"protocolVersion":2.0,"type":"log"}"#,
        r#"{"protocolVersion":null,"type":"log"}"#,
        r#"{"type":"log","level":"info","message":"m"}"#,
        r#"{"protocolVersion":2,"protocolVersion":2,"type":"log"}"#,
    ];
    for line in versions {
        let fault = FromWorker::parse(line).unwrap_err();
        assert!(
            matches!(fault, FrameFault::Version { .. }),
            "{line}: {fault:?}"
        );
        assert!(fault.to_string().contains("this side speaks 2"), "{fault}");
    }
    let unknown = FromWorker::parse(r#"{"protocolVersion":2,"type":"sparkle","x":1}"#).unwrap();
    assert!(matches!(unknown, Known::UnknownType(kind) if kind == "sparkle"));
    let extra = r#"{"protocolVersion":2,"type":"ui_cancel","requestId":"c","future":{"a":1}}"#;
    assert!(matches!(
        FromWorker::parse(extra),
        Ok(Known::Frame(FromWorker::UiCancel(_)))
    ));
}
