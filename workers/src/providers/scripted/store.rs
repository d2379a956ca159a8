//! The scripted host's session file: a header line, then one entry a line, as
//! Pi writes them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ade_protocol::frame::{Init, SessionMark, code};
use serde_json::{Value, json};

use super::delivery::Delivery;
use super::opening::Refusal;

/// One session file, open for appending once something was written.
pub(super) struct Store {
    path: PathBuf,
    id: String,
    cwd: String,
    file: Option<File>,
    leaf: Option<String>,
    /// The user's messages, oldest first.
    said: Vec<String>,
    /// The agent is not there any more.
    forgotten: bool,
}

impl Store {
    /// Finds, or names, the session's file. Writes nothing but its folder.
    pub(super) fn open(init: &Init) -> Result<Self, Refusal> {
        let root = Path::new(&init.store.session_root);
        let invalid = |message: String| ("session_invalid", message);
        if !root.is_absolute() {
            return Err(invalid("the store needs an absolute sessionRoot".into()));
        }
        make_folder(root).map_err(|error| invalid(format!("{}: {error}", root.display())))?;
        let missing = |what: &str| {
            (
                code::SESSION_NOT_FOUND,
                format!(
                    "the session {what} does not exist; put its file back, or start a new chat"
                ),
            )
        };
        let choice = &init.session;
        let path = match (&choice.session_file, &choice.session_id) {
            (Some(file), _) => PathBuf::from(file),
            (None, Some(id)) if choice.resume => find(root, id).ok_or_else(|| missing(id))?,
            // A fresh agent of a chat that had one before.
            (None, Some(id)) => root.join(format!(
                "{}.{}.jsonl",
                file_name(&init.session_key),
                file_name(id)
            )),
            (None, None) => root.join(format!("{}.jsonl", file_name(&init.session_key))),
        };
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
        let inside = folder.zip(root.canonicalize().ok());
        if !inside.is_some_and(|(folder, root)| folder.starts_with(root)) {
            return Err(invalid(format!(
                "{} is outside of the store {}",
                path.display(),
                root.display()
            )));
        }
        check_file(&path).map_err(invalid)?;
        let mut store = Self {
            id: choice
                .session_id
                .clone()
                .unwrap_or_else(|| uuid::Uuid::now_v7().to_string()),
            cwd: init.cwd.clone(),
            path,
            file: None,
            leaf: None,
            said: Vec::new(),
            forgotten: false,
        };
        match fs::read(&store.path) {
            Ok(bytes) => store.load(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !choice.resume => {}
            Err(_) => return Err(missing(&store.path.to_string_lossy())),
        }
        if store.forgotten {
            let message = format!("agent not found (operation=agent.resume, id={})", store.id);
            return Err(("agent_not_found", message));
        }
        Ok(store)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The user's messages before the one that was added last.
    pub(super) fn said_before(&self) -> &[String] {
        &self.said[..self.said.len().saturating_sub(1)]
    }

    /// What is known of a message that is sent again. A fresh agent has a file of
    /// its own; what the one before it did stands in the file that was marked.
    pub(super) fn delivery(&self, prompt: &str, mark: Option<&SessionMark>) -> Delivery {
        let own = self.path.to_string_lossy();
        let before = mark.filter(|mark| mark.session_file != own);
        let before = before.map(|mark| Delivery::read(&mark.session_file, prompt, Some(mark)));
        match before {
            Some(before) if before.refusal().is_some() => before,
            _ => Delivery::read(&own, prompt, mark),
        }
    }

    /// Adds a message of the user.
    pub(super) fn user(&mut self, text: &str) {
        self.said.push(text.to_owned());
        self.message(&json!({"role": "user", "content": [{"type": "text", "text": text}]}));
    }

    /// Adds the agent's answer.
    pub(super) fn assistant(&mut self, text: &str, stop_reason: &str) {
        self.message(&json!({
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "stopReason": stop_reason,
        }));
    }

    /// Notes that the agent is gone: nobody can resume it.
    pub(super) fn forget(&mut self) {
        self.write(&json!({"type": "custom", "customType": FORGOTTEN}));
    }

    fn load(&mut self, bytes: &[u8]) {
        for line in bytes.split(|byte| *byte == b'\n') {
            // A torn or foreign line costs itself.
            let Ok(entry) = serde_json::from_slice::<Value>(line) else {
                continue;
            };
            let id = entry["id"].as_str().map(str::to_owned);
            if entry["type"] == "session" {
                self.id = id.unwrap_or_else(|| self.id.clone());
                continue;
            }
            self.leaf = id.or(self.leaf.take());
            self.forgotten |= entry["customType"] == FORGOTTEN;
            let message = &entry["message"];
            if message["role"] == "user" {
                self.said.push(text_of(&message["content"]));
            }
        }
    }

    fn message(&mut self, message: &Value) {
        self.write(&json!({"type": "message", "message": message}));
    }

    /// Writes an entry with its place in the tree of entries.
    fn write(&mut self, entry: &Value) {
        let id = uuid::Uuid::new_v4().simple().to_string()[..8].to_owned();
        let mut entry = entry.clone();
        entry["id"] = id.as_str().into();
        entry["parentId"] = self.leaf.take().into();
        entry["timestamp"] = now().into();
        self.leaf = Some(id);
        if let Err(error) = self.append(&entry) {
            // A diagnostic of a test double; the turn goes on.
            let _ = writeln!(
                io::stderr(),
                "could not write {}: {error}",
                self.path.display()
            );
        }
    }

    fn append(&mut self, entry: &Value) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                let mut file = options
                    .append(true)
                    .create(true)
                    .mode(0o600)
                    .open(&self.path)?;
                if file.metadata()?.len() == 0 {
                    let header = json!({
                        "type": "session", "version": 3, "id": self.id, "timestamp": now(), "cwd": self.cwd,
                    });
                    writeln!(file, "{header}")?;
                }
                self.file.insert(file)
            }
        };
        file.write_all(format!("{entry}\n").as_bytes())
    }
}

/// Kind of the entry of an agent that is gone.
const FORGOTTEN: &str = "ade_forgotten";

/// Whether an answer is one: an agent that failed, or was ended, before its
/// first word has not gone on with the message.
pub(super) fn says_something(text: &str, stop_reason: &str) -> bool {
    !text.is_empty() || !["error", "aborted"].contains(&stop_reason)
}

/// A file that is there must be the session itself: what is written through a
/// link may land outside of the store.
fn check_file(path: &Path) -> Result<(), String> {
    let what = match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => "a link",
        Ok(found) if !found.is_file() => "no regular file",
        // What can't be looked at can't be read either, and is refused there.
        Ok(_) | Err(_) => return Ok(()),
    };
    let path = path.display();
    Err(format!(
        "the session file {path} is {what}; put the session's own file there, or start a new chat"
    ))
}

pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

fn find(root: &Path, id: &str) -> Option<PathBuf> {
    let files = fs::read_dir(root)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = files
        .filter(|path| {
            let header = fs::read_to_string(path).unwrap_or_default();
            let header = serde_json::from_str::<Value>(header.lines().next().unwrap_or_default());
            header.is_ok_and(|header| header["type"] == "session" && header["id"] == id)
        })
        .collect();
    found.sort();
    found.into_iter().next()
}

/// A session key as a file name.
fn file_name(key: &str) -> String {
    key.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.%3fZ")
        .to_string()
}
