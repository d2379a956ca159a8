//! cgroup v2 as one more net below a process tree.
//!
//! A process can leave its parent, its group, its session and its environment,
//! but not the cgroup that it was started in, unless it may write to another
//! one. Where a cgroup v2 hierarchy is there and writable for us, a tree can so
//! be ended whole even when nothing else names its processes any more. Nothing
//! depends on it: wherever it can't be had ([`Unusable`]), everything works
//! without.
//!
//! Invariants:
//! - no controller is enabled, so a cgroup with processes may have children;
//! - a cgroup is known by its path *and* its inode, which the kernel does not
//!   give out again before the machine is started anew;
//! - a cgroup that holds the calling process is never killed as a whole.
//!
//! What this module does not do: decide what is to be killed.

mod parse;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statfs};
use serde::{Deserialize, Serialize};

use super::identity::{Pid, ProcessIdentity};
use super::signals::{Signal, Target, signal};

/// How often a folder that was removed is made again for one cgroup.
const MAKE_TRIES: usize = 4;

/// How deep cgroups are followed that a tree made below its own.
const MAX_DEPTH: usize = 16;

/// `f_type` of a cgroup v2 file system.
const CGROUP2_MAGIC: i128 = 0x6367_7270;

/// Why there is no cgroup v2 for us.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// This system has none, or shows none to us.
    #[error("no cgroup v2 hierarchy is mounted")]
    NotMounted,
    /// It is there, and our own cgroup is not below any of its mounts.
    #[error("our own cgroup {0} is not visible in any mount of cgroup v2")]
    NotVisible(
        /// As the kernel names it.
        String,
    ),
    /// Others own it, or it is mounted read-only.
    #[error("{} is not writable for us", path.display())]
    NotWritable {
        /// What is not.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Threads are sorted there, not processes.
    #[error("{} is of the type {kind:?} and takes no processes", path.display())]
    Threaded {
        /// The cgroup.
        path: PathBuf,
        /// What it says.
        kind: String,
    },
    /// It can't be looked at.
    #[error("could not {operation} {}", path.display())]
    Io {
        /// `read` or `make`.
        operation: &'static str,
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A folder below our own cgroup, in which cgroups are made. Whoever makes one
/// in it, or removes one, must be the only one who does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Finds our own cgroup and makes the folder of this name in it, unless it
    /// is there. When we live below a folder of this name ourselves, it is that
    /// one: what is made does not end with the tree that we were started in.
    ///
    /// # Errors
    /// [`Unusable`], which is nothing to worry about.
    pub fn prepare(name: &str) -> Result<Self, Unusable> {
        let base = outside(&own_cgroup()?, name);
        writable(&base, Access::WRITE_OK | Access::EXEC_OK)?;
        writable(&base.join(PROCS), Access::WRITE_OK)?;
        let path = base.join(name);
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(failed("make", &path)(source)),
        }
        writable(&path.join(PROCS), Access::WRITE_OK)?;
        let kind = read(&path.join("cgroup.type"))?.trim().to_owned();
        if kind != "domain" {
            let _ = fs::remove_dir(&path);
            return Err(Unusable::Threaded { path, kind });
        }
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a cgroup. The folder is made again when it was removed.
    ///
    /// # Errors
    /// It can't be made.
    pub fn make(&self, name: &str) -> io::Result<Cgroup> {
        let path = self.path.join(name);
        // Whoever removes the last cgroup in it may remove the folder in between.
        for _ in 0..MAKE_TRIES {
            match fs::create_dir(&path) {
                Ok(()) => return Cgroup::open(&path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            match fs::create_dir(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// The folder that a cgroup was made in.
    #[must_use]
    pub fn of(cgroup: &Cgroup) -> Option<Self> {
        let path = cgroup.path.parent()?.to_owned();
        Some(Self { path })
    }

    /// The names of the cgroups in it; none when the folder is not there.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        subfolders(&self.path)
            .iter()
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect()
    }

    /// Removes the folder when it is empty.
    pub fn remove(&self) {
        // Another one may be in it still; then it stays.
        let _ = fs::remove_dir(&self.path);
    }
}

/// One cgroup, and no other of the same path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cgroup {
    /// Its folder.
    pub path: PathBuf,
    /// The folder's inode.
    pub inode: u64,
}

impl Cgroup {
    /// The cgroup that stands at this path.
    ///
    /// # Errors
    /// Nothing does, or something that is no cgroup.
    pub fn open(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        if i128::from(statfs(path)?.f_type) != CGROUP2_MAGIC {
            return Err(io::Error::other(format!(
                "{} is not in a cgroup v2 hierarchy",
                path.display()
            )));
        }
        let found = fs::symlink_metadata(path)?;
        if !found.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self {
            path: path.to_owned(),
            inode: found.ino(),
        })
    }

    /// Whether it still is there, and is the same.
    #[must_use]
    pub fn is_there(&self) -> bool {
        Self::open(&self.path).is_ok_and(|found| found == *self)
    }

    /// The last part of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
    }

    /// Moves a process into it, and with it whatever it starts later. Takes the
    /// kernel milliseconds. The caller knows that the pid is its process's.
    ///
    /// # Errors
    /// The kernel refused; `ESRCH`: there is no such process.
    pub fn put(&self, pid: Pid) -> io::Result<()> {
        fs::write(self.path.join(PROCS), pid.to_string())
    }

    /// Whether a living process is in it or below it. Zombies don't count. One
    /// that was removed has none.
    ///
    /// # Errors
    /// It can't be looked at.
    pub fn is_populated(&self) -> io::Result<bool> {
        if !self.is_there() {
            return Ok(false);
        }
        match fs::read_to_string(self.path.join("cgroup.events")) {
            Ok(text) => Ok(parse::populated(&text)),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The living processes in it and below it, without ourselves. Those of a
    /// pid namespace that is not ours are left out: they have no number here.
    ///
    /// # Errors
    /// It can't be looked at.
    pub fn members(&self) -> io::Result<Vec<ProcessIdentity>> {
        Ok(self
            .pids()?
            .into_iter()
            .filter(|pid| *pid != Pid::own())
            .filter_map(|pid| self.member(pid))
            .collect())
    }

    /// Whether the calling process is in it or below it.
    #[must_use]
    pub fn holds_us(&self) -> bool {
        self.pids().is_ok_and(|pids| pids.contains(&Pid::own()))
    }

    /// Sends SIGKILL to everything in it and below it, in one step where the
    /// kernel can (Linux 5.14), except to ourselves.
    ///
    /// # Errors
    /// It can't be looked at or the kernel refused. That it is gone is no error.
    pub fn kill(&self) -> io::Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        let whole = self.path.join("cgroup.kill");
        if !self.pids()?.contains(&Pid::own()) && whole.exists() {
            return match fs::write(whole, "1") {
                Err(error) if !is_gone(&error) => Err(error),
                _ => Ok(()),
            };
        }
        for member in self.members()? {
            // Gone in the meantime is what we want; who can't be signalled is
            // still there when the caller looks again.
            let _ = signal(&Target::Process(member), Signal::SIGKILL);
        }
        Ok(())
    }

    /// Removes it and what was made below it, once nothing lives in it.
    ///
    /// # Errors
    /// Something lives in it. That it is gone is no error.
    pub fn remove(&self) -> io::Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        remove_tree(&self.path, 0)
    }

    /// The pids in it and below it: only numbers, for a comparison.
    ///
    /// # Errors
    /// It can't be looked at.
    pub fn pids(&self) -> io::Result<Vec<Pid>> {
        let mut pids = Vec::new();
        collect(&self.path, 0, &mut pids)?;
        Ok(pids)
    }

    /// A number of `cgroup.procs` with the identity of its process. The cgroup
    /// is read between two looks at the identity: it then belongs to that
    /// process and not to a successor of its pid.
    fn member(&self, pid: Pid) -> Option<ProcessIdentity> {
        let before = ProcessIdentity::of(pid).ok()??;
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let own = parse::own(&text)?;
        let inside = Path::new(own)
            .components()
            .any(|part| part.as_os_str() == self.name());
        let after = ProcessIdentity::of(pid).ok()??;
        (inside && before == after).then_some(before)
    }
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

const PROCS: &str = "cgroup.procs";

/// Our own cgroup as a path in the file system.
fn own_cgroup() -> Result<PathBuf, Unusable> {
    let mounts = parse::mounts(&read(Path::new("/proc/self/mountinfo"))?);
    if mounts.is_empty() {
        return Err(Unusable::NotMounted);
    }
    let text = read(Path::new("/proc/self/cgroup"))?;
    let own = parse::own(&text).ok_or(Unusable::NotMounted)?;
    parse::place(&mounts, own).ok_or_else(|| Unusable::NotVisible(own.to_owned()))
}

/// `own` without what a folder of this name in it begins.
fn outside(own: &Path, name: &str) -> PathBuf {
    let inside = |path: &Path| path.components().any(|part| part.as_os_str() == name);
    let outside = own.ancestors().find(|path| !inside(path));
    outside.unwrap_or(own).to_owned()
}

fn writable(path: &Path, wanted: Access) -> Result<(), Unusable> {
    access(path, wanted).map_err(|errno| Unusable::NotWritable {
        path: path.to_owned(),
        source: errno.into(),
    })
}

fn read(path: &Path) -> Result<String, Unusable> {
    fs::read_to_string(path).map_err(failed("read", path))
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> Unusable {
    let path = path.to_owned();
    move |source| Unusable::Io {
        operation,
        path: path.clone(),
        source,
    }
}

/// The errors of a cgroup that was removed: its folder is not there, or was
/// while a file of it was open.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(nix::errno::Errno::ENODEV as i32)
}

fn subfolders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

fn collect(path: &Path, depth: usize, pids: &mut Vec<Pid>) -> io::Result<()> {
    match fs::read_to_string(path.join(PROCS)) {
        Ok(text) => pids.extend(parse::pids(&text)),
        Err(error) if is_gone(&error) => {}
        Err(error) => return Err(error),
    }
    if depth < MAX_DEPTH {
        for folder in subfolders(path) {
            collect(&folder, depth + 1, pids)?;
        }
    }
    Ok(())
}

fn remove_tree(path: &Path, depth: usize) -> io::Result<()> {
    if depth < MAX_DEPTH {
        for folder in subfolders(path) {
            remove_tree(&folder, depth + 1)?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}
