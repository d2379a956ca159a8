//! Finding the user's Pi, and a Node that can run it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::node::{self, Version};

/// Pi's package.
pub(super) const PACKAGE: &str = "@earendil-works/pi-coding-agent";
/// What it was called before version 1.
const OLD_PACKAGE: &str = "@mariozechner/pi-coding-agent";
/// The Pi that ade is tested with, and therefore proposes.
const TESTED_PI: &str = "1.6.0";
/// The oldest Pi that the host understands.
const OLDEST_PI: Version = Version(1, 0, 0);
/// The oldest Node that runs any Pi since 1.0.
const OLDEST_NODE: Version = Version(22, 19, 0);
/// A manifest is a few pages; more is not one.
const MAX_MANIFEST: u64 = 1024 * 1024;

/// A Pi that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PiInstall {
    /// The Node executable.
    pub node: PathBuf,
    /// Its version.
    pub node_version: Version,
    /// Folder with Pi's manifest.
    pub package_root: PathBuf,
    /// Pi's version.
    pub version: Version,
}

/// Why Pi cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PiBlocker {
    /// There is no Pi in any of the usual places.
    #[error("Pi is not installed: no `pi` on PATH and no {PACKAGE} in the usual folders")]
    NoPackage,
    /// The folder that was named holds no Pi.
    #[error("{} holds no Pi ({origin} names it): {problem}", root.display())]
    NotAPackage {
        /// The folder.
        root: PathBuf,
        /// Who named it.
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// Pi's files are there and cannot be used.
    #[error("Pi at {} is damaged: {problem}", root.display())]
    Damaged {
        /// The folder.
        root: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Pi is older than the host understands.
    #[error("Pi {version} at {} is too old: {OLDEST_PI} or newer is needed", root.display())]
    OldPi {
        /// Its version.
        version: Version,
        /// The folder.
        root: PathBuf,
    },
    /// There is no Node anywhere.
    #[error("there is no Node: Pi needs Node {needed} or newer")]
    NoNode {
        /// What is needed.
        needed: Version,
    },
    /// Every Node that was found is too old.
    #[error("Node {version} at {} is too old: Pi needs {needed} or newer", path.display())]
    NodeTooOld {
        /// The newest one that was found.
        version: Version,
        /// Where it is.
        path: PathBuf,
        /// What is needed.
        needed: Version,
    },
    /// The Node that was named cannot be used.
    #[error("the Node {} does not work ({origin} names it): {problem}", path.display())]
    NodeFailed {
        /// Where it should be.
        path: PathBuf,
        /// Who named it.
        origin: String,
        /// What is wrong.
        problem: String,
    },
}

impl PiBlocker {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        ade_protocol::exit::PROVIDER_NOT_USABLE
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NoPackage => format!(
                "install it with `npm install -g --ignore-scripts {PACKAGE}@{TESTED_PI}`, or set ADE_PI_PACKAGE_ROOT to its folder"
            ),
            Self::NotAPackage { origin, .. } => {
                format!("correct {origin}, or remove the setting to have Pi looked for")
            }
            Self::Damaged { .. } | Self::OldPi { .. } => {
                format!("install it again with `npm install -g --ignore-scripts {PACKAGE}@latest`")
            }
            Self::NoNode { needed } | Self::NodeTooOld { needed, .. } => format!(
                "install Node {needed} or newer, or set ADE_NODE to the path of one that is not on PATH"
            ),
            Self::NodeFailed { origin, .. } => {
                format!("correct {origin}, or remove the setting to have a Node looked for")
            }
        };
        vec![hint]
    }
}

/// Where to look.
pub(super) struct Search<'a> {
    pub(super) env: &'a BTreeMap<String, OsString>,
    /// Folders with `bin` and `lib` of the system.
    pub(super) prefixes: &'a [PathBuf],
    pub(super) agent_dir: &'a Path,
    /// This Node and no other.
    pub(super) node: Option<&'a Path>,
    pub(super) node_origin: &'a str,
    /// This package and no other.
    pub(super) package_root: Option<&'a Path>,
    pub(super) package_origin: &'a str,
    pub(super) nodes: &'a node::Known,
}

/// Finds a Pi and a Node for it.
pub(super) fn find(search: &Search<'_>) -> Result<PiInstall, PiBlocker> {
    let package = match search.package_root {
        Some(root) => Package::named(root, search.package_origin)?,
        None => look_for_package(search)?,
    };
    let (node, node_version) = match search.node {
        Some(node) => named_node(search, node, package.needs)?,
        None => look_for_node(search, &package)?,
    };
    Ok(PiInstall {
        node,
        node_version,
        package_root: package.root,
        version: package.version,
    })
}

/// A package that was read and found usable.
struct Package {
    root: PathBuf,
    version: Version,
    needs: Version,
}

/// The part of a manifest that is of interest.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Manifest {
    name: String,
    version: String,
    main: Option<String>,
    engines: BTreeMap<String, String>,
}

enum ManifestFault {
    /// There is none.
    Missing,
    Unreadable(String),
}

impl Manifest {
    fn read(root: &Path) -> Result<Self, ManifestFault> {
        let path = root.join("package.json");
        let unreadable = |why: &dyn std::fmt::Display| {
            ManifestFault::Unreadable(format!("{}: {why}", path.display()))
        };
        match fs::metadata(&path) {
            Ok(found) if found.len() > MAX_MANIFEST => return Err(unreadable(&"it is too large")),
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Err(ManifestFault::Missing);
            }
            Err(error) => return Err(unreadable(&error)),
        }
        let content = fs::read(&path).map_err(|error| unreadable(&error))?;
        ade_protocol::strict::from_slice(&content).map_err(|error| unreadable(&error))
    }

    fn is_pi(&self) -> bool {
        self.name == PACKAGE || self.name == OLD_PACKAGE
    }
}

