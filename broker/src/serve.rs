//! The broker's life: from the lock to the last worker's end.
//!
//! Order of the start: directories → the lock (who holds it may unlink and
//! bind the sockets) → hold of the home → `state.db` and the new fence → sweep of what a dead
//! broker left → sockets → sessions. Order of the end: no new clients, every
//! session stopped, sockets removed, lock free.
//!
//! What a broker that was killed leaves: its workers keep their turn for their
//! orphan grace and connect to the next broker, which takes them over
//! ([`crate::takeover`]): turns, cards and sequence numbers go on as if nothing
//! had happened. `ade serve --replace` does the same politely.
//!
//! A home that is removed under the broker is noticed ([`crate::footing`]).

mod error;
mod predecessor;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ade_protocol::WorkerId;
use ade_protocol::rpc::RuntimeInfo;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use error::ServeError;
use predecessor::{see_predecessor_off, take_lock};

use crate::actions::About;
use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::footing::{self, Footing, Ground};
use crate::home::{Home, HomeError};
use crate::hub::Hub;
use crate::limits::Room;
use crate::link::Registry;
use crate::lock::{BrokerLock, LockError};
use crate::manager::Manager;
use crate::pool::Pool;
use crate::providers::Providers;
use crate::shared::Shared;
use crate::socket::{self, BoundSocket};
use crate::spawn::{Spawner, TAKEN_OVER};
use crate::state::{State, StateHandle};
use crate::strays;
use crate::stuck::Stuck;
use crate::sweep::Kept;
use crate::{ancestry, clock, endpoint, leftovers, limits, sweep, takeover, unknown, visit};

/// How long all sessions may take to stop. The escort of each has bounds of its
/// own; this one only guards the broker's end.
const STOP_BOUND: Duration = Duration::from_secs(30);

/// How long workers may take after a second signal until they are killed.
const SECOND_SIGNAL_BOUND: Duration = Duration::from_secs(2);

/// How long sessions may take to write how turns ended whose workers are dead.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long orphans of workers may take to die after SIGKILL when all else is
/// over. Each farewell has waited for them before.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// How long sessions may take to let go of their workers. They wait for nobody
/// but the disk.
const HANDOVER_BOUND: Duration = Duration::from_secs(5);

/// Connections that stay at once, where there are descriptors for them. One more
/// is a visit.
const CONNECTIONS: usize = 512;

/// Pause after a connection that was not accepted: the next one would not be either.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How often that is told.
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// Visits at once. One more is told why and not listened to.
const VISITS: usize = 64;

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
    strays::ignore().map_err(ServeError::Signals)?;
    let config = Config::load(&home, |name| std::env::var_os(name))?;
    let mut lock = take_lock(&home, &options).await?;
    let hold = see_predecessor_off(&home).await?;
    if let Err(error) = limits::raise_nofile() {
        tracing::warn!(%error, "the limit of open files was not raised");
    }
    let state = StateHandle::start(State::open(&home.state_db())?);
    let ended = match Broker::start(home, config, &options, state.clone()).await {
        Ok(broker) => {
            tracing::info!(
                pid = std::process::id(),
                fence = broker.manager.shared().fence.0,
                "the broker serves"
            );
            broker.run(&mut lock).await
        }
        Err(error) => Err(error),
    };
    state.close().await;
    drop(hold);
    drop(lock);
    ended
}

/// Why a broker ends.
#[derive(Clone, PartialEq, Eq)]
enum End {
    /// It was told to, with its sessions.
    Stop,
    /// Its sessions are another broker's.
    HandOver,
    /// There is nothing left to serve, for this is gone.
    Gone(PathBuf),
}

struct Broker {
    manager: Arc<Manager>,
    about: Arc<About>,
    control: BoundSocket,
    workers: BoundSocket,
    ground: Ground,
    /// How it stood when it was looked at last.
    footing: Footing,
    /// When it was told last that a connection was not accepted.
    told: Mutex<Option<Instant>>,
}

