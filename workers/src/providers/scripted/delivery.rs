//! Whether a message that is to be sent again was delivered before: what the
//! scripted host's session file says of it.
//!
//! Lines behind the broker's mark are of this turn; the same text before it is an
//! earlier message. Without a mark that fits nobody can tell the two apart, and
//! in doubt the message was delivered.

use std::{fs, io};

use ade_protocol::frame::SessionMark;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::store::{says_something, text_of};

/// What a session file says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// It is not there.
    Missing,
    /// It stands there, and nothing after it.
    Unanswered,
    /// The agent went on after it.
    Begun,
    /// The agent went on after it, to the end of its answer.
    Finished,
    /// It stands there with something after it, and may be an earlier one.
    Doubtful,
}

impl Delivery {
    /// Why it is not sent a second time, if it is not.
    pub(super) fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Missing | Self::Unanswered => None,
            Self::Begun => {
                Some("the agent had begun to work on this message; it is not sent again")
            }
            Self::Finished => Some(
                "the agent had finished its work on this message, and its answer stands in the \
                 session; it is not sent again",
            ),
            Self::Doubtful => Some(
                "the session holds this message and work behind it, which may be of this turn or \
                 of an earlier one; it is not sent again",
            ),
        }
    }

    /// What the file `path` says of a prompt. One that is not there says nothing.
    pub(super) fn read(path: &str, prompt: &str, mark: Option<&SessionMark>) -> Self {
        match fs::read(path) {
            Ok(bytes) => Self::find(&bytes, path, prompt, mark),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            Err(_) => Self::Doubtful,
        }
    }

    /// What the bytes of the file `path` say of a prompt.
    fn find(bytes: &[u8], path: &str, prompt: &str, mark: Option<&SessionMark>) -> Self {
        let of_turn = mark.and_then(|mark| behind(bytes, path, mark));
        let found = Self::of(of_turn.unwrap_or(bytes), prompt);
        match found {
            Self::Begun | Self::Finished if of_turn.is_none() => Self::Doubtful,
            found => found,
        }
    }

    fn of(bytes: &[u8], prompt: &str) -> Self {
        let lines = bytes.split(|byte| *byte == b'\n');
        let mut lines = lines.filter(|line| !line.trim_ascii().is_empty());
        let mut found = Self::Missing;
        for line in &mut lines {
            let entry: Option<Value> = serde_json::from_slice(line).ok();
            let message = entry.as_ref().map(|entry| &entry["message"]);
            let text = message.map_or_else(String::new, |message| text_of(&message["content"]));
            let role = message.and_then(|message| message["role"].as_str());
            if found == Self::Missing {
                if role == Some("user") && text == prompt {
                    found = Self::Unanswered;
                }
                continue;
            }
            let stop_reason = message.and_then(|message| message["stopReason"].as_str());
            match (message, role) {
                // Half a line, from a process that was killed as it wrote it.
                (None, _) => found = Self::Begun,
                (Some(_), Some("user") | None) => {}
                (Some(_), Some(_)) => {
                    let stop_reason = stop_reason.unwrap_or_default();
                    if says_something(&text, stop_reason) {
                        let ended = stop_reason == "stop";
                        found = if ended { Self::Finished } else { Self::Begun };
                    }
                }
            }
        }
        found
    }
}

/// What stands behind a mark. `None`: it is not of this file.
fn behind<'a>(bytes: &'a [u8], path: &str, mark: &SessionMark) -> Option<&'a [u8]> {
    let place = usize::try_from(mark.bytes).ok()?;
    let (before, behind) = bytes.split_at_checked(place)?;
    let length = usize::try_from(SessionMark::TAIL).ok()?;
    let tail = &before[before.len().saturating_sub(length)..];
    let is_it = mark.session_file == path && mark.tail == hex(&Sha256::digest(tail));
    is_it.then_some(behind)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/store/session.jsonl";

    fn user(text: &str) -> String {
        format!(
            "{}\n",
            serde_json::json!({"type": "message", "message": {"role": "user", "content": text}})
        )
    }

    fn agent(text: &str, stop_reason: &str) -> String {
        let message =
            serde_json::json!({"role": "assistant", "content": text, "stopReason": stop_reason});
        format!(
            "{}\n",
            serde_json::json!({"type": "message", "message": message})
        )
    }

    fn mark(before: &str) -> SessionMark {
        let tail = &before[before.len().saturating_sub(4096)..];
        SessionMark {
            session_file: FILE.to_owned(),
            bytes: before.len().try_into().expect("a number"),
            tail: hex(&Sha256::digest(tail)),
        }
    }

    #[test]
    fn what_stands_behind_the_mark_is_of_the_turn() {
        let earlier = format!("{}{}", user("x"), agent("done", "stop"));
        let long = format!("{}{}", user(&"y".repeat(9_000)), agent("done", "stop"));
        let table = [
            (String::new(), Delivery::Missing),
            (user("x"), Delivery::Unanswered),
            (
                format!("{}{}", user("x"), agent("", "aborted")),
                Delivery::Unanswered,
            ),
            (
                format!("{}{}", user("x"), agent("half", "error")),
                Delivery::Begun,
            ),
            (
                format!("{}{}", user("x"), agent("call", "toolUse")),
                Delivery::Begun,
            ),
            (format!("{}{{\"ty", user("x")), Delivery::Begun),
            (
                format!("{}{}", user("x"), agent("done", "stop")),
                Delivery::Finished,
            ),
            // A message that went into the turn is not the one that began it.
            (
                format!(
                    "{}{}{}{}",
                    user("x"),
                    agent("a", "toolUse"),
                    user("steer"),
                    agent("b", "stop")
                ),
                Delivery::Finished,
            ),
            (
                format!("{}{}{}", user("x"), agent("a", "toolUse"), user("x")),
                Delivery::Begun,
            ),
        ];
        for before in ["", earlier.as_str(), long.as_str()] {
            for (behind, expected) in &table {
                let bytes = format!("{before}{behind}");
                let found = Delivery::find(bytes.as_bytes(), FILE, "x", Some(&mark(before)));
                assert_eq!(found, *expected, "{before}|{behind}");
            }
        }
    }

    #[test]
    fn without_a_mark_that_fits_nothing_is_done_twice() {
        let earlier = format!("{}{}", user("x"), agent("done", "stop"));
        let good = mark(&earlier);
        let wrong = [
            None,
            Some(SessionMark {
                session_file: "/other".into(),
                ..good.clone()
            }),
            Some(SessionMark {
                bytes: good.bytes + 1,
                ..good.clone()
            }),
            Some(SessionMark {
                bytes: good.bytes - 1,
                ..good.clone()
            }),
            Some(SessionMark {
                tail: "00".into(),
                ..good.clone()
            }),
        ];
        for mark in &wrong {
            let find =
                |bytes: &str, prompt| Delivery::find(bytes.as_bytes(), FILE, prompt, mark.as_ref());
            assert_eq!(find(&earlier, "x"), Delivery::Doubtful, "{mark:?}");
            let behind = format!("{earlier}{}{}", user("steer"), agent("done", "stop"));
            assert_eq!(find(&behind, "x"), Delivery::Doubtful, "{mark:?}");
            assert_eq!(find(&earlier, "z"), Delivery::Missing, "{mark:?}");
            let unanswered = format!("{earlier}{}", user("z"));
            assert_eq!(find(&unanswered, "z"), Delivery::Unanswered, "{mark:?}");
        }
        assert_eq!(
            Delivery::find(earlier.as_bytes(), FILE, "x", Some(&good)),
            Delivery::Missing
        );
    }
}
