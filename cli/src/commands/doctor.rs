//! `ade doctor`: what is where, and what needs a hand. Works without a broker
//! and changes nothing.

mod chats;

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::time::Duration;

use ade_broker::config::Config;
use ade_broker::home::Home;
use ade_broker::lock;
use ade_broker::sweep::named;
use ade_protocol::action::{BrokerStatus, ConfigValue, Nothing, ProviderInfo, ProviderList, name};
use ade_protocol::exit;
use serde::Serialize;
use tokio::time::sleep;

use crate::client::{Client, ConnectError, QUICK, WORKER};
use crate::context::Context;
use crate::error::CommandError;
use crate::output::{Style, full_message};
use crate::seam;
use crate::table::Table;

/// Pause between two looks at a broker that begins or ends.
const LOOK: Duration = Duration::from_millis(100);

/// How one finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Grade {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// Somebody has to do something.
    NeedsAHand,
}

#[derive(Clone, Debug, Serialize)]
struct Finding {
    area: &'static str,
    grade: Grade,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    findings: Vec<Finding>,
    config: Vec<ConfigValue>,
}

impl Report {
    fn ok(&mut self, area: &'static str, text: impl Into<String>) {
        self.add(area, Grade::Ok, text.into(), None);
    }

    fn note(&mut self, area: &'static str, text: impl Into<String>) {
        self.add(area, Grade::Note, text.into(), None);
    }

    fn hand(&mut self, area: &'static str, text: impl Into<String>, remedy: impl Into<String>) {
        self.add(area, Grade::NeedsAHand, text.into(), Some(remedy.into()));
    }

    fn error(&mut self, area: &'static str, error: &CommandError) {
        self.hand(area, full_message(error), error.hints().join("; "));
    }

    fn add(&mut self, area: &'static str, grade: Grade, text: String, remedy: Option<String>) {
        self.findings.push(Finding {
            area,
            grade,
            text,
            remedy,
        });
    }

    fn needs_a_hand(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.grade == Grade::NeedsAHand)
    }
}

/// Looks at everything and prints it.
pub(super) async fn run(context: &Context) -> Result<(), CommandError> {
    let mut report = Report::default();
    executable(&mut report);
    match context.home() {
        Ok(home) => look(&home, &mut report).await,
        Err(error) => report.error("home", &error),
    }
    print(context, &report)?;
    if report.needs_a_hand() {
        return Err(CommandError::silent(exit::FAILED));
    }
    Ok(())
}

async fn look(home: &Home, report: &mut Report) {
    folder(home, report);
    configuration(home, report);
    let found = broker(home, report).await;
    let left = seam::left_behind(home);
    damaged(&left, report);
    stuck(&left, report);
    if matches!(found, Found::None) {
        leftovers(&left, report);
        obstacles(home, report);
        chats::unreadable(home, report);
    } else if let Err(error) = seam::room(home) {
        report.error("home", &error);
    }
    let running = match found {
        Found::Serves(client) => Some(*client),
        Found::Unheard | Found::None => None,
    };
    providers(home, running, report).await;
}

/// What of a broker was found.
enum Found {
    /// One that answers.
    Serves(Box<Client>),
    /// One that holds the lock and was not talked to: what is there is its own.
    Unheard,
    /// None.
    None,
}

/// What keeps the next broker from starting. The folder was looked at already.
fn obstacles(home: &Home, report: &mut Report) {
    if home.inspect().is_err() {
        return;
    }
    for error in seam::obstacles(home) {
        let area = match error.kind() {
            "lock" => "lock",
            "state" => "state",
            "socket" => "socket",
            _ => "home",
        };
        report.error(area, &error);
    }
}

fn executable(report: &mut Report) {
    let path =
        std::env::current_exe().map_or_else(|e| e.to_string(), |path| path.display().to_string());
    report.ok("ade", format!("{} at {path}", env!("CARGO_PKG_VERSION")));
}

fn folder(home: &Home, report: &mut Report) {
    let root = home.root();
    let shown = root.display();
    if let Err(error) = home.inspect() {
        return report.hand("home", crate::seam::chain(&error), error.hints().join("; "));
    }
    let found = match fs::metadata(root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return report.note(
                "home",
                format!("{shown} is not there yet; the first broker makes it"),
            );
        }
        Err(error) => {
            let remedy = "make it readable for you, or choose another with --home";
            return report.hand(
                "home",
                format!("{shown} cannot be looked at: {error}"),
                remedy,
            );
        }
        Ok(found) => found,
    };
    let mode = found.permissions().mode() & 0o7777;
    if mode != 0o700 {
        let text = format!("{shown} has mode {mode:04o} instead of 0700");
        report.hand("home", text, format!("chmod 700 {shown}"));
    } else {
        report.ok("home", format!("{shown} (0700, ours)"));
    }
}

