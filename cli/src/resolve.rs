//! Which session a person means. Pure.

use ade_protocol::action::SessionInfo;

use crate::error::CommandError;
use crate::table::short_id;

/// Most sessions that an ambiguous name lists.
const LISTED: usize = 8;

/// The one session whose id is `given`, or begins or ends with it, or whose
/// short name, which is what lists show, begins with it.
///
/// # Errors
/// When none or several are meant; the several are listed.
pub(crate) fn session(
    sessions: Vec<SessionInfo>,
    given: &str,
) -> Result<SessionInfo, CommandError> {
    let none = || {
        CommandError::new(
            "not_found",
            ade_protocol::exit::USAGE,
            format!("there is no chat `{given}`"),
        )
        .hint("`ade ps` lists the chats")
    };
    if given.is_empty() {
        return Err(none());
    }
    let mut meant: Vec<SessionInfo> = sessions
        .into_iter()
        .filter(|info| named(info.session_id.as_str(), given))
        .collect();
    if let Some(exact) = meant
        .iter()
        .position(|info| info.session_id.as_str() == given)
    {
        return Ok(meant.swap_remove(exact));
    }
    match meant.len() {
        0 => Err(none()),
        1 => Ok(meant.remove(0)),
        several => Err(ambiguous(&meant, several, given)),
    }
}

fn named(id: &str, given: &str) -> bool {
    let bare = id.strip_prefix("ses_").unwrap_or(id);
    let shown = short_id(id);
    id.starts_with(given)
        || bare.starts_with(given)
        || shown.starts_with(given)
        || id.ends_with(given)
}

fn ambiguous(meant: &[SessionInfo], several: usize, given: &str) -> CommandError {
    let message = format!("`{given}` names {several} chats");
    let mut error = CommandError::new("ambiguous", ade_protocol::exit::USAGE, message);
    for info in meant.iter().take(LISTED) {
        let id = &info.session_id;
        error = error.hint(format!(
            "{} is {id} in {}",
            short_id(id.as_str()),
            info.lane
        ));
    }
    if several > LISTED {
        error = error.hint(format!("and {} more; `ade ps` lists all", several - LISTED));
    }
    error
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn info(id: &str) -> SessionInfo {
        serde_json::from_value(serde_json::json!({
            "sessionId": id, "provider": "scripted", "lane": "/lane", "permission": "default",
            "createdAt": "2026-01-01T00:00:00.000Z", "state": "idle", "queued": 0, "generation": 0,
            "leaseHeld": false, "lastSequence": 0,
        }))
        .expect("a session")
    }

    #[test]
    fn beginnings_and_ends_name_a_session_when_they_are_unique() {
        let all = || {
            ["ses_01aa-11", "ses_01ab-22", "ses_02aa-12"]
                .map(info)
                .to_vec()
        };
        let found = |given: &str| session(all(), given).map(|info| info.session_id.to_string());
        for (given, expected) in [
            ("ses_01aa-11", "ses_01aa-11"),
            ("ses_01aa", "ses_01aa-11"),
            ("02", "ses_02aa-12"),
            ("22", "ses_01ab-22"),
        ] {
            assert_eq!(found(given).ok().as_deref(), Some(expected), "{given}");
        }
        for (given, kind) in [
            ("", "not_found"),
            ("x", "not_found"),
            ("ses_01a", "ambiguous"),
            ("ses_", "ambiguous"),
        ] {
            let error = found(given).expect_err(given);
            assert_eq!(
                (error.kind(), error.code()),
                (kind, ade_protocol::exit::USAGE),
                "{given}"
            );
        }
        assert_eq!(session(all(), "ses_0").expect_err("three").hints().len(), 3);
    }

    #[test]
    fn the_beginning_of_what_lists_show_names_a_chat() {
        let all = || {
            ["ses_019a-7000-a8f123d167c1", "ses_019a-7000-a8e123d167c1"]
                .map(info)
                .to_vec()
        };
        let found = |given: &str| session(all(), given).map(|info| info.session_id.to_string());
        for given in ["a8f1", "a8f", "a8f123d167c1"] {
            let expected = Some("ses_019a-7000-a8f123d167c1");
            assert_eq!(found(given).ok().as_deref(), expected, "{given}");
        }
        assert_eq!(found("a8").expect_err("two").kind(), "ambiguous");
        assert_eq!(found("7000").expect_err("no beginning").kind(), "not_found");
    }

    #[test]
    fn a_whole_id_wins_over_a_longer_one_that_begins_with_it() {
        let all = ["ses_1", "ses_12"].map(info).to_vec();
        assert_eq!(
            session(all, "ses_1")
                .map(|info| info.session_id.to_string())
                .ok(),
            Some("ses_1".into())
        );
    }
}
