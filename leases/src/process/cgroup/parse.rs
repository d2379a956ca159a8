//! What the kernel's files about cgroups say. Pure.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::process::Pid;

/// A mount of the cgroup v2 hierarchy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// What of the hierarchy is mounted, as seen from our cgroup namespace.
    pub(super) root: PathBuf,
    /// Where.
    pub(super) point: PathBuf,
}

/// The mounts of cgroup v2 in `/proc/<pid>/mountinfo`, the newest first: it
/// covers what was mounted at the same place before.
pub(super) fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = mountinfo.lines().filter_map(mount).collect();
    mounts.reverse();
    mounts
}

fn mount(line: &str) -> Option<Mount> {
    // The number of optional fields varies; a hyphen ends them.
    let (before, after) = line.split_once(" - ")?;
    if after.split(' ').next()? != "cgroup2" {
        return None;
    }
    let mut fields = before.split(' ').skip(3);
    Some(Mount {
        root: unescaped(fields.next()?),
        point: unescaped(fields.next()?),
    })
}

/// A field of `mountinfo`: blanks and the like stand there as `\040`.
fn unescaped(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = (*byte == b'\\')
            .then(|| field.get(at + 1..at + 4))
            .flatten();
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) => {
                text.push(value);
                at += 4;
            }
            None => {
                text.push(*byte);
                at += 1;
            }
        }
    }
    OsString::from_vec(text).into()
}

/// The cgroup v2 path in `/proc/<pid>/cgroup`: the line of hierarchy 0.
pub(super) fn own(cgroup: &str) -> Option<&str> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    // A process may be in one that was removed; nothing can be made below it.
    (path.starts_with('/') && !path.ends_with(" (deleted)")).then_some(path)
}

/// Where a cgroup is in the file system. `None`: no mount shows it, or it lies
/// outside of our cgroup namespace.
pub(super) fn place(mounts: &[Mount], own: &str) -> Option<PathBuf> {
    let leads_out = |path: &Path| path.components().any(|part| part.as_os_str() == "..");
    let own = Path::new(own);
    mounts
        .iter()
        .filter(|mount| !leads_out(own) && !leads_out(&mount.root))
        .find_map(|mount| {
            let rest = own.strip_prefix(&mount.root).ok()?;
            // Joining nothing would end the path with a slash.
            Some(mount.point.components().chain(rest.components()).collect())
        })
}

/// Whether `cgroup.events` says that somebody lives in it.
pub(super) fn populated(events: &str) -> bool {
    events.lines().any(|line| line == "populated 1")
}

/// The pids in `cgroup.procs`; 0 stands for a process outside of our namespace.
pub(super) fn pids(procs: &str) -> impl Iterator<Item = Pid> {
    let numbers = procs.lines().filter_map(|line| line.trim().parse().ok());
    numbers.filter_map(Pid::from_usable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `/proc/self/mountinfo` and `/proc/self/cgroup` say, and the place.
    const PLACES: &[(&str, &str, Option<&str>)] = &[
        // Unified, as most systems have it by now.
        (
            "24 30 0:22 / /proc rw - proc proc rw\n\
             31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n",
            Some("/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope"),
        ),
        // Hybrid: version 1 beside it, two optional fields.
        (
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
             32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw shared:1 master:2 - cgroup2 cgroup2 rw\n",
            "4:memory:/a\n1:cpu:/a\n0::/b\n",
            Some("/sys/fs/cgroup/unified/b"),
        ),
        (
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "0::/\n",
            Some("/sys/fs/cgroup/unified"),
        ),
        // Version 1 alone.
        (
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
            "1:cpu:/a\n",
            None,
        ),
        // A container without a cgroup namespace sees its part of the tree.
        (
            "9 8 0:26 /docker/4f ro,nosuid - tmpfs tmpfs rw\n\
             31 23 0:26 /docker/4f /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
            "0::/docker/4f\n",
            Some("/sys/fs/cgroup"),
        ),
        (
            "31 23 0:26 /docker/4f /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
            "0::/docker/4f/x\n",
            Some("/sys/fs/cgroup/x"),
        ),
        // A sibling whose name only begins alike.
        (
            "31 23 0:26 /docker/4f /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
            "0::/docker/4f2\n",
            None,
        ),
        // A container with a namespace of its own.
        (
            "31 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
            "0::/\n",
            Some("/sys/fs/cgroup"),
        ),
        // A mount from before the namespace was entered, and a process that was
        // moved out of it.
        (
            "31 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
            "0::/\n",
            None,
        ),
        (
            "31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
            "0::/../other\n",
            None,
        ),
        // The second mount shows it.
        (
            "31 23 0:26 /a /one rw - cgroup2 cgroup rw\n\
             32 23 0:26 /b /two rw - cgroup2 cgroup rw\n",
            "0::/a/c\n",
            Some("/one/c"),
        ),
        // Of two at one place the newer counts.
        (
            "31 23 0:26 / /one rw - cgroup2 cgroup rw\n\
             32 23 0:26 / /two rw - cgroup2 cgroup rw\n",
            "0::/\n",
            Some("/two"),
        ),
        // Blanks and a hyphen in the path.
        (
            "31 23 0:26 / /my\\040own\\134-\\040 rw - cgroup2 cgroup rw\n",
            "0::/x - y\n",
            Some("/my own\\- /x - y"),
        ),
        // Removed under us, and nothing at all.
        (
            "31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
            "0::/x (deleted)\n",
            None,
        ),
        ("", "", None),
        ("31 23 0:26 / - cgroup2 cgroup rw\nx - cgroup2", "0::", None),
    ];

    #[test]
    fn a_cgroup_is_found_in_every_layout() {
        for (mountinfo, cgroup, expected) in PLACES {
            let found = own(cgroup).and_then(|own| place(&mounts(mountinfo), own));
            assert_eq!(
                found.as_deref(),
                expected.map(Path::new),
                "{mountinfo}{cgroup}"
            );
        }
    }

    #[test]
    fn events_and_procs() {
        assert!(populated("populated 1\nfrozen 0\n"));
        assert!(!populated("populated 0\nfrozen 1\n"));
        assert!(!populated("") && !populated("populated 10\n"));
        let found: Vec<i32> = pids("0\n7\n\nx\n-3\n12 \n").map(Pid::get).collect();
        assert_eq!(found, [7, 12]);
    }
}
