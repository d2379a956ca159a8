//! What is damaged or removed under a broker, or between two: it is noticed
//! within a bound, told as it is, and never leaves two brokers or a worker that
//! nobody knows.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, is_alive, signal, started, wait_dead};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{Tree, ended, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_within};
use serde_json::json;

/// How long a broker may take to notice, with room for a loaded machine.
const NOTICED: Duration = Duration::from_secs(8);

fn grown(ade: &Ade, rpc: &mut Rpc) -> (String, Tree) {
    let lane = ade.lane("lane");
    let chat = ade.chat(rpc, "scripted", &lane, json!({"firstEventMs": 60_000}));
    let tree = ade.grow(rpc, &chat, "");
    (chat, tree)
}

fn journals(ade: &Ade) -> Vec<PathBuf> {
    let entries = fs::read_dir(ade.home().join("run/workers")).expect("journals");
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .collect()
}

/// What streams, streams on.
#[track_caller]
fn streams_on(ade: &Ade, tree: &Tree) {
    let mut rpc = ade.rpc();
    rpc.subscribe(&tree.session, ade.transcript(&tree.session).len() as u64);
    rpc.event("more text", |event| event["event"]["type"] == "text");
    assert_eq!(tree.alive(), tree.pids());
}

#[track_caller]
fn goes_on(ade: &Ade, chat: &str) {
    let events = ade.turn(chat, "are you there?");
    assert_eq!(text_of(&events), "You said: are you there?", "{events:?}");
    let _ = ade.checked_transcript(chat);
}

