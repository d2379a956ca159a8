//! The lease protocol explored state by state, and checked against the library.
//!
//! `ADE_LEASE_MODEL=full` explores what takes minutes and some GiB; use a
//! release build for it.

use ade_leases::lease::{Moment, Request, Seam, Step, acquire_with};
use ade_leases::record::OwnerKind;
use ade_tests::lease_model::{Config, Hazard, Report, Scene, Without, explore, solo, way_to};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// More states than any of these has; the bound is for memory.
const LIMIT: usize = 80_000_000;

fn full() -> bool {
    std::env::var("ADE_LEASE_MODEL").is_ok_and(|word| word == "full")
}

fn run(config: Config) -> Report {
    let report = explore(&config, LIMIT);
    writeln!(io::stdout(), "{report}").expect("stdout");
    assert!(report.complete, "more than {LIMIT} states");
    report
}

fn absent(report: &Report, hazards: &[Hazard]) {
    for hazard in hazards {
        if report.count(*hazard) > 0 {
            let way = way_to(&report.config, *hazard).unwrap_or_default();
            panic!("{hazard:?} in {report}\n{way}");
        }
    }
}

/// What no configuration may show.
const NEVER: [Hazard; 5] = [
    Hazard::OursOurs,
    Hazard::OursOursSeen,
    Hazard::Untakable,
    Hazard::Litter,
    Hazard::Stuck,
];

fn nothing_wrong(config: Config) {
    let report = run(config);
    assert!(report.hazards.is_empty(), "{report}");
}

#[test]
fn among_ours_nothing_goes_wrong() {
    let no_exchange = |mut config: Config| {
        config.exchange = false;
        config
    };
    let stopped = |mut config: Config| {
        config.stopped = true;
        config.watch = true;
        config
    };
    nothing_wrong(Config::new(2, 0, 2));
    nothing_wrong(no_exchange(Config::new(2, 0, 2)));
    nothing_wrong(stopped(Config::new(2, 0, 2)));
    nothing_wrong(Config::new(3, 0, 1));
    nothing_wrong(Config::new(4, 0, 1));
    let mut short = Config::new(3, 0, 2);
    short.crashes = 1;
    nothing_wrong(short);
    if full() {
        nothing_wrong(Config::new(3, 0, 2));
        nothing_wrong(no_exchange(Config::new(3, 0, 2)));
        nothing_wrong(stopped(Config::new(3, 0, 2)));
    }
}

/// Waiters queue behind the holder, behind each other, and behind their own
/// last release, and nobody waits for ever.
#[test]
fn whoever_waits_gets_his_turn() {
    let waiting = |ours, rounds, crashes| {
        let mut config = Config::new(ours, 0, rounds);
        config.wait = true;
        config.crashes = crashes;
        config
    };
    nothing_wrong(waiting(2, 2, 8));
    nothing_wrong(waiting(3, 1, 8));
    if full() {
        nothing_wrong(waiting(3, 2, 8));
    }
}

/// Across pid namespaces only the kernel lock tells, so nobody is robbed; what
/// a dead process of another namespace has left waits for one of its own or for
/// a human.
#[test]
fn another_pid_namespace_is_never_robbed() {
    let mut config = Config::new(3, 0, 1);
    config.namespace = true;
    let report = run(config);
    absent(&report, &NEVER);
    let kinds: Vec<_> = report.hazards.into_keys().collect();
    assert_eq!(kinds, [Hazard::OtherNamespace]);
}

/// A foreign process beside ours: what it breaks is counted, and two of ours
/// still never hold at once.
#[test]
fn beside_a_foreign_process_ours_stay_exclusive() {
    let mut configs = vec![
        Config::new(1, 1, 2),
        Config::new(2, 1, 1),
        Config::new(3, 1, 1),
        Config::new(1, 2, 1),
    ];
    for at in [0, 1, 3] {
        configs.push(Config {
            exchange: false,
            ..configs[at]
        });
    }
    let fewer_crashes = |mut config: Config, crashes| {
        config.crashes = crashes;
        config
    };
    configs.push(fewer_crashes(Config::new(2, 1, 2), u8::from(full())));
    if full() {
        configs.push(Config::new(2, 1, 2));
        configs.push(fewer_crashes(Config::new(3, 1, 2), 1));
        configs.push(Config {
            exchange: false,
            ..Config::new(2, 1, 2)
        });
        configs.push(Config {
            stopped: true,
            watch: true,
            ..fewer_crashes(Config::new(2, 1, 2), 2)
        });
        configs.push(fewer_crashes(Config::new(1, 2, 2), 1));
    }
    for config in configs {
        absent(&run(config), &NEVER);
    }
}

/// A foreign process takes a pid of another namespace for nobody's and robs
/// whoever is there. Of two of ours the robbed one sees that at its next look.
#[test]
fn a_foreign_process_robs_another_pid_namespace() {
    let mut config = Config::new(2, 1, 1);
    config.namespace = true;
    let report = run(config);
    absent(&report, &[Hazard::OursOurs, Hazard::Litter, Hazard::Stuck]);
    assert!(report.count(Hazard::OursOursSeen) > 0, "{report}");
}

