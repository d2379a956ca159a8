//! What happens when a login token has expired.

use ade_tests::rpc::{text_of, types_of};
use ade_tests::turns::of_type;
use serde_json::json;

use super::{REPLAY, error, file, flags, goes_on, heard, standing, started, status, users};

const RECONNECTS: &str =
    "[providers.scripted]\nrecovery = \"replay\"\nstale_token = \"reconnect\"\n";

/// What the agent says of an expired token, in part: never shown to anybody.
const RAW: &str = "logging out";

#[test]
fn r07_an_expired_token_before_any_event_is_met_without_a_word() {
    let (ade, _, chat) = started(RECONNECTS);
    ade.turn(&chat, "hello");
    let first = file(&ade, &chat);
    let prompt = "!stale-token-once\n\n  !emit sp  \u{e4}  ced\n\n";
    let events = heard(&ade, &chat, prompt);
    let kinds = ["user_message", "status", "text", "status", "done"];
    assert_eq!(types_of(&events), kinds, "nothing else: {events:?}");
    assert_eq!(status(&events), "completed");
    assert_eq!(ade.session(&chat)["generation"], 2);
    // The same agent got the same bytes: they stand in its file once.
    assert_eq!(file(&ade, &chat), first);
    assert_eq!(users(&first), ["hello", prompt]);
    assert!(ade.files_with(RAW).is_empty());
    goes_on(&ade, &chat);
    assert_eq!(ade.session(&chat)["generation"], 2);
}

#[test]
fn r08_an_expired_token_after_an_event_lets_the_agent_go_on() {
    let (ade, mut rpc, chat) = started(RECONNECTS);
    let prompt = "!emit half, \n!stale-token-once";
    let events = heard(&ade, &chat, prompt);
    assert_eq!(status(&events), "completed", "{events:?}");
    let signs = of_type(&events, "activity");
    assert_eq!(signs, [json!({"type": "activity", "text": "reconnecting"})]);
    assert!(of_type(&events, "notice").is_empty() && of_type(&events, "error").is_empty());
    // The agent was told something else than the message, and it is its own.
    let said = users(&file(&ade, &chat));
    assert_eq!((said.len(), said[0].as_str()), (2, prompt));
    assert!(
        said[1].contains("Continue exactly where you stopped"),
        "{said:?}"
    );
    assert_eq!(text_of(&events), format!("half,You said: {}", said[1]));
    let kept = ade.checked_transcript(&chat);
    assert_eq!(of_type(&kept, "user_message").len(), 1);
    assert!(of_type(&kept, "activity").is_empty(), "never kept");
    let queue = rpc.call("chat.queue", json!({"sessionId": chat}));
    assert_eq!(queue["messages"], json!([]));
    goes_on(&ade, &chat);
}

#[test]
fn a_second_expired_token_is_one_error_in_our_words() {
    let (ade, _, chat) = started(RECONNECTS);
    ade.turn(&chat, "hello");
    let first = file(&ade, &chat);
    let events = heard(&ade, &chat, "!stale-token");
    assert_eq!(status(&events), "failed");
    assert_eq!(of_type(&events, "error").len(), 1);
    assert!(of_type(&events, "notice").is_empty(), "{events:?}");
    let error = error(&events);
    assert_eq!(error["category"], "auth");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("sign in again"), "{message}");
    let detail = error["detail"].as_str().unwrap_or_default();
    let mut lines = detail.lines();
    assert_eq!(lines.next(), Some("kind: stale_token"));
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with("request id: req_"))
    );
    assert!(ade.files_with(RAW).is_empty(), "{:?}", ade.files_with(RAW));
    assert_eq!(users(&first), ["hello", "!stale-token"], "stands once");
    assert_eq!(ade.session(&chat)["generation"], 2, "no third time");
    goes_on(&ade, &chat);
    assert_eq!(file(&ade, &chat), first, "the same agent all along");
    let code = ade
        .run(&["chat", "send", &chat, "--wait", "!stale-token"])
        .status
        .code();
    assert_eq!(code, Some(6), "like any login that is refused");
}

#[test]
fn r10_an_expired_token_of_an_agent_that_cannot_reconnect_is_an_error_at_once() {
    let (ade, _, chat) = started(REPLAY);
    for prompt in ["!stale-token-once", "!error 401 invalid api key"] {
        let events = heard(&ade, &chat, prompt);
        assert_eq!(status(&events), "failed");
        assert_eq!(error(&events)["category"], "auth");
    }
    assert_eq!(
        ade.session(&chat)["generation"],
        1,
        "no worker was replaced"
    );
    goes_on(&ade, &chat);
}

#[test]
fn an_expired_token_is_met_by_the_next_broker_when_this_one_dies() {
    for (before, planned) in [("", "reconnecting"), ("!emit half\n", "continuing")] {
        let (mut ade, mut rpc, chat) = started(RECONNECTS);
        ade.turn(&chat, "hello");
        // It takes long to leave: time enough for the broker to die.
        let prompt = format!("!ignore-term\n{before}!stale-token-once\n!emit there");
        let (turn, _) = ade.send(&mut rpc, &chat, &prompt);
        ade.wait_state(&chat, "recovering");
        drop(rpc);
        ade.kill_broker();
        assert_eq!(flags(&ade, &chat), (false, true), "the agent stays");
        assert_eq!(standing(&ade, &chat), planned);
        ade.serve();
        let mut rpc = ade.rpc();
        rpc.subscribe(&chat, 0);
        let events = rpc.until_done(&turn);
        assert_eq!(status(&events), "completed", "{events:?}");
        let said = users(&file(&ade, &chat));
        assert_eq!(said[..2], ["hello", prompt.as_str()]);
        assert_eq!(said.len(), if before.is_empty() { 2 } else { 3 });
        let kept = ade.checked_transcript(&chat);
        assert_eq!(of_type(&kept, "user_message").len(), 2);
        for kind in ["notice", "error"] {
            assert!(of_type(&kept, kind).is_empty(), "{kept:?}");
        }
        goes_on(&ade, &chat);
    }
}
