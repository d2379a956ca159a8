//! How a turn ended and which exit code says so. Pure.

use ade_protocol::event::{ErrorCategory, Event, TurnStatus};
use ade_protocol::exit;

/// What was seen of a turn's end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    error: Option<(ErrorCategory, Option<String>)>,
    /// How it ended, once it has.
    pub(crate) done: Option<TurnStatus>,
}

impl Outcome {
    /// Takes note of an event of the turn.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::Error {
                category, detail, ..
            } => {
                let kind = detail.as_deref().and_then(kind_of).map(str::to_owned);
                self.error = Some((*category, kind));
            }
            Event::Done { status, .. } => self.done = Some(*status),
            _ => {}
        }
    }

    /// The exit code of a command that waited for the turn.
    #[must_use]
    pub(crate) fn exit_code(&self) -> u8 {
        match self.done {
            Some(TurnStatus::Completed) => exit::OK,
            Some(TurnStatus::Interrupted) => exit::INTERRUPTED,
            Some(TurnStatus::Failed | TurnStatus::Started) | None => self.failure(),
        }
    }

    fn failure(&self) -> u8 {
        let Some((category, kind)) = &self.error else {
            return exit::FAILED;
        };
        match kind.as_deref() {
            Some("held") => exit::HELD,
            Some("lane_missing") => exit::USAGE,
            Some(
                "provider_not_usable"
                | "no_model"
                | "no_auth"
                | "model_not_found"
                | "auth"
                | "stale_token"
                | "host_not_started"
                | "package_missing"
                | "package_unreadable"
                | "version_unsupported"
                | "node_too_old",
            ) => exit::PROVIDER_NOT_USABLE,
            Some("timed_out" | "silent") => exit::TIMED_OUT,
            Some("denied") => exit::DENIED,
            // What the model's provider said: its class tells more than the word.
            Some("agent_failed" | "provider_error") | None => match category {
                ErrorCategory::Lease => exit::HELD,
                ErrorCategory::Auth => exit::PROVIDER_NOT_USABLE,
                ErrorCategory::TimedOut => exit::TIMED_OUT,
                _ => exit::FAILED,
            },
            Some(_) => exit::FAILED,
        }
    }
}

/// The broker's stable word in the first line of an error's detail.
fn kind_of(detail: &str) -> Option<&str> {
    detail.lines().next()?.strip_prefix("kind: ").map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_follows_the_kind_then_the_category() {
        let table = [
            ("", "", "completed", exit::OK),
            ("", "", "interrupted", exit::INTERRUPTED),
            ("", "", "failed", exit::FAILED),
            ("lease", "kind: held", "failed", exit::HELD),
            ("lease", "kind: lease_lost", "failed", exit::FAILED),
            (
                "not_found",
                "kind: model_not_found\nmore",
                "failed",
                exit::PROVIDER_NOT_USABLE,
            ),
            (
                "unknown",
                "kind: no_model",
                "failed",
                exit::PROVIDER_NOT_USABLE,
            ),
            ("auth", "", "failed", exit::PROVIDER_NOT_USABLE),
            (
                "auth",
                "kind: agent_failed",
                "failed",
                exit::PROVIDER_NOT_USABLE,
            ),
            ("rate_limit", "kind: agent_failed", "failed", exit::FAILED),
            (
                "unknown",
                "kind: no_auth",
                "failed",
                exit::PROVIDER_NOT_USABLE,
            ),
            ("timed_out", "kind: silent", "failed", exit::TIMED_OUT),
            ("timed_out", "", "failed", exit::TIMED_OUT),
            ("exited", "stderr: kind: held", "failed", exit::FAILED),
            ("network", "", "completed", exit::OK),
        ];
        for (category, detail, status, expected) in table {
            let mut outcome = Outcome::default();
            if !category.is_empty() {
                outcome.note(&Event::Error {
                    category: serde_json::from_value(category.into()).expect("a category"),
                    message: String::new(),
                    detail: Some(detail.into()),
                });
            }
            outcome.note(&Event::Done {
                status: serde_json::from_value(status.into()).expect("a status"),
                stop_reason: None,
                usage: None,
            });
            assert_eq!(
                outcome.exit_code(),
                expected,
                "{category} {detail} {status}"
            );
        }
    }
}
