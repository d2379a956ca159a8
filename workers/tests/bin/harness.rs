//! The executable of this crate's tests: a worker or a host, by the name under
//! which it was started, as the real executable does it. Told so, it is a host
//! that leaves its process group.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use ade_protocol::boot::{HOST_ARGV0, WORKER_ARGV0};
use nix::unistd::{Pid, setpgid};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [WORKER_ARGV0, ..] => ade_workers::worker_main(),
        [HOST_ARGV0, ..] => ade_workers::host_main(),
        [_, "leave-group", script] => leave_group(script),
        _ => ExitCode::FAILURE,
    }
}

/// Joins the group of a child, and becomes a shell. Its own group is empty
/// then, and is no more.
#[expect(
    clippy::zombie_processes,
    reason = "what becomes of a host's child is the worker's affair"
)]
fn leave_group(script: &str) -> ExitCode {
    let mut other = Command::new("sleep");
    other.arg("300").process_group(0).stdout(Stdio::null());
    let other = other.spawn().expect("a child");
    let group = Pid::from_raw(other.id().cast_signed());
    setpgid(Pid::from_raw(0), group).expect("another group");
    let error = Command::new("/bin/sh").args(["-c", script]).exec();
    panic!("no shell: {error}");
}
