//! An actor, its workers and its transcript, taken apart: what must not happen
//! in between can be looked at here.

mod cards;
mod notes;
mod silence;
mod steering;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ade_leases::process::{Liveness, Pid, ProcessIdentity, Signal, Target};
use ade_protocol::action::ChatCreate;
use ade_protocol::boot::{MARK_ENV, WorkerTiming};
use ade_protocol::event::{Event, NoticeLevel};
use ade_protocol::{Fence, Generation, Seq, SessionId, WorkerId};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::acquire::Starting;
use super::actor::Actor;
use super::adopt::Resumed;
use super::depart::Way;
use super::escort::{Escort, Process};
use super::place::Line;
use super::start::{self, Plan, Started};
use super::worker::Worker;
use super::{Command, Left};
use crate::budget::Start;
use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::home::Home;
use crate::hub::{Hub, Next, Subscriber};
use crate::link::{Link, Registry};
use crate::pool::Pool;
use crate::providers::Providers;
use crate::reap;
use crate::shared::Shared;
use crate::spawn::Spawner;
use crate::state::{Flags, SessionRow, State, StateHandle};

const BOUND: Duration = Duration::from_secs(20);
const SESSION: &str = "ses_1";

/// A broker without a socket, and the actor of its only session, which nobody
/// runs: what its tasks report stays unread.
struct Rig {
    _folder: TempDir,
    shared: Arc<Shared>,
    actor: Actor,
    tx: mpsc::Sender<Command>,
}

/// A shell as a worker; killed in the end.
struct Stand {
    process: Process,
}

impl Drop for Stand {
    fn drop(&mut self) {
        let target = Target::Process(self.process.identity.clone());
        let _ = ade_leases::process::signal(&target, Signal::SIGKILL);
    }
}

impl Stand {
    fn run(script: &str) -> Self {
        let mark = format!("mark-{}", uuid::Uuid::new_v4());
        let mut command = Program::new("/bin/sh");
        command.args(["-c", script]).env(MARK_ENV, &mark);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let (child, exit) = reap::spawn(&mut command).expect("a shell");
        let pid = child.id().cast_signed();
        let known = Pid::new(i64::from(pid)).expect("a pid");
        let identity = ProcessIdentity::of(known).expect("a look").expect("it");
        let process = Process {
            worker_id: WorkerId::generate(),
            pid,
            identity,
            mark,
            cgroup: None,
            exit,
        };
        Self { process }
    }

    fn is_alive(&self) -> bool {
        self.process.identity.liveness() == Liveness::Alive
    }
}

impl Rig {
    async fn new() -> Self {
        Self::with_config("").await
    }

    async fn with_config(text: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let home = Home::at(folder.path().to_owned(), None).expect("a home");
        let home = home.prepare().expect("its folders");
        std::fs::write(home.config_file(), text).expect("config.toml");
        let config = Config::load(&home, |_| None).expect("a config");
        let config = Arc::new(config);
        let providers = Providers::new(home.clone(), Arc::clone(&config), BTreeMap::new(), &[]);
        let unused = Cgroups::unused("a test");
        let never = Some(PathBuf::from("/bin/false"));
        let hub = Arc::new(Hub::default());
        let pool = Pool::new(config.pool(), config.start_limits(), Arc::clone(&hub));
        let state = State::open(&home.state_db()).expect("a database");
        let create = serde_json::json!({"provider": "scripted", "lane": "/tmp"});
        let create: ChatCreate = serde_json::from_value(create).expect("a request");
        let row = SessionRow::new(
            SESSION.into(),
            &create,
            "/tmp".into(),
            crate::clock::timestamp(),
        );
        state.insert_session(&row).expect("a row");
        let shared = Arc::new(Shared {
            providers: Arc::new(providers),
            state: StateHandle::start(state),
            spawner: Spawner::start(&home, never, unused.clone()).expect("a spawner"),
            cgroups: unused,
            registry: Registry::default(),
            hub,
            fence: Fence(1),
            pool: Arc::new(pool),
            pidfds: true,
            stuck: crate::stuck::Stuck::default(),
            config,
            home,
        });
        let (tx, rx) = mpsc::channel(64);
        let made = Actor::new(
            Arc::clone(&shared),
            row,
            tx.downgrade(),
            rx,
            Left::default(),
        );
        let (actor, _) = made.expect("an actor");
        Self {
            _folder: folder,
            shared,
            actor,
            tx,
        }
    }

    /// A worker that has started, and its end of the link.
    fn started(&self, stand: &Stand, resumed: Option<Resumed>) -> (Box<Started>, UnixStream) {
        let (link, theirs) = Link::pair();
        let (_, reconnects) = mpsc::channel(1);
        let started = Started {
            generation: Generation(1),
            process: stand.process.clone(),
            link,
            reconnects,
            ready: ade_protocol::frame::Ready::default(),
            host_pid: None,
            lease_held: false,
            place: self.shared.pool.take(&SESSION.into(), "scripted"),
            spec: Some(self.shared.providers.spec(&self.actor.row)),
            resumed,
        };
        (Box::new(started), theirs)
    }

