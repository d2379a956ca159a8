//! The broker's life: from the lock to the last worker's end.
//!
//! Order of the start: directories → the lock (who holds it may unlink and
//! bind the sockets) → `state.db` and the new fence → sweep of what a dead
//! broker left → sockets → sessions. Order of the end: no new clients, every
//! session stopped, sockets removed, lock free.
//!
//! What a broker that was killed leaves: its workers keep their turn for their
//! orphan grace and connect to the next broker, which takes them over
//! ([`crate::takeover`]): turns, cards and sequence numbers go on as if nothing
//! had happened. `ade serve --replace` does the same politely.
//!
//! A home that is removed under the broker is noticed ([`crate::footing`]).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use ade_protocol::rpc::RuntimeInfo;
use ade_protocol::{WorkerId, exit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::actions::About;
use crate::cgroups::Cgroups;
use crate::config::{Config, ConfigError};
use crate::footing::{self, Footing, Ground};
use crate::home::{Home, HomeError};
use crate::hub::Hub;
use crate::link::Registry;
use crate::lock::{self, BrokerLock, Holder, LockError};
use crate::manager::Manager;
use crate::pool::Pool;
use crate::providers::Providers;
use crate::shared::Shared;
use crate::socket::{self, BoundSocket, SocketError};
use crate::spawn::{SpawnError, Spawner};
use crate::state::{State, StateError, StateHandle};
use crate::{ancestry, clock, endpoint, journal, leftovers, limits, sweep, takeover, unknown};

/// How long all sessions may take to stop. The escort of each has bounds of its
/// own; this one only guards the broker's end.
const STOP_BOUND: Duration = Duration::from_secs(30);

/// How long workers may take after a second signal until they are killed.
const SECOND_SIGNAL_BOUND: Duration = Duration::from_secs(2);

/// How long sessions may take to write how turns ended whose workers are dead.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a broker that is being replaced may take to end.
const REPLACE_BOUND: Duration = Duration::from_secs(40);

/// How long a stopped one may take to go on.
const STOPPED: Duration = Duration::from_secs(1);

/// How long a broker may take to notice that its lock file was removed, and to
/// hand over.
const PREDECESSOR_BOUND: Duration = Duration::from_secs(8);

/// Pause between two looks whether it has.
const PREDECESSOR_LOOK: Duration = Duration::from_millis(50);

/// How often it is asked again: the one that was asked may have died, and
/// another taken its place.
const ASK_AGAIN: Duration = Duration::from_secs(6);

/// How long sessions may take to let go of their workers. They wait for nobody
/// but the disk.
const HANDOVER_BOUND: Duration = Duration::from_secs(5);

/// Connections that are served at once. One more is told so and let go.
const CONNECTIONS: usize = 512;

/// Connections that are being told so. One more is let go without a word.
const REFUSALS: usize = 64;

/// How a broker is started.
#[derive(Debug)]
pub struct ServeOptions {
    /// ADE_HOME.
    pub home: PathBuf,
    /// Control socket, when it is not in ADE_HOME.
    pub socket: Option<PathBuf>,
    /// Version of the executable.
    pub version: String,
    /// Hash of the executable.
    pub build_hash: String,
    /// Files of the host for Pi: relative path and text, the first one is started.
    pub pi_host: &'static [(&'static str, &'static str)],
    /// Ends a broker that runs already, then takes its place.
    pub replace: bool,
}

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// ADE_HOME cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Another broker runs, or the lock cannot be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// `config.toml` cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `state.db` cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// What the last broker left cannot be closed.
    #[error(transparent)]
    Leftovers(#[from] leftovers::LeftoverError),
    /// A socket cannot be bound.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Nothing can be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The home was removed under the running broker.
    #[error("{} was removed or replaced; its sessions were stopped", home.display())]
    HomeGone {
        /// The home.
        home: PathBuf,
    },
    /// A broker would end with the chat that it lives in.
    #[error(
        "a broker must not live inside a chat of its own: this process was started by the agent \
         of {} (worker {})",
        .0.session_id, .0.worker_id
    )]
    InsideChat(Box<journal::Entry>),
    /// The signals of the process cannot be watched.
    #[error("the broker cannot watch its signals")]
    Signals(#[source] std::io::Error),
}

