//! What failures mean for a turn, and what the user is told.

use std::time::Duration;

use ade_protocol::event::{ErrorCategory, Event, NoticeLevel};
use ade_protocol::frame::code;

use super::Failure;
use crate::classify;

/// What an agent is told that is to go on where a login token had expired. No
/// message of the user's: it stands in no transcript and in no queue.
pub(super) const CONTINUE: &str = "The connection was interrupted while you were working and is \
     back now. Continue exactly where you stopped; do not repeat what you have already said or done.";

/// What clients show meanwhile.
pub(super) const RECONNECTING: &str = "reconnecting";

/// Failures after which the same message may be sent again, provided that
/// nothing of the turn was seen.
pub(super) fn may_resend(failure: &Failure) -> bool {
    matches!(
        failure.category,
        ErrorCategory::Network | ErrorCategory::Exited
    )
}

/// Failures after which the worker is of no use any more.
pub(super) fn ends_worker(failure: &Failure) -> bool {
    is_unknown_outcome(failure)
        || matches!(
            failure.category,
            ErrorCategory::Exited | ErrorCategory::Protocol | ErrorCategory::Lease
        )
}

/// Whether a login token has expired that a new worker may renew.
pub(super) fn is_stale_token(failure: &Failure) -> bool {
    failure.kind == classify::STALE_TOKEN
}

/// Whether the agent that was to be resumed is not there any more.
pub(super) fn is_agent_gone(failure: &Failure) -> bool {
    [classify::AGENT_NOT_FOUND, code::SESSION_NOT_FOUND].contains(&failure.kind.as_str())
}

/// An expired login token as the reason of something else. What the provider
/// said of it is never shown: it tells the user to do what is done for them.
pub(super) fn expired(failure: &Failure) -> Failure {
    let message = "the provider's sign-in had expired";
    without_words(failure, message)
}

/// An expired login token that connecting again did not renew.
pub(super) fn signed_out(failure: &Failure) -> Failure {
    let message = "your session with the provider has expired, and connecting again did not renew \
                   it; sign in again, then send the message again";
    without_words(failure, message)
}

/// The failure in our words. The id of the request, for the provider's support,
/// is all that is kept of theirs.
fn without_words(failure: &Failure, message: &str) -> Failure {
    let theirs = [Some(&failure.message), failure.detail.as_ref()];
    let mut ids = theirs
        .into_iter()
        .flatten()
        .filter_map(|text| classify::request_id(text));
    let ours = Failure::new(&failure.kind, ErrorCategory::Auth, message);
    match ids.next() {
        Some(id) => ours.with_detail(format!("request id: {id}")),
        None => ours,
    }
}

/// Whether the session file shows that the agent went on with the message
/// although nothing of it was seen here.
pub(super) fn is_unknown_outcome(failure: &Failure) -> bool {
    failure.kind == code::DELIVERED_OUTCOME_UNKNOWN
}

/// The failure as it is told: an unknown outcome is called that, whatever the
/// host said.
pub(super) fn told(failure: Failure) -> Failure {
    if !is_unknown_outcome(&failure) {
        return failure;
    }
    let message = format!("delivered, outcome unknown: {}", failure.message);
    Failure { message, ..failure }
}

/// The failure of a turn whose message was carried out by a worker that is not
/// listened to any more.
pub(super) fn worked(cause: Option<&Failure>) -> Failure {
    let why = cause.map_or_else(String::new, |cause| format!("{}, and ", cause.message));
    let message = format!(
        "{why}its worker was replaced before it was heard that it worked on the message; the \
         message was not sent again"
    );
    let kind = code::DELIVERED_OUTCOME_UNKNOWN;
    told(Failure::new(kind, ErrorCategory::Unknown, message))
}

/// Of a turn that was heard when its worker had been told to end it.
pub(super) fn late(first_event: Duration) -> String {
    format!(
        "the agent answered only after {} s, when it had been told to stop; the message was not \
         sent again",
        first_event.as_secs_f32()
    )
}

/// The notice of a message that is sent again.
pub(super) fn recovery_notice(cause: Option<&Failure>) -> Event {
    let what = match cause.map(|cause| cause.category) {
        Some(ErrorCategory::Network) => "The connection dropped".to_owned(),
        Some(ErrorCategory::Exited) => {
            let reason = cause.map_or_else(String::new, |cause| format!(": {}", cause.message));
            format!("The agent ended before it answered{reason}")
        }
        _ => "The agent stopped responding".to_owned(),
    };
    let message = format!("{what}; started a fresh worker and sent your message again.");
    Event::Notice {
        level: NoticeLevel::Warn,
        message,
    }
}

