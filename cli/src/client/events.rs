//! A connection that listens.

use std::collections::VecDeque;
use std::io;

use ade_protocol::action::CardNotification;
use ade_protocol::rpc;
use ade_protocol::strict;
use serde_json::value::RawValue;

use super::Wire;
use crate::error::CommandError;

/// What a connection that listens hears.
#[derive(Debug)]
pub(crate) enum Notification {
    /// An event: the text of an envelope.
    Event(Box<RawValue>),
    /// A card was opened or settled.
    Card(Box<CardNotification>),
}

impl Notification {
    pub(super) fn from_parts(method: &str, params: Option<Box<RawValue>>) -> Option<Self> {
        let params = params?;
        match method {
            rpc::EVENT => Some(Self::Event(params)),
            rpc::CARD => strict::from_str(params.get())
                .ok()
                .map(|card| Self::Card(Box::new(card))),
            // The subscription of a session goes on from the transcript by itself.
            _ => None,
        }
    }
}

/// A connection that listens.
#[derive(Debug)]
pub(crate) struct Events {
    pub(super) wire: Wire,
    pub(super) early: VecDeque<Notification>,
    /// Cards that were open when it began to listen.
    pub(crate) open_cards: Vec<ade_protocol::card::Card>,
}

impl Events {
    /// The next notification. May be dropped while it waits: nothing is lost.
    ///
    /// # Errors
    /// The connection ended. What the broker said of it is a [`CommandError`]
    /// inside.
    pub(crate) async fn next(&mut self) -> io::Result<Notification> {
        if let Some(notification) = self.early.pop_front() {
            return Ok(notification);
        }
        loop {
            let incoming = self.wire.next().await?;
            let Some(method) = incoming.method else {
                // An error that answers no request is about the connection.
                if let (None, Some(error)) = (incoming.id, incoming.error) {
                    return Err(io::Error::other(CommandError::from(error)));
                }
                continue;
            };
            if let Some(notification) = Notification::from_parts(&method, incoming.params) {
                return Ok(notification);
            }
        }
    }
}
