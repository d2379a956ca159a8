//! What the lease needs of macOS alone. **Untested.**
//!
//! Open-file range locks and inotify are Linux's: here a waiter polls with
//! jitter, and so does the holder that watches its lease.

use crate::process::Pid;
use rustix::fs::{Dir, SeekFrom};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// There is no such call that also tells.
pub(super) fn open_without_links(_path: &Path) -> Option<OwnedFd> {
    None
}

/// Calls `f` with every name in the directory. The descriptor is rewound
/// first, so one descriptor serves for the guard and for every look.
pub(super) fn each_name(dir: &OwnedFd, f: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    rustix::fs::seek(dir, SeekFrom::Start(0))?;
    for entry in Dir::read_from(dir)? {
        f(entry?.file_name().to_bytes());
    }
    Ok(())
}

/// macOS shows no descriptors of other processes.
pub(super) fn open_of_process(_pid: Pid, _fd: i32, _inode: u64) -> Option<File> {
    None
}

pub(super) fn head_queue(_file: &File) {}

pub(super) fn leave_queue(_file: &File) -> io::Result<()> {
    Ok(())
}

pub(super) fn try_queue(_file: &File) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn wait_queue(_file: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn show_waiting(_file: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn hide_waiting(_file: &File) -> io::Result<()> {
    Ok(())
}

pub(super) fn has_waiters(_file: &File) -> bool {
    false
}

pub(super) fn is_headless(_file: &File) -> bool {
    true
}

/// There is none: whoever holds a lease looks by a clock of its own.
#[derive(Debug)]
pub(super) enum Eye {}

impl Eye {
    pub(super) fn new(_path: &Path, _floor: Duration, _blind: Duration) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        match *self {}
    }

    pub(super) fn sees_file(&self) -> bool {
        match *self {}
    }

    pub(super) fn quiet(&self) -> bool {
        match *self {}
    }

    pub(super) fn watch(&self, _path: &Path) -> io::Result<()> {
        match *self {}
    }
}
