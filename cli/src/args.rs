//! What the command line looks like. Types only; nothing here runs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ade_leases::record::OwnerKind;
use ade_protocol::action::PermissionMode;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

/// Runs many AI coding-agent sessions on one machine, each in a worker process
/// of its own.
#[derive(Debug, Parser)]
#[command(
    name = "ade",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    after_help = AFTER_HELP
)]
pub(crate) struct Cli {
    /// Flags that every command knows.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Sessions are named by their id (ses_…) or by any beginning or end of it that no other session has.
The broker is started when a command needs it and none runs.

Exit codes: 0 the asked state holds · 1 failed · 2 usage · 3 already running · 4 held by another
writer · 5 no broker · 6 provider not usable · 7 denied · 8 timed out · 130 interrupted";

/// Flags that every command knows.
#[derive(Clone, Debug, Args)]
#[command(next_display_order = 1000)]
pub(crate) struct Global {
    /// Print JSON: one document, or one a line where the command streams
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Folder of the broker: its state, transcripts and sockets [default: ~/.ade]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "ADE_HOME",
        hide_env_values = true,
        help_heading = "Everywhere",
        value_hint = ValueHint::DirPath
    )]
    pub(crate) home: Option<PathBuf>,
    /// Print the result and errors, nothing beside them
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub(crate) quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the main job in a few seconds: six chats at once, a card, a hang, a crash, a lease fight
    ///
    /// Needs no agent and no account: it plays on the embedded `scripted` provider, with a broker
    /// and a folder of its own that are gone at the end. Exit code 0 only if all went right.
    Demo(Demo),
    /// Hold a lease for a moment: one side of the demo's fight
    #[command(hide = true)]
    DemoLease(DemoLease),
    /// Talk to an agent: one message, one turn
    ///
    /// Streams the answer to standard output and everything around it to standard error. Questions
    /// of the agent are asked on the terminal. Ctrl-C ends the turn; twice leaves at once.
    Run(Run),
    /// Make, use and remove chats
    #[command(subcommand)]
    Chat(Chat),
    /// Follow a chat live and talk to it
    ///
    /// What you type is sent. Lines that begin with a slash are for ade: /abort ends the turn,
    /// /steer TEXT goes into it, /quit leaves. Ctrl-C ends the running turn, else leaves.
    Attach(Attach),
    /// List chats with their workers
    Ps,
    /// List open questions
    Cards,
    /// Answer a question
    Answer(Answer),
    /// Who writes a session file
    #[command(subcommand)]
    Lease(Lease),
    /// The start of a command that a lease is held around
    #[command(hide = true)]
    HeldProgram {
        /// The process that holds the lease
        #[arg(long)]
        parent: i32,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Whose a session file is, for good
    #[command(subcommand)]
    Owner(Owner),
    /// The session files on disk
    #[command(subcommand)]
    Store(Store),
    /// List the kinds of agents and whether they can be used
    Providers,
    /// Look at paths, versions, configuration, sockets, locks and strays; say what needs a hand
    Doctor,
    /// Everything that the control endpoint can do
    #[command(subcommand)]
    Actions(Actions),
    /// Run the broker in the foreground
    Serve(Serve),
    /// Say which broker runs
    Status,
    /// End every turn and worker, then the broker
    Stop,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page
    Man {
        /// Of this command, such as `chat send`; absent: of ade itself
        command: Vec<String>,
    },
}

/// Arguments of `ade demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Keep the demo's folder (its sessions, transcripts and logs)
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Arguments of `ade demo-lease`.
#[derive(Debug, Args)]
pub(crate) struct DemoLease {
    /// The session file
    pub(crate) file: PathBuf,
    /// How long to hold the lease, in milliseconds
    #[arg(long, default_value_t = 600)]
    pub(crate) hold_ms: u64,
    /// Neither side tries before this file is there
    #[arg(long, value_name = "FILE")]
    pub(crate) after: Option<PathBuf>,
}

/// What a new chat is made from.
#[derive(Clone, Debug, Args)]
pub(crate) struct NewChat {
    /// Kind of agent; see `ade providers`
    #[arg(long, short, value_name = "NAME", default_value = "pi")]
    pub(crate) provider: String,
    /// Directory that the agent works in [default: the current one]
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) lane: Option<PathBuf>,
    /// Model, as `provider/id` [default: the agent's own]
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Which tools the agent has and which of them ask
    #[arg(long, value_name = "MODE", default_value = "default")]
    pub(crate) permission: Permission,
    /// How much to think, in the agent's own words
    #[arg(long, value_name = "LEVEL")]
    pub(crate) thinking: Option<String>,
    /// The agent's own configuration folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) agent_dir: Option<PathBuf>,
    /// Continue this session file of the agent
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) session_file: Option<PathBuf>,
    /// Name for people
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Silence after a message until the worker is replaced, in milliseconds
    #[arg(long, value_name = "MS", hide = true)]
    pub(crate) first_event_ms: Option<u64>,
}

/// Which tools the agent has and which of them ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Permission {
    /// Reads only
    Plan,
    /// Edits files without asking; no shell
    Edit,
    /// Everything without asking
    FullAuto,
    /// Everything; shell and edits ask
    Default,
}

impl From<Permission> for PermissionMode {
    fn from(mode: Permission) -> Self {
        match mode {
            Permission::Plan => Self::Plan,
            Permission::Edit => Self::Edit,
            Permission::FullAuto => Self::FullAuto,
            Permission::Default => Self::Default,
        }
    }
}

