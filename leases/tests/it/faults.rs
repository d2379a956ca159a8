//! Odd filesystems, full disks, crashes at every step, other namespaces.

use crate::child::{self, Other, answer, command, dies_at, faults, with_faults};
use crate::support::{HOUR, Live, Scene, dead_pid, iso_ago, skip, wait_until};
use ade_leases::lease::{
    AcquireError, Moment, Request, Seam, Standing, Status, Step, acquire, acquire_with,
    break_by_force, status,
};
use ade_leases::record::OwnerKind;
use ade_leases::verdict::{Alive, Why};
use nix::errno::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

fn chat() -> Request {
    Request {
        owner: OwnerKind::Sdk,
        owner_id: "chat-A".to_owned(),
        wait: None,
    }
}

fn record_of(pid: u32) -> String {
    format!(
        r#"{{"version":2,"token":"t-1","owner":"sdk","ownerId":"x","pid":{pid},"acquiredAt":"{}","sessionFile":"S"}}"#,
        iso_ago(0)
    )
}

fn run(script: &str) -> bool {
    let output = Command::new("sh").args(["-c", script]).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn a09_an_unreadable_process_table_keeps_a_lease_held() {
    let (scene, live) = (Scene::new(), Live::sleep());
    let text = record_of(live.pid());
    scene.put(&text, HOUR);
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    open(scene.dir.path(), 0o777);
    open(&scene.lease(), 0o644);
    // A copy that anybody may run, since the build folder may be closed.
    let exe = scene.dir.path().join("exe");
    fs::copy(std::env::current_exe().expect("a path"), &exe).expect("a copy");
    let script = "mount -t proc -o hidepid=2 proc /proc && \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups env PATH= \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&exe);
    child::prepare(&mut command, "try", &scene.session);
    let said = answer(command);
    if said.starts_with("nothing") {
        return skip("a09", &format!("no mount namespace here ({said})"));
    }
    assert!(
        said.starts_with("refused") && said.contains("can't be looked at"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(scene.lease()).expect("a lease"), text);
}

#[test]
fn a16_without_hard_links_a_lease_is_exclusive_all_the_same() {
    for errno in [
        Errno::EPERM,
        Errno::ENOTSUP,
        Errno::ENOSYS,
        Errno::EXDEV,
        Errno::EMLINK,
    ] {
        for step in [Step::RenameNoReplace, Step::Link] {
            let scene = Scene::new();
            // The rename fails always; the link works in one of two rounds.
            let rename = if step == Step::Link {
                Errno::EINVAL
            } else {
                errno
            };
            let mut at = vec![(Step::RenameNoReplace, rename as i32)];
            at.extend((step == Step::Link).then_some((step, errno as i32)));
            let lease = acquire_with(&scene.session, &chat(), &faults(at)).expect("taken");
            assert_eq!(scene.litter(), ["S.jsonl.ade-lease"], "{errno} {step:?}");
            assert!(matches!(
                status(&scene.session),
                Status::Held {
                    proof: Alive::KernelLock,
                    ..
                }
            ));
            assert_eq!(lease.standing().expect("a look"), Standing::Ours);
            lease.release().expect("released");
            assert_eq!(scene.litter(), Vec::<String>::new());
        }
    }
    let scene = Scene::new();
    let lease = acquire(&scene.session, &chat()).expect("taken");
    let other = with_faults(command("try", &scene.session), "RenameNoReplace:22,Link:1");
    let said = answer(other);
    assert!(
        said.starts_with("refused") && said.contains("Held"),
        "{said}"
    );
    drop(lease);
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a16_only_eexist_means_contention_and_any_other_errno_is_named() {
    let scene = Scene::new();
    let seam = faults(vec![(Step::RenameNoReplace, Errno::EIO as i32)]);
    let error = acquire_with(&scene.session, &chat(), &seam).expect_err("an error");
    assert!(
        matches!(
            error,
            AcquireError::Io {
                step: Some(Step::RenameNoReplace),
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("S.jsonl.ade-lease"), "{error}");
    assert!(!error.is_contention());
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a16_a_dead_lease_is_reclaimed_where_names_can_not_be_exchanged() {
    for others in ["", "RenameNoReplace:22", "RenameNoReplace:22,Link:1"] {
        let scene = Scene::new();
        scene.put(&record_of(dead_pid()), HOUR);
        let list = format!("Exchange:22,{others}");
        let said = answer(with_faults(
            command("try", &scene.session),
            list.trim_end_matches(','),
        ));
        assert!(said.starts_with("taken"), "{said}");
        assert_eq!(scene.litter(), Vec::<String>::new());
    }
}

#[test]
fn a16_a_real_filesystem_without_hard_links() {
    let scene = Scene::new();
    let image = scene.dir.path().join("fat.img");
    let mount = scene.dir.path().join("mnt");
    fs::create_dir(&mount).expect("a directory");
    let (image, at) = (image.display(), mount.display());
    let made = run(&format!(
        "truncate -s 1M {image} && mkfs.vfat {image} && mount -o loop {image} {at}"
    ));
    if !made {
        return skip("a16 on vfat", "it can't be made or mounted here");
    }
    holds_on(&mount);
}

/// Layers are what containers keep their files on.
#[test]
fn a16_on_a_real_overlay() {
    let scene = Scene::new();
    let folder = |name: &str| {
        let folder = scene.dir.path().join(name);
        fs::create_dir(&folder).expect("a directory");
        folder
    };
    let [lower, upper, work, mount] = ["lower", "upper", "work", "mount"].map(folder);
    let (lower, upper, work, at) = (
        lower.display(),
        upper.display(),
        work.display(),
        mount.display(),
    );
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    if !run(&format!("mount -t overlay overlay -o {layers} {at}")) {
        return skip("a16 on an overlay", "it can't be mounted here");
    }
    holds_on(&mount);
}

/// A lease on a file system that was mounted for it is exclusive between two
/// processes and leaves nothing behind. Unmounts it.
fn holds_on(mount: &Path) {
    let session = mount.join("S.jsonl");
    let lease = acquire(&session, &chat());
    let said = answer(command("try", &session));
    let released = lease.map(|lease| lease.release().is_ok());
    let left = fs::read_dir(mount).expect("the mount").count();
    run(&format!("umount {}", mount.display()));
    assert!(matches!(released, Ok(true)), "{released:?}");
    assert!(said.starts_with("refused"), "{said}");
    assert_eq!(left, 0);
}

#[test]
fn a17_a_link_that_worked_and_was_reported_as_failed_is_ours() {
    for (at, errno) in [
        (Step::Link, Errno::EIO),
        (Step::Link, Errno::EEXIST),
        (Step::RenameNoReplace, Errno::EIO),
        (Step::RenameNoReplace, Errno::EEXIST),
    ] {
        let scene = Scene::new();
        let error = |errno: Errno| Err(io::Error::from_raw_os_error(errno as i32));
        let seam = Seam::new(move |step, moment| match (step, moment) {
            (Step::RenameNoReplace, Moment::Before) if at == Step::Link => error(Errno::EINVAL),
            (step, Moment::After) if step == at => error(errno),
            _ => Ok(()),
        });
        let lease = acquire_with(&scene.session, &chat(), &seam).expect("ours");
        assert_eq!(scene.litter(), ["S.jsonl.ade-lease"]);
        assert_eq!(lease.standing().expect("a look"), Standing::Ours);
    }
}

#[test]
fn a18_a_full_disk_leaves_nothing_behind() {
    for step in [Step::StageCreate, Step::StageWrite, Step::RenameNoReplace] {
        let scene = Scene::new();
        let seam = faults(vec![(step, Errno::ENOSPC as i32)]);
        let error = acquire_with(&scene.session, &chat(), &seam).expect_err("full");
        assert!(matches!(error, AcquireError::Full { .. }), "{error:?}");
        assert!(error.to_string().contains("no space left"), "{error}");
        assert_eq!(scene.litter(), Vec::<String>::new());
    }
    // A file size limit would be answered by a signal: it is asked first.
    let scene = Scene::new();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""]);
    limited.arg(std::env::current_exe().expect("a path"));
    child::prepare(&mut limited, "try", &scene.session);
    let said = answer(limited);
    assert!(
        said.starts_with("refused") && said.contains("no space left"),
        "{said}"
    );
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a18_a_real_full_disk() {
    let scene = Scene::new();
    let mount = scene.dir.path().join("mnt");
    fs::create_dir(&mount).expect("a directory");
    if !run(&format!(
        "mount -t tmpfs -o size=64k tmpfs {}",
        mount.display()
    )) {
        return skip("a18 on tmpfs", "it can't be mounted here");
    }
    let session = mount.join("S.jsonl");
    let _ = fs::write(mount.join("filler"), vec![0; 64 * 1024]);
    let full = acquire(&session, &chat());
    let left = fs::read_dir(&mount).expect("the mount").count();
    fs::remove_file(mount.join("filler")).expect("it is there");
    let again = acquire(&session, &chat()).map(|lease| lease.release().is_ok());
    run(&format!("umount {}", mount.display()));
    assert!(matches!(full, Err(AcquireError::Full { .. })), "{full:?}");
    assert_eq!(left, 1);
    assert!(matches!(again, Ok(true)), "{again:?}");
}

#[test]
fn a_directory_that_can_not_be_written_is_named() {
    let scene = Scene::new();
    let seam = faults(vec![(Step::StageCreate, Errno::EROFS as i32)]);
    let error = acquire_with(&scene.session, &chat(), &seam).expect_err("read-only");
    assert!(matches!(error, AcquireError::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("can't be written"), "{error}");
}

/// Kills a process at every step, on a filesystem with these faults, taking a
/// free lease and a dead one, and looks that the next one takes it at once.
fn crash_everywhere(faults: &str, at_least: usize) {
    let mut steps = Vec::new();
    for step in Step::ALL {
        for moment in [Moment::Before, Moment::After] {
            for over_a_dead_one in [false, true] {
                let scene = Scene::new();
                if over_a_dead_one {
                    scene.put(&record_of(dead_pid()), HOUR);
                }
                if dies_at(&scene.session, faults, step, moment) {
                    steps.push(step);
                }
                let lease = acquire(&scene.session, &chat())
                    .unwrap_or_else(|error| panic!("{step:?} {moment:?}: {error}"));
                lease.release().expect("released");
                assert_eq!(scene.litter(), Vec::<String>::new(), "{step:?} {moment:?}");
            }
        }
    }
    steps.dedup();
    assert!(steps.len() >= at_least, "only {steps:?}");
}

#[test]
fn every_crash_leaves_a_lease_that_can_be_taken_and_no_litter() {
    crash_everywhere("", 16);
}

#[test]
fn every_crash_by_links_and_the_shared_rule_does_neither() {
    crash_everywhere("RenameNoReplace:22,Exchange:22", 16);
}

#[test]
fn a_foreign_lease_that_slips_in_during_a_reclaim_is_given_back() {
    let live = Live::sleep();
    for exchange in [true, false] {
        let scene = Scene::new();
        scene.put(&record_of(dead_pid()), HOUR);
        let (lease_path, text) = (
            scene.lease(),
            record_of(live.pid()).replace("t-1", "t-live"),
        );
        let slip = {
            let text = text.clone();
            move || {
                fs::remove_file(&lease_path).expect("the dead one");
                fs::write(&lease_path, &text).expect("the live one");
            }
        };
        let slip = Mutex::new(Some(slip));
        let at = if exchange {
            Step::Exchange
        } else {
            Step::ClaimRename
        };
        let seam = Seam::new(move |step, moment| {
            if step == Step::Exchange && !exchange {
                return Err(io::Error::from_raw_os_error(Errno::EINVAL as i32));
            }
            if step == at && moment == Moment::Before {
                let slip = slip.lock().expect("no panic").take();
                slip.into_iter().for_each(|slip| slip());
            }
            Ok(())
        });
        let error = acquire_with(&scene.session, &chat(), &seam).expect_err("it is live");
        assert!(matches!(error, AcquireError::Held(_)), "{error:?}");
        assert_eq!(fs::read_to_string(scene.lease()).expect("a lease"), text);
        assert_eq!(scene.litter(), ["S.jsonl.ade-lease"]);
    }
}

#[test]
fn a_live_claim_that_appears_while_we_publish_makes_us_withdraw() {
    let (scene, live) = (Scene::new(), Live::sleep());
    let claim = scene.beside(".ade-lease.reclaim-99999999-0000-4000-8000-999999999999");
    let (name, text) = (claim.clone(), record_of(live.pid()));
    let seam = Seam::new(move |step, moment| {
        if step == Step::RenameNoReplace && moment == Moment::Before {
            fs::write(&name, &text)?;
        }
        Ok(())
    });
    let error = acquire_with(&scene.session, &chat(), &seam).expect_err("withdrawn");
    assert!(
        matches!(error, AcquireError::Reclaiming { .. }),
        "{error:?}"
    );
    assert!(claim.exists() && !scene.lease().exists());
}

#[test]
fn a_stopped_process_in_the_guard_is_a_clear_error() {
    use rustix::fs::{FlockOperation, flock};
    let scene = Scene::new();
    let dir = fs::File::open(scene.dir.path()).expect("the directory");
    flock(&dir, FlockOperation::LockExclusive).expect("the guard");
    let error = acquire(&scene.session, &chat()).expect_err("in time");
    assert!(
        matches!(error, AcquireError::GuardTimeout { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("stopped"), "{error}");
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a_holder_in_another_pid_namespace_is_seen_by_its_kernel_lock() {
    let scene = Scene::new();
    let mut inner = Command::new("unshare");
    inner.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    inner.arg(std::env::current_exe().expect("a path"));
    child::prepare(&mut inner, "hold", &scene.session);
    let Some(mut holder) = Other::started(inner) else {
        return skip("pid namespace", "none can be made here");
    };
    let error = acquire(&scene.session, &chat()).expect_err("held");
    let proof = error.holder().map(|holder| holder.proof);
    assert_eq!(proof, Some(Alive::KernelLock), "{error}");
    holder.kill();
    let told = || {
        matches!(
            status(&scene.session),
            Status::Unknown {
                why: Why::OtherNamespace,
                ..
            }
        )
    };
    wait_until("the lock of the killed holder is gone", told);
    let Status::Unknown {
        record: Some(record),
        ..
    } = status(&scene.session)
    else {
        panic!("it is unknown");
    };
    assert_eq!(record.pid.map(|pid| pid.get()), Some(1));
    break_by_force(&scene.session, Some(&record.token))
        .expect("broken")
        .expect("a lease");
    assert!(acquire(&scene.session, &chat()).is_ok());
}
