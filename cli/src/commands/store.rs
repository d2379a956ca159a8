//! `ade store`: the session files on disk. Works without a broker and writes
//! nothing.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ade_leases::lease::is_held;
use ade_leases::owner::{self, Owner};
use ade_leases::session_file::{Objection, Report, TailState, check};
use ade_leases::store::{Listed, Listing, Scope, Source, checkout_override, list, locate};
use ade_protocol::exit;
use serde_json::{Value, json};

use crate::args::{Store, StoreProvider, StoreScope};
use crate::context::Context;
use crate::error::CommandError;
use crate::output::Style;
use crate::table::{Table, bytes, one_line, span};

/// Bad lines of one file that people are shown; JSON has all that were kept.
const LINES_SHOWN: usize = 20;

/// Runs one of the store commands.
pub(super) fn run(context: &Context, command: &Store) -> Result<(), CommandError> {
    match command {
        Store::List(scope) => show(context, scope),
        Store::Check { scope, files } if files.is_empty() => {
            let (_, listing) = listing(scope)?;
            let mut files: Vec<PathBuf> = listing.sessions.into_iter().map(|s| s.path).collect();
            if scope.lane.is_none() {
                files.extend(listing.no_header);
            }
            files.extend(listing.unreadable);
            files.sort();
            check_all(context, &files)
        }
        Store::Check { files, .. } => check_all(context, files),
    }
}

fn listing(scope: &StoreScope) -> Result<(ade_leases::store::Store, Listing), CommandError> {
    let StoreProvider::Pi = scope.provider;
    let lane = match &scope.lane {
        Some(lane) => Some(std::path::absolute(lane).map_err(|e| {
            CommandError::usage(format!("the path {} cannot be used", lane.display())).because(e)
        })?),
        None => None,
    };
    let store = locate(&|name| std::env::var_os(name));
    let scope = lane.as_deref().map_or(Scope::Everything, Scope::Lane);
    let listing = list(&store.root, scope);
    Ok((store, listing))
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Environment => "PI_CODING_AGENT_SESSION_DIR",
        Source::Settings => "settings.json",
        Source::Default => "default",
    }
}

fn show(context: &Context, scope: &StoreScope) -> Result<(), CommandError> {
    let (store, listing) = listing(scope)?;
    let ignored = scope.lane.as_deref().and_then(checkout_override);
    if context.out.json() {
        let sidecars = Sidecars::default();
        let entry = |session: &Listed| entry(session, &sidecars);
        return context.out.document(&json!({
            "root": store.root.to_string_lossy(),
            "storageDir": store.storage_dir.as_deref().map(Path::to_string_lossy),
            "source": source(store.source),
            "ignoredCheckoutDir": ignored,
            "sessions": listing.sessions.iter().map(entry).collect::<Vec<_>>(),
            "duplicates": listing.duplicates,
            "noHeader": listing.no_header,
            "unreadable": listing.unreadable,
        }));
    }
    let out = &context.out;
    if listing.sessions.is_empty() {
        out.note(
            Style::Dim,
            &format!("no sessions in {}", store.root.display()),
        );
    } else {
        let mut table = Table::new(&["ID", "LAST", ">SIZE", "WRITER", "OWNER", "LANE"]);
        let now = jiff::Timestamp::now();
        let sidecars = Sidecars::default();
        for session in &listing.sessions {
            table.row(&row(session, &sidecars, now));
        }
        for line in table.lines() {
            out.line(&line)?;
        }
    }
    if let Some(dir) = ignored {
        let text = format!(
            "note: the checkout's .pi/settings.json asks for sessionDir {dir}, which is not obeyed"
        );
        out.note(Style::Warn, &one_line(&text));
    }
    for (id, files) in &listing.duplicates {
        let files: Vec<_> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let text = format!(
            "{} files have the id {id}: {}",
            files.len(),
            files.join(", ")
        );
        out.note(Style::Warn, &one_line(&text));
    }
    for (what, files) in [
        ("has no session header", &listing.no_header),
        ("can't be read", &listing.unreadable),
    ] {
        for file in files {
            let text = format!("{} {what}", file.display());
            out.note(Style::Warn, &one_line(&text));
        }
    }
    Ok(())
}

/// Which files of a folder have a lease or something of one beside them. A look
/// at each lease lists the whole folder, so only those are looked at.
#[derive(Default)]
struct Sidecars(RefCell<HashMap<PathBuf, HashSet<OsString>>>);

impl Sidecars {
    fn is_held(&self, session: &Path) -> bool {
        let (Some(dir), Some(name)) = (session.parent(), session.file_name()) else {
            return is_held(session);
        };
        let mut folders = self.0.borrow_mut();
        let names = folders
            .entry(dir.to_owned())
            .or_insert_with(|| leased_in(dir));
        names.contains(name) && is_held(session)
    }
}

fn leased_in(dir: &Path) -> HashSet<OsString> {
    const LEASE: &[u8] = b".ade-lease";
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let session = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let bytes = name.as_bytes();
        let at = bytes.windows(LEASE.len()).rposition(|part| part == LEASE)?;
        Some(OsStr::from_bytes(&bytes[..at]).to_owned())
    };
    names.filter_map(session).collect()
}

fn row(session: &Listed, sidecars: &Sidecars, now: jiff::Timestamp) -> [String; 6] {
    let last = session
        .modified_at
        .map_or_else(String::new, |at| span(now.duration_since(at).as_secs()));
    let writer = if sidecars.is_held(&session.path) {
        "yes"
    } else {
        "-"
    };
    let owner = match owner::read(&session.path) {
        Ok(Owner::None) => "-".to_owned(),
        Ok(Owner::Owned(claim)) => format!("{} {}", claim.kind, claim.id),
        Ok(Owner::Damaged(_)) | Err(_) => "?".to_owned(),
    };
    [
        session.header.id.clone(),
        last,
        bytes(session.size),
        writer.to_owned(),
        owner,
        session.header.cwd.display().to_string(),
    ]
}

