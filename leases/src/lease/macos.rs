//! What the lease needs of macOS alone. **Untested.**

use rustix::fs::{Dir, SeekFrom};
use std::io;
use std::os::fd::OwnedFd;

/// Calls `f` with every name in the directory. The descriptor is rewound
/// first, so one descriptor serves for the guard and for every look.
pub(super) fn each_name(dir: &OwnedFd, f: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    rustix::fs::seek(dir, SeekFrom::Start(0))?;
    for entry in Dir::read_from(dir)? {
        f(entry?.file_name().to_bytes());
    }
    Ok(())
}
