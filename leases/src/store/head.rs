//! The first line and the last lines of a session file. Memory is bounded
//! whatever the file holds.

use jiff::Timestamp;
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A longer first line is no header.
const HEAD_MAX: u64 = 64 * 1024;

/// So much of the end is looked at. A last entry that is longer is not told.
const TAIL_MAX: u64 = 64 * 1024;

/// The header: line 1 of a session file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The session's id, not blank.
    pub id: String,
    /// The lane it was made in, as it was recorded.
    pub cwd: PathBuf,
    /// When it was made.
    pub created_at: Option<Timestamp>,
    /// The version of the file format.
    pub version: Option<u64>,
    /// The file it was forked from.
    pub parent_session: Option<String>,
}

/// The end of a session file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tail {
    /// `type` of the last whole entry.
    pub last_type: Option<String>,
    /// `id` of it: the leaf of the tree.
    pub last_id: Option<String>,
    /// `timestamp` of it.
    pub last_at: Option<Timestamp>,
    /// The file does not end with a newline.
    pub no_newline: bool,
    /// What follows the last newline is no whole entry.
    pub torn: bool,
}

/// Opens for reading; never a device, a pipe or a directory.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ))
    }
}

/// Reads the header; `None` when the first line is none (also when `cwd` is
/// missing or blank: that is no wildcard).
///
/// # Errors
/// The file can't be opened or read.
pub fn read_header(path: &Path) -> io::Result<Option<Header>> {
    header_of(&mut open(path)?)
}

pub(crate) fn header_of(file: &mut File) -> io::Result<Option<Header>> {
    let mut bytes = Vec::with_capacity(1024);
    // Most headers are short: one small read serves.
    for limit in [1024, HEAD_MAX] {
        let more = limit - bytes.len() as u64;
        file.take(more).read_to_end(&mut bytes)?;
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            return Ok(parse_header(&bytes[..end]));
        }
        if (bytes.len() as u64) < limit {
            return Ok(parse_header(&bytes));
        }
    }
    Ok(None)
}

/// Strips what editors and other systems leave around a line.
pub(crate) fn bare_line(line: &[u8]) -> &[u8] {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn parse_header(line: &[u8]) -> Option<Header> {
    let json: Value = serde_json::from_slice(bare_line(line)).ok()?;
    header_from(&json)
}

pub(crate) fn header_from(json: &Value) -> Option<Header> {
    let text = |name: &str| json.get(name).and_then(Value::as_str);
    if text("type")? != "session" {
        return None;
    }
    let id = text("id").filter(|id| !id.trim().is_empty())?;
    let cwd = text("cwd").filter(|cwd| !cwd.trim().is_empty())?;
    Some(Header {
        id: id.to_owned(),
        cwd: PathBuf::from(cwd),
        created_at: text("timestamp").and_then(|stamp| stamp.parse().ok()),
        version: json.get("version").and_then(Value::as_u64),
        parent_session: text("parentSession").map(str::to_owned),
    })
}

/// Reads the end.
///
/// # Errors
/// The file can't be opened or read.
pub fn read_tail(path: &Path) -> io::Result<Tail> {
    tail_of(&mut open(path)?)
}

pub(crate) fn tail_of(file: &mut File) -> io::Result<Tail> {
    let size = file.metadata()?.len();
    let from = size.saturating_sub(TAIL_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL_MAX).read_to_end(&mut bytes)?;
    let mut tail = Tail::default();
    let Some(last) = bytes.last() else {
        return Ok(tail);
    };
    tail.no_newline = *last != b'\n';
    let mut lines = bytes.split(|byte| *byte == b'\n').rev();
    // What follows the last newline: nothing, or an entry without its end.
    let rest = lines.next().unwrap_or_default();
    if tail.no_newline {
        tail.torn = !take_last(&mut tail, rest);
        if !tail.torn {
            return Ok(tail);
        }
    }
    for line in lines {
        if take_last(&mut tail, line) {
            break;
        }
    }
    Ok(tail)
}

fn take_last(tail: &mut Tail, line: &[u8]) -> bool {
    let Ok(Value::Object(entry)) = serde_json::from_slice(bare_line(line)) else {
        return false;
    };
    let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    tail.last_type = text("type");
    tail.last_id = text("id");
    tail.last_at = text("timestamp").and_then(|stamp| stamp.parse().ok());
    true
}
