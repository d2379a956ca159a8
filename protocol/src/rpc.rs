//! JSON-RPC 2.0 as the control endpoint speaks it: one object a line.
//!
//! Ids come back exactly as they were sent, type and digits, so they are kept
//! as raw JSON. `null` is one of them: only a request without the member is a
//! notification, which is answered by nothing. Batches are not supported. A line that is not a valid request is answered with the id when
//! the id can be read, and with `null` otherwise.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::codec::depth_within;
use crate::limits::MAX_DEPTH;
use crate::strict;

/// The text was not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON was not a request.
pub const INVALID_REQUEST: i64 = -32600;
/// There is no such method or action.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters do not fit.
pub const INVALID_PARAMS: i64 = -32602;
/// It was tried and failed; `data` is a [`ErrorData`].
pub const ACTION_FAILED: i64 = -32000;

/// Name of the method that must come first.
pub const INITIALIZE: &str = "ade/initialize";
/// Name of the notification that carries an event.
pub const EVENT: &str = "ade/event";
/// Name of the notification that tells of a card.
pub const CARD: &str = "ade/card";
/// Name of the notification that tells of events a slow subscriber missed.
pub const GAP: &str = "ade/gap";

/// A request or notification as it was read. The id keeps its own text.
#[derive(Debug)]
pub struct Call {
    /// Absent for a notification.
    pub id: Option<Box<RawValue>>,
    /// What is asked for.
    pub method: String,
    /// Parameters, an object, as text.
    pub params: Option<Box<RawValue>>,
}

/// Why a line is no [`Call`], with the id to answer to where it could be read.
#[derive(Debug)]
pub struct BadCall {
    /// Absent when it could not be read: the answer then carries `null`.
    pub id: Option<Box<RawValue>>,
    /// What is wrong.
    pub error: RpcError,
}

impl Call {
    /// Reads one line.
    ///
    /// # Errors
    /// What to answer instead.
    pub fn parse(line: &str) -> Result<Self, Box<BadCall>> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            #[serde(borrow, default)]
            jsonrpc: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "present")]
            id: Option<&'a RawValue>,
            #[serde(borrow, default)]
            method: Option<&'a RawValue>,
            #[serde(borrow, default)]
            params: Option<&'a RawValue>,
        }
        let bad = |id: Option<&RawValue>, code, message: &str| {
            Box::new(BadCall {
                id: id.map(RawValue::to_owned),
                error: RpcError::new(code, message),
            })
        };
        if !depth_within(line, MAX_DEPTH) {
            let id = shallow_id(line);
            return Err(bad(id, PARSE_ERROR, "the request nests too deeply"));
        }
        if serde_json::from_str::<&RawValue>(line).is_err() {
            return Err(bad(None, PARSE_ERROR, "the line is not JSON"));
        }
        let text = line.trim_start();
        if text.starts_with('[') {
            let why = "batches are not supported: send one object a line";
            return Err(bad(None, INVALID_REQUEST, why));
        }
        if !text.starts_with('{') {
            return Err(bad(None, INVALID_REQUEST, "a request is one JSON object"));
        }
        let Ok(raw) = strict::from_str::<Raw<'_>>(line) else {
            let why = "a request has each of its members once";
            return Err(bad(None, INVALID_REQUEST, why));
        };
        let id = raw.id.filter(|id| valid_id(id));
        if raw.id.is_some() && id.is_none() {
            return Err(bad(
                None,
                INVALID_REQUEST,
                "`id` must be a string, a number or null",
            ));
        }
        if raw.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
            return Err(bad(id, INVALID_REQUEST, "`jsonrpc` must be \"2.0\""));
        }
        let Some(Ok(method)) = raw
            .method
            .map(|text| serde_json::from_str::<String>(text.get()))
        else {
            return Err(bad(id, INVALID_REQUEST, "`method` must be a string"));
        };
        if raw
            .params
            .is_some_and(|params| !params.get().starts_with('{'))
        {
            return Err(bad(id, INVALID_PARAMS, "`params` must be an object"));
        }
        Ok(Self {
            id: id.map(RawValue::to_owned),
            method,
            params: raw.params.map(RawValue::to_owned),
        })
    }
}

/// Reads a member that counts as there when it is `null`, too.
fn present<'de, D: serde::Deserializer<'de>>(member: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(member).map(Some)
}

/// The id of a request that nests too deeply to be read, where its members can
/// be told apart without recursion: what is deep is stepped over.
fn shallow_id(line: &str) -> Option<&RawValue> {
    let mut rest = line.trim_start().strip_prefix('{')?;
    loop {
        let (name, behind) = token(rest)?;
        let (value, behind) = token(behind.trim_start().strip_prefix(':')?)?;
        if name == "\"id\"" {
            let value = serde_json::from_str::<&RawValue>(value).ok()?;
            return Some(value).filter(|id| valid_id(id));
        }
        rest = behind.trim_start().strip_prefix(',')?;
    }
}

/// The first value of `text`, which need not be JSON as a whole, and what is
/// behind it.
fn token(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' | b':' if depth == 0 => {
                return (at > 0).then(|| (text[..at].trim_end(), &text[at..]));
            }
            b'}' | b']' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn valid_id(id: &RawValue) -> bool {
    matches!(
        id.get().as_bytes().first(),
        Some(b'"' | b'-' | b'0'..=b'9' | b'n')
    )
}

/// An error as JSON-RPC carries it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// One of this module's constants.
    pub code: i64,
    /// One sentence.
    pub message: String,
    /// What a program can act on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<ErrorData>,
}

