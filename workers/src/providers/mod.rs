//! What is particular to each kind of agent: how its own events become
//! canonical ones, and the scripted host.

mod pi;
pub(crate) mod scripted;

use ade_protocol::Generation;
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

    /// Maps one event; `emit` gets each canonical event as JSON text. An event
    /// that clients have no use for gives none.
    ///
    /// # Errors
    /// [`MapError`] when the event has not the shape that its kind promises.
    pub(crate) fn map(
        &mut self,
        raw: &RawValue,
        mut emit: impl FnMut(&str),
    ) -> Result<(), MapError> {
        match self {
            Self::Identity => {
                let kind = ade_protocol::event::event_type(raw)?;
                if kind.is_empty() {
                    return Err(MapError("its type is empty".into()));
                }
                emit(raw.get());
                Ok(())
            }
            Self::Pi(mapper) => {
                if let Some(event) = mapper.map(raw)? {
                    emit(&serde_json::to_string(&event)?);
                }
                Ok(())
            }
        }
    }
}
