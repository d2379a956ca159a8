//! No memory left: for a start, for one worker, for the broker. Whoever it hits
//! ends with a sentence, and everybody else goes on.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use ade_tests::ade::{Ade, is_alive, started, wait_dead};
use ade_tests::rpc::text_of;
use ade_tests::turns::{ended, of_turn, of_type};
use ade_tests::wait::{wait_true, wait_until};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

/// From now on the process gets so many more bytes from the system and no more.
/// Its data is what is limited: address space that the allocator has reserved
/// already would be given out in spite of a limit on address space.
fn starve(pid: i32, spare: u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let data: u64 = line
        .and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok())
        .expect("its data");
    let limit = Some(data * 1024 + spare);
    let limit = Rlimit {
        current: limit,
        maximum: limit,
    };
    prlimit(Pid::from_raw(pid), Resource::Data, limit).expect("the limit is set");
}

/// Fork and its kin fail as they do when there is no memory, while the file of
/// that name is there.
const NO_FORK: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <spawn.h>
    #include <stdlib.h>
    #include <unistd.h>
    static int none(void) {
        const char *file = getenv("NO_FORK_WHILE");
        return file && access(file, F_OK) == 0;
    }
    pid_t fork(void) {
        static pid_t (*real)(void);
        if (!real) real = dlsym(RTLD_NEXT, "fork");
        if (none()) { errno = ENOMEM; return -1; }
        return real();
    }
    int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                    const posix_spawnattr_t *attr, char *const argv[], char *const envp[]) {
        static int (*real)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                           const posix_spawnattr_t *, char *const[], char *const[]);
        if (!real) real = dlsym(RTLD_NEXT, "posix_spawn");
        return none() ? ENOMEM : real(pid, path, actions, attr, argv, envp);
    }
    int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                     const posix_spawnattr_t *attr, char *const argv[], char *const envp[]) {
        static int (*real)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                           const posix_spawnattr_t *, char *const[], char *const[]);
        if (!real) real = dlsym(RTLD_NEXT, "posix_spawnp");
        return none() ? ENOMEM : real(pid, path, actions, attr, argv, envp);
    }"#;

#[test]
fn a_start_without_memory_fails_the_one_and_no_other() {
    let ade = Ade::new();
    let Some(shim) = ade_tests::shim::compiled(ade.root(), NO_FORK) else {
        return;
    };
    let flag = ade.root().join("no-fork");
    let mut ade = ade
        .with_env("LD_PRELOAD", &shim.display().to_string())
        .with_env("NO_FORK_WHILE", &flag.display().to_string());
    ade.serve();
    let mut rpc = ade.rpc();
    let running = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &running, "");
    let starved = ade.scripted_chat(&mut rpc, 60_000);
    fs::write(&flag, "").expect("a file");
    let events = ade.turn(&starved, "hello");
    fs::remove_file(&flag).expect("removed");
    assert_eq!(ended(&events), "failed");
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    let message = errors[0]["message"].as_str().expect("a sentence");
    assert!(message.contains("Cannot allocate memory"), "{message}");
    let detail = errors[0]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("memory"), "what to do: {errors:?}");
    assert_eq!(ade.births(&starved), 1, "nothing is tried again by itself");
    assert_eq!(ade.session(&running)["state"], "streaming");
    assert_eq!(tree.alive(), tree.pids());
    let events = ade.turn(&starved, "and now?");
    assert_eq!(text_of(&events), "You said: and now?");
    for chat in [&running, &starved] {
        rpc.call("chat.stop", json!({"sessionId": chat}));
        let _ = ade.checked_transcript(chat);
    }
    wait_true("no litter", || ade.litter().is_empty());
}