fn configuration(home: &Home, report: &mut Report) {
    match Config::load(home, |name| std::env::var_os(name)) {
        Ok(config) => {
            let file = home.config_file();
            let state = if file.exists() {
                "read"
            } else {
                "not there, defaults are used"
            };
            report.ok("config", format!("{} ({state})", file.display()));
            report.config = config.values();
        }
        Err(error) => {
            report.hand(
                "config",
                crate::seam::chain(&error),
                error.hints().join("; "),
            );
        }
    }
}

/// Looks at the lock and the socket; gives the connection when a broker runs.
async fn broker(home: &Home, report: &mut Report) -> Found {
    let socket = home.control_socket();
    let shown = socket.display();
    let mut connected = Client::connect(&socket).await;
    let mut holder = lock::holder(home);
    // One that begins or ends just now is looked at again when it has.
    for _ in 0..5 {
        let between = connected.as_ref().is_err_and(ConnectError::nobody_there)
            && matches!(holder, Ok(Some(_)));
        if !between {
            break;
        }
        sleep(LOOK).await;
        connected = Client::connect(&socket).await;
        holder = lock::holder(home);
    }
    match (connected, holder) {
        (Ok(mut client), _) => {
            running(&mut client, report).await;
            return Found::Serves(Box::new(client));
        }
        (Err(error), Ok(Some(holder))) => {
            unheard(&error.into(), &holder, report);
            return Found::Unheard;
        }
        (Err(error), Ok(None)) if error.nobody_there() => {
            report.note("broker", "none runs; commands start one when they need it");
            let is_socket =
                fs::symlink_metadata(&socket).map(|found| found.file_type().is_socket());
            match is_socket {
                Ok(true) => report.note(
                    "socket",
                    format!("{shown} is a leftover; the next broker replaces it"),
                ),
                // Told with what keeps a broker from starting.
                Ok(false) => {}
                Err(_) => report.ok("socket", format!("{shown} (nobody listens)")),
            }
        }
        (Err(error), Ok(None)) => report.error("socket", &error.into()),
        (Err(_), Err(error)) => {
            let lock = home.broker_lock();
            let text = format!("{} cannot be looked at: {error}", lock.display());
            report.hand("broker", text, "make it readable for you");
        }
    }
    Found::None
}

/// A broker runs, and talking to it failed.
fn unheard(error: &CommandError, holder: &lock::Holder, report: &mut Report) {
    let what = match error.kind() {
        "timed_out" if lock::is_stopped(holder.pid) => "is stopped, so it answers nobody".into(),
        "timed_out" | "no_broker" => "does not answer".into(),
        _ => full_message(error),
    };
    let text = format!(
        "process {} holds the lock since {} and {what}",
        holder.pid, holder.started_at
    );
    let remedies = match error.kind() {
        "timed_out" | "no_broker" => lock::remedies(holder.pid),
        _ => error.hints().to_vec(),
    };
    report.hand("broker", text, remedies.join("; "));
}

async fn running(client: &mut Client, report: &mut Report) {
    let status = client
        .call::<_, BrokerStatus>(name::BROKER_STATUS, &Nothing {}, QUICK)
        .await;
    let status = match status {
        Ok(status) => status,
        Err(error) => return report.error("broker", &error),
    };
    let runtime = &status.runtime;
    let text = format!(
        "process {} since {}, version {}; chats {}, workers {}, turns {}, open questions {}",
        runtime.pid,
        status.started_at,
        runtime.version,
        status.sessions,
        status.workers,
        status.turns,
        status.open_cards,
    );
    report.ok("broker", text);
    report.ok("socket", status.socket.clone());
    if runtime.version != env!("CARGO_PKG_VERSION") {
        let text = format!(
            "it is version {} and this is {}",
            runtime.version,
            env!("CARGO_PKG_VERSION")
        );
        report.hand("broker", text, "ade serve --replace");
    }
    if !client.broker.capabilities.iter().any(|can| can == "events") {
        let text = format!(
            "{} clients are connected, and one more cannot stay",
            status.clients
        );
        report.hand("clients", text, "end some of them");
    }
    let (open, limit) = status.fds;
    if open.saturating_mul(10) > limit.saturating_mul(8) {
        let text = format!("{open} of {limit} file descriptors are in use");
        report.hand(
            "limits",
            text,
            "raise the limit (`ulimit -n`) and start the broker again",
        );
    } else {
        report.ok("limits", format!("{open} of {limit} file descriptors"));
    }
    if let Some(cgroup) = status.cgroup {
        report.ok("cgroup", cgroup);
    }
    report.config = status.config;
    chats::unusable(client, report).await;
}

