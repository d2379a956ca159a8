//! The only module that prints.
//!
//! Invariants:
//! - standard output carries the asked thing and nothing else: the answer of an
//!   agent (verbatim, and on a terminal harmless), a table, or JSON; everything around it goes to standard
//!   error;
//! - with `--json` standard output is one document, or one a line where the
//!   command streams; an error is then the document `{"error": …}`;
//! - a closed pipe ends the command quietly, by an error with the exit code
//!   [`CLOSED_PIPE`], never by a panic;
//! - colour only on a terminal and without `NO_COLOR`.
//!
//! It does not decide what is shown: see [`crate::view`] and [`crate::table`].

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::json;

use crate::error::{CLOSED_PIPE, CommandError};
use crate::harmless::shown;

/// Erases the current line of a terminal and returns to its beginning.
const ERASE_LINE: &str = "\r\x1b[2K";

/// How a piece of text looks on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    /// As it is.
    #[default]
    Plain,
    /// Less important.
    Dim,
    /// A heading.
    Bold,
    /// It went well.
    Good,
    /// It deserves a look.
    Warn,
    /// It went wrong.
    Bad,
    /// Something to type or to name.
    Accent,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
            Self::Good => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Bad => "\x1b[31m",
            Self::Accent => "\x1b[36m",
        }
    }
}

/// Where a command prints, and how.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    out_terminal: bool,
    err_terminal: bool,
    colour: bool,
    /// Standard output stands in the middle of a line.
    out_open: Cell<bool>,
    /// Standard error stands in the middle of a line.
    err_open: Cell<bool>,
    /// A progress line is shown on standard error.
    progress: Cell<bool>,
    /// Lines of the live block that is shown on standard error.
    block: Cell<usize>,
}

