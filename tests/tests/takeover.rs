//! A broker that dies or hands over, at every moment of a turn: the next one
//! goes on as if nothing had happened.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, signal, started, wait_dead};
use ade_tests::cards::yes;
use ade_tests::commands::like;
use ade_tests::rpc::{text_of, types_of};
use ade_tests::turns::{dones, ended, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_until, wait_within};
use serde_json::{Value, json};

/// What `!words N` says.
fn words(count: u64) -> String {
    (1..=count).map(|index| format!("word{index} ")).collect()
}

fn has_said(lines: &[Value], turn: &str, bytes: usize) -> bool {
    text_of(&of_turn(lines, turn)).len() >= bytes
}

/// The turn as it is on disk, after the transcript was checked as a whole.
#[track_caller]
fn finished(ade: &Ade, chat: &str, turn: &str) -> Vec<Value> {
    ade.wait_done(chat, turn);
    let events = of_turn(&ade.checked_transcript(chat), turn);
    assert_eq!(types_of(&events)[..2], ["user_message", "status"]);
    assert_eq!(of_type(&events, "user_message").len(), 1);
    events
}

/// The turn ended as if nothing had happened, and said exactly this.
#[track_caller]
fn nothing_happened(ade: &Ade, chat: &str, turn: &str, text: &str) {
    let events = finished(ade, chat, turn);
    assert_eq!(ended(&events), "completed", "{events:?}");
    assert_eq!(text_of(&events), text);
    assert_eq!(of_type(&events, "error").len(), 0);
    assert_eq!(of_type(&events, "notice").len(), 0);
}

#[test]
fn many_streaming_turns_go_on_word_by_word() {
    let (mut ade, mut rpc) = started("");
    let turns: Vec<(String, String)> = (0..6)
        .map(|_| {
            let chat = ade.scripted_chat(&mut rpc, 60_000);
            let (turn, _) = ade.send(&mut rpc, &chat, "!words 200 10");
            (chat, turn)
        })
        .collect();
    for (chat, turn) in &turns {
        ade.wait_transcript(chat, "words", |lines| has_said(lines, turn, 100));
    }
    let workers: Vec<_> = (turns.iter())
        .map(|(chat, _)| ade.session(chat)["workerPid"].clone())
        .collect();
    ade.kill_broker();
    ade.serve();
    for ((chat, turn), worker) in turns.iter().zip(workers) {
        nothing_happened(&ade, chat, turn, &words(200));
        assert_eq!(ade.session(chat)["workerPid"], worker, "the same worker");
        ade.goes_on(chat, 1);
    }
}

#[test]
fn a_flood_that_nobody_read_arrives_whole() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!events 20000 100");
    ade.wait_transcript(&chat, "a beginning", |lines| has_said(lines, &turn, 100));
    ade.kill_broker();
    ade.serve();
    nothing_happened(&ade, &chat, &turn, &"x".repeat(2_000_000));
}

#[test]
fn five_brokers_die_in_one_turn() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 400 10");
    for round in 1..=5_usize {
        ade.wait_transcript(&chat, "more words", |lines| {
            has_said(lines, &turn, round * 200)
        });
        ade.kill_broker();
        ade.serve();
        assert_eq!(dones(&ade.transcript(&chat)).len(), 0);
    }
    nothing_happened(&ade, &chat, &turn, &words(400));
    ade.goes_on(&chat, 1);
}

#[test]
fn a_turn_that_ended_while_no_broker_was_there_has_its_end() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 40 10\n!emit over");
    ade.wait_transcript(&chat, "words", |lines| has_said(lines, &turn, 20));
    let file = ade.session_file(&chat);
    ade.kill_broker();
    // The agent has written its answer to the session file: its turn is over.
    wait_true("the turn ends", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains("over"))
    });
    ade.serve();
    nothing_happened(&ade, &chat, &turn, &format!("{}over", words(40)));
}

