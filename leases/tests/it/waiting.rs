//! Waiting for a lease, and watching one.

use crate::child::{Other, command, take_turn, with_faults};
use crate::support::{Live, Scene, iso_ago, wait_until};
use ade_leases::lease::{
    AcquireError, Lease, Moment, Request, Seam, Standing, Step, Watch, acquire, acquire_with,
};
use ade_leases::record::OwnerKind;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn waiting(wait: Duration) -> Request {
    Request {
        owner: OwnerKind::Sdk,
        owner_id: "chat-A".to_owned(),
        wait: Some(wait),
    }
}

const LONG: Duration = Duration::from_secs(5);

/// Waits in a thread; `then` runs as soon as it queues.
fn waits_until(session: &Path, then: impl FnOnce()) -> Duration {
    let (queued, told) = channel();
    let queued = std::sync::Mutex::new(queued);
    let seam = Seam::new(move |step, moment| {
        if step == Step::Queue && moment == Moment::After {
            let _ = queued.lock().expect("no panic").send(());
        }
        Ok(())
    });
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire_with(session, &waiting(LONG), &seam));
        told.recv_timeout(LONG).expect("it queues");
        let freed = Instant::now();
        then();
        waiter
            .join()
            .expect("no panic")
            .expect("taken")
            .release()
            .expect("released");
        freed.elapsed()
    })
}

#[test]
fn a_waiter_gets_the_lease_when_it_is_released() {
    let scene = Scene::new();
    let other = Other::holding(&scene.session);
    waits_until(&scene.session, || drop(other.finish()));
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a_waiter_gets_the_lease_when_its_holder_is_killed() {
    let scene = Scene::new();
    let mut other = Other::holding(&scene.session);
    let took = waits_until(&scene.session, || other.kill());
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a_waiter_behind_a_foreign_holder_polls() {
    let scene = Scene::new();
    let live = Live::sleep();
    let text = format!(
        r#"{{"version":1,"token":"t","owner":"sdk","ownerId":"x","pid":{},"acquiredAt":"{}","sessionFile":"S"}}"#,
        live.pid(),
        iso_ago(0)
    );
    scene.put(&text, Duration::ZERO);
    waits_until(&scene.session, || {
        fs::remove_file(scene.lease()).expect("it releases");
    });
    assert_eq!(scene.litter(), Vec::<String>::new());
}

#[test]
fn a_wait_has_an_end_and_names_the_holder() {
    let scene = Scene::new();
    let other = Other::holding(&scene.session);
    let started = Instant::now();
    let error = acquire(&scene.session, &waiting(Duration::from_millis(50))).expect_err("held");
    assert!(matches!(error, AcquireError::Held(_)), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(2));
    // The abandoned place in the queue hinders nobody.
    other.finish();
    assert!(acquire(&scene.session, &waiting(LONG)).is_ok());
}

#[test]
fn threads_of_one_process_wait_for_each_other() {
    let scene = Scene::new();
    let inside = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let lease = acquire(&scene.session, &waiting(LONG)).expect("taken");
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    lease.release().expect("released");
                }
            });
        }
    });
    assert_eq!(scene.litter(), Vec::<String>::new());
}

/// Four processes for a second; how often each held the lease. They begin
/// together: one that is still being loaded has no turn to take.
fn fight(make: impl Fn(&Path) -> Command) -> Vec<u64> {
    let scene = Scene::new();
    let mut fighters: Vec<_> = (0..4).map(|_| Other::ready(make(&scene.session))).collect();
    fighters.iter_mut().for_each(Other::go);
    let counts = fighters
        .into_iter()
        .map(|fighter| {
            let text = fighter.finish();
            let line = text.lines().find_map(|line| line.strip_prefix("fought "));
            let (held, doubles) = line
                .and_then(|line| line.split_once(' '))
                .expect("its count");
            assert_eq!(doubles, "0", "two held the lease at once");
            held.parse().expect("a number")
        })
        .collect();
    assert_eq!(scene.litter(), Vec::<String>::new());
    counts
}

/// How many wait for a range lock of the file.
#[cfg(target_os = "linux")]
fn waiting_for(file: &Path) -> usize {
    use std::os::unix::fs::MetadataExt;
    let inode = fs::metadata(file).expect("a lease").ino();
    let locks = fs::read_to_string("/proc/locks").expect("the locks");
    let of_it = |line: &&str| line.contains("-> OFDLCK") && line.contains(&format!(":{inode} "));
    locks.lines().filter(of_it).count()
}

/// Four who wait, and a holder that gives it back and wants it again at once.
/// Who got it, and who came first.
#[cfg(target_os = "linux")]
fn turns() -> (Vec<u32>, Vec<u32>) {
    let scene = Scene::new();
    let lease = acquire(&scene.session, &waiting(LONG)).expect("taken");
    let mut waiters = Vec::new();
    for place in 1..=4 {
        let mut waiter = command("turn", &scene.session);
        waiters.push(waiter.spawn().expect("it starts"));
        wait_until("it queues", || waiting_for(&scene.lease()) == place);
    }
    let mut came: Vec<u32> = waiters.iter().map(Child::id).collect();
    came.push(std::process::id());
    lease.release().expect("released");
    take_turn(&scene.session);
    for waiter in waiters {
        let output = waiter.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
    }
    let order = scene.session.with_extension("order");
    let held = fs::read_to_string(&order).expect("an order");
    fs::remove_file(order).expect("it is ours");
    assert_eq!(scene.litter(), Vec::<String>::new());
    (held.lines().flat_map(str::parse).collect(), came)
}

