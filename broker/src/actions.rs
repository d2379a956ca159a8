//! What each action does. The list itself, with schemas and roles, is
//! [`ade_protocol::action::ACTIONS`]; a name that is not on it is denied.

use std::sync::Arc;

use ade_protocol::action::{
    ACTIONS, BrokerStatus, CardAnswer, CardAnswered, ChatAbort, ChatCompact, ChatCreate,
    ChatInterrupt, ChatModel, ChatPermission, ChatQueueCancel, ChatQueueEdit, ChatRef, ChatSend,
    ChatShow, ChatShown, ChatSteer, ChatThinking, Nothing, ProviderList, SessionInfo, SessionList,
    name,
};
use ade_protocol::rpc::{self, RpcError, RuntimeInfo};
use ade_protocol::strict;
use ade_protocol::{Seq, SessionId, exit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::manager::{Manager, transcript_error};
use crate::roles::Standing;
use crate::session::{Ask, Command, QueueAsk};
use crate::transcript;

/// Longest piece of a transcript that one `chat.show` reads, in bytes.
const SHOW_BYTES: usize = 8 * 1024 * 1024;

/// Who calls.
pub struct Caller {
    /// Name for other people ("answered by …").
    pub name: String,
    /// What it may do.
    pub standing: Standing,
}

/// What the broker is, for `broker.status`.
pub struct About {
    /// Which broker.
    pub runtime: RuntimeInfo,
    /// When it started.
    pub started_at: String,
    /// Control socket.
    pub socket: String,
    /// Connected clients.
    pub clients: std::sync::atomic::AtomicUsize,
    /// Ends every turn and worker, then the broker.
    pub stop: tokio_util::sync::CancellationToken,
    /// Ends the broker and leaves the workers to the next one.
    pub handover: tokio_util::sync::CancellationToken,
}

/// The exit code that a kind of failure stands for.
#[must_use]
pub fn exit_code(kind: &str) -> u8 {
    match kind {
        "held" | "lease_lost" => exit::HELD,
        "provider_not_usable"
        | "no_model"
        | "no_auth"
        | "stale_token"
        | "model_not_found"
        | "host_not_started"
        | "package_missing"
        | "package_unreadable"
        | "version_unsupported"
        | "node_too_old" => exit::PROVIDER_NOT_USABLE,
        "timed_out" | "silent" => exit::TIMED_OUT,
        "denied" => exit::DENIED,
        "not_found" | "lane_missing" | "invalid" => exit::USAGE,
        _ => exit::FAILED,
    }
}

/// Does one action.
///
/// # Errors
/// Why it was refused or failed.
pub async fn call(
    manager: &Arc<Manager>,
    about: &About,
    caller: &Caller,
    action: &str,
    arguments: Value,
) -> Result<Box<RawValue>, RpcError> {
    let Some(spec) = ACTIONS.iter().find(|spec| spec.name == action) else {
        let message = format!("there is no action {action:?}");
        return Err(RpcError {
            code: rpc::METHOD_NOT_FOUND,
            ..RpcError::failed("not_found", exit::USAGE, message)
        }
        .hint("`ade actions list` names them all"));
    };
    let role = caller.standing.role;
    if role < spec.role {
        tracing::warn!(action, client = caller.name, ?role, "denied");
        let message = format!(
            "{action} needs the role {:?}; this connection has {:?}",
            spec.role, role
        );
        return Err(RpcError::failed(
            "denied",
            exit::DENIED,
            message.to_lowercase(),
        ));
    }
    let denied = |refused: RpcError| {
        tracing::warn!(action, client = caller.name, ?role, "denied");
        refused
    };
    let may = caller.standing.may_tell(manager, action, &arguments);
    may.map_err(denied)?;
    match action {
        name::CHAT_CREATE => {
            let request: ChatCreate = arguments_of(arguments)?;
            let may = caller.standing.may_create(manager, request.permission);
            may.map_err(denied)?;
            answer(&manager.create(request).await?)
        }
        name::CHAT_SHOW => answer(&show(manager, &arguments_of(arguments)?).await?),
        name::CHAT_STOP => {
            let ChatRef { session_id } = arguments_of(arguments)?;
            let session = manager.session(&session_id)?;
            session.stop().await;
            answer(&session.view().info)
        }
        name::CHAT_DELETE => {
            let ChatRef { session_id } = arguments_of(arguments)?;
            manager.delete(&session_id).await?;
            answer(&Nothing {})
        }
        name::SESSIONS_LIST => answer(&SessionList {
            sessions: list(manager).await,
        }),
        name::CARDS_LIST => answer(&manager.card_list()),
        name::CARDS_ANSWER => {
            let CardAnswer {
                card_id,
                session_id,
                answer: given,
            } = arguments_of(arguments)?;
            manager
                .answer(session_id.as_ref(), &card_id, given, &caller.name)
                .await?;
            answer(&CardAnswered { card_id })
        }
        name::PROVIDERS_LIST => {
            let providers = Arc::clone(&manager.shared().providers);
            let listed = tokio::task::spawn_blocking(move || providers.list()).await;
            let providers = listed.map_err(|_| {
                RpcError::failed("failed", exit::FAILED, "looking for providers failed")
            })?;
            answer(&ProviderList { providers })
        }
        name::BROKER_STATUS => answer(&status(manager, about)),
        name::BROKER_HANDOVER => {
            about.handover.cancel();
            answer(&Nothing {})
        }
        name::BROKER_STOP => {
            about.stop.cancel();
            answer(&Nothing {})
        }
        _ => chat(manager, caller, action, arguments).await,
    }
}

/// The actions that a session's actor carries out.
async fn chat(
    manager: &Manager,
    caller: &Caller,
    action: &str,
    arguments: Value,
) -> Result<Box<RawValue>, RpcError> {
    match action {
        name::CHAT_SEND => {
            let ChatSend {
                session_id,
                prompt,
                retry,
            } = arguments_of(arguments)?;
            let session = manager.session(&session_id)?;
            answer(
                &session
                    .call(|reply| Command::Send {
                        prompt,
                        retry,
                        reply,
                    })
                    .await?,
            )
        }
        name::CHAT_STEER => {
            let ChatSteer { session_id, prompt } = arguments_of(arguments)?;
            let session = manager.session(&session_id)?;
            answer(
                &session
                    .call(|reply| Command::Steer { prompt, reply })
                    .await?,
            )
        }
        name::CHAT_ABORT => {
            let ChatAbort {
                session_id,
                turn_id,
            } = arguments_of(arguments)?;
            let session = manager.session(&session_id)?;
            answer(
                &session
                    .call(|reply| Command::Abort { turn_id, reply })
                    .await?,
            )
        }
        name::CHAT_RESET => {
            let ChatRef { session_id } = arguments_of(arguments)?;
            let session = manager.session(&session_id)?;
            session.call(|reply| Command::Reset { reply }).await?;
            answer(&session.view().info)
        }
        name::CHAT_MODEL => {
            let ChatModel { session_id, model } = arguments_of(arguments)?;
            crate::wanted::model(Some(&model))?;
            answer(&ask(manager, &session_id, Ask::Model(model)).await?)
        }
        name::CHAT_THINKING => {
            let ChatThinking { session_id, level } = arguments_of(arguments)?;
            answer(&ask(manager, &session_id, Ask::Thinking(level)).await?)
        }
        name::CHAT_PERMISSION => {
            let ChatPermission {
                session_id,
                permission: mode,
            } = arguments_of(arguments)?;
            let session = manager.session(&session_id)?;
            session
                .call(|reply| Command::Permit { mode, reply })
                .await?;
            answer(&session.view().info)
        }
        name::CHAT_CONTEXT => {
            let ChatRef { session_id } = arguments_of(arguments)?;
            let session = manager.session(&session_id)?;
            answer(&session.call(|reply| Command::Context { reply }).await?)
        }
        name::CHAT_COMPACT => {
            let ChatCompact {
                session_id,
                instructions,
            } = arguments_of(arguments)?;
            ask(manager, &session_id, Ask::Compact(instructions)).await?;
            answer(&Nothing {})
        }
        _ => queue(manager, caller, action, arguments).await,
    }
}

/// The actions about messages that wait, and about going before them.
async fn queue(
    manager: &Manager,
    caller: &Caller,
    action: &str,
    arguments: Value,
) -> Result<Box<RawValue>, RpcError> {
    let (id, ask) = match action {
        name::CHAT_INTERRUPT => {
            let ChatInterrupt {
                session_id,
                prompt,
                mode,
            } = arguments_of(arguments)?;
            let session = manager.session(&session_id)?;
            let interrupted = session
                .call(|reply| Command::Interrupt {
                    prompt,
                    mode,
                    reply,
                })
                .await?;
            return answer(&interrupted);
        }
        name::CHAT_QUEUE => {
            let ChatRef { session_id } = arguments_of(arguments)?;
            (session_id, QueueAsk::List)
        }
        name::CHAT_QUEUE_EDIT => {
            let ChatQueueEdit {
                session_id,
                turn_id: turn,
                prompt,
            } = arguments_of(arguments)?;
            (session_id, QueueAsk::Edit { turn, prompt })
        }
        name::CHAT_QUEUE_CANCEL => {
            let ChatQueueCancel {
                session_id,
                turn_id,
            } = arguments_of(arguments)?;
            let by = caller.name.clone();
            let turn = turn_id;
            (session_id, QueueAsk::Cancel { turn, by })
        }
        name::CHAT_QUEUE_RECOVER => {
            let ChatRef { session_id } = arguments_of(arguments)?;
            (session_id, QueueAsk::Recover)
        }
        other => {
            let message = format!("{other} is listed and not implemented");
            return Err(RpcError::new(rpc::METHOD_NOT_FOUND, message));
        }
    };
    let session = manager.session(&id)?;
    answer(&session.call(|reply| Command::Queue { ask, reply }).await?)
}

async fn ask(manager: &Manager, id: &SessionId, ask: Ask) -> Result<SessionInfo, RpcError> {
    let session = manager.session(id)?;
    session.call(|reply| Command::Ask { ask, reply }).await?;
    Ok(session.view().info.clone())
}

async fn show(manager: &Manager, request: &ChatShow) -> Result<ChatShown, RpcError> {
    let session = manager.session(&request.session_id)?;
    let path = manager.shared().home.transcript(&request.session_id);
    let after = request.after;
    let limit = request.limit.clamp(1, 10_000);
    let head = manager.shared().hub.head(&request.session_id);
    let until = head.unwrap_or(Seq(u64::MAX));
    let read = tokio::task::spawn_blocking(move || {
        transcript::read_on(&path, None, after, until, SHOW_BYTES)
    });
    let failed = |why: String| RpcError::failed("transcript", exit::FAILED, why);
    let page = read
        .await
        .map_err(|error| failed(error.to_string()))?
        .map_err(|error| transcript_error(&error))?;
    if page.events.is_empty() && head.is_some_and(|head| head > after) {
        let path = manager.shared().home.transcript(&request.session_id);
        let message = format!(
            "the events of {} are not in {} any more: the file was removed or replaced",
            request.session_id,
            path.display()
        );
        return Err(RpcError::failed("transcript", exit::FAILED, message)
            .hint("put the file back if you have it; else the chat goes on in a new one"));
    }
    let more = !page.reached_end || page.events.len() > limit;
    let events = page
        .events
        .iter()
        .take(limit)
        .filter_map(|(_, line)| strict::from_slice(line).ok())
        .collect();
    Ok(ChatShown {
        session: session.view().info.clone(),
        events,
        more,
    })
}

/// All chats with what their processes use.
async fn list(manager: &Manager) -> Vec<SessionInfo> {
    let mut sessions = manager.infos();
    let workers: Vec<i32> = sessions
        .iter()
        .filter_map(|session| session.worker_pid)
        .collect();
    let usage = tokio::task::spawn_blocking(move || crate::usage::of_trees(&workers)).await;
    let usage = usage.unwrap_or_default();
    for session in &mut sessions {
        if let Some(used) = session.worker_pid.and_then(|pid| usage.get(&pid)) {
            session.cpu_percent = Some(used.cpu_percent);
            session.memory_bytes = Some(used.memory_bytes);
        }
    }
    sessions
}

fn status(manager: &Manager, about: &About) -> BrokerStatus {
    let views: Vec<_> = manager
        .all()
        .iter()
        .map(crate::session::Session::view)
        .collect();
    BrokerStatus {
        runtime: about.runtime.clone(),
        started_at: about.started_at.clone(),
        fence: manager.shared().fence,
        socket: about.socket.clone(),
        sessions: views.len() + manager.unusable().len(),
        workers: views
            .iter()
            .filter(|view| view.info.worker_pid.is_some())
            .count(),
        turns: views
            .iter()
            .filter(|view| view.info.turn_id.is_some())
            .count(),
        open_cards: views.iter().map(|view| view.cards.len()).sum(),
        clients: about.clients.load(std::sync::atomic::Ordering::Relaxed),
        fds: crate::limits::fd_usage().unwrap_or((0, 0)),
        cgroup: Some(manager.shared().cgroups.about().to_owned()),
        config: manager.shared().config.values(),
    }
}

fn arguments_of<T: DeserializeOwned>(arguments: Value) -> Result<T, RpcError> {
    let arguments = if arguments.is_null() {
        Value::Object(serde_json::Map::new())
    } else {
        arguments
    };
    // Of a list it would say how many elements the object has.
    let read = if arguments.is_object() {
        strict::from_value(arguments).map_err(|error| error.to_string())
    } else {
        Err("they must be one JSON object".to_owned())
    };
    read.map_err(|why| {
        let message = format!("the arguments do not fit: {why}");
        RpcError {
            code: rpc::INVALID_PARAMS,
            ..RpcError::failed("invalid", exit::USAGE, message)
        }
        .hint("`ade actions list` shows their schema and an example")
    })
}

/// A result as it is sent.
///
/// # Errors
/// It cannot be written as JSON.
pub(crate) fn answer<T: Serialize>(result: &T) -> Result<Box<RawValue>, RpcError> {
    serde_json::value::to_raw_value(result)
        .map_err(|error| RpcError::failed("failed", exit::FAILED, error.to_string()))
}
