//! The table of settings: each one's name, form with bounds, default, and the
//! environment variables that may override it.

use std::path::PathBuf;

use ade_protocol::boot::WorkerTiming;

use super::KNOWN_PROVIDERS;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A count of anything.
const COUNT: Form = Form::Count(1, 100_000);
/// A time that something that is to end is given.
const GRACE: Form = Form::Millis(1, 10 * 60 * 1000);
/// Any other time.
const LONG: Form = Form::Millis(1, 30 * DAY_MS);

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Path(Option<PathBuf>),
    Words(Vec<String>),
    Word(String),
}

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Milliseconds, with bounds.
    Millis(u64, u64),
    /// A count, with bounds.
    Count(u64, u64),
    /// An absolute path; `~/` stands for the user's home.
    Path,
    /// A list of strings.
    Words,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// One row of the table.
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) form: Form,
    pub(super) default: Value,
    /// Variables that override it, the first one that is set.
    pub(super) env: &'static [&'static str],
}

impl Setting {
    fn new(name: impl Into<String>, form: Form, default: Value) -> Self {
        Self {
            name: name.into(),
            form,
            default,
            env: &[],
        }
    }

    fn number(name: impl Into<String>, form: Form, default: u64) -> Self {
        Self::new(name, form, Value::Number(default))
    }

    /// One of these words; the first one is the default.
    fn choice(name: impl Into<String>, words: &'static [&'static str]) -> Self {
        Self::new(name, Form::Choice(words), Value::Word(words[0].into()))
    }

    fn path(name: &str, env: &'static [&'static str]) -> Self {
        Self {
            env,
            ..Self::new(name, Form::Path, Value::Path(None))
        }
    }
}

/// The whole table.
pub(super) fn settings() -> Vec<Setting> {
    let mut all = of_the_broker();
    for provider in KNOWN_PROVIDERS {
        all.extend(of_each_provider(provider));
    }
    all.extend(of_single_providers());
    all
}

fn of_the_broker() -> Vec<Setting> {
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get() as u64);
    let worker = WorkerTiming::default();
    let number = Setting::number;
    vec![
        number("pool.max_workers", COUNT, 256),
        number("pool.max_per_provider", COUNT, 256),
        number("pool.max_starting", COUNT, cores),
        number("pool.deaths_short", COUNT, 3),
        number("pool.window_short_ms", LONG, 60_000),
        number("pool.deaths_long", COUNT, 10),
        number("pool.window_long_ms", LONG, 300_000),
        number("pool.pause_first_ms", LONG, 250),
        number("pool.pause_second_ms", LONG, 1_000),
        number("pool.pause_later_ms", LONG, 5_000),
        number("turns.quiet_ms", LONG, 60_000),
        number("turns.cancel_ms", LONG, 3_000),
        number("turns.abort_ms", LONG, 11_000),
        number("turns.interrupt_ms", LONG, 30_000),
        number("turns.queue_recovery_ms", LONG, 8_000),
        // A question of the evening is there in the morning. After a day what it
        // is about has moved on, and it still holds a worker and a session file.
        number("cards.timeout_ms", LONG, DAY_MS),
        number("worker.eof_grace_ms", GRACE, worker.eof_grace_ms),
        number("worker.attach_ms", GRACE, worker.attach_ms),
        number("worker.orphan_idle_ms", LONG, worker.orphan_idle_ms),
        number("worker.orphan_turn_ms", LONG, worker.orphan_turn_ms),
        Setting::choice("worker.cgroup", &["auto", "off"]),
    ]
}

fn of_each_provider(provider: &str) -> Vec<Setting> {
    let dispose = match provider {
        "cursor" => 3_000,
        "droid" => 800,
        _ => 1_500,
    };
    let of = |key: &str| format!("providers.{provider}.{key}");
    let number = Setting::number;
    vec![
        number(of("dispose_grace_ms"), GRACE, dispose),
        number(of("term_to_kill_ms"), GRACE, 1_500),
        number(of("idle_put_away_ms"), LONG, 30 * 60 * 1000),
        number(of("first_event_ms"), LONG, 90_000),
        number(of("whole_answer_ms"), LONG, 30 * 60 * 1000),
        Setting::choice(of("progress"), &["events", "none"]),
    ]
}

fn of_single_providers() -> Vec<Setting> {
    vec![
        Setting::path("providers.pi.node", &["ADE_NODE"]),
        Setting::path(
            "providers.pi.package_root",
            &["ADE_PI_PACKAGE_ROOT", "PI_CODING_AGENT_PACKAGE_ROOT"],
        ),
        Setting::path("providers.pi.agent_dir", &["PI_CODING_AGENT_DIR"]),
        Setting::choice("providers.scripted.recovery", &["resume", "replay"]),
        Setting::choice("providers.scripted.stale_token", &["fail", "reconnect"]),
        Setting::path("providers.scripted.host", &[]),
        Setting::new(
            "providers.scripted.args",
            Form::Words,
            Value::Words(Vec::new()),
        ),
    ]
}
