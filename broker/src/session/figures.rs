//! Sentences and figures about a worker process.

use ade_protocol::event::ErrorCategory;

use super::escort::Process;
use crate::home::Home;
use crate::turn::Failure;

/// Bytes of a worker's own stderr that are shown.
const TAIL: u64 = 4096;

/// The failure that a worker's end is for its turn. `told`: what the worker
/// said of its host before.
pub(super) fn exited(home: &Home, process: &Process, told: Option<&Failure>) -> Failure {
    if let Some(told) = told {
        return told.clone();
    }
    let exit = process.exit.borrow().as_ref().map(ToString::to_string);
    let message = match exit {
        Some(exit) => format!("the worker (pid {}) ended with {exit}", process.pid),
        None => format!("the connection to the worker (pid {}) broke", process.pid),
    };
    let failure = Failure::new("worker_exited", ErrorCategory::Exited, message);
    match tail(&home.worker_stderr(&process.worker_id)) {
        Some(text) => failure.with_detail(text),
        None => failure,
    }
}

/// The last lines of a small file, if it holds any.
fn tail(path: &std::path::Path) -> Option<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))
        .ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
