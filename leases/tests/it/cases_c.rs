//! The handed cases of session files.

use crate::support::fixture;
use ade_leases::session_file::{
    Bad, Objection, Report, TailState, check, check_reader, set_tail_apart,
};
use ade_leases::store::{Scope, list, read_header, read_tail};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn report(name: &str) -> Report {
    check(&path_of(name)).expect("it can be read")
}

fn leaf(report: &Report) -> &str {
    &report.leaf.as_ref().expect("a leaf").id
}

fn stops(report: &Report) -> Vec<String> {
    let stop = |objection| match objection {
        Objection::Stop(text) => Some(text),
        Objection::Notice(_) => None,
    };
    report.objections().into_iter().filter_map(stop).collect()
}

fn notices(report: &Report) -> String {
    let notice = |objection| match objection {
        Objection::Notice(text) => Some(text),
        Objection::Stop(_) => None,
    };
    report
        .objections()
        .into_iter()
        .filter_map(notice)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn c01_a_torn_tail_is_set_apart_before_the_next_entry() {
    let dir = tempfile::tempdir().expect("a temp dir");
    let path = dir.path().join("s.jsonl");
    let before = fixture("C01-torn-tail.jsonl");
    fs::write(&path, &before).expect("written");
    let torn = check(&path).expect("read");
    assert!(
        matches!(torn.tail, TailState::Torn(n) if n > 0),
        "{:?}",
        torn.tail
    );
    assert_eq!((torn.bad_lines[0].number, leaf(&torn)), (4, "00000002"));
    let tail = read_tail(&path).expect("read");
    assert!(tail.torn && tail.no_newline);
    assert_eq!(tail.last_id.as_deref(), Some("00000002"));
    assert_eq!(fs::read_to_string(&path).expect("read"), before);

    assert!(set_tail_apart(&path).expect("written"));
    assert!(!set_tail_apart(&path).expect("nothing to do"));
    let entry = r#"{"type":"message","id":"00000004","parentId":"00000002","message":{"role":"user","content":"u2"}}"#;
    let mut file = fs::File::options().append(true).open(&path).expect("open");
    writeln!(file, "{entry}").expect("written");
    let after = check(&path).expect("read");
    assert_eq!(
        (after.tail, leaf(&after), after.bad),
        (TailState::Clean, "00000004", 1)
    );
    assert_eq!(after.orphans, 0);
    assert!(
        fs::read_to_string(&path)
            .expect("read")
            .starts_with(&before)
    );
}

#[test]
fn a_missing_newline_is_not_a_torn_line() {
    let text = fixture("C01-torn-tail.jsonl");
    let whole = text.lines().take(3).collect::<Vec<_>>().join("\n");
    let report = check_reader(whole.as_bytes()).expect("read");
    assert_eq!(
        (report.tail, report.bad, leaf(&report)),
        (TailState::NoNewline, 0, "00000002")
    );
    assert_eq!(check_reader(&b""[..]).expect("read"), Report::default());
}

#[test]
fn c03_a_bad_line_costs_only_itself() {
    let report = report("C03-bad-middle.jsonl");
    assert_eq!((report.lines, report.entries, report.bad), (6, 5, 1));
    assert_eq!(
        (report.bad_lines[0].number, report.bad_lines[0].why),
        (4, Bad::NotJson)
    );
    assert_eq!((leaf(&report), report.orphans), ("00000004", 0));
    assert!(notices(&report).contains("1 of 6 lines can't be read, the first is line 4"));
}

#[test]
fn c06_two_records_on_one_line_are_damaged_and_nothing_is_guessed() {
    let report = report("C06-glued.jsonl");
    assert_eq!((report.bad, report.bad_lines[0].number), (1, 4));
    assert_eq!((leaf(&report), report.entries), ("00000004", 4));
}

#[test]
fn c08_a_forked_file_is_reported_and_the_chosen_branch_named() {
    let report = report("C08-diverged.jsonl");
    let fork = &report.forks[0];
    assert_eq!(fork.parent.id, "00000002");
    let children: Vec<&str> = fork
        .children
        .iter()
        .map(|child| child.id.as_str())
        .collect();
    assert_eq!(children, ["0000000a", "0000000b"]);
    assert_eq!(fork.chosen.as_ref().expect("one").id, "0000000b");
    assert_eq!(leaf(&report), "0000000d");
    let notice = notices(&report);
    assert!(
        notice.contains("diverged after 00000002: 2 branches"),
        "{notice}"
    );
    assert!(notice.contains("0000000b is continued"), "{notice}");
}

#[test]
fn c09_one_id_with_two_contents_is_reported_and_a_repeated_line_counts_once() {
    let different = report("C09-dup-id.jsonl");
    assert_eq!(different.duplicate_ids[0].id, "00000003");
    assert_eq!(different.duplicate_ids[0].lines, (4, 5));
    assert!(
        stops(&different)[0].contains("lines 4 and 5"),
        "{:?}",
        stops(&different)
    );
    let same = report("C09-dup-line.jsonl");
    assert_eq!((same.repeated, same.lines, same.entries), (1, 5, 4));
    assert!(same.duplicate_ids.is_empty() && stops(&same).is_empty());
}

#[test]
fn c10_an_open_tool_call_is_named_and_nothing_is_invented() {
    let report = report("C10-open-tool-call.jsonl");
    let open: Vec<(&str, &str, u64)> = report
        .open_calls
        .iter()
        .map(|call| (call.id.as_str(), call.name.as_str(), call.line))
        .collect();
    assert_eq!(open, [("c3", "bash", 4)]);
    let notice = notices(&report);
    assert!(
        notice.contains("c3 (bash) in line 4: the turn was interrupted"),
        "{notice}"
    );
}

#[test]
fn c12_separators_inside_a_text_carriage_returns_and_a_bom() {
    let separators = report("C12-u2028.jsonl");
    assert_eq!(
        (separators.lines, separators.entries, separators.bad),
        (3, 3, 0)
    );
    let text = fixture("C12-u2028.jsonl");
    let second = text.split('\n').nth(1).expect("a line");
    let entry = ade_leases::session_file::parse_line(second.as_bytes()).expect("an entry");
    let content = entry["message"]["content"].as_str().expect("a text");
    assert!(
        content.contains('\u{2028}') && !content.contains('\r'),
        "{content:?}"
    );
    let bom = report("C12-bom.jsonl");
    assert_eq!(
        (bom.bad, bom.header.expect("a header").id.as_str()),
        (0, "s-0001")
    );
    let header = read_header(&path_of("C12-bom.jsonl"))
        .expect("read")
        .expect("a header");
    assert_eq!(header.id, "s-0001");
    let crlf = fixture("C03-bad-middle.jsonl").replace('\n', "\r\n");
    assert_eq!(check_reader(crlf.as_bytes()).expect("read").bad, 1);
}

#[test]
fn c17_unknown_shapes_are_read_and_a_newer_header_stops_writing() {
    let report = report("C17-mixed-shapes.jsonl");
    assert_eq!((report.lines, report.entries, report.bad), (6, 6, 0));
    assert_eq!(
        (report.newest_version, report.more_headers),
        (Some((9, 5)), 1)
    );
    assert_eq!((leaf(&report), report.orphans), ("00000004", 0));
    let stop = &stops(&report)[0];
    assert!(stop.contains("line 5 says version 9"), "{stop}");
}

/// Repeats a line without being kept anywhere.
struct Endless<'a> {
    line: &'a [u8],
    left: u64,
    at: usize,
}

