//! Getting a worker: one task, with a bound on each step.
//!
//! Steps: the departing worker of the session is gone → a place is free → the
//! provider can be used → the worker is spawned (its journal is on disk before)
//! → it says `hello` → `attach` → `init` → ready. Whatever fails names itself,
//! and what was started is ended again.

use std::sync::Arc;
use std::time::Duration;

use ade_protocol::boot::{HostCommand, WorkerBoot};
use ade_protocol::event::ErrorCategory;
use ade_protocol::frame::{
    Attach, FromWorker, Hello, Init, Lifecycle, Ready, Request, Response, ToWorker, code,
};
use ade_protocol::strict;
use ade_protocol::{Generation, PROTOCOL_VERSION, RequestId, Seq, SessionId, WorkerId};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::depart::{Way, wait_departing};
use super::escort::{Escort, Process};
use super::figures;
use super::place::{Line, a_place_with_room};
use crate::classify::{self, AGENT_NOT_FOUND};
use crate::clock;
use crate::link::{Connection, Link, LinkIn};
use crate::pool::Place;
use crate::providers::{Launch, LaunchSpec};
use crate::shared::Shared;
use crate::spawn::WorkerSpec;
use crate::state::SessionRow;
use crate::turn::Failure;

/// Bounds of the steps.
mod bound {
    use std::time::Duration;

    /// Spawned until `hello`: a loaded machine starts processes slowly.
    pub(super) const HELLO: Duration = Duration::from_secs(15);
    /// `attach` until its response.
    pub(super) const ATTACH: Duration = Duration::from_secs(5);
    /// `init` until its response: the contract's 30 s and the way there.
    pub(super) const INIT: Duration = Duration::from_secs(32);
}

/// What a start needs.
pub(super) struct Plan {
    pub(super) shared: Arc<Shared>,
    pub(super) row: SessionRow,
    pub(super) pause: Duration,
    pub(super) departing: Option<watch::Receiver<Way>>,
    /// Hears where the start stands in the line for a worker.
    pub(super) line: Line,
    pub(super) cancel: CancellationToken,
}

impl Plan {
    /// Takes up a change of the permission that came while the start waited.
    async fn refresh(&mut self) {
        let session = self.row.session_id.clone();
        let row = self.shared.state.run(move |state| state.session(&session));
        if let Ok(Some(row)) = row.await {
            (self.row.permission, self.row.policy) = (row.permission, row.policy);
        }
    }
}

/// A worker that is ready.
pub(crate) struct Started {
    pub(super) generation: Generation,
    pub(super) process: Process,
    pub(super) link: Link,
    pub(super) reconnects: mpsc::Receiver<Connection>,
    pub(super) ready: Ready,
    pub(super) host_pid: Option<i32>,
    pub(super) lease_held: bool,
    /// Place among all workers; free again when the tree is dead.
    pub(super) place: Place,
    /// What it was started with; not known of a worker that an older ade started.
    pub(super) spec: Option<LaunchSpec>,
    /// Where the worker of another broker stood.
    pub(super) resumed: Option<super::adopt::Resumed>,
}

/// Runs a plan to its end.
pub(super) async fn run(plan: Plan) -> Result<Box<Started>, Failure> {
    let cancel = plan.cancel.clone();
    let early = async {
        wait_departing(&plan).await?;
        tokio::time::sleep(plan.pause).await;
        Ok(a_place_with_room(&plan).await)
    };
    let place = tokio::select! {
        () = cancel.cancelled() => return Err(cancelled()),
        place = early => place?,
    };
    let mut plan = plan;
    plan.refresh().await;
    let launch = launch(&plan).await?;
    let started = spawn(&plan, &launch).await?;
    let Spawned {
        generation,
        process,
        mut connections,
    } = started;
    let greeted = tokio::select! {
        () = cancel.cancelled() => Err(cancelled()),
        greeted = greet(&plan, &process, &mut connections, launch.init) => greeted,
    };
    // From here on it is one that runs, or one that goes.
    place.started();
    match greeted {
        Ok(greeted) => Ok(Box::new(Started {
            generation,
            process,
            link: greeted.link,
            reconnects: connections,
            ready: greeted.ready,
            host_pid: greeted.host_pid,
            lease_held: greeted.lease_held,
            place,
            spec: Some(launch.spec),
            resumed: None,
        })),
        Err(failure) => {
            // The link was dropped or never came: the worker is told by signal.
            let timing = plan.shared.config.worker_timing(&plan.row.provider);
            Escort::new(&plan.shared, process, timing, place, &plan.row)
                .depart()
                .await
                .leave();
            Err(failure)
        }
    }
}

pub(super) fn cancelled() -> Failure {
    Failure::new(
        "stopping",
        ErrorCategory::Unknown,
        "the start was cancelled",
    )
}

