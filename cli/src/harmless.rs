//! Text of others on a terminal: shown, never obeyed.
//!
//! A terminal takes control characters as orders (titles, the clipboard, the
//! cursor), and direction overrides make a line read as something that it is
//! not. Only a terminal is protected so: a pipe or a file gets the bytes as they
//! are.

use std::borrow::Cow;

/// `text` with everything that a terminal would obey made visible: `^[` for
/// ESC, the replacement character where there is no such notation. Line ends
/// and tabs stay.
#[must_use]
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if !is_obeyed(c) => clean.push(c),
            '\0'..='\x1f' => {
                clean.push('^');
                clean.push(char::from(c as u8 ^ 0x40));
            }
            '\x7f' => clean.push_str("^?"),
            _ => clean.push(char::REPLACEMENT_CHARACTER),
        }
    }
    Cow::Owned(clean)
}

fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (c.is_control() && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_made_visible() {
        let table = [
            ("x\x1b]0;TITLE\x07\x1b[2J", "x^[]0;TITLE^G^[[2J"),
            ("\x1b]52;c;aGk=\x1b\\", "^[]52;c;aGk=^[\\"),
            ("a\rb\x08\0\x7f", "a^Mb^H^@^?"),
            ("c1 \u{9b}2J", "c1 \u{fffd}2J"),
            (
                "\u{202e}txt\u{202c}\u{2066}\u{2069}",
                "\u{fffd}txt\u{fffd}\u{fffd}\u{fffd}",
            ),
        ];
        for (given, expected) in table {
            assert_eq!(shown(given), expected);
        }
    }

    #[test]
    fn text_is_left_as_it_is() {
        for text in ["", "a\n\tb", "ünï → 日本語 🙂 \u{200d}\u{200f}"] {
            assert!(matches!(shown(text), Cow::Borrowed(same) if same == text));
        }
    }
}
