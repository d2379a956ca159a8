//! Identity, signals and marks, with real processes.

use crate::support::{Live, Zombie, dead_pid, wait_until};
use ade_leases::process::{
    DeadProof, Liveness, Pid, ProcessIdentity, Sent, Signal, SignalError, Target, UnknownWhy,
    marked, pidfd, signal,
};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

fn pid(raw: u32) -> Pid {
    Pid::new(i64::from(raw)).expect("a pid")
}

fn identity(raw: u32) -> ProcessIdentity {
    ProcessIdentity::of(pid(raw))
        .expect("a look")
        .expect("it is there")
}

#[test]
fn a_pid_is_greater_than_one() {
    assert_eq!(Pid::new(1), None);
    assert_eq!(Pid::new(0), None);
    assert_eq!(Pid::new(-7), None);
    assert_eq!(Pid::new(1 << 40), None);
    let json = serde_json::to_string(&identity(std::process::id())).expect("json");
    assert!(json.starts_with(&format!("{{\"pid\":{},\"startTicks\":", std::process::id())));
    let back: ProcessIdentity = serde_json::from_str(&json).expect("an identity");
    assert_eq!(back, ProcessIdentity::current().expect("ourselves"));
}

#[test]
fn liveness_tells_the_proof() {
    let (live, zombie) = (Live::sleep(), Zombie::new());
    let alive = identity(live.pid());
    assert_eq!(alive.liveness(), Liveness::Alive);
    assert_eq!(
        identity(zombie.pid()).liveness(),
        Liveness::Dead(DeadProof::Zombie)
    );
    let changed = |change: fn(&mut ProcessIdentity)| {
        let mut other = alive.clone();
        change(&mut other);
        other.liveness()
    };
    assert_eq!(
        changed(|it| it.start_ticks += 1),
        Liveness::Dead(DeadProof::OtherStart)
    );
    assert_eq!(
        changed(|it| it.boot_id.push('x')),
        Liveness::Dead(DeadProof::OtherBoot)
    );
    assert_eq!(
        changed(|it| it.pid_namespace += 1),
        Liveness::Unknown(UnknownWhy::OtherNamespace)
    );
    assert_eq!(ProcessIdentity::of(pid(dead_pid())).expect("a look"), None);
}

#[test]
fn a_signal_reaches_the_very_process_or_nobody() {
    let mut live = Live::sleep();
    let target = identity(live.pid());
    let mut successor = target.clone();
    successor.start_ticks += 1;
    let sent = signal(&Target::Process(successor.clone()), Signal::SIGKILL).expect("no error");
    assert_eq!(sent, Sent::Gone);
    assert_eq!(
        signal(&Target::Group(successor), Signal::SIGKILL).expect("no error"),
        Sent::Gone
    );
    assert_eq!(target.liveness(), Liveness::Alive);

    let sent = signal(&Target::Process(target.clone()), Signal::SIGTERM).expect("sent");
    assert_eq!(sent, Sent::Delivered);
    assert_eq!(
        live.0.wait().expect("it ends").signal(),
        Some(Signal::SIGTERM as i32)
    );
    assert_eq!(
        signal(&Target::Process(target), Signal::SIGTERM).expect("no error"),
        Sent::Gone
    );
}

#[test]
fn nobody_signals_himself_his_group_or_the_first_process() {
    let own = ProcessIdentity::current().expect("ourselves");
    let mut first = own.clone();
    first.pid = serde_json::from_str("1").expect("the exception");
    let mut group = own.clone();
    group.pid = pid(nix::unistd::getpgrp().as_raw().unsigned_abs());
    for target in [
        Target::Process(own.clone()),
        Target::Group(own),
        Target::Process(first.clone()),
        Target::Group(first),
        Target::Group(group),
    ] {
        let error = signal(&target, Signal::SIGTERM).expect_err("refused");
        assert!(
            matches!(error, SignalError::Refused { .. }),
            "{target:?}: {error:?}"
        );
    }
}

#[test]
fn a_group_that_is_led_by_somebody_else_by_now_is_left_alone() {
    let mut command = Command::new("sleep");
    let live = Live(
        command
            .arg("60")
            .process_group(0)
            .spawn()
            .expect("sleep starts"),
    );
    let mut former = identity(live.pid());
    former.start_ticks += 1;
    let sent = signal(&Target::Group(former), Signal::SIGKILL).expect("nobody was meant");
    assert_eq!(sent, Sent::Gone);
    assert_eq!(identity(live.pid()).liveness(), Liveness::Alive);
}

#[test]
fn a_group_is_reached_after_its_leader_has_gone() {
    // The leader starts a member in its group and ends.
    let mut leader = Command::new("sh")
        .args(["-c", "sleep 60 & echo $!"])
        .process_group(0)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sh starts");
    let target = identity(leader.id());
    let mut out = leader.stdout.take().expect("a pipe");
    leader.wait().expect("it ends");
    let mut text = String::new();
    let mut byte = [0];
    while std::io::Read::read(&mut out, &mut byte).expect("a pipe") == 1 && byte[0] != b'\n' {
        text.push(char::from(byte[0]));
    }
    let member = identity(text.parse().expect("a pid"));
    assert_eq!(target.liveness(), Liveness::Dead(DeadProof::NoSuchProcess));
    let target = Target::Group(target);
    assert_eq!(
        signal(&target, Signal::SIGKILL).expect("sent"),
        Sent::Delivered
    );
    wait_until("the member is gone", || {
        member.liveness() != Liveness::Alive
    });
    assert_eq!(
        signal(&target, Signal::SIGKILL).expect("no error"),
        Sent::Gone
    );
}

#[test]
fn a_pidfd_tells_the_end() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut live = Live::sleep();
    let target = identity(live.pid());
    let fd = pidfd(&target).expect("offered").expect("it lives");
    let mut polled = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut polled, PollTimeout::ZERO).expect("polled"), 0);
    live.0.kill().expect("ours");
    assert_eq!(poll(&mut polled, 5000_u16).expect("polled"), 1);
    assert!(pidfd(&target).expect("a look").is_none());
}

#[test]
fn a_mark_finds_exactly_those_that_bear_it() {
    let mark = format!("mark-{}", std::process::id());
    let start = |value: &str| {
        let mut command = Command::new("sleep");
        Live(
            command
                .arg("60")
                .env("ADE_TEST_MARK", value)
                .spawn()
                .expect("sleep starts"),
        )
    };
    let (bearer, _longer) = (start(&mark), start(&format!("{mark}-2")));
    let found = || marked("ADE_TEST_MARK", &mark).expect("a table");
    wait_until("the marked process is found", || !found().is_empty());
    assert_eq!(found(), [identity(bearer.pid())]);
}