impl Read for Endless<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.line.len() && self.left > 0 {
            (self.left, self.at) = (self.left - 1, 0);
        }
        let n = (&self.line[self.at..]).read(into)?;
        self.at += n;
        Ok(n)
    }
}

/// What this process has read from files and pipes.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/self/io").expect("a count");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.expect("a count").parse().expect("a number")
}

fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("a peak");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

#[test]
fn c14_memory_does_not_grow_with_the_file() {
    let before = peak_kib();
    // One broken line of 100 MB, without an end.
    let huge = Endless {
        line: &[b'x'; 65536],
        left: 1600,
        at: 0,
    };
    let report = check_reader(huge).expect("read");
    assert_eq!(report.bad_lines[0].why, Bad::TooLong);

    // Sparse files: 2,000 sessions of 20 MB, the first of 300 MB, are listed by
    // heads and tails.
    const SESSIONS: u64 = 2000;
    let dir = tempfile::tempdir().expect("a temp dir");
    let entry = r#"{"type":"message","id":"0000000f","parentId":null,"timestamp":"2026-05-04T11:00:00.000Z"}"#;
    for n in 0..SESSIONS {
        let path = dir.path().join(format!("{n:04}.jsonl"));
        let head = format!("{{\"type\":\"session\",\"id\":\"s-{n}\",\"cwd\":\"/home/dev/app\"}}\n");
        fs::write(&path, head).expect("written");
        let mut file = fs::File::options().append(true).open(&path).expect("open");
        let megabytes = if n == 0 { 300 } else { 20 };
        file.set_len(megabytes * 1024 * 1024).expect("sparse");
        write!(file, "\n{entry}\n").expect("written");
    }
    let (read_before, started) = (bytes_read(), Instant::now());
    let listing = list(dir.path(), Scope::Everything);
    let (read, took) = (bytes_read() - read_before, started.elapsed());
    assert_eq!(listing.sessions.len() as u64, SESSIONS);
    for session in &listing.sessions {
        assert_eq!(session.tail.last_id.as_deref(), Some("0000000f"));
        assert!(session.size > 20 * 1024 * 1024);
    }
    let grown = peak_kib().saturating_sub(before);
    let _ = writeln!(
        std::io::stderr(),
        "c14: {SESSIONS} sessions of 20 MB listed in {took:.0?}, {} MB read, peak {grown} KiB more",
        read / 1_000_000
    );
    assert!(grown < 64 * 1024, "the peak grew by {grown} KiB");
    // Other tests of this process read, too, but little.
    assert!(read < SESSIONS * 128 * 1024, "{read} bytes read");
}
