//! Open cards: the questions only, never an answer.

use ade_protocol::card::{Card, CardKind};
use ade_protocol::{Generation, RequestId, SessionId};
use rusqlite::params;

use super::rows::signed;
use super::{RowFault, State, StateError};

impl State {
    /// Keeps an open card; one of the same name is replaced.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_card(&self, card: &Card) -> Result<(), StateError> {
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
        let sql = "INSERT INTO cards (session_id, generation, card_id, card)
                   VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT (session_id, generation, card_id) DO UPDATE SET card = ?4";
        let (session, id) = (card.session_id.as_str(), card.card_id.as_str());
        self.execute(
            OPERATION,
            sql,
            params![session, signed(card.generation.0), id, text],
        )
        .map(drop)
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

    /// Every card that is kept, oldest first.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open_cards(&self) -> Result<Vec<Card>, StateError> {
        let sql = "SELECT card_id, card FROM cards ORDER BY place";
        self.query("read the cards", sql, [], |row| {
            let text: String = row.get(1)?;
            match serde_json::from_str(&text) {
                Ok(card) => Ok(card),
                Err(_) => Err(RowFault::Value(row.get(0)?)),
            }
        })
    }
}
