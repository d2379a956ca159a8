//! Who a client is, and what an agent may ask for.
//!
//! The user who owns ADE_HOME may do everything; what runs below one of our
//! workers is an agent, whatever it says of itself. What each action needs is
//! said by [`ade_protocol::action::ACTIONS`]; here is what that list cannot say:
//! an agent makes no chat that may do more without a human than its own, and
//! tells none of that kind anything: what it may not do it cannot have done.
//!
//! What this module does not do: look at what a chat is told. Whoever may send
//! may send anything.

use std::iter;

use ade_leases::process::{self, Pid};
use ade_protocol::action::{PermissionMode, Role, name};
use ade_protocol::boot::MARK_ENV;
use ade_protocol::rpc::RpcError;
use ade_protocol::{SessionId, exit};
use serde_json::Value;

use crate::manager::Manager;
use crate::platform;
use crate::providers::is_no_looser;
use crate::socket::Peer;

/// What a connection is trusted with.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its role.
    pub role: Role,
    /// The chat of an agent, where it is known.
    pub chat: Option<SessionId>,
}

impl Standing {
    const USER: Self = Self {
        role: Role::Cto,
        chat: None,
    };

    fn agent(chat: Option<SessionId>) -> Self {
        let role = Role::Agent;
        Self { role, chat }
    }

    /// Whether a chat of this mode may be made.
    ///
    /// # Errors
    /// What the caller has and what it can do instead.
    pub fn may_create(&self, manager: &Manager, wanted: PermissionMode) -> Result<(), RpcError> {
        if self.role == Role::Cto {
            return Ok(());
        }
        let own = self.own_mode(manager);
        // Of one whose chat is not known only what any agent may.
        if is_no_looser(wanted, own.unwrap_or(PermissionMode::Plan)) {
            return Ok(());
        }
        let wanted = wanted.name();
        let own = own.map_or("a chat that is not known".to_owned(), |own| {
            format!("a chat with the permission {}", own.name())
        });
        let message = format!(
            "an agent of {own} cannot make one with the permission {wanted}, which does more \
             without asking"
        );
        Err(RpcError::failed("denied", exit::DENIED, message)
            .hint("leave the permission out: `default` and `plan` are always allowed")
            .hint(format!(
                "or let the user allow it: `ade chat permission CHAT {wanted}`"
            )))
    }

    fn own_mode(&self, manager: &Manager) -> Option<PermissionMode> {
        let chat = self.chat.as_ref().and_then(|id| manager.session(id).ok());
        chat.map(|chat| chat.view().info.permission)
    }

    /// Whether the chat that is named may be told something by this action. One
    /// that is not known is for others to find out.
    ///
    /// # Errors
    /// Which chat may do more than the caller's.
    pub fn may_tell(
        &self,
        manager: &Manager,
        action: &str,
        arguments: &Value,
    ) -> Result<(), RpcError> {
        if self.role == Role::Cto || !TELLING.contains(&action) {
            return Ok(());
        }
        let named = arguments.get("sessionId").and_then(Value::as_str);
        let Some(chat) = named.and_then(|id| manager.session(&id.into()).ok()) else {
            return Ok(());
        };
        let mode = chat.view().info.permission;
        let own = self.own_mode(manager).unwrap_or(PermissionMode::Plan);
        if is_no_looser(mode, own) {
            return Ok(());
        }
        let message = format!(
            "an agent cannot tell anything to a chat with the permission {}, which does more \
             without asking than its own",
            mode.name()
        );
        Err(RpcError::failed("denied", exit::DENIED, message)
            .hint("let the user say it, or make a chat of your own with `ade chat create`"))
    }
}

/// Actions that put words into a chat.
const TELLING: &[&str] = &[
    name::CHAT_SEND,
    name::CHAT_STEER,
    name::CHAT_INTERRUPT,
    name::CHAT_QUEUE_EDIT,
    name::CHAT_QUEUE_RECOVER,
];

/// Where a process stands among ours.
enum Above {
    Worker(SessionId),
    Broker,
    Nobody,
    Unknown,
}

/// What the other end of a connection is trusted with. An agent is recognised by
/// the process tree, and by the mark for what lost its place in it. When in
/// doubt it is an agent.
pub fn of(manager: &Manager, peer: Peer) -> Standing {
    let Some(pid) = peer.pid else {
        return Standing::agent(None);
    };
    if pid == 0 {
        // Workers, and what is below them, live in our pid namespace or in one
        // below it, where each process has a pid for us.
        return Standing::USER;
    }
    let marked = platform::started_with(pid, MARK_ENV) != Some(false);
    match above(manager, pid) {
        Above::Worker(chat) => Standing::agent(Some(chat)),
        Above::Nobody if !marked => Standing::USER,
        Above::Broker | Above::Nobody | Above::Unknown => Standing::agent(None),
    }
}

fn above(manager: &Manager, pid: i32) -> Above {
    let Ok(table) = process::table() else {
        return Above::Unknown;
    };
    let workers = manager.shared().registry.processes();
    let above = process::ancestors(pid, &table);
    for pid in iter::once(pid).chain(above.pids) {
        if let Some(chat) = workers.get(&pid) {
            return Above::Worker(chat.clone());
        }
        // We are the subreaper of what workers leave: our own tree is theirs too.
        if pid == Pid::own().get() {
            return Above::Broker;
        }
    }
    if above.circular {
        Above::Unknown
    } else {
        Above::Nobody
    }
}
