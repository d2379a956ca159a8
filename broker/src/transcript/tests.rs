use std::fs;
use std::os::unix::fs::PermissionsExt;

use ade_protocol::event::Envelope;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::value::RawValue;
use tempfile::TempDir;

use super::*;

const WHEN: &str = "2026-01-02T03:04:05.678Z";

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn open(path: &Path) -> Transcript {
    open_knowing(path, 0)
}

fn open_knowing(path: &Path, known: u64) -> Transcript {
    Transcript::open(path, "ses_1".into(), Seq(known)).unwrap()
}

fn origin(generation: u64, seq: u64) -> Option<Origin> {
    Some(Origin {
        generation: Generation(generation),
        seq: Seq(seq),
    })
}

fn numbers(page: &Page) -> Vec<u64> {
    page.events.iter().map(|(sequence, _)| sequence.0).collect()
}

/// Appends `count` events of about `size` bytes from one worker.
fn fill(transcript: &mut Transcript, count: u64, size: usize) {
    let event = raw(&format!(
        "{{\"type\":\"text\",\"text\":\"{}\"}}",
        "x".repeat(size)
    ));
    for _ in 0..count {
        let next = transcript.staged_head.sequence.next().0;
        transcript.stage(WHEN, None, origin(1, next), event.get().as_bytes());
        transcript.commit().unwrap();
    }
}

#[test]
fn a_line_is_an_envelope() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    let mut transcript = Transcript::open(&path, "ses_\"1\"".into(), Seq(0)).unwrap();
    let event = raw("{\"type\":\n\"done\", \"a\":\"\\n\u{2028}\"}");
    let turn = TurnId::from("turn_\"x");
    let event = event.get().as_bytes();
    let (sequence, full) = transcript.stage(WHEN, Some(&turn), origin(3, 9), event);
    let full = Bytes::copy_from_slice(full);
    let (_, bare) = transcript.stage(WHEN, None, None, event);
    let bare = Bytes::copy_from_slice(bare);
    let most = event.len() + transcript.envelope(Some(&turn));
    assert!(full.len() <= most, "{} of {most}", full.len());
    let expected = Envelope {
        session_id: "ses_\"1\"".into(),
        sequence,
        timestamp: WHEN.into(),
        turn_id: Some(turn),
        origin: origin(3, 9),
        event: raw("{\"type\": \"done\", \"a\":\"\\n\u{2028}\"}"),
    };
    assert_eq!(full, serde_json::to_string(&expected).unwrap());
    let expected = Envelope {
        sequence: Seq(2),
        turn_id: None,
        origin: None,
        ..expected
    };
    assert_eq!(bare, serde_json::to_string(&expected).unwrap());
    assert_eq!(transcript.transient(WHEN, None, event), bare);
    transcript.commit().unwrap();
    let page = read_after(&path, Seq(0), usize::MAX).unwrap();
    assert_eq!(page.events, [(Seq(1), full), (Seq(2), bare)]);
    assert!(page.reached_end);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn only_what_was_committed_counts() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    let mut transcript = open(&path);
    assert_eq!(
        (transcript.last_sequence(), transcript.last_event_at()),
        (Seq(0), None)
    );
    transcript.commit().unwrap();
    assert!(!path.exists(), "nothing was said");
    transcript.stage(WHEN, None, origin(2, 7), b"{}");
    assert_eq!(
        (
            transcript.last_sequence(),
            transcript.last_origin(Generation(2))
        ),
        (Seq(0), Seq(0))
    );
    transcript.commit().unwrap();
    assert_eq!(
        (
            transcript.last_sequence(),
            transcript.last_origin(Generation(2))
        ),
        (Seq(1), Seq(7))
    );
    transcript.stage(WHEN, None, origin(3, 1), b"{}");
    transcript.rest();
    transcript.stage(WHEN, None, None, b"{}");
    transcript.commit().unwrap();

    let again = open(&path);
    assert_eq!(
        (again.last_sequence(), again.last_event_at()),
        (Seq(2), Some(WHEN))
    );
    assert_eq!(
        (again.last_generation(), again.last_origin(Generation(2))),
        (Generation(2), Seq(7))
    );
    assert_eq!(again.last_origin(Generation(3)), Seq(0));
}