#[test]
fn open_cards_keep_their_id_and_their_answer_counts() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, after) = ade.send(&mut rpc, &chat, "!card Run it? | ls\n!emit and on");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    let card = watch.card();
    ade.kill_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    // It is there at once, for whoever asks and for whoever answers.
    let open = rpc.call("cards.list", json!({}));
    assert_eq!(open["cards"][0]["cardId"], card.as_str(), "{open}");
    rpc.answer(&card, &yes("allow")).expect("the answer counts");
    let events = finished(&ade, &chat, &turn);
    assert_eq!(ended(&events), "completed");
    assert_eq!(of_type(&events, "card_opened").len(), 1);
    let resolved = of_type(&events, "card_resolved");
    assert_eq!(resolved.len(), 1);
    assert_eq!(resolved[0]["cardId"], card.as_str());
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], true);
    assert_eq!(
        rpc.answer(&card, &yes("allow")).expect_err("late").kind,
        "already_answered"
    );
    ade.goes_on(&chat, 1);
}

#[test]
fn what_was_left_of_the_watchdogs_time_is_left() {
    const FIRST_EVENT: Duration = Duration::from_millis(4_000);
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 4_000);
    let begin = Instant::now();
    let (turn, _) = ade.send(&mut rpc, &chat, "!hang-once\n!emit back");
    ade.wait_state(&chat, "awaiting_first_event");
    wait_true("most of the time passes", || {
        begin.elapsed() > FIRST_EVENT * 3 / 4
    });
    ade.kill_broker();
    ade.serve();
    ade.wait_transcript(&chat, "the recovery", |lines| {
        !of_type(lines, "notice").is_empty()
    });
    let silence = begin.elapsed();
    assert!(silence >= FIRST_EVENT, "barked early: {silence:?}");
    assert!(silence < FIRST_EVENT * 7 / 4, "began anew: {silence:?}");
    let events = finished(&ade, &chat, &turn);
    assert_eq!(
        (ended(&events), text_of(&events).as_str()),
        ("completed", "back")
    );
    ade.goes_on(&chat, 2);
}

#[test]
fn a_recovery_is_finished_by_the_next_broker_and_sends_once_more_at_most() {
    // The worker climbs the whole ladder, which leaves time to kill its broker.
    for stubborn in ["!ignore-term\n", ""] {
        let (mut ade, mut rpc) = started("");
        let chat = ade.scripted_chat(&mut rpc, 500);
        let prompt = format!("{stubborn}!hang-once\n!emit back");
        let (turn, _) = ade.send(&mut rpc, &chat, &prompt);
        // A worker that goes at once is replaced within milliseconds: then the
        // broker is killed a moment behind the recovery.
        wait_true("the turn is recovering, or was", || {
            let session = ade.session(&chat);
            session["state"] == "recovering" || session["generation"].as_u64() > Some(1)
        });
        ade.kill_broker();
        ade.serve();
        let events = finished(&ade, &chat, &turn);
        assert_eq!(ended(&events), "completed", "{events:?}");
        assert_eq!(text_of(&events), "back");
        assert_eq!(of_type(&events, "notice").len(), 1, "{events:?}");
        assert_eq!(of_type(&events, "error").len(), 0);
        let said = std::fs::read_to_string(ade.session_file(&chat)).expect("the session file");
        assert!(said.matches("hang-once").count() <= 2, "{said}");
        // A start that its broker did not live to see is begun again.
        let generation = ade.session(&chat)["generation"].as_u64().expect("a number");
        assert!(generation <= 3, "{generation}");
        ade.goes_on(&chat, generation);
    }
}

#[test]
fn a_start_under_way_is_begun_again() {
    for handover in [false, true] {
        let (mut ade, mut rpc) = started("");
        let chats: Vec<String> = (0..4)
            .map(|_| ade.scripted_chat(&mut rpc, 60_000))
            .collect();
        let turns: Vec<(String, String)> = (chats.iter())
            .map(|chat| (chat.clone(), ade.send(&mut rpc, chat, "!words 20 10").0))
            .collect();
        if handover {
            ade.replace();
        } else {
            ade.kill_broker();
            ade.serve();
        }
        for (chat, turn) in &turns {
            nothing_happened(&ade, chat, turn, &words(20));
        }
    }
}

