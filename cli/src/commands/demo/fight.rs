//! Two processes want one lease; exactly one may get it.

use ade_protocol::strict;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ade_leases::lease::{Request, acquire};
use ade_leases::record::OwnerKind;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::args::DemoLease;
use crate::context::Context;
use crate::error::CommandError;
use crate::start::own_command;

/// How long one side waits for the sign to begin, and we for its words.
const BOUND: Duration = Duration::from_secs(8);
/// Pause between two looks for the sign.
const LOOK: Duration = Duration::from_millis(1);
/// How long the winner keeps the lease.
const HOLD_MS: u64 = 500;
/// What a side says before it waits for the sign.
const READY: &str = "ready";

/// What one side says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Side {
    /// The process.
    pub(super) pid: u32,
    /// Whether it got the lease.
    pub(super) won: bool,
    /// Who has it, when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    /// The pid of who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<i32>,
}

/// `ade demo-lease`: waits for the sign, tries once, says what came of it, and
/// holds what it got for a moment.
pub(super) fn side(context: &Context, arguments: &DemoLease) -> Result<(), CommandError> {
    if let Some(sign) = &arguments.after {
        context.out.json_line(READY)?;
        let deadline = std::time::Instant::now() + BOUND;
        while !sign.exists() {
            if std::time::Instant::now() >= deadline {
                return Err(CommandError::failed("the sign to begin did not come"));
            }
            std::thread::sleep(LOOK);
        }
    }
    let pid = std::process::id();
    let request = Request {
        owner: OwnerKind::Cli,
        owner_id: format!("demo-{pid}"),
        wait: None,
    };
    match acquire(&arguments.file, &request) {
        Ok(lease) => {
            say(
                context,
                &Side {
                    pid,
                    won: true,
                    refused: None,
                    holder: None,
                },
            )?;
            std::thread::sleep(Duration::from_millis(arguments.hold_ms));
            lease
                .release()
                .map(drop)
                .map_err(|e| CommandError::failed("the lease could not be given back").because(e))
        }
        Err(error) => {
            let holder = error
                .holder()
                .and_then(|holder| holder.record.as_ref()?.pid)
                .map(ade_leases::process::Pid::get);
            say(
                context,
                &Side {
                    pid,
                    won: false,
                    refused: Some(error.to_string()),
                    holder,
                },
            )
        }
    }
}

fn say(context: &Context, side: &Side) -> Result<(), CommandError> {
    let text = serde_json::to_string(side)
        .map_err(|e| CommandError::failed("the result is no JSON").because(e))?;
    context.out.json_line(&text)
}

/// Lets two processes fight for the lease of `file`.
///
/// # Errors
/// A side did not do its part in time.
pub(super) async fn fight(file: &Path) -> Result<[Side; 2], CommandError> {
    let sign = file.with_extension("begin");
    let mut first = Fighter::start(file, &sign)?;
    let mut second = Fighter::start(file, &sign)?;
    first.expect_ready().await?;
    second.expect_ready().await?;
    std::fs::write(&sign, b"")
        .map_err(|e| CommandError::failed("the sign to begin could not be given").because(e))?;
    let (a, b) = tokio::join!(first.finish(), second.finish());
    Ok([a?, b?])
}

struct Fighter {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Fighter {
    fn start(file: &Path, sign: &Path) -> Result<Self, CommandError> {
        let failed =
            |e: std::io::Error| CommandError::failed("a process could not be started").because(e);
        let mut command = own_command();
        command.arg("demo-lease").arg(file).arg("--after").arg(sign);
        command.arg("--hold-ms").arg(HOLD_MS.to_string());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().expect("its output is a pipe");
        Ok(Self {
            child,
            lines: BufReader::new(stdout).lines(),
        })
    }

    async fn line(&mut self) -> Result<String, CommandError> {
        let silent = || CommandError::failed("a process of the lease fight said nothing");
        match timeout(BOUND, self.lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            _ => Err(silent()),
        }
    }

    async fn expect_ready(&mut self) -> Result<(), CommandError> {
        self.line().await.map(drop)
    }

    async fn finish(mut self) -> Result<Side, CommandError> {
        let line = self.line().await?;
        let side = strict::from_str(&line).map_err(|e| {
            CommandError::failed("a side of the fight is not understood").because(e)
        })?;
        match timeout(BOUND, self.child.wait()).await {
            Ok(Ok(_)) => Ok(side),
            _ => Err(CommandError::failed(
                "a process of the lease fight did not end",
            )),
        }
    }
}
