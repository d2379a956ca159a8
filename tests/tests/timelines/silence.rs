//! Case F: agents that fall silent, and what is no silence.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ade_tests::ade::{Ade, is_alive, report, started};
use ade_tests::rpc::text_of;
use ade_tests::turns::{lease_file, of_type};
use ade_tests::wait::{PATIENCE, wait_true};
use serde_json::json;

use super::play::{config, play};
use super::status;

#[test]
fn f01_a_silent_agent_is_replaced_once_and_never_asked_a_third_time() {
    let play = play("F01", 100, &config(100));
    let events = play.turn("t1");
    assert_eq!(status(&events), "failed");
    assert_eq!(
        (
            of_type(&events, "notice").len(),
            of_type(&events, "error").len()
        ),
        (1, 1)
    );
    assert_eq!(of_type(&events, "user_message").len(), 1);
    assert_eq!(play.generation(), 2, "one recycle, one resend");
    play.goes_on();
}

#[test]
fn a_wedge_costs_one_deadline_and_the_replacements_start() {
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 1_500);
    let deadline = Duration::from_millis(1_500);
    let timed = |prompt: &str| {
        let begin = Instant::now();
        let events = ade.turn(&chat, prompt);
        assert_eq!(status(&events), "completed", "{events:?}");
        begin.elapsed()
    };
    let start = timed("a cold start and a turn");
    let warm = timed("a turn alone");
    let wedged = timed("!hang-once\n!emit done");
    report(&format!(
        "a wedge: {wedged:?} with a deadline of {deadline:?}; a cold turn {start:?}, a warm one {warm:?}"
    ));
    assert!(wedged >= deadline, "{wedged:?}");
    // The old worker's leave and the new one's start are each about as long as a
    // cold turn; three of them are room for a loaded machine.
    assert!(
        wedged < deadline + 5 * start,
        "{wedged:?} {deadline:?} {start:?}"
    );
    rpc.call("chat.stop", json!({"sessionId": chat}));
}

#[test]
fn f03_a_long_silent_tool_is_no_hang() {
    let play = play("F03", 300, &config(300));
    let events = play.turn("t1");
    assert_eq!(status(&events), "completed");
    assert_eq!((play.generation(), of_type(&events, "error").len()), (1, 0));
    for notice in of_type(&events, "notice") {
        let text = notice["message"].as_str().expect("a text");
        assert!(text.starts_with("no output since"), "{text}");
    }
    assert_eq!(
        of_type(&events, "notice").len(),
        1,
        "told once for the whole silence"
    );
    play.goes_on();
}

#[test]
fn f04_an_event_of_the_turn_counts_and_a_heartbeat_without_a_turn_does_not() {
    let slow = play("F04", 100, &config(100));
    let events = slow.turn("t1");
    assert_eq!(
        (status(&events), text_of(&events).as_str()),
        ("completed", "hi")
    );
    assert_eq!(slow.generation(), 1);
    drop(slow);

    let (ade, mut rpc) = started(&config(100));
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let beats = "!turnless\n!delay 100\n".repeat(20);
    let events = ade.turn(&chat, &format!("{beats}!emit late"));
    assert_eq!(status(&events), "failed", "{events:?}");
    assert_eq!(ade.session(&chat)["generation"], 2);
}

#[test]
fn f08_deadlines_do_not_follow_the_wall_clock() {
    let Some((ade, clock)) = with_a_clock_of_its_own() else {
        return;
    };
    let mut rpc = ade.rpc();
    for jump in ["7200", "-7200"] {
        let chat = ade.scripted_chat(&mut rpc, 1_000);
        let begin = Instant::now();
        let (turn, after) = ade.send(&mut rpc, &chat, "!hang-once\n!emit done");
        ade.wait_state(&chat, "awaiting_first_event");
        let before = ade.session(&chat)["lastEventAt"].clone();
        std::fs::write(&clock, jump).expect("the jump");
        let mut watcher = ade.rpc();
        watcher.subscribe(&chat, after);
        let events = watcher.until_done(&turn);
        assert_eq!(status(&events), "completed");
        assert_eq!(
            of_type(&events, "notice").len(),
            1,
            "one recycle: {events:?}"
        );
        assert!(begin.elapsed() >= Duration::from_secs(1), "not at once");
        assert!(begin.elapsed() < PATIENCE, "not never");
        assert_ne!(ade.session(&chat)["lastEventAt"], before);
        std::fs::write(&clock, "0").expect("the jump");
    }
}