/// A second broker does not start; what it said.
#[track_caller]
fn refused(ade: &Ade) -> String {
    let mut serve = ade.command(&["serve"]);
    serve.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut second = serve.spawn().expect("ade serve");
    let pid = i32::try_from(second.id()).expect("a pid");
    let bound = Instant::now() + Duration::from_secs(15);
    wait_true("the second broker has ended, or is late", || {
        second.try_wait().expect("its status").is_some() || Instant::now() > bound
    });
    signal(pid, Signal::SIGKILL);
    let ended = second.wait_with_output().expect("its end");
    assert_eq!(ended.status.code(), Some(3), "{}", ended.status);
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

#[test]
fn a_worker_whose_journal_was_damaged_is_told_to_stop_and_the_turn_says_what_is_so() {
    for damage in ["garbage", "half", "removed"] {
        let (mut ade, mut rpc) = started("");
        let (chat, tree) = grown(&ade, &mut rpc);
        let file = ade.session_file(&chat);
        drop(rpc);
        ade.kill_broker();
        let journal = journals(&ade).remove(0);
        let text = fs::read_to_string(&journal).expect("a journal");
        match damage {
            "garbage" => fs::write(&journal, "garbage").expect("written"),
            "half" => fs::write(&journal, &text[..text.len() / 2]).expect("written"),
            _ => fs::remove_file(&journal).expect("removed"),
        }
        ade.serve();
        let events = of_turn(&ade.wait_done(&chat, &tree.turn), &tree.turn);
        assert_eq!(ended(&events), "failed");
        let errors = of_type(&events, "error");
        let message = errors[0]["message"].as_str().expect("a sentence");
        assert!(!message.contains("was stopped"), "{message}");
        if damage != "removed" {
            assert!(
                message.contains(&journal.display().to_string()),
                "{message}"
            );
        }
        tree.wait_gone();
        wait_true("the lease is free", || ade.is_free(&file));
        wait_true("the journal is of no more use", || !journal.exists());
        goes_on(&ade, &chat);
        ade.rpc().call("chat.stop", json!({"sessionId": chat}));
        wait_true("no litter", || ade.litter().is_empty());
        ade.expect_code(0, &["doctor"]);
    }
}

#[test]
fn the_doctor_names_a_damaged_journal_with_and_without_a_broker() {
    let (mut ade, _rpc) = started("");
    let journal = ade.home().join("run/workers/wrk_nobody.json");
    fs::write(&journal, "{\"workerId\":").expect("written");
    for running in [true, false] {
        let (said, _) = ade.expect_code(1, &["doctor"]);
        assert!(said.contains(&journal.display().to_string()), "{said}");
        if running {
            assert_eq!(ade.stop_broker(), Some(0));
        }
    }
    fs::remove_file(&journal).expect("removed");
    ade.expect_code(0, &["doctor"]);
}

#[test]
fn a_socket_that_was_removed_is_bound_again() {
    let (ade, mut rpc) = started("");
    let (chat, tree) = grown(&ade, &mut rpc);
    let pid = ade.broker_pid();
    for socket in [ade.socket(), ade.home().join("run/workers.sock")] {
        fs::remove_file(&socket).expect("removed");
        wait_within("it is there again", NOTICED, || {
            socket.exists().then_some(())
        });
    }
    let status = ade.rpc().call("broker.status", json!({}));
    assert_eq!(status["runtime"]["pid"], pid, "the same broker");
    streams_on(&ade, &tree);
    // New workers find their way too.
    rpc.call("chat.stop", json!({"sessionId": chat}));
    goes_on(&ade, &chat);
    // What somebody else has put there is left alone.
    fs::remove_file(ade.socket()).expect("removed");
    let other = std::os::unix::net::UnixListener::bind(ade.socket()).expect("a socket");
    other.set_nonblocking(true).expect("a socket");
    let until = Instant::now() + NOTICED;
    wait_true("the broker has looked", || {
        Instant::now() > until || other.accept().is_ok()
    });
    let mine = fs::symlink_metadata(ade.socket()).expect("it is there");
    drop(other);
    assert!(fs::symlink_metadata(ade.socket()).is_ok_and(|found| {
        use std::os::unix::fs::MetadataExt;
        found.ino() == mine.ino()
    }));
    fs::remove_file(ade.socket()).expect("removed");
    wait_within("the own one is back", NOTICED, || {
        ade.socket().exists().then_some(())
    });
}

#[test]
fn a_lock_that_was_removed_is_taken_again() {
    let (ade, mut rpc) = started("");
    let (_, tree) = grown(&ade, &mut rpc);
    let lock = ade.home().join("run/broker.lock");
    fs::remove_file(&lock).expect("removed");
    wait_within("it is there again", NOTICED, || lock.exists().then_some(()));
    refused(&ade);
    streams_on(&ade, &tree);
}

#[test]
fn of_two_brokers_the_one_without_the_lock_hands_over() {
    let (mut ade, mut rpc) = started("");
    let (chat, tree) = grown(&ade, &mut rpc);
    drop(rpc);
    let first = ade.broker_pid();
    let lock = ade.home().join("run/broker.lock");
    signal(first, Signal::SIGSTOP);
    fs::remove_file(&lock).expect("removed");
    // One that can't hand over is not pushed aside.
    let said = refused(&ade);
    assert!(said.contains(&format!("process {first}")), "{said}");
    fs::remove_file(&lock).expect("removed");
    let second = ade.serve();
    wait_true("the second one has the lock", || {
        let text = fs::read_to_string(&lock).unwrap_or_default();
        text.contains(&format!("\"pid\":{second},"))
    });
    signal(first, Signal::SIGCONT);
    wait_dead(first);
    wait_true("the second one answers", || {
        std::os::unix::net::UnixStream::connect(ade.socket()).is_ok()
    });
    let status = ade.rpc().call("broker.status", json!({}));
    assert_eq!(status["runtime"]["pid"], second);
    ade.wait_state(&chat, "streaming");
    streams_on(&ade, &tree);
    ade.rpc().call("chat.abort", json!({"sessionId": chat}));
    let events = of_turn(&ade.wait_done(&chat, &tree.turn), &tree.turn);
    assert_eq!(ended(&events), "interrupted");
    goes_on(&ade, &chat);
}

#[test]
fn no_two_brokers_write_when_all_that_names_the_first_was_removed() {
    let (mut ade, mut rpc) = started("");
    let (chat, tree) = grown(&ade, &mut rpc);
    drop(rpc);
    let first = ade.broker_pid();
    let remove = || {
        for name in ["run/broker.lock", "run/workers.sock", "sock/ade.sock"] {
            fs::remove_file(ade.home().join(name)).expect("removed");
        }
    };
    signal(first, Signal::SIGSTOP);
    remove();
    // It could go on at any moment, so nothing is touched meanwhile.
    let database = || fs::read(ade.home().join("state.db-wal")).expect("the database");
    let before = database();
    let said = refused(&ade);
    assert!(said.contains("has hold of"), "{said}");
    assert!(said.contains(&format!("process {first},")), "{said}");
    assert_eq!(before, database());
    signal(first, Signal::SIGCONT);
    wait_true("it has all of it again", || {
        ["run/broker.lock", "run/workers.sock", "sock/ade.sock"]
            .iter()
            .all(|name| ade.home().join(name).exists())
    });
    streams_on(&ade, &tree);
    // The one that comes answers when the first one is gone, and not before.
    signal(first, Signal::SIGSTOP);
    remove();
    let lock = ade.home().join("run/broker.lock");
    let wakes = std::thread::spawn(move || {
        wait_true("the second one has the lock", || {
            fs::read_to_string(&lock).is_ok_and(|text| text.contains("\"pid\":"))
        });
        signal(first, Signal::SIGCONT);
    });
    ade.serve();
    wakes.join().expect("it was woken");
    assert!(!is_alive(first));
    streams_on(&ade, &tree);
    ade.rpc().call("chat.abort", json!({"sessionId": chat}));
    ade.wait_done(&chat, &tree.turn);
    let events = of_turn(&ade.checked_transcript(&chat), &tree.turn);
    assert_eq!(ended(&events), "interrupted");
    goes_on(&ade, &chat);
}

#[test]
fn a_home_that_was_removed_ends_the_broker_and_all_that_runs() {
    for also_started in [false, true] {
        let (mut ade, mut rpc) = started("");
        let (_, tree) = grown(&ade, &mut rpc);
        drop(rpc);
        let first = ade.broker_pid();
        let begin = Instant::now();
        fs::rename(ade.home(), ade.root().join("trash")).expect("moved");
        fs::remove_dir_all(ade.root().join("trash")).expect("removed");
        if also_started {
            // The next one begins from nothing, and is not disturbed.
            ade.serve();
        }
        if also_started {
            wait_dead(first);
        } else {
            ade.expect_broker_ended(1);
            assert!(!ade.home().exists(), "nothing is made again");
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
        tree.wait_gone();
        if also_started {
            assert!(is_alive(ade.broker_pid()));
            let chat = ade.chat(&mut ade.rpc(), "scripted", &ade.lane("lane"), json!({}));
            goes_on(&ade, &chat);
            wait_true("its worker and its host beside it", || {
                ade.processes().len() == 3
            });
        }
    }
}
