//! Transcripts that lost events while no broker ran: what is missing is told, and its
//! numbers are not given out again.

use std::fs;
use std::path::Path;

use ade_leases::process::Signal;
use ade_tests::ade::{signal, started};
use ade_tests::rpc::text_of;
use ade_tests::turns::{ended, of_turn};
use ade_tests::wait::wait_true;
use serde_json::Value;

/// The numbers of a chat's events.
fn numbers(lines: &[Value]) -> Vec<u64> {
    let number = |line: &Value| line["sequence"].as_u64().expect("a number");
    lines.iter().map(number).collect()
}

#[test]
fn what_is_missing_from_a_transcript_is_told_and_its_numbers_do_not_come_again() {
    type Change = fn(&Path);
    let table: [Change; 4] = [
        |path| fs::rename(path, path.with_extension("aside")).expect("moved"),
        |path| fs::write(path, "").expect("emptied"),
        |path| fs::remove_dir_all(path.parent().expect("a folder")).expect("removed"),
        |path| {
            let text = fs::read_to_string(path).expect("read");
            let kept: Vec<_> = text.split_inclusive('\n').take(2).collect();
            fs::write(path, kept.concat()).expect("cut");
        },
    ];
    for (case, change) in table.into_iter().enumerate() {
        let (mut ade, mut rpc) = started("");
        let chat = ade.scripted_chat(&mut rpc, 60_000);
        ade.turn(&chat, "before");
        // Its end is in `state.db`, too.
        ade.wait_state(&chat, "idle");
        let last = *numbers(&ade.transcript(&chat)).last().expect("events");
        drop(rpc);
        ade.kill_broker();
        let path = ade.transcript_path(&chat);
        change(&path);
        ade.serve();
        let (shown, _) = ade.expect_code(0, &["chat", "show", &chat]);
        assert!(shown.contains("missing"), "{case}: {shown}");
        assert!(shown.contains(&path.display().to_string()), "{shown}");

        // Told once, however often a broker comes.
        ade.kill_broker();
        ade.serve();
        let events = ade.turn(&chat, "!recall");
        assert!(text_of(&events).contains("before"), "{events:?}");
        let lines = ade.transcript(&chat);
        let notices = lines.iter().filter(|line| {
            let message = line["event"]["message"].as_str().unwrap_or_default();
            line["event"]["level"] == "warn" && message.contains("missing")
        });
        assert_eq!(numbers(&notices.cloned().collect::<Vec<_>>()), [last + 1]);
        let held = if case == 3 { 1..3 } else { 1..1 };
        let numbers = numbers(&lines);
        let newest = *numbers.last().expect("events");
        let expected: Vec<_> = held.chain(last + 1..=newest).collect();
        assert_eq!(numbers, expected);
    }
}

#[test]
fn a_turn_whose_transcript_went_with_its_broker_has_its_end_behind_what_was() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&chat, "before");
    ade.wait_state(&chat, "idle");
    let last = *numbers(&ade.transcript(&chat)).last().expect("events");
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 100000 20");
    let info = ade.wait_state(&chat, "streaming");
    let worker = i32::try_from(info["workerPid"].as_i64().expect("a pid")).expect("a pid");
    drop(rpc);
    ade.kill_broker();
    signal(worker, Signal::SIGKILL);
    wait_true("its worker is gone", || !ade_tests::ade::is_alive(worker));
    fs::remove_dir_all(ade.home().join("transcripts")).expect("removed");
    ade.serve();
    let lines = ade.wait_done(&chat, &turn);
    assert_eq!(ended(&of_turn(&lines, &turn)), "failed");
    let first = &ade.transcript(&chat)[0];
    assert_eq!(first["sequence"], last + 1, "{first}");
    let message = first["event"]["message"].as_str().expect("a notice");
    assert!(message.contains("missing"), "{first}");
}
