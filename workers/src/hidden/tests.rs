use super::*;
use std::process::{Command, Stdio};

/// What happens to a pace, in milliseconds after the beginning.
#[derive(Clone, Copy, Debug)]
enum Step {
    Stir(u64),
    Soon(u64),
    /// A look from when until when; whether it saw a change, whether a turn runs.
    Look(u64, u64, bool, bool),
}

use Step::{Look, Soon, Stir};

/// When the next look is due after these steps.
fn due_after(steps: &[Step]) -> Option<u64> {
    let begin = Instant::now();
    let at = |ms: u64| begin + Duration::from_millis(ms);
    let mut pace = Pace::default();
    for step in steps {
        match *step {
            Stir(ms) => pace.stir(at(ms)),
            Soon(ms) => pace.stir_soon(at(ms)),
            Look(from, until, changed, busy) => {
                pace.begin();
                pace.over(at(from), at(until), changed, busy);
            }
        }
    }
    let due = pace.due.map(|due| (due - begin).as_millis());
    due.map(|ms| u64::try_from(ms).expect("a time"))
}

#[test]
fn it_looks_while_something_may_happen_and_then_never() {
    let table: &[(&[Step], Option<u64>)] = &[
        (&[], None),
        (&[Stir(0)], Some(1_000)),
        // Output does not put a look off.
        (&[Stir(0), Stir(900)], Some(1_000)),
        // A turn runs: once a second.
        (&[Stir(0), Look(1_000, 1_001, false, true)], Some(2_001)),
        // None runs, and something was new: once more.
        (&[Stir(0), Look(1_000, 1_001, true, false)], Some(2_001)),
        // None runs, nothing is new, and it was quiet for a second: at rest.
        (&[Stir(0), Look(1_000, 1_001, false, false)], None),
        (
            &[
                Stir(0),
                Look(1_000, 1_001, true, false),
                Look(2_001, 2_002, false, false),
            ],
            None,
        ),
        // It was not quiet for a second: once more.
        (
            &[Stir(0), Stir(500), Look(1_000, 1_001, false, false)],
            Some(2_001),
        ),
        // At rest until something happens.
        (
            &[Stir(0), Look(1_000, 1_001, false, false), Stir(90_000)],
            Some(91_000),
        ),
        // A tool ended: soon, but never sooner than it was due already.
        (&[Soon(0)], Some(100)),
        (&[Stir(0), Soon(500)], Some(600)),
        (&[Stir(0), Soon(950)], Some(1_000)),
        // Many tools: four looks a second at most.
        (
            &[Soon(0), Look(100, 101, false, true), Soon(110)],
            Some(351),
        ),
        // What a tool left may shed its mark a moment later.
        (&[Soon(0), Look(100, 101, false, false)], Some(1_101)),
        // Something happened while it looked.
        (
            &[Stir(0), Look(1_000, 1_001, false, false), Stir(1_001)],
            Some(2_001),
        ),
        // A costly look rests fifty times as long, but not for ever.
        (&[Stir(0), Look(1_000, 1_100, false, true)], Some(6_100)),
        (
            &[Stir(0), Look(1_000, 1_100, false, true), Soon(1_200)],
            Some(6_100),
        ),
        (&[Stir(0), Look(1_000, 9_000, false, true)], Some(19_000)),
    ];
    for (steps, expected) in table {
        assert_eq!(due_after(steps), *expected, "{steps:?}");
    }
}

#[test]
fn who_carries_the_mark_is_found_without_a_list() {
    let one = |raw: i64, marked| Below {
        pid: Pid::new(raw).expect("a pid"),
        start_ticks: 7,
        marked,
    };
    for (marked, listed) in [(Some(true), 0), (Some(false), 1), (None, 1)] {
        let below = BTreeSet::from([one(10, marked), one(11, Some(true))]);
        let found = hiding(&below);
        assert_eq!(found.len(), listed, "{marked:?}");
        let wanted = |(pid, ticks): &(Pid, u64)| (pid.get(), *ticks) == (10, 7);
        assert!(found.iter().all(wanted));
    }
}

#[track_caller]
fn until(label: &str, mut is: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(
            std::time::Instant::now() < deadline,
            "waited in vain: {label}"
        );
        thread::yield_now();
    }
}

#[test]
fn a_look_lists_who_sheds_the_mark_and_removes_the_list_with_the_last() {
    let _alone = crate::tree::STARTS.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wrk_1.hidden");
    let script = "sleep 300 & env -i sleep 301 & wait";
    let mut shell = Command::new("/bin/sh")
        .args(["-c", script])
        .env("MARK", "mine")
        .stdin(Stdio::null())
        .spawn()
        .expect("a shell");
    let root = Pid::new(i64::from(shell.id())).expect("a pid");
    let worker = ProcessIdentity::of(root).expect("a look").expect("alive");
    let place = Place {
        worker,
        mark: Some(("MARK".to_owned(), "mine".to_owned())),
        path: path.clone(),
    };
    until("both sleep", || {
        let below = process::offspring(root).expect("a look");
        below.iter().filter(|row| row.name == "sleep").count() == 2
    });
    let first = place.look(Seen::default());
    assert!(first.changed && first.problem.is_none(), "{first:?}");
    assert_eq!(first.seen.below.len(), 2);
    let list = HiddenList::read(&path).expect("a list").expect("a list");
    let listed = list.identities();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].liveness(), Liveness::Alive);

    // Nothing new: nothing is written.
    std::fs::remove_file(&path).expect("removed");
    let second = place.look(first.seen);
    assert!(!second.changed && !path.exists());

    // It is not there any more, and so is the list.
    second
        .seen
        .written
        .as_ref()
        .expect("the list")
        .write(&path)
        .expect("written");
    process::signal(
        &process::Target::Process(listed[0].clone()),
        process::Signal::SIGKILL,
    )
    .expect("a signal");
    until("it is dead", || listed[0].liveness() != Liveness::Alive);
    let third = place.look(second.seen);
    assert!(third.changed && !path.exists(), "{third:?}");
    assert_eq!(third.seen.below.len(), 1);
    let last = third.seen.below.first().expect("the other one").pid;
    let last = ProcessIdentity::of(last).expect("a look").expect("alive");
    let target = process::Target::Process(last);
    process::signal(&target, process::Signal::SIGKILL).expect("a signal");
    shell.wait().expect("its status");
}

#[test]
fn a_list_that_cannot_be_written_is_said_and_tried_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |path: PathBuf| Place {
        worker: ProcessIdentity::current().expect("an identity"),
        mark: None,
        path,
    };
    let worker = ProcessIdentity::current().expect("an identity");
    let list = HiddenList::new(worker.clone(), vec![(worker.pid, worker.start_ticks)]);
    let nowhere = place(folder.path().join("nowhere/wrk_1.hidden"));
    let (written, problem) = nowhere.write(list.clone(), None);
    assert_eq!(written, None);
    assert!(problem.is_some_and(|said| said.contains("nowhere/wrk_1.hidden")));
    let somewhere = place(folder.path().join("wrk_1.hidden"));
    assert_eq!(somewhere.write(list.clone(), None), (Some(list), None));
}
