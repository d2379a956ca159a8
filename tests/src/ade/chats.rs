//! Chats of one ade, and their transcripts on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Ade;
use crate::rpc::Rpc;

impl Ade {
    /// A client of the broker.
    #[must_use]
    #[track_caller]
    pub fn rpc(&self) -> Rpc {
        Rpc::connect(&self.socket(), "a test")
    }

    /// Makes a chat and returns its id.
    #[track_caller]
    pub fn chat(&self, rpc: &mut Rpc, provider: &str, lane: &Path, more: Value) -> String {
        let mut arguments = json!({"provider": provider, "lane": lane.display().to_string()});
        if let (Some(all), Value::Object(more)) = (arguments.as_object_mut(), more) {
            all.extend(more);
        }
        let made = rpc.call("chat.create", arguments);
        made["sessionId"].as_str().expect("a session id").to_owned()
    }

    /// Sends a message; returns the turn's id and the sequence before it.
    #[track_caller]
    pub fn send(&self, rpc: &mut Rpc, session: &str, prompt: &str) -> (String, u64) {
        let sent = rpc.call("chat.send", json!({"sessionId": session, "prompt": prompt}));
        let turn = sent["turnId"].as_str().expect("a turn id").to_owned();
        (turn, sent["after"].as_u64().expect("a sequence"))
    }

    /// Sends a message and returns the envelopes of its whole turn.
    #[track_caller]
    pub fn turn(&self, session: &str, prompt: &str) -> Vec<Value> {
        let mut rpc = self.rpc();
        let (turn, after) = self.send(&mut rpc, session, prompt);
        rpc.subscribe(session, after);
        rpc.until_done(&turn)
    }

    /// A chat as `sessions.list` shows it.
    ///
    /// # Panics
    /// When it is not listed.
    #[track_caller]
    pub fn session(&self, session: &str) -> Value {
        let list = self.rpc().call("sessions.list", json!({}));
        list["sessions"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["sessionId"] == session))
            .unwrap_or_else(|| panic!("{session} is not listed"))
            .clone()
    }

    /// Where a chat's transcript is.
    #[must_use]
    pub fn transcript_path(&self, session: &str) -> PathBuf {
        let folder = self.home().join("transcripts/chat");
        folder.join(format!("{session}.jsonl"))
    }

    /// The lines of a chat's transcript, as they are on disk, without those
    /// that a broker killed in mid-write left half.
    ///
    /// # Panics
    /// When it cannot be read or a line is neither JSON nor the beginning of an
    /// envelope of this chat.
    #[must_use]
    #[track_caller]
    pub fn transcript(&self, session: &str) -> Vec<Value> {
        self.transcript_and_torn(session).0
    }

    /// The same, and how many half lines stand among them.
    ///
    /// # Panics
    /// As for [`Ade::transcript`].
    #[must_use]
    #[track_caller]
    pub fn transcript_and_torn(&self, session: &str) -> (Vec<Value>, usize) {
        self.transcript_so_far(session)
            .unwrap_or_else(|e| panic!("{}: {e}", self.transcript_path(session).display()))
    }

    /// The same of a file that need not be there yet.
    ///
    /// # Errors
    /// As of reading it.
    ///
    /// # Panics
    /// When a line is neither JSON nor the beginning of an envelope of this chat.
    #[track_caller]
    pub fn transcript_so_far(&self, session: &str) -> io::Result<(Vec<Value>, usize)> {
        let text = fs::read(self.transcript_path(session))?;
        let start = format!("{{\"sessionId\":\"{session}\"");
        let mut lines = Vec::new();
        let mut torn = 0;
        for line in text.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(value) => lines.push(value),
                Err(error) => {
                    let of_ours =
                        line.starts_with(start.as_bytes()) || start.as_bytes().starts_with(line);
                    assert!(of_ours, "{}: {error}", String::from_utf8_lossy(line));
                    torn += 1;
                }
            }
        }
        Ok((lines, torn))
    }
}