#[test]
fn a_write_that_fails_is_taken_back_with_its_numbers() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    let mut transcript = open(&path);
    fill(&mut transcript, 3, 10);
    // A descriptor that cannot be written stands for a disk that is full.
    transcript.file = Some(File::open(&path).unwrap());
    let before = fs::read(&path).unwrap();
    transcript.stage(WHEN, None, origin(1, 4), b"{}");
    let error = transcript.commit().unwrap_err();
    assert!(error.to_string().contains("t.jsonl"), "{error}");
    assert_eq!(transcript.last_origin(Generation(1)), Seq(3));
    assert_eq!(fs::read(&path).unwrap(), before);
    let (sequence, _) = transcript.stage(WHEN, None, origin(1, 4), b"{}");
    transcript.commit().unwrap();
    assert_eq!(sequence, Seq(4));
    assert_eq!(
        numbers(&read_after(&path, Seq(0), usize::MAX).unwrap()),
        [1, 2, 3, 4]
    );
}

#[test]
fn what_is_not_committed_is_not_read_and_goes_before_the_next_write() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    let mut transcript = open(&path);
    fill(&mut transcript, 3, 10);
    // The batch cannot be written, and what is written of it cannot be taken
    // back: this descriptor allows neither.
    transcript.file = Some(File::open(&path).unwrap());
    let (_, line) = transcript.stage(WHEN, None, origin(1, 4), b"\"lost\"");
    let lost = line.to_vec();
    transcript.commit().unwrap_err();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&[&lost[..], b"\n", &lost[..20]].concat())
        .unwrap();
    let head = transcript.last_sequence();
    for after in 0..5 {
        let page = read_on(&path, None, Seq(after), head, usize::MAX).unwrap();
        assert_eq!(numbers(&page), (after + 1..=3).collect::<Vec<_>>());
        assert!(page.reached_end);
    }
    let first = read_on(&path, None, Seq(0), head, usize::MAX).unwrap();
    transcript.stage(WHEN, None, origin(1, 4), b"\"kept\"");
    transcript.commit().unwrap();
    let next = read_on(&path, Some(first.next), Seq(3), Seq(4), usize::MAX).unwrap();
    let all = read_after(&path, Seq(0), usize::MAX).unwrap();
    assert_eq!((numbers(&all), all.damaged), (vec![1, 2, 3, 4], 0));
    for page in [next, all] {
        assert!(page.events.last().unwrap().1.ends_with(b"\"kept\"}"));
    }
}

#[test]
fn c01_a_torn_tail_costs_itself_only() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    fill(&mut open(&path), 3, 10);
    let whole = fs::read(&path).unwrap();
    for cut in 1..60 {
        let torn = &whole[..whole.len() - cut];
        fs::write(&path, torn).unwrap();
        let mut transcript = open(&path);
        assert_eq!(fs::read(&path).unwrap(), torn, "opening changes no byte");
        // Without its line end a whole line is whole.
        let last = if cut == 1 { 3 } else { 2 };
        assert_eq!(transcript.last_sequence(), Seq(last), "cut {cut}");
        assert_eq!(transcript.last_origin(Generation(1)), Seq(last));
        assert_eq!(transcript.damaged(), u64::from(cut > 1));
        fill(&mut transcript, 2, 10);
        assert!(
            fs::read(&path).unwrap().starts_with(torn),
            "nothing is rewritten"
        );
        let page = read_after(&path, Seq(0), usize::MAX).unwrap();
        assert_eq!(numbers(&page), (1..=last + 2).collect::<Vec<_>>());
        assert_eq!(page.damaged, u64::from(cut > 1));
    }
}

#[test]
fn c03_a_damaged_line_in_the_middle_is_skipped_and_counted() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    fill(&mut open(&path), 6, 10);
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&[u8]> = text.lines().map(str::as_bytes).collect();
    let double = lines[3];
    lines[2] = b"{\"sequence\":3,\"timestamp\":\"\xff\"}";
    lines.insert(4, double);
    lines.push(b"\0\0\0\0");
    fs::write(&path, lines.join(&b'\n')).unwrap();
    let page = read_after(&path, Seq(0), usize::MAX).unwrap();
    assert_eq!(numbers(&page), [1, 2, 4, 5, 6]);
    assert_eq!(page.damaged, 3);
    assert_eq!(open(&path).last_sequence(), Seq(6));
}

