//! macOS. Written with care and untested.

use std::io;

use ade_leases::process;
use nix::unistd::Pid;

/// Folder that lists the open descriptors of the calling process.
pub(crate) const OWN_DESCRIPTORS: &str = "/dev/fd";

/// The program that runs right now.
pub(crate) fn own_program() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// There is no subreaper here: orphans go to launchd, and only the mark in
/// their environment finds them.
pub(crate) fn become_subreaper() -> io::Result<()> {
    Ok(())
}

/// There is no parent-death signal here: a host learns of its parent's end by
/// the end of its input.
pub(crate) fn die_with_parent() -> io::Result<()> {
    Ok(())
}

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

/// This system can't prove it: an orphan is no child any more.
pub(crate) fn is_childless() -> Option<bool> {
    None
}
