//! What is left of one ade: its processes, its files, and the end of a test.

use std::fs;
use std::io::Read;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ade_leases::process::cgroup::{Cgroup, Folder};
use ade_leases::process::{self, ProcessIdentity, Signal, Target};
use serde_json::Value;

use super::{Ade, command_line, report, signal};
use crate::wait::{PATIENCE, wait_within};

impl Ade {
    /// Every process that inherited this test's HOME, without zombies.
    ///
    /// # Panics
    /// When the process table cannot be read.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessIdentity> {
        let home = self.user_home().display().to_string();
        process::marked("HOME", &home).expect("the process table")
    }

    /// Waits until nothing of this ade is alive.
    ///
    /// # Panics
    /// When something is after `bound`.
    #[track_caller]
    pub fn wait_empty(&self, bound: Duration) {
        let label = format!("nothing is alive, but {:?}", self.describe());
        wait_within(&label, bound, || self.processes().is_empty().then_some(()));
    }

    /// Command lines of what is alive, for messages.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        self.processes()
            .iter()
            .map(|identity| command_line(identity.pid.get()))
            .collect()
    }

    /// Kills what a failed test would leave to the machine.
    fn kill_all(&self) {
        for identity in self.processes() {
            let _ = process::signal(&Target::Process(identity), Signal::SIGKILL);
        }
        self.remove_cgroups();
    }

    /// Removes the cgroups of workers that were killed with their broker: the
    /// next broker of this home would, and there will be none.
    fn remove_cgroups(&self) {
        let until = Instant::now() + Duration::from_secs(2);
        for journal in self.litter() {
            let text = fs::read_to_string(&journal).unwrap_or_default();
            let entry: Value = serde_json::from_str(&text).unwrap_or_default();
            let path = entry["cgroup"]["path"].as_str().unwrap_or_default();
            let Ok(cgroup) = Cgroup::open(Path::new(path)) else {
                continue;
            };
            // What was just killed may be in it for a moment.
            while cgroup.remove().is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(folder) = Folder::of(&cgroup) {
                folder.remove();
            }
        }
    }

    /// Files of ours below ADE_HOME's `run` and beside session files that
    /// should not be there when nothing runs.
    #[must_use]
    pub fn litter(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![
            self.home().join("run/workers"),
            self.agent_dir(),
            self.home(),
        ];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = entry.file_name().to_string_lossy().into_owned();
                let journal = folder.ends_with("run/workers");
                if path.is_dir() {
                    folders.push(path);
                } else if journal || name.contains(".ade-lease") {
                    found.push(path);
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }
}

impl Drop for Ade {
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        if let Some(mut child) = self.broker.take() {
            signal(i32::try_from(child.id()).unwrap_or(0), Signal::SIGTERM);
            let gone = || child.try_wait().ok().flatten();
            if !panicking {
                wait_within("the broker ends at the end of the test", PATIENCE, gone);
            }
        } else if !panicking {
            // On a very busy machine a broker may not answer in the time that
            // the command gives it.
            wait_within("`ade stop` works", PATIENCE, || {
                let stopped = self.run(&["stop"]);
                let over = stopped.status.success() || self.processes().is_empty();
                if !over {
                    let said = String::from_utf8_lossy(&stopped.stderr);
                    report(&format!("ade stop: {} {said}", stopped.status));
                }
                over.then_some(())
            });
        }
        if panicking {
            self.kill_all();
            let mut said = String::new();
            for name in ["serve.err", "home/logs/serve.err"] {
                if let Ok(mut file) = fs::File::open(self.root.path().join(name)) {
                    let _ = file.read_to_string(&mut said);
                }
            }
            if !said.is_empty() {
                report(&format!("the broker said:\n{said}"));
            }
        } else {
            let empty = || self.wait_empty(Duration::from_secs(10));
            if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(empty)) {
                self.kill_all();
                std::panic::resume_unwind(panic);
            }
        }
    }
}
