//! Starting and collecting processes. Collecting is the whole process's, so
//! this has a test program of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ade_broker::cgroups::Cgroups;
use ade_broker::home::Home;
use ade_broker::providers::{LaunchSpec, tool_policy};
use ade_broker::spawn::{self, Exit, SpawnError, Spawned, Spawner, WorkerSpec};
use ade_broker::sweep::{self, Remains};
use ade_broker::{environment, journal, reap};
use ade_leases::process::{self, Pid, Signal, Target};
use ade_protocol::action::PermissionMode;
use ade_protocol::boot::{HostCommand, WorkerBoot, WorkerTiming};
use ade_protocol::{Generation, PROTOCOL_VERSION, WorkerId};
use tempfile::TempDir;

/// While one test writes a script, a child that another test starts would
/// inherit the open file for a moment, and the script could not be executed
/// ("text file busy"). So there is one place at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Place {
    _turn: MutexGuard<'static, ()>,
    _folder: TempDir,
    home: Home,
}

impl Place {
    fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = TempDir::new().unwrap();
        let home = Home::at(folder.path().join("home"), None)
            .unwrap()
            .prepare()
            .unwrap();
        Self {
            _turn: turn,
            _folder: folder,
            home,
        }
    }

    fn script(&self, text: &str) -> PathBuf {
        let path = self
            .home
            .root()
            .join(format!("{}.sh", WorkerId::generate()));
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    fn spawner(&self, script: &str) -> Spawner {
        Spawner::start(&self.home, Some(self.script(script)), Cgroups::unused("")).unwrap()
    }

    fn spec(&self) -> WorkerSpec {
        let path = std::env::var_os("PATH").unwrap();
        WorkerSpec {
            boot: WorkerBoot {
                protocol_version: PROTOCOL_VERSION,
                worker_id: WorkerId::generate(),
                token: "canary-token".into(),
                session_id: "ses_1".into(),
                generation: Generation(1),
                provider: "scripted".into(),
                socket: "/s".into(),
                home: self.home.root().display().to_string(),
                host: HostCommand::Scripted,
                cgroup: None,
                hidden: None,
                timing: WorkerTiming::default(),
            },
            env: environment::worker_env(
                "scripted",
                [("PATH".into(), path), ("SECRET".into(), "canary".into())],
                &BTreeSet::new(),
                "the-mark",
            ),
            mark: "the-mark".into(),
            fixed: LaunchSpec {
                policy: tool_policy(PermissionMode::Default),
                changes: 0,
                agent_dir: None,
            },
        }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.home.root().join(name)).unwrap()
    }
}

async fn end(spawned: &mut Spawned) -> Exit {
    let ended = spawned.exit.wait_for(Option::is_some);
    let exit = tokio::time::timeout(Duration::from_secs(10), ended).await;
    exit.expect("it ends in time").unwrap().unwrap()
}