#[test]
fn a_message_during_a_takeover_goes_to_the_worker_that_was_taken_over() {
    let (mut ade, mut rpc) = started("");
    let chats: Vec<String> = (0..4)
        .map(|_| ade.scripted_chat(&mut rpc, 60_000))
        .collect();
    for chat in &chats {
        ade.turn(chat, "hello");
    }
    ade.kill_broker();
    ade.serve();
    let mut rpc = ade.rpc();
    for chat in &chats {
        let (turn, _) = ade.send(&mut rpc, chat, "!recall");
        nothing_happened(&ade, chat, &turn, "hello");
        assert_eq!(ade.session(chat)["generation"], 1);
    }
}

#[test]
fn a_worker_that_died_with_its_broker_ends_its_turn_once_and_leaves_no_lease() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    let file = ade.session_file(&chat);
    ade.kill_broker();
    signal(tree.worker, Signal::SIGKILL);
    wait_dead(tree.worker);
    ade.serve();
    tree.wait_gone();
    let events = finished(&ade, &chat, &tree.turn);
    assert_eq!(ended(&events), "failed");
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1);
    let message = errors[0]["message"].as_str().expect("a sentence");
    assert!(message.contains("the broker ended"), "{message}");
    assert!(ade.is_free(&file));
    ade.goes_on(&chat, 2);
}

#[test]
fn a_worker_that_dies_while_it_is_taken_over_ends_its_turn_once() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    ade.kill_broker();
    // It lives and cannot answer: it was stopped, not ended.
    signal(tree.worker, Signal::SIGSTOP);
    ade.serve();
    ade.wait_state(&chat, "attaching");
    signal(tree.worker, Signal::SIGKILL);
    let events = finished(&ade, &chat, &tree.turn);
    assert_eq!(ended(&events), "failed");
    assert_eq!(of_type(&events, "error").len(), 1);
    tree.wait_gone();
    ade.goes_on(&chat, 2);
}

#[test]
fn a_worker_that_does_not_come_is_seen_off() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    ade.kill_broker();
    signal(tree.worker, Signal::SIGSTOP);
    ade.serve();
    let events = finished(&ade, &chat, &tree.turn);
    let errors = of_type(&events, "error");
    let message = errors[0]["message"].as_str().expect("a sentence");
    assert!(message.contains("could not be taken over"), "{message}");
    tree.wait_gone();
    ade.goes_on(&chat, 2);
}

#[test]
fn j03_a_worker_of_a_killed_broker_is_the_only_writer_until_it_is_dead() {
    let (mut ade, mut rpc) = started("[worker]\norphan_turn_ms = 4000\n");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    let file = ade.session_file(&chat);
    ade.kill_broker();
    // As long as it lives nobody else gets the file.
    let status = ade.json(&["lease", "status", &file.display().to_string()]);
    assert!(
        status.to_string().contains(&tree.worker.to_string()),
        "{status}"
    );
    assert!(!ade.is_free(&file));
    assert!(is_alive(tree.worker));
    // Without another broker it ends by itself.
    wait_within("the worker ends", Duration::from_secs(12), || {
        tree.alive().is_empty().then_some(())
    });
    assert!(ade.is_free(&file));
    assert_eq!(ade.describe(), Vec::<String>::new());
    ade.serve();
    let events = finished(&ade, &chat, &tree.turn);
    assert_eq!(ended(&events), "failed");
    ade.goes_on(&chat, 2);
}

#[test]
fn an_idle_worker_without_a_broker_ends_by_itself() {
    let (mut ade, mut rpc) = started("[worker]\norphan_idle_ms = 500\n");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&chat, "hello");
    let file = ade.session_file(&chat);
    ade.kill_broker();
    ade.wait_empty(Duration::from_secs(8));
    assert!(ade.is_free(&file));
    // Its journal stays for the next broker, who sees that it is dead.
    ade.serve();
    wait_true("no litter", || ade.litter().is_empty());
    ade.goes_on(&chat, 2);
}

