//! The worker's main loop. One task owns everything: the link to the broker,
//! the host, the lease, the turn, the cards and the ladder.
//!
//! The loop waits for the next thing and hands it to the module that knows it:
//! what the broker says ([`broker`]), what the host says ([`agent`]), how it
//! ends ([`ending`]), and what is due by the clock ([`clock`]).

mod agent;
mod broker;
mod clock;
mod ending;
mod file;
mod leasing;
mod signals;

use std::collections::{HashSet, VecDeque};
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};

use ade_leases::lease::Lease;
use ade_leases::process::ProcessIdentity;
use ade_leases::process::cgroup::Cgroup;
use ade_protocol::boot::{MARK_ENV, WorkerBoot};
use ade_protocol::frame::{
    ErrorFrame, FromWorker, Hello, Identity, Init, Lifecycle, Log, Ready, Response, WorkerState,
};
use ade_protocol::limits::NOISE_LOG;
use ade_protocol::{Fence, RequestId, TurnId};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::cards::Cards;
use crate::hidden::Hidden;
use crate::host::{Host, HostEvent};
use crate::ladder::Ladder;
use crate::link::{Link, LinkEvent};
use crate::mask::Masker;
use crate::outbox::Weight;
use crate::pending::Requests;
use crate::providers::Mapper;
use crate::tail::Tail;
use crate::tree;

pub(crate) use signals::Signals;
use signals::Told;

/// The running turn.
struct Turn {
    id: TurnId,
    /// Whether anything of it went to the broker.
    seen: bool,
    /// Whether the broker wants it ended.
    abort_asked: bool,
}

/// What was received and not understood; told in lifecycle details and logs.
#[derive(Default)]
struct Counts {
    noise: u64,
    malformed: u64,
    malformed_in_a_row: u32,
    stray: u64,
    unmapped: u64,
    /// Events that only the broker writes.
    refused: u64,
    /// Types that were logged already.
    unknown_types: HashSet<String>,
}

/// Everything of one worker.
pub(crate) struct Session {
    boot: WorkerBoot,
    mark: Option<String>,
    identity: ProcessIdentity,
    link: Link,
    attached: bool,
    fence: Fence,
    attach_by: Option<Instant>,
    detached_since: Option<Instant>,
    idle_since: Instant,
    host: Option<Host>,
    init: Option<Box<Init>>,
    init_id: Option<RequestId>,
    ready: Option<Ready>,
    /// Where the host and everything below it live, where that can be had.
    cgroup: Option<Cgroup>,
    /// Who hides below.
    hidden: Hidden,
    /// The agent's session file, where it keeps one.
    file: Option<file::SessionFile>,
    lease: Option<Lease>,
    watcher: Option<leasing::Watcher>,
    lease_check: Option<Instant>,
    owner_due: Option<PathBuf>,
    requests: Requests,
    turn: Option<Turn>,
    /// The last turn whose message came, running or not.
    last_turn: Option<TurnId>,
    /// Whether anything of a turn that has ended was seen.
    last_seen: bool,
    /// Steers that the agent took in the last turn, the newest
    /// [`WorkerState::MAX_STEERS`].
    steers_taken: VecDeque<RequestId>,
    cards: Cards,
    mapper: Mapper,
    masker: Masker,
    noise: Tail,
    counts: Counts,
    /// The turn in which a refused event was last told of.
    refused_in: Option<Option<TurnId>>,
    frames: u64,
    input_broken: Option<Instant>,
    output_closed: Option<Instant>,
    ladder: Ladder,
    /// Why it ends by itself, once it does.
    failed: Option<ending::Failure>,
    /// Whether somebody wants it to end.
    asked_to_end: bool,
    disposers: Vec<RequestId>,
    host_dispose: Option<RequestId>,
    survivors: Vec<ProcessIdentity>,
    /// When what survived SIGKILL is looked at again.
    vigil: Option<Instant>,
    finish_by: Option<Instant>,
    over: bool,
}

enum Wake {
    Told(Told),
    Tick,
    Lease,
    Link(LinkEvent),
    Host(HostEvent),
    Looked(Option<String>),
}

impl Session {
    /// A session that does nothing yet.
    ///
    /// # Errors
    /// This process can't be identified: `/proc` is not readable.
    pub(crate) fn new(boot: WorkerBoot) -> io::Result<Self> {
        let mut masker = Masker::default();
        masker.learn(&boot.token);
        let vars: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        masker.learn_env(
            vars.iter()
                .map(|(name, value)| (name.as_str(), value.as_str())),
        );
        let now = Instant::now();
        let identity = ProcessIdentity::current()?;
        let mark = std::env::var(MARK_ENV).ok();
        let named = mark.as_deref().map(|mark| (MARK_ENV, mark));
        Ok(Self {
            hidden: Hidden::new(&identity, named, boot.hidden.as_deref()),
            mark,
            identity,
            link: Link::new(PathBuf::from(&boot.socket)),
            attached: false,
            fence: Fence::default(),
            attach_by: None,
            detached_since: Some(now),
            idle_since: now,
            host: None,
            init: None,
            init_id: None,
            ready: None,
            cgroup: None,
            file: None,
            lease: None,
            watcher: None,
            lease_check: None,
            owner_due: None,
            requests: Requests::default(),
            turn: None,
            last_turn: None,
            last_seen: false,
            steers_taken: VecDeque::new(),
            cards: Cards::default(),
            mapper: Mapper::new(&boot.provider, boot.generation),
            masker,
            noise: Tail::new(NOISE_LOG),
            counts: Counts::default(),
            refused_in: None,
            frames: 0,
            input_broken: None,
            output_closed: None,
            ladder: Ladder::new(&boot.timing),
            failed: None,
            asked_to_end: false,
            disposers: Vec::new(),
            host_dispose: None,
            survivors: Vec::new(),
            vigil: None,
            finish_by: None,
            over: false,
            boot,
        })
    }

