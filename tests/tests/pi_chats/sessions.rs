//! Session files: going on in a new worker, one writer, and files that do not fit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ade_leases::lease;
use ade_leases::owner::{self, Claim, Owner};
use ade_leases::record::OwnerKind;
use ade_tests::pi::{PiAde, error_of, one_branch, status_of};
use ade_tests::rpc::text_of;
use ade_tests::wait::{wait_true, wait_until};
use serde_json::{Value, json};

use crate::{HELLO, SOON, path};

#[test]
fn a_chat_goes_on_in_a_new_worker() {
    let mut pi = PiAde::serve_with("[providers.pi]\nidle_put_away_ms = 1500\n");
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    assert_eq!(text_of(&pi.completed(&chat, "one")), "one");
    let file = pi.ade.session_file(&chat);
    pi.stop(&chat);
    assert!(!lease::is_held(&file));
    assert_eq!(text_of(&pi.completed(&chat, "two")), "one\ntwo");
    // An idle worker is put away by itself.
    wait_true("the idle worker is put away", || {
        pi.ade.session(&chat)["workerPid"].is_null() && !lease::is_held(&file)
    });
    assert_eq!(text_of(&pi.completed(&chat, "three")), "one\ntwo\nthree");
    assert_eq!(pi.ade.session(&chat)["generation"], 3);
    assert_eq!(pi.ade.stop_broker(), Some(0));
    pi.ade.serve();
    let all = "one\ntwo\nthree\nfour";
    assert_eq!(
        text_of(&pi.completed(&chat, "four")),
        all,
        "after a new broker"
    );
    assert_eq!(pi.ade.session_file(&chat), file);
    one_branch(&file, &pi.ade.lane("lane"));
}

#[test]
fn a_chat_that_said_nothing_yet_goes_on_in_a_new_worker() {
    let pi = PiAde::serve();
    let extensions = pi.ade.agent_dir().join("extensions");
    fs::create_dir(&extensions).unwrap();
    let command = r#"export default (pi) =>
        pi.registerCommand("nothing", { description: "", handler: async () => {} });"#;
    fs::write(extensions.join("command.ts"), command).unwrap();
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    let (mut rpc, turn) = pi.send(&chat, "never mind");
    rpc.call("chat.abort", json!({"sessionId": chat}));
    assert_eq!(status_of(&rpc.until_done(&turn)), "interrupted");
    // A command of an extension is no message: Pi has a session, but no file.
    pi.completed(&chat, "/nothing");
    assert!(!pi.ade.session_file(&chat).exists());
    assert_eq!(pi.model.requests().len(), 0);
    pi.stop(&chat);
    assert_eq!(text_of(&pi.completed(&chat, "hello")), "hello");
    let file = pi.ade.session_file(&chat);
    pi.stop(&chat);
    assert_eq!(text_of(&pi.completed(&chat, "again")), "hello\nagain");
    assert_eq!(pi.ade.session_file(&chat), file);
}

#[test]
fn a_message_right_behind_a_stop_gets_a_worker_of_its_own() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    let mut said = Vec::new();
    for round in 0..4 {
        let mut rpc = pi.ade.rpc();
        // The stop meets a worker that starts, in another moment each round.
        pi.ade.send(&mut rpc, &chat, "never mind");
        if round % 2 == 1 {
            wait_until("the start", || {
                (pi.ade.describe().len() > 1 + round / 2).then_some(())
            });
        }
        rpc.call("chat.stop", json!({"sessionId": chat}));
        let message = format!("message {round}");
        said.push(message.clone());
        let events = pi.completed(&chat, &message);
        let told = text_of(&events);
        let told: Vec<&str> = told.lines().filter(|line| *line != "never mind").collect();
        assert_eq!(told, said);
        let workers = pi.ade.describe();
        assert_eq!(workers.len(), 3, "broker, worker, host: {workers:#?}");
        pi.stop(&chat);
        pi.wait_only_broker(Duration::from_secs(1));
    }
    one_branch(&pi.ade.session_file(&chat), &pi.ade.lane("lane"));
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

/// The session files below a store.
fn sessions_in(store: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(store).unwrap().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten());
    let files = files.map(|file| file.path());
    files
        .filter(|file| file.extension().is_some_and(|ending| ending == "jsonl"))
        .collect()
}

#[test]
fn a_session_goes_to_and_fro_between_ade_and_the_users_own_pi() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let installed = ade_tests::agents::pi();
    let own = |args: &[&str]| {
        let output = Command::new(&installed.node)
            .arg(installed.package_root.join("dist/bundle/cli.js"))
            .args(["--offline", "-p", "--model", "fake/fake-echo"])
            .args(args)
            .current_dir(&lane)
            .env("HOME", pi.ade.user_home())
            .env("PI_CODING_AGENT_DIR", pi.ade.agent_dir())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    };
    assert_eq!(own(&["one"]), "one");
    let file = sessions_in(&pi.ade.agent_dir().join("sessions"))
        .pop()
        .unwrap();
    let file = file.display().to_string();
    let chat = pi.chat_with("lane", json!({"sessionFile": file}));
    assert_eq!(text_of(&pi.completed(&chat, "two")), "one\ntwo");
    pi.stop(&chat);
    assert_eq!(own(&["--session", &file, "three"]), "one\ntwo\nthree");
    assert_eq!(
        text_of(&pi.completed(&chat, "four")),
        "one\ntwo\nthree\nfour"
    );
    one_branch(Path::new(&file), &lane);
}