#[test]
fn a_worker_without_memory_costs_its_own_turn_one_replacement() {
    let (ade, mut rpc) = started("");
    let running = ade.scripted_chat(&mut rpc, 60_000);
    let tree = ade.grow(&mut rpc, &running, "");
    let starved = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&starved, "hello");
    let file = ade.session_file(&starved);
    let worker = ade.worker_of(&starved);
    starve(worker, 1024 * 1024);
    let prompt = format!("{} end", "x".repeat(6_000_000));
    let events = ade.turn(&starved, &prompt);
    wait_dead(worker);
    // Nothing of the turn was seen: another worker got the message, once.
    assert_eq!(ended(&events), "completed");
    let notices = of_type(&events, "notice");
    assert_eq!(notices.len(), 1, "{notices:?}");
    let text = notices[0]["message"].as_str().expect("a sentence");
    assert!(text.contains("SIGABRT"), "{text}");
    assert_eq!(of_type(&events, "error").len(), 0);
    assert!(text_of(&events).ends_with(" end"));
    assert_eq!(ade.births(&starved), 2);
    // In the middle of a turn it is the turn's end, and said.
    let (turn, _) = ade.send(&mut rpc, &starved, "!words 3 5\n!hang");
    ade.wait_transcript(&starved, "a word", |lines| {
        text_of(&of_turn(lines, &turn)).contains("word3")
    });
    starve(ade.worker_of(&starved), 1024 * 1024);
    let steer = json!({"sessionId": starved, "prompt": prompt});
    // Its answer is that the worker is gone, or that it waits for the next one.
    let _ = rpc.try_call("chat.steer", steer);
    let events = of_turn(&ade.wait_done(&starved, &turn), &turn);
    assert_eq!(ended(&events), "failed");
    let error = of_type(&events, "error")[0].to_string();
    assert!(error.contains("SIGABRT"), "{error}");
    assert_eq!(ade.session(&running)["state"], "streaming");
    assert_eq!(tree.alive(), tree.pids());
    wait_until("the chat rests", || {
        (ade.session(&starved)["state"] == "idle").then_some(())
    });
    let events = ade.turn(&starved, "and now?");
    assert_eq!(text_of(&events), "You said: and now?");
    for chat in [&running, &starved] {
        rpc.call("chat.stop", json!({"sessionId": chat}));
        let _ = ade.checked_transcript(chat);
    }
    assert!(ade.is_free(&file));
    wait_true("no litter", || ade.litter().is_empty());
}

#[test]
fn a_broker_without_memory_leaves_its_workers_to_the_next_one() {
    let (mut ade, mut rpc) = started("");
    let running = ade.scripted_chat(&mut rpc, 60_000);
    let (turn, _) = ade.send(&mut rpc, &running, "!words 200 20");
    let idle = ade.scripted_chat(&mut rpc, 60_000);
    ade.turn(&idle, "hello");
    let before = ade.transcript(&idle);
    drop(rpc);
    let broker = ade.broker_pid();
    starve(broker, 512 * 1024);
    let mut stream = UnixStream::connect(ade.socket()).expect("a connection");
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "ade/initialize",
        "params": {"protocolVersion": 2, "clientName": "hungry"}});
    let prompt = "x".repeat(12_000_000);
    let send = json!({"jsonrpc": "2.0", "id": 2, "method": "ade/actions/call", "params":
        {"name": "chat.send", "arguments": {"sessionId": idle, "prompt": prompt}}});
    // It ends in the middle of this.
    let _ = stream.write_all(format!("{hello}\n{send}\n").as_bytes());
    let _ = stream.read_to_end(&mut Vec::new());
    wait_true("the broker is dead", || !is_alive(broker));
    // Its exit is reaped like that of one that was killed.
    ade.kill_broker();
    ade.serve();
    let events = of_turn(&ade.wait_done(&running, &turn), &turn);
    assert_eq!(ended(&events), "completed");
    let words: String = (1..=200).map(|n| format!("word{n} ")).collect();
    assert_eq!(
        text_of(&events),
        words,
        "nothing is lost and nothing doubled"
    );
    assert_eq!(of_type(&events, "error").len(), 0);
    assert_eq!(
        ade.transcript(&idle),
        before,
        "what was not taken is nowhere"
    );
    let events = ade.turn(&idle, "and now?");
    assert_eq!(text_of(&events), "You said: and now?");
    for chat in [&running, &idle] {
        let _ = ade.checked_transcript(chat);
    }
}