fn entry(session: &Listed, sidecars: &Sidecars) -> Value {
    let owner = match owner::read(&session.path) {
        Ok(Owner::None) => Value::Null,
        Ok(Owner::Owned(claim)) => json!({"owner": claim.kind, "ownerSessionId": claim.id}),
        Ok(Owner::Damaged(damage)) => json!({"error": damage.to_string()}),
        Err(error) => json!({"error": error.to_string()}),
    };
    let time = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string());
    json!({
        "path": session.path.to_string_lossy(),
        "id": session.header.id,
        "lane": session.header.cwd.to_string_lossy(),
        "createdAt": time(session.header.created_at),
        "modifiedAt": time(session.modified_at),
        "size": session.size,
        "version": session.header.version,
        "parentSession": session.header.parent_session,
        "lastType": session.tail.last_type,
        "lastAt": time(session.tail.last_at),
        "noNewline": session.tail.no_newline,
        "torn": session.tail.torn,
        "held": sidecars.is_held(&session.path),
        "owner": owner,
    })
}

/// Reads each through. One that can't be read costs only itself.
fn check_all(context: &Context, files: &[PathBuf]) -> Result<(), CommandError> {
    let mut damaged = 0_usize;
    let mut documents = Vec::new();
    for file in files {
        let report = check(file);
        let bad = report.as_ref().map_or(true, is_damaged);
        damaged += usize::from(bad);
        if context.out.json() {
            documents.push(match &report {
                Ok(report) => checked(file, report, bad),
                Err(error) => json!({
                    "path": file.to_string_lossy(),
                    "damaged": true,
                    "error": error.to_string(),
                }),
            });
            continue;
        }
        let (style, word) = if bad {
            (Style::Bad, "damaged")
        } else {
            (Style::Good, "sound")
        };
        let path = one_line(&file.display().to_string());
        context
            .out
            .line(&format!("{}  {path}", context.out.paint(style, word)))?;
        match &report {
            Ok(report) => {
                for line in findings(report) {
                    context.out.line(&format!("  {}", one_line(&line)))?;
                }
            }
            Err(error) => context.out.line(&format!("  it can't be read: {error}"))?,
        }
    }
    if context.out.json() {
        context.out.document(&json!({
            "files": files.len(),
            "damaged": damaged,
            "reports": documents,
        }))?;
    } else {
        let text = match files.len() {
            1 => format!("1 file, {damaged} damaged"),
            several => format!("{several} files, {damaged} damaged"),
        };
        context.out.note(Style::Dim, &text);
    }
    if damaged > 0 {
        return Err(CommandError::silent(exit::FAILED));
    }
    Ok(())
}

fn is_damaged(report: &Report) -> bool {
    let stop = |objection: &Objection| matches!(objection, Objection::Stop(_));
    report.bad > 0 || report.tail != TailState::Clean || report.objections().iter().any(stop)
}

/// What is told to people, one line each.
fn findings(report: &Report) -> Vec<String> {
    let mut lines: Vec<String> = report
        .bad_lines
        .iter()
        .take(LINES_SHOWN)
        .map(|bad| format!("line {}: {}", bad.number, bad.why))
        .collect();
    let shown = lines.len() as u64;
    if report.bad > shown {
        lines.push(format!("… and {} bad lines more", report.bad - shown));
    }
    match report.tail {
        TailState::Clean => {}
        TailState::NoNewline => lines.push("the last line is whole, but has no newline".into()),
        TailState::Torn(bytes) => lines.push(format!("the last line is torn after {bytes} bytes")),
    }
    if report.repaired > 0 {
        lines.push(format!(
            "{} lines have text that is no Unicode; it is read as U+FFFD",
            report.repaired
        ));
    }
    for objection in report.objections() {
        match objection {
            Objection::Stop(text) => lines.push(format!("not to be written: {text}")),
            // The lines were told already.
            Objection::Notice(text) if !text.contains("lines can't be read") => lines.push(text),
            Objection::Notice(_) => {}
        }
    }
    lines
}

fn checked(file: &Path, report: &Report, bad: bool) -> Value {
    let bad_lines = report
        .bad_lines
        .iter()
        .map(|bad| json!({"line": bad.number, "why": bad.why.to_string()}))
        .collect::<Vec<_>>();
    let objections = report
        .objections()
        .into_iter()
        .map(|objection| match objection {
            Objection::Stop(text) => json!({"stop": true, "text": text}),
            Objection::Notice(text) => json!({"stop": false, "text": text}),
        })
        .collect::<Vec<_>>();
    let (tail, torn) = match report.tail {
        TailState::Clean => ("clean", None),
        TailState::NoNewline => ("no_newline", None),
        TailState::Torn(bytes) => ("torn", Some(bytes)),
    };
    json!({
        "path": file.to_string_lossy(),
        "damaged": bad,
        "id": report.header.as_ref().map(|header| &header.id),
        "lines": report.lines,
        "entries": report.entries,
        "bad": report.bad,
        "badLines": bad_lines,
        "tail": tail,
        "tornBytes": torn,
        "repaired": report.repaired,
        "repeated": report.repeated,
        "orphans": report.orphans,
        "forks": report.forks.len(),
        "openCalls": report.open_calls.len(),
        "objections": objections,
    })
}
