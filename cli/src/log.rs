//! The broker's log: JSON lines in `logs/ade-serve.log`.
//!
//! Rotated when the day changes or the file is full, at most [`KEPT`] older
//! files. Files are 0600 whatever the umask, which is why the appender is ours:
//! `tracing-appender` only takes the writing off the broker's tasks, and drops
//! lines (and counts them) rather than let a task wait for a disk.
//!
//! What is logged is up to who logs; prompts and secrets never are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use crate::error::CommandError;

/// Chooses what is logged, in the syntax of `tracing` filters.
pub(crate) const FILTER_ENV: &str = "ADE_LOG";
/// Older log files that are kept.
const KEPT: usize = 7;
/// A file is rotated at this size too, in bytes.
const MAX_FILE: u64 = 32 * 1024 * 1024;
/// Lines that wait for the disk; more are dropped.
const QUEUE: usize = 16 * 1024;
const CURRENT: &str = "ade-serve.log";

/// Begins to log into `folder`. The log is complete once the guard is dropped.
///
/// # Errors
/// The file cannot be opened, the filter is not understood, or somebody logs
/// already.
pub(crate) fn start(folder: &Path) -> Result<WorkerGuard, CommandError> {
    let filter = match std::env::var(FILTER_ENV) {
        Ok(text) if !text.trim().is_empty() => EnvFilter::try_new(&text).map_err(|error| {
            CommandError::usage(format!("{FILTER_ENV}={text} is no log filter"))
                .because(error)
                .hint(format!(
                    "for example {FILTER_ENV}=debug or {FILTER_ENV}=ade_broker=trace"
                ))
        })?,
        _ => EnvFilter::new("info"),
    };
    let file = DailyLog::open(folder, &today()).map_err(|source| {
        CommandError::failed(format!("could not open a log in {}", folder.display()))
            .because(source)
    })?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(QUEUE)
        .finish(file);
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(writer)
        .try_init()
        .map_err(|error| CommandError::failed("somebody logs already").because(error))?;
    Ok(guard)
}

fn today() -> String {
    Timestamp::now().to_string().chars().take(10).collect()
}

struct DailyLog {
    folder: PathBuf,
    file: File,
    day: String,
    written: u64,
}

impl DailyLog {
    fn open(folder: &Path, day: &str) -> io::Result<Self> {
        let path = folder.join(CURRENT);
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let found = file.metadata()?;
        let began = match found.modified() {
            Ok(modified) if found.len() > 0 => Timestamp::try_from(modified).ok(),
            _ => None,
        };
        let began = began.map(|stamp| stamp.to_string().chars().take(10).collect());
        let mut log = Self {
            folder: folder.to_owned(),
            file,
            day: began.unwrap_or_else(|| day.to_owned()),
            written: found.len(),
        };
        log.rotate_if_due(day)?;
        Ok(log)
    }

    fn rotate_if_due(&mut self, day: &str) -> io::Result<()> {
        if self.day == day && self.written < MAX_FILE {
            return Ok(());
        }
        let current = self.folder.join(CURRENT);
        let old = (0..)
            .map(|number| {
                self.folder
                    .join(format!("ade-serve.{}.{number:03}.log", self.day))
            })
            .find(|path| !path.exists())
            .expect("the numbers do not end before the files do");
        fs::rename(&current, old)?;
        self.file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&current)?;
        self.day = day.to_owned();
        self.written = 0;
        self.forget_oldest()
    }

    fn forget_oldest(&self) -> io::Result<()> {
        let mut old: Vec<PathBuf> = fs::read_dir(&self.folder)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or("");
                name.starts_with("ade-serve.") && name.ends_with(".log") && name != CURRENT
            })
            .collect();
        old.sort();
        let too_many = old.len().saturating_sub(KEPT);
        for path in &old[..too_many] {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

impl Write for DailyLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A log that can't be rotated still takes the line.
        let _ = self.rotate_if_due(&today());
        let written = self.file.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_turns_with_the_day_and_with_size_and_keeps_few_private_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let day = |number: usize| format!("2026-01-{number:02}");
        let mut log = DailyLog::open(folder.path(), &day(1)).expect("a log");
        log.file.write_all(b"one\n").expect("a line");
        for number in 2..=12 {
            log.rotate_if_due(&day(number)).expect("a new day");
        }
        log.written = MAX_FILE;
        log.rotate_if_due(&day(12)).expect("a new file");
        log.rotate_if_due(&day(12)).expect("nothing");
        let mut names = Vec::new();
        for entry in fs::read_dir(folder.path()).expect("the folder") {
            let entry = entry.expect("a file");
            let mode = entry.metadata().expect("its mode").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            names.push(entry.file_name().into_string().expect("a name"));
        }
        names.sort();
        assert_eq!(names.len(), KEPT + 1);
        assert_eq!(
            names.first().map(String::as_str),
            Some("ade-serve.2026-01-06.000.log")
        );
        assert!(names.contains(&"ade-serve.2026-01-12.000.log".to_owned()));
    }
}
