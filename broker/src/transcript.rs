//! Append-only transcripts of canonical events, one JSONL file a session.
//!
//! A transcript numbers its events from 1 without gaps. Events are staged, and
//! one write puts everything that was staged on its way to the disk; only what
//! was committed counts, and whoever publishes an event does so after the
//! commit. No flush: the kernel has the bytes, so the death of the broker loses
//! nothing.
//!
//! Invariants:
//! - a committed line is never changed or removed;
//! - a torn last line, left by a power cut, is set apart by a line end before
//!   the next write: it costs itself only;
//! - a write that fails half-way (full disk) is taken back, and its numbers are
//!   given out again;
//! - a file that was removed, replaced or cut under its writer is noticed by the
//!   next commit, which fails for it; the one after that begins a new file, whose
//!   numbers go on;
//! - of a file that holds less than whoever opens it knows of, the numbers go on
//!   behind that, and it tells so;
//! - memory grows neither with the file nor with its number of lines.
//!
//! What this module does not do: know what an event means, or wait. Reading
//! blocks, so it belongs on a blocking thread.

mod read;
mod scan;

#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ade_protocol::event::Origin;
use ade_protocol::limits::MAX_LINE;
use ade_protocol::strict;
use ade_protocol::{Generation, Seq, SessionId, TurnId, exit};
use memchr::memchr;
use serde::Deserialize;

pub use read::{Page, read_after, read_on};
pub(crate) use scan::open_if_there;
pub use scan::{Standing, standings};

use crate::{files, footing};

/// Longest line that is read: the longest event and its envelope. A longer one
/// counts as damaged and is skipped with bounded memory.
const MAX_ENVELOPE: usize = MAX_LINE + 64 * 1024;

/// Staged bytes that are kept allocated between two small commits.
const KEEP_STAGED: usize = 64 * 1024;

/// Why a transcript could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptError {
    /// It cannot be opened or read.
    #[error("could not read the transcript {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be written; nothing of what was staged counts.
    #[error("could not write the transcript {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file was removed, replaced or cut since it was last written; nothing of
    /// what was staged counts.
    #[error(
        "the transcript {} was removed or replaced under the broker; what it held is not there \
         any more",
        path.display()
    )]
    Lost {
        /// The file.
        path: PathBuf,
    },
}

impl TranscriptError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        exit::FAILED
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let (Self::Read { path, source } | Self::Write { path, source }) = self else {
            return vec![
                "the chat goes on in a new one; send the message again if you still want \
                 it"
                .into(),
            ];
        };
        vec![files::remedy(path, source).unwrap_or_else(|| {
            match source.kind() {
                io::ErrorKind::NotFound => {
                    "the folder above it was removed: the broker makes it again \
                 within a few seconds; then try again"
                        .into()
                }
                _ => "check that it is a file of yours that you can write".into(),
            }
        })]
    }
}

/// The largest number that an event can have: the largest that every reader of
/// JSON takes exactly. A transcript that counted to it would fill any disk.
const MAX_SEQUENCE: Seq = Seq((1 << 53) - 1);

/// Whether an event can have the number. A line with another is damaged, and
/// must not decide where the count goes on.
fn is_number(sequence: Seq) -> bool {
    (Seq(1)..MAX_SEQUENCE).contains(&sequence)
}

/// The place of a line in its transcript, read without looking at the event.
#[derive(Deserialize)]
struct Place<'a> {
    sequence: Seq,
    #[serde(borrow)]
    timestamp: std::borrow::Cow<'a, str>,
    #[serde(default)]
    origin: Option<Origin>,
}

impl<'a> Place<'a> {
    /// `None`: the line is damaged. The whole line is checked, since what is
    /// handed on must be JSON.
    fn read(line: &'a [u8]) -> Option<Self> {
        let place: Self = strict::from_str(std::str::from_utf8(line).ok()?).ok()?;
        is_number(place.sequence).then_some(place)
    }
}

/// Where a transcript ends.
#[derive(Clone, Debug, Default)]
struct Head {
    sequence: Seq,
    timestamp: Option<String>,
    /// Newest event that a worker sent. Generations only grow, so those of
    /// older generations are complete.
    origin: Option<Origin>,
}

/// One session's transcript, open for appending. There is one writer: the
/// session's actor.
#[derive(Debug)]
pub struct Transcript {
    session: SessionId,
    path: PathBuf,
    /// `{"sessionId":"…","sequence":`, the same for every line.
    prefix: String,
    /// Opened by the first commit, so that a session at rest costs no descriptor.
    file: Option<File>,
    length: u64,
    /// A write that failed could not be taken back: what stands behind `length`
    /// goes before anything else is written.
    excess: bool,
    /// The last line has no end of its own.
    torn: bool,
    damaged: u64,
    head: Head,
    staged_head: Head,
    staged: Vec<u8>,
    /// Until something is written behind them.
    missing: Option<Missing>,
}

