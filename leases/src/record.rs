//! The lease record: one JSON object and a newline.
//!
//! Other programs write and read the same files, so reading is lenient where
//! leniency is safe (unknown fields, optional fields of a wrong type) and
//! strict where a mistake would give a session away.

use crate::process::{Pid, ProcessIdentity, here};
use jiff::Timestamp;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::fmt;
use std::path::Path;

/// The version that we write.
pub const VERSION: u64 = 2;

/// The kind of a holder or an owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnerKind {
    /// A chat.
    Sdk,
    /// A tracked terminal.
    Cli,
}

impl OwnerKind {
    /// The word in the files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sdk => "sdk",
            Self::Cli => "cli",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "sdk" => Some(Self::Sdk),
            "cli" => Some(Self::Cli),
            _ => None,
        }
    }
}

impl fmt::Display for OwnerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who is writing a session file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// 1 and 2 are known; a greater one is kept as it was found.
    pub version: u64,
    /// This lease and no other.
    pub token: String,
    /// `None` only in a record of a newer version with a word we don't know.
    pub owner: Option<OwnerKind>,
    /// The live holder: a chat or a terminal handle.
    pub owner_id: String,
    /// The writer; `None` when the field is not a usable pid.
    pub pid: Option<Pid>,
    /// When the holder was acquired, ISO 8601; for people.
    pub acquired_at: String,
    /// Canonical path of the session file.
    pub session_file: String,
    /// The other program's own birth stamp. We read it and never write it: it
    /// would look it up in a registry that does not know us.
    #[serde(skip_serializing)]
    pub process_started_at: Option<String>,
    /// Start tick of the writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ticks: Option<u64>,
    /// The boot it was written in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The pid namespace that numbers `pid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
    /// The name of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Where those wait who came before this holder's turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueAt>,
}

/// An open file of the holder that others queue at; a hint for fairness, not
/// for safety.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueAt {
    /// The holder's descriptor.
    pub fd: i32,
    /// The inode that it must be.
    pub inode: u64,
}

impl Record {
    /// A new record of the calling process with a fresh token.
    pub(crate) fn new(owner: OwnerKind, owner_id: &str, session_file: &Path) -> Self {
        let (here, own) = (here(), Pid::own());
        let token = uuid::Uuid::new_v4().to_string();
        let owner_id = match owner_id.trim() {
            "" => uuid::Uuid::new_v4().to_string(),
            id => id.to_owned(),
        };
        Self {
            version: VERSION,
            token,
            owner: Some(owner),
            owner_id,
            pid: Some(own),
            acquired_at: now_iso(),
            session_file: session_file.to_string_lossy().into_owned(),
            process_started_at: None,
            start_ticks: own_ticks(own),
            boot_id: here.boot_id.clone(),
            pid_namespace: here.pid_namespace,
            host: here.host.clone(),
            queue: None,
        }
    }

    /// The line as it stands in the file, newline included.
    pub(crate) fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("a record has string keys and plain values");
        line.push(b'\n');
        line
    }

    /// Reads a record; `None` for anything that no writer of a whole record
    /// can have meant.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let found: Found = serde_json::from_slice(bytes).ok()?;
        let version = found.version.as_u64().filter(|version| *version > 0)?;
        let newer = version > VERSION;
        let filled = |value: Value| {
            let value = text(value).filter(|value| !value.trim().is_empty());
            if newer {
                Some(value.unwrap_or_default())
            } else {
                value
            }
        };
        let owner = found.owner.as_str().and_then(OwnerKind::parse);
        let process_started_at = match found.process_started_at {
            Value::Null => None,
            Value::String(stamp) if !stamp.trim().is_empty() => Some(stamp),
            _ if newer => None,
            _ => return None,
        };
        if owner.is_none() && !newer {
            return None;
        }
        Some(Self {
            version,
            token: filled(found.token)?,
            owner,
            owner_id: text(found.owner_id).unwrap_or_default(),
            pid: found.pid.as_i64().and_then(Pid::from_usable),
            acquired_at: text(found.acquired_at).unwrap_or_default(),
            session_file: filled(found.session_file)?,
            process_started_at,
            start_ticks: found.start_ticks.as_u64(),
            boot_id: text(found.boot_id),
            pid_namespace: found.pid_namespace.as_u64(),
            host: text(found.host),
            queue: QueueAt::deserialize(found.queue).ok(),
        })
    }

    /// The writer's identity, when the record tells all of it.
    #[must_use]
    pub fn identity(&self) -> Option<ProcessIdentity> {
        Some(ProcessIdentity {
            pid: self.pid?,
            start_ticks: self.start_ticks?,
            boot_id: self.boot_id.clone()?,
            pid_namespace: self.pid_namespace?,
        })
    }

    /// "pid 4711 (sdk, ses_…, since 12:03 UTC", without the closing bracket.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "pid {pid} (")?,
            None => f.write_str("no usable pid (")?,
        }
        match self.owner {
            Some(kind) => write!(f, "{kind}")?,
            None => f.write_str("a kind we don't know")?,
        }
        if !self.owner_id.is_empty() {
            write!(f, ", {}", printable(&self.owner_id))?;
        }
        if let Ok(at) = self.acquired_at.parse::<Timestamp>() {
            let day = at.strftime("%Y-%m-%d").to_string();
            if day == Timestamp::now().strftime("%Y-%m-%d").to_string() {
                write!(f, ", since {} UTC", at.strftime("%H:%M"))?;
            } else {
                write!(f, ", since {day} {} UTC", at.strftime("%H:%M"))?;
            }
        }
        Ok(())
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// The fields of a record, of whatever type; `Null` is as good as absent.
#[derive(Default)]
struct Found {
    version: Value,
    token: Value,
    owner: Value,
    owner_id: Value,
    pid: Value,
    acquired_at: Value,
    session_file: Value,
    process_started_at: Value,
    start_ticks: Value,
    boot_id: Value,
    pid_namespace: Value,
    host: Value,
    queue: Value,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Name {
    Version,
    Token,
    Owner,
    OwnerId,
    Pid,
    AcquiredAt,
    SessionFile,
    ProcessStartedAt,
    StartTicks,
    BootId,
    PidNamespace,
    Host,
    Queue,
    #[serde(other)]
    Other,
}

impl Found {
    fn field(&mut self, name: &Name) -> Option<&mut Value> {
        Some(match name {
            Name::Version => &mut self.version,
            Name::Token => &mut self.token,
            Name::Owner => &mut self.owner,
            Name::OwnerId => &mut self.owner_id,
            Name::Pid => &mut self.pid,
            Name::AcquiredAt => &mut self.acquired_at,
            Name::SessionFile => &mut self.session_file,
            Name::ProcessStartedAt => &mut self.process_started_at,
            Name::StartTicks => &mut self.start_ticks,
            Name::BootId => &mut self.boot_id,
            Name::PidNamespace => &mut self.pid_namespace,
            Name::Host => &mut self.host,
            Name::Queue => &mut self.queue,
            Name::Other => return None,
        })
    }
}

/// Of a field that is there twice the last one counts, as for the writers in
/// other languages; a derived reader would refuse it.
impl<'de> Deserialize<'de> for Found {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Found;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a lease record")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
                let mut found = Found::default();
                while let Some(name) = map.next_key::<Name>()? {
                    match found.field(&name) {
                        Some(field) => *field = map.next_value()?,
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(found)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// "pid 4711 (sdk, ses_…, since 12:03 UTC)", for messages.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f)?;
        f.write_str(")")
    }
}

impl Record {
    /// As [`fmt::Display`], with one more remark inside the brackets.
    pub(crate) fn display_with(&self, remark: &dyn fmt::Display) -> String {
        struct With<'a>(&'a Record, &'a dyn fmt::Display);
        impl fmt::Display for With<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.describe(f)?;
                write!(f, "; {})", self.1)
            }
        }
        With(self, remark).to_string()
    }
}

