//! Another permission mode: on disk at once, in force from the next turn on, with
//! a new worker that never meets the old one.

use std::fs;
use std::time::Instant;

use ade_tests::ade::{Ade, is_alive, started, wait_dead};
use ade_tests::cards::yes;
use ade_tests::rpc::{Rpc, RpcFailure, text_of};
use ade_tests::turns::{ended, of_turn, of_type};
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

/// A gated call of `bash`.
const GATED: &str = "!card Run it? | touch x | bash\n!emit went on";

fn chat(ade: &Ade, rpc: &mut Rpc) -> String {
    ade.chat(rpc, "scripted", &ade.lane("lane"), json!({}))
}

fn permit(rpc: &mut Rpc, chat: &str, mode: &str) -> Value {
    let arguments = json!({"sessionId": chat, "permission": mode});
    rpc.call("chat.permission", arguments)
}

/// Sends a message that asks, and answers it.
fn asked(ade: &Ade, rpc: &mut Rpc, chat: &str, word: &str) -> Vec<Value> {
    let (turn, after) = ade.send(rpc, chat, GATED);
    let mut watch = ade.rpc();
    watch.subscribe(chat, after);
    let card = watch.card();
    rpc.answer(&card, &yes(word)).unwrap();
    watch.until_done(&turn)
}

#[test]
fn a_new_worker_comes_after_the_old_one_has_cleaned_up_and_never_meets_it() {
    let ade = Ade::new();
    let root = ade.root().display().to_string();
    // A shell around each host writes down when it began and ended, and whether
    // an older worker was there when it began. The host itself is deaf to polite
    // words and takes its time on SIGTERM.
    let script = format!(
        "for old in $(cat {root}/workers); do [ -d /proc/$old ] && echo meets >> {root}/log; done; \
         echo $PPID >> {root}/workers; trap : TERM; echo begins >> {root}/log; \
         '{agent}' 'clean-up 1500 {root}/cleaned'; echo ends >> {root}/log",
        agent = env!("CARGO_BIN_EXE_fake-agent"),
    );
    let config = format!(
        "[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n\
         dispose_grace_ms = 300\nterm_to_kill_ms = 10000\n[worker]\neof_grace_ms = 300\n"
    );
    fs::write(ade.root().join("workers"), "").unwrap();
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = chat(&ade, &mut rpc);
    assert_eq!(ended(&ade.turn(&chat, "emit one")), "completed");
    let (first, file) = (ade.worker_of(&chat), ade.session_file(&chat));
    let since = Instant::now();
    assert_eq!(permit(&mut rpc, &chat, "plan")["permission"], "plan");
    assert_eq!(ended(&ade.turn(&chat, "emit two")), "completed");
    assert!(
        since.elapsed().as_millis() >= 1500,
        "the next turn did not wait for the clean-up"
    );
    assert!(ade.root().join("cleaned").exists());
    assert!(!is_alive(first));
    let info = ade.session(&chat);
    assert_eq!(info["generation"], 2);
    assert_eq!(info["leaseHeld"], true);
    assert_eq!(ade.session_file(&chat), file, "the same session file");
    let log = fs::read_to_string(ade.root().join("log")).unwrap();
    assert_eq!(log, "begins\nends\nbegins\n");
    let notices = of_type(&ade.checked_transcript(&chat), "notice");
    assert_eq!(notices[0]["message"], "The permission is plan.");
}

#[test]
fn many_changes_in_a_row_cost_one_worker_and_none_costs_none() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    // Nothing runs: it is a word in the database.
    permit(&mut rpc, &chat, "edit");
    assert_eq!(ended(&ade.turn(&chat, "one")), "completed");
    assert_eq!(ade.births(&chat), 1);
    let before = ade.worker_of(&chat);
    for _ in 0..3 {
        permit(&mut rpc, &chat, "edit");
        assert_eq!(ended(&ade.turn(&chat, "again")), "completed");
    }
    assert_eq!(ade.worker_of(&chat), before, "the same mode again");
    for mode in ["plan", "default", "full-auto", "edit", "default", "plan"] {
        permit(&mut rpc, &chat, mode);
    }
    let events = ade.turn(&chat, "!recall");
    assert!(text_of(&events).contains("one"), "the same session file");
    assert_eq!(ade.births(&chat), 2);
    assert!(!is_alive(before));
    // A broker that comes later knows it too.
    let mut ade = ade;
    ade.stop_broker();
    ade.serve();
    assert_eq!(ade.session(&chat)["permission"], "plan");
}

