//! What tests look at of turns and of the process trees below them: transcripts
//! as they are on disk, session files, leases, the trees of scripted turns.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_leases::lease;
use serde_json::{Value, json};

use crate::ade::{Ade, is_alive};
use crate::rpc::{Rpc, text_of};
use crate::wait::{PATIENCE, wait_until, wait_within};

/// A deadline for the first event, milliseconds, for scenes that wait until it is
/// over: one that a scripted worker which is not silent meets on a loaded machine
/// too.
pub const SILENT_MS: u64 = 700;

/// After a stop by any path no process of the session may be alive for longer.
pub const GONE: Duration = Duration::from_secs(5);

/// How a `done` event's turn ended, with the turn.
#[must_use]
pub fn dones(envelopes: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    envelopes
        .iter()
        .filter(|envelope| envelope["event"]["type"] == "done")
        .map(|envelope| {
            (
                text(&envelope["turnId"]),
                text(&envelope["event"]["status"]),
            )
        })
        .collect()
}

/// The envelopes of one turn, in order.
#[must_use]
pub fn of_turn(envelopes: &[Value], turn: &str) -> Vec<Value> {
    let of_it = envelopes
        .iter()
        .filter(|envelope| envelope["turnId"] == turn);
    of_it.cloned().collect()
}

/// The events of one type, without their envelopes.
#[must_use]
pub fn of_type(envelopes: &[Value], kind: &str) -> Vec<Value> {
    let of_it = envelopes
        .iter()
        .filter(|envelope| envelope["event"]["type"] == kind);
    of_it.map(|envelope| envelope["event"].clone()).collect()
}

/// How the last of some envelopes ended its turn.
///
/// # Panics
/// When the last one is no `done`.
#[must_use]
#[track_caller]
pub fn ended(envelopes: &[Value]) -> &str {
    let last = &envelopes.last().expect("an event")["event"];
    assert_eq!(last["type"], "done", "{last}");
    last["status"].as_str().expect("a status")
}

/// The tree of processes of a turn that [`Ade::grow`] started: a worker, its
/// host, a child of the host, and a grandchild in a session of its own.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The chat.
    pub session: String,
    /// The running turn.
    pub turn: String,
    /// The worker.
    pub worker: i32,
    /// The host.
    pub host: i32,
    /// A plain child of the host.
    pub child: i32,
    /// An orphan that left the host's process group and session.
    pub grandchild: i32,
}

impl Tree {
    /// All of its processes.
    #[must_use]
    pub fn pids(&self) -> [i32; 4] {
        [self.worker, self.host, self.child, self.grandchild]
    }

    /// The ones that are alive.
    #[must_use]
    pub fn alive(&self) -> Vec<i32> {
        let pids = self.pids().into_iter();
        pids.filter(|pid| is_alive(*pid)).collect()
    }

    /// Waits until none is alive.
    ///
    /// # Panics
    /// When one is after [`GONE`].
    #[track_caller]
    pub fn wait_gone(&self) {
        wait_within(&format!("the tree {self:?} is gone"), GONE, || {
            self.alive().is_empty().then_some(())
        });
    }
}

impl Ade {
    /// The provider's session file of a chat.
    ///
    /// # Panics
    /// When it has none yet.
    #[must_use]
    #[track_caller]
    pub fn session_file(&self, session: &str) -> PathBuf {
        let info = self.session(session);
        let file = info["sessionFile"].as_str();
        file.unwrap_or_else(|| panic!("no session file: {info}"))
            .into()
    }

    /// Makes a chat of the scripted agent whose watchdog barks after so many
    /// milliseconds.
    #[track_caller]
    pub fn scripted_chat(&self, rpc: &mut Rpc, first_event_ms: u64) -> String {
        let more = json!({"firstEventMs": first_event_ms});
        self.chat(rpc, "scripted", &self.lane("lane"), more)
    }

