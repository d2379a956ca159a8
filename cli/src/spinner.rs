//! The progress line while nothing streams: what is being waited for, and for
//! how long.

use std::time::Duration;

use ade_protocol::event::Event;
use tokio::time::Instant;

use crate::output::Output;

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
/// Silence until the line appears.
const PATIENCE: Duration = Duration::from_millis(300);

/// What is being waited for.
#[derive(Debug)]
pub(crate) struct Spinner {
    busy: bool,
    since: Instant,
    frame: usize,
    waiting_for: String,
}

impl Spinner {
    /// How often the line is drawn.
    pub(crate) const TICK: Duration = Duration::from_millis(120);

    /// Nothing is being waited for yet.
    #[must_use]
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            busy: false,
            since: now,
            frame: 0,
            waiting_for: String::new(),
        }
    }

    /// A turn began, or is over.
    pub(crate) fn set_busy(&mut self, busy: bool, now: Instant) {
        self.busy = busy;
        self.since = now;
        self.waiting_for = "waiting for the agent".into();
    }

    /// Whether a turn runs.
    #[must_use]
    pub(crate) fn busy(&self) -> bool {
        self.busy
    }

    /// Something happened.
    pub(crate) fn note(&mut self, event: &Event, now: Instant) {
        self.since = now;
        match event {
            Event::ToolCall { name, .. } => self.waiting_for = format!("{name} runs"),
            Event::Activity { .. } | Event::CardOpened { .. } | Event::CardResolved { .. } => {}
            _ => self.waiting_for = "waiting for the agent".into(),
        }
    }

    /// The wait begins now: a person has just answered.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.since = now;
    }

    /// The agent's own word for what goes on.
    pub(crate) fn activity(&mut self, text: String) {
        self.waiting_for = text;
    }

    /// Draws the line if it is time for it.
    pub(crate) fn tick(&mut self, now: Instant, out: &Output) {
        let silent = now.saturating_duration_since(self.since);
        if !self.busy || silent < PATIENCE || !out.progress_fits() {
            return;
        }
        self.frame = (self.frame + 1) % FRAMES.len();
        let text = format!(
            "{} {} · {} s",
            FRAMES[self.frame],
            self.waiting_for,
            silent.as_secs()
        );
        out.progress(&crate::table::clipped(&text, 78));
    }
}
