//! What a chaos run is made of: chance that can be repeated, and a client that
//! expects nothing of its broker.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// How long a broker is waited for. One that was stopped, or dies, is no
/// reason to wait.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// Numbers that look like chance and are the same for the same seed
/// (splitmix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 for 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or_default()
    }

    /// One of some things.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let index = self.below(all.len() as u64);
        all.get(usize::try_from(index).ok()?)
    }
}

/// Calls one action over a connection of its own. `None`: the broker is not
/// there, is gone meanwhile, does not answer, or refuses.
#[must_use]
pub fn call(socket: &Path, action: &str, arguments: &Value) -> Option<Value> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let mut lines = BufReader::new(stream.try_clone().ok()?);
    let hello = json!({"protocolVersion": 2, "clientName": "chaos"});
    let wanted = json!({"name": action, "arguments": arguments});
    let calls = [
        (1, "ade/initialize", hello),
        (2, "ade/actions/call", wanted),
    ];
    let mut result = None;
    for (id, method, params) in calls {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        (&stream)
            .write_all(format!("{request}\n").as_bytes())
            .ok()?;
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        let answer: Value = serde_json::from_str(&line).ok()?;
        result = answer.get("result").cloned();
    }
    result
}

/// A number from the environment.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
