//! System calls that answer otherwise: a C function that stands in front of the
//! library's own, compiled where there is a compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ade::report;

/// Compiles `source` into a library for `LD_PRELOAD`, in `folder`. `None`: there
/// is no C compiler here, and that is reported.
///
/// # Panics
/// When the source cannot be written.
#[must_use]
pub fn compiled(folder: &Path, source: &str) -> Option<PathBuf> {
    let (code, shim) = (folder.join("shim.c"), folder.join("shim.so"));
    std::fs::write(&code, source).expect("the shim");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&shim, &code])
        .arg("-ldl")
        .status();
    if made.is_ok_and(|status| status.success()) {
        return Some(shim);
    }
    report("SKIPPED: there is no C compiler to stand in front of a system call");
    None
}