impl Output {
    /// Looks at the standard streams and the environment once.
    #[must_use]
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            json,
            quiet,
            out_terminal: io::stdout().is_terminal(),
            err_terminal: io::stderr().is_terminal(),
            colour: !no_colour,
            out_open: Cell::new(false),
            err_open: Cell::new(false),
            progress: Cell::new(false),
            block: Cell::new(0),
        }
    }

    /// Whether `--json` was given.
    #[must_use]
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Whether people look at standard error: progress lines and questions make
    /// sense only then.
    #[must_use]
    pub(crate) fn err_is_terminal(&self) -> bool {
        self.err_terminal
    }

    /// Whether a progress line can be shown without overwriting anything.
    #[must_use]
    pub(crate) fn progress_fits(&self) -> bool {
        let answer_in_the_way = self.out_terminal && self.out_open.get();
        self.err_terminal && !self.quiet && !answer_in_the_way && !self.err_open.get()
    }

    /// `text` in a style for standard output.
    #[must_use]
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        paint(self.colour && self.out_terminal, style, text)
    }

    /// `text` in a style for standard error.
    #[must_use]
    pub(crate) fn paint_err(&self, style: Style, text: &str) -> String {
        paint(self.colour && self.err_terminal, style, text)
    }

    /// Prints one line to standard output.
    ///
    /// # Errors
    /// When the reader is gone or the disk is full.
    pub(crate) fn line(&self, text: &str) -> Result<(), CommandError> {
        self.clear_progress();
        self.end_answer()?;
        write_out(&format!("{text}\n"))
    }

    /// Prints a piece of an agent's answer at once: verbatim, but on a terminal
    /// without what a terminal would obey.
    ///
    /// # Errors
    /// When the reader is gone or the disk is full.
    pub(crate) fn answer(&self, text: &str) -> Result<(), CommandError> {
        self.answer_styled(Style::Plain, text)
    }

    /// Like [`Self::answer`], in a style.
    ///
    /// # Errors
    /// When the reader is gone or the disk is full.
    pub(crate) fn answer_styled(&self, style: Style, text: &str) -> Result<(), CommandError> {
        if text.is_empty() {
            return Ok(());
        }
        self.clear_progress();
        self.end_aside();
        self.out_open.set(!text.ends_with('\n'));
        write_out(&self.paint(style, &foreign(self.out_terminal, text)))
    }

    /// Ends the line that the answer stands in, if it stands in one.
    ///
    /// # Errors
    /// When the reader is gone or the disk is full.
    pub(crate) fn end_answer(&self) -> Result<(), CommandError> {
        if self.out_open.replace(false) {
            write_out("\n")?;
        }
        Ok(())
    }

    /// Ends the answer's line; with `--json` there is none.
    ///
    /// # Errors
    /// When the reader is gone or the disk is full.
    pub(crate) fn end_answer_unless_json(&self) -> Result<(), CommandError> {
        if self.json { Ok(()) } else { self.end_answer() }
    }

    /// Prints a document: the whole output of a command with `--json`.
    ///
    /// # Errors
    /// When the reader is gone or the disk is full.
    pub(crate) fn document(&self, value: &impl Serialize) -> Result<(), CommandError> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|e| CommandError::failed("the result is no JSON").because(e))?;
        write_out(&format!("{text}\n"))
    }

    /// Prints one JSON text as one line: a command that streams.
    ///
    /// # Errors
    /// When the reader is gone or the disk is full.
    pub(crate) fn json_line(&self, text: &str) -> Result<(), CommandError> {
        self.clear_progress();
        write_out(&format!("{text}\n"))
    }

    /// Tells something beside the result, on standard error; not with `--quiet`.
    pub(crate) fn note(&self, style: Style, text: &str) {
        if !self.quiet {
            self.must_note(style, text);
        }
    }

    /// Tells something beside the result, on standard error, in any case.
    pub(crate) fn must_note(&self, style: Style, text: &str) {
        self.clear_progress();
        self.break_shared_line();
        self.end_aside();
        write_err(&format!("{}\n", self.paint_err(style, text)));
    }

    /// Prints a piece of running text beside the answer (reasoning), on
    /// standard error.
    pub(crate) fn aside(&self, style: Style, text: &str) {
        if self.quiet || text.is_empty() {
            return;
        }
        self.clear_progress();
        self.break_shared_line();
        write_err(&self.paint_err(style, &foreign(self.err_terminal, text)));
        self.err_open.set(!text.ends_with('\n'));
    }

    /// Prints the beginning of a line that the user is going to complete.
    pub(crate) fn prompt(&self, style: Style, text: &str) {
        self.clear_progress();
        self.break_shared_line();
        self.end_aside();
        write_err(&self.paint_err(style, text));
    }

    /// The user ended the line of a [`Self::prompt`] without our seeing the
    /// line end (no echo), or left it.
    pub(crate) fn end_prompt(&self) {
        write_err("\n");
    }

    /// Shows a progress line in place of the one before. Only when
    /// [`Self::progress_fits`].
    pub(crate) fn progress(&self, text: &str) {
        write_err(&format!("{ERASE_LINE}{}", self.paint_err(Style::Dim, text)));
        self.progress.set(true);
    }

    /// Takes the progress line away.
    pub(crate) fn clear_progress(&self) {
        if self.progress.replace(false) {
            write_err(ERASE_LINE);
        }
    }

    /// Shows several lines that replace the ones of the last call: a live
    /// picture. On a terminal only; elsewhere nothing is printed.
    pub(crate) fn live(&self, lines: &[String]) {
        if !self.err_terminal || self.quiet {
            return;
        }
        let mut text = self.up();
        for line in lines {
            text.push_str(ERASE_LINE);
            text.push_str(line);
            text.push('\n');
        }
        self.block.set(lines.len());
        write_err(&text);
    }

    /// Takes the live picture away.
    pub(crate) fn clear_live(&self) {
        let up = self.up();
        if !up.is_empty() {
            write_err(&format!("{up}\x1b[0J"));
        }
        self.block.set(0);
    }

    fn up(&self) -> String {
        match self.block.get() {
            0 => String::new(),
            lines => format!("\x1b[{lines}A"),
        }
    }

    /// Prints why the command failed: for people on standard error, with
    /// `--json` as the last document on standard output.
    pub(crate) fn error(&self, error: &CommandError) {
        if error.is_silent() {
            return;
        }
        self.clear_progress();
        if self.json {
            let document = json!({"error": {
                "kind": error.kind(),
                "message": full_message(error),
                "hints": error.hints(),
            }});
            // The process ends with an error either way.
            let _ = write_out(&format!("{document}\n"));
            return;
        }
        self.error_beside(error);
    }

    /// Prints why a step failed, on standard error, for people: the command
    /// itself goes on.
    pub(crate) fn error_beside(&self, error: &CommandError) {
        self.clear_progress();
        self.break_shared_line();
        self.end_aside();
        let mut text = format!("{} {error}\n", self.paint_err(Style::Bad, "error:"));
        for cause in error.causes() {
            text.push_str(&format!("  cause: {}\n", indent(&cause)));
        }
        for hint in error.hints() {
            let label = self.paint_err(Style::Accent, "hint:");
            text.push_str(&format!("  {label} {}\n", indent(hint)));
        }
        write_err(&text);
    }

    /// Prints what clap has to say: help and version on standard output, a
    /// usage error like any other error.
    pub(crate) fn usage(&self, error: &clap::Error) {
        let text = error.render();
        let usage_error = error.use_stderr();
        if usage_error && self.json {
            let message = text.to_string();
            let message = message.trim().trim_start_matches("error: ");
            let document =
                json!({"error": {"kind": "usage", "message": message, "hints": ["ade --help"]}});
            let _ = write_out(&format!("{document}\n"));
        } else if usage_error {
            write_err(&styled(&text, self.colour && self.err_terminal));
        } else {
            let _ = write_out(&styled(&text, self.colour && self.out_terminal));
        }
    }

    /// A terminal shows both streams in one place: before a line on standard
    /// error the open line of the answer is left. Only then: a pipe gets the
    /// answer verbatim.
    fn break_shared_line(&self) {
        if self.out_terminal && self.err_terminal && self.out_open.replace(false) {
            write_err("\n");
        }
    }

    fn end_aside(&self) {
        if self.err_open.replace(false) {
            write_err("\n");
        }
    }
}

