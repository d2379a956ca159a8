//! What is said about session files without a broker: leases, owners, the store.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ade_leases::record::OwnerKind;
use clap::{Args, Subcommand, ValueEnum, ValueHint};

/// What can be done with leases.
#[derive(Debug, Subcommand)]
pub(crate) enum Lease {
    /// Say who writes a session file, since when, and how to free it; changes nothing
    Status {
        /// The session file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Hold the lease of a session file, around a command or until standard input ends
    ///
    /// With a command: it runs only while the lease is held, and its exit code is ours. Signals are
    /// passed on. Whatever it has started is ended before the lease is given back, and when the
    /// lease is lost, it is stopped (exit code 1). The command gets no descriptor of the lease. Only
    /// when this program itself is killed by SIGKILL, the command ends with it and what that has
    /// started goes on.
    ///
    /// Without a command: prints one line when the lease is held, then holds it until standard input
    /// ends, until --for is over, or until it gets SIGTERM. With --for it does not look at standard
    /// input.
    Hold(Hold),
    /// Remove a lease whose holder is dead
    ///
    /// Nobody needs this for a lease that is dead: the next writer takes it. With --force the lease
    /// is removed whatever its holder is: a live holder of ade notices within a second and stops
    /// writing, any other program goes on, and then two write the session.
    Break {
        /// The session file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Also if its holder lives, or may live
        #[arg(long)]
        force: bool,
    },
}

/// Arguments of `ade lease hold`.
#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// The session file; it need not exist yet
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Hold it no longer than this (such as 500ms, 2s, 5m); a command that still runs is stopped
    /// and the exit code is 8
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) at_most: Option<Duration>,
    /// Wait so long for another holder, in order of arrival [default: not at all]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// The kind of writer
    #[arg(long, value_name = "KIND", default_value = "cli")]
    pub(crate) owner: Writer,
    /// The writer's id, as others see it [default: a fresh one]
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) id: String,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// The kind of a writer or an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Writer {
    /// A tracked terminal
    Cli,
    /// A chat
    Sdk,
}

impl From<Writer> for OwnerKind {
    fn from(writer: Writer) -> Self {
        match writer {
            Writer::Cli => Self::Cli,
            Writer::Sdk => Self::Sdk,
        }
    }
}

/// What can be done with owners.
#[derive(Debug, Subcommand)]
pub(crate) enum Owner {
    /// Say whose a session file is; changes nothing
    Show {
        /// The session file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Make a session file somebody's who may pick it up again
    ///
    /// Holds the lease meanwhile, so nobody may be writing the session.
    Claim {
        /// The session file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The durable id of the chat or the terminal
        #[arg(long, value_name = "ID")]
        id: String,
        /// The kind of owner
        #[arg(long, value_name = "KIND", default_value = "cli")]
        owner: Writer,
        /// Also if it is somebody else's, or if the owner file is damaged
        #[arg(long)]
        force: bool,
    },
}

/// What can be done with the store.
#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    /// List the session files; reads heads and tails only
    List(StoreScope),
    /// Read session files through and say what is damaged, by line; changes nothing
    ///
    /// Exit code 1 if a file must not be written as it is, can't be read, or has lines that can't.
    Check {
        /// Which store, if no files are named
        #[command(flatten)]
        scope: StoreScope,
        /// The session files [default: all of the store]
        #[arg(value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
}

/// Which session files.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreScope {
    /// The kind of agent
    #[arg(long, short, value_name = "NAME", default_value = "pi")]
    pub(crate) provider: StoreProvider,
    /// Only those made in this directory
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) lane: Option<PathBuf>,
}

/// The kinds of agents with a store that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreProvider {
    /// Pi
    Pi,
}

/// `500ms`, `2s`, `5m`, `1h`; a number alone is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time; write 500ms, 2s, 5m or 1h");
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(number * unit)
        .ok()
        .filter(|time| *time <= LONGEST)
        .ok_or_else(wrong)
}

/// A year; what is meant to be for ever is left out.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_and_an_end() {
        let table = [
            ("500ms", Some(500)),
            ("2s", Some(2_000)),
            ("1.5", Some(1_500)),
            ("5m", Some(300_000)),
            ("1h", Some(3_600_000)),
            ("0s", Some(0)),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("1d", None),
            ("1.2.3s", None),
            ("99999999h", None),
        ];
        for (text, millis) in table {
            assert_eq!(
                duration(text).ok(),
                millis.map(Duration::from_millis),
                "{text}"
            );
        }
    }
}
