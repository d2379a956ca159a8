//! Reading a transcript from any place.
//!
//! The numbers of the lines grow, so the place is found by halving the file:
//! some twenty short reads in a file of any size, and no index that would have
//! to be kept or could be wrong.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use ade_protocol::Seq;
use bytes::Bytes;

use super::{MAX_ENVELOPE, Place, TranscriptError, scan};

/// A piece this small is read line by line.
const SMALL: u64 = 64 * 1024;

/// As the last event: all that the file holds.
const ALL: Seq = Seq(u64::MAX);

/// Most bytes that are made room for before a line is read.
const USUAL: usize = 64 * 1024;

/// A piece of a transcript.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Envelopes with their numbers, in order; each is UTF-8 and whole JSON,
    /// without a line end.
    pub events: Vec<(Seq, Bytes)>,
    /// Nothing came after the last of them that may be read.
    pub reached_end: bool,
    /// Where the next line begins, for [`read_on`].
    pub next: u64,
    /// Lines that were skipped because they are damaged.
    pub damaged: u64,
}

/// The events after `after`: about `max_bytes` of them, and one at least if
/// there is one. A transcript that does not exist is empty. Blocks.
///
/// For a transcript that nobody writes meanwhile: what stands behind the last
/// committed event may be taken back, see [`read_on`].
///
/// # Errors
/// [`TranscriptError::Read`].
pub fn read_after(path: &Path, after: Seq, max_bytes: usize) -> Result<Page, TranscriptError> {
    read_on(path, None, after, ALL, max_bytes)
}

/// The same from where another page ended, whose last event was `after`:
/// committed lines do not move, so nothing has to be looked for.
///
/// No event after `until` is given out: it is the last one that was committed
/// before this call. What follows it in the file is being written, and is taken
/// back when there is no room for all of it.
///
/// # Errors
/// [`TranscriptError::Read`].
pub fn read_on(
    path: &Path,
    next: Option<u64>,
    after: Seq,
    until: Seq,
    max_bytes: usize,
) -> Result<Page, TranscriptError> {
    let read = |source| TranscriptError::Read {
        path: path.to_owned(),
        source,
    };
    match scan::open_if_there(path) {
        Ok(Some(file)) => page(&file, next, (after, until), max_bytes).map_err(read),
        Ok(None) => Ok(Page {
            reached_end: true,
            ..Page::default()
        }),
        Err(error) => Err(read(error)),
    }
}

fn page(
    file: &File,
    next: Option<u64>,
    (after, until): (Seq, Seq),
    max_bytes: usize,
) -> io::Result<Page> {
    // What is appended from now on belongs to the next page.
    let length = file.metadata()?.len();
    let start = match next {
        Some(next) => next,
        None => start_for(file, after, length)?,
    };
    let mut lines = Lines::at(file, start, length)?;
    let mut page = Page::default();
    let (mut last, mut bytes) = (after, 0);
    page.next = start;
    loop {
        match lines.next()? {
            None => {
                page.reached_end = true;
                return Ok(page);
            }
            Some(Entry::Whole(sequence, _)) if sequence > until => {
                page.reached_end = true;
                return Ok(page);
            }
            Some(Entry::Whole(sequence, line)) if sequence > last => {
                bytes += line.len();
                last = sequence;
                page.next = lines.position;
                page.events.push((sequence, line.into()));
                if bytes >= max_bytes {
                    return Ok(page);
                }
            }
            // A number that is not greater is one of those before, or a double.
            Some(Entry::Whole(..)) => page.damaged += u64::from(!page.events.is_empty()),
            Some(Entry::Damaged) => page.damaged += 1,
        }
    }
}

/// The beginning of a line that is not after the first event after `after`, and
/// not far before it.
fn start_for(file: &File, after: Seq, length: u64) -> io::Result<u64> {
    if after == Seq(0) {
        return Ok(0);
    }
    // No event after `after` begins before `low`; one begins before `high`, if
    // there is any, or is the first one that begins at `high` or later.
    // A line that begins before `high` may end after it, and then `low` does too.
    let (mut low, mut high) = (0, length);
    while high.saturating_sub(low) > SMALL {
        let middle = low + (high - low) / 2;
        let mut lines = Lines::within(file, middle, high)?;
        let first = loop {
            match lines.next()? {
                Some(Entry::Damaged) => {}
                Some(Entry::Whole(sequence, _)) => break Some(sequence),
                None => break None,
            }
        };
        match first {
            Some(sequence) if sequence <= after => low = lines.position,
            _ => high = middle,
        }
    }
    Ok(low)
}

enum Entry {
    Whole(Seq, Vec<u8>),
    Damaged,
}

/// The lines of a file in order.
struct Lines<'a> {
    reader: BufReader<&'a File>,
    /// Where the next line begins.
    position: u64,
    /// No line that begins here or later is given out.
    end: u64,
    /// Bytes of the last line, at most [`USUAL`].
    usual: usize,
}

impl<'a> Lines<'a> {
    /// From the line that begins at `start`.
    fn at(file: &'a File, start: u64, end: u64) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(64 * 1024, file);
        reader.seek(SeekFrom::Start(start))?;
        Ok(Self {
            reader,
            position: start,
            end,
            usual: 0,
        })
    }

    /// From the first line that begins at `start` or later.
    fn within(file: &'a File, start: u64, end: u64) -> io::Result<Self> {
        let Some(before) = start.checked_sub(1) else {
            return Self::at(file, 0, end);
        };
        // Small reads: a search looks at one line in each place.
        let mut reader = BufReader::with_capacity(8 * 1024, file);
        reader.seek(SeekFrom::Start(before))?;
        let mut lines = Self {
            reader,
            position: before,
            end,
            usual: 0,
        };
        lines.skip_line()?;
        Ok(lines)
    }

    fn next(&mut self) -> io::Result<Option<Entry>> {
        loop {
            if self.position >= self.end {
                return Ok(None);
            }
            // Neighbouring lines are often of about the same length.
            let mut line = Vec::with_capacity(self.usual);
            let read = (&mut self.reader)
                .take(MAX_ENVELOPE as u64 + 1)
                .read_until(b'\n', &mut line)?;
            self.position += read as u64;
            self.usual = read.min(USUAL);
            if line.last() == Some(&b'\n') {
                line.pop();
            } else if line.len() > MAX_ENVELOPE {
                self.skip_line()?;
                return Ok(Some(Entry::Damaged));
            } else if read == 0 {
                // The file became shorter: a write was taken back.
                return Ok(None);
            }
            if line.is_empty() {
                // What sets a torn line apart.
                continue;
            }
            // A piece of an object is never an object: a last line that is not
            // whole yet, or never will be, counts as damaged.
            return Ok(Some(match Place::read(&line) {
                Some(place) => Entry::Whole(place.sequence, line),
                None => Entry::Damaged,
            }));
        }
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            let found = buffer.iter().position(|byte| *byte == b'\n');
            let count = found.map_or(buffer.len(), |found| found + 1);
            self.reader.consume(count);
            self.position += count as u64;
            if found.is_some() {
                return Ok(());
            }
        }
    }
}
