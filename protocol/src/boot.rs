//! What a broker tells a new worker before they speak frames.

use serde::{Deserialize, Serialize};

use crate::{Generation, SessionId, WorkerId};

/// Name under which the executable is started to become a worker (`argv[0]`).
pub const WORKER_ARGV0: &str = "ade-worker";

/// Name under which the executable is started to set the parent-death signal
/// and then become the host that its arguments name (`argv[0]`).
pub const HOST_ARGV0: &str = "ade-host";

/// First argument after [`HOST_ARGV0`] that asks for the embedded scripted host
/// instead of an external program.
pub const SCRIPTED_HOST_ARG: &str = "--scripted";

/// Environment variable that everything below a worker inherits. Its value is a
/// nonce that only helps to *find* strays; it proves nothing and opens nothing.
pub const MARK_ENV: &str = "ADE_WORKER_MARK";

/// The one line of JSON that a worker reads from its standard input before it
/// does anything else. Standard input is used because neither the command line
/// nor the environment may carry the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerBoot {
    /// Must equal [`crate::PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// Name of this worker and of its journal file.
    pub worker_id: WorkerId,
    /// Proves this worker to the broker in `hello`. Never logged.
    pub token: String,
    /// The session that this worker serves.
    pub session_id: SessionId,
    /// Which of the session's workers this is.
    pub generation: Generation,
    /// Kind of agent: `pi`, `scripted`, …
    pub provider: String,
    /// Absolute path of the socket that workers connect to.
    pub socket: String,
    /// Absolute path of ADE_HOME.
    pub home: String,
    /// How the host is started.
    pub host: HostCommand,
    /// Absolute path of the cgroup (version 2) that was made for the host and
    /// everything below it. Absent: none could be made, or none is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Absolute path of the file in which the worker lists processes below it
    /// that nothing else would find after its death. Absent: it lists none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<String>,
    /// Named durations of the worker's own waits.
    pub timing: WorkerTiming,
}

/// How a worker starts its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum HostCommand {
    /// The scripted host that is embedded in the executable.
    Scripted,
    /// A program with its arguments; absolute path.
    Program {
        /// Absolute path of the program.
        program: String,
        /// Arguments after the program's own name.
        args: Vec<String>,
    },
    /// `node` with the host script for Pi.
    Pi {
        /// Absolute path of the Node executable.
        node: String,
        /// Absolute path of the unpacked `pi.mjs`.
        script: String,
    },
}

/// Named durations of a worker's own waits, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerTiming {
    /// `dispose` until the host's standard input is closed.
    pub dispose_grace_ms: u64,
    /// End of input until SIGTERM goes to the host's group.
    pub eof_grace_ms: u64,
    /// SIGTERM until SIGKILL goes to the host's group.
    pub term_to_kill_ms: u64,
    /// How long an idle worker outlives its broker.
    pub orphan_idle_ms: u64,
    /// How long a worker with a running turn outlives its broker.
    pub orphan_turn_ms: u64,
    /// How long a worker waits for `attach` after `hello`.
    pub attach_ms: u64,
}

impl WorkerTiming {
    /// All rungs of the stop ladder, in milliseconds. The numbers may come from
    /// a file: the sum of what is too much is the most there is.
    #[must_use]
    pub fn ladder_ms(&self) -> u64 {
        self.dispose_grace_ms
            .saturating_add(self.eof_grace_ms)
            .saturating_add(self.term_to_kill_ms)
    }
}

impl Default for WorkerTiming {
    fn default() -> Self {
        Self {
            dispose_grace_ms: 1_500,
            eof_grace_ms: 500,
            term_to_kill_ms: 1_500,
            orphan_idle_ms: 60_000,
            orphan_turn_ms: 600_000,
            attach_ms: 5_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_has_an_end_whatever_a_file_says() {
        let timing = WorkerTiming {
            dispose_grace_ms: u64::MAX,
            ..WorkerTiming::default()
        };
        assert_eq!(timing.ladder_ms(), u64::MAX);
        assert_eq!(WorkerTiming::default().ladder_ms(), 3_500);
    }
}
