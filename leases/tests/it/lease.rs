//! Acquire, release and reclaim, between threads and between processes.

use crate::child::Other;
use crate::support::{HOUR, Live, Scene, dead_pid, iso_ago, put};
use ade_leases::lease::{
    AcquireError, BreakError, Released, Request, Standing, Status, acquire, break_by_force,
    break_dead, is_held, status,
};
use ade_leases::record::OwnerKind;
use ade_leases::verdict::{Alive, Dead};
use std::fs;
use std::time::Duration;

fn chat() -> Request {
    Request {
        owner: OwnerKind::Sdk,
        owner_id: "chat-A".to_owned(),
        wait: None,
    }
}

#[test]
fn a_free_session_is_taken_and_given_back() {
    let scene = Scene::new();
    assert!(matches!(status(&scene.session), Status::Free));
    let lease = acquire(&scene.session, &chat()).expect("taken");
    assert_eq!(lease.path(), scene.lease());
    assert_eq!(
        lease.record().session_file,
        scene.session.display().to_string()
    );
    assert!(matches!(
        status(&scene.session),
        Status::Held {
            proof: Alive::KernelLock,
            ..
        }
    ));
    assert!(is_held(&scene.session));
    drop(lease);
    assert_eq!(scene.litter(), Vec::<String>::new());
    assert!(!is_held(&scene.session));
}