/// What a program can act on when an action failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorData {
    /// A stable word for the kind of failure.
    pub kind: String,
    /// The exit code that a command line tool should end with: see
    /// [`crate::exit`].
    pub exit_code: u8,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
}

impl RpcError {
    /// An error without data.
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    /// An action that failed.
    #[must_use]
    pub fn failed(kind: &str, exit_code: u8, message: impl Into<String>) -> Self {
        let data = ErrorData {
            kind: kind.to_owned(),
            exit_code,
            hints: Vec::new(),
        };
        Self {
            code: ACTION_FAILED,
            message: message.into(),
            data: Some(data),
        }
    }

    /// The same with one more hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Some(data) = &mut self.data {
            data.hints.push(hint.into());
        }
        self
    }
}

/// The line that answers a request with a result.
#[must_use]
pub fn result_line(id: &RawValue, result: &RawValue) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{}}}",
        id.get(),
        result.get()
    )
}

/// The line that answers a request with an error.
#[must_use]
pub fn error_line(id: Option<&RawValue>, error: &RpcError) -> String {
    let id = id.map_or("null", RawValue::get);
    let error = serde_json::to_string(error).expect("an error serialises to JSON");
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")
}

/// The line of a notification whose parameters are JSON text already.
#[must_use]
pub fn notification_line(method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{params}}}")
}

/// What a client reads: an answer or a notification.
#[derive(Debug, Deserialize)]
pub struct Incoming {
    /// The request that is answered; absent on notifications.
    #[serde(default)]
    pub id: Option<Box<RawValue>>,
    /// Name of a notification.
    #[serde(default)]
    pub method: Option<String>,
    /// Parameters of a notification.
    #[serde(default)]
    pub params: Option<Box<RawValue>>,
    /// The result.
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    /// The error.
    #[serde(default)]
    pub error: Option<RpcError>,
}

/// Parameters of [`INITIALIZE`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// Must equal [`crate::PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// Name of the client, shown to others ("answered by …").
    pub client_name: String,
}

/// Result of [`INITIALIZE`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult {
    /// The broker's frame protocol version.
    pub protocol_version: u32,
    /// Which broker answers.
    pub runtime_info: RuntimeInfo,
    /// What it offers beyond the actions.
    pub capabilities: Vec<String>,
}

/// Which broker answers.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeInfo {
    /// Version of the executable.
    pub version: String,
    /// Hash of the executable's own bytes, first 16 hex digits.
    pub build_hash: String,
    /// The role that this connection has.
    pub default_role: String,
    /// ADE_HOME of the broker.
    pub project_root: String,
    /// Pid of the broker.
    pub pid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_as_sent() {
        for id in ["1", "\"1\"", "1.50", "-0", "\"\\u0041\"", "null"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ade/ping"}}"#);
            let call = Call::parse(&line).unwrap();
            assert_eq!(call.id.expect("an id").get(), id);
        }
        let call = Call::parse(r#"{"jsonrpc":"2.0","method":"ade/ping"}"#).unwrap();
        assert!(call.id.is_none(), "a notification has none");
    }

    #[test]
    fn bad_requests_are_answered_with_what_could_be_read() {
        let table = [
            ("", PARSE_ERROR, None),
            ("{", PARSE_ERROR, None),
            ("[]", INVALID_REQUEST, None),
            (r#"["2.0",7,"ade/ping",{}]"#, INVALID_REQUEST, None),
            ("7", INVALID_REQUEST, None),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":3}"#,
                INVALID_REQUEST,
                Some("null"),
            ),
            (r#"{"id":7,"method":"x"}"#, INVALID_REQUEST, Some("7")),
            (
                r#"{"jsonrpc":"2.0","id":"a","method":3}"#,
                INVALID_REQUEST,
                Some("\"a\""),
            ),
            (
                r#"{"jsonrpc":"2.0","id":8,"method":"x","params":"no"}"#,
                INVALID_PARAMS,
                Some("8"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#,
                INVALID_REQUEST,
                None,
            ),
            (
                r#"{"jsonrpc":"1.0","id":9,"method":"x"}"#,
                INVALID_REQUEST,
                Some("9"),
            ),
        ];
        for (line, code, id) in table {
            let bad = Call::parse(line).unwrap_err();
            assert_eq!(bad.error.code, code, "{line}");
            assert_eq!(bad.id.as_ref().map(|id| id.get()), id, "{line}");
        }
        for batch in ["[]", r#" [{"jsonrpc":"2.0","id":1,"method":"x"}]"#] {
            let told = Call::parse(batch).unwrap_err().error.message;
            assert!(told.contains("batches are not supported"), "{told}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(Call::parse(&deep).unwrap_err().error.code, PARSE_ERROR);
        let table = [
            (
                format!(r#"{{"id":7,"method":"x","params":{deep}}}"#),
                Some("7"),
            ),
            (
                format!(r#"{{ "params" : {deep} , "a\":,":1, "id" : "x,\"}}" }}"#),
                Some(r#""x,\"}""#),
            ),
            (format!(r#"{{"params":{{"id":8,"x":{deep}}}}}"#), None),
            (format!(r#"{{"id":{deep},"method":"x"}}"#), None),
            (format!("[{deep}]"), None),
            (format!(r#"{{"x":{deep}"#), None),
            (format!(r#"{{,"id":9,"x":{deep}}}"#), None),
        ];
        for (line, id) in table {
            let bad = Call::parse(&line).unwrap_err();
            assert_eq!(bad.error.code, PARSE_ERROR);
            assert_eq!(bad.id.as_ref().map(|id| id.get()), id);
        }
    }
}
