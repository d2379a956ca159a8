//! The cgroups that a broker keeps its agents in, from outside.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::ade::report;
use crate::rpc::Rpc;

/// The folder that the broker makes cgroups in.
///
/// # Errors
/// Why it makes none.
///
/// # Panics
/// When the broker does not tell.
pub fn place(rpc: &mut Rpc) -> Result<PathBuf, String> {
    let status = rpc.call("broker.status", json!({}));
    let about = status["cgroup"].as_str().expect("a sentence");
    let folder = about.strip_prefix("each agent is kept in ");
    folder.map(PathBuf::from).ok_or_else(|| about.to_owned())
}

/// The same; without one the test is skipped, visibly.
#[must_use]
pub fn folder(rpc: &mut Rpc) -> Option<PathBuf> {
    place(rpc)
        .map_err(|about| report(&format!("SKIPPED: cgroup v2 is {about}")))
        .ok()
}

/// The cgroups below a folder.
#[must_use]
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// Whether a process is in one of the cgroups below a folder. A worker moves its
/// host while that starts, and then what the host has started before: until it is
/// done, a turn may have ended.
#[must_use]
pub fn is_below(folder: &Path, pid: i32) -> bool {
    below(folder).iter().any(|cgroup| {
        let pids = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        pids.lines().any(|line| line == pid.to_string())
    })
}