#[test]
fn a_running_turn_ends_as_it_began_and_the_queue_goes_on_with_another_worker() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    let (turn, after) = ade.send(&mut rpc, &chat, GATED);
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    let card = watch.card();
    let (second, _) = ade.send(&mut rpc, &chat, "!recall");
    let first = ade.worker_of(&chat);
    let info = permit(&mut rpc, &chat, "full-auto");
    assert_eq!(
        (&info["permission"], &info["generation"]),
        (&json!("full-auto"), &json!(1))
    );
    assert_eq!(info["state"], "awaiting_card", "the card stays open");
    rpc.answer(&card, &yes("allow")).unwrap();
    watch.until_done(&second);
    let lines = ade.checked_transcript(&chat);
    let events = of_turn(&lines, &turn);
    assert_eq!(ended(&events), "completed");
    assert_eq!(text_of(&events), "went on");
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], true);
    let notice = of_type(&lines, "notice")[0]["message"].clone();
    assert_eq!(notice, "The permission is full-auto from the next turn on.");
    let generations = |turn: &str| -> Vec<u64> {
        let lines = of_turn(&lines, turn);
        let all = lines
            .iter()
            .filter_map(|line| line["origin"]["generation"].as_u64());
        all.collect()
    };
    assert!(generations(&turn).iter().all(|generation| *generation == 1));
    assert!(
        generations(&second)
            .iter()
            .all(|generation| *generation == 2)
    );
    assert!(text_of(&of_turn(&lines, &second)).contains("!card"));
    assert!(!is_alive(first));
    assert_eq!(ade.births(&chat), 2);
}

#[test]
fn what_was_allowed_for_the_session_is_forgotten_also_when_the_mode_is_the_same_again() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    let there_and_back = |rpc: &mut Rpc| {
        for mode in ["edit", "default"] {
            permit(rpc, &chat, mode);
        }
    };
    asked(&ade, &mut rpc, &chat, "allow_session");
    let again = ade.turn(&chat, GATED);
    assert_eq!(of_type(&again, "card_opened").len(), 0, "it is remembered");
    there_and_back(&mut rpc);
    let events = asked(&ade, &mut rpc, &chat, "allow_session");
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], true);

    // The same in the middle of a turn that has a worker which remembers.
    let (turn, after) = ade.send(&mut rpc, &chat, &format!("!ask Go on? | yes, no\n{GATED}"));
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    let card = watch.card();
    there_and_back(&mut rpc);
    rpc.answer(&card, &yes("yes")).unwrap();
    let events = watch.until_done(&turn);
    assert_eq!(of_type(&events, "card_opened").len(), 0, "as it began");
    let events = asked(&ade, &mut rpc, &chat, "deny");
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], false);
    assert_eq!(ade.births(&chat), 3);
}

#[test]
fn a_broker_that_was_killed_after_a_change_leaves_it_to_the_next_one() {
    let (mut ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    let (turn, after) = ade.send(&mut rpc, &chat, GATED);
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    let card = watch.card();
    let first = ade.worker_of(&chat);
    permit(&mut rpc, &chat, "edit");
    ade.kill_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    wait_true("the worker is taken over", || {
        ade.session(&chat)["workerPid"] == first
    });
    assert_eq!(ade.session(&chat)["permission"], "edit");
    wait_true("the answer is taken", || {
        rpc.answer(&card, &yes("allow")).is_ok()
    });
    let events = of_turn(&ade.wait_done(&chat, &turn), &turn);
    assert_eq!(ended(&events), "completed");
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], true);
    wait_dead(first);
    assert_eq!(ended(&ade.turn(&chat, "next")), "completed");
    assert_eq!(ade.births(&chat), 2);
}

