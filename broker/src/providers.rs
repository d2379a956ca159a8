//! Kinds of agents: whether each can be used, and how its host is started.
//!
//! What is found depends on the disk and on the environment that the broker was
//! started with, and is looked at anew each time, so that a Pi that is installed
//! while the broker runs is found. Only a Node's version is remembered, for as
//! long as its file does not change.
//!
//! Everything in here may block, a few milliseconds as a rule and a few seconds
//! at most, so it belongs on a blocking thread.
//!
//! What this module does not do: load anything of a provider. Its files are
//! read and judged before any of its code runs.

mod node;
mod pi;
mod policy;
mod unpack;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ade_leases::store;
use ade_protocol::action::ProviderInfo;
use ade_protocol::boot::HostCommand;
use ade_protocol::exit;
use ade_protocol::frame::{Init, Package, SessionChoice, Store};

pub use node::Version;
pub use pi::{PiBlocker, PiInstall};
pub(crate) use policy::is_no_looser;
pub use policy::{LaunchSpec, ToolPolicy, tool_policy};
pub use unpack::{HostFiles, unpack_host};

use crate::config::{Config, HostProgram, RecoveryKind};
use crate::home::Home;
use crate::limits;
use crate::state::SessionRow;
use crate::{environment, files};

/// Kinds of agents that this version can start, in alphabetical order.
pub const PROVIDERS: &[&str] = &["pi", "scripted"];

/// Why a kind of agent cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// There is no such kind.
    #[error("there is no provider `{name}`; there are: {}", PROVIDERS.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// Pi is not there, or not usable.
    #[error(transparent)]
    Pi(#[from] PiBlocker),
    /// The configured host program is not there.
    #[error("the host program {} cannot be executed", path.display())]
    NoProgram {
        /// The program.
        path: PathBuf,
        /// Where the configuration says so.
        origin: String,
    },
    /// A file that the host needs cannot be written.
    #[error("could not write {}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl ProviderError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unknown { .. } | Self::Pi(_) | Self::NoProgram { .. } => {
                exit::PROVIDER_NOT_USABLE
            }
            Self::Write { .. } => exit::FAILED,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { .. } => vec!["list them with `ade providers`".into()],
            Self::Pi(blocker) => blocker.hints(),
            Self::NoProgram { origin, .. } => {
                vec![format!(
                    "correct providers.scripted.host in {origin}, or remove it"
                )]
            }
            Self::Write { source, .. } => vec![
                limits::hint_for(source)
                    .unwrap_or_else(|| "make room and make ADE_HOME writable for you".to_owned()),
            ],
        }
    }
}

/// How a session's host is started and what it is told.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What is fixed from now on.
    pub spec: LaunchSpec,
    /// For the worker's first line.
    pub host: HostCommand,
    /// The worker's first request.
    pub init: Init,
    /// Variables that the host's configuration asks for by name.
    pub env_names: BTreeSet<String>,
}

/// The kinds of agents of one broker.
pub struct Providers {
    home: Home,
    config: Arc<Config>,
    env: BTreeMap<String, OsString>,
    pi_host: HostFiles,
    /// Where packages and programs of the system are.
    prefixes: Vec<PathBuf>,
    nodes: node::Known,
}

impl fmt::Debug for Providers {
    /// Without the environment, which holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Providers")
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

impl Providers {
    /// What is found with this configuration in this environment. `pi_host`
    /// are the scripts that load Pi.
    #[must_use]
    pub fn new(
        home: Home,
        config: Arc<Config>,
        env: BTreeMap<String, OsString>,
        pi_host: HostFiles,
    ) -> Self {
        let prefixes = ["/opt/homebrew", "/usr/local", "/usr"]
            .map(PathBuf::from)
            .to_vec();
        Self {
            home,
            config,
            env,
            pi_host,
            prefixes,
            nodes: node::Known::default(),
        }
    }

    /// Every kind of agent and whether it can be used, in alphabetical order.
    #[must_use]
    pub fn list(&self) -> Vec<ProviderInfo> {
        PROVIDERS
            .iter()
            .map(|provider| self.info(provider))
            .collect()
    }

