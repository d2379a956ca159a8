//! Cards as tests answer them, and how they ended.

use serde_json::{Value, json};

use crate::rpc::{Rpc, RpcFailure};
use crate::turns::of_type;

/// An answer that says yes with a word.
#[must_use]
pub fn yes(word: &str) -> Value {
    json!({"ok": true, "value": word})
}

/// An answer that declines.
#[must_use]
pub fn no() -> Value {
    json!({"ok": false})
}

/// How the only card of some events ended.
///
/// # Panics
/// When not exactly one did.
#[must_use]
#[track_caller]
pub fn resolution(events: &[Value]) -> Value {
    let resolved = of_type(events, "card_resolved");
    assert_eq!(resolved.len(), 1, "a card is settled once: {resolved:?}");
    resolved[0]["resolution"].clone()
}

/// The resolution of a card that nobody can answer any more.
#[must_use]
pub fn withdrawn(why: &str) -> Value {
    json!({"outcome": "withdrawn", "why": why})
}

/// Whether each of the tools ran, in order: the `ok` of its result.
///
/// # Panics
/// When a result has none.
#[must_use]
#[track_caller]
pub fn allowed(events: &[Value]) -> Vec<bool> {
    let results = of_type(events, "tool_result");
    let ok = results.iter().map(|result| result["ok"].as_bool());
    ok.map(|ok| ok.expect("ok")).collect()
}

impl Rpc {
    /// Waits for the next opened card among the events; its id.
    #[track_caller]
    pub fn card(&mut self) -> String {
        let opened = self.event("a card", |envelope| {
            envelope["event"]["type"] == "card_opened"
        });
        let id = opened["event"]["card"]["cardId"].as_str();
        id.expect("a card's id").to_owned()
    }

    /// The ids of the cards that are open now.
    ///
    /// # Panics
    /// When the broker does not list them.
    #[track_caller]
    pub fn open_cards(&mut self) -> Vec<String> {
        let list = self.call("cards.list", json!({}));
        let ids = list["cards"].as_array().expect("cards").iter();
        ids.map(|card| card["cardId"].as_str().expect("a card's id").to_owned())
            .collect()
    }

    /// Answers a card.
    ///
    /// # Errors
    /// What the broker answered.
    #[track_caller]
    pub fn answer(&mut self, card: &str, answer: &Value) -> Result<Value, RpcFailure> {
        self.try_call("cards.answer", json!({"cardId": card, "answer": answer}))
    }
}
