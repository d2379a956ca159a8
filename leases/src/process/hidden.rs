//! A list on disk of processes below a worker that nothing else would find
//! again.
//!
//! The worker writes it while it lives; whoever comes after its death ends what
//! is listed. A line of it is the pid and the start tick of one process; boot and
//! pid namespace are those of the worker.
//!
//! Invariants:
//! - a reader finds the last whole list, whenever the writer dies: a new one is
//!   written beside it and renamed. No flush: after a power cut no process of
//!   the list lives, and another boot proves it;
//! - it is bounded: [`HiddenList::MAX`] processes, and a file that is larger than
//!   that allows is none;
//! - nobody older than the worker is listed: everything below a worker was
//!   started after it.
//!
//! What this module does not do: look for processes, or signal any.

use super::identity::{Pid, ProcessIdentity};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The longest file that is read, in bytes. [`HiddenList::MAX`] processes with
/// the longest numbers there are take less.
const MAX_FILE: u64 = 64 * 1024;

/// Mode of the file, whatever the umask.
const MODE: u32 = 0o600;

/// Processes below one worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HiddenList {
    /// The worker that they are below.
    worker: ProcessIdentity,
    /// Pid and start tick of each, oldest first.
    processes: Vec<(Pid, u64)>,
    /// How many found no place.
    #[serde(default)]
    more: usize,
}

impl HiddenList {
    /// The most processes in a list. When there are more, those that have lived
    /// longest are in it: they are the likeliest to stay.
    pub const MAX: usize = 1024;

    /// A list of some processes below a worker, in any order.
    #[must_use]
    pub fn new(worker: ProcessIdentity, mut processes: Vec<(Pid, u64)>) -> Self {
        processes.sort_by_key(|(pid, ticks)| (*ticks, *pid));
        processes.dedup();
        let more = processes.len().saturating_sub(Self::MAX);
        processes.truncate(Self::MAX);
        Self {
            worker,
            processes,
            more,
        }
    }

    /// The worker.
    #[must_use]
    pub fn worker(&self) -> &ProcessIdentity {
        &self.worker
    }

    /// How many processes found no place in it.
    #[must_use]
    pub fn more(&self) -> usize {
        self.more
    }

    /// Whether nobody is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Who is listed, without whom no worker can have below it. That they live is
    /// not said: each has to be compared with the process that has its pid now.
    #[must_use]
    pub fn identities(&self) -> Vec<ProcessIdentity> {
        let worker = &self.worker;
        let below = |one: &&(Pid, u64)| one.0 != worker.pid && one.1 >= worker.start_ticks;
        let identity = |(pid, start_ticks): &(Pid, u64)| ProcessIdentity {
            pid: *pid,
            start_ticks: *start_ticks,
            ..worker.clone()
        };
        self.processes.iter().filter(below).map(identity).collect()
    }

    /// Writes the list whole, in place of the one before. Only one process may
    /// write lists at a path.
    ///
    /// # Errors
    /// It can't be written; the one before is as it was.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let staging = Self::staging(path);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(MODE);
        let mut file = options.open(&staging)?;
        let written = file
            .set_permissions(Permissions::from_mode(MODE))
            .and_then(|()| file.write_all(&line))
            .and_then(|()| fs::rename(&staging, path));
        if written.is_err() {
            // Nothing better can be done about a leftover than to try.
            let _ = fs::remove_file(&staging);
        }
        written
    }

    /// Reads a list; `None` when there is none.
    ///
    /// # Errors
    /// What is there can't be read, or is no list.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let found = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        if !found.is_file() || found.len() > MAX_FILE {
            return Err(io::Error::other("it is no file of a few kilobytes"));
        }
        let mut content = Vec::new();
        fs::File::open(path)?
            .take(MAX_FILE)
            .read_to_end(&mut content)?;
        let list: Self = crate::object::from_slice(&content)?;
        Ok(Some(list))
    }

    /// Where a list is written that will be at `path`: a writer that dies may
    /// leave half of one there.
    #[must_use]
    pub fn staging(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push("-next");
        name.into()
    }

    /// Removes the list at a path and what a writer that died left beside it.
    ///
    /// # Errors
    /// One of them can't be removed. That there is none is no error.
    pub fn remove(path: &Path) -> io::Result<()> {
        for path in [path, &Self::staging(path)] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(raw: usize) -> Pid {
        Pid::new(i64::try_from(raw).expect("a number")).expect("a pid")
    }

    fn worker() -> ProcessIdentity {
        ProcessIdentity {
            pid: pid(100),
            start_ticks: 1_000,
            boot_id: "boot".to_owned(),
            pid_namespace: 7,
        }
    }

    #[test]
    fn a_list_is_whole_private_and_comes_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("wrk_1.hidden");
        assert_eq!(HiddenList::read(&path).expect("none"), None);
        let first = HiddenList::new(worker(), vec![(pid(7), 1_002), (pid(300), 1_001)]);
        first.write(&path).expect("written");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            HiddenList::read(&path).expect("a list"),
            Some(first.clone())
        );

        // The writer dies in the middle of the next one.
        fs::write(HiddenList::staging(&path), "{\"worker\":{\"pid").expect("half");
        assert_eq!(HiddenList::read(&path).expect("a list"), Some(first));
        let second = HiddenList::new(worker(), vec![(pid(8), 1_003)]);
        second.write(&path).expect("written over it");
        assert_eq!(HiddenList::read(&path).expect("a list"), Some(second));
        fs::write(HiddenList::staging(&path), "x").expect("half");
        HiddenList::remove(&path).expect("removed");
        HiddenList::remove(&path).expect("nothing to remove");
        assert_eq!(fs::read_dir(folder.path()).expect("a listing").count(), 0);
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("wrk_1.hidden");
        let list = HiddenList::new(worker(), vec![(pid(7), 1_002)]);
        let list = serde_json::to_string(&list).expect("a line");
        let long = format!("{list}{}", " ".repeat(70_000));
        for text in ["", "{\"worker\":", "{}", "[]", &long] {
            fs::write(&path, text).expect("written");
            assert!(HiddenList::read(&path).is_err(), "{text:.20}");
        }
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert!(HiddenList::read(&path).is_err());
    }

    #[test]
    fn the_oldest_have_a_place_and_the_rest_is_counted_and_a_full_one_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("wrk_1.hidden");
        let start = u64::MAX - 5_000;
        let mut all: Vec<(Pid, u64)> = (0..HiddenList::MAX + 3)
            .map(|index| (pid(i32::MAX as usize - index), start + index as u64))
            .collect();
        all.reverse();
        let list = HiddenList::new(worker(), all);
        assert_eq!(list.more(), 3);
        let identities = list.identities();
        assert_eq!(identities.len(), HiddenList::MAX);
        assert_eq!(identities[0].start_ticks, start);
        list.write(&path).expect("written");
        assert_eq!(HiddenList::read(&path).expect("a list"), Some(list));
    }

    #[test]
    fn who_was_there_before_the_worker_is_nobody() {
        let processes = vec![(pid(2), 999), (pid(3), 1_000), (pid(100), 1_000)];
        let list = HiddenList::new(worker(), processes);
        let mut one = worker();
        one.pid = pid(3);
        assert_eq!(list.identities(), [one]);
    }
}
