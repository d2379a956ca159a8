//! `ade lease`: looking at leases, holding and breaking them. Works without a
//! broker.

mod breaking;
mod hold;
mod signals;
mod tree;

pub(super) use hold::{follow, refusal, run as hold};

use std::path::{Path, PathBuf};

use ade_broker::home::Home;
use ade_leases::lease::{Status, status};
use ade_leases::owner::{self, Owner};
use ade_leases::record::Record;
use serde_json::{Value, json};

use crate::args::Lease;
use crate::context::Context;
use crate::error::CommandError;
use crate::output::Style;

/// Runs one of the lease commands.
pub(super) fn run(context: &Context, command: &Lease) -> Result<(), CommandError> {
    match command {
        Lease::Status { file } => show(context, context.home().ok().as_ref(), file),
        Lease::Break { file, force } => breaking::run(context, file, *force),
        // It waits, so it runs with the others that do.
        Lease::Hold(_) => Ok(()),
    }
}

/// What is told about a lease.
struct Told {
    state: &'static str,
    style: Style,
    sentence: String,
    record: Option<Record>,
    remedy: Option<String>,
}

/// The session file that is meant, as an absolute path. Who names the file of a
/// lease or of an owner means the session that it stands beside.
///
/// # Errors
/// The folder is not there, or the path is no file's.
pub(super) fn session_file(context: &Context, given: &Path) -> Result<PathBuf, CommandError> {
    let mut file = std::path::absolute(given).map_err(|e| {
        CommandError::usage(format!("the path {} cannot be used", given.display())).because(e)
    })?;
    let beside = file
        .extension()
        .is_some_and(|last| last == "ade-lease" || last == "ade-owner");
    if beside {
        file.set_extension("");
        let text = format!("{} stands beside {}", given.display(), file.display());
        context.out.note(Style::Dim, &text);
    }
    let folder = file.parent().unwrap_or(&file);
    let problem = if file.is_dir() {
        format!("{} is a folder and no session file", file.display())
    } else if !folder.is_dir() {
        format!("the folder {} is not there", folder.display())
    } else {
        return Ok(file);
    };
    Err(
        CommandError::new("not_found", ade_protocol::exit::USAGE, problem)
            .hint("`ade store list` lists the session files there are"),
    )
}

fn show(context: &Context, home: Option<&Home>, file: &Path) -> Result<(), CommandError> {
    let file = session_file(context, file)?;
    let exists = file.exists();
    let mut told = tell(status(&file), home);
    if !exists {
        told.sentence.push_str("; there is no such file yet");
    }
    let owner = owner::read(&file);
    if context.out.json() {
        return context.out.document(&json!({
            "file": file.to_string_lossy(),
            "exists": exists,
            "state": told.state,
            "explanation": told.sentence,
            "holder": told.record,
            "remedy": told.remedy,
            "owner": owner_json(&owner),
        }));
    }
    let out = &context.out;
    out.line(&format!(
        "{}  {}",
        out.paint(told.style, told.state),
        told.sentence
    ))?;
    if let Some(record) = &told.record {
        for (label, value) in facts(record) {
            out.line(&format!("  {label:<8} {value}"))?;
        }
    }
    let owner = match &owner {
        Ok(Owner::Owned(claim)) => format!("{} {}", claim.kind, claim.id),
        Ok(Owner::None) => "nobody".to_owned(),
        Ok(Owner::Damaged(_)) => "not to be told: the owner file is damaged".to_owned(),
        Err(error) => format!("not to be told: {error}"),
    };
    out.line(&format!("  {:<8} {owner}", "owner"))?;
    if let Some(remedy) = &told.remedy {
        out.line(&format!(
            "  {} {remedy}",
            out.paint(Style::Accent, "to free it:")
        ))?;
    }
    Ok(())
}

fn facts(record: &Record) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let kind = record.owner.map_or("unknown", |owner| owner.as_str());
    facts.push(("holder", format!("{kind} {}", record.owner_id)));
    if let Some(pid) = record.pid {
        facts.push(("pid", pid.to_string()));
    }
    facts.push(("since", record.acquired_at.clone()));
    if let Some(host) = &record.host {
        facts.push(("host", host.clone()));
    }
    facts
}

fn tell(status: Status, home: Option<&Home>) -> Told {
    let told = |state, style, sentence: String, record, remedy: Option<String>| Told {
        state,
        style,
        sentence,
        record,
        remedy,
    };
    match status {
        Status::Free => told(
            "free",
            Style::Good,
            "nobody writes this session".into(),
            None,
            None,
        ),
        Status::Held { record, proof } => {
            let remedy = record.as_ref().map_or_else(
                || "end the process that keeps the file locked".to_owned(),
                |record| freeing(record, home),
            );
            let sentence = format!("somebody writes this session: {proof}");
            told("held", Style::Warn, sentence, record, Some(remedy))
        }
        Status::Dead { record, proof } => told(
            "dead",
            Style::Good,
            format!("its holder is gone ({proof}); the next writer takes it"),
            Some(record),
            Some("nothing to do".into()),
        ),
        Status::Damaged => told(
            "damaged",
            Style::Good,
            "the lease file is no record and nobody writes it; the next writer takes it".into(),
            None,
            Some("nothing to do".into()),
        ),
        Status::Unknown { record, why } => told(
            "unknown",
            Style::Warn,
            format!("whether its holder lives can't be told from here: {why}"),
            record,
            Some("look where it was written; what may be alive is never taken".into()),
        ),
        Status::MovedAside(error) => told(
            "held",
            Style::Warn,
            error.to_string(),
            None,
            Some("wait a moment: another program is reclaiming it".into()),
        ),
        Status::NotAFile(kind) => told(
            "obstructed",
            Style::Bad,
            format!("at the lease's path stands {kind}, which is no lease"),
            None,
            Some("move it away".into()),
        ),
        Status::Unreadable(error) => told("unreadable", Style::Bad, error.to_string(), None, None),
    }
}

/// How to end a live holder. Only a worker of this home's broker can be stopped
/// by a command of ours.
fn freeing(record: &Record, home: Option<&Home>) -> String {
    let ours = home.is_some_and(|home| {
        let journals = ade_broker::journal::read_all(home).unwrap_or_default();
        journals.entries.iter().any(|entry| {
            let pid = entry.identity.as_ref().map(|worker| worker.pid.get());
            pid.is_some_and(|pid| {
                record
                    .pid
                    .is_some_and(|holder| i64::from(holder) == i64::from(pid))
            })
        })
    });
    match record.pid {
        _ if ours => format!("ade chat stop {}", record.owner_id),
        Some(pid) if record.owner_id.starts_with("ses_") => format!(
            "`ade chat stop {}` with the ADE_HOME of that chat, or end its process {pid}",
            record.owner_id
        ),
        Some(pid) => format!("end the {} session of process {pid}", kind(record)),
        None => "end the program that holds it".into(),
    }
}

fn kind(record: &Record) -> &'static str {
    record.owner.map_or("unknown", |owner| owner.as_str())
}

fn owner_json<E: std::fmt::Display>(owner: &Result<Owner, E>) -> Value {
    match owner {
        Ok(Owner::Owned(claim)) => {
            json!({"owner": claim.kind.as_str(), "ownerSessionId": claim.id})
        }
        Ok(Owner::None) => Value::Null,
        Ok(Owner::Damaged(_)) => json!({"error": "the owner file is damaged"}),
        Err(error) => json!({"error": error.to_string()}),
    }
}
