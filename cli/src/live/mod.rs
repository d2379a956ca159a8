//! A session followed live, with cards asked on the terminal.
//!
//! One loop serves `run`, `attach`, `chat send --wait` and `chat show
//! --follow`: it hears events, typed lines and Ctrl-C, shows what is to be
//! shown, asks open cards one after the other, and connects again when the broker is replaced. The commands decide
//! what a typed line or a Ctrl-C means and when to leave.
//!
//! Invariants:
//! - a card is answered by what was typed after its question was shown;
//! - without a terminal and without `--yes` a card is declined, visibly;
//! - events are shown in the order of their numbers, none twice.

use std::collections::VecDeque;
use std::time::Duration;

use ade_protocol::action::{Aborted, ChatAbort, SubscribeParams, name};
use ade_protocol::card::Card;
use ade_protocol::event::{Envelope, Event};
use ade_protocol::strict;
use ade_protocol::{Generation, RequestId, Seq, SessionId, TurnId, exit};
use serde_json::value::RawValue;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until};

use crate::client::{Client, Events, Notification, QUICK};
use crate::context::Context;
use crate::error::CommandError;
use crate::input::{Echo, Input};
use crate::output::Style;
use crate::spinner::Spinner;
use crate::view::{Piece, View};

mod cards;

/// How long a lost broker is waited for: a replacement takes less.
const REJOIN: Duration = Duration::from_secs(8);
/// After so long of it a broker that ran a turn has crashed.
const CRASHED: Duration = Duration::from_secs(1);
/// Pause between two tries.
const REJOIN_PAUSE: Duration = Duration::from_millis(100);
/// Cards whose end is remembered; only to say nothing twice.
const REMEMBERED: usize = 256;

/// Who answers cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// The person at the terminal.
    Person,
    /// Nobody; what asks for permission is allowed.
    Allow,
    /// Nobody; everything is declined.
    Decline,
    /// Not this command: cards are only shown.
    Elsewhere,
}

impl Answers {
    /// For commands that only look on when no person can be asked: somebody
    /// else may be there to answer.
    #[must_use]
    pub(crate) fn or_elsewhere(self) -> Self {
        if self == Self::Decline {
            Self::Elsewhere
        } else {
            self
        }
    }
}

/// What the command has to decide about.
#[derive(Debug)]
pub(crate) enum Wake {
    /// An event that was just shown.
    Event(Box<Envelope<Event>>),
    /// A typed line; `None`: the end of input.
    Typed(Option<String>),
    /// Ctrl-C.
    Interrupt,
}

/// How to follow.
#[derive(Debug)]
pub(crate) struct Options {
    /// The chat.
    pub(crate) session: SessionId,
    /// Show what comes after this event.
    pub(crate) after: Seq,
    /// What came until here happened before: its cards are history.
    pub(crate) history: Seq,
    /// Show this turn only.
    pub(crate) turn: Option<TurnId>,
    /// Who answers cards.
    pub(crate) answers: Answers,
    /// Whether what users said is shown.
    pub(crate) show_user: bool,
}

/// A session followed live.
#[derive(Debug)]
pub(crate) struct Live<'a> {
    context: &'a Context,
    /// The connection that asks.
    pub(crate) calls: Client,
    events: Events,
    options: Options,
    last: Seq,
    view: View,
    input: Input,
    interrupts: Signal,
    ticks: Interval,
    spinner: Spinner,
    cards: VecDeque<Card>,
    /// Open cards whose event was not seen yet, and until when it is waited for.
    announced: VecDeque<(Instant, Card)>,
    /// Cards whose event was seen; the last ones.
    opened: VecDeque<RequestId>,
    asked: bool,
    /// The turn is being ended: its questions are not put any more.
    hushed: bool,
    /// The card whose question something else was shown behind.
    talked_over: Option<RequestId>,
    /// Typed before the question that is shown now, so not an answer to it.
    early: Option<Option<String>>,
    echo: Option<Echo>,
    settled: VecDeque<(Generation, RequestId)>,
}

