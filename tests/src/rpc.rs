//! A client of the control endpoint for tests: plain, blocking, and with its own
//! reading of the wire, so that it cannot share a mistake with the product's.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::wait::PATIENCE;

/// A connection to a broker.
#[derive(Debug)]
pub struct Rpc {
    stream: UnixStream,
    lines: Receiver<Value>,
    next_id: u64,
    /// Notifications that were read while an answer was awaited.
    early: Vec<Value>,
}

/// An error that the broker answered.
#[derive(Clone, Debug)]
pub struct RpcFailure {
    /// JSON-RPC code.
    pub code: i64,
    /// One sentence.
    pub message: String,
    /// `data.kind`, where there is one.
    pub kind: String,
    /// `data.hints`: what to do about it.
    pub hints: Vec<String>,
}

impl Drop for Rpc {
    /// Ends the connection: the reading thread has a handle of its own.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Rpc {
    /// Connects and initializes.
    ///
    /// # Panics
    /// When nobody answers.
    #[must_use]
    #[track_caller]
    pub fn connect(socket: &Path, name: &str) -> Self {
        let mut rpc = Self::connect_raw(socket);
        let hello = json!({"protocolVersion": 2, "clientName": name});
        rpc.request("ade/initialize", hello).expect("initialize");
        rpc
    }

    /// Connects without a word.
    ///
    /// # Panics
    /// When nobody listens.
    #[must_use]
    #[track_caller]
    pub fn connect_raw(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket)
            .unwrap_or_else(|e| panic!("connecting to {}: {e}", socket.display()));
        Self::over(stream, 1)
    }

    fn over(stream: UnixStream, next_id: u64) -> Self {
        let reader = stream.try_clone().expect("a second handle");
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines() {
                let Ok(line) = line else { return };
                let value = serde_json::from_str(&line)
                    .unwrap_or_else(|e| json!({"notJson": line, "why": e.to_string()}));
                if tx.send(value).is_err() {
                    return;
                }
            }
        });
        Self {
            stream,
            lines,
            next_id,
            early: Vec::new(),
        }
    }

    /// Writes raw bytes.
    ///
    /// # Panics
    /// When the broker does not take them.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("writing to the broker");
    }

    /// The next line, whatever it is; `None` when the broker closed or the time
    /// is over.
    pub fn line(&mut self, within: Duration) -> Option<Value> {
        if self.early.is_empty() {
            self.lines.recv_timeout(within).ok()
        } else {
            Some(self.early.remove(0))
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// What the broker answered.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn request(&mut self, method: &str, params: Value) -> Result<Value, RpcFailure> {
        let id = self.next_id;
        self.next_id += 1;
        let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method});
        request["params"] = params;
        self.write(format!("{request}\n").as_bytes());
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => panic!("no answer to {method}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the broker left during {method}"),
            };
            if line.get("id") != Some(&json!(id)) {
                self.early.push(line);
                continue;
            }
            return match line.get("error") {
                Some(error) => Err(RpcFailure {
                    code: error["code"].as_i64().unwrap_or_default(),
                    message: error["message"].as_str().unwrap_or_default().to_owned(),
                    kind: error["data"]["kind"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                    hints: error["data"]["hints"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(|hint| hint.as_str().map(str::to_owned))
                        .collect(),
                }),
                None => Ok(line["result"].clone()),
            };
        }
    }

    /// Calls an action.
    ///
    /// # Errors
    /// What the broker answered.
    #[track_caller]
    pub fn try_call(&mut self, action: &str, arguments: Value) -> Result<Value, RpcFailure> {
        let mut call = json!({"name": action});
        call["arguments"] = arguments;
        self.request("ade/actions/call", call)
    }

    /// Calls an action that must work.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn call(&mut self, action: &str, arguments: Value) -> Value {
        self.try_call(action, arguments)
            .unwrap_or_else(|e| panic!("{action}: {e:?}"))
    }

    /// Subscribes to one session from an event on.
    ///
    /// # Panics
    /// When the broker refuses.
    #[track_caller]
    pub fn subscribe(&mut self, session: &str, after: u64) -> Value {
        let params = json!({"sessionId": session, "afterSequence": after});
        self.request("ade/events/subscribe", params)
            .expect("subscribe")
    }

    /// The next envelope that `pick` wants, reading and dropping others.
    ///
    /// # Panics
    /// With `label`, when none comes for [`PATIENCE`].
    #[track_caller]
    pub fn event(&mut self, label: &str, pick: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(line) = self.line(left) else {
                panic!("no event came: {label}")
            };
            if line["method"] == "ade/event" && pick(&line["params"]) {
                return line["params"].clone();
            }
        }
    }

    /// All envelopes up to and with the `done` of a turn.
    ///
    /// # Panics
    /// When the turn does not end.
    #[track_caller]
    pub fn until_done(&mut self, turn: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event(&format!("the end of {turn}"), |_| true);
            let done = event["turnId"] == turn && event["event"]["type"] == "done";
            events.push(event);
            if done {
                return events;
            }
        }
    }
}

/// A client that subscribes and then reads nothing, until it wakes.
#[derive(Debug)]
pub struct Deaf {
    stream: UnixStream,
    next_id: u64,
}

impl Deaf {
    /// Connects, initializes and subscribes to one session: from an event on, or
    /// to what comes from now on.
    ///
    /// # Panics
    /// When the broker refuses.
    #[must_use]
    #[track_caller]
    pub fn subscribe(socket: &Path, session: &str, after: Option<u64>) -> Self {
        let stream = UnixStream::connect(socket).expect("a connection");
        let mut deaf = Self { stream, next_id: 1 };
        let hello = json!({"protocolVersion": 2, "clientName": "deaf"});
        deaf.request("ade/initialize", &hello);
        let mut wanted = json!({"sessionId": session});
        if let Some(after) = after {
            wanted["afterSequence"] = json!(after);
        }
        deaf.request("ade/events/subscribe", &wanted);
        deaf
    }

    /// Asks and reads exactly the one line of the answer.
    #[track_caller]
    fn request(&mut self, method: &str, params: &Value) {
        use std::io::Read;
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let line = format!("{request}\n");
        self.stream.write_all(line.as_bytes()).expect("a request");
        self.stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
        let mut answer = Vec::new();
        while answer.last() != Some(&b'\n') {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("an answer");
            answer.push(byte[0]);
        }
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(
            (&answer["id"], &answer["error"]),
            (&json!(id), &Value::Null)
        );
    }

    /// Reads from now on.
    ///
    /// # Panics
    /// When the stream cannot be used.
    #[must_use]
    pub fn wake(self) -> Rpc {
        self.stream.set_read_timeout(None).expect("no timeout");
        Rpc::over(self.stream, self.next_id)
    }
}

/// The text that the fragments of some envelopes concatenate to.
#[must_use]
pub fn text_of(events: &[Value]) -> String {
    events
        .iter()
        .filter(|envelope| envelope["event"]["type"] == "text")
        .filter_map(|envelope| envelope["event"]["text"].as_str())
        .collect()
}

/// The types of some envelopes' events, in order.
#[must_use]
pub fn types_of(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|envelope| envelope["event"]["type"].as_str())
        .collect()
}