impl ServeError {
    /// The exit code for the command line.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Home(error) => error.exit_code(),
            Self::Lock(error) => error.exit_code(),
            Self::Config(error) => error.exit_code(),
            Self::State(error) => error.exit_code(),
            Self::Socket(error) => error.exit_code(),
            Self::Spawn(_)
            | Self::Signals(_)
            | Self::Leftovers(_)
            | Self::InsideChat(_)
            | Self::HomeGone { .. } => exit::FAILED,
        }
    }

    /// A stable word for the kind of failure.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Home(_) => "home",
            Self::Lock(LockError::AlreadyRunning(_)) => "already_running",
            Self::Lock(LockError::Stuck(_)) => "not_answering",
            Self::Lock(_) => "lock",
            Self::Config(_) => "config",
            Self::State(_) | Self::Leftovers(_) => "state",
            Self::Socket(_) => "socket",
            Self::Spawn(_) => "spawn",
            Self::HomeGone { .. } => "home_gone",
            Self::InsideChat(_) => "inside_chat",
            Self::Signals(_) => "signals",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Home(error) => error.hints(),
            Self::Lock(error) => error.hints(),
            Self::Config(error) => error.hints(),
            Self::State(error) => error.hints(),
            Self::Socket(error) => error.hints(),
            Self::Spawn(error) => error.hints(),
            Self::InsideChat(_) => {
                vec!["any `ade` command in a terminal of yours starts one that stays".to_owned()]
            }
            Self::Signals(_) | Self::Leftovers(_) | Self::HomeGone { .. } => Vec::new(),
        }
    }
}

/// Runs a broker until it is told to stop.
///
/// # Errors
/// Why it did not start.
pub async fn serve(options: ServeOptions) -> Result<(), ServeError> {
    let home = Home::at(options.home.clone(), options.socket.clone())?.prepare()?;
    match ancestry::worker_above(&home) {
        Ok(None) => {}
        Ok(Some(worker)) => return Err(ServeError::InsideChat(Box::new(worker))),
        Err(error) => tracing::warn!(%error, "whether a chat is above was not found out"),
    }
    let config = Config::load(&home, |name| std::env::var_os(name))?;
    let mut lock = take_lock(&home, &options).await?;
    see_predecessor_off(&home).await?;
    if let Err(error) = limits::raise_nofile() {
        tracing::warn!(%error, "the limit of open files was not raised");
    }
    let broker = Broker::start(home, config, &options).await?;
    tracing::info!(
        pid = std::process::id(),
        fence = broker.manager.shared().fence.0,
        "the broker serves"
    );
    let ended = broker.run(&mut lock).await;
    drop(lock);
    ended
}

async fn take_lock(home: &Home, options: &ServeOptions) -> Result<BrokerLock, ServeError> {
    if !options.replace {
        return Ok(BrokerLock::take(home, &options.version)?);
    }
    let deadline = clock::now() + REPLACE_BOUND;
    loop {
        if let Some(holder) = stopped_holder(home).await {
            return Err(LockError::Stuck(Box::new(holder)).into());
        }
        ask_to_hand_over(home).await;
        let (home, version) = (home.clone(), options.version.clone());
        let taken = tokio::task::spawn_blocking(move || {
            BrokerLock::take_within(&home, &version, ASK_AGAIN)
        });
        match taken.await {
            // It was not at home, or another one has come since.
            Ok(Err(LockError::AlreadyRunning(_))) if clock::now() < deadline => {}
            Ok(Err(LockError::AlreadyRunning(Some(holder)))) => {
                return Err(LockError::Stuck(holder).into());
            }
            Ok(taken) => return Ok(taken?),
            Err(error) => return Err(ServeError::Signals(std::io::Error::other(error))),
        }
    }
}