#[test]
fn a_session_that_another_worker_writes_is_refused() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    pi.completed(&chat, "mine");
    let file = pi.ade.session_file(&chat);
    let before = fs::read(&file).unwrap();
    let lane = pi.ade.lane("lane").display().to_string();
    let name = file.display().to_string();
    let run = [
        "run",
        "--provider",
        "pi",
        "--lane",
        &lane,
        "--session-file",
        &name,
        "yours",
    ];
    let (stdout, stderr) = pi.ade.expect_code(7, &run);
    assert_eq!(stdout, "");
    for word in ["belongs to the chat", "ade attach", chat.as_str()] {
        assert!(stderr.contains(word), "no {word:?} in {stderr}");
    }
    let mut with_json = vec!["--json"];
    with_json.extend(run);
    let (stdout, _) = pi.ade.expect_code(7, &with_json);
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["error"]["kind"], "owned", "{document}");
    assert_eq!(fs::read(&file).unwrap(), before, "nobody else wrote to it");
    assert_eq!(text_of(&pi.completed(&chat, "again")), "mine\nagain");

    let delete = json!({"sessionId": chat});
    pi.ade.rpc().call("chat.delete", delete);
    // The session goes on with the model that it had.
    let (stdout, _) = pi.ade.expect_code(0, &run);
    assert_eq!(stdout, "mine\nagain\nyours\n");
    let lines = one_branch(&file, &pi.ade.lane("lane"));
    let users = lines
        .iter()
        .filter(|line| line["message"]["role"] == "user");
    assert_eq!(
        users.count(),
        3,
        "the other chat goes on where the first one was"
    );
}

#[test]
fn a_session_file_of_nobody_or_of_another_lane_is_refused() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
    pi.completed(&chat, "mine");
    let file = pi.ade.session_file(&chat);
    pi.ade.rpc().call("chat.delete", json!({"sessionId": chat}));
    let before = fs::read(&file).unwrap();
    let other = pi.ade.lane("other").display().to_string();
    let name = file.display().to_string();
    let none = file.with_file_name("none.jsonl").display().to_string();
    let outside = pi.ade.lane("lane").join("outside.jsonl");
    fs::copy(&file, &outside).unwrap();
    let outside = outside.display().to_string();
    let lane = pi.ade.lane("lane").display().to_string();
    for (code, lane, file) in [(1, &other, &name), (2, &lane, &none), (1, &lane, &outside)] {
        let run = [
            "run",
            "--provider",
            "pi",
            "--lane",
            lane,
            "--session-file",
            file,
            "hi",
        ];
        let (stdout, stderr) = pi.ade.expect_code(code, &run);
        assert_eq!(stdout, "");
        assert!(stderr.contains(file.as_str()), "{stderr}");
        let owner_of = owner::read(Path::new(file)).unwrap();
        let claim = Claim {
            kind: OwnerKind::Sdk,
            id: chat.clone(),
        };
        let was = if *file == name {
            Owner::Owned(claim)
        } else {
            Owner::None
        };
        assert_eq!(owner_of, was, "a chat that was refused owns nothing");
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    pi.wait_only_broker(SOON);
    assert_eq!(pi.ade.litter(), Vec::<PathBuf>::new());
}

#[test]
fn a_session_file_that_was_deleted_or_replaced_is_told_and_not_written() {
    let pi = PiAde::serve();
    let aside = pi.ade.root().join("aside");
    for (replaced, what) in [(true, "replaced by a link"), (false, "was deleted")] {
        let chat = pi.chat("lane", "fake/fake-echo", "full-auto");
        pi.completed(&chat, "one");
        let file = pi.ade.session_file(&chat);
        fs::rename(&file, &aside).unwrap();
        if replaced {
            std::os::unix::fs::symlink(&aside, &file).unwrap();
        }
        let before = fs::read(&aside).unwrap();
        let send = ["chat", "send", &chat, "--wait", "two"];
        let (_, stderr) = pi.ade.expect_code(1, &send);
        for words in [path(&file).as_str(), what, "start a new chat"] {
            assert!(stderr.contains(words), "no {words:?} in {stderr}");
        }
        assert_eq!(error_of(&pi.ade.transcript(&chat))["category"], "not_found");
        wait_true("the worker is gone", || {
            pi.ade.session(&chat)["workerPid"].is_null() && !lease::is_held(&file)
        });
        // Nor does the next worker write.
        let (_, stderr) = pi.ade.expect_code(1, &send);
        assert!(stderr.contains(&path(&file)), "{stderr}");
        assert_eq!(stderr.contains("start a new chat"), !replaced, "{stderr}");
        assert_eq!(fs::read(&aside).unwrap(), before);
        assert_eq!(file.exists(), replaced, "Pi made no new file");
        fs::rename(&aside, &file).unwrap();
        assert_eq!(text_of(&pi.completed(&chat, "three")), "one\nthree");
    }
}

#[test]
fn a_lane_that_is_gone_is_named() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let lane = pi.ade.lane("lane");
    fs::remove_dir(&lane).unwrap();
    let (_, stderr) = pi
        .ade
        .expect_code(2, &["chat", "send", &chat, "--wait", "hello"]);
    assert!(stderr.contains(&path(&lane)), "{stderr}");
    assert_eq!(error_of(&pi.ade.transcript(&chat))["category"], "not_found");
    fs::create_dir(&lane).unwrap();
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);
}