/// The message with its causes, for readers that have one field for it.
#[must_use]
pub(crate) fn full_message(error: &CommandError) -> String {
    let mut text = error.to_string();
    for cause in error.causes() {
        text.push_str(": ");
        text.push_str(&cause);
    }
    text
}

fn styled(text: &clap::builder::StyledStr, colour: bool) -> String {
    if colour {
        text.ansi().to_string()
    } else {
        text.to_string()
    }
}

/// What somebody else wrote, for a terminal or for a pipe.
fn foreign(terminal: bool, text: &str) -> Cow<'_, str> {
    if terminal {
        shown(text)
    } else {
        Cow::Borrowed(text)
    }
}

fn paint(colour: bool, style: Style, text: &str) -> String {
    if !colour || style == Style::Plain || text.is_empty() {
        return text.to_owned();
    }
    format!("{}{text}\x1b[0m", style.code())
}

fn indent(text: &str) -> String {
    text.trim_end().replace('\n', "\n         ")
}

fn write_out(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                CommandError::silent(CLOSED_PIPE)
            } else {
                CommandError::failed("standard output could not be written").because(error)
            }
        })
}

/// Nobody can be told that standard error does not work.
fn write_err(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_put_around_text_only_when_wanted() {
        assert_eq!(paint(false, Style::Bad, "x"), "x");
        assert_eq!(paint(true, Style::Plain, "x"), "x");
        assert_eq!(paint(true, Style::Bad, "x"), "\x1b[31mx\x1b[0m");
    }

    #[test]
    fn only_a_terminal_is_protected_from_what_an_agent_writes() {
        let text = "x\x1b[2J\u{202e}";
        assert_eq!(foreign(false, text), text);
        assert_eq!(foreign(true, text), "x^[[2J\u{fffd}");
    }

    #[test]
    fn a_machine_reader_gets_the_causes_in_the_message() {
        let error = CommandError::failed("no").because("because");
        assert_eq!(full_message(&error), "no: because");
    }
}
