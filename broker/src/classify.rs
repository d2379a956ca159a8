//! Which class of failure a provider's error text is.
//!
//! Pure. The order matters: a rate limit that is told in the words of the
//! transport (`NGHTTP2_ENHANCE_YOUR_CALM`) is a rate limit, and a busy agent is
//! busy whatever else the text says. The fragments are those that the public
//! app matches; they are compared without regard to case.
//!
//! Two failures are told apart beyond their class, because a turn may go on
//! after them: a login token that has expired, which is looked for before
//! everything else, and an agent that is not there any more.

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

const AGENT_GONE: &[&str] = &[
    "agent_not_found",
    "agent not found",
    "not found (operation=agent.resume",
];

const AUTH: &[&str] = &[
    "unauthorized",
    "forbidden",
    "authentication",
    "invalid api key",
    "no api key",
    "bad key",
];

/// Kind of the failure that [`is_stale_token`] knows.
pub const STALE_TOKEN: &str = "stale_token";

/// Kind of the failure that [`is_agent_not_found`] knows.
pub const AGENT_NOT_FOUND: &str = "agent_not_found";

/// Both stand in the text. Each is looked for by itself, so that a line break
/// between them, or an id behind them, does no harm.
const STALE: &[&str] = &[
    "authentication error",
    "logged in, try logging out and back in",
];

/// Longest id of a request that is kept, in bytes.
const MAX_REQUEST_ID: usize = 128;

/// Whether `text` tells of a login token that has expired, which a new
/// connection may renew, and not of a key that is wrong.
#[must_use]
pub fn is_stale_token(text: &str) -> bool {
    let text = words(text);
    STALE.iter().all(|fragment| text.contains(fragment))
}

/// Whether `text` tells of an agent that was to be resumed and is not there.
#[must_use]
pub fn is_agent_not_found(text: &str) -> bool {
    let text = text.to_lowercase();
    AGENT_GONE.iter().any(|fragment| text.contains(fragment))
}

/// What a failure is called that came with `kind` and `text`, and its class. It
/// has a name of its own where a turn may go on after it.
#[must_use]
pub fn judge<'a>(kind: &'a str, text: &str) -> (&'a str, ErrorCategory) {
    let category = classify(text);
    if is_stale_token(text) {
        (STALE_TOKEN, category)
    } else if category == ErrorCategory::NotFound && is_agent_not_found(text) {
        (AGENT_NOT_FOUND, category)
    } else {
        (kind, category)
    }
}

/// In lower case, and with one space where any white space was.
fn words(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

/// The provider's id of the request that failed, where its text names one.
#[must_use]
pub fn request_id(text: &str) -> Option<&str> {
    // ASCII only: what is found stands at the same place in the text itself.
    let lower = text.to_ascii_lowercase();
    let names = ["request id", "request_id", "request-id", "requestid"];
    let (at, name) = names
        .iter()
        .filter_map(|name| Some((lower.find(name)?, name)))
        .min()?;
    let behind = text.get(at + name.len()..)?;
    let id = behind.trim_start_matches(|c: char| c.is_whitespace() || ":=\"'".contains(c));
    let end = id
        .find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c))
        .unwrap_or(id.len());
    let id = id[..end].trim_end_matches('.');
    (!id.is_empty() && id.len() <= MAX_REQUEST_ID).then_some(id)
}

/// The class of `text`.
#[must_use]
pub fn classify(text: &str) -> ErrorCategory {
    if is_stale_token(text) {
        return ErrorCategory::Auth;
    }
    let text = text.to_lowercase();
    let any = |fragments: &[&str]| fragments.iter().any(|fragment| text.contains(fragment));
    if any(BUSY) {
        ErrorCategory::Busy
    } else if any(RATE_LIMIT) || has_status(&text, &["429"]) {
        ErrorCategory::RateLimit
    } else if any(NETWORK) {
        ErrorCategory::Network
    } else if any(AGENT_GONE) || text.contains("model not found") {
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
            ("Agent busy: too many requests", Busy),
            ("fetch failed: 401 Unauthorized", Network),
            ("agent not found: socket hang up", Network),
            ("agent not found: unauthorized", NotFound),
            ("the model was not found here", Unknown),
            ("Model not found: gpt-0", NotFound),
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
            (
                "Authentication error: not logged in, try logging out and back in (HTTP/2)",
                Auth,
            ),
            ("", Unknown),
        ];
        for (text, expected) in table {
            assert_eq!(classify(text), expected, "{text}");
        }
    }

    #[test]
    fn r09_an_expired_token_is_known_by_two_fragments_in_any_shape() {
        for text in [
            "Authentication error: If you are logged in, try logging out and back in.",
            "[unauthenticated] AUTHENTICATION ERROR\nIf you are\nlogged in, try logging\n  out and \
             back in. (request id: 7f-1)",
        ] {
            assert!(is_stale_token(text), "{text}");
        }
        for text in [
            "authentication error",
            "you are logged in, try logging out and back in",
            "401: {\"message\":\"bad key\"}",
            "Invalid API key",
        ] {
            assert!(!is_stale_token(text), "{text}");
        }
    }

    /// What a turn goes on after has a name of its own, and nothing else has it.
    #[test]
    fn a_failure_keeps_its_name_unless_a_turn_may_go_on_after_it() {
        let stale = "Authentication error: logged in, try logging out and back in";
        let table = [
            (stale, STALE_TOKEN, ErrorCategory::Auth),
            ("Agent not found", AGENT_NOT_FOUND, ErrorCategory::NotFound),
            ("agent busy: agent not found", "own", ErrorCategory::Busy),
            ("model not found", "own", ErrorCategory::NotFound),
            ("401", "own", ErrorCategory::Auth),
        ];
        for (text, kind, category) in table {
            assert_eq!(judge("own", text), (kind, category), "{text}");
        }
    }

    #[test]
    fn the_id_of_a_request_is_found_where_it_is_named() {
        let table = [
            ("it broke (request id: 7f-1_a.b)", Some("7f-1_a.b")),
            ("Request ID=abc.", Some("abc")),
            ("{\"requestId\":\"r-9\"}", Some("r-9")),
            ("é x-request-id: 1", Some("1")),
            ("no request was made", None),
            ("request id: ", None),
            ("", None),
        ];
        for (text, id) in table {
            assert_eq!(request_id(text), id, "{text}");
        }
        for (length, found) in [(MAX_REQUEST_ID, true), (MAX_REQUEST_ID + 1, false)] {
            let text = format!("request id {}", "x".repeat(length));
            assert_eq!(request_id(&text).is_some(), found, "{length}");
        }
    }

    #[test]
    fn an_agent_that_is_gone_is_no_model_that_is_unknown() {
        assert!(is_agent_not_found("Agent not found"));
        assert!(is_agent_not_found(
            "not found (operation=agent.resume, id=7)"
        ));
        assert!(is_agent_not_found("{\"code\":\"AGENT_NOT_FOUND\"}"));
        assert!(!is_agent_not_found("model not found"));
    }
}
