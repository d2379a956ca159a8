//! Keeps secrets out of what is shown and logged: the tail of a host's stderr,
//! error texts, log lines. Pure.
//!
//! Two ways: words that are known to be secret (values of secret-looking
//! environment variables, answers to secret cards, secret-looking words of a
//! prompt) are masked wherever they stand; words that look like a key are masked
//! by their shape or by what stands before them. It errs on the side of masking.
//!
//! What it does not do: mask what the session itself says. A transcript is the
//! user's own.

use std::borrow::Cow;

/// What stands in the place of a secret.
const MASK: &str = "[masked]";

/// Known secrets that are kept; the oldest is forgotten past it.
const MAX_KNOWN: usize = 128;

/// Shorter words are not masked wherever they stand: they are words.
const MIN_KNOWN: usize = 6;

/// Beginnings of well-known kinds of keys.
const PREFIXES: &[&str] = &[
    "sk-",
    "pk-",
    "rk_",
    "sk_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "npm_",
    "pypi-",
    "hf_",
    "eyJ",
];

/// Ends of names whose value is a secret.
const NAMES: &[&str] = &[
    "key",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "authorization",
    "credential",
    "credentials",
    "bearer",
    "cookie",
];

/// Knows this session's secrets.
#[derive(Debug, Default)]
pub(crate) struct Masker {
    known: Vec<String>,
}

impl Masker {
    /// This value is secret.
    pub(crate) fn learn(&mut self, secret: &str) {
        let secret = secret.trim();
        if secret.len() < MIN_KNOWN || self.known.iter().any(|known| known == secret) {
            return;
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.remove(0);
        }
        self.known.push(secret.to_owned());
        // A secret that holds another one must go first.
        self.known
            .sort_by_key(|known| std::cmp::Reverse(known.len()));
    }

    /// The secret-looking words of a text, such as a prompt, are secret.
    pub(crate) fn learn_from(&mut self, text: &str) {
        let spans: Vec<String> = secret_spans(text)
            .map(|(from, to)| text[from..to].to_owned())
            .collect();
        for secret in spans {
            self.learn(&secret);
        }
    }

    /// The variables whose name says that their value is secret.
    pub(crate) fn learn_env<'a>(&mut self, vars: impl IntoIterator<Item = (&'a str, &'a str)>) {
        for (name, value) in vars {
            if is_secret_name(name) {
                self.learn(value);
            }
        }
    }

    /// The text without its secrets.
    pub(crate) fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut masked = Cow::Borrowed(text);
        for secret in &self.known {
            if masked.contains(secret.as_str()) {
                masked = Cow::Owned(masked.replace(secret.as_str(), MASK));
            }
        }
        let mut result = String::new();
        let mut done = 0;
        for (from, to) in secret_spans(&masked) {
            result.push_str(&masked[done..from]);
            result.push_str(MASK);
            done = to;
        }
        if done == 0 {
            return masked;
        }
        result.push_str(&masked[done..]);
        Cow::Owned(result)
    }
}

/// Whether a variable or field of this name holds a secret.
fn is_secret_name(name: &str) -> bool {
    let name = name
        .trim_matches(|c: char| !c.is_alphanumeric())
        .to_ascii_lowercase();
    NAMES.iter().any(|end| name.ends_with(end))
}

/// Byte ranges of the words that look secret, in order and without overlap.
fn secret_spans(text: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut after_name = false;
    words(text).filter_map(move |(from, to)| {
        let word = &text[from..to];
        let before = std::mem::take(&mut after_name);
        let secret = has_key_shape(word) || (before && is_valueish(word));
        // "Authorization: Bearer x": the scheme is a name as well.
        after_name = !secret && is_secret_name(word);
        secret.then_some((from, to))
    })
}

/// Runs of characters that keys are made of.
fn words(text: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let inside = |c: char| {
        c.is_alphanumeric()
            || matches!(
                c,
                '-' | '_' | '.' | '+' | '/' | '~' | '!' | '$' | '%' | '&' | '*' | '#' | '^'
            )
    };
    let mut rest = 0;
    std::iter::from_fn(move || {
        let from = rest + text[rest..].find(inside)?;
        let to = text[from..]
            .find(|c: char| !inside(c))
            .map_or(text.len(), |length| from + length);
        rest = to;
        let trimmed = text[from..to].trim_end_matches('.');
        Some((from, from + trimmed.len().max(1).min(to - from)))
    })
}

fn has_key_shape(word: &str) -> bool {
    word.len() >= 12 && PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

/// Whether a word that follows a secret's name is a value and no ordinary
/// word: "invalid token for user" keeps its "for".
fn is_valueish(word: &str) -> bool {
    let odd = word.chars().any(|c| !c.is_alphabetic());
    word.len() >= MIN_KNOWN && (odd || word.len() >= 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(text: &str) -> String {
        Masker::default().mask(text).into_owned()
    }

    #[test]
    fn keys_are_masked_by_shape_and_by_name() {
        let table = [
            (
                "bad key sk-abcdef0123456789 given",
                "bad key [masked] given",
            ),
            (
                "Authorization: Bearer abc.def-123",
                "Authorization: Bearer [masked]",
            ),
            ("password=hunter22, next", "password=[masked], next"),
            (r#"{"api_key":"abc-123-def"}"#, r#"{"api_key":"[masked]"}"#),
            ("OPENAI_API_KEY=zzzz-1111", "OPENAI_API_KEY=[masked]"),
            (
                "use token CANARY-tok-0123456789abcdef now",
                "use token [masked] now",
            ),
            ("no secret here", "no secret here"),
            ("invalid token for the user", "invalid token for the user"),
            ("exit code 7", "exit code 7"),
            ("", ""),
            ("é password=ünï-cödé!", "é password=[masked]"),
        ];
        for (text, expected) in table {
            assert_eq!(mask(text), expected, "{text:?}");
        }
    }

    #[test]
    fn known_secrets_are_masked_wherever_they_stand() {
        let mut masker = Masker::default();
        masker.learn("correct horse");
        masker.learn("ab");
        masker.learn_env([("DB_PASSWORD", "plain-old-word"), ("HOME", "/home/user")]);
        masker.learn_from("use token CANARY-tok-0123456789abcdef and password=CANARY-pw");
        let text = "x correct horse y plain-old-word z CANARY-tok-0123456789abcdef CANARY-pw ab /home/user";
        let expected = "x [masked] y [masked] z [masked] [masked] ab /home/user";
        assert_eq!(masker.mask(text), expected);
    }

    #[test]
    fn masking_twice_changes_nothing() {
        let once = mask("token=abcdef-12345 sk-abcdef0123456789");
        assert_eq!(mask(&once), once);
    }

    #[test]
    fn what_is_known_has_a_bound() {
        let mut masker = Masker::default();
        for index in 0..MAX_KNOWN * 2 {
            masker.learn(&format!("secret-{index:06}"));
        }
        assert_eq!(masker.known.len(), MAX_KNOWN);
    }
}
