//! The handed timelines of cases F and G on the real broker with the scripted
//! agent.

use serde_json::Value;

mod cards;
mod play;
mod replacements;
mod silence;

/// How the only terminal event of some events ended its turn.
fn status(events: &[Value]) -> &str {
    let done = |envelope: &&Value| envelope["event"]["type"] == "done";
    let all: Vec<&Value> = events.iter().filter(done).collect();
    assert_eq!(all.len(), 1, "exactly one terminal event: {events:?}");
    all[0]["event"]["status"].as_str().expect("a status")
}
