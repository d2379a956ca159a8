//! Reading a whole session file, with every kind of damage it may have.
//!
//! A bad line costs that line and nothing else; it is counted, its number and
//! the reason are told, and its bytes stay where they are. Memory does not
//! grow with the file's size: one line at a time, and a few bytes for each
//! entry up to a bound.
//!
//! Nothing here writes, but for [`set_tail_apart`], which a writer that holds
//! the lease calls before it appends for the first time.

mod line;
mod tree;

pub use line::{Bad, LINE_MAX, parse_line};

use crate::store::Header;
use std::fs::OpenOptions;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tree::{TOLD_MAX, Tree};

/// The newest version of the file format that we know how to write.
pub const SESSION_VERSION: u64 = 3;

/// What is in a session file, and what is wrong with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Lines that are not blank, bad ones included.
    pub lines: u64,
    /// Whole entries, the header included, a line that is there twice once.
    pub entries: u64,
    /// How many lines are bad.
    pub bad: u64,
    /// The first 100 of them.
    pub bad_lines: Vec<BadLine>,
    /// The header, if the first entry is one.
    pub header: Option<Header>,
    /// The highest version of all header lines, with its line.
    pub newest_version: Option<(u64, u64)>,
    /// Header lines after the first.
    pub more_headers: u64,
    /// How the file ends.
    pub tail: TailState,
    /// The entry that the next one follows.
    pub leaf: Option<Leaf>,
    /// Entries with more than one child, the first 100.
    pub forks: Vec<Fork>,
    /// Ids that two different entries have, the first 100.
    pub duplicate_ids: Vec<DuplicateId>,
    /// Lines that are there once more, byte for byte.
    pub repeated: u64,
    /// Entries whose parent is not in the file before them.
    pub orphans: u64,
    /// Tool calls on the leaf's branch without a result.
    pub open_calls: Vec<OpenCall>,
    /// Lines in which something was read as U+FFFD.
    pub repaired: u64,
    /// Entries beyond the bound: counted, but not compared with each other.
    pub not_followed: u64,
}

/// A line that is no entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadLine {
    /// Counted from 1, blank lines included.
    pub number: u64,
    /// Why.
    pub why: Bad,
}

/// How a file ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TailState {
    /// With a newline, or it is empty.
    #[default]
    Clean,
    /// With a whole entry that lacks its newline.
    NoNewline,
    /// With a part of an entry: so many bytes.
    Torn(u64),
}

/// An entry by its id and its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// Its id.
    pub id: String,
    /// Its line, counted from 1.
    pub line: u64,
}

/// An entry with more than one child: the user went back in the tree, or two
/// programs wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fork {
    /// The common parent.
    pub parent: Leaf,
    /// The children, in the file's order.
    pub children: Vec<Leaf>,
    /// The child on the leaf's branch: the branch that a resume continues.
    pub chosen: Option<Leaf>,
}

/// An id that two different entries have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DuplicateId {
    /// The id.
    pub id: String,
    /// The first line and the other one.
    pub lines: (u64, u64),
}

/// A tool call without a result: the turn was interrupted there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenCall {
    /// The call's id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The line of the call.
    pub line: u64,
}

/// What a writer must know before it opens the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Objection {
    /// Don't write: the sentence says why and what to do.
    Stop(String),
    /// Write, but tell the user.
    Notice(String),
}