/// How the host is started. Looks at the disk and may ask Node for its version.
async fn launch(plan: &Plan) -> Result<Launch, Failure> {
    let providers = Arc::clone(&plan.shared.providers);
    let row = plan.row.clone();
    let launched = tokio::task::spawn_blocking(move || providers.launch(&row)).await;
    match launched {
        Ok(Ok(launch)) => Ok(launch),
        Ok(Err(error)) => {
            let detail = error.hints().join("\n");
            let failure = Failure::new(
                "provider_not_usable",
                ErrorCategory::NotFound,
                error.to_string(),
            );
            Err(if detail.is_empty() {
                failure
            } else {
                failure.with_detail(detail)
            })
        }
        Err(_) => Err(Failure::new(
            "start_failed",
            ErrorCategory::Unknown,
            "looking for the provider failed unexpectedly",
        )),
    }
}

struct Spawned {
    generation: Generation,
    process: Process,
    connections: mpsc::Receiver<Connection>,
}

async fn spawn(plan: &Plan, launch: &Launch) -> Result<Spawned, Failure> {
    let shared = &plan.shared;
    let session = plan.row.session_id.clone();
    let asked = session.clone();
    let generation = shared
        .state
        .run(move |state| state.next_generation(&asked))
        .await
        .map_err(|error| Failure::new("state", ErrorCategory::Unknown, error.to_string()))?;
    let worker_id = WorkerId::generate();
    let token = secret();
    let mark = secret();
    let connections = shared.registry.expect(&worker_id, &token);
    let spec = WorkerSpec {
        boot: boot(plan, &worker_id, token, generation, launch.host.clone()),
        env: shared
            .providers
            .worker_env(&plan.row.provider, &launch.env_names, &mark),
        mark: mark.clone(),
        fixed: launch.spec.clone(),
    };
    match shared.spawner.spawn(spec).await {
        Ok(spawned) => {
            shared
                .registry
                .set_process(&worker_id, spawned.pid, &session);
            Ok(Spawned {
                generation,
                process: Process {
                    worker_id,
                    pid: spawned.pid,
                    identity: spawned.identity,
                    cgroup: spawned.cgroup,
                    mark,
                    exit: spawned.exit,
                },
                connections,
            })
        }
        Err(error) => {
            shared.registry.forget(&worker_id);
            let detail = error.hints().join("\n");
            let mut message = error.to_string();
            if let Some(source) = std::error::Error::source(&error) {
                message = format!("{message}: {source}");
            }
            // Of no category that counts against the agent: it never ran.
            let failure = Failure::new("start_failed", ErrorCategory::Unknown, message);
            Err(if detail.is_empty() {
                failure
            } else {
                failure.with_detail(detail)
            })
        }
    }
}

fn boot(
    plan: &Plan,
    worker_id: &WorkerId,
    token: String,
    generation: Generation,
    host: HostCommand,
) -> WorkerBoot {
    WorkerBoot {
        protocol_version: PROTOCOL_VERSION,
        worker_id: worker_id.clone(),
        token,
        session_id: plan.row.session_id.clone(),
        generation,
        provider: plan.row.provider.clone(),
        socket: plan.shared.home.workers_socket().display().to_string(),
        home: plan.shared.home.root().display().to_string(),
        host,
        cgroup: None,
        hidden: None,
        timing: plan.shared.config.worker_timing(&plan.row.provider),
    }
}

/// 244 random bits as text; nobody guesses it.
fn secret() -> String {
    format!(
        "{}{}",
        uuid::Uuid::new_v4().simple(),
        uuid::Uuid::new_v4().simple()
    )
}

struct Greeted {
    link: Link,
    ready: Ready,
    host_pid: Option<i32>,
    lease_held: bool,
}

/// `hello`, `attach`, `init`, ready.
async fn greet(
    plan: &Plan,
    process: &Process,
    connections: &mut mpsc::Receiver<Connection>,
    init: Init,
) -> Result<Greeted, Failure> {
    let mut exit = process.exit.clone();
    let connection = tokio::select! {
        biased;
        connection = connections.recv() => connection,
        _ = exit.wait_for(Option::is_some) => {
            // It may have said why on its way out; give the words to the user.
            return Err(figures::exited(&plan.shared.home, process, None));
        }
        () = clock::time_is_up(clock::now() + bound::HELLO) => None,
    };
    let Some(connection) = connection else {
        if let Some(failure) = of_another_version(&plan.shared, process) {
            return Err(failure);
        }
        let message = format!("the worker (pid {}) did not report in time", process.pid);
        return Err(Failure::new(
            "start_failed",
            ErrorCategory::TimedOut,
            message,
        ));
    };
    let (hello, mut link) = connection.open();
    check_hello(&hello, &plan.row.session_id)?;
    let attach = Request::new(Attach {
        fence: plan.shared.fence,
        ack: Seq(0),
    });
    let attach_id = attach.request_id.clone();
    let mut progress = Progress::default();
    let attach = ToWorker::Attach(attach);
    ask(&mut link, &attach, &attach_id, bound::ATTACH, &mut progress).await?;
    let init = Request::new(Box::new(init));
    let init_id = init.request_id.clone();
    let init = ToWorker::Init(init);
    let answer = ask(&mut link, &init, &init_id, bound::INIT, &mut progress).await?;
    let ready = answer
        .result
        .as_deref()
        .and_then(|raw| strict::from_str::<Ready>(raw.get()).ok())
        .ok_or_else(|| protocol("the answer to `init` is not what `ready` promises"))?;
    Ok(Greeted {
        link,
        ready,
        host_pid: progress.host_pid,
        lease_held: progress.lease_held,
    })
}

