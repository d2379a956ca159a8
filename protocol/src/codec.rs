//! Lines of a byte stream.
//!
//! Only LF ends a line; a CR right before it is dropped. Everything else,
//! U+2028, U+2029, U+0085, VT, FF and a lone CR included, is ordinary text.
//! The limit holds for the line, not for the read, and an over-long line is
//! skipped with bounded memory.
//!
//! This module cuts lines; [`crate::frame`] says what they mean.

use std::borrow::Cow;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use memchr::{memchr, memchr2, memchr2_iter};
use tokio_util::codec::{Decoder, Encoder};

use crate::limits::MAX_LINE;

/// One line, or what stood in the place of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line that was ended by LF, without its line end.
    Whole(Bytes),
    /// What came after the last LF when the stream ended.
    Half(Bytes),
    /// A line is over the limit; so many bytes of it were there when that was
    /// seen. Told once a line, at the limit and not at its end: a line without
    /// an end must not go unnoticed. The rest of it is skipped.
    TooLong(u64),
}

/// Cuts a byte stream into [`Line`]s and writes lines.
#[derive(Debug)]
pub struct LineCodec {
    max: usize,
    scanned: usize,
    skipping: bool,
}

impl Default for LineCodec {
    fn default() -> Self {
        Self::with_max(MAX_LINE)
    }
}

impl LineCodec {
    /// A codec that skips lines over `max` bytes.
    #[must_use]
    pub fn with_max(max: usize) -> Self {
        Self {
            max,
            scanned: 0,
            skipping: false,
        }
    }

    fn take_line(&mut self, src: &mut BytesMut, end: usize) -> Line {
        let mut line = src.split_to(end).freeze();
        src.advance(1);
        self.scanned = 0;
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.max {
            Line::TooLong(line.len() as u64)
        } else {
            Line::Whole(line)
        }
    }
}

impl Decoder for LineCodec {
    type Item = Line;
    type Error = std::io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Line>, Self::Error> {
        if self.skipping {
            let Some(end) = memchr(b'\n', src) else {
                src.clear();
                return Ok(None);
            };
            src.advance(end + 1);
            self.skipping = false;
        }
        if let Some(offset) = memchr(b'\n', &src[self.scanned..]) {
            let end = self.scanned + offset;
            return Ok(Some(self.take_line(src, end)));
        }
        self.scanned = src.len();
        // One byte of grace: a CR that will turn out to belong to the line end.
        if src.len() <= self.max + 1 {
            return Ok(None);
        }
        self.skipping = true;
        self.scanned = 0;
        let seen = src.len() as u64;
        src.clear();
        Ok(Some(Line::TooLong(seen)))
    }

    fn decode_eof(&mut self, src: &mut BytesMut) -> Result<Option<Line>, Self::Error> {
        if let Some(line) = self.decode(src)? {
            return Ok(Some(line));
        }
        self.scanned = 0;
        if src.is_empty() {
            return Ok(None);
        }
        Ok(Some(Line::Half(src.split().freeze())))
    }
}

impl Encoder<Bytes> for LineCodec {
    type Error = std::io::Error;

    /// Writes `line`, which holds no LF, and a line end.
    fn encode(&mut self, line: Bytes, dst: &mut BytesMut) -> Result<(), Self::Error> {
        debug_assert!(!line.contains(&b'\n'), "a line must not hold its own end");
        dst.reserve(line.len() + 1);
        dst.put_slice(&line);
        dst.put_u8(b'\n');
        Ok(())
    }
}

/// The text of a line; bytes that are not UTF-8 become U+FFFD.
#[must_use]
pub fn text(line: &[u8]) -> Cow<'_, str> {
    // The lossy conversion looks at every byte by itself; the plain check takes
    // words of them, and nearly every line passes it.
    match std::str::from_utf8(line) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(line),
    }
}