/// Journals that name nobody any more, whoever's they are.
fn damaged(left: &seam::Left, report: &mut Report) {
    for damaged in &left.damaged {
        let text = format!("{} cannot be read", damaged.display());
        report.hand(
            "journal",
            text,
            "its worker, if it lives, is told to stop when it reports; else look into it for \
             a process that is left, then move it away",
        );
    }
}

/// What not even SIGKILL ends.
fn stuck(left: &seam::Left, report: &mut Report) {
    if !left.stuck.is_empty() {
        let text = format!("processes survive SIGKILL: {}", named(&left.stuck));
        report.hand(
            "stuck",
            text,
            "they wait in the kernel, for a disk or a network file system, or are frozen: end \
             that; their chats get no new worker before",
        );
    }
}

/// What a broker that is gone left behind.
fn leftovers(left: &seam::Left, report: &mut Report) {
    if !left.workers.is_empty() {
        let text = format!(
            "workers of an earlier broker go on for a while: {}; the next broker takes them over",
            listed(&left.workers)
        );
        report.note("workers", text);
    }
    if left.strays.is_empty() && left.stuck.is_empty() {
        report.ok("strays", "no process of a dead worker is left");
    } else if !left.strays.is_empty() {
        let text = format!(
            "processes of dead workers are alive: {}",
            listed(&left.strays)
        );
        report.hand("strays", text, "`ade ps` starts a broker, which ends them");
    }
}

fn listed(pids: &[i32]) -> String {
    pids.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

async fn providers(home: &Home, running: Option<Client>, report: &mut Report) {
    let list = match running {
        Some(mut client) => {
            let list = client
                .call::<_, ProviderList>(name::PROVIDERS_LIST, &Nothing {}, WORKER)
                .await;
            match list {
                Ok(list) => list.providers,
                Err(error) => return report.error("providers", &error),
            }
        }
        None => seam::providers(home).await,
    };
    only_runnable(&list, report);
    for info in list {
        let version = info.version.unwrap_or_default();
        let path = info
            .path
            .map(|path| format!(" at {path}"))
            .unwrap_or_default();
        match info.blocker {
            None if info.usable => {
                report.ok("provider", format!("{} {version}{path}", info.provider));
            }
            blocker => {
                let why = blocker.unwrap_or_else(|| "cannot be used".into());
                report.note("provider", format!("{}: {why}", info.provider));
            }
        }
    }
}

/// Leaves out the settings of agents that this build cannot run. One that
/// somebody has set is named: it does nothing.
fn only_runnable(list: &[ProviderInfo], report: &mut Report) {
    let of = |setting: &ConfigValue| {
        let (agent, _) = setting.name.strip_prefix("providers.")?.split_once('.')?;
        Some(agent.to_owned())
    };
    let (kept, idle): (Vec<_>, Vec<_>) =
        std::mem::take(&mut report.config)
            .into_iter()
            .partition(|setting| {
                of(setting).is_none_or(|agent| list.iter().any(|info| info.provider == agent))
            });
    report.config = kept;
    for setting in idle.iter().filter(|setting| setting.origin != "default") {
        let text = format!(
            "`{}` is set ({}), and this ade runs no such agent",
            setting.name, setting.origin
        );
        report.note("config", text);
    }
}

fn print(context: &Context, report: &Report) -> Result<(), CommandError> {
    let out = &context.out;
    if out.json() {
        return out.document(&serde_json::json!({
            "ok": !report.needs_a_hand(),
            "findings": report.findings,
            "config": report.config,
        }));
    }
    for finding in &report.findings {
        let (style, mark) = match finding.grade {
            Grade::Ok => (Style::Good, "ok  "),
            Grade::Note => (Style::Dim, "note"),
            Grade::NeedsAHand => (Style::Bad, "HAND"),
        };
        out.line(&format!(
            "{}  {:<9} {}",
            out.paint(style, mark),
            finding.area,
            finding.text
        ))?;
        if let Some(remedy) = &finding.remedy {
            out.line(&format!(
                "      {} {remedy}",
                out.paint(Style::Accent, "remedy:")
            ))?;
        }
    }
    if !report.config.is_empty() {
        out.line("")?;
        let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
        for value in &report.config {
            table.row(&[
                value.name.clone(),
                value.value.clone(),
                value.origin.clone(),
            ]);
        }
        super::lists::print_table(context, &table)?;
    }
    Ok(())
}
