//! A small disk of a test's own, to be filled to its last byte.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ade::report;

/// Whether this test may mount; says so where it may not.
#[must_use]
pub fn may_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        report("SKIPPED: a disk of its own needs root");
    }
    root
}

/// A small disk of its own.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Mounts one; needs root.
    ///
    /// # Panics
    /// When it cannot be mounted.
    #[must_use]
    pub fn mount(path: &Path, size: &str) -> Self {
        fs::create_dir_all(path).expect("a folder");
        let options = format!("size={size},mode=700");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(path);
        assert!(mount.status().expect("mount").success());
        Self {
            path: path.to_owned(),
        }
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Takes all the room that is left.
    ///
    /// # Panics
    /// When not even a file can be made.
    pub fn fill(&self) {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(self.filler())
            .expect("a file");
        for size in [65_536, 4096, 512, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Takes a little of the room: enough, when it is given back, for a few
    /// messages.
    ///
    /// # Panics
    /// When there is not even that.
    pub fn set_aside(&self) {
        fs::write(self.filler(), [0; 32 * 1024]).expect("room");
    }

    /// Gives it back.
    ///
    /// # Panics
    /// When it was not taken.
    pub fn make_room(&self) {
        fs::remove_file(self.filler()).expect("the filler");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
