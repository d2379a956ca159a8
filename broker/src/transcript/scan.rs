//! Finding the end of a transcript, from the end.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ade_protocol::event::TurnStatus;
use ade_protocol::strict;
use ade_protocol::{Seq, TurnId};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Head, MAX_ENVELOPE, Place};
use crate::files;

/// First read; later ones grow with the line that is being looked for.
const BLOCK: usize = 64 * 1024;

/// What the end of a transcript tells.
#[derive(Default)]
pub(super) struct End {
    pub(super) length: u64,
    pub(super) head: Head,
    /// The last line has no end of its own.
    pub(super) torn: bool,
    pub(super) damaged: u64,
}

/// Opens a transcript to be read; `None`: there is none. A link to nowhere is no
/// such thing: what it names may come back, with all that was written before.
pub(crate) fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match files::open_regular(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            leads_somewhere(path)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// # Errors
/// The path is a link to nowhere.
pub(super) fn leads_somewhere(path: &Path) -> io::Result<()> {
    if files::is_dangling(path) {
        let why = "it is a link to nowhere; put back what it names, or remove the link";
        return Err(io::Error::other(why));
    }
    Ok(())
}

/// Reads from the end until the last event and the newest event of a worker
/// were seen.
pub(super) fn end(path: &Path) -> io::Result<End> {
    let Some(file) = open_if_there(path)? else {
        return Ok(End::default());
    };
    let mut end = End {
        length: file.metadata()?.len(),
        ..End::default()
    };
    if end.length > 0 {
        let mut last = [0];
        file.read_exact_at(&mut last, end.length - 1)?;
        end.torn = last[0] != b'\n';
    }
    let mut lines = Backward::new(&file, end.length);
    while let Some(line) = lines.next()? {
        let place = match line {
            Some([]) => continue,
            Some(line) => Place::read(line),
            None => None,
        };
        let Some(place) = place else {
            end.damaged += 1;
            continue;
        };
        if end.head.timestamp.is_none() {
            end.head.sequence = place.sequence;
            end.head.timestamp = Some(place.timestamp.into_owned());
        }
        if place.origin.is_some() {
            end.head.origin = place.origin;
            break;
        }
    }
    Ok(end)
}

/// What a transcript holds of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its beginning, not its end.
    Begun,
    /// Its one terminal event.
    Ended(TurnStatus),
}

/// What of a line tells how a turn stands.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    sequence: Seq,
    #[serde(borrow)]
    turn_id: Option<Cow<'a, str>>,
    origin: Option<IgnoredAny>,
    #[serde(borrow)]
    event: Peek<'a>,
}

#[derive(Deserialize)]
struct Peek<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    status: Option<TurnStatus>,
}

/// How turns of a session stand in its transcript; one that is not in the result
/// has nothing there. `after`: an event that is older than anything that was
/// written of them.
///
/// Reads from the end until all are known or `after` is reached, and never stops
/// for what it finds of other turns: when a disk is full several turns end at
/// once, in any order, and what `state.db` says of them may be taken back much
/// later.
///
/// # Errors
/// The file is there and cannot be read.
pub fn standings(
    path: &Path,
    turns: Vec<TurnId>,
    after: Seq,
) -> io::Result<BTreeMap<TurnId, Standing>> {
    let mut found = BTreeMap::new();
    let mut turns: BTreeMap<String, TurnId> = turns
        .into_iter()
        .map(|turn| (turn.as_str().to_owned(), turn))
        .collect();
    let Some(file) = open_if_there(path)? else {
        return Ok(found);
    };
    let length = file.metadata()?.len();
    let mut lines = Backward::new(&file, length);
    while !turns.is_empty()
        && let Some(line) = lines.next()?
    {
        let line = line.and_then(|line| strict::from_slice::<Line<'_>>(line).ok());
        let Some(line) = line.filter(|line| super::is_number(line.sequence)) else {
            continue;
        };
        if line.sequence <= after {
            break;
        }
        let Some(id) = line.turn_id.as_deref() else {
            continue;
        };
        let Some(turn) = turns.get(id) else { continue };
        let standing = found.entry(turn.clone()).or_insert(Standing::Begun);
        let ended = line.event.status.filter(|_| line.event.kind == "done");
        // The broker itself may tell something of a turn that is over, such as
        // how its card ended. A worker's words belong to a turn that runs.
        let runs = line.origin.is_some() || line.event.kind == "user_message";
        if let Some(status) = ended {
            *standing = Standing::Ended(status);
        }
        if ended.is_some() || runs {
            turns.remove(id);
        }
    }
    Ok(found)
}

/// The lines of a file, last one first.
struct Backward<'a> {
    file: &'a File,
    /// Bytes of the file before the buffer.
    before: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer that belong to lines not yet given out.
    left: usize,
    /// Bytes at the end of those that hold no line end.
    searched: usize,
    /// The line that is being looked for is over the limit; its bytes were dropped.
    too_long: bool,
    done: bool,
}

impl<'a> Backward<'a> {
    fn new(file: &'a File, length: u64) -> Self {
        Self {
            file,
            before: length,
            buffer: Vec::new(),
            left: 0,
            searched: 0,
            too_long: false,
            done: length == 0,
        }
    }

    /// The line before the last one given out, without its end; `Some(None)` for
    /// one over the limit; `None` at the beginning of the file.
    fn next(&mut self) -> io::Result<Option<Option<&[u8]>>> {
        if self.done {
            return Ok(None);
        }
        loop {
            let unsearched = self.left - self.searched;
            let found = self.buffer[..unsearched]
                .iter()
                .rposition(|byte| *byte == b'\n');
            if let Some(found) = found {
                let line = found + 1..self.left;
                self.left = found;
                self.searched = 0;
                return Ok(Some(self.give(line)));
            }
            if self.before == 0 {
                self.done = true;
                let line = 0..self.left;
                return Ok(Some(self.give(line)));
            }
            self.searched = self.left;
            if self.left > MAX_ENVELOPE {
                self.too_long = true;
                self.left = 0;
                self.searched = 0;
            }
            self.read_before()?;
        }
    }

    fn give(&mut self, line: std::ops::Range<usize>) -> Option<&[u8]> {
        let too_long = std::mem::take(&mut self.too_long) || line.len() > MAX_ENVELOPE;
        (!too_long).then_some(&self.buffer[line])
    }

    /// Puts the bytes before the buffer in front of it: at least as many as it
    /// holds, so that a long line is not moved again and again.
    fn read_before(&mut self) -> io::Result<()> {
        let wanted = self.left.max(BLOCK) as u64;
        let count = usize::try_from(wanted.min(self.before)).unwrap_or(BLOCK);
        let mut buffer = vec![0; count + self.left];
        self.before -= count as u64;
        self.file.read_exact_at(&mut buffer[..count], self.before)?;
        buffer[count..].copy_from_slice(&self.buffer[..self.left]);
        self.left += count;
        self.buffer = buffer;
        Ok(())
    }
}
