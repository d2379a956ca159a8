//! What is left of a demo that did not come to its end: nothing.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Place, wait_until};

/// Broker, and workers with their hosts: so many run before it is ended.
const PLAYING: usize = 5;

/// The processes, this one apart, whose command line or environment names
/// `folder`.
fn processes_of(folder: &Path) -> Vec<i32> {
    let needle = folder.to_str().expect("UTF-8").as_bytes();
    let names_it = |file: &Path| {
        fs::read(file).is_ok_and(|text| text.windows(needle.len()).any(|part| part == needle))
    };
    let own = i32::try_from(std::process::id()).expect("a pid");
    let entries = fs::read_dir("/proc").expect("a table of processes");
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| *pid != own)
        .filter(|pid| {
            let folder = Path::new("/proc").join(pid.to_string());
            names_it(&folder.join("cmdline")) || names_it(&folder.join("environ"))
        })
        .collect()
}

/// A demo whose chats are at work; its folder is in that of `place`.
fn playing(place: &Place, more: &[&str]) -> Child {
    let mut command = place.command(&["demo"]);
    command.args(more).env("TMPDIR", place.path());
    let demo = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the demo starts");
    wait_until("the chats are at work", || {
        (processes_of(place.path()).len() > PLAYING).then_some(())
    });
    demo
}

fn send(demo: &Child, signal: Signal) {
    let pid = i32::try_from(demo.id()).expect("a pid");
    kill(Pid::from_raw(pid), signal).expect("a signal");
}

fn nothing_runs(place: &Place) {
    wait_until("nothing of the demo runs", || {
        processes_of(place.path()).is_empty().then_some(())
    });
}

fn entries(place: &Place) -> usize {
    fs::read_dir(place.path()).expect("a folder").count()
}

#[test]
fn a_killed_demo_leaves_nothing() {
    let place = Place::new();
    let mut demo = playing(&place, &[]);
    send(&demo, Signal::SIGKILL);
    demo.wait().expect("it is gone");
    nothing_runs(&place);
    assert_eq!(entries(&place), 0, "the folder is gone");
}

#[test]
fn a_killed_demo_keeps_what_it_was_to_keep() {
    let place = Place::new();
    let mut demo = playing(&place, &["--keep"]);
    send(&demo, Signal::SIGKILL);
    demo.wait().expect("it is gone");
    nothing_runs(&place);
    assert_eq!(entries(&place), 1, "the folder is there");
}

#[test]
fn a_demo_that_is_told_to_end_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let place = Place::new();
        let mut demo = playing(&place, &[]);
        send(&demo, signal);
        let status = demo.wait().expect("it ends");
        assert_eq!(status.code(), Some(130), "{signal}");
        assert_eq!(processes_of(place.path()), [0_i32; 0], "{signal}");
        assert_eq!(entries(&place), 0, "{signal}: the folder is gone");
    }
}
