//! What the calling process asks of the kernel for itself.

use std::io;
use std::path::PathBuf;

use super::platform;

/// Folder that lists the open descriptors of the calling process.
pub const OWN_DESCRIPTORS: &str = platform::OWN_DESCRIPTORS;

/// The program that runs right now, on Linux also after its file was replaced
/// or removed.
///
/// # Errors
/// The system can't tell.
pub fn own_program() -> io::Result<PathBuf> {
    platform::own_program()
}

/// Orphans of everything that this process starts become its children. On macOS
/// there is no such thing, which is no error: orphans go to launchd, and only
/// the mark in their environment finds them.
///
/// # Errors
/// The kernel refuses.
pub fn become_subreaper() -> io::Result<()> {
    platform::become_subreaper()
}

/// The kernel kills the calling process when the *thread* that started it ends.
/// On macOS there is no such thing, which is no error: what was started learns
/// of its parent's end by the end of its input.
///
/// # Errors
/// The kernel refuses.
pub fn die_with_parent() -> io::Result<()> {
    platform::die_with_parent()
}