/// Events that are known of and that the file does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The last event of the file; 0: it is empty or not there.
    pub held: Seq,
    /// There was this one, and perhaps others behind it.
    pub known: Seq,
}

impl Transcript {
    /// Reads where the transcript at `path` ends; it need not exist. Reads from
    /// the end until the newest event of a worker was seen, and changes nothing.
    /// `known`: an event that it had at least; no number up to that is given out
    /// again.
    ///
    /// # Errors
    /// [`TranscriptError::Read`].
    pub fn open(path: &Path, session: SessionId, known: Seq) -> Result<Self, TranscriptError> {
        let read = |source| TranscriptError::Read {
            path: path.to_owned(),
            source,
        };
        let mut end = scan::end(path).map_err(read)?;
        let held = end.head.sequence;
        let missing = (held < known).then_some(Missing { held, known });
        end.head.sequence = held.max(known);
        if end.damaged > 0 {
            tracing::warn!(
                path = %path.display(),
                "{} at the end of the transcript {} damaged: no whole JSON object, or one with \
                 a number that no event can have; the count goes on from the line before",
                if end.damaged == 1 { "1 line".into() } else { format!("{} lines", end.damaged) },
                if end.damaged == 1 { "is" } else { "are" },
            );
        }
        let id = serde_json::to_string(&session).map_err(|error| read(error.into()))?;
        Ok(Self {
            session,
            path: path.to_owned(),
            prefix: format!("{{\"sessionId\":{id},\"sequence\":"),
            file: None,
            length: end.length,
            excess: false,
            torn: end.torn,
            damaged: end.damaged,
            staged_head: end.head.clone(),
            head: end.head,
            staged: Vec::new(),
            missing,
        })
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The last event; 0: none yet.
    #[must_use]
    pub fn last_sequence(&self) -> Seq {
        self.head.sequence
    }

    /// What the file does not hold, until the first commit.
    #[must_use]
    pub fn missing(&self) -> Option<Missing> {
        self.missing
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When the last event was written.
    #[must_use]
    pub fn last_event_at(&self) -> Option<&str> {
        self.head.timestamp.as_deref()
    }

    /// The newest generation that an event came from; 0: none did.
    #[must_use]
    pub fn last_generation(&self) -> Generation {
        self.head
            .origin
            .map_or(Generation(0), |origin| origin.generation)
    }

    /// The last event of `generation`, by the worker's own numbers, when it is
    /// the newest one; 0: none came from it. This is what a worker that comes
    /// back may be told as acknowledged.
    #[must_use]
    pub fn last_origin(&self, generation: Generation) -> Seq {
        match self.head.origin {
            Some(origin) if origin.generation == generation => origin.seq,
            _ => Seq(0),
        }
    }

    /// Damaged lines that were met while the end was looked for.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Numbers an event and builds its line, which is given back without its
    /// end. Nothing is written yet. `timestamp` needs no escaping; `event` is
    /// one JSON value, checked by whoever read it.
    pub fn stage(
        &mut self,
        timestamp: &str,
        turn: Option<&TurnId>,
        origin: Option<Origin>,
        event: &[u8],
    ) -> (Seq, &[u8]) {
        let sequence = self.staged_head.sequence.next();
        let start = self.staged.len();
        write_line(
            &mut self.staged,
            &self.prefix,
            sequence,
            timestamp,
            turn,
            origin,
            event,
        );
        let end = self.staged.len();
        self.staged.push(b'\n');
        self.staged_head.sequence = sequence;
        match &mut self.staged_head.timestamp {
            Some(kept) => timestamp.clone_into(kept),
            none => *none = Some(timestamp.to_owned()),
        }
        self.staged_head.origin = origin.or(self.staged_head.origin);
        (sequence, &self.staged[start..end])
    }

    /// The line of an event that is shown and forgotten. It carries the number
    /// of the last event before it.
    #[must_use]
    pub fn transient(&self, timestamp: &str, turn: Option<&TurnId>, event: &[u8]) -> Vec<u8> {
        let sequence = self.staged_head.sequence;
        let mut line = Vec::with_capacity(self.prefix.len() + event.len() + 128);
        write_line(
            &mut line,
            &self.prefix,
            sequence,
            timestamp,
            turn,
            None,
            event,
        );
        line
    }

    /// Bytes that the envelope of an event adds to it, at most.
    #[must_use]
    pub fn envelope(&self, turn: Option<&TurnId>) -> usize {
        // The rest are names, a time and three numbers.
        self.prefix.len() + turn.map_or(0, |turn| turn.as_str().len()) + 192
    }

    /// Makes room for so many events of so many bytes in all.
    pub fn expect(&mut self, bytes: usize) {
        self.staged.reserve(bytes);
    }

    /// Writes everything that was staged, in one write.
    ///
    /// # Errors
    /// [`TranscriptError::Write`]: nothing of what was staged counts, and its
    /// numbers will be given out again.
    pub fn commit(&mut self) -> Result<(), TranscriptError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let written = self.write();
        // A session that streams comes back with as much at once, and fresh
        // memory costs more than what is written to it.
        if self.staged.capacity() > KEEP_STAGED.max(4 * self.staged.len()) {
            self.staged = Vec::new();
        }
        self.staged.clear();
        match written {
            Ok(()) => {
                self.head.clone_from(&self.staged_head);
                self.missing = None;
                Ok(())
            }
            Err(error) => {
                self.staged_head.clone_from(&self.head);
                let path = self.path.clone();
                Err(match error {
                    Fault::Write(source) => TranscriptError::Write { path, source },
                    Fault::Lost => TranscriptError::Lost { path },
                })
            }
        }
    }

    fn write(&mut self) -> Result<(), Fault> {
        if self.torn {
            // The torn line and what follows it must not become one line.
            self.staged.insert(0, b'\n');
        }
        if self.file.is_none() {
            self.file = Some(self.open_file()?);
        }
        let file = self.file.as_mut().expect("it was opened above");
        match file.write_all(&self.staged) {
            Ok(()) if file_is_at(file, &self.path) => {
                self.length += self.staged.len() as u64;
                self.torn = false;
                Ok(())
            }
            Ok(()) => {
                self.file = None;
                self.begin_at(0);
                Err(Fault::Lost)
            }
            Err(error) => {
                self.excess = file.set_len(self.length).is_err();
                self.file = None;
                Err(Fault::Write(error))
            }
        }
    }

    fn open_file(&mut self) -> Result<File, Fault> {
        scan::leads_somewhere(&self.path)?;
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        let file = files::open_private(&self.path, &mut options)?;
        let length = file.metadata()?.len();
        if length < self.length {
            self.begin_at(length);
            return Err(Fault::Lost);
        }
        if self.excess && length > self.length {
            // Whole lines may be among it, whose numbers are given out again now.
            file.set_len(self.length)?;
        } else {
            self.length = length;
        }
        self.excess = false;
        Ok(file)
    }

    /// What was written is not there any more; the file has so many bytes by now.
    fn begin_at(&mut self, length: u64) {
        self.length = length;
        self.excess = false;
        // Perhaps; an empty line does no harm.
        self.torn = length > 0;
    }

    /// Closes the file until the next commit. For sessions at rest.
    pub fn rest(&mut self) {
        self.file = None;
        self.staged = Vec::new();
        self.staged_head.clone_from(&self.head);
    }
}

/// Why nothing of a commit counts.
enum Fault {
    Write(io::Error),
    Lost,
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

/// Whether the open file is the one at the path. One that can't be looked at is
/// not known to be lost.
fn file_is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let open = file.metadata();
    open.is_ok_and(|open| footing::is_same(path, (open.dev(), open.ino())))
}

/// Writes what serialising an [`ade_protocol::event::Envelope`] would, without
/// owning its parts.
fn write_line(
    into: &mut Vec<u8>,
    prefix: &str,
    sequence: Seq,
    timestamp: &str,
    turn: Option<&TurnId>,
    origin: Option<Origin>,
    event: &[u8],
) {
    into.extend_from_slice(prefix.as_bytes());
    number(into, sequence.0);
    into.extend_from_slice(b",\"timestamp\":\"");
    into.extend_from_slice(timestamp.as_bytes());
    into.push(b'"');
    if let Some(turn) = turn {
        into.extend_from_slice(b",\"turnId\":");
        serde_json::to_writer(&mut *into, turn.as_str()).expect(NEVER);
    }
    if let Some(Origin { generation, seq }) = origin {
        into.extend_from_slice(b",\"origin\":{\"generation\":");
        number(into, generation.0);
        into.extend_from_slice(b",\"seq\":");
        number(into, seq.0);
        into.push(b'}');
    }
    into.extend_from_slice(b",\"event\":");
    let start = into.len();
    into.extend_from_slice(event);
    // In JSON a raw line end can only stand between tokens.
    let mut at = start;
    while let Some(found) = memchr(b'\n', &into[at..]) {
        at += found;
        into[at] = b' ';
    }
    into.push(b'}');
}

const NEVER: &str = "writing to memory does not fail";

/// Writes a number. The formatting machinery of `write!` costs several times
/// as much, and there are three numbers in every line.
fn number(into: &mut Vec<u8>, number: u64) {
    serde_json::to_writer(into, &number).expect(NEVER);
}
