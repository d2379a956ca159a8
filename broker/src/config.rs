//! `config.toml` and where each value comes from.
//!
//! Every setting is one row of the table in `settings`: its name, its form with
//! bounds, its default, and the environment variables that may override it. The
//! file is checked against that table, so what is not in it is an error: a
//! misspelt key never silently means the default. Values remember their origin,
//! for `ade doctor`.
//!
//! Precedence: environment, then file, then default. Durations are whole
//! milliseconds and end in `_ms`.
//!
//! What this module does not do: read the file again while the broker runs.

mod file;
mod settings;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_protocol::action::ConfigValue;
use ade_protocol::boot::WorkerTiming;
use ade_protocol::exit;

use self::file::FileReader;
use self::settings::{Value, settings};
use crate::budget::Limits;
use crate::files;
use crate::home::Home;
use crate::turn::{Recovery, Rules, Timing};

/// Kinds of agents that can have settings.
pub const KNOWN_PROVIDERS: &[&str] = &[
    "acp", "claude", "codex", "cursor", "droid", "opencode", "pi", "scripted",
];

/// A configuration file is a page of text; more is a mistake.
const MAX_FILE: usize = 1024 * 1024;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is there and cannot be read.
    #[error("could not read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file, or a variable of the environment, says something that cannot be.
    #[error("{place}: {problem}")]
    Invalid {
        /// `<file>:<line>`, or the name of an environment variable.
        place: String,
        /// What is wrong, with the key.
        problem: String,
        /// What to do.
        remedy: String,
    },
}

impl ConfigError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        exit::USAGE
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        vec![match self {
            Self::Read { path, source } => files::remedy(path, source).unwrap_or_else(|| {
                format!("make {} readable for you, or move it away", path.display())
            }),
            Self::Invalid { remedy, .. } => remedy.clone(),
        }]
    }
}

/// Durations that belong to a kind of agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderTiming {
    /// `dispose` until the next rung of the stop ladder.
    pub dispose_grace: Duration,
    /// SIGTERM until SIGKILL.
    pub term_to_kill: Duration,
    /// Idle until the worker is put away.
    pub idle_put_away: Duration,
    /// `send` until the first event.
    pub first_event: Duration,
}

/// How many workers there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// In all.
    pub max_workers: usize,
    /// Of one kind of agent.
    pub max_per_provider: usize,
    /// Starting at once.
    pub max_starting: usize,
}

/// What is known of the user's Pi.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PiConfig {
    /// The Node executable to use, and no other.
    pub node: Option<PathBuf>,
    /// The package to use, and no other.
    pub package_root: Option<PathBuf>,
    /// Pi's configuration folder; absent: Pi's own default.
    pub agent_dir: Option<PathBuf>,
}

/// A host program for the scripted provider, instead of the embedded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostProgram {
    /// Absolute path.
    pub program: PathBuf,
    /// Arguments after the program's name.
    pub args: Vec<String>,
}

/// How a turn goes on after its worker was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryKind {
    /// The new worker resumes the session file.
    Resume,
    /// A fresh agent is told the transcript.
    Replay,
}

/// The configuration of one broker; does not change while it runs.
#[derive(Clone, Debug)]
pub struct Config {
    values: BTreeMap<String, (Value, String)>,
}

impl Default for Config {
    fn default() -> Self {
        let values = settings()
            .into_iter()
            .map(|setting| (setting.name, (setting.default, "default".to_owned())))
            .collect();
        Self { values }
    }
}

