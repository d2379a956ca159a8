//! `ade owner`: whose a session file is. Works without a broker.

use std::path::Path;
use std::time::Duration;

use ade_leases::lease::{Request, acquire};
use ade_leases::owner::{self, Claim, OwnerError, Replace};
use serde_json::json;

use super::lease::{refusal, session_file};
use crate::args::{Owner, Writer};
use crate::context::Context;
use crate::error::CommandError;

/// How long a claim waits for whoever writes the session just now.
const WAIT: Duration = Duration::from_secs(1);

/// Runs one of the owner commands.
pub(super) fn run(context: &Context, command: &Owner) -> Result<(), CommandError> {
    match command {
        Owner::Show { file } => show(context, file),
        Owner::Claim {
            file,
            id,
            owner,
            force,
        } => claim(context, file, id, *owner, *force),
    }
}

fn show(context: &Context, file: &Path) -> Result<(), CommandError> {
    let file = &session_file(context, file)?;
    let path = owner::path(file);
    let owner = owner::read(file).map_err(|error| told(&error))?;
    let (state, claim, damage) = match &owner {
        owner::Owner::None => ("none", None, None),
        owner::Owner::Owned(claim) => ("owned", Some(claim), None),
        owner::Owner::Damaged(damage) => ("damaged", None, Some(damage.to_string())),
    };
    if context.out.json() {
        return context.out.document(&json!({
            "file": file.to_string_lossy(),
            "ownerFile": path.to_string_lossy(),
            "state": state,
            "owner": claim.map(|claim| claim.kind),
            "ownerSessionId": claim.map(|claim| &claim.id),
            "damage": damage,
        }));
    }
    let sentence = match (claim, damage) {
        (Some(claim), _) => format!("it belongs to {} {}", claim.kind, claim.id),
        (None, Some(damage)) => format!(
            "{}: {damage}; it was somebody's, so nobody takes it unasked",
            path.display()
        ),
        (None, None) => "it belongs to nobody; a terminal may pick it up".to_owned(),
    };
    context.out.line(&format!("{state}  {sentence}"))
}

fn claim(
    context: &Context,
    file: &Path,
    id: &str,
    kind: Writer,
    force: bool,
) -> Result<(), CommandError> {
    let file = &session_file(context, file)?;
    if !file.is_file() {
        let message = format!("{} is no session file", file.display());
        return Err(CommandError::usage(message));
    }
    let claim = Claim {
        kind: kind.into(),
        id: id.trim().to_owned(),
    };
    let request = Request {
        owner: kind.into(),
        owner_id: claim.id.clone(),
        wait: Some(WAIT),
    };
    let lease = acquire(file, &request).map_err(|error| refusal(&error))?;
    let replace = if force {
        Replace::Anything
    } else {
        Replace::Unowned
    };
    let claimed = owner::claim(file, &claim, replace);
    lease
        .release()
        .map_err(|e| CommandError::failed("the lease was not given back").because(e))?;
    claimed.map_err(|error| told(&error))?;
    show(context, file)
}

fn told(error: &OwnerError) -> CommandError {
    match error {
        OwnerError::BlankId => CommandError::usage(error.to_string()),
        OwnerError::Owned { .. } | OwnerError::Damaged { .. } => {
            CommandError::new("owned", ade_protocol::exit::DENIED, error.to_string())
                .hint("--force claims it all the same")
        }
        OwnerError::Read { .. } | OwnerError::Write { .. } => {
            let told = CommandError::failed(error.to_string());
            match std::error::Error::source(error) {
                Some(source) => told.because(source.to_string()),
                None => told,
            }
        }
    }
}
