//! `ade demo`: the main job, shown on the embedded `scripted` provider.
//!
//! The demo runs the real thing: a broker as a process of its own, workers,
//! hosts, leases. It lives in a folder of its own, touches nothing of the
//! user's and leaves nothing. Every line at the end is an expectation that was
//! checked; exit code 0 only if all hold.

use std::path::Path;
use std::time::Duration;

use ade_leases::lease::{Status, status};
use ade_leases::owner::{self, Owner};
use ade_leases::process::{Pid, ProcessIdentity, Signal, Target, signal};
use ade_protocol::action::{
    CardAnswer, CardAnswered, ChatCreate, ChatSend, Nothing, PermissionMode, Sent, SessionInfo,
    SessionList, SubscribeParams, name,
};
use ade_protocol::card::{Answer, Card};
use ade_protocol::event::{Envelope, Event};
use ade_protocol::exit;
use ade_protocol::strict;
use tokio::signal::unix::{SignalKind, signal as unix_signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use self::cast::{Actor, CAST, FIRST_EVENT_MS, Part, Role, Seen};
use self::checks::Facts;
use self::report::{Check, Report};
use self::stage::Stage;
use crate::args::{Demo, DemoLease};
use crate::client::{Client, Events, Notification, QUICK};
use crate::context::Context;
use crate::error::CommandError;
use crate::output::{Output, Style};
use crate::table::short_id;

mod cast;
mod checks;
mod fight;
mod guard;
mod report;
mod stage;

pub(super) use guard::guard;

/// The whole demo, in time.
const WHOLE: Duration = Duration::from_secs(20);
/// The turns of it.
const TURNS: Duration = Duration::from_secs(14);
/// After so long the card is answered and the worker killed though not all
/// stream: the check then says so.
const PATIENCE: Duration = Duration::from_secs(7);
/// How long all stream before something happens.
const ENJOY: Duration = Duration::from_millis(500);
/// How often processes are looked at and the picture is drawn.
const TICK: Duration = Duration::from_millis(200);

/// One side of the lease fight.
pub(super) fn lease_side(context: &Context, arguments: &DemoLease) -> Result<(), CommandError> {
    fight::side(context, arguments)
}

/// Runs the demo.
pub(super) async fn run(context: &Context, arguments: &Demo) -> Result<(), CommandError> {
    let out = &context.out;
    let began = Instant::now();
    let report = tokio::select! {
        report = timeout(WHOLE, play(out, arguments.keep, began)) => report.unwrap_or_else(|_| {
            let text = format!("the demo did not end within {} s", WHOLE.as_secs());
            Err(CommandError::new("timed_out", exit::TIMED_OUT, text))
        })?,
        () = told_to_end() => return Err(CommandError::silent(exit::INTERRUPTED)),
    };
    if out.json() {
        out.document(&report)?;
    }
    if report.ok {
        Ok(())
    } else {
        Err(CommandError::silent(exit::FAILED))
    }
}

/// Ctrl-C, SIGTERM, or the terminal was closed: each ends the demo with
/// everything of it.
async fn told_to_end() {
    let heard = |kind: SignalKind| async move {
        match unix_signal(kind) {
            Ok(mut signals) => drop(signals.recv().await),
            // A signal that cannot be watched ends the process by itself; the
            // guard then sees the end of its pipe.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = heard(SignalKind::interrupt()) => {}
        () = heard(SignalKind::terminate()) => {}
        () = heard(SignalKind::hangup()) => {}
    }
}

async fn play(out: &Output, keep: bool, began: Instant) -> Result<Report, CommandError> {
    tell(
        out,
        Style::Bold,
        "ade demo: six chats in three lanes at once, each in a worker process of its own",
    )?;
    tell(out, Style::Plain, "")?;
    let lanes: Vec<&str> = CAST.iter().map(|part| part.lane).collect();
    let (stage, client) = Stage::set(keep, &lanes).await?;
    let text = format!(
        "a broker of its own runs: process {}, in {}",
        stage.pid,
        stage.path().display()
    );
    tell(out, Style::Plain, &text)?;
    let mut show = Show::begin(out, stage, client, began).await?;
    show.turns().await?;
    tell(
        out,
        Style::Plain,
        "all turns are over; two processes fight for one lease",
    )?;
    let fight = fight::fight(&show.stage.path().join("fight.jsonl")).await?;
    tell(out, Style::Plain, "the broker is told to stop")?;
    let end = show.stop().await;
    let report = show.report(fight.into(), end);
    print(out, &report)?;
    Ok(report)
}

/// A line of the story; with `--json` there is no story.
fn tell(out: &Output, style: Style, text: &str) -> Result<(), CommandError> {
    if out.json() {
        return Ok(());
    }
    out.clear_live();
    out.line(&out.paint(style, text))
}

struct Show<'a> {
    out: &'a Output,
    began: Instant,
    stage: Stage,
    calls: Client,
    events: Events,
    actors: Vec<Actor>,
    /// Since when all stream.
    together: Option<Instant>,
    card: Option<Card>,
    killed: bool,
}

impl<'a> Show<'a> {
    /// Makes the chats and sends each its message.
    async fn begin(
        out: &'a Output,
        stage: Stage,
        mut calls: Client,
        began: Instant,
    ) -> Result<Self, CommandError> {
        let listener = Client::connect(&stage.home.control_socket()).await?;
        let events = listener.subscribe(&SubscribeParams::default()).await?;
        let mut actors = Vec::new();
        for part in CAST {
            let info = create(&mut calls, &stage.lane(part.lane), part).await?;
            let session = info.session_id.clone();
            actors.push(Actor {
                part,
                session,
                info,
                seen: Seen::default(),
            });
        }
        for actor in &actors {
            let send = ChatSend {
                session_id: actor.session.clone(),
                prompt: actor.part.prompt.to_owned(),
                retry: false,
            };
            let _: Sent = calls.call(name::CHAT_SEND, &send, QUICK).await?;
            let id = short_id(actor.session.as_str());
            tell(
                out,
                Style::Dim,
                &format!("  {id}  {:<5} {}", actor.part.lane, actor.part.about),
            )?;
        }
        tell(out, Style::Plain, "each got its message")?;
        Ok(Self {
            out,
            began,
            stage,
            calls,
            events,
            actors,
            together: None,
            card: None,
            killed: false,
        })
    }

    /// Follows all turns to their end, answers the card and kills the worker.
    async fn turns(&mut self) -> Result<(), CommandError> {
        let until = Instant::now() + TURNS;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.actors.iter().any(|actor| actor.seen.done.is_empty()) {
            tokio::select! {
                heard = self.events.next() => self.hear(heard)?,
                _ = ticks.tick() => self.tick().await?,
                () = sleep_until(until) => break,
            }
        }
        self.tick().await?;
        self.out.clear_live();
        Ok(())
    }

    fn hear(&mut self, heard: std::io::Result<Notification>) -> Result<(), CommandError> {
        let notification = heard.map_err(|error| {
            CommandError::failed("the demo's broker went away in the middle").because(error)
        })?;
        match notification {
            Notification::Event(raw) => {
                let Ok(envelope) = strict::from_str::<Envelope<Event>>(raw.get()) else {
                    return Ok(());
                };
                let session = envelope.session_id;
                let actor = self
                    .actors
                    .iter_mut()
                    .find(|actor| actor.session == session);
                if let Some(actor) = actor {
                    actor
                        .seen
                        .note(envelope.sequence, &envelope.event, Instant::now());
                }
            }
            Notification::Card(told) if told.resolution.is_none() => {
                let id = short_id(told.card.session_id.as_str()).to_owned();
                let title = told
                    .card
                    .payload
                    .title
                    .as_ref()
                    .unwrap_or(&told.card.payload.message);
                let text = format!("{id} asks: {}", crate::table::clipped(title, 60));
                tell(self.out, Style::Warn, &text)?;
                self.card = Some(told.card);
            }
            Notification::Card(_) => {}
        }
        if self.together.is_none() && self.all_stream() {
            self.together = Some(Instant::now());
            tell(self.out, Style::Good, "all but the hanging one stream now")?;
        }
        Ok(())
    }

    fn all_stream(&self) -> bool {
        let mut streaming = self
            .actors
            .iter()
            .filter(|actor| actor.part.role != Role::Hangs);
        streaming.all(|actor| actor.seen.streams())
    }

    async fn tick(&mut self) -> Result<(), CommandError> {
        let list: SessionList = self
            .calls
            .call(name::SESSIONS_LIST, &Nothing {}, QUICK)
            .await?;
        for info in list.sessions {
            let actor = self
                .actors
                .iter_mut()
                .find(|actor| actor.session == info.session_id);
            let Some(actor) = actor else { continue };
            actor.seen.workers.extend(info.worker_pid);
            actor.seen.lease |= info.lease_held;
            actor.info = info;
        }
        let workers: Vec<(usize, i32)> = self
            .actors
            .iter()
            .enumerate()
            .filter_map(|(number, actor)| Some((number, actor.info.worker_pid?)))
            .collect();
        self.stage.remember_processes(&workers);
        let enjoyed = self.together.is_some_and(|since| since.elapsed() >= ENJOY);
        if enjoyed || self.began.elapsed() >= PATIENCE {
            self.kill_once()?;
            self.answer().await?;
        }
        self.draw();
        Ok(())
    }

    fn kill_once(&mut self) -> Result<(), CommandError> {
        let victim = self
            .actors
            .iter()
            .find(|actor| actor.part.role == Role::Killed);
        let pid = victim.and_then(|actor| Pid::new(i64::from(actor.info.worker_pid?)));
        let (Some(pid), false) = (pid, self.killed) else {
            return Ok(());
        };
        self.killed = true;
        let failed = |text: String| CommandError::failed(text);
        let identity = ProcessIdentity::of(pid)
            .map_err(|e| failed(format!("the worker {pid} cannot be looked at")).because(e))?
            .ok_or_else(|| failed(format!("the worker {pid} is gone too early")))?;
        signal(&Target::Process(identity), Signal::SIGKILL)
            .map_err(|e| failed(format!("the worker {pid} could not be killed")).because(e))?;
        tell(
            self.out,
            Style::Warn,
            &format!("the worker {pid} gets SIGKILL in the middle of its turn"),
        )
    }

    async fn answer(&mut self) -> Result<(), CommandError> {
        let Some(card) = self.card.take() else {
            return Ok(());
        };
        let arguments = CardAnswer {
            card_id: card.card_id,
            session_id: Some(card.session_id),
            answer: Answer {
                ok: true,
                value: Some("allow".into()),
            },
        };
        let _: CardAnswered = self
            .calls
            .call(name::CARDS_ANSWER, &arguments, QUICK)
            .await?;
        tell(self.out, Style::Warn, "the demo answers: allow")
    }

    fn draw(&self) {
        if self.out.json() {
            return;
        }
        let lines: Vec<String> = self
            .actors
            .iter()
            .map(|actor| {
                let bar = "▪".repeat(usize::try_from(actor.seen.texts / 8).unwrap_or(0).min(30));
                let style = match actor.doing() {
                    "completed" => Style::Good,
                    "failed" | "interrupted" => Style::Bad,
                    "streams" => Style::Accent,
                    _ => Style::Warn,
                };
                format!(
                    "  {}  {:<5} {} {:>5} {bar}",
                    short_id(actor.session.as_str()),
                    actor.part.lane,
                    self.out.paint_err(style, &format!("{:<12}", actor.doing())),
                    actor.seen.texts,
                )
            })
            .collect();
        self.out.live(&lines);
    }

    /// Tells the broker to stop and waits for its end.
    async fn stop(&mut self) -> Result<Duration, String> {
        let asked = Instant::now();
        match self
            .calls
            .call::<_, Nothing>(name::BROKER_STOP, &Nothing {}, QUICK)
            .await
        {
            Ok(_) => {}
            Err(error) if error.kind() == "broker_gone" => {}
            Err(error) => return Err(error.to_string()),
        }
        let status = self
            .stage
            .wait_for_end()
            .await
            .map_err(|error| error.to_string())?;
        if status.success() {
            Ok(asked.elapsed())
        } else {
            Err(format!("it ended with {status}"))
        }
    }

    fn report(self, fight: Vec<fight::Side>, end: Result<Duration, String>) -> Report {
        let leftovers = self.stage.leftovers();
        let files: Vec<Option<&str>> = self
            .actors
            .iter()
            .map(|actor| actor.info.session_file.as_deref())
            .collect();
        let leases: Vec<&'static str> = files.iter().map(|file| lease_state(*file)).collect();
        let owned = |file: &&str| matches!(owner::read(Path::new(file)), Ok(Owner::Owned(_)));
        let facts = Facts {
            owners: files.iter().flatten().filter(|file| owned(file)).count(),
            leases: leases.clone(),
            fight: fight.clone(),
            end,
            processes: self.stage.processes_seen(),
            leftovers: leftovers.iter().map(|(pid, _)| *pid).collect(),
        };
        let mut checks = checks::of_turns(&self.actors);
        checks.extend(checks::of_the_rest(&self.actors, &facts));
        let seconds = self.began.elapsed().as_secs_f64();
        let in_time = seconds < WHOLE.as_secs_f64();
        checks.push(Check {
            ok: in_time,
            text: format!("all of it took {seconds:.1} s"),
        });
        let rows = self
            .actors
            .iter()
            .zip(leases)
            .enumerate()
            .map(|(number, (actor, lease))| {
                let left = leftovers
                    .iter()
                    .filter(|(_, chat)| *chat == Some(number))
                    .count();
                report::row(actor, lease, left)
            });
        Report {
            ok: checks.iter().all(|check| check.ok),
            seconds,
            sessions: rows.collect(),
            checks,
            fight,
            leftover_processes: leftovers.len(),
            kept: self
                .stage
                .is_kept()
                .then(|| self.stage.path().display().to_string()),
        }
    }
}

async fn create(calls: &mut Client, lane: &Path, part: Part) -> Result<SessionInfo, CommandError> {
    let create = ChatCreate {
        provider: "scripted".into(),
        lane: lane.to_string_lossy().into_owned(),
        model: None,
        thinking: None,
        permission: PermissionMode::Default,
        session_file: None,
        take_over: false,
        agent_dir: None,
        title: Some(part.about.into()),
        first_event_ms: (part.role == Role::Hangs).then_some(FIRST_EVENT_MS),
    };
    calls.call(name::CHAT_CREATE, &create, QUICK).await
}

fn lease_state(file: Option<&str>) -> &'static str {
    match file.map(|file| status(Path::new(file))) {
        None => "no file",
        Some(Status::Free) => "free",
        Some(Status::Held { .. } | Status::MovedAside(_)) => "held",
        Some(Status::Dead { .. } | Status::Damaged) => "left behind",
        Some(_) => "unknown",
    }
}

fn print(out: &Output, report: &Report) -> Result<(), CommandError> {
    if out.json() {
        return Ok(());
    }
    out.line("")?;
    for check in &report.checks {
        let (style, word) = if check.ok {
            (Style::Good, "ok  ")
        } else {
            (Style::Bad, "FAIL")
        };
        out.line(&format!("{} {}", out.paint(style, word), check.text))?;
    }
    out.line("")?;
    for (index, line) in report::table(&report.sessions).lines().iter().enumerate() {
        let style = if index == 0 {
            Style::Bold
        } else {
            Style::Plain
        };
        out.line(&out.paint(style, line))?;
    }
    out.line("")?;
    match &report.kept {
        Some(folder) => out.line(&format!("kept: {folder}"))?,
        None => out.line(&out.paint(
            Style::Dim,
            "the demo's folder is gone; `ade run` starts a chat of yours",
        ))?,
    }
    Ok(())
}
