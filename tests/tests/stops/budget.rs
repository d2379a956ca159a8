//! How often an agent may die at its start, and what does not count.

use ade_tests::ade::started;
use ade_tests::turns::{ended, of_turn, of_type};
use serde_json::json;

#[test]
fn a_host_that_dies_at_each_start_is_given_up_until_the_user_says_so() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    for _ in 0..2 {
        let events = ade.turn(&chat, "!crash 9");
        assert_eq!(ended(&events), "failed");
    }
    let info = ade.wait_state(&chat, "failed");
    let generation = info["generation"].as_u64().unwrap();
    let refused = rpc.try_call("chat.send", json!({"sessionId": chat, "prompt": "x"}));
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, "start_budget");
    assert!(
        refused.message.contains("chat reset"),
        "{}",
        refused.message
    );
    rpc.call("chat.reset", json!({"sessionId": chat}));
    ade.goes_on(&chat, generation + 1);
}

#[test]
fn what_is_stopped_on_purpose_is_no_death() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    for _ in 0..4 {
        // A turn that completes would wipe the deaths before it out.
        ade.send(&mut rpc, &chat, "!emit begun\n!hang");
        ade.wait_state(&chat, "streaming");
        rpc.call("chat.stop", json!({"sessionId": chat}));
    }
    ade.goes_on(&chat, 5);
}

#[test]
fn what_is_not_the_agents_fault_does_not_use_its_starts_up() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let lane = ade.lane("lane");
    std::fs::remove_dir_all(&lane).unwrap();
    for _ in 0..4 {
        let events = ade.turn(&chat, "are you there?");
        let errors = of_type(&events, "error");
        assert!(
            errors[0]["message"].as_str().unwrap().contains("lane"),
            "{errors:?}"
        );
    }
    assert_eq!(ade.session(&chat)["state"], "idle");
    std::fs::create_dir_all(&lane).unwrap();
    assert_eq!(ended(&ade.turn(&chat, "are you there?")), "completed");
}

#[test]
fn a_chat_that_was_given_up_is_so_for_the_next_broker_until_the_user_says_so() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    for _ in 0..2 {
        assert_eq!(ended(&ade.turn(&chat, "!crash 9")), "failed");
    }
    let reason = ade.wait_state(&chat, "failed")["lastError"].clone();
    drop(rpc);
    assert_eq!(ade.stop_broker(), Some(0));
    ade.serve();
    let mut rpc = ade.rpc();
    let info = ade.session(&chat);
    assert_eq!(
        (&info["state"], &info["lastError"]),
        (&json!("failed"), &reason)
    );
    let refused = rpc.try_call("chat.send", json!({"sessionId": chat, "prompt": "x"}));
    assert_eq!(refused.unwrap_err().kind, "start_budget");
    let retried = rpc.call(
        "chat.send",
        json!({"sessionId": chat, "prompt": "hello", "retry": true}),
    );
    let turn = retried["turnId"].as_str().unwrap();
    let events = of_turn(&ade.wait_done(&chat, turn), turn);
    assert_eq!(ended(&events), "completed");
}

#[test]
fn deaths_are_counted_on_by_the_next_broker() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let die = |ade: &ade_tests::ade::Ade| {
        let events = ade.turn(&chat, "!emit begun\n!crash 9");
        assert_eq!(ended(&events), "failed");
    };
    die(&ade);
    die(&ade);
    drop(rpc);
    ade.kill_broker();
    ade.serve();
    die(&ade);
    let generation = ade.session(&chat)["generation"].clone();
    ade.kill_broker();
    ade.serve();
    // A fourth one is not started.
    let events = ade.turn(&chat, "are you there?");
    assert_eq!(ended(&events), "failed");
    let detail = of_type(&events, "error")[0]["detail"].to_string();
    assert!(detail.contains("start_budget"), "{events:?}");
    let info = ade.wait_state(&chat, "failed");
    assert_eq!(info["generation"], generation);
    ade.rpc().call("chat.reset", json!({"sessionId": chat}));
    ade.kill_broker();
    ade.serve();
    let events = ade.turn(&chat, "are you there?");
    assert_eq!(
        ended(&events),
        "completed",
        "what was forgiven is forgotten"
    );
}