impl<'a> Live<'a> {
    /// Begins to follow.
    ///
    /// # Errors
    /// The broker refuses the subscription or is gone.
    pub(crate) async fn start(
        context: &'a Context,
        mut calls: Client,
        options: Options,
    ) -> Result<Self, CommandError> {
        let mut interrupts = signal(SignalKind::interrupt())
            .map_err(|e| CommandError::failed("Ctrl-C cannot be caught").because(e))?;
        let events = match subscribe(context, &options.session, options.after).await {
            // The message was taken a moment ago: its turn goes on without the
            // broker, as it would a moment later.
            Err(error) if options.turn.is_some() && is_gone(&error) => {
                let session = &options.session;
                let again = regain(context, session, options.after, true, &mut interrupts).await;
                let Some((client, events)) = again? else {
                    return Err(lost(session, error));
                };
                calls = client;
                events
            }
            subscribed => subscribed?,
        };
        let mut ticks = interval(Spinner::TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let view = View::new(options.show_user);
        let mut live = Self {
            context,
            calls,
            events,
            last: options.after,
            options,
            view,
            input: Input::new(),
            interrupts,
            ticks,
            spinner: Spinner::new(Instant::now()),
            cards: VecDeque::new(),
            announced: VecDeque::new(),
            opened: VecDeque::new(),
            asked: false,
            hushed: false,
            talked_over: None,
            early: None,
            echo: None,
            settled: VecDeque::new(),
        };
        let open = std::mem::take(&mut live.events.open_cards);
        for card in open {
            live.announced(card).await?;
        }
        Ok(live)
    }

    /// Whether a person types.
    #[must_use]
    pub(crate) fn person_types(&self) -> bool {
        self.input.is_terminal()
    }

    /// Says whether a turn runs: only then silence is worth a progress line.
    pub(crate) fn set_busy(&mut self, busy: bool) {
        self.spinner.set_busy(busy, Instant::now());
    }

    /// Waits for the next thing that the command has to decide about. Typed
    /// lines that answer a card don't come here; others only when `typed`.
    ///
    /// # Errors
    /// The broker is gone for good, or output is not possible.
    pub(crate) async fn next(&mut self, typed: bool) -> Result<Wake, CommandError> {
        loop {
            self.put_question();
            if typed
                && !self.asked
                && let Some(line) = self.early.take()
            {
                return Ok(Wake::Typed(line));
            }
            let heard = {
                let wants_line = typed || self.asked;
                let tick = self.context.out.err_is_terminal() && !self.asked;
                let overdue = self.overdue_at();
                tokio::select! {
                    _ = self.interrupts.recv() => Heard::Interrupt,
                    heard = self.events.next() => Heard::Notification(heard),
                    line = self.input.line(), if wants_line => Heard::Typed(line),
                    _ = self.ticks.tick(), if tick => Heard::Tick,
                    () = sleep_until(overdue.unwrap_or_else(Instant::now)), if overdue.is_some() => Heard::Overdue,
                }
            };
            match heard {
                Heard::Interrupt => {
                    // Not put again while the turn ends, nor told of twice.
                    self.hushed |= self.asked;
                    self.leave_question();
                    return Ok(Wake::Interrupt);
                }
                Heard::Typed(line) if self.asked => self.typed_answer(line).await?,
                Heard::Typed(line) => return Ok(Wake::Typed(line)),
                Heard::Tick => self.spinner.tick(Instant::now(), &self.context.out),
                Heard::Notification(Ok(Notification::Event(raw))) => {
                    if let Some(envelope) = self.show(raw.get())? {
                        match &envelope.event {
                            Event::CardOpened { card } => self.card_event(&card.card_id).await?,
                            Event::Done { .. } => self.hushed = false,
                            _ => {}
                        }
                        return Ok(Wake::Event(envelope));
                    }
                }
                Heard::Notification(Ok(Notification::Card(card))) => self.card(*card).await?,
                Heard::Overdue => self.overdue().await?,
                Heard::Notification(Err(error)) => self.rejoin(error).await?,
            }
        }
    }

    /// Tells the running turn to end. A second Ctrl-C while that is asked ends
    /// the command at once.
    ///
    /// # Errors
    /// The broker's own, or the end of the command with exit code 130.
    pub(crate) async fn abort(
        &mut self,
        turn: Option<TurnId>,
    ) -> Result<Option<TurnId>, CommandError> {
        let arguments = ChatAbort {
            session_id: self.options.session.clone(),
            turn_id: turn,
        };
        tokio::select! {
            aborted = self.calls.call::<_, Aborted>(name::CHAT_ABORT, &arguments, QUICK) => {
                aborted.map(|aborted| aborted.turn_id)
            }
            _ = self.interrupts.recv() => Err(CommandError::silent(exit::INTERRUPTED)),
        }
    }

    // ---- events

    /// Shows an envelope; `None` when it is not one of ours.
    fn show(&mut self, text: &str) -> Result<Option<Box<Envelope<Event>>>, CommandError> {
        let Ok(envelope) = strict::from_str::<Envelope<Box<RawValue>>>(text) else {
            return Ok(None);
        };
        let Ok(event) = strict::from_str::<Event>(envelope.event.get()) else {
            return Ok(None);
        };
        // What is not persisted carries the number of what was before it.
        let persisted = !matches!(event, Event::Activity { .. });
        if envelope.session_id != self.options.session
            || (persisted && envelope.sequence <= self.last)
        {
            return Ok(None);
        }
        self.last = self.last.max(envelope.sequence);
        self.spinner.note(&event, Instant::now());
        let other_turn = match (&self.options.turn, &envelope.turn_id) {
            (Some(wanted), Some(turn)) => wanted != turn,
            _ => false,
        };
        if let Event::CardResolved {
            card_id,
            resolution,
        } = &event
        {
            self.card_settled(card_id, resolution);
        }
        if !other_turn {
            if self.context.out.json() {
                self.context.out.json_line(text)?;
            } else if !self.asks_it(&event, envelope.sequence) {
                self.print(&event)?;
            }
        }
        Ok(Some(Box::new(Envelope {
            session_id: envelope.session_id,
            sequence: envelope.sequence,
            timestamp: envelope.timestamp,
            turn_id: envelope.turn_id,
            origin: envelope.origin,
            event,
        })))
    }

    /// Whether the event is told by a question of ours instead.
    fn asks_it(&self, event: &Event, sequence: Seq) -> bool {
        let now = sequence > self.options.history;
        match event {
            Event::CardOpened { .. } => now && self.options.answers == Answers::Person,
            Event::CardResolved { card_id, .. } => {
                now && self.settled.iter().any(|(_, settled)| settled == card_id)
            }
            _ => false,
        }
    }

    fn print(&mut self, event: &Event) -> Result<(), CommandError> {
        let pieces = self.view.pieces(event);
        if pieces
            .iter()
            .any(|piece| !matches!(piece, Piece::Activity(_)))
        {
            self.talk_over();
        }
        let out = &self.context.out;
        for piece in pieces {
            match piece {
                Piece::Answer(text) => out.answer(&text)?,
                Piece::NewMessage => out.end_answer()?,
                Piece::Aside(text) => out.aside(Style::Dim, &text),
                Piece::Line(style, text) => out.note(style, &text),
                Piece::Activity(text) => self.spinner.activity(text),
            }
        }
        if matches!(event, Event::Done { .. }) {
            out.end_answer()?;
        }
        Ok(())
    }

    /// The connection is lost: a broker that is being replaced answers again
    /// soon. In the middle of a turn one is started when none comes: that
    /// broker crashed, because one that stops ends its turns first. Without a
    /// turn none is started, so that `ade stop` stays true.
    /// What the broker itself said of the end would only be said again.
    async fn rejoin(&mut self, why: std::io::Error) -> Result<(), CommandError> {
        let why = match why.downcast::<CommandError>() {
            Ok(said) => return Err(said),
            Err(why) => why,
        };
        let busy = self.spinner.busy();
        let session = &self.options.session;
        let again = regain(self.context, session, self.last, busy, &mut self.interrupts).await?;
        let Some((calls, events)) = again else {
            return Err(lost(session, why));
        };
        self.calls = calls;
        self.events = events;
        let open = std::mem::take(&mut self.events.open_cards);
        for card in open {
            self.announced(card).await?;
        }
        Ok(())
    }
}

/// Waits for a broker after the connection to one was lost; `None` when none
/// came in time. `busy`: a turn runs, so one that stays away is started.
async fn regain(
    context: &Context,
    session: &SessionId,
    after: Seq,
    busy: bool,
    interrupts: &mut Signal,
) -> Result<Option<(Client, Events)>, CommandError> {
    let out = &context.out;
    out.note(
        Style::Warn,
        "the connection to the broker was lost; waiting for it",
    );
    let begun = Instant::now();
    loop {
        tokio::select! {
            () = sleep(REJOIN_PAUSE) => {}
            _ = interrupts.recv() => return Err(CommandError::silent(exit::INTERRUPTED)),
        }
        let crashed = busy && begun.elapsed() >= CRASHED;
        let calls = if crashed {
            context.broker().await
        } else {
            context.running_broker().await
        };
        match calls {
            Ok(calls) => match subscribe(context, session, after).await {
                Ok(events) => {
                    out.note(Style::Dim, "connected again");
                    return Ok(Some((calls, events)));
                }
                // That one is gone too.
                Err(error) if is_gone(&error) && begun.elapsed() < REJOIN => {}
                Err(error) => return Err(error),
            },
            Err(_) if begun.elapsed() < REJOIN => {}
            Err(_) => return Ok(None),
        }
    }
}

/// Whether the broker was there and is not any more.
fn is_gone(error: &CommandError) -> bool {
    matches!(error.kind(), "no_broker" | "broker_gone")
}

fn lost(
    session: &SessionId,
    why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> CommandError {
    CommandError::new("broker_gone", exit::NO_BROKER, "the broker went away")
        .because(why)
        .hint(format!(
            "`ade attach {session}` starts one that takes a running turn over"
        ))
}

enum Heard {
    Interrupt,
    Notification(std::io::Result<Notification>),
    Typed(Option<String>),
    Tick,
    Overdue,
}

async fn subscribe(
    context: &Context,
    session: &SessionId,
    after: Seq,
) -> Result<Events, CommandError> {
    let params = SubscribeParams {
        session_id: Some(session.clone()),
        after_sequence: Some(after),
    };
    context.running_broker().await?.subscribe(&params).await
}