/// A worker is taken over by a broker of the test; what it is told.
fn fake_broker(listener: &UnixListener, fence: u64) -> Value {
    let (stream, _) = listener.accept().expect("a worker");
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("hello");
    let hello: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(hello["type"], "hello", "{hello}");
    let attach = json!({"protocolVersion": 2, "type": "attach", "requestId": "req_1",
        "fence": fence, "ack": 0});
    writeln!(&stream, "{attach}").expect("attach");
    line.clear();
    reader.read_line(&mut line).expect("an answer");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn an_old_broker_is_refused_once_a_newer_one_was_obeyed() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 300 10");
    ade.wait_transcript(&chat, "words", |lines| has_said(lines, &turn, 20));
    ade.kill_broker();
    ade.serve();
    ade.wait_state(&chat, "streaming");
    ade.kill_broker();
    // The fence of the first broker was 1, that of the second 2.
    let path = ade.home().join("run/workers.sock");
    std::fs::remove_file(&path).expect("the old socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let answer = fake_broker(&listener, 1);
    assert_eq!(answer["ok"], false, "{answer}");
    assert_eq!(answer["errorCode"], "stale_fence", "{answer}");
    drop(listener);
    ade.serve();
    nothing_happened(&ade, &chat, &turn, &words(300));
}

#[test]
fn only_who_has_the_token_is_let_in_as_a_worker() {
    use std::io::Read;
    let (ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 100 10");
    ade.wait_transcript(&chat, "words", |lines| has_said(lines, &turn, 20));
    let journals = std::fs::read_dir(ade.home().join("run/workers")).expect("journals");
    let path = (journals.flatten().map(|entry| entry.path())).find(|path| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    let text = std::fs::read_to_string(path.expect("a journal")).expect("a journal");
    let entry: Value = serde_json::from_str(&text).expect("a journal");
    // Everything that is on disk, and a guess at the token.
    let hello = json!({"protocolVersion": 2, "type": "hello", "workerId": entry["workerId"],
        "token": entry["tokenHash"], "sessionKey": chat, "generation": 1, "pid": 1,
        "identity": entry["identity"], "provider": "scripted", "lastSeq": 0,
        "state": {"seenEvent": false, "openCards": [], "leaseHeld": true, "fence": 1}});
    let mut stream = std::os::unix::net::UnixStream::connect(ade.home().join("run/workers.sock"))
        .expect("the socket");
    writeln!(stream, "{hello}").expect("hello");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the end");
    assert_eq!(answer, "", "a stranger is told nothing");
    nothing_happened(&ade, &chat, &turn, &words(100));
}

#[test]
fn serve_replace_takes_everything_over_politely() {
    let (mut ade, mut rpc) = started("");
    let streaming = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &streaming, "!words 300 10");
    let asking = ade.scripted_chat(&mut rpc, 60_000);
    let (asked, after) = ade.send(&mut rpc, &asking, "!card Run it? | ls");
    let mut watch = ade.rpc();
    watch.subscribe(&asking, after);
    let card = watch.card();
    let silent = ade.scripted_chat(&mut rpc, 60_000);
    let (hanging, _) = ade.send(&mut rpc, &silent, "!hang");
    let idle = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&idle, "hello");
    ade.wait_transcript(&streaming, "words", |lines| has_said(lines, &turn, 20));
    ade.wait_state(&silent, "awaiting_first_event");
    let pids = |ade: &Ade| -> Vec<Value> {
        [&streaming, &asking, &silent, &idle]
            .map(|chat| ade.session(chat)["workerPid"].clone())
            .to_vec()
    };
    let before = pids(&ade);
    ade.replace();
    nothing_happened(&ade, &streaming, &turn, &words(300));
    let mut rpc = ade.rpc();
    rpc.answer(&card, &yes("allow")).expect("the answer counts");
    let events = finished(&ade, &asking, &asked);
    assert_eq!(ended(&events), "completed");
    ade.wait_state(&silent, "awaiting_first_event");
    assert_eq!(pids(&ade), before);
    rpc.call("chat.abort", json!({"sessionId": silent}));
    assert_eq!(ended(&finished(&ade, &silent, &hanging)), "interrupted");
    ade.goes_on(&idle, 1);
}

#[test]
fn a_client_sees_one_stream_over_a_broker_that_is_killed() {
    let (mut ade, _rpc) = started("");
    let lane = ade.lane("lane").display().to_string();
    let args = [
        "run",
        "--provider",
        "scripted",
        "--lane",
        &lane,
        "!words 300 10",
    ];
    let mut run = ade.command(&args);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = run.spawn().expect("ade run");
    let chat = wait_until("a chat", || {
        let list = ade.rpc().call("sessions.list", json!({}));
        list["sessions"][0]["sessionId"].as_str().map(str::to_owned)
    });
    ade.wait_transcript(&chat, "words", |lines| text_of(lines).len() > 100);
    ade.kill_broker();
    ade.serve();
    let output = run.wait_with_output().expect("ade run");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(text.trim(), words(300).trim(), "{said}");
    let _ = ade.checked_transcript(&chat);
}

#[test]
fn a_newer_executable_takes_over_the_workers_of_the_old_one() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "!words 200 10");
    ade.wait_transcript(&chat, "words", |lines| has_said(lines, &turn, 20));
    let worker = ade.session(&chat)["workerPid"].clone();
    let newer = ade.root().join("ade");
    std::fs::copy(ade_tests::ade::executable(), &newer).expect("a copy");
    ade.kill_broker();
    ade.serve_with(|serve| {
        let mut command = std::process::Command::new(&newer);
        command.args(serve.get_args());
        like(command, &serve)
    });
    nothing_happened(&ade, &chat, &turn, &words(200));
    assert_eq!(ade.session(&chat)["workerPid"], worker);
    // The next worker is of the new executable.
    ade.rpc().call("chat.stop", json!({"sessionId": chat}));
    ade.goes_on(&chat, 2);
    let pid = ade.session(&chat)["workerPid"].as_i64().expect("a pid");
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a program");
    assert_eq!(exe, std::fs::canonicalize(&newer).expect("a path"));
}