#[test]
fn one_process_never_gets_a_lease_twice_however_it_is_spelled() {
    let scene = Scene::new();
    let lease = acquire(&scene.session, &chat()).expect("taken");
    let link = scene.dir.path().join("other.jsonl");
    std::os::unix::fs::symlink(&scene.session, &link).expect("a link");
    let detour = scene.dir.path().join(".").join("S.jsonl");
    for path in [&scene.session, &link, &detour] {
        let error = acquire(path, &chat()).expect_err("refused");
        assert!(
            matches!(error, AcquireError::AlreadyHere { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("chat-A"), "{error}");
    }
    drop(lease);
    assert!(acquire(&link, &chat()).is_ok());
}

#[test]
fn two_sessions_that_do_not_exist_yet_are_independent() {
    let scene = Scene::new();
    let one = acquire(&scene.dir.path().join("one.jsonl"), &chat()).expect("taken");
    let two = acquire(&scene.dir.path().join("two.jsonl"), &chat()).expect("taken");
    assert_ne!(one.record().token, two.record().token);
    let error = acquire(&scene.dir.path().join("no/such.jsonl"), &chat()).expect_err("refused");
    assert!(
        matches!(error, AcquireError::NoDirectory { .. }),
        "{error:?}"
    );
}

#[test]
fn a_holder_in_another_process_is_named_and_then_reclaimed_when_killed() {
    let scene = Scene::new();
    let mut other = Other::holding(&scene.session);
    let error = acquire(&scene.session, &chat()).expect_err("refused");
    let holder = error.holder().expect("it is known");
    assert_eq!(holder.proof, Alive::KernelLock);
    let message = error.to_string();
    let expected = format!("held by pid {} (cli, pty-9, since ", other.pid());
    assert!(message.contains(&expected), "{message}");
    assert!(
        message.ends_with("UTC; its kernel lock is held); stop that one, or start a new chat"),
        "{message}"
    );
    assert!(matches!(
        break_dead(&scene.session),
        Err(BreakError::Held(_))
    ));

    other.kill();
    assert!(matches!(
        status(&scene.session),
        Status::Dead {
            proof: Dead::Zombie,
            ..
        }
    ));
    let lease = acquire(&scene.session, &chat()).expect("reclaimed");
    assert_eq!(lease.standing().expect("a look"), Standing::Ours);
    assert_eq!(scene.litter(), ["S.jsonl.ade-lease"]);
    assert_eq!(lease.release().expect("a release"), Released::Freed);
}

#[test]
fn a_released_lease_can_be_taken_by_another_process() {
    let scene = Scene::new();
    let other = Other::holding(&scene.session);
    other.finish();
    assert!(acquire(&scene.session, &chat()).is_ok());
}

#[test]
fn the_kernel_lock_outranks_the_pid_in_the_record() {
    let scene = Scene::new();
    let other = Other::holding(&scene.session);
    // As if its pid meant nothing here: same file, so the lock stays.
    let text = fs::read_to_string(scene.lease()).expect("a lease");
    let pid = format!("\"pid\":{}", other.pid());
    let dead = text.replace(&pid, &format!("\"pid\":{}", dead_pid()));
    assert_ne!(dead, text);
    fs::write(scene.lease(), &dead).expect("written in place");
    assert!(matches!(
        acquire(&scene.session, &chat()),
        Err(AcquireError::Held(_))
    ));
}

#[test]
fn a_record_of_version_1_goes_by_its_pid() {
    let (scene, live) = (Scene::new(), Live::sleep());
    let text = |pid: u32| {
        format!(
            r#"{{"version":1,"token":"t","owner":"sdk","ownerId":"x","pid":{pid},"acquiredAt":"{}","sessionFile":"S"}}"#,
            iso_ago(0)
        )
    };
    scene.put(&text(live.pid()), HOUR);
    assert!(matches!(
        acquire(&scene.session, &chat()),
        Err(AcquireError::Held(_))
    ));
    scene.put(&text(dead_pid()), HOUR);
    assert!(acquire(&scene.session, &chat()).is_ok());
}

#[test]
fn a_holder_whose_lease_was_moved_aside_sweeps_its_claim() {
    let scene = Scene::new();
    let lease = acquire(&scene.session, &chat()).expect("taken");
    let claim = scene.beside(".ade-lease.reclaim-88888888-0000-4000-8000-888888888888");
    fs::rename(scene.lease(), &claim).expect("moved aside");
    assert_eq!(lease.standing().expect("a look"), Standing::Gone);
    assert!(matches!(status(&scene.session), Status::MovedAside(_)));
    assert_eq!(lease.release().expect("no error"), Released::HadBeenLost);
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a_lease_that_was_put_back_as_a_new_file_is_locked_anew() {
    let scene = Scene::new();
    let lease = acquire(&scene.session, &chat()).expect("taken");
    let text = fs::read_to_string(scene.lease()).expect("a lease");
    fs::remove_file(scene.lease()).expect("taken away");
    put(&scene.lease(), &text, Duration::ZERO);
    assert!(matches!(
        status(&scene.session),
        Status::Held {
            proof: Alive::SameStart,
            ..
        }
    ));
    assert_eq!(lease.standing().expect("a look"), Standing::Ours);
    assert!(matches!(
        status(&scene.session),
        Status::Held {
            proof: Alive::KernelLock,
            ..
        }
    ));
    assert_eq!(lease.release().expect("a release"), Released::Freed);
}

#[test]
fn only_a_human_breaks_a_live_lease_and_only_the_one_that_was_seen() {
    let (scene, live) = (Scene::new(), Live::sleep());
    assert_eq!(break_dead(&scene.session).expect("nothing there"), None);
    let text = format!(
        r#"{{"version":2,"token":"t-1","owner":"sdk","ownerId":"x","pid":{},"acquiredAt":"{}","sessionFile":"S"}}"#,
        live.pid(),
        iso_ago(0)
    );
    scene.put(&text, HOUR);
    assert!(matches!(
        break_dead(&scene.session),
        Err(BreakError::Held(_))
    ));
    assert!(matches!(
        break_by_force(&scene.session, Some("t-2")),
        Err(BreakError::Held(_))
    ));
    let broken = break_by_force(&scene.session, Some("t-1"))
        .expect("broken")
        .expect("a lease");
    assert_eq!(broken.record.expect("a record").token, "t-1");
    assert_eq!(scene.litter(), Vec::<String>::new());
    scene.put("", HOUR);
    assert!(break_dead(&scene.session).expect("broken").is_some());
    assert_eq!(scene.litter(), Vec::<String>::new());
}