impl Broker {
    async fn start(
        home: Home,
        config: Config,
        options: &ServeOptions,
        state: StateHandle,
    ) -> Result<Self, ServeError> {
        let config = Arc::new(config);
        let fence = state.run(State::next_fence).await?;
        let mut takeover = takeover::find(&home, &state).await?;
        let cgroups = Cgroups::prepare(&home, config.wants_cgroups());
        takeover.kept = sweep_leftovers(&home, takeover.workers()).await;
        cgroups.tidy(&home);
        let closed = leftovers::close(&home, &state, &takeover).await?;
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
            pidfds: limits::room_for(TAKEN_OVER, 0) >= takeover.workers().len(),
            stuck: Stuck::default(),
            home: home.clone(),
        };
        let ground =
            Ground::of(&home).map_err(|(path, source)| HomeError::Prepare { path, source })?;
        let manager = Arc::new(Manager::load(Arc::new(shared), takeover, closed.owed).await?);
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
            footing: Footing::Firm,
            told: Mutex::default(),
        })
    }

    async fn run(mut self, lock: &mut BrokerLock) -> Result<(), ServeError> {
        let mut term = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
        let places = Places::default();
        let mut looks = tokio::time::interval(footing::LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let end = loop {
            tokio::select! {
                accepted = self.control.accept() => self.client(accepted, &places).await,
                accepted = self.workers.accept() => self.worker(accepted).await,
                _ = term.recv() => break End::Stop,
                _ = interrupt.recv() => break End::Stop,
                () = self.about.stop.cancelled() => break End::Stop,
                () = self.about.handover.cancelled() => break End::HandOver,
                _ = looks.tick() => if let Some(end) = self.look(lock).await {
                    break end;
                },
            }
        };
        if end == End::HandOver {
            self.hand_over().await;
            return Ok(());
        }
        self.stop(&mut term, &mut interrupt).await;
        if let End::Gone(path) = end {
            return Err(ServeError::Gone { path });
        }
        Ok(())
    }

    /// Looks whether the home is still there, and mends what can be mended.
    async fn look(&mut self, lock: &mut BrokerLock) -> Option<End> {
        let footing = self.ground.footing(lock);
        // Seen twice: what is being removed may be all of the home, and nothing is
        // to be made in it then.
        let again = std::mem::replace(&mut self.footing, footing.clone()) == footing;
        match footing {
            Footing::Gone(path) => {
                tracing::error!(path = %path.display(), "it is gone: the broker ends");
                return Some(End::Gone(path));
            }
            Footing::LockLost => return self.lock_lost(lock),
            Footing::StateLost if again => self.put_state_back().await,
            Footing::TranscriptsLost if again => self.make_transcripts(),
            Footing::StateLost | Footing::TranscriptsLost | Footing::Firm => {}
        }
        self.control.bind_again();
        self.workers.bind_again();
        None
    }

    fn lock_lost(&self, lock: &mut BrokerLock) -> Option<End> {
        let home = &self.manager.shared().home;
        match BrokerLock::take(home, &self.about.runtime.version) {
            Ok(again) => {
                tracing::warn!("the lock file was removed; the lock was taken again");
                *lock = again;
                None
            }
            Err(LockError::AlreadyRunning(holder)) => {
                tracing::error!(?holder, "another broker has the lock by now: it gets all");
                Some(End::HandOver)
            }
            Err(error) => {
                tracing::error!(%error, "the lock is lost: the broker ends");
                Some(End::Gone(home.broker_lock()))
            }
        }
    }

    async fn put_state_back(&mut self) {
        let shared = self.manager.shared();
        let path = shared.home.state_db();
        match shared.state.put_back(path.clone()).await {
            Ok(()) => {
                tracing::warn!(path = %path.display(), "the database was removed; it was put back");
                self.renew();
            }
            Err(error) => tracing::error!(%error, "the database was removed and not put back"),
        }
    }

    fn make_transcripts(&mut self) {
        match self.manager.shared().home.clone().prepare() {
            Ok(home) => {
                let folder = home.transcripts_dir();
                tracing::error!(
                    folder = %folder.display(),
                    "the transcripts were removed; what they held is lost, and new ones begin"
                );
                self.renew();
            }
            Err(error) => tracing::error!(%error, "the folder of the transcripts was not made"),
        }
    }

    fn renew(&mut self) {
        if let Err((path, error)) = self.ground.renew() {
            tracing::error!(path = %path.display(), %error, "it can't be watched over");
        }
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
                self.worker(self.workers.accept().await).await;
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
        last_look().await;
    }

    /// Ends without ending anything: workers keep their turns and connect to
    /// the broker that comes.
    async fn hand_over(&self) {
        tracing::info!("the broker hands over");
        // Workers still report while sessions write what they have.
        let welcome = async {
            loop {
                self.worker(self.workers.accept().await).await;
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
        let Some((stream, peer)) = self.admit(accepted).await else {
            return;
        };
        let (manager, about) = (Arc::clone(&self.manager), Arc::clone(&self.about));
        let room = limits::room_of_client(manager.shared().pool.promised());
        let place = Arc::clone(&places.stay).try_acquire_owned();
        let refused = match (room, place) {
            (Room::Stay, Ok(place)) => {
                tokio::spawn(async move {
                    endpoint::serve(stream, peer, manager, about).await;
                    drop(place);
                });
                return;
            }
            (Room::Stay, Err(_)) => visit::too_many(CONNECTIONS),
            (Room::Visit | Room::None, _) => visit::no_descriptors(),
        };
        tracing::warn!("a client was not let stay: {}", refused.message);
        let place = Arc::clone(&places.visit).try_acquire_owned();
        let (Room::Stay | Room::Visit, Ok(place)) = (room, place) else {
            return visit::brush_off(&stream, &refused);
        };
        tokio::spawn(async move {
            visit::receive(stream, peer, refused, (&manager, &about)).await;
            drop(place);
        });
    }

    async fn worker(&self, accepted: std::io::Result<(tokio::net::UnixStream, socket::Peer)>) {
        let Some((stream, _)) = self.admit(accepted).await else {
            return;
        };
        let shared = Arc::clone(self.manager.shared());
        tokio::spawn(async move {
            if limits::room_of_client(0) == Room::None {
                tracing::error!("there is no descriptor for a worker that reports: it comes again");
                return;
            }
            if let Some(stranger) = shared.registry.welcome(stream).await {
                unknown::send_away(&shared.home, shared.fence, stranger).await;
            }
        });
    }

    /// Whether it is time to tell once more that a connection was not accepted.
    fn tells_again(&self) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let again = told.is_none_or(|told| told.elapsed() >= TELL_AGAIN);
        if again {
            *told = Some(Instant::now());
        }
        again
    }

    /// Refuses other users, and waits a moment when nothing can be accepted: trying
    /// at once again would burn a core, and fill the log.
    async fn admit(
        &self,
        accepted: std::io::Result<(tokio::net::UnixStream, socket::Peer)>,
    ) -> Option<(tokio::net::UnixStream, socket::Peer)> {
        match accepted {
            Ok((stream, peer)) if peer.uid == nix::unistd::geteuid().as_raw() => {
                Some((stream, peer))
            }
            Ok((_, peer)) => {
                tracing::warn!(uid = peer.uid, "another user was refused");
                None
            }
            Err(error) => {
                if self.tells_again() {
                    tracing::error!(%error, "a connection was not accepted");
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
                None
            }
        }
    }
}

/// How many clients there may be.
struct Places {
    stay: Arc<Semaphore>,
    visit: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            stay: Arc::new(Semaphore::new(CONNECTIONS)),
            visit: Arc::new(Semaphore::new(VISITS)),
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

/// After the farewell of each worker: once the broker is gone, nothing tells any
/// more that an orphan was one of ours.
async fn last_look() {
    let looked =
        tokio::task::spawn_blocking(|| sweep::strays(sweep::Remains::default(), LAST_LOOK));
    match looked.await {
        Ok(report) if report.survivors.is_empty() && report.problem.is_none() => {}
        Ok(report) => tracing::error!(?report, "orphans of workers are left"),
        Err(error) => tracing::error!(%error, "orphans of workers were not looked for"),
    }
}

async fn sweep_leftovers(home: &Home, spare: BTreeSet<WorkerId>) -> Vec<Kept> {
    let grace = sweep::Grace::default();
    let home = home.clone();
    let swept = tokio::task::spawn_blocking(move || sweep::run_sparing(&home, grace, &spare)).await;
    match swept {
        Ok(report) => {
            tracing::info!(?report, "swept what the last broker left");
            report.kept
        }
        Err(error) => {
            tracing::error!(%error, "the sweep failed");
            Vec::new()
        }
    }
}