    /// Runs until the session is over.
    pub(crate) async fn run(&mut self, signals: &mut Signals) {
        self.lifecycle("worker_started", None);
        self.find_cgroup();
        while !self.over {
            let deadline = self.deadline();
            // Nothing is dropped: a host whose events the broker does not take
            // waits in its own write.
            let read = !self.link.out.is_full();
            let wake = tokio::select! {
                biased;
                told = signals.next() => Wake::Told(told),
                () = until(deadline) => Wake::Tick,
                () = leasing::changed(self.watcher.as_ref()) => Wake::Lease,
                event = self.link.next(), if !self.keeps_to_itself() => Wake::Link(event),
                event = from_host(&mut self.host, read) => Wake::Host(event),
                problem = self.hidden.over(self.turn.is_some()) => Wake::Looked(problem),
            };
            match wake {
                Wake::Told(Told::Stop) => self.asked_to_stop(),
                Wake::Told(Told::Child) => {
                    tree::reap_strangers(self.host.as_ref().map(Host::pid));
                    self.look_at_survivors(true);
                    self.child_ended();
                    self.hidden.stir(Instant::now());
                }
                Wake::Lease => self.look_at_lease(Instant::now()),
                Wake::Tick => self.on_time(Instant::now()),
                Wake::Link(event) => self.on_link(event),
                Wake::Host(event) => self.on_host(event),
                Wake::Looked(problem) => {
                    if let Some(problem) = problem {
                        self.log("warn", &problem);
                    }
                }
            }
            self.maybe_over();
        }
    }

    /// What the host was told to live in.
    pub(crate) fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    fn find_cgroup(&mut self) {
        let Some(path) = &self.boot.cgroup else {
            return;
        };
        match Cgroup::open(Path::new(path)) {
            Ok(cgroup) => self.cgroup = Some(cgroup),
            Err(error) => self.log("warn", &format!("the cgroup {path} is not used: {error}")),
        }
    }

    /// Says so when the host is not in its cgroup: everything works without.
    fn host_joined(&mut self, joined: io::Result<()>) {
        if let (Err(error), Some(cgroup)) = (joined, &self.cgroup) {
            let text = format!(
                "the agent is not in its cgroup {cgroup}, so that net is not used: {error}"
            );
            self.log("warn", &text);
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            worker_id: self.boot.worker_id.clone(),
            token: self.boot.token.clone(),
            session_key: self.boot.session_id.clone(),
            generation: self.boot.generation,
            pid: self.identity.pid.get(),
            identity: Identity {
                pid: self.identity.pid.get(),
                start_ticks: self.identity.start_ticks,
                boot_id: self.identity.boot_id.clone(),
                pid_namespace: self.identity.pid_namespace,
            },
            provider: self.boot.provider.clone(),
            last_seq: self.link.out.last_seq(),
            state: WorkerState {
                ready: self.ready.clone(),
                turn_id: self.turn.as_ref().map(|turn| turn.id.clone()),
                last_turn_id: self.last_turn.clone(),
                seen_event: self.turn.as_ref().map_or(self.last_seen, |turn| turn.seen),
                steers_taken: self.steers_taken.iter().cloned().collect(),
                steers_open: self.requests.steers(),
                open_cards: (self.cards.open().iter())
                    .map(|card| card.request_id.clone())
                    .collect(),
                host_pid: self.host.as_ref().map(Host::pid),
                lease_held: self.lease.is_some(),
                fence: self.fence,
                stopping: self.ladder.stage().map(|stage| stage.name().to_owned()),
            },
        }
    }

    fn is_stopping(&self) -> bool {
        self.ladder.stage().is_some()
    }

    fn send(&mut self, frame: &FromWorker, weight: Weight) {
        self.link.out.frame(frame.to_line(), weight);
    }

    fn respond(&mut self, mut response: Response, weight: Weight) {
        if let Some(error) = &mut response.error {
            *error = self.masker.mask(error).into_owned();
        }
        self.send(&FromWorker::Response(response), weight);
    }

    fn refuse(&mut self, id: RequestId, code: &str, message: &str) {
        self.respond(Response::err(id, code, message), Weight::Answers);
    }

    fn lifecycle(&mut self, event: &str, detail: Option<Value>) {
        let frame = Lifecycle {
            event: event.to_owned(),
            request_id: None,
            detail,
        };
        self.send(&FromWorker::Lifecycle(frame), Weight::Informs);
    }

    fn log(&mut self, level: &str, message: &str) {
        let message = self.masker.mask(message).into_owned();
        let frame = Log {
            level: level.to_owned(),
            message,
            detail: None,
        };
        self.send(&FromWorker::Log(frame), Weight::Informs);
    }

    fn report(&mut self, operation: &str, error: &str, detail: Option<Value>) {
        let frame = ErrorFrame {
            operation: operation.to_owned(),
            error: self.masker.mask(error).into_owned(),
            request_id: None,
            detail: detail.map(|detail| self.mask_value(detail)),
        };
        self.send(&FromWorker::Error(frame), Weight::Informs);
    }

    fn mask_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.masker.mask(&text).into_owned()),
            Value::Array(items) => items
                .into_iter()
                .map(|item| self.mask_value(item))
                .collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(name, item)| (name, self.mask_value(item)))
                .collect(),
            other => other,
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

async fn from_host(host: &mut Option<Host>, read: bool) -> HostEvent {
    match host {
        Some(host) => host.next(read).await,
        None => pending().await,
    }
}
