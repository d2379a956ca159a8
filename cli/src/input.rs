//! Lines from the terminal, read only when one is wanted.
//!
//! Reading a terminal blocks and cannot be cancelled, so a thread does it, one
//! line for each request. A request that nobody waits for any more stays open:
//! the line that ends it goes to the next one who asks. The thread is never
//! joined; it ends with the process.
//!
//! What was typed before a question appeared must not answer it: see
//! [`Input::forget_typed_ahead`].

use std::io::{self, BufRead, IsTerminal};
use std::sync::mpsc as std_mpsc;

use nix::sys::termios::{self, FlushArg, LocalFlags, SetArg, Termios};
use tokio::sync::mpsc;

/// Longest line that is read, in bytes; the rest of a longer one is cut off.
const MAX_TYPED: usize = 1024 * 1024;

/// Standard input, line by line.
#[derive(Debug)]
pub(crate) struct Input {
    requests: Option<std_mpsc::SyncSender<()>>,
    lines: mpsc::Receiver<Option<String>>,
    feed: Option<mpsc::Sender<Option<String>>>,
    wanted: bool,
    ended: bool,
    terminal: bool,
}

impl Default for Input {
    fn default() -> Self {
        Self::new()
    }
}

impl Input {
    /// Reads nothing yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        // One line at most is ever on its way: one is asked for at a time.
        let (feed, lines) = mpsc::channel(1);
        Self {
            requests: None,
            lines,
            feed: Some(feed),
            wanted: false,
            ended: false,
            terminal: io::stdin().is_terminal(),
        }
    }

    /// Whether a person types.
    #[must_use]
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// The next line without its line end; `None` at the end of input, and ever
    /// after. May be dropped while it waits: nothing is lost.
    pub(crate) async fn line(&mut self) -> Option<String> {
        if self.ended {
            return None;
        }
        if !self.wanted {
            self.request();
            self.wanted = true;
        }
        let line = self.lines.recv().await.flatten();
        self.wanted = false;
        self.ended = line.is_none();
        line
    }

    /// A line that was typed and read before anybody waits for it again.
    pub(crate) fn arrived(&mut self) -> Option<Option<String>> {
        let line = self.lines.try_recv().ok()?;
        self.wanted = false;
        self.ended = line.is_none();
        Some(line)
    }

    /// Drops what was typed before now and not read yet.
    pub(crate) fn forget_typed_ahead(&self) {
        if self.terminal {
            // A terminal that can't be flushed only has a longer memory.
            let _ = termios::tcflush(io::stdin(), FlushArg::TCIFLUSH);
        }
    }

    /// Turns the terminal's echo off until the guard is dropped.
    #[must_use]
    pub(crate) fn without_echo(&self) -> Option<Echo> {
        if !self.terminal {
            return None;
        }
        let before = termios::tcgetattr(io::stdin()).ok()?;
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        termios::tcsetattr(io::stdin(), SetArg::TCSANOW, &silent).ok()?;
        Some(Echo { before })
    }

    fn request(&mut self) {
        if let Some(feed) = self.feed.take() {
            let (requests, wanted) = std_mpsc::sync_channel(1);
            self.requests = Some(requests);
            std::thread::spawn(move || {
                while wanted.recv().is_ok() {
                    let line = read_line();
                    let last = line.is_none();
                    if feed.blocking_send(line).is_err() || last {
                        return;
                    }
                }
            });
        }
        if let Some(requests) = &self.requests {
            // Full means that a line is asked for already.
            let _ = requests.try_send(());
        }
    }
}

/// The terminal shows nothing of what is typed as long as this lives.
#[derive(Debug)]
pub(crate) struct Echo {
    before: Termios,
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

fn read_line() -> Option<String> {
    let mut line = Vec::new();
    let mut stdin = io::stdin().lock();
    loop {
        let available = match stdin.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => &[],
        };
        if available.is_empty() {
            break;
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(available.len());
        let room = MAX_TYPED.saturating_sub(line.len()).min(taken);
        line.extend_from_slice(&available[..room]);
        stdin.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Some(text(line));
        }
    }
    (!line.is_empty()).then(|| text(line))
}

fn text(mut line: Vec<u8>) -> String {
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8_lossy(&line).into_owned()
}
