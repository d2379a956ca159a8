//! The last bytes of a stream.

use ade_protocol::codec;

/// Keeps the last `limit` bytes; uses no memory before the first one.
#[derive(Debug)]
pub(crate) struct Tail {
    kept: Vec<u8>,
    limit: usize,
    seen: u64,
}

impl Tail {
    /// An empty tail.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            kept: Vec::new(),
            limit,
            seen: 0,
        }
    }

    /// Adds bytes and forgets the oldest past the limit. Holds twice the limit
    /// at most, so that forgetting is rare.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(self.limit)..];
        self.kept.extend_from_slice(bytes);
        if self.kept.len() > self.limit * 2 {
            self.kept.drain(..self.kept.len() - self.limit);
        }
    }

    /// How many bytes came by in all.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// The last lines that fit in `bytes`, at most `lines` of them, with U+FFFD
    /// for what is no UTF-8.
    pub(crate) fn last_lines(&self, lines: usize, bytes: usize) -> String {
        let kept = &self.kept[self.kept.len().saturating_sub(bytes.min(self.limit))..];
        let text = codec::text(kept);
        let text = text.trim_end();
        let start = text
            .rmatch_indices('\n')
            .nth(lines - 1)
            .map_or(0, |(index, _)| index + 1);
        text[start..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_memory_is_bounded() {
        let mut tail = Tail::new(10);
        for chunk in ["0123456789", "abc", "defghijklmnopqrstuvwxyz\nlast\n"] {
            tail.push(chunk.as_bytes());
        }
        assert!(tail.kept.len() <= 20);
        assert_eq!(tail.seen(), 10 + 3 + 29);
        assert_eq!(tail.last_lines(1, 64), "last");
        assert_eq!(tail.last_lines(9, 64), "wxyz\nlast");
        tail.push(&[0xff]);
        assert!(tail.last_lines(1, 64).ends_with('\u{fffd}'));
        assert_eq!(Tail::new(8).last_lines(5, 64), "");
    }
}
