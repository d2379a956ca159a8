//! What every command has: where to print, and which home it talks to.

use std::path::PathBuf;

use ade_broker::home::{Home, HomeError, SOCKET_ENV};
use ade_protocol::SessionId;
use ade_protocol::action::{Nothing, SessionInfo, SessionList, name};

use crate::args::Global;
use crate::client::{Client, QUICK};
use crate::error::CommandError;
use crate::output::Output;
use crate::{resolve, start};

/// What every command has.
#[derive(Debug)]
pub(crate) struct Context {
    /// Where to print.
    pub(crate) out: Output,
    home: Option<PathBuf>,
}

impl Context {
    /// From the flags that every command knows.
    #[must_use]
    pub(crate) fn new(global: &Global) -> Self {
        Self {
            out: Output::new(global.json, global.quiet),
            home: global.home.clone(),
        }
    }

    /// The home: `--home`, else `ADE_HOME`, else `~/.ade`. Makes nothing.
    ///
    /// # Errors
    /// When there is none, or its paths cannot be used.
    pub(crate) fn home(&self) -> Result<Home, CommandError> {
        let lookup = |name: &str| std::env::var_os(name);
        let Some(root) = &self.home else {
            return Home::resolve(lookup).map_err(|e| home_error(&e));
        };
        // A flag is meant where it is given; a variable outlives the folder
        // that it was set in, so a relative one would name many homes.
        let root = std::path::absolute(root).map_err(|e| {
            let message = format!("the home `{}` cannot be used", root.display());
            CommandError::usage(message)
                .because(e)
                .hint("--home is the path of a folder")
        })?;
        let socket = lookup(SOCKET_ENV)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from);
        Home::at(root, socket).map_err(|e| home_error(&e))
    }

    /// A connection to the broker, which is started where none runs.
    ///
    /// # Errors
    /// When there is none and none could be started.
    pub(crate) async fn broker(&self) -> Result<Client, CommandError> {
        let client = start::connect_or_start(self.home()?).await?;
        self.tell_other_version(&client);
        Ok(client)
    }

    /// A connection to the broker that runs.
    ///
    /// # Errors
    /// `no_broker` when none does.
    pub(crate) async fn running_broker(&self) -> Result<Client, CommandError> {
        Ok(Client::connect(&self.home()?.control_socket()).await?)
    }

    /// The one chat that `given` names.
    ///
    /// # Errors
    /// When none or several are meant.
    pub(crate) async fn session(
        &self,
        client: &mut Client,
        given: &str,
    ) -> Result<SessionInfo, CommandError> {
        let list: SessionList = client.call(name::SESSIONS_LIST, &Nothing {}, QUICK).await?;
        resolve::session(list.sessions, given)
    }

    /// The id of the one chat that `given` names.
    ///
    /// # Errors
    /// As [`Self::session`].
    pub(crate) async fn session_id(
        &self,
        client: &mut Client,
        given: &str,
    ) -> Result<SessionId, CommandError> {
        Ok(self.session(client, given).await?.session_id)
    }

    fn tell_other_version(&self, client: &Client) {
        let theirs = &client.broker.runtime_info.version;
        let ours = env!("CARGO_PKG_VERSION");
        if theirs != ours {
            let text = format!(
                "note: this is ade {ours} and the broker is ade {theirs}; `ade serve --replace` takes its place"
            );
            self.out.note(crate::output::Style::Warn, &text);
        }
    }
}

/// The broker's word about its folder as the command line's.
#[must_use]
pub(crate) fn home_error(error: &HomeError) -> CommandError {
    let kind = match error {
        HomeError::Nowhere
        | HomeError::NotAbsolute { .. }
        | HomeError::SocketPathTooLong { .. } => "invalid",
        _ => "home_not_usable",
    };
    let (code, hints, message) = (error.exit_code(), error.hints(), error.to_string());
    let mut converted = CommandError::new(kind, code, message);
    if let Some(source) = std::error::Error::source(error) {
        converted = converted.because(source.to_string());
    }
    hints.into_iter().fold(converted, CommandError::hint)
}
