//! One line of a session file: how it is cut out, and what it says.

use crate::object;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::io::{self, BufRead};

/// A longer line is counted and not parsed, so that one broken line can't
/// take the machine's memory.
pub const LINE_MAX: usize = 16 * 1024 * 1024;

/// Why a line is no entry. The bytes stay in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// No JSON: cut off, or two records on one line. Nothing is guessed.
    NotJson,
    /// JSON, but not an object.
    NotAnObject,
    /// Zero bytes, as a crash of the machine leaves them.
    Zeros,
    /// Longer than [`LINE_MAX`].
    TooLong,
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotJson => "it is not one JSON record",
            Self::NotAnObject => "it is not a JSON object",
            Self::Zeros => "it holds zero bytes, as after a power loss",
            Self::TooLong => "it is too long to be checked",
        })
    }
}

/// A line without its end.
pub(super) struct Line {
    /// At most [`LINE_MAX`] bytes.
    pub(super) bytes: Vec<u8>,
    pub(super) too_long: bool,
    /// It ended with a newline.
    pub(super) ended: bool,
}

/// The next line; only `\n` ends one, so U+2028 stays inside. The buffer of
/// the line before is used again.
pub(super) fn next_line(reader: &mut impl BufRead, mut bytes: Vec<u8>) -> io::Result<Option<Line>> {
    bytes.clear();
    let mut too_long = false;
    loop {
        let chunk = reader.fill_buf()?;
        if chunk.is_empty() {
            let nothing = bytes.is_empty() && !too_long;
            return Ok((!nothing).then_some(Line {
                bytes,
                too_long,
                ended: false,
            }));
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        if bytes.len() + part.len() > LINE_MAX {
            too_long = true;
            bytes = Vec::new();
        }
        if !too_long {
            bytes.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            return Ok(Some(Line {
                bytes,
                too_long,
                ended: true,
            }));
        }
    }
}

/// The text of a line: no BOM, no CR, no zero bytes around it, valid UTF-8 and
/// no lone surrogates. The second value tells that something was replaced by
/// U+FFFD.
fn text(bytes: &[u8]) -> (Cow<'_, str>, bool) {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let start = bytes
        .iter()
        .position(|byte| *byte != 0)
        .unwrap_or(bytes.len());
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(start, |at| at + 1);
    let text = String::from_utf8_lossy(&bytes[start..end]);
    let replaced = matches!(text, Cow::Owned(_));
    match without_lone_surrogates(&text) {
        Some(repaired) => (Cow::Owned(repaired), true),
        None => (text, replaced),
    }
}

/// JSON can spell half a surrogate pair, a text can't hold one. `None` when
/// there is nothing to replace.
fn without_lone_surrogates(text: &str) -> Option<String> {
    let unit = |at: usize| {
        let hex = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(hex, 16).ok()
    };
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(found) = text[at..].find('\\') {
        at += found;
        let lone = match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => {
                at += 12;
                continue;
            }
            Some(0xd800..=0xdfff) => true,
            _ => false,
        };
        if lone {
            out.push_str(&text[copied..at]);
            out.push_str("\\ufffd");
            at += 6;
            copied = at;
        } else {
            // An escape is a backslash and one more character.
            at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8);
        }
    }
    (copied > 0).then(|| out + &text[copied..])
}

/// Reads a line as JSON, with what can be repaired without guessing repaired:
/// lone surrogates and invalid UTF-8 become U+FFFD, a BOM, a CR and zero bytes
/// around it are left out.
///
/// # Errors
/// Why it is no entry.
pub fn parse_line(bytes: &[u8]) -> Result<Value, Bad> {
    let (text, _) = text(bytes);
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Object(map)) => Ok(Value::Object(map)),
        Ok(_) => Err(Bad::NotAnObject),
        Err(_) => Err(bad(bytes)),
    }
}

fn bad(bytes: &[u8]) -> Bad {
    if bytes.contains(&0) {
        Bad::Zeros
    } else {
        Bad::NotJson
    }
}

/// What a check needs of an entry.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) kind: String,
    pub(super) id: Option<String>,
    pub(super) parent: Option<String>,
    pub(super) calls: Vec<(String, String)>,
    pub(super) result_of: Option<String>,
    /// The whole line again when it is a header: headers are short.
    pub(super) header: Option<Value>,
    pub(super) repaired: bool,
}

/// `Ok(None)`: a blank line.
pub(super) fn entry(bytes: &[u8]) -> Result<Option<Entry>, Bad> {
    let (text, repaired) = text(bytes);
    if text.trim().is_empty() {
        return if bytes.contains(&0) {
            Err(Bad::Zeros)
        } else {
            Ok(None)
        };
    }
    // The payload is skipped, not built. What the quick look can't take
    // (a field twice) the slow one can.
    let mut entry = match object::from_str::<Envelope<'_>>(&text) {
        Ok(envelope) => envelope.entry(),
        Err(_) => from_value(&parse_line(bytes)?),
    };
    if entry.kind == "session" {
        entry.header = serde_json::from_str::<Value>(&text).ok();
    }
    entry.repaired = repaired;
    Ok(Some(entry))
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "parentId")]
    parent: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
}

