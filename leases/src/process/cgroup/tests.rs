//! On the real kernel, where it lets us; visibly skipped elsewhere.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::process::Liveness;

fn folder() -> Option<Folder> {
    let name = format!("ade-t{}", std::process::id());
    match Folder::prepare(&name) {
        Ok(folder) => Some(folder),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {error}");
            None
        }
    }
}

/// A shell that has joined, with a grandchild that has left everything else.
fn tree(cgroup: &Cgroup) -> Child {
    let script = format!(
        "echo 0 >'{}/cgroup.procs'; (env -i setsid setsid sleep 300 &); exec sleep 300",
        cgroup.path.display()
    );
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).stdin(Stdio::null());
    let child = command.spawn().expect("a shell");
    until("both have joined", || {
        cgroup.members().expect("members").len() == 2
    });
    child
}

#[track_caller]
fn until(label: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < deadline, "waited in vain: {label}");
        std::thread::yield_now();
    }
}

#[test]
fn everything_in_a_cgroup_is_killed_in_one_step_and_the_folder_removed() {
    let Some(folder) = folder() else { return };
    let cgroup = folder.make("wrk_1").expect("a cgroup");
    assert!(!cgroup.is_populated().expect("a look"));
    let mut child = tree(&cgroup);
    let members = cgroup.members().expect("members");
    assert!(cgroup.is_populated().expect("a look"));
    assert!(cgroup.remove().is_err(), "somebody lives in it");
    // Another one of the same name is not this one.
    let other = Cgroup {
        inode: cgroup.inode + 1,
        ..cgroup.clone()
    };
    other.kill().expect("nothing to do");
    assert!(!other.is_populated().expect("a look") && cgroup.is_populated().expect("a look"));
    cgroup.kill().expect("killed");
    until("it is empty", || !cgroup.is_populated().expect("a look"));
    for member in members {
        assert_ne!(member.liveness(), Liveness::Alive);
    }
    child.wait().expect("its status");
    fs::create_dir(cgroup.path.join("nested")).expect("a nested one");
    until("it can be removed", || cgroup.remove().is_ok());
    assert!(!cgroup.path.exists() && folder.names().is_empty());
    // Gone is no error, and a folder that was removed is made again.
    assert!(cgroup.kill().is_ok() && cgroup.remove().is_ok());
    folder.remove();
    assert!(!folder.path().exists());
    let again = folder.make("wrk_2").expect("a cgroup");
    again.remove().expect("removed");
    folder.remove();
}

#[test]
fn a_path_elsewhere_is_no_cgroup() {
    let elsewhere = std::env::temp_dir();
    assert!(Cgroup::open(&elsewhere).is_err());
    let forged = Cgroup {
        path: elsewhere,
        inode: 1,
    };
    assert!(!forged.is_there());
    forged.kill().expect("nothing is done");
    forged.remove().expect("nothing is done");
    assert!(forged.path.exists());
}

#[test]
fn a_folder_of_the_same_name_above_us_is_taken_itself() {
    let cases = [
        ("/c/a", "ade-1", "/c/a"),
        ("/c/ade-1/wrk_1", "ade-1", "/c"),
        ("/c/ade-1/wrk_1/ade-1/wrk_2/x", "ade-1", "/c"),
        ("/c/ade-2/wrk_1", "ade-1", "/c/ade-2/wrk_1"),
    ];
    for (own, name, expected) in cases {
        assert_eq!(outside(Path::new(own), name), Path::new(expected));
    }
}