/// The last broker died between the database and the worker, so the worker that
/// is taken over is not one that fits.
#[test]
fn an_idle_worker_of_another_mode_is_not_taken_over_for_the_next_turn() {
    let (mut ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    asked(&ade, &mut rpc, &chat, "allow_session");
    let first = ade.worker_of(&chat);
    ade.kill_broker();
    let db = rusqlite::Connection::open(ade.home().join("state.db")).unwrap();
    let sql = "UPDATE sessions SET policy = policy + 1";
    assert_eq!(db.execute(sql, []).unwrap(), 1);
    drop(db);
    ade.serve();
    let mut rpc = ade.rpc();
    asked(&ade, &mut rpc, &chat, "deny");
    assert_eq!(ade.births(&chat), 2);
    assert!(!is_alive(first));
}

/// A worker that fits is kept over a broker, with what it remembers.
#[test]
fn a_worker_of_the_same_mode_is_kept_over_a_broker() {
    let (mut ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    permit(&mut rpc, &chat, "edit");
    permit(&mut rpc, &chat, "default");
    asked(&ade, &mut rpc, &chat, "allow_session");
    ade.kill_broker();
    ade.serve();
    let again = ade.turn(&chat, GATED);
    assert_eq!(of_type(&again, "card_opened").len(), 0);
    assert_eq!(ade.births(&chat), 1);
}

#[test]
fn a_change_while_a_worker_starts_is_in_force_before_anything_is_sent() {
    let ade = Ade::new();
    let go = ade.root().join("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.02; done; exec '{}'",
        go.display(),
        env!("CARGO_BIN_EXE_fake-agent"),
    );
    let config =
        format!("[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n");
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = chat(&ade, &mut rpc);
    let (turn, _) = ade.send(&mut rpc, &chat, "emit x");
    wait_true("the worker starts", || ade.births(&chat) == 1);
    for mode in ["plan", "edit"] {
        permit(&mut rpc, &chat, mode);
    }
    fs::write(&go, "").unwrap();
    let lines = ade.wait_done(&chat, &turn);
    let events = of_turn(&lines, &turn);
    assert_eq!(ended(&events), "completed");
    let text = events.iter().find(|line| line["event"]["type"] == "text");
    assert_eq!(text.expect("a text")["origin"]["generation"], 2);
    assert_eq!(ade.births(&chat), 2);
    let _ = ade.checked_transcript(&chat);
}

#[test]
fn the_command_changes_it_and_the_lists_tell_it() {
    let (ade, mut rpc) = started("");
    let chat = chat(&ade, &mut rpc);
    let (_, said) = ade.expect_code(0, &["chat", "permission", &chat, "full-auto"]);
    assert_eq!(said.trim(), "the permission is full-auto");
    let (table, _) = ade.expect_code(0, &["ps"]);
    assert!(
        table.contains("MODE") && table.contains("full-auto"),
        "{table}"
    );
    let info = ade.json(&["chat", "permission", &chat, "plan"]);
    assert_eq!(info["permission"], "plan");
    let shown = ade.json(&["chat", "show", &chat]);
    assert_eq!(shown["session"]["permission"], "plan");
    let (_, about) = ade.expect_code(0, &["chat", "show", &chat]);
    assert!(about.contains("permission plan"), "{about}");
    ade.expect_code(2, &["chat", "permission", &chat, "everything"]);
    let unknown = json!({"sessionId": chat, "permission": "everything"});
    let refused: RpcFailure = rpc.try_call("chat.permission", unknown).unwrap_err();
    assert_eq!(refused.kind, "invalid");
    let nobody = json!({"sessionId": "ses_x", "permission": "plan"});
    assert_eq!(
        rpc.try_call("chat.permission", nobody).unwrap_err().kind,
        "not_found"
    );
}
