//! Chats that are known and can't be used: listed, and tried again whenever
//! somebody asks for one.
//!
//! Its transcript can't be opened, for a folder stands there or it may not be
//! read: that can be mended at any time, and the chat is there again. Or its row in
//! `state.db` is damaged: then it can only be deleted.

use std::error::Error;
use std::sync::Arc;

use ade_protocol::action::SessionInfo;
use ade_protocol::exit;
use ade_protocol::rpc::RpcError;

use crate::session::{self, Left, Session};
use crate::shared::Shared;
use crate::state::{SessionRow, StateError};
use crate::transcript::TranscriptError;

/// The state of such a chat, for clients.
const STATE: &str = "unusable";

/// A chat that can't be used.
pub(super) struct Unusable {
    /// What is known of it.
    pub(super) row: SessionRow,
    left: Left,
    why: RpcError,
    /// Its row is what is wrong.
    damaged: bool,
}

impl Unusable {
    /// Its transcript can't be opened.
    pub(super) fn unreadable(row: SessionRow, left: Left, error: &TranscriptError) -> Self {
        let why = transcript_error(error)
            .hint("then the chat is there again; `ade chat delete` forgets it");
        Self {
            row,
            left,
            why,
            damaged: false,
        }
    }

    /// Its row is not what this version writes. `row`: what can be read of it.
    pub(super) fn damaged(row: SessionRow, left: Left, error: &StateError) -> Self {
        let why = RpcError::failed("state", exit::FAILED, error.to_string()).hint(
            "`ade chat delete` forgets the chat; its transcript's events and the agent's own \
             session file can be copied before",
        );
        Self {
            row,
            left,
            why,
            damaged: true,
        }
    }

    /// Tries again.
    pub(super) fn revive(&mut self, shared: &Arc<Shared>) -> Result<Session, RpcError> {
        if self.damaged {
            return Err(self.why.clone());
        }
        Session::start(shared, self.row.clone(), self.left.clone()).map_err(|error| {
            *self = Self::unreadable(self.row.clone(), self.left.clone(), &error);
            self.why.clone()
        })
    }

    /// The chat as clients see it.
    pub(super) fn info(&self) -> SessionInfo {
        SessionInfo {
            state: STATE.into(),
            last_error: Some(self.why.message.clone()),
            ..session::placeholder(&self.row)
        }
    }
}

/// An error of a transcript for a client.
pub(crate) fn transcript_error(error: &TranscriptError) -> RpcError {
    let message = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let told = RpcError::failed("transcript", error.exit_code(), message);
    error.hints().into_iter().fold(told, RpcError::hint)
}