impl Config {
    /// Reads `config.toml` of the home, if there is one, and the environment.
    ///
    /// # Errors
    /// [`ConfigError`] when the file cannot be read or says something unknown
    /// or impossible.
    pub fn load(
        home: &Home,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        let path = home.config_file();
        let text = match std::fs::read(&path) {
            Ok(bytes) if bytes.len() > MAX_FILE => Err(io::Error::other("it is larger than 1 MiB")),
            Ok(bytes) => String::from_utf8(bytes)
                .map(Some)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let text = text.map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        Self::from_parts(text.as_deref().map(|text| (path.as_path(), text)), lookup)
    }

    /// The configuration that a file's text and an environment make.
    fn from_parts(
        file: Option<(&Path, &str)>,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        let settings = settings();
        let user_home = lookup("HOME")
            .map(PathBuf::from)
            .filter(|home| home.is_absolute());
        let mut config = Self::default();
        if let Some((path, text)) = file {
            let reader = FileReader {
                path,
                text,
                settings: &settings,
                user_home: user_home.as_deref(),
            };
            reader.read(&mut config)?;
        }
        for setting in &settings {
            let given =
                |name: &&'static str| Some((*name, lookup(name).filter(|text| !text.is_empty())?));
            let Some((name, text)) = setting.env.iter().find_map(given) else {
                continue;
            };
            let path = absolute(Path::new(&text), user_home.as_deref()).ok_or_else(|| {
                ConfigError::Invalid {
                    place: name.to_owned(),
                    problem: format!("`{}` is not an absolute path", text.display()),
                    remedy: format!("set {name} to an absolute path, or unset it"),
                }
            })?;
            config.values.insert(
                setting.name.clone(),
                (Value::Path(Some(path)), name.to_owned()),
            );
        }
        config.check()?;
        Ok(config)
    }

    /// Every value with its origin, by name.
    #[must_use]
    pub fn values(&self) -> Vec<ConfigValue> {
        let shown = |value: &Value| match value {
            Value::Number(number) => number.to_string(),
            Value::Path(path) => path
                .as_ref()
                .map_or_else(String::new, |path| path.display().to_string()),
            Value::Words(words) => words.join(" "),
            Value::Word(word) => word.clone(),
        };
        self.values
            .iter()
            .map(|(name, (value, origin))| ConfigValue {
                name: name.clone(),
                value: shown(value),
                origin: origin.clone(),
            })
            .collect()
    }

    /// The durations of a kind of agent. An unknown kind has those of `acp`.
    #[must_use]
    pub fn timing(&self, provider: &str) -> ProviderTiming {
        let known = KNOWN_PROVIDERS.contains(&provider);
        let provider = if known { provider } else { "acp" };
        let of =
            |key: &str| Duration::from_millis(self.number(&format!("providers.{provider}.{key}")));
        ProviderTiming {
            dispose_grace: of("dispose_grace_ms"),
            term_to_kill: of("term_to_kill_ms"),
            idle_put_away: of("idle_put_away_ms"),
            first_event: of("first_event_ms"),
        }
    }

    /// What the turns of a kind of agent go by. `first_event`: the chat's own
    /// bound, where it has one.
    #[must_use]
    pub fn turn_rules(&self, provider: &str, first_event: Option<Duration>) -> Rules {
        let recovery = Recovery {
            fresh_agent: self.recovery(provider) == RecoveryKind::Replay,
            reconnects: self.reconnects(provider),
        };
        Rules {
            timing: self.turn_timing(provider, first_event),
            recovery,
        }
    }

    fn turn_timing(&self, provider: &str, first_event: Option<Duration>) -> Timing {
        let of = |name| Duration::from_millis(self.number(name));
        Timing {
            quiet: of("turns.quiet_ms"),
            cancel: of("turns.cancel_ms"),
            abort: of("turns.abort_ms"),
            interrupt: of("turns.interrupt_ms"),
            queue_recovery: of("turns.queue_recovery_ms"),
            ..Timing::new(first_event.unwrap_or(self.first_event(provider)))
        }
    }

    /// Silence after a send until the worker of this kind is replaced. An agent
    /// that says nothing before its whole answer has a limit of its own.
    fn first_event(&self, provider: &str) -> Duration {
        if self.tells_progress(provider) {
            return self.timing(provider).first_event;
        }
        Duration::from_millis(self.number(&format!("providers.{provider}.whole_answer_ms")))
    }

    /// Whether this kind of agent says anything before its whole answer.
    #[must_use]
    pub fn tells_progress(&self, provider: &str) -> bool {
        let name = format!("providers.{provider}.progress");
        !matches!(self.values.get(&name), Some((Value::Word(word), _)) if word == "none")
    }

    /// A watchdog for the first event would replace a healthy agent that has
    /// none to give.
    fn check(&self) -> Result<(), ConfigError> {
        for provider in KNOWN_PROVIDERS {
            let name = format!("providers.{provider}.first_event_ms");
            let origin = self.origin(&name);
            if !self.tells_progress(provider) && origin != "default" {
                return Err(ConfigError::Invalid {
                    place: origin.to_owned(),
                    problem: format!(
                        "`{name}` is set, but `providers.{provider}.progress` says that this agent \
                         sends nothing before its whole answer"
                    ),
                    remedy: format!(
                        "set `providers.{provider}.whole_answer_ms` instead, or remove one of the \
                         two lines"
                    ),
                });
            }
        }
        Ok(())
    }

    /// The durations that a worker of this kind is started with.
    #[must_use]
    pub fn worker_timing(&self, provider: &str) -> WorkerTiming {
        let timing = self.timing(provider);
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        WorkerTiming {
            dispose_grace_ms: millis(timing.dispose_grace),
            eof_grace_ms: self.number("worker.eof_grace_ms"),
            term_to_kill_ms: millis(timing.term_to_kill),
            orphan_idle_ms: self.number("worker.orphan_idle_ms"),
            orphan_turn_ms: self.number("worker.orphan_turn_ms"),
            attach_ms: self.number("worker.attach_ms"),
        }
    }

    /// How long a worker of this kind may take from the first request to stop
    /// until its whole tree is dead: all rungs of its ladder and a second.
    #[must_use]
    pub fn stop_bound(&self, provider: &str) -> Duration {
        let timing = self.worker_timing(provider);
        Duration::from_millis(timing.ladder_ms().saturating_add(1_000))
    }

    /// How many workers there may be.
    #[must_use]
    pub fn pool(&self) -> PoolLimits {
        let count = |name| usize::try_from(self.number(name)).unwrap_or(usize::MAX);
        PoolLimits {
            max_workers: count("pool.max_workers"),
            max_per_provider: count("pool.max_per_provider"),
            max_starting: count("pool.max_starting"),
        }
    }

    /// How a turn of this kind of agent goes on after its worker was replaced.
    #[must_use]
    pub fn recovery(&self, provider: &str) -> RecoveryKind {
        if provider == "cursor" || self.scripted_can("recovery", provider, "replay") {
            RecoveryKind::Replay
        } else {
            RecoveryKind::Resume
        }
    }

    /// Whether each worker's tree is kept in a cgroup of its own, where the
    /// system has it.
    #[must_use]
    pub fn wants_cgroups(&self) -> bool {
        !matches!(self.values.get("worker.cgroup"), Some((Value::Word(word), _)) if word == "off")
    }

    /// Whether a new worker of this kind renews a login token that has expired.
    fn reconnects(&self, provider: &str) -> bool {
        provider == "cursor" || self.scripted_can("stale_token", provider, "reconnect")
    }

    /// Whether the scripted agent is told to behave as another kind does.
    fn scripted_can(&self, key: &str, provider: &str, word: &str) -> bool {
        let name = format!("providers.scripted.{key}");
        let told = self.values.get(&name);
        provider == "scripted" && matches!(told, Some((Value::Word(told), _)) if told == word)
    }

    /// How often starts may fail.
    #[must_use]
    pub fn start_limits(&self) -> Limits {
        let count = |name| usize::try_from(self.number(name)).unwrap_or(usize::MAX);
        let time = |name| Duration::from_millis(self.number(name));
        Limits {
            short_deaths: count("pool.deaths_short"),
            short_window: time("pool.window_short_ms"),
            long_deaths: count("pool.deaths_long"),
            long_window: time("pool.window_long_ms"),
            pauses: [
                time("pool.pause_first_ms"),
                time("pool.pause_second_ms"),
                time("pool.pause_later_ms"),
            ],
        }
    }

    /// How long a card waits for an answer until it is denied.
    #[must_use]
    pub fn card_timeout(&self) -> Duration {
        Duration::from_millis(self.number("cards.timeout_ms"))
    }

    /// What is known of the user's Pi.
    #[must_use]
    pub fn pi(&self) -> PiConfig {
        PiConfig {
            node: self.path("providers.pi.node"),
            package_root: self.path("providers.pi.package_root"),
            agent_dir: self.path("providers.pi.agent_dir"),
        }
    }

    /// The host program for the scripted provider; absent: the embedded one.
    #[must_use]
    pub fn scripted(&self) -> Option<HostProgram> {
        let program = self.path("providers.scripted.host")?;
        let args = match self.values.get("providers.scripted.args") {
            Some((Value::Words(words), _)) => words.clone(),
            _ => Vec::new(),
        };
        Some(HostProgram { program, args })
    }

    /// Where the value of a setting comes from: `default`, the file's path, or
    /// the variable's name.
    #[must_use]
    pub fn origin(&self, name: &str) -> &str {
        self.values
            .get(name)
            .map_or("default", |(_, origin)| origin)
    }

    fn number(&self, name: &str) -> u64 {
        match self.values.get(name) {
            Some((Value::Number(number), _)) => *number,
            other => unreachable!("{name} is a number of the table of settings, not {other:?}"),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        match self.values.get(name) {
            Some((Value::Path(path), _)) => path.clone(),
            other => unreachable!("{name} is a path of the table of settings, not {other:?}"),
        }
    }
}

fn absolute(path: &Path, user_home: Option<&Path>) -> Option<PathBuf> {
    let expanded = match (path.strip_prefix("~"), user_home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    };
    expanded.is_absolute().then_some(expanded)
}