/// Each part is needed: without it the search finds what goes wrong. This is
/// also what shows that the search can find anything.
#[test]
fn without_any_part_something_goes_wrong() {
    let without = |ours, foreign, crashes, without| {
        let mut config = Config::new(ours, foreign, 2);
        config.crashes = crashes;
        config.without = without;
        config
    };
    let mut cases = vec![
        (without(3, 0, 1, Without::Guard), Hazard::OursOursSeen),
        (without(2, 0, 1, Without::StartTicks), Hazard::Untakable),
        (without(2, 1, 0, Without::SecondLook), Hazard::OursOursSeen),
        (
            without(2, 1, 1, Without::GiveBack),
            Hazard::OursForeignUnseen,
        ),
        (without(1, 1, 8, Without::OwnLook), Hazard::OursForeignSeen),
    ];
    let blind = without(2, 1, 0, Without::SeenDead);
    cases.push((
        Config {
            exchange: false,
            ..blind
        },
        Hazard::OursOurs,
    ));
    if full() {
        let stopped = without(2, 1, 2, Without::ReleaseLook);
        cases.push((
            Config {
                stopped: true,
                ..stopped
            },
            Hazard::OursOursSeen,
        ));
    }
    for (config, hazard) in cases {
        let report = run(config);
        assert!(report.count(hazard) > 0, "no {hazard:?} in {report}");
    }
    let ghosts = |part| run(without(2, 1, 0, part)).count(Hazard::GhostOfOurs);
    assert!(ghosts(Without::RefusalSweep) > ghosts(Without::Nothing));
}

/// The real steps of one process, as the library takes them, are those of the
/// model, whatever it meets.
#[test]
fn the_library_takes_the_steps_of_the_model() {
    for scene in Scene::ALL {
        let (expected, held) = solo(scene);
        let (steps, got) = real(scene);
        assert_eq!((steps, got), (expected, held), "{scene:?}");
    }
}

/// Sets the scene with files, and records what the library does in it.
fn real(scene: Scene) -> (Vec<Step>, bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let session = dir.path().join("S.jsonl");
    std::fs::write(&session, "").expect("a session");
    let files = Files::beside(&session);
    match scene {
        Scene::Held => files.lease(Some(Life::Alive)),
        Scene::LiveClaim => files.claim(),
        scene if scene.starts_dead() => files.lease(Some(Life::Dead)),
        _ => {}
    }
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seam = {
        let steps = Arc::clone(&steps);
        let acted = Mutex::new(false);
        Seam::new(move |step, moment| {
            if moment == Moment::After {
                return Ok(());
            }
            steps.lock().expect("one thread").push(step);
            let mut acted = acted.lock().expect("one thread");
            if scene.acts_before() == Some(step) && !std::mem::replace(&mut *acted, true) {
                match scene {
                    Scene::ClaimBeforePublish => files.claim(),
                    Scene::GoneBeforeGuard
                    | Scene::GoneBeforeExchange
                    | Scene::LostBeforeRelease => {
                        files.lease(None);
                    }
                    _ => files.lease(Some(Life::Alive)),
                }
            }
            if scene.has_renameat2() || !matches!(step, Step::Exchange | Step::RenameNoReplace) {
                Ok(())
            } else {
                Err(nix::errno::Errno::EINVAL.into())
            }
        })
    };
    let lease = acquire_with(&session, &request(), &seam);
    let got = lease.is_ok();
    match lease {
        Ok(lease) => drop(lease.release().expect("it is released")),
        Err(error) => assert!(error.is_contention(), "{scene:?}: {error}"),
    }
    let steps = steps.lock().expect("one thread").clone();
    (steps, got)
}

/// What the foreign program does to us in the middle, done by hand at one step:
/// those parts of the model that are no steps of their own, on the real thing.
fn disturbed(
    at: (Step, Moment),
    act: impl Fn(&Files) + Send + Sync + 'static,
) -> (tempfile::TempDir, PathBuf, Seam) {
    let dir = tempfile::tempdir().expect("a directory");
    let session = dir.path().join("S.jsonl");
    std::fs::write(&session, "").expect("a session");
    let files = Files::beside(&session);
    let acted = Mutex::new(false);
    let seam = Seam::new(move |step, moment| {
        let mut acted = acted.lock().expect("one thread");
        if (step, moment) == at && !std::mem::replace(&mut *acted, true) {
            act(&files);
        }
        Ok(())
    });
    (dir, session, seam)
}

/// The names beside the lease whose record has this process for its owner.
fn left_of_ours(dir: &Path) -> Vec<String> {
    let own = format!("\"pid\":{},", std::process::id());
    let entries = std::fs::read_dir(dir).expect("the directory");
    entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains(&own)))
        .map(|path| path.display().to_string())
        .collect()
}

/// [`Without::OwnLook`]: a foreign release has moved our lease away while we
/// took it.
#[test]
fn a_lease_that_went_away_meanwhile_is_not_given() {
    let (_dir, session, seam) = disturbed((Step::ScanAgain, Moment::After), |files| {
        std::fs::rename(&files.lease, files.beside_it(".release-")).expect("it is there");
    });
    if let Ok(lease) = acquire_with(&session, &request(), &seam) {
        let standing = lease.standing().expect("it can be looked at");
        assert_eq!(standing, ade_leases::lease::Standing::Ours);
    }
}

