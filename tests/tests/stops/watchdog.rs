//! Agents that say nothing, die or talk nonsense in a turn: it is sent again at
//! most once, and only when nothing of it was seen.

use ade_tests::ade::started;
use ade_tests::rpc::text_of;
use ade_tests::turns::{ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::json;

use super::notices;

#[test]
fn a_silent_worker_is_replaced_once_and_the_message_is_sent_again_once() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 700);
    let events = ade.turn(&chat, "!hang-once\n!emit here I am");
    assert_eq!(ended(&events), "completed");
    assert_eq!(text_of(&events), "here I am");
    let notices = notices(&events);
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("stopped responding"), "{notices:?}");
    assert!(notices[0].contains("again"), "{notices:?}");
    assert_eq!(of_type(&events, "user_message").len(), 1);
    assert_eq!(of_type(&events, "error").len(), 0);
    ade.goes_on(&chat, 2);
}

#[test]
fn after_a_second_silence_there_is_one_error_and_never_a_third_send() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 700);
    let (turn, after) = ade.send(&mut rpc, &chat, "!hang");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    watch.event("the notice", |e| e["event"]["type"] == "notice");
    wait_true("the message was sent again", || ade.sends(&chat) == 2);
    watch.until_done(&turn);
    let events = of_turn(&ade.checked_transcript(&chat), &turn);
    assert_eq!(ended(&events), "failed");
    assert_eq!(notices(&events).len(), 1);
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["category"], "timed_out");
    let message = errors[0]["message"].as_str().unwrap();
    assert!(message.contains("sent twice"), "{message}");
    assert_eq!(ade.session(&chat)["generation"], 2);
    ade.goes_on(&chat, 3);
}

#[test]
fn a_host_that_dies_before_a_word_is_replaced_and_the_reason_is_told() {
    for (step, reason) in [("!crash-once 3", "exit code 3"), ("!kill-once", "SIGKILL")] {
        let (ade, mut rpc) = started("");
        let chat = ade.scripted_chat(&mut rpc, 60_000);
        let events = ade.turn(&chat, &format!("{step}\n!emit back"));
        assert_eq!(
            (ended(&events), text_of(&events).as_str()),
            ("completed", "back")
        );
        let notices = notices(&events);
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].contains(reason), "{notices:?}");
        assert_eq!(of_type(&events, "error").len(), 0);
        ade.goes_on(&chat, 2);
    }
}

#[test]
fn j09_a_host_that_dies_in_mid_turn_fails_it_at_once_with_exit_code_and_last_words() {
    let (ade, mut rpc) = started("");
    let other = ade.scripted_chat(&mut rpc, 60_000);
    let (untouched, after) = ade.send(&mut rpc, &other, "!words 1000000 50");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let events = ade.turn(&chat, "!emit half an answ\n!stderr 300\n!crash 7");
    assert_eq!(
        (ended(&events), text_of(&events).as_str()),
        ("failed", "half an answ")
    );
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["category"], "exited");
    assert!(
        errors[0]["message"]
            .as_str()
            .unwrap()
            .contains("exit code 7"),
        "{errors:?}"
    );
    let detail = errors[0]["detail"].as_str().unwrap();
    assert!(detail.contains("noise on standard error"), "{detail}");
    // Something was seen: the message is never sent again.
    assert_eq!(notices(&events).len(), 0);
    assert_eq!(ade.session(&chat)["generation"], 1);
    ade.goes_on(&chat, 2);

    let mut watch = ade.rpc();
    watch.subscribe(&other, after);
    watch.event("the other chat streams", |e| e["event"]["type"] == "text");
    assert_eq!(ade.session(&other)["generation"], 1);
    rpc.call("chat.abort", json!({"sessionId": other}));
    watch.until_done(&untouched);
}

#[test]
fn half_a_frame_and_too_much_nonsense_end_the_turn_once() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let events = ade.turn(&chat, "!emit one\n!half");
    assert_eq!(
        (ended(&events), text_of(&events).as_str()),
        ("failed", "one")
    );
    assert_eq!(of_type(&events, "error").len(), 1);
    ade.goes_on(&chat, 2);
    let events = ade.turn(&chat, "!emit one\n!malformed 25\n!hang");
    assert_eq!(ended(&events), "failed");
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["category"], "protocol");
    ade.goes_on(&chat, 3);
}