    fn info(&self, provider: &str) -> ProviderInfo {
        let (version, path) = match provider {
            "pi" => self.pi().map_or((None, None), |pi| {
                (
                    Some(pi.version.to_string()),
                    Some(pi.package_root.display().to_string()),
                )
            }),
            _ => {
                let program = self
                    .config
                    .scripted()
                    .map(|host| host.program.display().to_string());
                (Some(env!("CARGO_PKG_VERSION").to_owned()), program)
            }
        };
        let problem = self.check(provider).err();
        let blocker = problem.map(|error| match error.hints().as_slice() {
            [] => error.to_string(),
            hints => format!("{error}; {}", hints.join("; ")),
        });
        ProviderInfo {
            provider: provider.to_owned(),
            usable: blocker.is_none(),
            version,
            path,
            blocker,
        }
    }

    /// Whether chats of this kind can be started now.
    ///
    /// # Errors
    /// [`ProviderError`] says why not, and what to do.
    pub fn check(&self, provider: &str) -> Result<(), ProviderError> {
        match provider {
            "pi" => Ok(self.pi().map(drop)?),
            "scripted" => self.scripted_host().map(drop),
            name => Err(ProviderError::Unknown {
                name: name.to_owned(),
            }),
        }
    }

    /// The user's Pi and the Node that runs it.
    ///
    /// # Errors
    /// [`PiBlocker`].
    pub fn pi(&self) -> Result<PiInstall, PiBlocker> {
        let configured = self.config.pi();
        pi::find(&pi::Search {
            env: &self.env,
            prefixes: &self.prefixes,
            agent_dir: &self.pi_store(None).agent_dir,
            node: configured.node.as_deref(),
            node_origin: self.config.origin("providers.pi.node"),
            package_root: configured.package_root.as_deref(),
            package_origin: self.config.origin("providers.pi.package_root"),
            nodes: &self.nodes,
        })
    }

    /// What a worker of this session must have been started with to serve it
    /// now. Does not look at the disk.
    #[must_use]
    pub fn spec(&self, row: &SessionRow) -> LaunchSpec {
        let configured = || match row.provider.as_str() {
            "pi" => self.config.pi().agent_dir.as_deref().map(text),
            _ => None,
        };
        LaunchSpec {
            policy: tool_policy(row.permission),
            changes: row.policy,
            agent_dir: row.agent_dir.clone().or_else(configured),
        }
    }

    /// How the worker of this session is started now.
    ///
    /// # Errors
    /// [`ProviderError`].
    pub fn launch(&self, row: &SessionRow) -> Result<Launch, ProviderError> {
        match row.provider.as_str() {
            "pi" => self.launch_pi(row),
            "scripted" => self.launch_scripted(row),
            name => Err(ProviderError::Unknown {
                name: name.to_owned(),
            }),
        }
    }

    /// The environment of a worker: what its kind of agent may have of ours,
    /// `extra` by name, and the mark.
    #[must_use]
    pub fn worker_env(
        &self,
        provider: &str,
        extra: &BTreeSet<String>,
        mark: &str,
    ) -> BTreeMap<OsString, OsString> {
        let inherited = self
            .env
            .iter()
            .map(|(name, value)| (name.into(), value.clone()));
        environment::worker_env(provider, inherited, extra, mark)
    }

    /// Pi's store, as Pi's own command line would find it with this
    /// configuration folder.
    fn pi_store(&self, agent_dir: Option<&Path>) -> store::Store {
        store::locate(&|name| match (name, agent_dir) {
            ("PI_CODING_AGENT_DIR", Some(agent_dir)) => Some(agent_dir.as_os_str().to_owned()),
            _ => self.env.get(name).cloned(),
        })
    }

    fn launch_pi(&self, row: &SessionRow) -> Result<Launch, ProviderError> {
        let pi = self.pi()?;
        let script =
            unpack_host(&self.home, self.pi_host).map_err(|source| ProviderError::Write {
                path: self.home.hosts_dir(),
                source,
            })?;
        let spec = self.spec(row);
        let agent_dir = spec.agent_dir.as_ref().map(PathBuf::from);
        let found = self.pi_store(agent_dir.as_deref());
        let store = Store {
            session_root: text(&found.root),
            session_storage_dir: found.storage_dir.as_deref().map(text),
        };
        let init = Init {
            agent_dir: agent_dir.as_deref().map(text),
            package: Some(Package {
                package_root: Some(text(&pi.package_root)),
                package_entry: None,
            }),
            ask_user_tool: true,
            ..init_for(row, &spec, store)
        };
        let host = HostCommand::Pi {
            node: text(&pi.node),
            script: text(&script),
        };
        let env_names = environment::models_json_names(&found.agent_dir);
        Ok(Launch {
            spec,
            host,
            init,
            env_names,
        })
    }

