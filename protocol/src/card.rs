//! Cards: questions that a turn blocks on.
//!
//! A card that no human answered is denied. What counts as permission is
//! decided in one place, [`Answer::permission`], and it accepts two exact words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Generation, RequestId, SessionId, TurnId};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CardOrigin {
    /// A sign-in flow.
    Auth,
    /// A tool of the agent, such as `ask_user`.
    Tool,
    /// An extension of the agent.
    Extension,
    /// The approval gate in front of a tool call.
    Approval,
}

/// What kind of answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CardKind {
    /// Free text.
    Text,
    /// Free text that is never stored, logged or echoed.
    Secret,
    /// Exactly one of the offered values.
    Select,
    /// `allow`, `allow_session`, or anything else for no.
    Confirm,
    /// A code that the user copies from elsewhere.
    ManualCode,
}

/// One offered answer of a `select` card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CardOption {
    /// What is sent back.
    pub value: String,
    /// What is shown.
    pub label: String,
    /// A longer explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// What a `ui_request` frame asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CardPayload {
    /// Who asks.
    pub origin: CardOrigin,
    /// What kind of answer is wanted.
    pub kind: CardKind,
    /// The question.
    pub message: String,
    /// A heading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Shown in an empty input field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placeholder: Option<String>,
    /// Filled in before the user types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_value: Option<String>,
    /// The offered answers of a `select`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<CardOption>,
    /// The tool or extension that the question comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_id: Option<String>,
    /// Structured details, such as the tool's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

/// An open card as clients see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Card {
    /// The worker's `requestId`; unique within a generation.
    pub card_id: RequestId,
    /// The session whose turn blocks.
    pub session_id: SessionId,
    /// The worker that asked.
    pub generation: Generation,
    /// The turn that blocks, where one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// When it was opened: RFC 3339, UTC, milliseconds.
    pub opened_at: String,
    /// The question.
    pub payload: CardPayload,
}

/// A client's answer to a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// False declines whatever the value says.
    pub ok: bool,
    /// The answer itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What an answer to a `confirm` card permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// This call only.
    Once,
    /// This tool for the life of the session in this worker.
    Session,
    /// Nothing.
    No,
}

impl Answer {
    /// The answer that declines.
    #[must_use]
    pub fn deny() -> Self {
        Self {
            ok: false,
            value: None,
        }
    }

    /// What this answer permits on a `confirm` card: exactly the words `allow`
    /// and `allow_session` permit, everything else denies.
    #[must_use]
    pub fn permission(&self) -> Permission {
        match (self.ok, self.value.as_deref()) {
            (true, Some("allow")) => Permission::Once,
            (true, Some("allow_session")) => Permission::Session,
            _ => Permission::No,
        }
    }

    /// Whether this answer may be passed on to `card`: a `confirm` or `select`
    /// accepts only the offered words (declining is always possible).
    ///
    /// # Errors
    /// The words that would have been accepted.
    pub fn fits(&self, card: &CardPayload) -> Result<(), Vec<String>> {
        if !self.ok {
            return Ok(());
        }
        let offered: Vec<String> = match card.kind {
            CardKind::Confirm => ["allow", "allow_session", "deny"]
                .iter()
                .map(ToString::to_string)
                .collect(),
            CardKind::Select => card
                .options
                .iter()
                .map(|option| option.value.clone())
                .collect(),
            CardKind::Text | CardKind::Secret | CardKind::ManualCode => return Ok(()),
        };
        match &self.value {
            Some(value) if offered.contains(value) => Ok(()),
            _ => Err(offered),
        }
    }
}

/// How a card ended. Only [`CardOutcome::Answered`] came from a human; the
/// others all mean *denied*, each for its own reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum CardOutcome {
    /// A client answered.
    Answered {
        /// Name of the client that answered first.
        by: String,
        /// The answer; absent for secrets and for a decline.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// An earlier `allow_session` covers it; nobody was asked.
    AllowedForSession,
    /// Nobody can answer any more.
    Withdrawn {
        /// Why.
        why: Withdrawal,
    },
}

/// Why a card was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Withdrawal {
    /// The turn was aborted.
    Aborted,
    /// The turn ended.
    TurnEnded,
    /// The worker died.
    WorkerGone,
    /// The worker was replaced.
    Recycled,
    /// The host settled it itself.
    Cancelled,
    /// Nobody answered in time.
    TimedOut,
    /// The chat was stopped; it can go on with another message.
    Stopped,
    /// The broker is stopping, or the chat is being deleted.
    ShuttingDown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(kind: CardKind) -> CardPayload {
        CardPayload {
            origin: CardOrigin::Approval,
            kind,
            message: "Run it?".into(),
            title: None,
            placeholder: None,
            default_value: None,
            options: vec![CardOption {
                value: "a".into(),
                label: "A".into(),
                description: None,
            }],
            source_id: None,
            detail: None,
        }
    }

    #[test]
    fn only_two_words_permit() {
        let table = [
            (true, Some("allow"), Permission::Once),
            (true, Some("allow_session"), Permission::Session),
            (false, Some("allow"), Permission::No),
            (true, Some("Allow"), Permission::No),
            (true, Some(" allow"), Permission::No),
            (true, Some("yes"), Permission::No),
            (true, Some("true"), Permission::No),
            (true, Some(""), Permission::No),
            (true, None, Permission::No),
        ];
        for (ok, value, expected) in table {
            let answer = Answer {
                ok,
                value: value.map(str::to_owned),
            };
            assert_eq!(answer.permission(), expected, "{answer:?}");
        }
    }

    #[test]
    fn select_and_confirm_accept_only_offered_words() {
        let yes = |value: &str| Answer {
            ok: true,
            value: Some(value.into()),
        };
        assert!(yes("a").fits(&card(CardKind::Select)).is_ok());
        assert!(yes("b").fits(&card(CardKind::Select)).is_err());
        assert!(yes("deny").fits(&card(CardKind::Confirm)).is_ok());
        assert!(yes("maybe").fits(&card(CardKind::Confirm)).is_err());
        assert!(yes("anything").fits(&card(CardKind::Text)).is_ok());
        assert!(Answer::deny().fits(&card(CardKind::Select)).is_ok());
    }
}
