//! What is particular to each kind of agent: how its own events become
//! canonical ones, and the scripted host.

mod pi;
pub(crate) mod scripted;

use ade_protocol::Generation;
use ade_protocol::event::{Author, Event, EventKind, EventType, NoticeLevel, event_type};
use serde_json::value::RawValue;

/// An event of a host that cannot be mapped. The text never quotes it.
#[derive(Debug, thiserror::Error)]
#[error("an event of the agent is not what its kind promises: {0}")]
pub(crate) struct MapError(String);

impl From<serde_json::Error> for MapError {
    fn from(error: serde_json::Error) -> Self {
        Self(format!(
            "{:?} error at column {}",
            error.classify(),
            error.column()
        ))
    }
}

/// What an event of a host says.
#[derive(Debug)]
pub(crate) enum Mapped<'a> {
    /// A canonical event as JSON text.
    Event(EventKind, &'a str),
    /// A notice: the broker makes the event of it.
    Notice(NoticeLevel, String),
    /// An event that only the broker writes; the name that it bears.
    Refused(String),
}

/// Characters of an event's type that are repeated.
const MAX_NAME: usize = 64;

/// Turns a provider's own events into canonical ones.
#[derive(Debug)]
pub(crate) enum Mapper {
    /// The host speaks canonical events already.
    Identity,
    /// Pi's events.
    Pi(pi::Mapper),
}

impl Mapper {
    /// The mapper for a kind of agent.
    pub(crate) fn new(provider: &str, generation: Generation) -> Self {
        match provider {
            "pi" => Self::Pi(pi::Mapper::new(generation)),
            _ => Self::Identity,
        }
    }

    /// Maps one event; `emit` gets each thing that it says. An event that clients
    /// have no use for says nothing.
    ///
    /// # Errors
    /// [`MapError`] when the event has not the shape that its kind promises.
    pub(crate) fn map(
        &mut self,
        raw: &RawValue,
        mut emit: impl FnMut(Mapped<'_>),
    ) -> Result<(), MapError> {
        match self {
            Self::Identity => {
                let EventType { kind, name } = event_type(raw)?;
                if name.is_empty() {
                    return Err(MapError("its type is empty".into()));
                }
                emit(match kind.author() {
                    Author::Worker => Mapped::Event(kind, raw.get()),
                    Author::Broker => Mapped::Refused(name.chars().take(MAX_NAME).collect()),
                });
                Ok(())
            }
            Self::Pi(mapper) => {
                match mapper.map(raw)? {
                    Some(Event::Notice { level, message }) => emit(Mapped::Notice(level, message)),
                    Some(event) => {
                        let text = serde_json::to_string(&event)?;
                        emit(Mapped::Event(event.kind(), &text));
                    }
                    None => {}
                }
                Ok(())
            }
        }
    }
}