/// Texts of foreign records reach terminals: no control characters, and not
/// longer than a line.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

/// Now, ISO 8601 UTC with milliseconds.
pub(crate) fn now_iso() -> String {
    format!("{:.3}", Timestamp::now())
}

/// Asked once in a process: `/proc` is slow to tell.
fn own_ticks(own: Pid) -> Option<u64> {
    use std::sync::OnceLock;
    static OWN: OnceLock<(Pid, Option<u64>)> = OnceLock::new();
    let look = || {
        ProcessIdentity::current()
            .ok()
            .map(|identity| identity.start_ticks)
    };
    let (pid, ticks) = *OWN.get_or_init(|| (own, look()));
    if pid == own { ticks } else { look() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_never_tells_the_other_programs_stamp() {
        let mut record = Record::new(OwnerKind::Sdk, " chat-A ", Path::new("/s/a.jsonl"));
        assert_eq!(record.owner_id, "chat-A");
        assert_eq!(Record::parse(&record.to_line()).as_ref(), Some(&record));
        record.process_started_at = Some("2026-05-04T10:00:00.000Z".to_owned());
        let line = String::from_utf8(record.to_line()).expect("text");
        assert!(!line.contains("processStartedAt"), "{line}");
        assert!(line.ends_with("}\n"));
    }

    #[test]
    fn reading_is_strict_for_known_versions_and_lenient_for_newer_ones() {
        let with = |change: &str, value: Value| {
            let record = Record::new(OwnerKind::Cli, "t", Path::new("/s"));
            let mut json: Value = serde_json::from_slice(&record.to_line()).expect("json");
            json[change] = value;
            Record::parse(json.to_string().as_bytes())
        };
        assert!(with("version", Value::from(1)).is_some());
        assert_eq!(with("version", Value::from(0)), None);
        assert_eq!(with("version", Value::from("2")), None);
        assert_eq!(with("token", Value::from(" ")), None);
        assert_eq!(with("owner", Value::from("robot")), None);
        assert_eq!(with("sessionFile", Value::from("")), None);
        assert_eq!(with("processStartedAt", Value::from(7)), None);
        assert!(with("processStartedAt", Value::Null).is_some());
        assert!(with("unknown", Value::from(7)).is_some());
        assert!(with("host", Value::from(7)).is_some());
        for pid in [
            Value::from(0),
            Value::from(-4),
            Value::from(1_u64 << 40),
            Value::from("7"),
        ] {
            assert_eq!(with("pid", pid).expect("a record").pid, None);
        }
        let twice =
            br#"{"version":2,"token":"t","owner":"sdk","sessionFile":"/s","pid":7,"pid":8}"#;
        assert_eq!(Record::parse(twice).expect("kept").pid, Pid::new(8));
        assert_eq!(Record::parse(b"[]"), None);
        assert_eq!(Record::parse(b""), None);
        let newer = Record::parse(br#"{"version":3,"pid":77,"owner":"robot"}"#).expect("kept");
        assert_eq!((newer.version, newer.owner), (3, None));
    }

    #[test]
    fn a_foreign_text_can_not_steer_the_terminal() {
        let mut record = Record::new(OwnerKind::Cli, "t", Path::new("/s"));
        record.owner_id = "\u{1b}[2Jx\n".to_owned();
        assert!(!record.to_string().contains(['\u{1b}', '\n']), "{record}");
    }
}