/// Whether JSON text nests no deeper than `max`. Brackets inside strings do not
/// count. Runs before the parser, so that depth can never cost a stack.
#[must_use]
pub fn depth_within(text: &str, max: usize) -> bool {
    let text = text.as_bytes();
    // So few opening brackets, wherever they stand, cannot nest too deep: most
    // lines are done here, at the speed of a search.
    if memchr2_iter(b'{', b'[', text).nth(max).is_none() {
        return true;
    }
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => at = string_end(text, at),
            b'{' | b'[' => {
                depth += 1;
                if depth > max {
                    return false;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}

/// Where the string ends that is open `at` there: behind its closing quote, or
/// at the end of the text.
fn string_end(text: &[u8], mut at: usize) -> usize {
    while let Some(found) = memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
        at += found;
        match text[at] {
            b'"' => return at + 1,
            // Whatever is escaped does not end the string.
            _ => at += 2,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(max: usize, chunks: &[&[u8]]) -> Vec<Line> {
        let mut codec = LineCodec::with_max(max);
        let mut buffer = BytesMut::new();
        let mut lines = Vec::new();
        for chunk in chunks {
            buffer.extend_from_slice(chunk);
            while let Some(line) = codec.decode(&mut buffer).unwrap() {
                lines.push(line);
            }
        }
        while let Some(line) = codec.decode_eof(&mut buffer).unwrap() {
            lines.push(line);
        }
        lines
    }

    fn whole(text: &str) -> Line {
        Line::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn only_lf_ends_a_line() {
        let input = "a\u{2028}b\u{85}c\u{b}d\re\r\n\nlast".as_bytes();
        let expected = vec![
            whole("a\u{2028}b\u{85}c\u{b}d\re"),
            whole(""),
            Line::Half(Bytes::from_static(b"last")),
        ];
        assert_eq!(feed(64, &[input]), expected);
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(feed(64, &bytes), expected);
    }

    #[test]
    fn a_long_line_costs_itself_only() {
        let long = vec![b'x'; 100];
        let lines = feed(10, &[b"one\n", &long, &long, b"\ntwo\n"]);
        assert_eq!(lines, vec![whole("one"), Line::TooLong(100), whole("two")]);
        assert_eq!(feed(10, &[&long]), vec![Line::TooLong(100)]);
    }

    #[test]
    fn the_limit_is_exact_and_a_cr_does_not_count() {
        assert_eq!(feed(3, &[b"abc\r\n"]), vec![whole("abc")]);
        assert_eq!(feed(3, &[b"abc", b"\r", b"\n"]), vec![whole("abc")]);
        assert_eq!(feed(3, &[b"abcd\n"]), vec![Line::TooLong(4)]);
    }

    #[test]
    fn memory_stays_bounded_while_skipping() {
        let mut codec = LineCodec::with_max(1024);
        let mut buffer = BytesMut::new();
        let mut told = 0;
        for _ in 0..10_000 {
            buffer.extend_from_slice(&[b'x'; 512]);
            told += usize::from(codec.decode(&mut buffer).unwrap().is_some());
            assert!(buffer.len() <= 2048);
        }
        assert_eq!(told, 1, "an endless line is told of at the limit, once");
    }

    #[test]
    fn brackets_in_strings_have_no_depth() {
        assert!(depth_within(r#"{"a":"[[[[[[{{{{\"[["}"#, 1));
        assert!(!depth_within("[[[]]]", 2));
        assert!(depth_within("[[],[],[]]", 2));
    }

    #[test]
    fn many_brackets_side_by_side_are_not_deep() {
        let flat = format!("[{}[]]", r#"{"[\\":"\"[[{"},"#.repeat(100));
        assert!(depth_within(&flat, 2));
        assert!(!depth_within(&flat, 1));
        assert!(!depth_within(&format!("{flat}[[["), 2), "after a value");
        let open = format!(r#"[{}"[[[[[\"#, "[],".repeat(100));
        assert!(depth_within(&open, 2), "a string without an end");
    }
}
