//! The executable of this crate's tests: a worker or a host, by the name under
//! which it was started, as the real executable does it.

use std::process::ExitCode;

use ade_protocol::boot::{HOST_ARGV0, WORKER_ARGV0};

fn main() -> ExitCode {
    match std::env::args().next().as_deref() {
        Some(WORKER_ARGV0) => ade_workers::worker_main(),
        Some(HOST_ARGV0) => ade_workers::host_main(),
        _ => ExitCode::FAILURE,
    }
}