/// A broker whose wall clock is set by a file, where a C compiler is there to
/// make that possible.
fn with_a_clock_of_its_own() -> Option<(Ade, PathBuf)> {
    const SHIM: &str = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <time.h>
        int clock_gettime(clockid_t id, struct timespec *out) {
            static int (*real)(clockid_t, struct timespec *);
            if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
            int result = real(id, out);
            const char *path = getenv("CLOCK_OFFSET_FILE");
            if (id == CLOCK_REALTIME && path) {
                FILE *file = fopen(path, "r");
                long offset = 0;
                if (file) { if (fscanf(file, "%ld", &offset) != 1) offset = 0; fclose(file); }
                out->tv_sec += offset;
            }
            return result;
        }"#;
    let ade = Ade::new();
    let clock = ade.root().join("offset");
    std::fs::write(&clock, "0").expect("the offset");
    let shim = ade_tests::shim::compiled(ade.root(), SHIM)?;
    let mut ade = ade
        .with_env("LD_PRELOAD", &shim.display().to_string())
        .with_env("CLOCK_OFFSET_FILE", &clock.display().to_string());
    ade.serve();
    Some((ade, clock))
}

#[test]
fn f11_a_turn_that_fell_silent_is_shown_and_can_be_ended() {
    let mut play = play("F11", 400, &config(400));
    let events = play.turn("t1");
    assert_eq!(
        (status(&events), text_of(&events).as_str()),
        ("interrupted", "a")
    );
    assert_eq!(play.generation(), 1, "never sent again");
    let notices = of_type(&events, "notice");
    assert_eq!(notices.len(), 1, "{events:?}");
    let text = notices[0]["message"].as_str().expect("a text");
    assert!(text.starts_with("no output since"), "{text}");
    play.goes_on();
    // And while it is silent, `ps` shows it.
    let asked = json!({"sessionId": play.chat, "prompt": "!emit a\n!hang"});
    play.client("client:a").call("chat.send", asked);
    wait_true("it is shown", || play.info()["quietSince"].is_string());
    let (table, _) = play.ade.expect_code(0, &["ps"]);
    assert!(table.contains("(quiet)"), "{table}");
}

#[test]
fn f12_a_turn_is_over_when_it_says_so_and_the_lease_when_the_process_is() {
    let (ade, mut rpc) = started("");
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let events = ade.turn(&chat, "!ignore-term\n!emit done");
    assert_eq!(status(&events), "completed");
    let info = ade.session(&chat);
    assert_eq!(
        (&info["state"], &info["leaseHeld"]),
        (&json!("idle"), &json!(true))
    );
    let (worker, host) = (ade.worker_of(&chat), ade.host_of(&chat));
    let lease = lease_file(&ade.session_file(&chat));
    assert!(lease.exists());
    let stopping = {
        let (mut rpc, chat) = (ade.rpc(), chat);
        std::thread::spawn(move || rpc.call("chat.stop", json!({"sessionId": chat})))
    };
    wait_true("the lease is free", || !lease.exists());
    assert!(!is_alive(host), "not before the host is dead");
    stopping.join().expect("the stop");
    assert!(!is_alive(worker));
}

#[test]
fn f14_an_agent_without_progress_has_a_limit_of_its_own() {
    let silent = "[providers.scripted]\nprogress = \"none\"\n";
    let play = play("F14", 100, silent);
    let events = play.turn("t1");
    assert_eq!(
        (status(&events), text_of(&events).as_str()),
        ("completed", "all of it")
    );
    assert_eq!(play.generation(), 1);
    let lane = play.ade.lane("two").display().to_string();
    let asked = json!({"provider": "scripted", "lane": lane, "firstEventMs": 900});
    let refused = play.ade.rpc().try_call("chat.create", asked);
    assert_eq!(
        refused
            .expect_err("it would be replaced while healthy")
            .kind,
        "invalid"
    );
    drop(play);
    // Both rules at once are refused by name.
    let ade = Ade::new().with_config(&format!("{silent}first_event_ms = 900\n"));
    let (_, said) = ade.expect_code(2, &["serve"]);
    assert!(
        said.contains("first_event_ms") && said.contains("progress"),
        "{said}"
    );
}