/// The broker that runs, when it is stopped and stays so: it hears nobody.
async fn stopped_holder(home: &Home) -> Option<Holder> {
    let stopped = || {
        let holder = lock::holder(home).ok().flatten()?;
        lock::is_stopped(holder.pid).then_some(holder)
    };
    stopped()?;
    tokio::time::sleep(STOPPED).await;
    stopped()
}

/// The lock is ours; and yet a broker may live whose lock file was removed. It
/// notices and hands over; until then nothing of its sessions is touched.
async fn see_predecessor_off(home: &Home) -> Result<(), LockError> {
    let deadline = clock::now() + PREDECESSOR_BOUND;
    for path in [home.workers_socket(), home.control_socket()] {
        while let Some(pid) = socket::listener(&path).await {
            if clock::now() >= deadline {
                return Err(LockError::StillListening { pid, path });
            }
            tokio::time::sleep(PREDECESSOR_LOOK).await;
        }
    }
    Ok(())
}

/// Asks a running broker to hand over; whether it did is seen by its lock.
async fn ask_to_hand_over(home: &Home) {
    use ade_protocol::rpc::InitializeParams;
    use tokio::io::AsyncWriteExt;
    let Ok(mut stream) = tokio::net::UnixStream::connect(home.control_socket()).await else {
        return;
    };
    let hello = InitializeParams {
        protocol_version: ade_protocol::PROTOCOL_VERSION,
        client_name: "ade serve --replace".into(),
    };
    let hello = serde_json::to_string(&hello).unwrap_or_default();
    let lines = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\",\"params\":{hello}}}\n",
        ade_protocol::rpc::INITIALIZE
    );
    let stop = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"{}\",\"params\":{{\"name\":\"{}\"}}}}\n",
        ade_protocol::action::ACTIONS_CALL,
        ade_protocol::action::name::BROKER_HANDOVER
    );
    let mut answer = [0_u8; 4096];
    for line in [lines, stop] {
        if stream.write_all(line.as_bytes()).await.is_err() {
            return;
        }
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut answer);
        if tokio::time::timeout(Duration::from_secs(5), read)
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Why a broker ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It was told to, with its sessions.
    Stop,
    /// Its sessions are another broker's.
    HandOver,
    /// There is nothing left to serve.
    HomeGone,
}

struct Broker {
    manager: Arc<Manager>,
    about: Arc<About>,
    control: BoundSocket,
    workers: BoundSocket,
    ground: Ground,
}

impl Broker {
    async fn start(home: Home, config: Config, options: &ServeOptions) -> Result<Self, ServeError> {
        let config = Arc::new(config);
        let state = StateHandle::start(State::open(&home.state_db())?);
        let fence = state.run(State::next_fence).await?;
        let takeover = takeover::find(&home, &state).await?;
        let cgroups = Cgroups::prepare(&home, config.wants_cgroups());
        sweep_leftovers(&home, takeover.workers()).await;
        cgroups.tidy(&home);
        leftovers::close(&home, &state, &takeover).await?;
        let spawner = Spawner::start(&home, None, cgroups.clone())?;
        let env = std::env::vars_os()
            .filter_map(|(name, value)| name.into_string().ok().map(|name| (name, value)))
            .collect();
        let providers = Arc::new(Providers::new(
            home.clone(),
            Arc::clone(&config),
            env,
            options.pi_host,
        ));
        let hub = Arc::new(Hub::default());
        let pool = Pool::new(config.pool(), config.start_limits(), Arc::clone(&hub));
        let shared = Shared {
            config,
            providers,
            state,
            cgroups,
            spawner,
            registry: Registry::default(),
            hub,
            fence,
            pool: Arc::new(pool),
            home: home.clone(),
        };
        let ground = Ground::of(home.root()).map_err(|source| HomeError::Prepare {
            path: home.root().to_owned(),
            source,
        })?;
        let manager = Arc::new(Manager::load(Arc::new(shared), takeover).await?);
        let workers = socket::bind(&home.workers_socket())?;
        let control = socket::bind(&home.control_socket())?;
        let about = Arc::new(About {
            runtime: RuntimeInfo {
                version: options.version.clone(),
                build_hash: options.build_hash.clone(),
                default_role: "cto".into(),
                project_root: home.root().display().to_string(),
                pid: std::process::id(),
            },
            started_at: clock::timestamp(),
            socket: home.control_socket().display().to_string(),
            clients: AtomicUsize::new(0),
            stop: CancellationToken::new(),
            handover: CancellationToken::new(),
        });
        Ok(Self {
            manager,
            about,
            control,
            workers,
            ground,
        })
    }