/// Why a worker that came is not served, where it speaks another version.
pub(super) fn of_another_version(shared: &Shared, process: &Process) -> Option<Failure> {
    let fault = shared.registry.fault(&process.worker_id)?;
    Some(protocol(&format!(
        "the worker (pid {}) is of another version of ade: {fault}; `ade serve --replace` starts a \
         broker of the installed version",
        process.pid
    )))
}

fn check_hello(hello: &Hello, session: &SessionId) -> Result<(), Failure> {
    if hello.session_key == *session {
        return Ok(());
    }
    Err(protocol("the worker serves another session"))
}

fn protocol(message: &str) -> Failure {
    Failure::new(code::PROTOCOL_ERROR, ErrorCategory::Protocol, message)
}

/// What lifecycle frames told on the way.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) host_pid: Option<i32>,
    pub(super) lease_held: bool,
}

impl Progress {
    pub(super) fn note(&mut self, lifecycle: &Lifecycle) {
        let Some(detail) = &lifecycle.detail else {
            return;
        };
        if let Some(pid) = detail.get("hostPid").and_then(serde_json::Value::as_i64) {
            self.host_pid = i32::try_from(pid).ok();
        }
        if let Some(held) = detail.get("leaseHeld").and_then(serde_json::Value::as_bool) {
            self.lease_held = held;
        }
    }
}

/// Sends one request and waits for its response; other frames are noted.
pub(super) async fn ask(
    link: &mut Link,
    frame: &ToWorker,
    id: &RequestId,
    within: Duration,
    progress: &mut Progress,
) -> Result<Response, Failure> {
    if !link.send(frame) {
        return Err(protocol("the worker does not read what it is told"));
    }
    let until = clock::now() + within;
    loop {
        let Some(next) = clock::in_time(until, link.incoming.recv()).await else {
            let message = format!("the worker did not answer `{}` in time", frame.kind());
            return Err(Failure::new(
                code::TIMED_OUT,
                ErrorCategory::TimedOut,
                message,
            ));
        };
        match next {
            None => {
                let message = format!("the worker left before it answered `{}`", frame.kind());
                return Err(Failure::new("start_failed", ErrorCategory::Exited, message));
            }
            Some(LinkIn::Broken(why)) => return Err(protocol(&why)),
            Some(LinkIn::Events(_)) => {}
            Some(LinkIn::Frame(frame)) => match *frame {
                FromWorker::Response(response) if response.request_id == *id => {
                    return if response.ok {
                        Ok(response)
                    } else {
                        Err(refused(&response))
                    };
                }
                FromWorker::Lifecycle(lifecycle) => progress.note(&lifecycle),
                FromWorker::Log(log) => tracing::info!(level = log.level, "{}", log.message),
                _ => {}
            },
        }
    }
}

/// A response that says no, as a failure.
pub(super) fn refused(response: &Response) -> Failure {
    let kind = response
        .error_code
        .clone()
        .unwrap_or_else(|| "failed".into());
    let message = response
        .error
        .clone()
        .unwrap_or_else(|| "the worker gave no reason".into());
    let (kind, category) = meaning(&kind, &message, response);
    let failure = Failure::new(kind, category, message);
    match response
        .detail
        .as_ref()
        .and_then(|detail| detail.get("stderr"))
    {
        Some(serde_json::Value::String(stderr)) if !stderr.is_empty() => {
            failure.with_detail(stderr.clone())
        }
        _ => failure,
    }
}

/// What a refusal is called, and its class.
fn meaning<'a>(kind: &'a str, message: &str, response: &Response) -> (&'a str, ErrorCategory) {
    let category = match kind {
        code::HELD | code::LEASE_LOST => ErrorCategory::Lease,
        code::HOST_EXITED | code::HOST_NOT_STARTED => ErrorCategory::Exited,
        code::PROTOCOL_ERROR | code::FRAME_TOO_LONG => ErrorCategory::Protocol,
        code::TIMED_OUT => ErrorCategory::TimedOut,
        code::BUSY => ErrorCategory::Busy,
        AGENT_NOT_FOUND
        | code::MODEL_NOT_FOUND
        | code::SESSION_NOT_FOUND
        | code::SESSION_CHANGED
        | code::LANE_MISSING => ErrorCategory::NotFound,
        code::NO_MODEL => ErrorCategory::Auth,
        _ => {
            // Some say it in the error's text, some in its details.
            let code = response
                .detail
                .as_ref()
                .and_then(|detail| detail.get("code"));
            let code = code.and_then(serde_json::Value::as_str);
            return match code {
                Some(AGENT_NOT_FOUND) => (AGENT_NOT_FOUND, ErrorCategory::NotFound),
                _ => classify::judge(kind, message),
            };
        }
    };
    (kind, category)
}
