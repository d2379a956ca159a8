//! Cards: open ones, and settled ones until their worker has heard of it. The
//! answer to a secret is never among them.

use ade_protocol::card::{Card, CardKind};
use ade_protocol::strict;
use ade_protocol::{Generation, RequestId, SessionId};
use rusqlite::params;

use super::rows::{signed, unsigned};
use super::{CardRow, Settled, State, StateError};

impl State {
    /// Keeps an open card; one of the same name is replaced.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_card(&self, card: &Card, opened_at_ms: u64) -> Result<(), StateError> {
        const OPERATION: &str = "keep a card";
        let fault = || StateError::Row {
            operation: OPERATION,
            id: card.card_id.to_string(),
        };
        let text = if card.payload.kind == CardKind::Secret {
            // What would be filled in for the user may be the secret itself.
            let mut question = card.clone();
            question.payload.default_value = None;
            serde_json::to_string(&question)
        } else {
            serde_json::to_string(card)
        };
        let text = text.map_err(|_| fault())?;
        let sql = "INSERT INTO cards (session_id, generation, card_id, card, opened_at_ms)
                   VALUES (?1, ?2, ?3, ?4, ?5)
                   ON CONFLICT (session_id, generation, card_id)
                   DO UPDATE SET card = ?4, opened_at_ms = ?5, settled = NULL";
        let (session, id) = (card.session_id.as_str(), card.card_id.as_str());
        self.execute(
            OPERATION,
            sql,
            params![
                session,
                signed(card.generation.0),
                id,
                text,
                signed(opened_at_ms)
            ],
        )
        .map(drop)
    }

    /// Writes how a card ended. Of a secret only that it was answered. One that
    /// is not kept changes nothing.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn settle_card(&self, card: &Card, settled: &Settled) -> Result<(), StateError> {
        const OPERATION: &str = "keep how a card ended";
        let mut settled = settled.clone();
        if card.payload.kind == CardKind::Secret {
            settled.answer = None;
        }
        let fault = |_| StateError::Row {
            operation: OPERATION,
            id: card.card_id.to_string(),
        };
        let text = serde_json::to_string(&settled).map_err(fault)?;
        let sql = "UPDATE cards SET settled = ?4
                   WHERE session_id = ?1 AND generation = ?2 AND card_id = ?3";
        let (session, id) = (card.session_id.as_str(), card.card_id.as_str());
        let values = params![session, signed(card.generation.0), id, text];
        self.execute(OPERATION, sql, values).map(drop)
    }

    /// Forgets the settled cards of a session: nobody waits for them any more.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn remove_settled(&self, session: &SessionId) -> Result<usize, StateError> {
        let sql = "DELETE FROM cards WHERE session_id = ?1 AND settled IS NOT NULL";
        self.execute("forget settled cards", sql, [session.as_str()])
    }

    /// Forgets a card. False: it was not kept.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn remove_card(
        &self,
        session: &SessionId,
        generation: Generation,
        card: &RequestId,
    ) -> Result<bool, StateError> {
        let sql = "DELETE FROM cards WHERE session_id = ?1 AND generation = ?2 AND card_id = ?3";
        let values = params![session.as_str(), signed(generation.0), card.as_str()];
        Ok(self.execute("forget a card", sql, values)? > 0)
    }

    /// Forgets every card of a session; gives their number.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn remove_cards(&self, session: &SessionId) -> Result<usize, StateError> {
        let sql = "DELETE FROM cards WHERE session_id = ?1";
        self.execute("forget the cards of a session", sql, [session.as_str()])
    }

    /// Every card that is kept, oldest first. A damaged row is logged and left out:
    /// what nobody can be asked is denied.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn cards(&self) -> Result<Vec<CardRow>, StateError> {
        let sql = "SELECT card_id, card, opened_at_ms, settled FROM cards ORDER BY place";
        let cards = self.query("read the cards", sql, [], |row| {
            let (id, text): (String, String) = (row.get(0)?, row.get(1)?);
            let settled: Option<String> = row.get(3)?;
            let settled = settled.map(|text| strict::from_str(&text)).transpose();
            match (strict::from_str(&text), settled) {
                (Ok(card), Ok(settled)) => Ok(Some(CardRow {
                    card,
                    opened_at_ms: unsigned(row.get(2)?),
                    settled,
                })),
                _ => {
                    tracing::error!(card = id, "the row of a card is damaged");
                    Ok(None)
                }
            }
        })?;
        Ok(cards.into_iter().flatten().collect())
    }
}