    fn launch_scripted(&self, row: &SessionRow) -> Result<Launch, ProviderError> {
        let host = self.scripted_host()?;
        let root = self.home.scripted_store();
        files::make_private_dir(&root).map_err(|source| ProviderError::Write {
            path: root.clone(),
            source,
        })?;
        let store = Store {
            session_root: text(&root),
            session_storage_dir: None,
        };
        let spec = self.spec(row);
        let mut init = init_for(row, &spec, store);
        init.session = self.scripted_session(row);
        Ok(Launch {
            spec,
            host,
            init,
            env_names: BTreeSet::new(),
        })
    }

    /// The first file is named by the chat, so an id says nothing; the file of
    /// each fresh agent after it has an id of its own.
    fn scripted_session(&self, row: &SessionRow) -> SessionChoice {
        let replays = self.config.recovery("scripted") == RecoveryKind::Replay;
        let written = |file: &Path| file.exists();
        let lost = row.has_history
            && !row
                .session_file
                .as_deref()
                .is_some_and(|file| written(Path::new(file)));
        if replays && (row.flags.rotate || lost) {
            return SessionChoice {
                session_file: None,
                session_id: Some(uuid::Uuid::now_v7().to_string()),
                resume: false,
            };
        }
        SessionChoice {
            session_id: None,
            ..session_choice(row, written)
        }
    }

    fn scripted_host(&self) -> Result<HostCommand, ProviderError> {
        let Some(HostProgram { program, args }) = self.config.scripted() else {
            return Ok(HostCommand::Scripted);
        };
        let access = rustix::fs::Access::EXEC_OK;
        if !program.is_file() || rustix::fs::access(&program, access).is_err() {
            let origin = self.config.origin("providers.scripted.host").to_owned();
            return Err(ProviderError::NoProgram {
                path: program,
                origin,
            });
        }
        Ok(HostCommand::Program {
            program: text(&program),
            args,
        })
    }
}

/// What every kind of host is told. Paths that are not text cannot be put into
/// a frame; they are refused where they come in.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn init_for(row: &SessionRow, spec: &LaunchSpec, store: Store) -> Init {
    let policy = spec.policy.clone();
    Init {
        session_key: row.session_id.to_string(),
        provider: row.provider.clone(),
        cwd: row.lane.clone(),
        store,
        session: session_choice(row, |file| file.exists()),
        model_ref: row.model.clone(),
        thinking_level: row.thinking.clone(),
        tools: Some(policy.tools),
        approval_tools: policy.approval,
        extensions: policy.extensions,
        ..Init::default()
    }
}

/// The session file of a chat, as far as it is known: what a worker said, or
/// where the scripted host will keep it. Of Pi's nothing is known before its
/// host has said it.
#[must_use]
pub fn session_file(home: &Home, row: &SessionRow) -> Option<PathBuf> {
    let planned = || {
        let scripted = row.provider == "scripted";
        scripted.then(|| {
            home.scripted_store()
                .join(format!("{}.jsonl", row.session_id))
        })
    };
    row.session_file
        .as_ref()
        .map(PathBuf::from)
        .or_else(planned)
}

/// Which session the host opens. A file that exists is resumed, and so is one
/// that must exist, so that its loss is an error and not a silent fresh start.
/// A file that was only planned, because nothing was said before its worker
/// ended, is planned anew under the same id.
fn session_choice(row: &SessionRow, exists: impl Fn(&Path) -> bool) -> SessionChoice {
    let written = row
        .session_file
        .as_deref()
        .is_some_and(|file| exists(Path::new(file)));
    let resume = written || row.has_history;
    SessionChoice {
        session_file: row.session_file.clone().filter(|_| resume),
        session_id: row.provider_session_id.clone(),
        resume,
    }
}
