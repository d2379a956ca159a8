//! `ade ps` and `ade providers`.

use ade_protocol::action::{Nothing, ProviderList, SessionInfo, SessionList, name};
use ade_protocol::event::TurnStatus;
use jiff::Timestamp;

use crate::client::{QUICK, WORKER};
use crate::context::Context;
use crate::error::CommandError;
use crate::output::Style;
use crate::table::{Table, bytes, clipped, short_id, span, tilde};

/// What stands where there is nothing to say.
pub(super) const NONE: &str = "–";

/// The state of a chat that is known and can't be brought up.
pub(super) const UNUSABLE: &str = "unusable";

/// Lists chats with their workers.
pub(super) async fn ps(context: &Context) -> Result<(), CommandError> {
    let mut client = context.broker().await?;
    let list: SessionList = client.call(name::SESSIONS_LIST, &Nothing {}, QUICK).await?;
    if context.out.json() {
        return context.out.document(&list);
    }
    if list.sessions.is_empty() {
        context
            .out
            .note(Style::Dim, "no chats; `ade run` makes one");
        return Ok(());
    }
    let home = std::env::var("HOME").ok();
    let table = ps_table(&list.sessions, home.as_deref(), Timestamp::now());
    print_table(context, &table)?;
    for info in list.sessions.iter().filter(|info| info.state == UNUSABLE) {
        let why = info.last_error.as_deref().unwrap_or(NONE);
        let line = format!("{} cannot be used: {why}", info.session_id);
        context.out.line(&context.out.paint(Style::Bad, &line))?;
    }
    Ok(())
}

fn ps_table(sessions: &[SessionInfo], home: Option<&str>, now: Timestamp) -> Table {
    let mut table = Table::new(&[
        "SESSION", "LANE", "PROVIDER", "MODE", "STATE", ">GEN", ">WORKER", ">EVENTS", ">LAST",
        ">CPU", ">MEM", "LEASE",
    ]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.into());
    for info in sessions {
        let last = info.last_event_at.as_deref().and_then(|at| age(at, now));
        table.row(&[
            short_id(info.session_id.as_str()).to_owned(),
            tilde(&info.lane, home),
            info.provider.clone(),
            info.permission.name().to_owned(),
            state(info),
            info.generation.to_string(),
            or_none(info.worker_pid.map(|pid| pid.to_string())),
            info.last_sequence.to_string(),
            or_none(last),
            or_none(info.cpu_percent.map(|percent| format!("{percent:.0}%"))),
            or_none(info.memory_bytes.map(bytes)),
            if info.lease_held {
                "held".into()
            } else {
                NONE.into()
            },
        ]);
    }
    table
}

/// The state in a word or two: what the worker does, and what the last turn
/// left where it does nothing.
fn state(info: &SessionInfo) -> String {
    let mut text = match (&info.stop_stage, info.state.as_str(), info.last_status) {
        (Some(stage), _, _) => format!("stopping: {stage}"),
        (None, "idle", Some(TurnStatus::Failed)) => "idle (failed)".into(),
        (None, "idle", Some(TurnStatus::Interrupted)) => "idle (interrupted)".into(),
        (None, state, _) => state.replace('_', " "),
    };
    if let Some(place) = info.place {
        text.push_str(&format!(" (place {place})"));
    }
    if info.quiet_since.is_some() {
        text.push_str(" (quiet)");
    }
    if info.queued > 0 {
        text.push_str(&format!(" +{}", info.queued));
    }
    text
}

/// How long ago a moment was; `None` when the text is no moment.
pub(super) fn age(at: &str, now: Timestamp) -> Option<String> {
    let then: Timestamp = at.parse().ok()?;
    Some(span(now.as_second() - then.as_second()))
}

/// Prints a table with its heading in bold.
pub(super) fn print_table(context: &Context, table: &Table) -> Result<(), CommandError> {
    for (index, line) in table.lines().iter().enumerate() {
        let style = if index == 0 {
            Style::Bold
        } else {
            Style::Plain
        };
        context.out.line(&context.out.paint(style, line))?;
    }
    Ok(())
}

/// Lists the kinds of agents and whether they can be used.
pub(super) async fn providers(context: &Context) -> Result<(), CommandError> {
    let mut client = context.broker().await?;
    let list: ProviderList = client
        .call(name::PROVIDERS_LIST, &Nothing {}, WORKER)
        .await?;
    if context.out.json() {
        return context.out.document(&list);
    }
    let home = std::env::var("HOME").ok();
    let mut table = Table::new(&["PROVIDER", "USABLE", "VERSION", "PATH"]);
    for info in &list.providers {
        table.row(&[
            info.provider.clone(),
            if info.usable {
                "yes".into()
            } else {
                "no".into()
            },
            info.version.clone().unwrap_or_else(|| NONE.into()),
            info.path
                .as_deref()
                .map_or_else(|| NONE.into(), |path| tilde(path, home.as_deref())),
        ]);
    }
    print_table(context, &table)?;
    for info in &list.providers {
        if let Some(blocker) = &info.blocker {
            context
                .out
                .line(&format!("{}: {}", info.provider, clipped(blocker, 400)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ade_protocol::action::PermissionMode;

    use super::*;
    use crate::resolve::tests::info;

    #[test]
    fn the_table_tells_what_is_known_and_marks_what_is_not() {
        let mut busy = info("ses_0197-aaaa-bbbb-cccc-00000000000a");
        busy.state = "awaiting_first_event".into();
        busy.queued = 2;
        busy.permission = PermissionMode::FullAuto;
        busy.worker_pid = Some(4711);
        busy.lease_held = true;
        busy.memory_bytes = Some(5 << 20);
        busy.cpu_percent = Some(12.4);
        busy.last_event_at = Some("2026-01-01T00:00:00.500Z".into());
        let mut failed = info("ses_2");
        failed.last_status = Some(TurnStatus::Failed);
        let now = "2026-01-01T00:01:00Z".parse().expect("a moment");
        let lines = ps_table(&[busy, failed], Some("/home/me"), now).lines();
        assert_eq!(
            lines,
            [
                "SESSION       LANE   PROVIDER  MODE       STATE                    GEN  WORKER  EVENTS  LAST  CPU      MEM  LEASE",
                "00000000000a  /lane  scripted  full-auto  awaiting first event +2    0    4711       0   60s  12%  5.0 MiB  held",
                "ses_2         /lane  scripted  default    idle (failed)              0       –       0     –    –        –  –",
            ]
        );
    }
}