    /// Asserts that a chat of the scripted agent takes the next message, on its
    /// worker of this number.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn goes_on(&self, session: &str, generation: u64) {
        let events = self.turn(session, "are you there?");
        assert_eq!(ended(&events), "completed");
        assert_eq!(text_of(&events), "You said: are you there?");
        assert_eq!(self.session(session)["generation"], generation);
        let _ = self.checked_transcript(session);
    }

    /// The worker of a chat.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    #[track_caller]
    pub fn worker_of(&self, session: &str) -> i32 {
        pid_in(&self.session(session), "workerPid")
    }

    /// The host of a chat's agent.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    #[track_caller]
    pub fn host_of(&self, session: &str) -> i32 {
        pid_in(&self.session(session), "hostPid")
    }

    /// Waits until a chat is in one of the states that `ade ps` shows.
    ///
    /// # Panics
    /// When it does not come to it.
    #[track_caller]
    pub fn wait_state(&self, session: &str, state: &str) -> Value {
        wait_until(&format!("{session} is {state}"), || {
            Some(self.session(session)).filter(|info| info["state"] == state)
        })
    }

    /// Waits until the transcript on disk holds the end of a turn. Needs no
    /// broker.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn wait_done(&self, session: &str, turn: &str) -> Vec<Value> {
        self.wait_transcript(session, &format!("the end of {turn}"), |lines| {
            dones(lines).iter().any(|(of, _)| of == turn)
        })
    }

    /// Waits until the transcript on disk is as wanted. Needs no broker and no
    /// connection to it.
    ///
    /// # Panics
    /// With `label`, when it does not become so.
    #[track_caller]
    pub fn wait_transcript(
        &self,
        session: &str,
        label: &str,
        is: impl Fn(&[Value]) -> bool,
    ) -> Vec<Value> {
        wait_within(label, PATIENCE, || {
            // A broker that was killed may have left a line half, and one that runs
            // may be writing the last.
            let lines = self.transcript_so_far(session).unwrap_or_default().0;
            is(&lines).then_some(lines)
        })
    }

    /// A chat's transcript, checked: sequences without a gap from 1, one
    /// session, and each turn ended by exactly one `done` behind all of its
    /// events. No turn may run.
    ///
    /// # Panics
    /// When something of it does not hold.
    #[must_use]
    #[track_caller]
    pub fn checked_transcript(&self, session: &str) -> Vec<Value> {
        let lines = self.transcript(session);
        let mut done: HashMap<String, bool> = HashMap::new();
        let mut origins: HashMap<u64, u64> = HashMap::new();
        let mut last = 0;
        for line in &lines {
            let sequence = line["sequence"].as_u64().expect("a number");
            let told = line["event"]["message"].as_str().unwrap_or_default();
            // Behind events that went with the file there is a gap, and it is told.
            let gap = line["event"]["type"] == "notice" && told.contains("are missing from");
            assert!(sequence == last + 1 || gap && sequence > last, "{line}");
            last = sequence;
            assert_eq!(line["sessionId"], session, "{line}");
            if let Some(generation) = line["origin"]["generation"].as_u64() {
                let seq = line["origin"]["seq"].as_u64().expect("a seq");
                let last = origins.insert(generation, seq);
                assert!(last.is_none_or(|last| last < seq), "{line}");
            }
            let Some(turn) = line["turnId"].as_str() else {
                continue;
            };
            let over = done.entry(turn.to_owned()).or_default();
            assert!(!*over, "an event after the end of its turn: {line}");
            *over = line["event"]["type"] == "done";
        }
        for (turn, over) in &done {
            assert!(over, "{turn} of {session} has no end");
        }
        lines
    }

    /// Whether nobody writes a chat's session file and no lease file stands
    /// beside it.
    #[must_use]
    pub fn is_free(&self, file: &Path) -> bool {
        !lease::is_held(file) && !lease_file(file).exists()
    }

    /// The files below ADE_HOME that hold some bytes.
    #[must_use]
    pub fn files_with(&self, text: &str) -> Vec<PathBuf> {
        let holds = |path: &PathBuf| {
            // One that is gone by now holds nothing.
            let bytes = std::fs::read(path).unwrap_or_default();
            bytes.windows(text.len()).any(|at| at == text.as_bytes())
        };
        let mut found = Vec::new();
        let mut folders = vec![self.home()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    Ok(kind) if kind.is_file() => found.push(entry.path()),
                    _ => {}
                }
            }
        }
        found.retain(holds);
        found.sort();
        found
    }

    /// How often the running turn's message was written to a worker, as
    /// `state.db` knows it.
    ///
    /// # Panics
    /// When no turn runs.
    #[must_use]
    #[track_caller]
    pub fn sends(&self, session: &str) -> i64 {
        let db = rusqlite::Connection::open(self.home().join("state.db")).expect("state.db");
        db.busy_timeout(PATIENCE).expect("a timeout");
        let query = "SELECT sends FROM turns WHERE session_id = ?1";
        let sends = db.query_row(query, [session], |row| row.get(0));
        sends.expect("a running turn")
    }

    /// How many workers a chat has had, those that never got ready included.
    ///
    /// # Panics
    /// When `state.db` does not know the chat.
    #[must_use]
    #[track_caller]
    pub fn births(&self, session: &str) -> i64 {
        let db = rusqlite::Connection::open(self.home().join("state.db")).expect("state.db");
        db.busy_timeout(PATIENCE).expect("a timeout");
        let query = "SELECT generation FROM sessions WHERE session_id = ?1";
        let births = db.query_row(query, [session], |row| row.get(0));
        births.expect("a chat")
    }

    /// Starts a turn that never ends, with a tree of processes below it, and
    /// waits until all of it is there and text streams. `before`: steps that
    /// the script begins with.
    ///
    /// # Panics
    /// When it does not get there.
    #[track_caller]
    pub fn grow(&self, rpc: &mut Rpc, session: &str, before: &str) -> Tree {
        let script = format!("{before}!child 300\n!grandchild 300\n!words 1000000 50");
        let (turn, after) = self.send(rpc, session, &script);
        let mut watch = self.rpc();
        watch.subscribe(session, after);
        // Fragments may be joined on their way.
        let mut said = String::new();
        while !said.contains("word") {
            let event = watch.event("the pids and streaming text", |e| {
                e["event"]["type"] == "text"
            });
            said.push_str(event["event"]["text"].as_str().unwrap_or_default());
        }
        let pid = |what: &str| -> i32 {
            let line = said.lines().find_map(|line| line.strip_prefix(what));
            let pid = line.and_then(|pid| pid.trim().parse().ok());
            pid.unwrap_or_else(|| panic!("no {what} in {said:?}"))
        };
        let (child, grandchild) = (pid("child "), pid("grandchild "));
        let tree = Tree {
            session: session.to_owned(),
            turn,
            worker: self.worker_of(session),
            host: self.host_of(session),
            child,
            grandchild,
        };
        assert_eq!(tree.alive(), tree.pids(), "all of it is alive");
        tree
    }
}

#[track_caller]
fn pid_in(info: &Value, name: &str) -> i32 {
    let pid = info[name].as_i64().and_then(|pid| i32::try_from(pid).ok());
    pid.unwrap_or_else(|| panic!("no {name}: {info}"))
}

/// The lease file beside a session file.
#[must_use]
pub fn lease_file(file: &Path) -> PathBuf {
    beside(file, ".ade-lease")
}

/// The owner file beside a session file.
#[must_use]
pub fn owner_file(file: &Path) -> PathBuf {
    beside(file, ".ade-owner")
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
