//! Which class of failure a provider's error text is.
//!
//! Pure. The order matters: a rate limit that is told in the words of the
//! transport (`NGHTTP2_ENHANCE_YOUR_CALM`) is a rate limit, and a busy agent is
//! busy whatever else the text says. The fragments are those that the public
//! app matches; they are compared without regard to case.

use ade_protocol::event::ErrorCategory;

const BUSY: &[&str] = &[
    "agent_busy",
    "agent busy",
    "already has an active run",
    "active run in progress",
    "already running another task",
    "already processing",
];

const RATE_LIMIT: &[&str] = &[
    "resource_exhausted",
    "resource exhausted",
    "rate_limit",
    "rate limit",
    "too many requests",
    "enhance_your_calm",
    "enhance your calm",
    "usage limits exceeded",
    "quota exceeded",
    "slow down",
    "back off",
];

const NETWORK: &[&str] = &[
    "nghttp2",
    "http/2",
    "econnreset",
    "econnrefused",
    "etimedout",
    "ecanceled",
    "epipe",
    "und_err_socket",
    "other side closed",
    "write after end",
    "socket hang up",
    "stream closed with error",
    "fetch failed",
    "connection error",
];

const NOT_FOUND: &[&str] = &[
    "agent_not_found",
    "agent not found",
    "not found (operation=agent.resume",
    "model not found",
];

const AUTH: &[&str] = &[
    "unauthorized",
    "forbidden",
    "authentication",
    "invalid api key",
    "no api key",
    "bad key",
];

/// The class of `text`.
#[must_use]
pub fn classify(text: &str) -> ErrorCategory {
    let text = text.to_lowercase();
    let any = |fragments: &[&str]| fragments.iter().any(|fragment| text.contains(fragment));
    if any(BUSY) {
        ErrorCategory::Busy
    } else if any(RATE_LIMIT) || has_status(&text, &["429"]) {
        ErrorCategory::RateLimit
    } else if any(NETWORK) {
        ErrorCategory::Network
    } else if any(NOT_FOUND) {
        ErrorCategory::NotFound
    } else if any(AUTH) || has_status(&text, &["401", "403"]) {
        ErrorCategory::Auth
    } else {
        ErrorCategory::Unknown
    }
}

/// Whether one of the numbers stands in the text as a number of its own, so
/// that `14290 tokens` is not a rate limit.
fn has_status(text: &str, numbers: &[&str]) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| numbers.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_fragments() {
        use ErrorCategory::{Auth, Busy, Network, NotFound, RateLimit, Unknown};
        let table = [
            ("Agent busy: ECONNRESET", Busy),
            ("stream closed: NGHTTP2_ENHANCE_YOUR_CALM", RateLimit),
            ("429: {\"message\":\"fake rate limit\"}", RateLimit),
            ("used 14290 tokens", Unknown),
            ("NGHTTP2_INTERNAL_ERROR", Network),
            ("terminated: other side closed (UND_ERR_SOCKET)", Network),
            ("connect ECONNREFUSED 127.0.0.1:1", Network),
            ("agent_not_found", NotFound),
            ("401: {\"message\":\"bad key\"}", Auth),
            ("403", Auth),
            ("Invalid API key", Auth),
            ("500: fake internal error", Unknown),
            ("", Unknown),
        ];
        for (text, expected) in table {
            assert_eq!(classify(text), expected, "{text}");
        }
    }
}
