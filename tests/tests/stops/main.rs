//! Silence, crashes, stops and kills: every turn ends once, a message is sent
//! at most twice, and nothing that a session started stays alive.

use ade_tests::turns::of_type;
use serde_json::Value;

mod aborts;
mod budget;
mod kills;
mod orderly;
mod watchdog;

/// The messages of the notices.
fn notices(events: &[Value]) -> Vec<String> {
    let notices = of_type(events, "notice");
    let text = notices.iter().map(|n| n["message"].as_str().unwrap());
    text.map(str::to_owned).collect()
}