/// The failure of a turn whose second send failed too.
pub(super) fn failed_twice(first: &Failure, second: Failure) -> Failure {
    let message = format!(
        "{} (first: {}); the message was sent twice and is not sent again",
        second.message, first.message
    );
    Failure { message, ..second }
}

/// The failure of a turn whose replacement worker could not be had.
pub(super) fn not_replaced(first: Option<&Failure>, failure: Failure) -> Failure {
    let first = first.map_or("", |cause| cause.message.as_str());
    let message = format!(
        "{first}; a fresh worker could not be started: {}; nothing was sent again",
        failure.message
    );
    Failure { message, ..failure }
}

/// Characters of a message that is not sent by which it is named.
const NAMED: usize = 200;

/// A message that waited and is not sent, named by its beginning. Without that it
/// would stand nowhere any more.
pub(crate) fn unsent(why: &str, prompt: &str) -> String {
    let mut beginning: String = prompt.chars().take(NAMED).collect();
    if beginning.len() < prompt.len() {
        beginning.push('…');
    }
    format!("{why} It said: “{beginning}”")
}

/// A message was cancelled.
pub(super) fn cancelled(by: &str, prompt: &str) -> String {
    let why = format!("Your waiting message was cancelled by {by} and not sent.");
    unsent(&why, prompt)
}

/// A message could not be written down, and one that waited ends with it.
pub(super) fn unrecorded(failure: &Failure, prompt: &str) -> Failure {
    let why = format!("{}; your waiting message was not sent.", failure.message);
    let message = unsent(&why, prompt);
    Failure {
        message,
        ..failure.clone()
    }
}

/// A steer was dropped because its turn could not be recovered.
pub(crate) fn dropped_by_recovery(prompt: &str) -> String {
    unsent(DROPPED_BY_RECOVERY, prompt)
}

/// A steer that the worker took and its agent had not read when its run ended;
/// `replaced`: the turn goes on with another worker, if it does.
pub(crate) fn steer_unread(replaced: bool, text: &str) -> String {
    let when = if replaced {
        "its worker was replaced"
    } else {
        "the turn ended"
    };
    let why = format!(
        "The agent had not read your message for this turn when {when}. Send it again if you \
         still want it."
    );
    unsent(&why, text)
}

/// A steer that the worker took which is let go, without a word of whether its agent
/// had read it.
pub(crate) fn steer_let_go(prompt: &str) -> String {
    let why = "Your message for this turn went to a worker that ended or was replaced before \
               anything of the turn was shown, and it was not sent to another one. Whether the \
               agent had read it is not known. Send it again if you still want it.";
    unsent(why, prompt)
}

/// A steer whose worker said that it took it only when its turn was over.
pub(crate) fn steer_told_late(prompt: &str) -> String {
    let why = "Your message for a turn was taken by the agent as that turn ended. Whether the agent \
               read it is not known: see what it did before you send it again.";
    unsent(why, prompt)
}

/// A steer of which nobody lived to hear whether the agent took it.
pub(crate) fn steer_unknown(prompt: &str) -> String {
    let why = "It was not heard whether the agent took your message for the running turn, and \
               nothing is known of it: see what the agent did before you send it again.";
    unsent(why, prompt)
}

/// A steer that was refused when nobody was there any more who had sent it.
pub(crate) fn steer_refused(prompt: &str) -> String {
    let why = "Your message for the running turn was not taken by the agent. Send it again if you \
               still want it.";
    unsent(why, prompt)
}

/// Why a message was dropped that a message in the running turn's place had
/// cleared.
pub(super) const CLEARED: &str = "Your waiting message was cleared by a message that took the \
     running turn's place, was not brought back in time, and was not sent.";

/// Why a message was dropped that was brought back behind too many others.
pub(super) const NO_ROOM: &str = "Your waiting message could not be brought back, because the queue \
     was full, and was not sent.";

/// Why a message was dropped that waited when everything was ended.
pub(super) const STOPPED: &str =
    "Your waiting message was dropped because the chat was stopped, and was not sent.";

/// Why a steer was dropped when its turn could not be recovered.
pub(super) const DROPPED_BY_RECOVERY: &str = "Your message for the running turn was dropped: the turn could not be recovered. Send it again \
     if you still want it.";

/// Why a steer was dropped when its turn was ended.
pub(super) const DROPPED_BY_ABORT: &str = "Your message for the running turn was dropped: the turn was ended before it could go in. Send \
     it again if you still want it.";