#[test]
fn pages_join_without_gap_or_double() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    fill(&mut open(&path), 2_000, 200);
    let (mut seen, mut next) = (Vec::new(), None);
    loop {
        let last = Seq(seen.last().copied().unwrap_or(0));
        let page = read_on(&path, next, last, Seq(u64::MAX), 5_000).unwrap();
        // Every other time the place is looked for again.
        next = next.is_none().then_some(page.next);
        assert!(page.events.len() <= 30);
        seen.extend(numbers(&page));
        if page.reached_end {
            break;
        }
    }
    assert_eq!(seen, (1..=2_000).collect::<Vec<_>>());
    for after in [0, 1, 999, 1_999, 2_000, 5_000] {
        let page = read_after(&path, Seq(after), 1).unwrap();
        let expected: Vec<u64> = (after + 1..=2_000).take(1).collect();
        assert_eq!(numbers(&page), expected, "{after}");
    }
    let missing = read_after(&folder.path().join("none"), Seq(3), 10).unwrap();
    assert!(missing.reached_end && missing.events.is_empty());
}

#[test]
fn a_number_that_no_event_can_have_is_damage() {
    for number in [0, (1 << 53) - 1, u64::MAX - 1, u64::MAX] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("t.jsonl");
        fill(&mut open(&path), 2, 10);
        let text = std::fs::read_to_string(&path).unwrap();
        let last = text.lines().last().unwrap();
        let forged = last.replace("\"sequence\":2,", &format!("\"sequence\":{number},"));
        assert_ne!(forged, last);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        writeln!(file, "{forged}").unwrap();
        let mut transcript = open(&path);
        assert_eq!(
            (transcript.last_sequence(), transcript.damaged()),
            (Seq(2), 1),
            "{number}"
        );
        fill(&mut transcript, 1, 10);
        let all = read_after(&path, Seq(0), usize::MAX).unwrap();
        assert_eq!((numbers(&all), all.damaged), (vec![1, 2, 3], 1), "{number}");
    }
}

#[test]
fn c14_a_huge_line_costs_itself_and_bounded_memory() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    fill(&mut open(&path), 2, 10);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    for _ in 0..40 {
        file.write_all(&[b'x'; 1 << 20]).unwrap();
    }
    file.write_all(b"\n").unwrap();
    let mut transcript = open(&path);
    assert_eq!(
        (transcript.last_sequence(), transcript.damaged()),
        (Seq(2), 1)
    );
    fill(&mut transcript, 1, MAX_LINE);
    fill(&mut transcript, 1, 10);
    for after in 0..4 {
        let page = read_after(&path, Seq(after), usize::MAX).unwrap();
        assert_eq!(numbers(&page), (after + 1..=4).collect::<Vec<_>>());
    }
    assert_eq!(open(&path).last_origin(Generation(1)), Seq(4));
}