/// [`Without::ReleaseLook`]: a holder whose lease a foreign release has moved
/// away, and not yet put back, still holds.
#[test]
fn a_holder_that_was_moved_by_a_foreign_release_blocks() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = dir.path().join("S.jsonl");
    std::fs::write(&session, "").expect("a session");
    let files = Files::beside(&session);
    let mut holder = Command::new(env!("CARGO_BIN_EXE_lease-crash"))
        .arg(&session)
        .args(["plain", "kill", "1000000"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("lease-crash starts");
    let mut said = String::new();
    let stdout = holder.stdout.as_mut().expect("a pipe");
    io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut said).expect("text");
    assert_eq!(said, "held\n");
    std::fs::rename(&files.lease, files.beside_it(".release-")).expect("it is there");
    let refused = ade_leases::lease::acquire(&session, &request());
    drop(holder.stdin.take());
    holder.wait().expect("it ends");
    assert!(refused.expect_err("it is held").is_contention());
}

/// [`Without::RefusalSweep`]: our just published lease was moved aside, and the
/// acquire is refused for another claim.
#[test]
fn who_is_refused_leaves_no_claim_behind() {
    let (dir, session, seam) = disturbed((Step::ScanAgain, Moment::Before), |files| {
        std::fs::rename(&files.lease, files.beside_it(".reclaim-")).expect("it is there");
        files.claim();
    });
    let refused = acquire_with(&session, &request(), &seam);
    assert!(refused.expect_err("a live claim is there").is_contention());
    assert_eq!(left_of_ours(dir.path()), [""; 0]);
}

/// A lease that is moved aside between the last look and the removal.
#[test]
fn a_release_finds_what_was_moved_in_the_middle() {
    let (dir, session, seam) = disturbed((Step::ReleaseUnlink, Moment::Before), |files| {
        std::fs::rename(&files.lease, files.beside_it(".reclaim-")).expect("it is there");
    });
    let lease = acquire_with(&session, &request(), &seam).expect("free");
    lease.release().expect("it is gone");
    assert_eq!(left_of_ours(dir.path()), [""; 0]);
}

/// A lease that was moved aside and put back as a copy; who did it died before
/// it removed the claim.
#[test]
fn a_release_finds_the_claim_beside_a_copy() {
    let (dir, session, seam) = disturbed((Step::Unguard, Moment::After), |files| {
        let claim = files.beside_it(".reclaim-");
        std::fs::rename(&files.lease, &claim).expect("it is there");
        std::fs::copy(claim, &files.lease).expect("a copy");
    });
    let lease = acquire_with(&session, &request(), &seam).expect("free");
    lease.release().expect("it is ours");
    assert_eq!(left_of_ours(dir.path()), [""; 0]);
}

fn request() -> Request {
    Request {
        owner: OwnerKind::Sdk,
        owner_id: "model".to_owned(),
        wait: None,
    }
}

#[derive(Clone, Copy)]
enum Life {
    Alive,
    Dead,
}

/// The sidecars of a session, as a foreign program leaves them.
struct Files {
    lease: PathBuf,
    dead: u32,
}

impl Files {
    fn beside(session: &Path) -> Self {
        let mut lease = session.as_os_str().to_owned();
        lease.push(".ade-lease");
        let mut child = Command::new("true").spawn().expect("true starts");
        child.wait().expect("it ends");
        Self {
            lease: lease.into(),
            dead: child.id(),
        }
    }

    fn record(&self, life: Life) -> String {
        let pid = match life {
            Life::Alive => std::os::unix::process::parent_id(),
            Life::Dead => self.dead,
        };
        // Nobody is born after that.
        let at = "2100-01-01T00:00:00.000Z";
        format!(
            "{{\"version\":1,\"token\":\"t-{pid}\",\"owner\":\"cli\",\"ownerId\":\"pty\",\"pid\":{pid},\
             \"acquiredAt\":\"{at}\",\"sessionFile\":\"/S.jsonl\"}}\n"
        )
    }

    /// By a rename, as the file must never be seen half.
    fn lease(&self, life: Option<Life>) {
        let Some(life) = life else {
            std::fs::remove_file(&self.lease).expect("it was there");
            return;
        };
        let temporary = self.lease.with_extension("tmp");
        std::fs::write(&temporary, self.record(life)).expect("a record");
        std::fs::rename(&temporary, &self.lease).expect("in its place");
    }

    fn beside_it(&self, word: &str) -> PathBuf {
        let mut path = self.lease.clone().into_os_string();
        path.push(word);
        path.push("0b0b0b0b-0000-4000-8000-00000000000b");
        path.into()
    }

    fn claim(&self) {
        let mut claim = self.lease.clone().into_os_string();
        claim.push(".reclaim-0a0a0a0a-0000-4000-8000-00000000000a");
        std::fs::write(claim, self.record(Life::Alive)).expect("a claim");
    }
}