impl Report {
    /// What speaks against writing, the gravest first. Reading is always fine.
    #[must_use]
    pub fn objections(&self) -> Vec<Objection> {
        let mut stop = Vec::new();
        let mut notice = Vec::new();
        if let Some((version, line)) = self.newest_version.filter(|(v, _)| *v > SESSION_VERSION) {
            stop.push(format!(
                "line {line} says version {version} of the session format, and this program writes \
                 version {SESSION_VERSION}; update it"
            ));
        }
        if self.header.is_none() && self.lines > 0 {
            stop.push("the first line is no session header; start a new chat".to_owned());
        }
        if let Some(twice) = self.duplicate_ids.first() {
            stop.push(format!(
                "lines {} and {} are different entries with the id {}; start a new chat",
                twice.lines.0, twice.lines.1, twice.id
            ));
        }
        if let Some(fork) = self.forks.last() {
            let chosen = fork.chosen.as_ref().map_or("none", |chosen| &chosen.id);
            notice.push(format!(
                "the session has diverged after {}: {} branches, and the one of {chosen} is continued",
                fork.parent.id,
                fork.children.len()
            ));
        }
        if let Some(bad) = self.bad_lines.first() {
            notice.push(format!(
                "{} of {} lines can't be read, the first is line {}: {}",
                self.bad, self.lines, bad.number, bad.why
            ));
        }
        if let Some(call) = self.open_calls.first() {
            notice.push(format!(
                "{} tool call(s) have no result, the first is {} ({}) in line {}: the turn was interrupted",
                self.open_calls.len(),
                call.id,
                call.name,
                call.line
            ));
        }
        let stop = stop.into_iter().map(Objection::Stop);
        stop.chain(notice.into_iter().map(Objection::Notice))
            .collect()
    }
}

/// Reads a session file through. Changes no byte of it.
///
/// # Errors
/// It can't be opened or read, or is no regular file.
pub fn check(path: &Path) -> io::Result<Report> {
    check_reader(crate::store::open(path)?)
}

/// As [`check`], for any reader.
///
/// # Errors
/// The reader's.
pub fn check_reader(reader: impl Read) -> io::Result<Report> {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    let mut report = Report::default();
    let mut tree = Tree::default();
    let (mut number, mut buffer) = (0, Vec::new());
    while let Some(line) = line::next_line(&mut reader, buffer)? {
        number += 1;
        take_line(&mut report, &mut tree, number, &line);
        buffer = line.bytes;
    }
    report.duplicate_ids = std::mem::take(&mut tree.duplicates);
    report.repeated = tree.repeated;
    report.orphans = tree.orphans;
    report.not_followed = tree.not_followed;
    (report.leaf, report.forks, report.open_calls) = tree.finish();
    Ok(report)
}

fn take_line(report: &mut Report, tree: &mut Tree, number: u64, line: &line::Line) {
    let entry = if line.too_long {
        Err(Bad::TooLong)
    } else {
        line::entry(&line.bytes)
    };
    if !line.ended {
        let torn = TailState::Torn(line.bytes.len() as u64);
        report.tail = if entry.is_ok() {
            TailState::NoNewline
        } else {
            torn
        };
    }
    match entry {
        Ok(None) => {}
        Ok(Some(entry)) => {
            report.lines += 1;
            report.repaired += u64::from(entry.repaired);
            match &entry.header {
                Some(json) => take_header(report, number, json),
                None if !tree.take(number, &line.bytes, &entry) => return,
                None => {}
            }
            report.entries += 1;
        }
        Err(why) => {
            report.lines += 1;
            report.bad += 1;
            if report.bad_lines.len() < TOLD_MAX {
                report.bad_lines.push(BadLine { number, why });
            }
        }
    }
}

fn take_header(report: &mut Report, number: u64, json: &serde_json::Value) {
    let header = crate::store::header_from(json);
    let version = json.get("version").and_then(serde_json::Value::as_u64);
    let newest = report.newest_version.map_or(0, |(version, _)| version);
    if let Some(version) = version.filter(|version| *version > newest) {
        report.newest_version = Some((version, number));
    }
    if report.entries == 0 && report.bad == 0 {
        report.header = header;
    } else {
        report.more_headers += 1;
    }
}

/// Ends an unended last line with a newline, so that the next entry is not
/// glued to it; `true` when there was one. A torn line then costs only itself.
///
/// Only for the holder of the lease, before its first append.
///
/// # Errors
/// The file can't be opened, read or written.
pub fn set_tail_apart(path: &Path) -> io::Result<bool> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .custom_flags(no_follow)
        .open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    if last == *b"\n" {
        return Ok(false);
    }
    file.write_all(b"\n")?;
    Ok(true)
}
