//! macOS. Written with care and untested.

use ade_leases::process;
use nix::unistd::Pid;

/// A child that has ended and was not reaped; `None` when there is none now.
/// It stays unreaped.
pub(crate) fn dead_child() -> Option<Pid> {
    let table = process::table().ok()?;
    let children = process::children(process::Pid::own(), &table);
    let dead = children
        .into_iter()
        .find(process::ProcessEntry::is_zombie)?;
    Some(Pid::from_raw(dead.pid.get()))
}

/// There is no such list here.
pub(crate) fn children_listed() -> Option<String> {
    None
}

/// This system can't prove it: an orphan is no child any more.
pub(crate) fn is_childless() -> Option<bool> {
    None
}