    fn starting(&mut self) {
        self.actor.epoch += 1;
        self.actor.starting = Some(Starting {
            epoch: self.actor.epoch,
            place: 0,
            told: false,
            cancel: CancellationToken::new(),
            takeover: false,
        });
    }

    async fn flags_on_disk(&self) -> Flags {
        let row = self
            .shared
            .state
            .run(|state| state.session(&SESSION.into()));
        row.await.expect("read").expect("a row").flags
    }

    async fn rotate_next(&mut self) {
        self.actor.arm(true, None).await;
        assert!(self.actor.row.flags.rotate && self.flags_on_disk().await.rotate);
    }

    fn say(&mut self, message: &str) {
        let level = NoticeLevel::Info;
        let message = message.to_owned();
        self.actor.emit(None, &Event::Notice { level, message });
    }

    fn written(&self) -> String {
        let path = self.shared.home.transcript(&SESSION.into());
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

fn resumed() -> Resumed {
    Resumed {
        taken: Seq(0),
        running: None,
        last: None,
        seen: false,
        steers_taken: Vec::new(),
        steers_open: Vec::new(),
        open_cards: std::collections::BTreeSet::new(),
    }
}

/// What a subscriber was told, without waiting for more.
async fn told(subscriber: &Subscriber) -> usize {
    match tokio::time::timeout(Duration::ZERO, subscriber.next()).await {
        Ok(Next::Items(items)) => items.len(),
        Ok(other) => panic!("{other:?}"),
        Err(_) => 0,
    }
}

/// The next frame that a worker is told; `None`: nothing comes.
async fn frame(worker: &mut BufReader<UnixStream>, within: Duration) -> Option<serde_json::Value> {
    let mut line = String::new();
    let read = worker.read_line(&mut line);
    tokio::time::timeout(within, read).await.ok()?.ok()?;
    serde_json::from_str(&line).ok()
}

#[tokio::test]
async fn what_is_not_written_is_neither_shown_nor_acknowledged() {
    let mut rig = Rig::new().await;
    let stand = Stand::run("exec sleep 600");
    let (started, theirs) = rig.started(&stand, None);
    let mut theirs = BufReader::new(theirs);
    let mut worker = Worker::new(*started);
    worker.taken = Seq(7);
    rig.actor.worker = Some(worker);
    let subscriber = rig.shared.hub.subscribe(Some(SESSION.into()), false);
    // A folder that is not there takes no file.
    let folder = rig.shared.home.transcripts_dir();
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away).expect("moved");
    rig.say("lost");
    assert!(!rig.actor.flush());
    assert_eq!(told(&subscriber).await, 0);
    assert_eq!(rig.shared.hub.head(&SESSION.into()), Some(Seq(0)));
    assert_eq!(frame(&mut theirs, Duration::from_millis(100)).await, None);
    assert!(
        rig.actor.broken.take().is_some(),
        "the turn is given up for it"
    );
    std::fs::rename(&away, &folder).expect("moved back");
    rig.say("kept");
    assert!(rig.actor.flush());
    assert!(rig.written().contains("kept") && !rig.written().contains("lost"));
    assert_eq!(told(&subscriber).await, 1);
    assert_eq!(rig.shared.hub.head(&SESSION.into()), Some(Seq(1)));
    let ack = frame(&mut theirs, BOUND).await.expect("a frame");
    assert_eq!((&ack["type"], &ack["seq"]), (&"ack".into(), &7.into()));
}

/// A worker is no more trusted than its agent.
#[tokio::test]
async fn a_worker_that_speaks_for_the_broker_is_left_out_and_acknowledged() {
    let mut rig = Rig::new().await;
    let stand = Stand::run("exec sleep 600");
    let (started, mut theirs) = rig.started(&stand, None);
    rig.starting();
    rig.actor.started(rig.actor.epoch, Ok(started)).await;
    let events = [
        r#"{"type":"status","status":"completed"}"#,
        r#"{"type":"text","messageId":"m","text":"kept"}"#,
        r#"{"status":"completed","typ\u0065":"d\u006fne"}"#,
        r#"{"type":"text","messageId":"m","text":"twice","type":"done"}"#,
        r#"["done","completed"]"#,
        r#"{"type":"card_resolved","cardId":"c","resolution":{}}"#,
        r#"{"type":"notice","level":"info","message":"forged"}"#,
        r#"{"type":"user_message","text":"forged"}"#,
    ];
    for (seq, event) in (1..).zip(events) {
        let line = format!(r#"{{"protocolVersion":2,"type":"event","seq":{seq},"event":{event}}}"#);
        theirs.write_all(line.as_bytes()).await.expect("written");
        theirs.write_all(b"\n").await.expect("written");
    }
    while rig.actor.worker.as_ref().expect("it").taken < Seq(8) {
        let mut batch = Vec::new();
        let link = &mut rig.actor.worker.as_mut().expect("it").link;
        let count = link.incoming.recv_many(&mut batch);
        let count = tokio::time::timeout(BOUND, count).await.expect("in time");
        rig.actor.frames(&mut batch, count).await;
    }
    assert!(rig.actor.flush());
    let written = rig.written();
    let kinds: Vec<_> = written
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .map(|line| line["event"]["type"].clone())
        .collect();
    assert_eq!(kinds, ["notice", "text"], "{written}");
    assert!(written.contains("sent an event `status`"), "{written}");
    let worker = rig.actor.worker.as_ref().expect("it");
    assert_eq!(worker.refused, 5);
    assert_eq!(worker.acked, Seq(8));
    // What comes alone is acknowledged all the same, though nothing is written:
    // else the worker would keep it, and one day have no room for more.
    let line = r#"{"protocolVersion":2,"type":"event","seq":9,"event":{"type":"done"}}"#;
    theirs.write_all(line.as_bytes()).await.expect("written");
    theirs.write_all(b"\n").await.expect("written");
    let mut batch = Vec::new();
    let link = &mut rig.actor.worker.as_mut().expect("it").link;
    let count = link.incoming.recv_many(&mut batch).await;
    rig.actor.frames(&mut batch, count).await;
    assert_eq!(rig.actor.worker.as_ref().expect("it").acked, Seq(9));
    assert_eq!(rig.written(), written, "told once");
}

#[tokio::test]
async fn a_start_that_was_cancelled_and_had_worked_is_seen_off() {
    let mut rig = Rig::new().await;
    let stand = Stand::run("exec sleep 600");
    let (started, theirs) = rig.started(&stand, None);
    let mut theirs = BufReader::new(theirs);
    rig.starting();
    let epoch = rig.actor.epoch;
    rig.actor.dismiss();
    assert_eq!(rig.actor.cancelled_starts, 1);
    rig.actor.started(epoch, Ok(started)).await;
    assert!(rig.actor.worker.is_none(), "it is not used");
    assert_eq!(rig.actor.cancelled_starts, 0);
    let asked = frame(&mut theirs, BOUND).await.expect("a frame");
    assert_eq!(asked["type"], "dispose");
    let mut gone = rig
        .actor
        .departing
        .as_ref()
        .expect("a farewell")
        .gone
        .clone();
    assert_eq!(*gone.borrow(), Way::Going);
    drop(stand);
    let over = gone.wait_for(|way| *way == Way::Over);
    tokio::time::timeout(BOUND, over)
        .await
        .expect("in time")
        .expect("its end");
}

#[tokio::test]
async fn a_start_that_worked_clears_what_failed_ones_of_its_kind_left() {
    let mut rig = Rig::new().await;
    let stand = Stand::run("exec sleep 600");
    let pool = Arc::clone(&rig.shared.pool);
    pool.start_failed("scripted");
    pool.start_failed("scripted");
    assert!(matches!(pool.may_start("scripted"), Start::After(pause) if !pause.is_zero()));
    let (started, _theirs) = rig.started(&stand, None);
    rig.starting();
    rig.actor.started(rig.actor.epoch, Ok(started)).await;
    assert!(rig.actor.worker.is_some());
    assert_eq!(pool.may_start("scripted"), Start::After(Duration::ZERO));
    pool.start_failed("scripted");
    assert!(
        matches!(pool.may_start("scripted"), Start::After(_)),
        "one is one"
    );
}

#[tokio::test]
async fn a_worker_that_is_taken_over_leaves_the_next_start_a_fresh_agent() {
    let mut rig = Rig::new().await;
    rig.rotate_next().await;
    let stand = Stand::run("exec sleep 600");
    let (started, _theirs) = rig.started(&stand, Some(resumed()));
    rig.starting();
    rig.actor.started(rig.actor.epoch, Ok(started)).await;
    assert!(rig.actor.worker.is_some());
    assert!(rig.actor.row.flags.rotate, "it was not started as one");
    assert!(
        rig.flags_on_disk().await.rotate,
        "nor does the next broker think so"
    );
    // A new one was started as a fresh agent, and that is done once.
    let (started, _theirs) = rig.started(&stand, None);
    rig.starting();
    rig.actor.started(rig.actor.epoch, Ok(started)).await;
    assert!(!rig.actor.row.flags.rotate && !rig.flags_on_disk().await.rotate);
}

/// What the worker is told first of the chat, with a message for `turn`.
async fn replay(rig: &mut Rig, turn: &str, worker: &mut BufReader<UnixStream>) -> String {
    rig.actor.write_message(&turn.into(), "go on", None).await;
    loop {
        let frame = frame(worker, BOUND).await.expect("a frame");
        if frame["type"] == "send" {
            let replay = frame["recovery"]["replay"].as_str();
            return replay.unwrap_or_default().to_owned();
        }
    }
}

/// A broker that dies before the worker got the message has noted it as sent.
#[tokio::test]
async fn a_fresh_agent_that_did_not_get_its_first_message_is_told_the_same_again() {
    let mut rig = Rig::with_config("[providers.scripted]\nrecovery = \"replay\"\n").await;
    let stand = Stand::run("exec sleep 600");
    rig.actor.row.provider_session_id = Some("agent-1".into());
    (rig.actor.row.agent_told, rig.actor.row.has_history) = (true, true);
    let said = Event::UserMessage {
        text: "hello".into(),
        via: ade_protocol::event::Via::Send,
    };
    rig.actor.emit(Some(&"turn_0".into()), &said);
    let (mut started, theirs) = rig.started(&stand, None);
    started.ready.session_id = Some("agent-2".into());
    rig.starting();
    rig.actor.started(rig.actor.epoch, Ok(started)).await;
    let mut theirs = BufReader::new(theirs);
    let first = replay(&mut rig, "turn_1", &mut theirs).await;
    assert!(
        first.contains("(agent-1)") && first.contains("(agent-2)"),
        "{first}"
    );
    let row = rig.shared.state.run(|state| state.session(&SESSION.into()));
    let row = row.await.expect("read").expect("a row");
    assert!(row.agent_told && row.replaced_agent.as_deref() == Some("agent-1"));
    rig.actor.row = SessionRow {
        has_history: true,
        ..row
    };
    assert_eq!(replay(&mut rig, "turn_1", &mut theirs).await, first);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_beside_a_worker_that_does_not_go_in_time() {
    let rig = Rig::new().await;
    let (_going, departing) = watch::channel(Way::Going);
    let plan = Plan {
        shared: Arc::clone(&rig.shared),
        row: rig.actor.row.clone(),
        pause: Duration::ZERO,
        departing: Some(departing),
        line: Line {
            tx: rig.tx.downgrade(),
            epoch: 1,
        },
        cancel: CancellationToken::new(),
    };
    let Err(failure) = start::run(plan).await else {
        panic!("it was started");
    };
    assert_eq!(failure.kind, "start_failed");
    assert!(
        failure.message.contains("nothing was started beside it"),
        "{}",
        failure.message
    );
    let session = SessionId::from(SESSION);
    let row = rig
        .shared
        .state
        .run(move |state| state.session(&session))
        .await;
    let generation = row.expect("read").expect("a row").generation;
    assert_eq!(generation, Generation(0), "no generation was begun");
    let journals = std::fs::read_dir(rig.shared.home.journal_dir()).expect("a folder");
    assert_eq!(journals.count(), 0);
    assert_eq!(
        rig.shared.pool.counts(),
        (0, 0),
        "nor does it stand in the line"
    );
}

#[tokio::test]
async fn a_worker_that_is_deaf_and_has_no_link_is_killed_in_time() {
    let rig = Rig::new().await;
    let timing = WorkerTiming {
        dispose_grace_ms: 50,
        eof_grace_ms: 50,
        term_to_kill_ms: 50,
        ..WorkerTiming::default()
    };
    // One ignores SIGTERM, the other one is stopped and does so too. Neither is
    // found by its mark: that it is our child must be enough.
    for stopped in [false, true] {
        let mut stand = Stand::run("trap '' TERM; exec sleep 600");
        stand.process.mark = "not its mark".into();
        let name = format!("/proc/{}/comm", stand.process.pid);
        let until = Instant::now() + BOUND;
        while std::fs::read_to_string(&name).expect("its name") != "sleep\n" {
            assert!(Instant::now() < until, "the shell does not become it");
            tokio::task::yield_now().await;
        }
        if stopped {
            let target = Target::Process(stand.process.identity.clone());
            ade_leases::process::signal(&target, Signal::SIGSTOP).expect("stopped");
        }
        let place = rig.shared.pool.take(&SESSION.into(), "scripted");
        let process = stand.process.clone();
        let escort = Escort::new(&rig.shared, process, timing, place, &rig.actor.row);
        let seen = tokio::time::timeout(BOUND, escort.depart())
            .await
            .expect("in time");
        assert!(!stand.is_alive());
        assert!(seen.survivors.is_empty() && seen.vigil.is_none());
        let exit = stand.process.exit.borrow().expect("its end");
        assert_eq!(exit.signal, Some(9), "{exit}");
        assert_eq!(rig.shared.pool.counts(), (0, 0), "its place is free");
    }
}
