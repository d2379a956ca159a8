//! What the lease needs of Linux alone.

use rustix::fs::{RawDir, SeekFrom};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Calls `f` with every name in the directory. The descriptor is rewound
/// first, so one descriptor serves for the guard and for every look.
pub(super) fn each_name(dir: &OwnedFd, f: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    rustix::fs::seek(dir, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        f(entry?.file_name().to_bytes());
    }
    Ok(())
}
