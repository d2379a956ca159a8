//! A disk that is full. A limit of the file size stands for it: a write is cut
//! off in the middle and then refused, just so. The limit belongs to the whole
//! process, so this has a test program of its own.

use std::fs;

use ade_broker::home::Home;
use ade_broker::journal::{self, Entry};
use ade_broker::state::State;
use ade_broker::transcript::{Transcript, read_after};
use ade_protocol::event::Origin;
use ade_protocol::{Generation, Seq, WorkerId};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use serde_json::value::RawValue;
use tempfile::TempDir;

const WHEN: &str = "2026-01-02T03:04:05.678Z";
const LIMIT: u64 = 100_000;

fn with_limit<T>(limit: u64, act: impl FnOnce() -> T) -> T {
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, limit, hard).unwrap();
    let result = act();
    setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();
    result
}

#[test]
fn a18_nothing_is_half_written_and_all_goes_on_when_there_is_room_again() {
    // The default action of this signal is to end the process.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    signals.thread_block().unwrap();
    let folder = TempDir::new().unwrap();
    let home = Home::at(folder.path().to_owned(), None)
        .unwrap()
        .prepare()
        .unwrap();

    let path = home.transcript(&"ses_1".into());
    let mut transcript = Transcript::open(&path, "ses_1".into(), Seq(0)).unwrap();
    let event = RawValue::from_string(format!("\"{}\"", "x".repeat(333))).unwrap();
    let mut say = |count: u64| {
        for _ in 0..count {
            let seq = transcript.last_sequence().next();
            // Three events a write: all of them count, or none does.
            for offset in 0..3 {
                let origin = Origin {
                    generation: Generation(1),
                    seq: Seq(seq.0 + offset),
                };
                transcript.stage(WHEN, None, Some(origin), event.get().as_bytes());
            }
            if let Err(error) = transcript.commit() {
                return (transcript.last_sequence(), Some(error));
            }
        }
        (transcript.last_sequence(), None)
    };
    let (said, error) = with_limit(LIMIT, || say(1_000));
    let error = error.expect("there was no room");
    assert!(error.to_string().contains("ses_1.jsonl"), "{error}");
    assert_eq!(said.0 % 3, 0);
    let content = fs::read(&path).unwrap();
    assert!(content.len() as u64 <= LIMIT && content.ends_with(b"}\n"));
    let (after, error) = with_limit(LIMIT, || say(1));
    assert!(after == said && error.is_some(), "and there still is none");
    assert_eq!(fs::read(&path).unwrap(), content);
    let (after, error) = say(10);
    assert!(after == Seq(said.0 + 30) && error.is_none(), "{error:?}");
    let page = read_after(&path, Seq(0), usize::MAX).unwrap();
    let numbers: Vec<u64> = page.events.iter().map(|(sequence, _)| sequence.0).collect();
    assert_eq!(numbers, (1..=after.0).collect::<Vec<_>>());
    assert_eq!(page.damaged, 0);
    assert_eq!(
        Transcript::open(&path, "ses_1".into(), Seq(0))
            .unwrap()
            .last_origin(Generation(1)),
        after
    );

    let entry = Entry {
        worker_id: WorkerId::generate(),
        session_id: "ses_1".into(),
        generation: Generation(1),
        provider: "scripted".into(),
        mark: "m".into(),
        token_hash: journal::token_hash("t"),
        spec: None,
        started_at: WHEN.into(),
        cgroup: None,
        identity: None,
    };
    journal::write(&home, &entry).unwrap();
    let changed = Entry {
        generation: Generation(2),
        ..entry.clone()
    };
    assert!(with_limit(10, || journal::write(&home, &changed)).is_err());
    assert_eq!(journal::read_all(&home).unwrap().entries, [entry]);
    assert_eq!(
        fs::read_dir(home.journal_dir()).unwrap().count(),
        1,
        "no litter"
    );

    let state = State::open(&home.state_db()).unwrap();
    let fence = state.next_fence().unwrap();
    let size = fs::metadata(home.state_db()).unwrap().len();
    assert!(with_limit(size.min(512), || state.next_fence()).is_err());
    assert_eq!(state.next_fence().unwrap(), fence.next());
}