/// Those who wait get it in the order of their arrival, and before the holder.
/// They hold it for so short a time that now and then one that is just queueing
/// meets a free lock and is faster than the waiter that was woken: of 40 rounds in
/// none as a rule, in three at most on a machine with much to do. Without the
/// courtesy in 9 to 24.
#[cfg(target_os = "linux")]
#[test]
fn waiters_of_several_processes_take_turns() {
    let rounds: Vec<_> = (0..40).map(|_| turns()).collect();
    for (held, came) in &rounds {
        let sorted = |pids: &[u32]| {
            let mut pids = pids.to_vec();
            pids.sort_unstable();
            pids
        };
        assert_eq!(sorted(held), sorted(came), "each had it once");
    }
    let passed = rounds.iter().filter(|(held, came)| held != came).count();
    assert!(passed <= 6, "{passed} of {rounds:?}");
}

#[test]
fn a16_several_processes_without_links_and_exchanges_exclude_each_other() {
    let faults = "RenameNoReplace:22,Link:1,Exchange:22";
    let counts = fight(|session| with_faults(command("fight", session), faults));
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// Systems give a user few of them, and other programs may have them all.
fn watch_that_sees(lease: &Lease) -> Watch {
    let mut found = None;
    wait_until("a watcher can be had", || {
        found = Some(Watch::new(lease)).filter(Watch::sees_file);
        found.is_some()
    });
    found.expect("it was had")
}

fn readable(watch: &Watch) -> bool {
    let fd = watch.descriptor().expect("a descriptor").as_fd();
    let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).expect("polled") == 1
}

#[test]
fn the_holder_notices_that_its_lease_is_gone_or_foreign() {
    let gone: fn(&Scene) = |scene| fs::remove_file(scene.lease()).expect("it is there");
    let moved: fn(&Scene) = |scene| {
        fs::rename(scene.lease(), scene.beside(".ade-lease.reclaim-x")).expect("it is there");
    };
    let replaced: fn(&Scene) = |scene| {
        let new = scene.beside(".other");
        fs::write(&new, "{}").expect("written");
        fs::rename(new, scene.lease()).expect("it is there");
    };
    for (change, expected) in [
        (gone, Standing::Gone),
        (moved, Standing::Gone),
        (replaced, Standing::Foreign(None)),
    ] {
        let scene = Scene::new();
        let lease = acquire(&scene.session, &waiting(LONG)).expect("taken");
        let watch = watch_that_sees(&lease);
        assert_eq!(watch.check(&lease).expect("a look"), Standing::Ours);
        assert!(!readable(&watch));
        // What happens beside it wakes nobody.
        fs::write(scene.dir.path().join("other.jsonl"), "x").expect("written");
        assert!(!readable(&watch));
        change(&scene);
        wait_until("the watch is readable", || readable(&watch));
        assert_eq!(watch.check(&lease).expect("a look"), expected);
        assert!(!readable(&watch));
    }
}

#[test]
fn a_watch_follows_a_lease_that_was_put_back_as_a_new_file() {
    let scene = Scene::new();
    let lease = acquire(&scene.session, &waiting(LONG)).expect("taken");
    let watch = watch_that_sees(&lease);
    let text = fs::read_to_string(scene.lease()).expect("a lease");
    fs::remove_file(scene.lease()).expect("taken away");
    fs::write(scene.lease(), text).expect("put back");
    wait_until("the watch is readable", || readable(&watch));
    assert_eq!(watch.check(&lease).expect("a look"), Standing::Ours);
    fs::remove_file(scene.lease()).expect("taken away");
    wait_until("the watch is readable again", || readable(&watch));
    assert_eq!(watch.check(&lease).expect("a look"), Standing::Gone);
}

#[test]
fn a_copy_that_a_foreign_program_put_back_is_watched_like_the_lease_before() {
    let scene = Scene::new();
    let lease = acquire(&scene.session, &waiting(LONG)).expect("taken");
    let watch = watch_that_sees(&lease);
    assert_eq!(watch.check(&lease).expect("a look"), Standing::Ours);
    let text = fs::read(scene.lease()).expect("it is there");
    let new = scene.beside(".copy");
    fs::write(&new, text).expect("written");
    fs::rename(new, scene.lease()).expect("it is there");
    wait_until("the watch is readable", || readable(&watch));
    assert_eq!(watch.check(&lease).expect("a look"), Standing::Ours);
    // What became of the first one meanwhile may still be told.
    watch.check(&lease).expect("a look");
    assert!(!readable(&watch));
    fs::remove_file(scene.lease()).expect("it is there");
    // At once: the clock would tell too, seconds later.
    assert!(readable(&watch));
    assert_eq!(watch.check(&lease).expect("a look"), Standing::Gone);
}
