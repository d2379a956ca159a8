//! The handed cases of the lease sidecar.

use crate::support::{HOUR, Live, Scene, Zombie, dead_pid, filled, fixture, iso_ago, put};
use ade_leases::lease::{
    AcquireError, Released, Request, Standing, Status, acquire, is_held, status,
};
use ade_leases::record::OwnerKind;
use ade_leases::verdict::{Alive, Dead, Why};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

const DAY: u64 = 24 * 3600;

fn chat() -> Request {
    Request {
        owner: OwnerKind::Sdk,
        owner_id: "chat-B".to_owned(),
        wait: None,
    }
}

fn lease_text(name: &str, scene: &Scene, live: &Live) -> String {
    let values = [
        ("LIVE_PID", live.pid().to_string()),
        ("LIVE_START", iso_ago(0)),
        ("OTHER_START", iso_ago(DAY)),
        ("DEAD_PID", dead_pid().to_string()),
        ("SELF_PID", std::process::id().to_string()),
        ("SESSION_FILE", scene.session.display().to_string()),
        ("NOW_ISO", iso_ago(0)),
        ("NOW_MINUS_3D_ISO", iso_ago(3 * DAY)),
    ];
    filled(&fixture(name), &values)
}

/// Takes and releases, and looks that nothing is left.
fn takes(scene: &Scene) {
    let lease = acquire(&scene.session, &chat()).expect("the lease is taken");
    assert_eq!(lease.standing().expect("a look"), Standing::Ours);
    assert_eq!(scene.litter(), ["S.jsonl.ade-lease"]);
    assert_eq!(
        fs::metadata(scene.lease()).expect("a lease").mode() & 0o7777,
        0o600
    );
    assert_eq!(lease.release().expect("a release"), Released::Freed);
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a01_a_reused_pid_is_dead_and_reclaimed_at_once() {
    let (scene, live) = (Scene::new(), Live::sleep());
    scene.put(
        &lease_text("A01-pid-reused.ade-lease", &scene, &live),
        Duration::ZERO,
    );
    assert!(matches!(
        status(&scene.session),
        Status::Dead {
            proof: Dead::BornAfter,
            ..
        }
    ));
    assert!(!is_held(&scene.session));
    takes(&scene);
}

#[test]
fn a03_another_host_or_namespace_is_unknown_and_left_as_it_is() {
    let (scene, live) = (Scene::new(), Live::sleep());
    let text = lease_text("A03-other-namespace.ade-lease", &scene, &live);
    let by_host = (text.clone(), "other-host");
    let namespace = text
        .replace(r#""host":"other-host""#, r#""pidNamespace":1"#)
        .replace("pid:[4026530001]", "-");
    for (text, names) in [by_host, (namespace, "pid:[1]")] {
        scene.put(&text, HOUR);
        let error = acquire(&scene.session, &chat()).expect_err("refused");
        assert!(
            matches!(
                error,
                AcquireError::Unknown {
                    why: Why::OtherHost | Why::OtherNamespace,
                    ..
                }
            ),
            "{error:?}"
        );
        let message = error.to_string();
        assert!(
            message.contains(names) && message.contains("ade lease break"),
            "{message}"
        );
        assert!(is_held(&scene.session));
        assert_eq!(fs::read_to_string(scene.lease()).expect("a lease"), text);
        assert_eq!(scene.litter(), ["S.jsonl.ade-lease"]);
    }
}

#[test]
fn a04_our_own_pid_in_a_leftover_is_a_ghost() {
    let (scene, live) = (Scene::new(), Live::sleep());
    scene.put(
        &lease_text("A04-own-pid-ghost.ade-lease", &scene, &live),
        Duration::ZERO,
    );
    assert!(matches!(
        status(&scene.session),
        Status::Dead {
            proof: Dead::BornAfter,
            ..
        }
    ));
    takes(&scene);
}

#[test]
fn a06_age_alone_never_frees_a_lease() {
    let (scene, live) = (Scene::new(), Live::sleep());
    let text = lease_text("A06-old-but-live.ade-lease", &scene, &live);
    scene.put(&text, Duration::from_secs(3 * DAY));
    assert!(matches!(
        status(&scene.session),
        Status::Held {
            proof: Alive::PidExists,
            ..
        }
    ));
    assert!(matches!(
        acquire(&scene.session, &chat()),
        Err(AcquireError::Held(_))
    ));
    assert_eq!(fs::read_to_string(scene.lease()).expect("a lease"), text);
}

#[test]
fn a07_a_zombie_is_dead() {
    let (scene, zombie) = (Scene::new(), Zombie::new());
    let values = [
        ("ZOMBIE_PID", zombie.pid().to_string()),
        ("ZOMBIE_START", iso_ago(0)),
        ("SESSION_FILE", scene.session.display().to_string()),
        ("NOW_ISO", iso_ago(0)),
    ];
    scene.put(
        &filled(&fixture("A07-zombie-owner.ade-lease"), &values),
        Duration::ZERO,
    );
    assert!(matches!(
        status(&scene.session),
        Status::Dead {
            proof: Dead::Zombie,
            ..
        }
    ));
    takes(&scene);
}

#[test]
fn a11_a_zero_byte_lease_is_nobodys_once_it_is_not_young() {
    let scene = Scene::new();
    scene.put(&fixture("A11-zero-byte.ade-lease"), Duration::ZERO);
    let error = acquire(&scene.session, &chat()).expect_err("it may be in the making");
    assert!(
        matches!(
            error,
            AcquireError::Unknown {
                why: Why::Young,
                ..
            }
        ),
        "{error:?}"
    );
    scene.put("", HOUR);
    assert!(matches!(status(&scene.session), Status::Damaged));
    let lease = acquire(&scene.session, &chat()).expect("the lease is taken");
    let replaced = lease.replaced().expect("it was there");
    assert_eq!((&replaced.record, replaced.proof), (&None, Dead::Damaged));
    assert_eq!(
        replaced.to_string(),
        "took the place of a lease of nobody: the file is damaged and nobody is writing it"
    );
    drop(lease);
    takes(&scene);
}

#[test]
fn a14_a_successor_is_left_byte_for_byte() {
    let (scene, live) = (Scene::new(), Live::sleep());
    let lease = acquire(&scene.session, &chat()).expect("the lease is taken");
    let text = lease_text("A14-successor.ade-lease", &scene, &live);
    fs::remove_file(scene.lease()).expect("it is there");
    scene.put(&text, Duration::ZERO);
    let Standing::Foreign(Some(record)) = lease.standing().expect("a look") else {
        panic!("it is foreign");
    };
    assert_eq!(record.owner_id, "chat-B");
    assert_eq!(lease.release().expect("no error"), Released::HadBeenLost);
    assert_eq!(fs::read_to_string(scene.lease()).expect("a lease"), text);
    assert_eq!(scene.litter(), ["S.jsonl.ade-lease"]);
}

#[test]
fn a15_a_newer_version_with_a_live_pid_is_refused_by_its_number() {
    let (scene, live) = (Scene::new(), Live::sleep());
    let text = lease_text("A15-version3-live.ade-lease", &scene, &live);
    scene.put(&text, HOUR);
    let error = acquire(&scene.session, &chat()).expect_err("refused");
    assert!(
        matches!(
            error,
            AcquireError::Unknown {
                why: Why::NewerVersion,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("version 3"), "{error}");
    assert_eq!(fs::read_to_string(scene.lease()).expect("a lease"), text);
    let pid = dead_pid().to_string();
    scene.put(
        &text.replace(
            &format!("\"pid\":{}", live.pid()),
            &format!("\"pid\":{pid}"),
        ),
        HOUR,
    );
    assert!(matches!(
        status(&scene.session),
        Status::Dead {
            proof: Dead::NoSuchProcess,
            ..
        }
    ));
    takes(&scene);
}

#[test]
fn a20_a_planted_symlink_is_never_followed() {
    let scene = Scene::new();
    let victim = scene.dir.path().join("victim.txt");
    fs::write(&victim, "precious").expect("a victim");
    symlink(&victim, scene.lease()).expect("a symlink");
    let error = acquire(&scene.session, &chat()).expect_err("refused");
    assert!(matches!(error, AcquireError::NotAFile { .. }), "{error:?}");
    assert!(error.to_string().contains("a symbolic link"), "{error}");
    assert!(matches!(status(&scene.session), Status::NotAFile(_)));
    fs::remove_file(scene.lease()).expect("the symlink goes");

    // Planted while we hold it, and a directory in place of the file.
    let lease = acquire(&scene.session, &chat()).expect("the lease is taken");
    fs::remove_file(scene.lease()).expect("it is there");
    symlink(&victim, scene.lease()).expect("a symlink");
    assert_eq!(lease.standing().expect("a look"), Standing::Foreign(None));
    assert_eq!(lease.release().expect("no error"), Released::HadBeenLost);
    assert!(
        fs::symlink_metadata(scene.lease())
            .expect("still there")
            .is_symlink()
    );
    fs::remove_file(scene.lease()).expect("the symlink goes");
    fs::create_dir(scene.lease()).expect("a directory");
    let error = acquire(&scene.session, &chat()).expect_err("refused");
    assert!(error.to_string().contains("a directory"), "{error}");
    assert_eq!(fs::read_to_string(&victim).expect("the victim"), "precious");
}

#[test]
fn a22_a_live_claim_blocks_and_a_dead_one_is_tidied() {
    const NAME: &str = "A22-S.jsonl.ade-lease.reclaim-77777777-0000-4000-8000-777777777777";
    let (scene, live) = (Scene::new(), Live::sleep());
    let claim = scene.beside(".ade-lease.reclaim-77777777-0000-4000-8000-777777777777");
    let text = lease_text(NAME, &scene, &live);
    put(&claim, &text, HOUR);
    let error = acquire(&scene.session, &chat()).expect_err("refused");
    assert!(
        matches!(error, AcquireError::Reclaiming { .. }),
        "{error:?}"
    );
    assert!(is_held(&scene.session));
    assert_eq!(fs::read_to_string(&claim).expect("the claim"), text);

    let pid = dead_pid().to_string();
    let dead = text.replace(
        &format!("\"pid\":{}", live.pid()),
        &format!("\"pid\":{pid}"),
    );
    for crash in 0..100 {
        for side in ["reclaim", "release", "new"] {
            let name = format!(".ade-lease.{side}-{crash:08}-0000-4000-8000-777777777777");
            put(
                &scene.beside(&name),
                if crash % 2 == 0 { &dead } else { "gar" },
                HOUR,
            );
        }
    }
    put(&claim, &dead, HOUR);
    takes(&scene);
}
