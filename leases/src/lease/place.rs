//! Where a lease lives: the opened directory and the names in it.

use super::error::AcquireError;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use uuid::Uuid;

const SUFFIX: &str = ".ade-lease";

/// Where the digit of a uuid stands that tells its version.
const VERSION_DIGIT: usize = 14;

/// Names of one kind that one look at a directory keeps. More are left for
/// the next look; a crash leaves at most one.
const NAMES_KEPT: usize = 1024;

/// The lease's directory, opened, and the canonical names. All steps go by
/// this descriptor, so a directory that is renamed meanwhile stays the same one.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: OwnedFd,
    /// As the caller spelled it, for messages. The real path may cost a walk
    /// that a refusal does without: see [`Place::canonical_session`].
    pub(crate) dir_path: PathBuf,
    /// No part of `dir_path` is a link.
    no_links: bool,
    session: OsString,
    pub(crate) lease: OsString,
    dir_inode: Inode,
}

/// One lease, however its session is spelled.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    dir: Inode,
    lease: OsString,
}

/// A file whatever it is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Inode {
    dev: u64,
    ino: u64,
}

impl Inode {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev as _,
            ino: stat.st_ino as _,
        }
    }
}

/// What else lies beside a lease under a name of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// `.reclaim-*`: a lease that was moved aside; blocks while it is alive.
    Claim,
    /// `.release-*`: the foreign program's release at work, or left by a crash.
    Release,
    /// `.new-*`: a staging file at work, or left by a crash.
    Staging,
}

impl Side {
    fn parse(rest: &[u8]) -> Option<Self> {
        [
            (".reclaim-", Self::Claim),
            (".release-", Self::Release),
            (".new-", Self::Staging),
        ]
        .into_iter()
        .find_map(|(word, side)| rest.starts_with(word.as_bytes()).then_some(side))
    }
}

impl Place {
    /// One session, one lease file, however the session is spelled.
    pub(crate) fn of(session_file: &Path) -> Result<Self, AcquireError> {
        let io = |path: &Path, source| AcquireError::io(None, path, source);
        let place = Self::by_name(session_file)?;
        let name = &place.session;
        let stat = match rustix::fs::statat(&place.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(place),
            Err(errno) => return Err(io(session_file, errno.into())),
        };
        match FileKind::of(&stat) {
            None => Ok(place),
            Some(FileKind::Symlink) => {
                let real = std::fs::canonicalize(session_file);
                Self::by_name(&real.map_err(|source| io(session_file, source))?)
            }
            Some(what) => {
                let path = session_file.to_owned();
                Err(AcquireError::NotAFile { path, what })
            }
        }
    }

    fn by_name(session_file: &Path) -> Result<Self, AcquireError> {
        let Some(name) = session_file.file_name() else {
            let path = session_file.to_owned();
            let what = FileKind::Directory;
            return Err(AcquireError::NotAFile { path, what });
        };
        let parent = match session_file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let no_directory = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => AcquireError::NoDirectory {
                path: parent.to_owned(),
            },
            _ => AcquireError::io(None, parent, source),
        };
        let (dir, no_links) = match super::platform::open_without_links(parent) {
            Some(dir) => (dir, true),
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let dir = rustix::fs::openat(CWD, parent, flags, Mode::empty())
                    .map_err(|errno| no_directory(errno.into()))?;
                (dir, false)
            }
        };
        let stat = rustix::fs::fstat(&dir).map_err(|errno| no_directory(errno.into()))?;
        let mut lease = name.to_owned();
        lease.push(SUFFIX);
        Ok(Self {
            dir,
            dir_path: parent.to_owned(),
            no_links,
            session: name.to_owned(),
            lease,
            dir_inode: Inode::of(&stat),
        })
    }

    pub(crate) fn key(&self) -> Key {
        Key {
            dir: self.dir_inode,
            lease: self.lease.clone(),
        }
    }

    /// The real path of the session file.
    pub(crate) fn canonical_session(&self) -> PathBuf {
        let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        if self.no_links && self.dir_path.components().all(is_plain) {
            // The components leave out what is doubled or says nothing.
            let mut path: PathBuf = self.dir_path.components().collect();
            path.push(&self.session);
            return path;
        }
        let dir = std::fs::canonicalize(&self.dir_path);
        let dir = dir.or_else(|_| std::path::absolute(&self.dir_path));
        dir.unwrap_or_else(|_| self.dir_path.clone())
            .join(&self.session)
    }

    pub(crate) fn lease_path(&self) -> PathBuf {
        self.dir_path.join(&self.lease)
    }

    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.dir_path.join(name)
    }

    pub(crate) fn side_name(&self, side: Side, token: &str) -> OsString {
        let word = match side {
            Side::Claim => ".reclaim-",
            Side::Release => ".release-",
            Side::Staging => ".new-",
        };
        let mut name = self.lease.clone();
        name.push(word);
        name.push(token);
        name
    }

    /// The staging name of our record with this token: the same uuid as version
    /// 8. The foreign program's staging names are of version 4, so ours are
    /// known for ours even when they are empty.
    pub(crate) fn own_staging(&self, token: &str) -> OsString {
        let mut id = token.to_owned();
        if Uuid::try_parse(token).is_ok() && id.is_char_boundary(15) {
            id.replace_range(VERSION_DIGIT..=VERSION_DIGIT, "8");
        }
        self.side_name(Side::Staging, &id)
    }

    /// Whether a staging name is one of ours.
    pub(crate) fn is_own_staging(&self, name: &OsStr) -> bool {
        let prefix = self.side_name(Side::Staging, "");
        let id = name.as_bytes().strip_prefix(prefix.as_bytes());
        let id = id.and_then(|id| Uuid::try_parse_ascii(id).ok());
        id.is_some_and(|id| id.get_version_num() == 8)
    }

    /// The inode under a name; `None` when there is none.
    pub(crate) fn inode(&self, name: &OsStr) -> io::Result<Option<Inode>> {
        match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Inode::of(&stat))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a name; that it is gone already is fine.
    pub(crate) fn unlink(&self, name: &OsStr) -> io::Result<()> {
        self.unlink_if_there(name).map(drop)
    }

    /// Removes a name; whether it was there.
    pub(crate) fn unlink_if_there(&self, name: &OsStr) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a file that was not there.
    pub(crate) fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(File::from(file))
    }

    /// Everything that lies beside the lease under one of the side names.
    pub(crate) fn sides(&self) -> io::Result<Vec<(Side, OsString)>> {
        let mut found = Vec::new();
        super::platform::each_name(&self.dir, &mut |name| {
            let side = name
                .strip_prefix(self.lease.as_bytes())
                .and_then(Side::parse);
            if let Some(side) = side.filter(|_| found.len() < NAMES_KEPT) {
                found.push((side, OsString::from_vec(name.to_vec())));
            }
        })?;
        Ok(found)
    }
}

/// What stands where a file is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A symbolic link; it is never followed.
    Symlink,
    /// A directory.
    Directory,
    /// A pipe, a socket or a device.
    Special,
}

impl FileKind {
    pub(crate) fn of(stat: &Stat) -> Option<Self> {
        match FileType::from_raw_mode(stat.st_mode as _) {
            FileType::RegularFile => None,
            FileType::Symlink => Some(Self::Symlink),
            FileType::Directory => Some(Self::Directory),
            _ => Some(Self::Special),
        }
    }
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Symlink => "a symbolic link",
            Self::Directory => "a directory",
            Self::Special => "a pipe, a socket or a device",
        })
    }
}
