//! What a client was shown stands in the transcript, in the same words: also
//! when a write is taken back because the disk is full.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;

use ade_tests::ade::{Ade, started};
use ade_tests::disk::{Disk, may_mount};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{ended, of_turn};
use ade_tests::wait::{PATIENCE, wait_true};
use serde_json::{Value, json};

/// The next envelopes, up to this number.
#[track_caller]
fn up_to(client: &mut Rpc, last: u64) -> Vec<Value> {
    let mut seen = Vec::new();
    while seen
        .last()
        .is_none_or(|event: &Value| event["sequence"].as_u64() < Some(last))
    {
        let line = client.line(PATIENCE);
        let line = line.unwrap_or_else(|| panic!("event {last} after {seen:?}"));
        if line["method"] == "ade/event" {
            seen.push(line["params"].clone());
        }
    }
    seen
}

#[test]
fn what_is_being_written_is_shown_to_nobody_before_it_counts() {
    let (ade, mut rpc) = started("");
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.turn(&chat, "hello");
    let written = ade.checked_transcript(&chat);
    let last = u64::try_from(written.len()).expect("a number");
    let path = ade.transcript_path(&chat);
    // The first line of a write that is under way, and that will be taken back.
    let mut lost = written[2].clone();
    lost["sequence"] = json!(last + 1);
    lost["event"] = json!({"type": "notice", "level": "info", "message": "never happened"});
    let length = fs::metadata(&path).expect("the transcript").len();
    let mut file = fs::File::options().append(true).open(&path).expect("it");
    writeln!(file, "{lost}").expect("written");
    let mut watches: Vec<Rpc> = [0, 1, last - 1, last]
        .into_iter()
        .map(|after| {
            let mut watch = ade.rpc();
            watch.subscribe(&chat, after);
            if after < last {
                let seen = up_to(&mut watch, last);
                assert_eq!(seen, written[usize::try_from(after).expect("small")..]);
            }
            // What follows in the file is not sent behind it either: this answer
            // comes after whatever was read.
            watch.request("ade/ping", json!({})).expect("an answer");
            watch
        })
        .collect();
    let shown = rpc.call(
        "chat.show",
        json!({"sessionId": chat, "after": 0, "limit": 1000}),
    );
    assert_eq!(shown["events"], json!(written));
    assert_eq!(shown["more"], json!(false));
    file.set_len(length).expect("taken back");
    let (turn, _) = ade.send(&mut rpc, &chat, "and then?");
    for watch in &mut watches {
        let seen = watch.until_done(&turn);
        assert_eq!(text_of(&seen), "You said: and then?");
        let written = ade.checked_transcript(&chat);
        assert_eq!(seen, written[written.len() - seen.len()..]);
        assert_eq!(seen[0]["sequence"], json!(last + 1));
    }
}

/// Takes what was told so far.
fn drain(client: &mut Rpc, seen: &mut Vec<Value>) {
    while let Some(line) = client.line(std::time::Duration::ZERO) {
        if line["method"] == "ade/event" {
            seen.push(line["params"].clone());
        }
    }
}

fn numbered(lines: Vec<Value>) -> BTreeMap<u64, Value> {
    let number = |line: &Value| line["sequence"].as_u64().expect("a number");
    lines
        .into_iter()
        .map(|line| (number(&line), line))
        .collect()
}

#[test]
fn what_a_full_disk_does_not_take_was_shown_to_nobody() {
    if !may_mount() {
        return;
    }
    let mut ade = Ade::new();
    let disk = Disk::mount(&ade.home().join("transcripts"), "512k");
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    ade.turn(&chat, "hello");
    let mut live = ade.rpc();
    live.request("ade/events/subscribe", json!({"sessionId": chat}))
        .expect("a subscription");
    disk.set_aside();
    // Long batches: the last one is cut off in its middle.
    let (turn, _) = ade.send(&mut rpc, &chat, "!events 400 4000");
    let mut seen = vec![live.event("something is shown", |event| {
        event["event"]["type"] == "text"
    })];
    wait_true("the turn fails", || {
        drain(&mut live, &mut seen);
        // Whoever reads the file meanwhile sees no more than that either.
        let mut late = ade.rpc();
        late.subscribe(&chat, 0);
        late.request("ade/ping", json!({})).expect("an answer");
        drain(&mut late, &mut seen);
        ade.session(&chat)["lastStatus"] == "failed"
    });
    disk.make_room();
    let (next, _) = ade.send(&mut rpc, &chat, "and now?");
    let rest = live.until_done(&next);
    assert_eq!(text_of(&of_turn(&rest, &next)), "You said: and now?");
    seen.extend(rest);
    let lines = ade.checked_transcript(&chat);
    assert_eq!(ended(&of_turn(&lines, &turn)), "failed");
    let lines = numbered(lines);
    for event in &seen {
        let number = event["sequence"].as_u64().expect("a number");
        if event["event"]["type"] != "activity" {
            assert_eq!(Some(event), lines.get(&number), "what was shown is written");
        }
    }
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert_eq!(ade.stop_broker(), Some(0));
}