async fn wait_until(label: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready() {
        assert!(Instant::now() < deadline, "waited in vain until {label}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn own_children() -> Vec<process::ProcessEntry> {
    process::children(Pid::own(), &process::table().unwrap())
}

#[tokio::test]
async fn l06_a_worker_is_told_by_its_input_and_by_nothing_else() {
    let place = Place::new();
    let spawner = place.spawner("cat > told; env > env; tr '\\0' ' ' < /proc/$$/cmdline > line; pwd > pwd; echo oops >&2; umask > umask");
    let spec = place.spec();
    let (worker, mut boot) = (spec.boot.worker_id.clone(), spec.boot.clone());
    let hidden = place.home.worker_hidden(&worker);
    boot.hidden = Some(hidden.display().to_string());
    let mut spawned = spawner.spawn(spec).await.unwrap();
    assert_eq!(
        end(&mut spawned).await,
        Exit {
            code: Some(0),
            signal: None
        }
    );
    assert_eq!(
        serde_json::from_str::<WorkerBoot>(&place.read("told")).unwrap(),
        boot
    );
    assert!(!place.read("line").contains("canary"));
    let env = place.read("env");
    assert!(
        env.contains("ADE_WORKER_MARK=the-mark") && !env.contains("canary"),
        "{env}"
    );
    assert_eq!(
        place.read("pwd").trim(),
        place.home.root().display().to_string()
    );

    let journals = journal::read_all(&place.home).unwrap();
    let [entry] = journals.entries.as_slice() else {
        panic!("{journals:?}")
    };
    assert_eq!(
        (&entry.worker_id, entry.identity.as_ref()),
        (&worker, Some(&spawned.identity))
    );
    assert!(journal::token_fits(entry, "canary-token"));
    let stderr = place.home.worker_stderr(&worker);
    assert_eq!(fs::read_to_string(&stderr).unwrap(), "oops\n");
    assert_eq!(
        fs::metadata(&stderr).unwrap().permissions().mode() & 0o777,
        0o600
    );
    journal::remove(&place.home, &worker);
    assert_eq!(fs::read_dir(place.home.journal_dir()).unwrap().count(), 0);
}

#[tokio::test]
async fn j12_strangers_are_reaped_and_no_status_of_our_own_is_lost() {
    let place = Place::new();
    // Each leaves fifty orphans that end some time later.
    let spawner = place.spawner(
        "i=0; while [ $i -lt 50 ]; do (sleep 0.0$((i % 10)) &); i=$((i + 1)); done; read line; exit 7",
    );
    let before = reap::strangers();
    let starts = (0..8).map(|_| spawner.spawn(place.spec()));
    let mut workers = Vec::new();
    for start in starts {
        workers.push(start.await.unwrap());
    }
    let pids: BTreeSet<i32> = workers.iter().map(|worker| worker.pid).collect();
    for worker in &mut workers {
        assert_eq!(end(worker).await.to_string(), "exit code 7");
    }
    // A look for a version at the same time does not lose its status either.
    for _ in 0..50 {
        let captured = spawn::capture(
            &place.script("echo v1.2.3; exit 3"),
            &[],
            &BTreeMap::new(),
            Duration::from_secs(10),
        )
        .unwrap();
        assert_eq!(
            (captured.stdout.as_str(), captured.exit.code),
            ("v1.2.3\n", Some(3))
        );
    }
    wait_until("all orphans are reaped", || {
        reap::strangers() >= before + 8 * 50
    })
    .await;
    wait_until("no zombie of ours is left", || {
        !own_children()
            .iter()
            .any(|child| child.is_zombie() || pids.contains(&child.pid.get()))
    })
    .await;
}

#[tokio::test]
async fn a_signal_is_told_apart_from_a_code() {
    let place = Place::new();
    let mut spawned = place
        .spawner("exec sleep 60")
        .spawn(place.spec())
        .await
        .unwrap();
    process::signal(&Target::Process(spawned.identity.clone()), Signal::SIGKILL).unwrap();
    assert_eq!(end(&mut spawned).await.to_string(), "signal 9 (SIGKILL)");
}

#[tokio::test]
async fn what_cannot_be_started_leaves_nothing() {
    let place = Place::new();
    let spawner = Spawner::start(
        &place.home,
        Some("/nowhere/at/all".into()),
        Cgroups::unused(""),
    )
    .unwrap();
    let error = spawner.spawn(place.spec()).await.unwrap_err();
    assert!(matches!(error, SpawnError::Execute { .. }), "{error}");
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    assert_eq!(fs::read_dir(place.home.journal_dir()).unwrap().count(), 0);

    // No journal, no worker.
    let spawner = place.spawner("touch ran");
    fs::remove_dir(place.home.journal_dir()).unwrap();
    fs::write(place.home.journal_dir(), "in the way").unwrap();
    let error = spawner.spawn(place.spec()).await.unwrap_err();
    assert!(matches!(error, SpawnError::Record { .. }), "{error}");
    assert!(!place.home.root().join("ran").exists());
}

#[tokio::test]
async fn a_worker_that_nobody_waits_for_any_more_is_killed() {
    let place = Place::new();
    let spawner = place.spawner("echo $$ > pid; exec sleep 60");
    {
        let asked = spawner.spawn(place.spec());
        tokio::pin!(asked);
        let waker = std::task::Waker::noop();
        let _ =
            std::future::Future::poll(asked.as_mut(), &mut std::task::Context::from_waker(waker));
    }
    // The next start comes after the end of that one.
    let error_or_worker = spawner.spawn(place.spec()).await;
    let worker = error_or_worker.unwrap();
    let journals = journal::read_all(&place.home).unwrap();
    assert_eq!(journals.entries.len(), 1);
    assert_eq!(
        journals.entries[0].identity.as_ref(),
        Some(&worker.identity)
    );
    process::signal(&Target::Process(worker.identity), Signal::SIGKILL).unwrap();
}

#[test]
fn a_program_that_does_not_end_is_killed_at_its_bound() {
    let place = Place::new();
    for script in [
        "exec sleep 60",
        "(sleep 3 &); exec sleep 60",
        "exec >&-; exec sleep 60",
    ] {
        let begun = Instant::now();
        let bound = Duration::from_millis(200);
        let error = spawn::capture(&place.script(script), &[], &path_only(), bound).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(5), "{script}");
    }
    assert!(
        spawn::capture(
            std::path::Path::new("/nowhere"),
            &[],
            &BTreeMap::new(),
            Duration::from_secs(1)
        )
        .is_err()
    );
}

fn path_only() -> BTreeMap<std::ffi::OsString, std::ffi::OsString> {
    BTreeMap::from([("PATH".into(), std::env::var_os("PATH").unwrap())])
}

#[tokio::test]
async fn h12_starting_and_ending_leaks_no_descriptor() {
    let place = Place::new();
    let spawner = place.spawner("read line");
    let usage = || ade_broker::limits::fd_usage().unwrap().0;
    let before = usage();
    for _ in 0..100 {
        let spec = place.spec();
        let worker = spec.boot.worker_id.clone();
        let mut spawned = spawner.spawn(spec).await.unwrap();
        assert!(end(&mut spawned).await.is_success());
        journal::remove(&place.home, &worker);
    }
    assert!(usage() <= before + 5, "{before} {}", usage());
}

#[test]
fn orphans_are_ended_and_nothing_that_is_just_being_started() {
    const BOUND: Duration = Duration::from_secs(10);
    let place = Place::new();
    reap::start().unwrap();
    let slow = place.script("sleep 0.05; echo said");
    let leaves = place.script("setsid sleep 300 >/dev/null & echo $!");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let captures: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..15 {
                        let captured = spawn::capture(&slow, &[], &path_only(), BOUND).unwrap();
                        assert!(captured.exit.is_success(), "{captured:?}");
                        assert_eq!(captured.stdout, "said\n");
                    }
                })
            })
            .collect();
        let sweeper = scope.spawn(|| {
            let mut killed = BTreeSet::new();
            while !over.load(Ordering::Relaxed) {
                let report = sweep::strays(Remains::default(), BOUND);
                assert_eq!((report.survivors, report.problem), (vec![], None));
                killed.extend(report.killed);
            }
            killed
        });
        let left = spawn::capture(&leaves, &[], &path_only(), BOUND);
        let captures: Vec<_> = captures.into_iter().map(|one| one.join()).collect();
        // Before anything can fail: the sweeper would go on for ever.
        over.store(true, Ordering::Relaxed);
        assert!(captures.iter().all(Result::is_ok));
        let orphan: i32 = left.unwrap().stdout.trim().parse().unwrap();
        assert!(sweeper.join().unwrap().contains(&orphan), "{orphan}");
    });
}
