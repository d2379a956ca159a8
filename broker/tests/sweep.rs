//! Sweeping what a dead broker left.

#![expect(clippy::disallowed_methods, reason = "tests end their own processes")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ade_broker::home::Home;
use ade_broker::journal::{self, Entry};
use ade_broker::sweep::{self, Grace, Remains, SweepReport};
use ade_leases::process::{self, HiddenList, Liveness, Pid, ProcessIdentity};
use ade_protocol::boot::MARK_ENV;
use ade_protocol::{Generation, WorkerId};
use tempfile::TempDir;

const GRACE: Grace = Grace {
    term: Duration::from_millis(500),
    kill: Duration::from_secs(5),
};

struct Place {
    _folder: TempDir,
    home: Home,
}

/// A child of the test that stands for a worker.
struct Worker {
    child: Child,
    entry: Entry,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    fn identity(&self) -> ProcessIdentity {
        ProcessIdentity::of(Pid::new(i64::from(self.child.id())).unwrap())
            .unwrap()
            .unwrap()
    }

    fn lives(&self) -> bool {
        self.identity().liveness() == Liveness::Alive
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let home = Home::at(folder.path().join("home"), None)
            .unwrap()
            .prepare()
            .unwrap();
        Self {
            _folder: folder,
            home,
        }
    }

    /// Starts `script` with a mark of its own and waits until it is ready.
    fn worker(&self, script: &str) -> Worker {
        let worker_id = WorkerId::generate();
        let mark = format!("mark-{worker_id}");
        let ready = self.home.root().join(format!("{worker_id}.ready"));
        let child = Command::new("sh")
            .args([
                "-c",
                &format!(
                    "{script}\ntouch {}\nwhile :; do sleep 0.05; done",
                    ready.display()
                ),
            ])
            .env(MARK_ENV, &mark)
            .process_group(0)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the worker is ready", || ready.exists());
        fs::write(self.home.worker_stderr(&worker_id), "noise").unwrap();
        let entry = Entry {
            worker_id,
            session_id: "ses_1".into(),
            generation: Generation(1),
            provider: "scripted".into(),
            mark,
            token_hash: journal::token_hash("token"),
            spec: None,
            started_at: "t".into(),
            cgroup: None,
            identity: None,
        };
        Worker { child, entry }
    }

    fn record(&self, worker: &mut Worker, identity: Option<ProcessIdentity>) {
        worker.entry.identity = identity;
        journal::write(&self.home, &worker.entry).unwrap();
    }

    fn files(&self) -> usize {
        fs::read_dir(self.home.journal_dir()).unwrap().count()
    }
}

