//! What a worker sees to itself when its host asks: who is told what, and when.

mod common;

use common::{Rig, shell, timing};
use serde_json::{Value, json};

/// The words of a host: `frame TYPE-AND-FIELDS`, `card ID TURN KIND`.
const WORDS: &str = r#"
frame() { printf '{"protocolVersion":2,"type":%s}\n' "$1"; }
card() { frame "\"ui_request\",\"requestId\":\"$1\",\"turnId\":\"$2\",\"payload\":{\"origin\":\"tool\",\"kind\":\"$3\",\"message\":\"?\"}"; }
end() { frame "\"response\",\"requestId\":\"send-t1\",\"ok\":true,\"result\":{\"status\":\"$1\"}"; }
denied() { read -r line; case "$line" in *'"ok":false'*) ;; *) echo "heard $line" >&2; exit 9;; esac; }
read -r line
frame '"ready","ready":{"protocolVersion":2,"provider":"x","version":"1"}'
read -r line
"#;

async fn begun(script: &str) -> (Rig, String) {
    let mut rig = Rig::start(shell(&format!("{WORDS}{script}")), timing());
    rig.ready().await;
    let send = rig.begin("t1", "go").await;
    (rig, send)
}

fn of_type<'a>(rig: &'a Rig, kind: &str) -> Vec<&'a Value> {
    let seen = rig.seen.iter();
    seen.filter(|frame| frame["type"] == kind).collect()
}

#[tokio::test]
async fn an_abort_denies_what_is_open_before_the_turn_ends() {
    let script = "card q1 t1 text; read -r line; denied; end interrupted; cat > /dev/null";
    let (mut rig, send) = begun(script).await;
    rig.card().await;
    rig.abort("t1").await;
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "interrupted", "{end}");
    let cancels = of_type(&rig, "ui_cancel");
    assert_eq!(cancels.len(), 1);
    assert_eq!(cancels[0]["requestId"], "q1");
    assert_eq!(rig.stages(), Vec::<String>::new(), "nobody had to end it");
}

#[tokio::test]
async fn the_end_of_a_turn_withdraws_what_it_left_open() {
    let script =
        "card q1 t1 text; read -r line; end completed; denied; echo > denied; cat > /dev/null";
    let (mut rig, send) = begun(script).await;
    rig.card().await;
    // Anything that the host takes for its cue.
    rig.request("models", json!({})).await;
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "completed", "{end}");
    let cancels = of_type(&rig, "ui_cancel");
    assert_eq!(cancels.len(), 1, "withdrawn with the end, not after it");
    let told = rig.dir.path().join("denied");
    common::wait_until("the host is told", || told.exists());
}

#[tokio::test]
async fn a_card_of_another_turn_is_denied_and_shown_to_nobody() {
    let script = "card q9 t9 text; denied; end completed; cat > /dev/null";
    let (mut rig, send) = begun(script).await;
    let end = rig.response(&send).await;
    assert_eq!(end["result"]["status"], "completed", "{end}");
    assert_eq!(of_type(&rig, "ui_request").len(), 0);
}

#[tokio::test]
async fn a_secret_that_was_answered_is_in_no_last_words() {
    let script = "card q1 t1 secret; read -r line; echo \"it said $line\" >&2; exit 3";
    let (mut rig, send) = begun(script).await;
    let card = rig.card().await;
    rig.answer(&card, true, "correct horse battery").await;
    let end = rig.response(&send).await;
    assert_eq!(end["errorCode"], "host_exited");
    let told = end["detail"]["stderr"].as_str().unwrap();
    assert!(told.contains("it said"), "{told}");
    for frame in &rig.seen {
        assert!(!frame.to_string().contains("horse"), "{frame}");
    }
}

/// A host that never answers an abort: the turn's own end is the answer, and the
/// next turn is not held to it.
#[tokio::test]
async fn an_abort_that_nobody_answers_ends_with_its_turn() {
    let script = "read -r line; end completed; cat > /dev/null";
    let (mut rig, send) = begun(script).await;
    let abort = rig.abort("t1").await;
    assert_eq!(rig.response(&send).await["result"]["status"], "completed");
    assert_eq!(rig.response(&abort).await["ok"], true);
    rig.dispose().await;
    rig.exits_in_order();
}