/// What a file holds, line by line.
#[derive(Clone, Debug)]
enum Kind {
    Event { size: usize, from_worker: bool },
    Torn,
    Noise(Vec<u8>),
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![
        6 => (0..3_000_usize, any::<bool>())
            .prop_map(|(size, from_worker)| Kind::Event { size, from_worker }),
        1 => Just(Kind::Torn),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Kind::Noise),
        1 => (100_000..200_000_usize).prop_map(|size| Kind::Event { size, from_worker: true }),
    ];
    prop::collection::vec(kind, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any mixture of whole, torn and foreign lines reads like a plain list.
    #[test]
    fn reading_agrees_with_a_list(kinds in kinds(), after in 0..140_u64, max in 1..300_000_usize) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("t.jsonl");
        let mut model: Vec<(Seq, Bytes)> = Vec::new();
        let mut last_origin = Seq(0);
        for kind in kinds {
            let mut transcript = open(&path);
            prop_assert_eq!(transcript.last_sequence(), Seq(model.len() as u64));
            prop_assert_eq!(transcript.last_origin(Generation(1)), last_origin);
            match kind {
                Kind::Event { size, from_worker } => {
                    let event = raw(&format!("\"{}\"", "y".repeat(size)));
                    let origin = origin(1, last_origin.0 + 1).filter(|_| from_worker);
                    let event = event.get().as_bytes();
                    let (sequence, line) = transcript.stage(WHEN, None, origin, event);
                    model.push((sequence, Bytes::copy_from_slice(line)));
                    transcript.commit().unwrap();
                    last_origin = origin.map_or(last_origin, |origin| origin.seq);
                }
                Kind::Torn | Kind::Noise(_) => {
                    let bytes = match kind {
                        Kind::Noise(bytes) => bytes,
                        _ => b"{\"sessionId\":\"ses_1\",\"sequence\":77,\"time".to_vec(),
                    };
                    let mut file =
                        OpenOptions::new().append(true).create(true).open(&path).unwrap();
                    file.write_all(&bytes).unwrap();
                }
            }
        }
        let mut expected: Vec<(Seq, Bytes)> = Vec::new();
        let mut bytes = 0;
        for (sequence, line) in model.iter().filter(|(sequence, _)| sequence.0 > after) {
            if bytes >= max {
                break;
            }
            bytes += line.len();
            expected.push((*sequence, line.clone()));
        }
        let page = read_after(&path, Seq(after), max).unwrap();
        prop_assert_eq!(&page.events, &expected);
        // In pieces, each from where the last one ended.
        let (mut read, mut next, mut last) = (Vec::new(), None, Seq(after));
        loop {
            let page = read_on(&path, next, last, Seq(u64::MAX), max).unwrap();
            last = page.events.last().map_or(last, |(sequence, _)| *sequence);
            next = Some(page.next);
            read.extend(page.events);
            if page.reached_end {
                break;
            }
        }
        let all: Vec<_> = model.into_iter().filter(|(sequence, _)| sequence.0 > after).collect();
        prop_assert_eq!(read, all);
    }
}

/// Appends events of the broker's own: of a turn, by type and status.
fn tell(transcript: &mut Transcript, events: &[(&str, &str, &str)]) {
    for (turn, kind, status) in events {
        let status = match *status {
            "" => String::new(),
            status => format!(",\"status\":\"{status}\""),
        };
        let event = format!("{{\"type\":\"{kind}\"{status}}}");
        transcript.stage(WHEN, Some(&TurnId::from(*turn)), None, event.as_bytes());
    }
    transcript.commit().unwrap();
}

fn stand(path: &Path, turns: &[&str], after: u64) -> Vec<(String, Standing)> {
    let turns = turns.iter().map(|turn| TurnId::from(*turn)).collect();
    let found = standings(path, turns, Seq(after)).unwrap();
    let found = found.into_iter();
    found.map(|(turn, how)| (turn.to_string(), how)).collect()
}

#[test]
fn all_turns_that_ended_at_once_are_seen_and_those_that_did_not() {
    use ade_protocol::event::TurnStatus::{Failed, Interrupted};
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    assert_eq!(stand(&path, &["a"], 0), []);
    let mut transcript = open(&path);
    tell(
        &mut transcript,
        &[("a", "user_message", ""), ("a", "status", "started")],
    );
    let by_a_worker = br#"{"type":"text","text":"x"}"#;
    transcript.stage(WHEN, Some(&"a".into()), origin(1, 1), by_a_worker);
    let ends = [
        ("b", "done", "interrupted"),
        ("a", "status", "failed"),
        ("a", "done", "failed"),
        ("c", "done", "failed"),
        ("d", "user_message", ""),
        ("e", "notice", ""),
        // Told of a turn that is over already.
        ("a", "card_resolved", ""),
    ];
    tell(&mut transcript, &ends);
    let all = ["a", "b", "c", "d", "e", "f"];
    let expected = [
        ("a", Standing::Ended(Failed)),
        ("b", Standing::Ended(Interrupted)),
        ("c", Standing::Ended(Failed)),
        ("d", Standing::Begun),
        ("e", Standing::Begun),
    ]
    .map(|(turn, how)| (turn.to_owned(), how));
    assert_eq!(stand(&path, &all, 0), expected);
    // Other turns since then hide nothing.
    for _ in 0..3 {
        tell(&mut transcript, &[("x", "user_message", "")]);
        fill(&mut transcript, 200, 1000);
        tell(&mut transcript, &[("x", "done", "completed")]);
    }
    assert_eq!(stand(&path, &all, 0), expected);
    // What was there before a row was written says nothing of it.
    assert_eq!(stand(&path, &all[1..], 6), expected[2..]);
    assert_eq!(stand(&path, &all, 10), []);
}

