//! Identifiers as distinct types, so that a turn's id cannot be handed in where
//! a session's is wanted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Makes a new id; ids made later sort later (UUID version 7).
            #[must_use]
            pub fn generate() -> Self {
                Self(format!("{}{}", $prefix, uuid::Uuid::now_v7()))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    };
}

string_id!(
    /// One chat with one provider in one lane; durable. Written `ses_<uuid v7>`.
    SessionId,
    "ses_"
);
string_id!(
    /// One user message until its terminal event.
    TurnId,
    "turn_"
);
string_id!(
    /// One worker process; its journal file bears this name.
    WorkerId,
    "wrk_"
);
string_id!(
    /// One request on a frame hop, or one card.
    RequestId,
    ""
);

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Eq,
            Hash,
            PartialOrd,
            Ord,
            Serialize,
            Deserialize,
            JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The number after this one. Nobody counts so far that there is
            /// none: a number like that was read from what is damaged or not
            /// meant well, and stays what it is.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(
    /// Counts the workers that a session has had, from 1. Frames of an older
    /// generation never count.
    Generation
);
counter!(
    /// Counts canonical events: those of one generation (worker side) or those
    /// of one session's transcript (client side), from 1.
    Seq
);
counter!(
    /// Grows with every start of a broker; workers obey only the newest.
    Fence
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_makes_the_next_one_smaller() {
        assert_eq!(Seq(1).next(), Seq(2));
        assert_eq!(Seq(u64::MAX).next(), Seq(u64::MAX));
        assert_eq!(Generation(u64::MAX).next(), Generation(u64::MAX));
    }

    #[test]
    fn ids_are_prefixed_and_ordered() {
        let a = SessionId::generate();
        let b = SessionId::generate();
        assert!(a.as_str().starts_with("ses_"));
        assert!(a < b);
        assert_eq!(serde_json::to_string(&a).unwrap(), format!("\"{a}\""));
    }
}