/// Arguments of `ade run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The message; `-` reads it from standard input
    pub(crate) prompt: String,
    /// The chat that is made for it
    #[command(flatten)]
    pub(crate) chat: NewChat,
    /// Allow everything that the agent asks permission for
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// What can be done with chats.
#[derive(Debug, Subcommand)]
pub(crate) enum Chat {
    /// Make a chat and print its id; starts no worker
    Create(NewChat),
    /// Send a message; while a turn runs it is queued
    Send(ChatSend),
    /// Put a message into the running turn
    Steer {
        /// The chat
        session: String,
        /// The message; `-` reads it from standard input
        prompt: String,
    },
    /// End the running turn and send a message in its place
    ///
    /// The same agent goes on with it; what is queued rides through behind it. With --replace the
    /// queue is cleared instead; `chat queue recover` brings it back within a few seconds.
    Interrupt {
        /// The chat
        session: String,
        /// The message; `-` reads it from standard input
        prompt: String,
        /// Clear the queue
        #[arg(long)]
        replace: bool,
    },
    /// The messages that wait behind the running turn
    #[command(subcommand)]
    Queue(Queue),
    /// End the running turn
    Abort {
        /// The chat
        session: String,
        /// Only if this turn runs
        #[arg(long, value_name = "ID")]
        turn: Option<String>,
    },
    /// Stop the chat's worker; the chat stays and goes on with the next message
    Stop {
        /// The chat
        session: String,
    },
    /// Let a chat start workers again after it failed too often
    Reset {
        /// The chat
        session: String,
    },
    /// Stop the worker and forget the chat; the agent's own session file stays
    Delete {
        /// The chat
        session: String,
    },
    /// Change the model
    Model {
        /// The chat
        session: String,
        /// `provider/id`
        model: String,
    },
    /// Change how much the agent thinks
    Thinking {
        /// The chat
        session: String,
        /// The agent's word for it; absent: its own default
        level: Option<String>,
    },
    /// Shorten the context
    Compact {
        /// The chat
        session: String,
        /// Added to the agent's own instructions
        instructions: Option<String>,
    },
    /// Print the transcript
    Show(ChatShow),
}

/// What can be done with messages that wait.
#[derive(Debug, Subcommand)]
pub(crate) enum Queue {
    /// List them, the next one first
    List {
        /// The chat
        session: String,
    },
    /// Change one; refused once it is being sent
    Edit {
        /// The chat
        session: String,
        /// The message, as `list` names it
        turn: String,
        /// Its new text; `-` reads it from standard input
        prompt: String,
    },
    /// Cancel one; refused once it is being sent
    Cancel {
        /// The chat
        session: String,
        /// The message, as `list` names it
        turn: String,
    },
    /// Bring back what `chat interrupt --replace` has just cleared
    Recover {
        /// The chat
        session: String,
    },
}

/// Arguments of `ade chat send`.
#[derive(Debug, Args)]
pub(crate) struct ChatSend {
    /// The chat
    pub(crate) session: String,
    /// The message; `-` reads it from standard input
    pub(crate) prompt: String,
    /// Stream the turn and end with it, like `ade run`
    #[arg(long, short)]
    pub(crate) wait: bool,
    /// Allow everything that the agent asks permission for
    #[arg(long, short, requires = "wait")]
    pub(crate) yes: bool,
    /// Try again although the chat failed too often
    #[arg(long)]
    pub(crate) retry: bool,
}

/// Arguments of `ade chat show`.
#[derive(Debug, Args)]
pub(crate) struct ChatShow {
    /// The chat
    pub(crate) session: String,
    /// Only events after this number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) after: u64,
    /// At most so many events
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Go on with what happens from now on, until Ctrl-C
    #[arg(long, short, conflicts_with = "limit")]
    pub(crate) follow: bool,
}

/// Arguments of `ade attach`.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The chat
    pub(crate) session: String,
    /// Show so many of the events before
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(crate) last: u64,
}

/// Arguments of `ade answer`.
#[derive(Debug, Args)]
pub(crate) struct Answer {
    /// The question, as `ade cards` names it
    pub(crate) card: String,
    /// allow, allow_session, deny, an offered value, or text; `-` reads it from standard input
    /// (secrets: so that they are on no command line)
    #[arg(required_unless_present = "decline")]
    pub(crate) value: Option<String>,
    /// Decline to answer
    #[arg(long, conflicts_with = "value")]
    pub(crate) decline: bool,
    /// The chat, where two have a question of the same name
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
}

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
    /// lease is lost, it is stopped (exit code 1). The command gets no descriptor of the lease.
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

/// What can be done with actions.
#[derive(Debug, Subcommand)]
pub(crate) enum Actions {
    /// List them; with --json with their schemas
    List,
    /// Do one of them and print its result
    Run {
        /// Name of the action
        name: String,
        /// Its arguments, a JSON object; `-` reads them from standard input
        #[arg(default_value = "{}")]
        arguments: String,
    },
}

/// Arguments of `ade serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Listen here instead of in the broker's folder
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// Take the place of the broker that runs, with its running turns
    #[arg(long)]
    pub(crate) replace: bool,
    /// Leave the terminal: how other commands start a broker
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

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

    #[test]
    fn the_help_names_every_exit_code() {
        for (code, _) in ade_protocol::exit::ALL {
            assert!(AFTER_HELP.contains(&format!("{code} ")), "{code}");
        }
    }
}
