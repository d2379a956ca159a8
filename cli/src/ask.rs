//! Cards as questions on a terminal. Pure: cards and typed lines in, text and
//! answers out.

use ade_protocol::card::{Answer, Card, CardKind, CardPayload};

use crate::output::Style;
use crate::table::{clipped, one_line};
use crate::view::input_line;

/// The lines that put the question, without the line that waits for the answer.
#[must_use]
pub(crate) fn question(card: &CardPayload) -> Vec<(Style, String)> {
    let mut lines = Vec::new();
    let source = card.source_id.as_deref().map(one_line);
    let heading = match (&card.title, &source) {
        (Some(title), _) => one_line(title),
        (None, Some(source)) => format!("{source} asks"),
        (None, None) => "The agent asks".to_owned(),
    };
    lines.push((Style::Warn, format!("? {heading}")));
    for line in card.message.lines().filter(|line| !line.trim().is_empty()) {
        lines.push((Style::Plain, format!("  {}", one_line(line))));
    }
    let detail = card.detail.as_ref().map(input_line).unwrap_or_default();
    if !detail.is_empty() && !card.message.contains(&detail) {
        lines.push((Style::Dim, format!("  {detail}")));
    }
    for (index, option) in card.options.iter().enumerate() {
        let more = option
            .description
            .as_deref()
            .map(|d| format!(" — {}", clipped(d, 70)));
        let label = one_line(&option.label);
        lines.push((
            Style::Plain,
            format!("  {}) {label}{}", index + 1, more.unwrap_or_default()),
        ));
    }
    lines
}

/// The beginning of the line that waits for the answer.
#[must_use]
pub(crate) fn prompt(card: &CardPayload) -> String {
    match card.kind {
        CardKind::Confirm => "  [y] allow  [a] allow for this session  [n] deny: ".into(),
        CardKind::Select => format!("  [1-{}, empty declines]: ", card.options.len()),
        CardKind::Secret => "  (not shown, empty declines): ".into(),
        CardKind::Text | CardKind::ManualCode => match &card.default_value {
            Some(default) => format!("  [{}]: ", clipped(default, 60)),
            None => "  (empty declines): ".into(),
        },
    }
}

/// What a typed line means as an answer to `card`.
///
/// # Errors
/// What to tell a person who typed something else: the question stays open.
pub(crate) fn interpret(card: &CardPayload, line: &str) -> Result<Answer, String> {
    let typed = line.trim();
    match card.kind {
        CardKind::Confirm => match typed.to_ascii_lowercase().as_str() {
            "y" | "yes" | "allow" => Ok(yes("allow")),
            "a" | "always" | "allow_session" => Ok(yes("allow_session")),
            "n" | "no" | "deny" => Ok(Answer::deny()),
            _ => Err("please type y, a or n".into()),
        },
        CardKind::Select => select(card, typed),
        CardKind::Secret | CardKind::Text | CardKind::ManualCode => {
            match (typed.is_empty(), &card.default_value) {
                (false, _) => Ok(yes(line)),
                (true, Some(default)) => Ok(yes(default)),
                (true, None) => Ok(Answer::deny()),
            }
        }
    }
}

fn select(card: &CardPayload, typed: &str) -> Result<Answer, String> {
    if typed.is_empty() {
        return Ok(Answer::deny());
    }
    // A value or a label counts before a number: an option may be called `2`.
    let named = card
        .options
        .iter()
        .find(|o| o.value == typed || o.label == typed);
    let numbered = || {
        let number: usize = typed.parse().ok()?;
        card.options.get(number.checked_sub(1)?)
    };
    match named.or_else(numbered) {
        Some(option) => Ok(yes(&option.value)),
        None => Err(format!(
            "please type a number from 1 to {}",
            card.options.len()
        )),
    }
}

/// What an answer without a person is: `--yes` allows what asks for
/// permission and nothing else.
#[must_use]
pub(crate) fn unattended(card: &Card, allow: bool) -> Answer {
    if allow && card.payload.kind == CardKind::Confirm {
        yes("allow")
    } else {
        Answer::deny()
    }
}

fn yes(value: &str) -> Answer {
    Answer {
        ok: true,
        value: Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ade_protocol::card::Permission;

    fn card(kind: &str, options: &[&str]) -> CardPayload {
        let options: Vec<_> = options
            .iter()
            .map(|value| serde_json::json!({"value": value, "label": value.to_uppercase()}))
            .collect();
        serde_json::from_value(serde_json::json!({
            "origin": "approval", "kind": kind, "message": "Run it?", "options": options,
        }))
        .expect("a card")
    }

    #[test]
    fn a_confirm_card_is_allowed_only_by_clear_words() {
        let card = card("confirm", &[]);
        let table = [
            ("y", Some(Permission::Once)),
            (" YES ", Some(Permission::Once)),
            ("a", Some(Permission::Session)),
            ("n", Some(Permission::No)),
            ("", None),
            ("yy", None),
            ("1", None),
        ];
        for (typed, expected) in table {
            assert_eq!(
                interpret(&card, typed).ok().map(|a| a.permission()),
                expected,
                "{typed:?}"
            );
        }
    }

    #[test]
    fn a_select_card_takes_numbers_values_and_labels() {
        let card = card("select", &["red", "2", "blue"]);
        let value = |typed: &str| interpret(&card, typed).map(|answer| answer.value);
        assert_eq!(value("1"), Ok(Some("red".into())));
        assert_eq!(value("2"), Ok(Some("2".into())));
        assert_eq!(value("BLUE"), Ok(Some("blue".into())));
        assert_eq!(value(""), Ok(None));
        for typed in ["0", "4", "-1", "green", "99999999999999999999999"] {
            assert!(value(typed).is_err(), "{typed}");
        }
    }

    #[test]
    fn text_is_verbatim_and_emptiness_declines() {
        let mut text = card("text", &[]);
        assert_eq!(
            interpret(&text, " a ").map(|a| a.value),
            Ok(Some(" a ".into()))
        );
        assert_eq!(interpret(&text, "  "), Ok(Answer::deny()));
        text.default_value = Some("main".into());
        assert_eq!(
            interpret(&text, "").map(|a| a.value),
            Ok(Some("main".into()))
        );
    }
}
