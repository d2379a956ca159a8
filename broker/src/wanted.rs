//! What is asked of a new chat, looked at before one is made: a chat that
//! cannot be is not left in anybody's list.
//!
//! What this module does not do: hold anything. A file can change hands between
//! the look and the first turn; there the worker's lease decides.

use std::path::{Path, PathBuf};

use ade_leases::owner::{self, Claim, Owner};
use ade_leases::record::OwnerKind;
use ade_protocol::rpc::RpcError;
use ade_protocol::{SessionId, exit};

/// The canonical path of a lane.
pub(crate) fn lane(text: &str) -> Result<String, RpcError> {
    let path = Path::new(text);
    absolute("lane", Some(text))?;
    let problem = |what: String| {
        RpcError::failed("lane_missing", exit::USAGE, what)
            .hint("a lane is an existing directory, such as a git worktree")
    };
    let real = std::fs::canonicalize(path)
        .map_err(|error| problem(format!("the lane {text} cannot be used: {error}")))?;
    if !real.is_dir() {
        return Err(problem(format!("the lane {text} is not a directory")));
    }
    real.into_os_string()
        .into_string()
        .map_err(|_| problem(format!("the path of the lane {text} is not UTF-8")))
}

/// A path that does not depend on anybody's current directory.
pub(crate) fn absolute(name: &str, value: Option<&str>) -> Result<(), RpcError> {
    match value {
        Some(path) if !Path::new(path).is_absolute() => Err(RpcError::failed(
            "invalid",
            exit::USAGE,
            format!("`{name}` must be an absolute path, not {path:?}"),
        )),
        _ => Ok(()),
    }
}

/// A model by its full name. Whether there is such a model only the agent knows.
pub(crate) fn model(name: Option<&str>) -> Result<(), RpcError> {
    let Some(name) = name else { return Ok(()) };
    match name.split_once('/') {
        Some((provider, id)) if !provider.trim().is_empty() && !id.trim().is_empty() => Ok(()),
        _ => Err(RpcError::failed(
            "invalid",
            exit::USAGE,
            format!("a model is named `provider/id`, not `{name}`"),
        )
        .hint("for example `anthropic/claude-sonnet-4-5`; the agent itself lists those it has")),
    }
}

/// An existing session file, by its canonical path.
pub(crate) fn session_file(text: &str) -> Result<PathBuf, RpcError> {
    absolute("sessionFile", Some(text))?;
    let problem = |what: String| {
        RpcError::failed("not_found", exit::USAGE, what)
            .hint("`ade store list` lists the session files there are")
    };
    let real = std::fs::canonicalize(text).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => problem(format!("there is no session file {text}")),
        _ => problem(format!("the session file {text} cannot be used: {error}")),
    })?;
    if !real.is_file() {
        return Err(problem(format!("the session file {text} is not a file")));
    }
    Ok(real)
}

/// Whose the session file is, when it is somebody's. A damaged owner file names
/// nobody; the worker keeps it and says so.
pub(crate) fn owner_of(file: &Path) -> Option<Claim> {
    match owner::read(file) {
        Ok(Owner::Owned(claim)) => Some(claim),
        _ => None,
    }
}

/// The refusal of a file that a chat of this broker goes on with.
pub(crate) fn owned_here(file: &Path, chat: &SessionId) -> RpcError {
    let message = format!(
        "the session file {} belongs to the chat {chat}",
        file.display()
    );
    RpcError::failed("owned", exit::DENIED, message)
        .hint(format!("go on with that chat: `ade attach {chat}`"))
        .hint(format!(
            "or give the file up first: `ade chat delete {chat}` forgets that chat and keeps the file"
        ))
}

/// The refusal of a file whose owner this broker does not know.
pub(crate) fn owned_elsewhere(file: &Path, claim: &Claim) -> RpcError {
    let owner = match claim.kind {
        OwnerKind::Sdk => "the chat",
        OwnerKind::Cli => "the terminal session",
    };
    let message = format!(
        "the session file {} belongs to {owner} {}, which this broker does not know",
        file.display(),
        claim.id
    );
    RpcError::failed("owned", exit::DENIED, message)
        .hint("--take-over (`takeOver`) makes it the new chat's for good, when nobody goes on with it there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_two_names() {
        for good in ["a/b", "openrouter/x/y:free"] {
            assert!(model(Some(good)).is_ok(), "{good}");
        }
        assert!(model(None).is_ok());
        for bad in ["", "nosuch", "/", "a/", "/b", " / "] {
            let error = model(Some(bad)).expect_err(bad);
            assert!(error.message.contains("provider/id"), "{error}");
        }
    }
}
