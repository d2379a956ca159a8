//! Wrong input: each gets a sentence that names the thing and the remedy, and
//! the documented exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;

use ade_tests::ade::{Ade, executable, report};
use serde_json::Value;

mod configuration;
mod homes;
mod requests;

/// A user that owns nothing here.
const NOBODY: u32 = 65_534;

/// Asserts the code, and that the words are on standard error.
#[track_caller]
fn refused(ade: &Ade, code: i32, args: &[&str], words: &[&str]) {
    let (stdout, stderr) = ade.expect_code(code, args);
    assert_eq!(stdout, "", "nothing but errors");
    for word in words {
        assert!(stderr.contains(word), "no {word:?} in: {stderr}");
    }
    assert!(stderr.starts_with("error: "), "{stderr}");
    assert!(stderr.contains("hint: "), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    // The same for programs: one document.
    let mut all = vec!["--json"];
    all.extend_from_slice(args);
    let (stdout, _) = ade.expect_code(code, &all);
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let error = &document["error"];
    assert!(error["kind"].is_string(), "{error}");
    let hints = error["hints"].as_array().unwrap();
    let text = format!("{error}");
    assert!(!hints.is_empty(), "{error}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

/// Asserts that nothing was started for it.
fn nothing_runs(ade: &Ade) {
    assert_eq!(ade.describe(), Vec::<String>::new());
}

/// Lets everybody into a folder.
fn open(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a command as a user that owns nothing; `None`, visibly, where that user
/// cannot reach the executable.
fn as_nobody(ade: &Ade, args: &[&str]) -> Option<Output> {
    open(ade.root());
    let mut command = ade.command(args);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            report(&format!(
                "skipped: nobody cannot run {}: {error}",
                executable().display()
            ));
            None
        }
    }
}