    async fn run(mut self, lock: &mut BrokerLock) -> Result<(), ServeError> {
        let mut term = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
        // A closed terminal must not end the agents.
        let mut hangup = signal(SignalKind::hangup()).map_err(ServeError::Signals)?;
        let places = Places::default();
        let mut looks = tokio::time::interval(footing::LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let end = loop {
            tokio::select! {
                accepted = self.control.accept() => self.client(accepted, &places).await,
                accepted = self.workers.accept() => self.worker(accepted),
                _ = term.recv() => break End::Stop,
                _ = interrupt.recv() => break End::Stop,
                _ = hangup.recv() => tracing::info!("SIGHUP is ignored"),
                () = self.about.stop.cancelled() => break End::Stop,
                () = self.about.handover.cancelled() => break End::HandOver,
                _ = looks.tick() => if let Some(end) = self.look(lock) {
                    break end;
                },
            }
        };
        if end == End::HandOver {
            self.hand_over().await;
            return Ok(());
        }
        self.stop(&mut term, &mut interrupt).await;
        if end == End::HomeGone {
            let home = self.manager.shared().home.root().to_owned();
            return Err(ServeError::HomeGone { home });
        }
        Ok(())
    }

    /// Looks whether the home is still there, and mends what can be mended.
    fn look(&mut self, lock: &mut BrokerLock) -> Option<End> {
        let home = self.manager.shared().home.clone();
        match self.ground.footing(lock) {
            Footing::HomeGone => {
                tracing::error!(home = %home.root().display(), "the home is gone: the broker ends");
                return Some(End::HomeGone);
            }
            Footing::LockLost => match BrokerLock::take(&home, &self.about.runtime.version) {
                Ok(again) => {
                    tracing::warn!("the lock file was removed; the lock was taken again");
                    *lock = again;
                }
                Err(LockError::AlreadyRunning(holder)) => {
                    tracing::error!(?holder, "another broker has the lock by now: it gets all");
                    return Some(End::HandOver);
                }
                Err(error) => {
                    tracing::error!(%error, "the lock is lost: the broker ends");
                    return Some(End::HomeGone);
                }
            },
            Footing::Firm => {}
        }
        self.control.bind_again();
        self.workers.bind_again();
        None
    }

    /// Stops every session, within bounds.
    async fn stop(&self, term: &mut Signal, interrupt: &mut Signal) {
        tracing::info!("the broker stops");
        let manager = Arc::clone(&self.manager);
        let stopping = tokio::spawn(async move { manager.stop_all().await });
        tokio::pin!(stopping);
        let hurry = async {
            tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
            tracing::warn!("a second signal: workers are hurried");
            hurry_workers(&self.manager.shared().home).await;
            // Sessions hear of their workers' ends and write those of the turns.
            tokio::time::sleep(LAST_WORDS).await;
        };
        // Workers still report while they end.
        let welcome = async {
            loop {
                self.worker(self.workers.accept().await);
            }
        };
        tokio::select! {
            _ = &mut stopping => {}
            () = hurry => tracing::warn!("a second signal: not every session was waited for"),
            () = tokio::time::sleep(STOP_BOUND) => {
                tracing::error!("some sessions did not stop: their workers are ended");
                hurry_workers(&self.manager.shared().home).await;
            }
            () = welcome => {}
        }
    }

    /// Ends without ending anything: workers keep their turns and connect to
    /// the broker that comes.
    async fn hand_over(&self) {
        tracing::info!("the broker hands over");
        // Workers still report while sessions write what they have.
        let welcome = async {
            loop {
                self.worker(self.workers.accept().await);
            }
        };
        tokio::select! {
            () = self.manager.detach_all() => {}
            () = tokio::time::sleep(HANDOVER_BOUND) => {
                tracing::error!("some sessions did not let go of their worker");
            }
            () = welcome => {}
        }
    }

    async fn client(
        &self,
        accepted: std::io::Result<(tokio::net::UnixStream, socket::Peer)>,
        places: &Places,
    ) {
        let Some((stream, peer)) = admit(accepted).await else {
            return;
        };
        let Ok(place) = Arc::clone(&places.serve).try_acquire_owned() else {
            tracing::warn!("{CONNECTIONS} clients are connected; one more was refused");
            if let Ok(place) = Arc::clone(&places.refuse).try_acquire_owned() {
                tokio::spawn(async move {
                    endpoint::refuse(stream, CONNECTIONS).await;
                    drop(place);
                });
            }
            return;
        };
        let (manager, about) = (Arc::clone(&self.manager), Arc::clone(&self.about));
        tokio::spawn(async move {
            endpoint::serve(stream, peer, manager, about).await;
            drop(place);
        });
    }

    fn worker(&self, accepted: std::io::Result<(tokio::net::UnixStream, socket::Peer)>) {
        let shared = Arc::clone(self.manager.shared());
        tokio::spawn(async move {
            if let Some((stream, _)) = admit(accepted).await
                && let Some(stranger) = shared.registry.welcome(stream).await
            {
                unknown::send_away(&shared.home, shared.fence, stranger).await;
            }
        });
    }
}

/// How many clients there may be.
struct Places {
    serve: Arc<Semaphore>,
    refuse: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            serve: Arc::new(Semaphore::new(CONNECTIONS)),
            refuse: Arc::new(Semaphore::new(REFUSALS)),
        }
    }
}

