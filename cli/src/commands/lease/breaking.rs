//! `ade lease break`: removing a lease by hand.

use std::path::Path;

use ade_leases::lease::{BreakError, Broken, Status, break_by_force, break_dead, status};
use ade_protocol::exit;
use serde_json::json;

use super::hold::refusal;
use crate::context::Context;
use crate::error::CommandError;
use crate::output::Style;

pub(super) fn run(context: &Context, file: &Path, force: bool) -> Result<(), CommandError> {
    let file = super::session_file(context, file)?;
    let (broken, warning) = if force {
        by_force(&file)?
    } else {
        (break_dead(&file).map_err(|error| refused(&error))?, None)
    };
    let holder = broken.as_ref().and_then(|broken| broken.record.as_ref());
    if context.out.json() {
        return context.out.document(&json!({
            "file": file.to_string_lossy(),
            "broken": broken.is_some(),
            "holder": holder,
            "warning": warning,
        }));
    }
    let Some(Broken { path, record }) = &broken else {
        return context.out.line("nothing to break: there is no lease");
    };
    let whose = record.as_ref().map_or_else(
        || "a damaged one".to_owned(),
        |record| format!("of {record}"),
    );
    context
        .out
        .line(&format!("removed  {} ({whose})", path.display()))?;
    if let Some(warning) = warning {
        context.out.must_note(Style::Warn, &warning);
    }
    Ok(())
}

/// Breaks what is seen now and nothing that comes after. Says what a living
/// holder does then.
fn by_force(file: &Path) -> Result<(Option<Broken>, Option<String>), CommandError> {
    let (token, warning) = match status(file) {
        Status::Free | Status::Damaged | Status::Dead { .. } => {
            return Ok((break_dead(file).map_err(|error| refused(&error))?, None));
        }
        Status::Held { record, proof } => {
            let warning = format!(
                "its holder lives ({proof}): if it is of ade it stops writing within a second, if not, \
                 end it before anything else writes the session"
            );
            (record.map(|record| record.token), warning)
        }
        Status::Unknown { record, why } => {
            let warning = format!("nobody knows whether its holder lives: {why}");
            (record.map(|record| record.token), warning)
        }
        Status::MovedAside(error) | Status::Unreadable(error) => return Err(refusal(&error)),
        Status::NotAFile(kind) => {
            let message = format!("at the lease's path stands {kind}, which is not removed");
            return Err(CommandError::failed(message).hint("move it away yourself"));
        }
    };
    let broken = break_by_force(file, token.as_deref()).map_err(|error| refused(&error))?;
    let warning = broken.as_ref().map(|_| warning);
    Ok((broken, warning))
}

fn refused(error: &BreakError) -> CommandError {
    match error {
        BreakError::Held(_) => CommandError::new("held", exit::HELD, error.to_string())
            .hint("--force removes it all the same; see `ade lease break --help`"),
        BreakError::Changed { .. } => CommandError::failed(error.to_string()),
        BreakError::Other(error) => refusal(error),
    }
}
