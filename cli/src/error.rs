//! The one error of the command line.
//!
//! A [`CommandError`] is what a person reads and what a script acts on: a
//! stable `kind`, one sentence, what caused it, what to do, and the exit code.
//! It is made at the rim, where a typed error of a library meets a command; it
//! decides nothing.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use ade_protocol::exit;
use ade_protocol::rpc::RpcError;

/// Exit code after the reader of our standard output went away, as a shell
/// reports a process that SIGPIPE ended. Nothing is printed for it.
pub(crate) const CLOSED_PIPE: u8 = 141;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct CommandError {
    kind: Cow<'static, str>,
    message: String,
    code: u8,
    source: Option<Box<dyn Error + Send + Sync>>,
    hints: Vec<String>,
    silent: bool,
}

impl CommandError {
    /// An error of the stable word `kind` that ends the process with `code`.
    #[must_use]
    pub(crate) fn new(
        kind: impl Into<Cow<'static, str>>,
        code: u8,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
            code,
            source: None,
            hints: Vec::new(),
            silent: false,
        }
    }

    /// It was tried and failed: exit code 1.
    #[must_use]
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new("failed", exit::FAILED, message)
    }

    /// An argument is wrong or names nothing: exit code 2.
    #[must_use]
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new("invalid", exit::USAGE, message)
    }

    /// The end of a command that has already told its story: an exit code and
    /// nothing printed.
    #[must_use]
    pub(crate) fn silent(code: u8) -> Self {
        let mut error = Self::new("ended", code, "");
        error.silent = true;
        error
    }

    /// What failed underneath.
    #[must_use]
    pub(crate) fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// One thing that the user can do about it.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Stable word for programs.
    #[must_use]
    pub(crate) fn kind(&self) -> &str {
        &self.kind
    }

    /// Exit code of the process, one of [`ade_protocol::exit`] or
    /// [`CLOSED_PIPE`].
    #[must_use]
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// What to do about it.
    #[must_use]
    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Whether nothing is printed for it.
    #[must_use]
    pub(crate) fn is_silent(&self) -> bool {
        self.silent
    }

    /// The causes, outermost first, without repeating what was said already.
    #[must_use]
    pub(crate) fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut next = self.source.as_deref().map(|source| source as &dyn Error);
        while let Some(cause) = next {
            let text = cause.to_string();
            if text != self.message && causes.last() != Some(&text) {
                causes.push(text);
            }
            next = cause.source();
        }
        causes
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for CommandError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}

impl From<RpcError> for CommandError {
    fn from(error: RpcError) -> Self {
        let Some(data) = error.data else {
            return Self::new("refused", exit::FAILED, error.message);
        };
        let mut converted = Self::new(data.kind, data.exit_code, error.message);
        converted.hints = data.hints;
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_the_chain_without_echo() {
        let inner = std::io::Error::other("disk on fire");
        let error = CommandError::failed("the chat could not be read").because(inner);
        assert_eq!(error.causes(), ["disk on fire"]);
        let echo = CommandError::failed("same").because("same");
        assert!(echo.causes().is_empty());
    }

    #[test]
    fn the_brokers_word_kinds_and_codes_come_through() {
        let rpc = RpcError::failed("held", exit::HELD, "held by pid 7").hint("stop it");
        let error = CommandError::from(rpc);
        assert_eq!((error.kind(), error.code()), ("held", exit::HELD));
        assert_eq!(error.hints(), ["stop it"]);
    }
}