impl Package {
    /// The package in a folder that somebody named.
    fn named(root: &Path, origin: &str) -> Result<Self, PiBlocker> {
        let not = |problem: String| PiBlocker::NotAPackage {
            root: root.to_owned(),
            origin: origin.to_owned(),
            problem,
        };
        match Manifest::read(root) {
            Ok(manifest) if manifest.is_pi() => Self::judge(root, &manifest),
            Ok(manifest) if manifest.name.is_empty() => Err(not("its package has no name".into())),
            Ok(manifest) => Err(not(format!("it is {}", manifest.name))),
            Err(ManifestFault::Missing) => Err(not("there is no package.json".into())),
            Err(ManifestFault::Unreadable(problem)) => Err(PiBlocker::Damaged {
                root: root.to_owned(),
                problem,
            }),
        }
    }

    fn judge(root: &Path, manifest: &Manifest) -> Result<Self, PiBlocker> {
        let damaged = |problem| PiBlocker::Damaged {
            root: root.to_owned(),
            problem,
        };
        let version = Version::parse(&manifest.version)
            .ok_or_else(|| damaged("its package.json has no version".to_owned()))?;
        if manifest.name == OLD_PACKAGE || version < OLDEST_PI {
            return Err(PiBlocker::OldPi {
                version,
                root: root.to_owned(),
            });
        }
        let main = manifest.main.as_deref().unwrap_or("dist/index.js");
        if !["dist/bundle/index.js", main]
            .iter()
            .any(|entry| root.join(entry).is_file())
        {
            return Err(damaged(format!("{main} is missing")));
        }
        let engines = manifest
            .engines
            .get("node")
            .and_then(|range| Version::parse(range));
        let needs = engines.map_or(OLDEST_NODE, |needs| needs.max(OLDEST_NODE));
        Ok(Self {
            root: root.to_owned(),
            version,
            needs,
        })
    }
}

/// The first usable package of the usual places; when there is none, what is
/// wrong with the first one that is there.
fn look_for_package(search: &Search<'_>) -> Result<Package, PiBlocker> {
    let mut first_problem = None;
    let from_commands = node::on_path("pi", search.env)
        .into_iter()
        .filter_map(package_above);
    for root in from_commands.chain(usual_folders(search)) {
        let found = match Manifest::read(&root) {
            Ok(manifest) if manifest.is_pi() => Package::judge(&root, &manifest),
            Ok(_) | Err(ManifestFault::Missing) => continue,
            Err(ManifestFault::Unreadable(problem)) => Err(PiBlocker::Damaged { root, problem }),
        };
        match found {
            Ok(package) => return Ok(package),
            Err(problem) => first_problem = first_problem.or(Some(problem)),
        }
    }
    Err(first_problem.unwrap_or(PiBlocker::NoPackage))
}

/// From a command, which is a link into its package, to the package.
fn package_above(command: PathBuf) -> Option<PathBuf> {
    let real = fs::canonicalize(command).ok()?;
    let found = real
        .ancestors()
        .skip(1)
        .find(|folder| Manifest::read(folder).is_ok_and(|manifest| manifest.is_pi()));
    found.map(Path::to_owned)
}

fn usual_folders(search: &Search<'_>) -> Vec<PathBuf> {
    let mut modules = vec![
        search.agent_dir.join("node_modules"),
        search.agent_dir.join("lib/node_modules"),
    ];
    let home = search
        .env
        .get("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute());
    if let Some(home) = home {
        modules.push(home.join(".npm-global/lib/node_modules"));
        modules.push(home.join(".local/lib/node_modules"));
        let volta = home.join(".volta/tools/image/packages").join(PACKAGE);
        modules.push(volta.join("lib/node_modules"));
    }
    modules.extend(
        search
            .prefixes
            .iter()
            .map(|prefix| prefix.join("lib/node_modules")),
    );
    let names = |modules: PathBuf| [PACKAGE, OLD_PACKAGE].map(|name| modules.join(name));
    modules.into_iter().flat_map(names).collect()
}

fn named_node(
    search: &Search<'_>,
    node: &Path,
    needed: Version,
) -> Result<(PathBuf, Version), PiBlocker> {
    let path = node.to_owned();
    match search.nodes.version(node, search.env) {
        Ok(version) if version >= needed => Ok((path, version)),
        Ok(version) => Err(PiBlocker::NodeTooOld {
            version,
            path,
            needed,
        }),
        Err(problem) => {
            let origin = search.node_origin.to_owned();
            Err(PiBlocker::NodeFailed {
                path,
                origin,
                problem,
            })
        }
    }
}

fn look_for_node(search: &Search<'_>, package: &Package) -> Result<(PathBuf, Version), PiBlocker> {
    let needed = package.needs;
    let candidates = node::candidates(search.env, &package.root, search.prefixes);
    match node::search(candidates, needed, search.nodes, search.env) {
        node::Search::Found(path, version) => Ok((path, version)),
        node::Search::TooOld(path, version) => Err(PiBlocker::NodeTooOld {
            version,
            path,
            needed,
        }),
        node::Search::Nothing => Err(PiBlocker::NoNode { needed }),
    }
}