#[test]
fn a_stop_in_the_middle_of_a_takeover_withdraws_its_cards() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, after) = ade.send(&mut rpc, &chat, "!card Run it? | ls");
    let mut watch = ade.rpc();
    watch.subscribe(&chat, after);
    let card = watch.card();
    let worker = ade.worker_of(&chat);
    ade.kill_broker();
    // It lives and does not come, so that the takeover is under way.
    signal(worker, Signal::SIGSTOP);
    ade.serve();
    let mut rpc = ade.rpc();
    rpc.call("chat.stop", json!({"sessionId": chat}));
    assert!(!is_alive(worker));
    let events = finished(&ade, &chat, &turn);
    assert_eq!(ended(&events), "interrupted");
    let lines = ade.checked_transcript(&chat);
    let resolved = of_type(&lines, "card_resolved");
    assert_eq!(resolved.len(), 1, "{lines:?}");
    assert_eq!(resolved[0]["cardId"], card.as_str());
    assert_eq!(rpc.call("cards.list", json!({}))["cards"], json!([]));
    ade.goes_on(&chat, 2);
}

/// `state.db` of a broker that is not there.
fn change_state(ade: &Ade, sql: &str, values: &[&str]) {
    let db = rusqlite::Connection::open(ade.home().join("state.db")).expect("state.db");
    let values = rusqlite::params_from_iter(values);
    assert_eq!(db.execute(sql, values).expect("a change"), 1);
}

#[test]
fn a_turn_whose_end_is_in_the_transcript_is_not_ended_again() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &chat, "hello");
    ade.wait_done(&chat, &turn);
    rpc.call("chat.stop", json!({"sessionId": chat}));
    ade.kill_broker();
    // As after a broker that died between the two.
    let sql = "INSERT INTO turns (session_id, turn_id, prompt, started_at, generation, sends, state, armed_at_ms)
               VALUES (?1, ?2, 'hello', 't', 1, 1, 'sent', 0)";
    change_state(&ade, sql, &[&chat, &turn]);
    ade.serve();
    ade.goes_on(&chat, 2);
    let lines = ade.checked_transcript(&chat);
    let ends = dones(&lines).into_iter().filter(|(of, _)| *of == turn);
    assert_eq!(ends.collect::<Vec<_>>(), [(turn, "completed".to_owned())]);
}

#[test]
fn a_worker_of_an_older_generation_is_ended_and_not_taken_over() {
    let (mut ade, mut rpc) = started("");
    let chat = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &chat, "");
    ade.kill_broker();
    let sql = "UPDATE sessions SET generation = generation + 1 WHERE session_id = ?1";
    change_state(&ade, sql, &[&chat]);
    ade.serve();
    let events = finished(&ade, &chat, &tree.turn);
    assert_eq!(ended(&events), "failed");
    tree.wait_gone();
    ade.goes_on(&chat, 3);
}
