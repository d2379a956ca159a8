//! The `ade` executable.
//!
//! Under the names `ade-worker` and `ade-host` it is a worker or the start of a
//! host: that is decided before anything else is set up, so that those
//! processes stay small.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use ade_protocol::boot::{HOST_ARGV0, WORKER_ARGV0};

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(OsStr::to_str) {
        Some(WORKER_ARGV0) => ade_workers::worker_main(),
        Some(HOST_ARGV0) => ade_workers::host_main(),
        _ => ade::main(),
    }
}