/// Refuses other users, and waits a moment when nothing can be accepted.
async fn admit(
    accepted: std::io::Result<(tokio::net::UnixStream, socket::Peer)>,
) -> Option<(tokio::net::UnixStream, socket::Peer)> {
    match accepted {
        Ok((stream, peer)) if peer.uid == nix::unistd::geteuid().as_raw() => Some((stream, peer)),
        Ok((_, peer)) => {
            tracing::warn!(uid = peer.uid, "another user was refused");
            None
        }
        Err(error) => {
            tracing::error!(%error, "a connection was not accepted");
            // Out of descriptors: trying at once again would burn a core.
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Every worker jumps a rung of its ladder; what is still there after the
/// bound is killed with everything below it.
async fn hurry_workers(home: &Home) {
    let grace = sweep::Grace {
        term: SECOND_SIGNAL_BOUND,
        ..sweep::Grace::default()
    };
    let home = home.clone();
    let swept = tokio::task::spawn_blocking(move || sweep::run(&home, grace)).await;
    if let Err(error) = swept {
        tracing::error!(%error, "the workers were not hurried");
    }
}

async fn sweep_leftovers(home: &Home, spare: BTreeSet<WorkerId>) {
    let grace = sweep::Grace::default();
    let home = home.clone();
    let swept = tokio::task::spawn_blocking(move || sweep::run_sparing(&home, grace, &spare)).await;
    match swept {
        Ok(report) => tracing::info!(?report, "swept what the last broker left"),
        Err(error) => tracing::error!(%error, "the sweep failed"),
    }
}