#[test]
fn a_file_that_is_not_there_any_more_fails_one_commit_and_the_numbers_go_on() {
    type Change = fn(&Path);
    let table: [(&str, Change); 4] = [
        ("removed", |path| fs::remove_file(path).unwrap()),
        ("replaced", |path| {
            let other = path.with_extension("other");
            fs::write(&other, "").unwrap();
            fs::rename(other, path).unwrap();
        }),
        ("moved with its folder", |path| {
            let folder = path.parent().unwrap();
            fs::rename(folder, folder.with_extension("moved")).unwrap();
            fs::create_dir(folder).unwrap();
        }),
        ("cut", |path| {
            fs::OpenOptions::new()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(9)
                .unwrap();
        }),
    ];
    for (what, change) in table {
        for at_rest in [false, true] {
            if what == "cut" && !at_rest {
                // Nobody else writes it, and it is looked at when it is opened.
                continue;
            }
            let folder = TempDir::new().unwrap();
            let path = folder.path().join("chat/t.jsonl");
            fs::create_dir(path.parent().unwrap()).unwrap();
            let mut transcript = open(&path);
            fill(&mut transcript, 3, 10);
            if at_rest {
                transcript.rest();
            }
            change(&path);
            transcript.stage(WHEN, None, None, b"{}");
            let error = transcript.commit().expect_err(what);
            assert!(
                matches!(error, TranscriptError::Lost { .. }),
                "{what}: {error}"
            );
            assert!(error.to_string().contains(&path.display().to_string()));
            assert_eq!(transcript.last_sequence(), Seq(3), "{what}");
            fill(&mut transcript, 2, 10);
            let page = read_after(&path, Seq(0), usize::MAX).unwrap();
            assert_eq!(numbers(&page), [4, 5], "{what}");
        }
    }
}

#[test]
fn numbers_that_are_known_of_are_not_given_out_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    for held in [0, 2] {
        let _ = fs::remove_file(&path);
        fill(&mut open(&path), held, 10);
        for known in [0, held] {
            let transcript = open_knowing(&path, known);
            assert_eq!(transcript.missing(), None);
            assert_eq!(transcript.last_sequence(), Seq(held));
        }
        let mut transcript = open_knowing(&path, 7);
        let missing = Missing {
            held: Seq(held),
            known: Seq(7),
        };
        assert_eq!(transcript.missing(), Some(missing));
        let (sequence, _) = transcript.stage(WHEN, None, None, b"{}");
        assert_eq!(sequence, Seq(8));
        transcript.commit().unwrap();
        assert_eq!(transcript.missing(), None);
        assert_eq!(open_knowing(&path, 7).missing(), None);
    }
}

#[test]
fn a_link_to_nowhere_is_no_empty_transcript() {
    let folder = TempDir::new().unwrap();
    let (path, target) = (folder.path().join("t.jsonl"), folder.path().join("aside"));
    let mut early = open(&path);
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let error = Transcript::open(&path, "ses_1".into(), Seq(0)).unwrap_err();
    assert!(matches!(error, TranscriptError::Read { .. }), "{error}");
    assert!(standings(&path, vec!["t".into()], Seq(0)).is_err());
    assert!(read_after(&path, Seq(0), 1).is_err());
    early.stage(WHEN, None, None, b"{}");
    assert!(matches!(early.commit(), Err(TranscriptError::Write { .. })));
    assert!(!target.exists());
    fs::write(&target, "").unwrap();
    let _ = open(&path);
}
