//! `ade lease`: looking at leases, holding and breaking them. Works without a
//! broker.

mod breaking;
mod hold;
mod signals;
mod tree;

pub(super) use hold::{follow, refusal, run as hold};

use std::path::Path;

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
        Lease::Status { file } => show(context, file),
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

fn show(context: &Context, file: &Path) -> Result<(), CommandError> {
    let file = std::path::absolute(file).map_err(|e| {
        CommandError::usage(format!("the path {} cannot be used", file.display())).because(e)
    })?;
    let told = tell(status(&file));
    let owner = owner::read(&file);
    if context.out.json() {
        return context.out.document(&json!({
            "file": file.to_string_lossy(),
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

fn tell(status: Status) -> Told {
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
                freeing,
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

/// How to end a live holder.
fn freeing(record: &Record) -> String {
    match (record.owner_id.strip_prefix("ses_"), record.pid) {
        (Some(_), _) => format!("ade chat stop {}", record.owner_id),
        (None, Some(pid)) => format!("end the {} session of process {pid}", kind(record)),
        (None, None) => "end the program that holds it".into(),
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