fn wait_until(label: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready() {
        assert!(Instant::now() < deadline, "waited in vain until {label}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn marked(worker: &Worker) -> usize {
    process::marked(MARK_ENV, &worker.entry.mark).unwrap().len()
}

#[test]
fn h05_what_a_killed_broker_left_is_ended_and_forgotten() {
    let place = Place::new();
    let mut polite = place.worker("trap 'exit 0' TERM");
    let mut stubborn = place.worker("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 61; :' &");
    let mut dead = place.worker("setsid sleep 62 &");
    for worker in [&mut polite, &mut stubborn, &mut dead] {
        let identity = worker.identity();
        place.record(worker, Some(identity));
    }
    wait_until("the grandchildren run", || {
        marked(&stubborn) >= 3 && marked(&dead) >= 2
    });
    dead.child.kill().unwrap();
    wait_until("the dead one is dead", || !dead.lives());
    for litter in ["wrk_0.json.new-1234", "wrk_0.hidden", "wrk_0.hidden-next"] {
        fs::write(place.home.journal_dir().join(litter), "half").unwrap();
    }

    let report = sweep::run(&place.home, GRACE);
    assert_eq!(report.ended, [polite.pid()]);
    assert_eq!(report.killed, [stubborn.pid()]);
    assert!(report.strays.len() >= 2, "{report:?}");
    assert!(
        report.survivors.is_empty() && report.problems.is_empty(),
        "{report:?}"
    );
    assert_eq!((report.removed, place.files()), (3, 0));
    for worker in [&polite, &stubborn, &dead] {
        assert_eq!(marked(worker), 0);
    }
    assert_eq!(sweep::run(&place.home, GRACE), SweepReport::default());
}

#[test]
fn j03_a_stopped_worker_is_asked_and_heard() {
    let place = Place::new();
    let mut worker = place.worker("trap 'exit 0' TERM");
    let identity = worker.identity();
    place.record(&mut worker, Some(identity.clone()));
    process::signal(
        &process::Target::Process(identity),
        process::Signal::SIGSTOP,
    )
    .unwrap();
    let report = sweep::run(
        &place.home,
        Grace {
            term: Duration::from_secs(5),
            ..GRACE
        },
    );
    assert_eq!(
        (report.ended.as_slice(), report.killed.len()),
        (&[worker.pid()][..], 0)
    );
}

#[test]
fn only_what_is_proved_is_touched() {
    let place = Place::new();
    // The pid was given to somebody else; another boot; another namespace.
    let mut reused = place.worker("");
    let mut other_boot = place.worker("");
    let mut elsewhere = place.worker("");
    let mut identity = reused.identity();
    identity.start_ticks -= 1;
    reused.entry.mark = "nobody-has-this-mark".into();
    place.record(&mut reused, Some(identity));
    let mut identity = other_boot.identity();
    identity.boot_id = "00000000-0000-4000-8000-000000000000".into();
    place.record(&mut other_boot, Some(identity));
    let mut identity = elsewhere.identity();
    identity.pid_namespace += 1;
    place.record(&mut elsewhere, Some(identity));
    let damaged = place.home.journal_dir().join("wrk_damaged.json");
    fs::write(&damaged, "{\"workerId\":").unwrap();

    let report = sweep::run(&place.home, GRACE);
    assert!(reused.lives() && other_boot.lives() && elsewhere.lives());
    assert_eq!(report.unknown, [elsewhere.entry.worker_id.clone()]);
    assert_eq!(
        (report.removed, report.damaged.as_slice()),
        (2, &[damaged][..])
    );
    assert!(report.killed.is_empty() && report.ended.is_empty() && report.strays.is_empty());
    // The journals of the unknown one and the damaged one stay, and so does
    // the unknown one's standard error.
    assert_eq!(place.files(), 3);
}

#[test]
fn a_worker_whose_broker_died_while_starting_it_is_found_by_its_mark() {
    let place = Place::new();
    let mut worker = place.worker("");
    place.record(&mut worker, None);
    let report = sweep::run(&place.home, GRACE);
    assert!(report.strays.contains(&worker.pid()), "{report:?}");
    assert!(!worker.lives());
    assert_eq!(place.files(), 0);
}

/// A process without any mark that the test started.
struct Bare(Child);

impl Bare {
    fn start(script: &str) -> Self {
        let child = Command::new("/bin/sh")
            .args(["-c", script])
            .env_clear()
            .process_group(0)
            .stdin(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn identity(&self) -> ProcessIdentity {
        let pid = Pid::new(i64::from(self.0.id())).unwrap();
        ProcessIdentity::of(pid).unwrap().unwrap()
    }

    fn lives(&self) -> bool {
        self.identity().liveness() == Liveness::Alive
    }

    fn listed(&self) -> (Pid, u64) {
        let identity = self.identity();
        (identity.pid, identity.start_ticks)
    }

    /// The first child that it gets.
    fn child(&self) -> ProcessIdentity {
        let mut found = Vec::new();
        wait_until("it has a child", || {
            found = process::offspring(self.identity().pid).unwrap();
            found.first().is_some_and(|row| row.name == "sleep")
        });
        found[0].identity().unwrap()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn whom_a_worker_listed_is_ended_with_all_below_and_nobody_else() {
    let place = Place::new();
    let mut worker = place.worker("");
    let identity = worker.identity();
    place.record(&mut worker, Some(identity.clone()));
    worker.child.kill().unwrap();
    let hidden = Bare::start("sleep 64 & wait");
    let unlisted = hidden.child();
    let stranger = Bare::start("exec sleep 65");
    let (pid, ticks) = stranger.listed();
    // Its pid belonged to somebody who was started at another time.
    let list = HiddenList::new(identity, vec![hidden.listed(), (pid, ticks + 1)]);
    list.write(&place.home.worker_hidden(&worker.entry.worker_id))
        .unwrap();
    wait_until("the worker is dead", || !worker.lives());

    let report = sweep::run(&place.home, GRACE);
    assert!(!hidden.lives() && stranger.lives());
    assert_ne!(unlisted.liveness(), Liveness::Alive);
    let expected = [hidden.0.id().cast_signed(), unlisted.pid.get()];
    let killed = |pid| report.strays.contains(pid);
    assert!(expected.iter().all(killed), "{report:?}");
    assert!(!report.strays.contains(&pid.get()), "{report:?}");
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!((report.removed, place.files()), (1, 0));
}

#[test]
fn a_list_that_proves_nothing_is_said_and_ends_nobody() {
    let place = Place::new();
    let stranger = Bare::start("exec sleep 66");
    let written = |worker: &ProcessIdentity, name: &str| {
        let list = HiddenList::new(worker.clone(), vec![stranger.listed()]);
        let path = place.home.journal_dir().join(name);
        list.write(&path).unwrap();
        fs::read_to_string(path).unwrap()
    };
    type Change = fn(&mut ProcessIdentity);
    let changes: [(&str, Change); 3] = [
        ("another worker", |worker| worker.start_ticks -= 1),
        ("another worker", |worker| worker.boot_id.push('0')),
        ("can't be read", |_| {}),
    ];
    for (index, (said, change)) in changes.into_iter().enumerate() {
        let mut worker = place.worker("");
        let identity = worker.identity();
        place.record(&mut worker, Some(identity.clone()));
        worker.child.kill().unwrap();
        wait_until("the worker is dead", || !worker.lives());
        let mut other = identity;
        change(&mut other);
        let path = place.home.worker_hidden(&worker.entry.worker_id);
        let mut text = written(&other, "wrk_0.hidden");
        if index == 2 {
            text.truncate(text.len() / 2);
        }
        fs::write(&path, text).unwrap();
        let report = sweep::run(&place.home, GRACE);
        assert!(stranger.lives(), "{report:?}");
        assert_eq!(report.problems.len(), 1, "{report:?}");
        assert!(report.problems[0].contains(said), "{report:?}");
        assert_eq!((report.removed, place.files()), (1, 0));
    }
}

fn only(mark: &str) -> Remains<'_> {
    Remains {
        mark: Some(mark),
        ..Remains::default()
    }
}

#[test]
fn strays_of_one_mark_are_killed_and_no_others() {
    let place = Place::new();
    let (one, other) = (place.worker("setsid sleep 63 &"), place.worker(""));
    wait_until("the grandchild runs", || marked(&one) >= 2);
    let report = sweep::strays(only(&one.entry.mark), Duration::from_secs(5));
    assert!(
        report.killed.contains(&one.pid()) && report.killed.len() >= 2,
        "{report:?}"
    );
    assert!(report.survivors.is_empty() && marked(&one) == 0);
    assert!(other.lives());
}

/// In the test of that name this is the broker that an agent started.
const MARKED_BROKER: &str = "ADE_TEST_MARKED_BROKER";

#[test]
fn a_broker_that_carries_the_mark_itself_is_spared() {
    const NAME: &str = "a_broker_that_carries_the_mark_itself_is_spared";
    if let Ok(mark) = std::env::var(MARKED_BROKER) {
        let own = std::env::var(MARK_ENV).unwrap();
        assert_eq!(own, mark);
        let report = sweep::strays(only(&mark), GRACE.kill);
        assert!(!report.killed.is_empty(), "{report:?}");
        assert!(report.survivors.is_empty(), "{report:?}");
        return;
    }
    let place = Place::new();
    let worker = place.worker("");
    let broker = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--test-threads", "1"])
        .env(MARK_ENV, &worker.entry.mark)
        .env(MARKED_BROKER, &worker.entry.mark)
        .stdout(Stdio::null())
        .process_group(0)
        .status()
        .unwrap();
    assert!(broker.success(), "{broker}");
    wait_until("the worker is dead", || !worker.lives());
}
