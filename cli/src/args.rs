//! What the command line looks like. Types only; nothing here runs.

use std::ffi::OsString;
use std::path::PathBuf;

use ade_protocol::action::PermissionMode;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

mod files;

pub(crate) use files::{Hold, Lease, Owner, Store, StoreProvider, StoreScope, Writer};

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
    // Not clap's own `env`: it takes an empty variable for a value, and puts the
    // flag into the usage line of every error.
    /// Folder of the broker: its state, transcripts and sockets [env: ADE_HOME] [default: ~/.ade]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
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
    /// What cleans up after a demo that was killed
    #[command(hide = true)]
    DemoGuard(DemoGuard),
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

/// Arguments of `ade demo-guard`.
#[derive(Debug, Args)]
pub(crate) struct DemoGuard {
    /// The demo's broker
    #[arg(long, value_name = "PID")]
    pub(crate) broker: u32,
    /// Leave the demo's folder
    #[arg(long)]
    pub(crate) keep: bool,
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
    /// The agent's own configuration folder, which must be there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) agent_dir: Option<PathBuf>,
    /// Continue this session file of the agent
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) session_file: Option<PathBuf>,
    /// Take that session file over, for good, from an owner that is not of this broker
    #[arg(long, requires = "session_file")]
    pub(crate) take_over: bool,
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
    /// Change which tools the agent has and which of them ask
    ///
    /// A running turn goes on under the mode that it began with; the next one gets a new worker on
    /// the same session file.
    Permission {
        /// The chat
        session: String,
        /// The mode
        mode: Permission,
    },
    /// Say how full the model's context is; needs the chat's worker
    Context {
        /// The chat
        session: String,
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
    fn the_help_names_every_exit_code() {
        for (code, _) in ade_protocol::exit::ALL {
            assert!(AFTER_HELP.contains(&format!("{code} ")), "{code}");
        }
    }
}
