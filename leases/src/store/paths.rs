//! Where the store is, and when two paths are one.

use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Where Pi keeps its session files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Store {
    /// The boundary: what lies outside is not a session.
    pub root: PathBuf,
    /// What Pi is told to write into, flat; `None` lets Pi nest by lane.
    pub storage_dir: Option<PathBuf>,
    /// Pi's own folder.
    pub agent_dir: PathBuf,
    /// Who said so.
    pub source: Source,
}

/// Who named the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// `PI_CODING_AGENT_SESSION_DIR`.
    Environment,
    /// `sessionDir` of the profile's own `settings.json`.
    Settings,
    /// Nobody: `<agent dir>/sessions`.
    Default,
}

/// Finds the store. `env` looks a variable up; blank ones count as unset.
///
/// A relative directory is ignored, and so is whatever a checkout says: see
/// [`checkout_override`].
#[must_use]
pub fn locate(env: &dyn Fn(&str) -> Option<OsString>) -> Store {
    let var = |name: &str| {
        env(name)
            .filter(|value| !value.as_bytes().trim_ascii().is_empty())
            .map(PathBuf::from)
    };
    let home = var("USERPROFILE")
        .or_else(|| var("HOME"))
        .or_else(system_home);
    let home = home.unwrap_or_else(|| PathBuf::from("/"));
    let agent_dir = var("PI_CODING_AGENT_DIR").unwrap_or_else(|| home.join(".pi/agent"));
    let agent_dir = absolute(&agent_dir);
    let configured = [
        (Source::Environment, var("PI_CODING_AGENT_SESSION_DIR")),
        (
            Source::Settings,
            session_dir_of(&agent_dir.join("settings.json")),
        ),
    ];
    let chosen = configured.into_iter().find_map(|(source, dir)| {
        let dir = expand(&dir?, &home);
        dir.is_absolute().then(|| (source, normalise(&dir)))
    });
    match chosen {
        Some((source, dir)) => Store {
            root: dir.clone(),
            storage_dir: Some(dir),
            agent_dir,
            source,
        },
        None => Store {
            root: agent_dir.join("sessions"),
            storage_dir: None,
            agent_dir,
            source: Source::Default,
        },
    }
}

/// The directory that a checkout's own `.pi/settings.json` asks for. It is
/// never obeyed, since whoever wrote the checkout could then choose where
/// sessions go; a tracked terminal names it in its message.
#[must_use]
pub fn checkout_override(cwd: &Path) -> Option<String> {
    let dir = session_dir_of(&cwd.join(".pi/settings.json"))?;
    Some(dir.to_string_lossy().into_owned())
}

fn session_dir_of(settings: &Path) -> Option<PathBuf> {
    /// Settings are small; what is longer is not ours to read.
    const MAX: u64 = 1024 * 1024;
    if std::fs::metadata(settings)
        .ok()
        .filter(|meta| meta.is_file())?
        .len()
        > MAX
    {
        return None;
    }
    let bytes = std::fs::read(settings).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    let dir = json.get("sessionDir")?.as_str()?.trim();
    (!dir.is_empty()).then(|| PathBuf::from(dir))
}

fn system_home() -> Option<PathBuf> {
    nix::unistd::User::from_uid(nix::unistd::getuid())
        .ok()
        .flatten()
        .map(|user| user.dir)
}

fn expand(dir: &Path, home: &Path) -> PathBuf {
    match dir.to_str() {
        Some("~") => home.to_owned(),
        Some(text) => match text.strip_prefix("~/").or_else(|| text.strip_prefix("~\\")) {
            Some(rest) => home.join(rest),
            None => dir.to_owned(),
        },
        None => dir.to_owned(),
    }
}

fn absolute(path: &Path) -> PathBuf {
    normalise(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

/// Collapses `.`, `..` and doubled separators by text alone.
pub(crate) fn normalise(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// What two paths are compared by. Equal keys are one path as far as its text
/// goes; symlinks are not looked at, and Unicode forms are left as they are
/// (the filesystem tells NFC and NFD apart, and so do we).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PathKey(OsString);

impl PathKey {
    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The key of a path: absolute, `.` and `..` collapsed, no trailing separator,
/// lower case where the system's filesystems ignore case (macOS).
#[must_use]
pub fn path_key(path: &Path) -> PathKey {
    let path = absolute(path);
    if cfg!(target_os = "macos") {
        PathKey(path.to_string_lossy().to_lowercase().into())
    } else {
        PathKey(path.into())
    }
}

/// Whether two lanes are one directory: by their real paths, or by text where
/// a directory is gone.
#[must_use]
pub fn same_lane(one: &Path, other: &Path) -> bool {
    path_key(one) == path_key(other) || path_key(&real(one)) == path_key(&real(other))
}

pub(crate) fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Resolves the deepest ancestor that exists and appends the rest by text;
/// `None` when a dangling link is on the way, which could lead anywhere.
pub(crate) fn canonical_planned(path: &Path) -> Option<PathBuf> {
    let path = absolute(path);
    let mut tail = Vec::new();
    for ancestor in path.ancestors() {
        match std::fs::canonicalize(ancestor) {
            Ok(real) => return Some(tail.iter().rev().fold(real, |path, part| path.join(part))),
            Err(_) if std::fs::symlink_metadata(ancestor).is_ok() => return None,
            Err(_) => tail.push(ancestor.file_name()?),
        }
    }
    None
}

/// What a tracked terminal leases before its agent has made a session file;
/// pass it to [`crate::lease::acquire`] as the session file.
#[must_use]
pub fn creation_target(root: &Path, cwd: &Path) -> PathBuf {
    let digest = Sha256::digest(path_key(cwd).as_bytes());
    let hex: String = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    absolute(root).join(format!(".ade-session-create-{hex}"))
}