fn string(raw: Option<&RawValue>) -> Option<String> {
    serde_json::from_str::<String>(raw?.get()).ok()
}

impl Envelope<'_> {
    fn entry(&self) -> Entry {
        let mut entry = Entry {
            kind: string(self.r#type).unwrap_or_default(),
            id: string(self.id),
            parent: string(self.parent),
            ..Entry::default()
        };
        if let Some(message) = self.message {
            take_message(&mut entry, message);
        }
        entry
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    role: Option<&'a RawValue>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "toolCallId")]
    call: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default)]
    r#type: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
}

/// A message of a shape we don't know is an entry all the same.
fn take_message(entry: &mut Entry, raw: &RawValue) {
    let Ok(message) = object::from_str::<Message<'_>>(raw.get()) else {
        return;
    };
    let role = string(message.role);
    if role.as_deref() == Some("toolResult") {
        entry.result_of = string(message.call);
        return;
    }
    let content = message
        .content
        .map(RawValue::get)
        .filter(|text| text.starts_with('['));
    let blocks = content.and_then(|text| serde_json::from_str::<Vec<&RawValue>>(text).ok());
    for block in blocks.unwrap_or_default() {
        let Ok(block) = object::from_str::<Block<'_>>(block.get()) else {
            continue;
        };
        if string(block.r#type).as_deref() == Some("toolCall")
            && let Some(id) = string(block.id)
        {
            entry
                .calls
                .push((id, string(block.name).unwrap_or_default()));
        }
    }
}

fn from_value(value: &Value) -> Entry {
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let mut entry = Entry {
        kind: text("type").unwrap_or_default(),
        id: text("id"),
        parent: text("parentId"),
        ..Entry::default()
    };
    let message = value
        .get("message")
        .and_then(|message| serde_json::value::to_raw_value(message).ok());
    if let Some(message) = message {
        take_message(&mut entry, &message);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lone_surrogates_are_replaced() {
        let cases = [
            (r#"{"a":"\ud83d\ude00"}"#, "\u{1f600}"),
            (r#"{"a":"x\ud83dy"}"#, "x\u{fffd}y"),
            (r#"{"a":"\ude00"}"#, "\u{fffd}"),
            (r#"{"a":"\ud83d\ud83d\ude00"}"#, "\u{fffd}\u{1f600}"),
            (r#"{"a":"\\ud83d"}"#, r"\ud83d"),
            ("{\"a\":\"é\u{2028}\"}", "é\u{2028}"),
        ];
        for (line, expected) in cases {
            assert_eq!(
                parse_line(line.as_bytes()).expect(line)["a"],
                expected,
                "{line}"
            );
        }
    }

    /// A derived reader would take the fields from it in their order.
    #[test]
    fn a_list_is_no_entry_and_no_part_of_one() {
        let read = |text: &str| entry(text.as_bytes()).map(|entry| entry.expect("a line"));
        assert!(matches!(
            read(r#"["message","a",null]"#),
            Err(Bad::NotAnObject)
        ));
        let message = r#"{"type":"message","message":["toolResult",[],"call"]}"#;
        assert_eq!(read(message).ok().and_then(|entry| entry.result_of), None);
        let block = r#"{"type":"message","message":{"content":[["toolCall","id","name"]]}}"#;
        assert!(read(block).is_ok_and(|entry| entry.calls.is_empty()));
    }

    #[test]
    fn zeros_and_bytes_that_are_no_text_cost_as_little_as_they_can() {
        assert_eq!(parse_line(b"\0\0\0{\"a\":1}\0").expect("kept")["a"], 1);
        assert_eq!(parse_line(b"\0\0\0\0"), Err(Bad::Zeros));
        assert_eq!(parse_line(b"{\"a\":\0\0\0"), Err(Bad::Zeros));
        assert_eq!(
            parse_line(b"{\"a\":\"\xed\xa0\x80\"}").expect("kept")["a"]
                .as_str()
                .map(|a| a.contains('\u{fffd}')),
            Some(true)
        );
        assert_eq!(parse_line(b"[1]"), Err(Bad::NotAnObject));
        assert_eq!(parse_line(b"{\"a\":1}\r").expect("kept")["a"], 1);
        let twice = entry(br#"{"type":"message","id":"a","id":"b"}"#)
            .expect("ok")
            .expect("one");
        assert_eq!(twice.id.as_deref(), Some("b"));
    }
}
