//! A broker that was started inside a chat would end with it, and take every
//! other chat along: none starts there.

use std::fs;

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, executable, signal, wait_dead};
use ade_tests::cgroups::{folder, is_below};
use ade_tests::rpc::Rpc;
use ade_tests::turns::ended;
use ade_tests::wait::wait_true;
use serde_json::json;

/// An ade whose agents have a command beside them that, once it is told to,
/// starts a broker in both ways that there are. One of them does. Its pid is in
/// the file `command`.
fn with_commands(prefix: &str) -> (Ade, Rpc) {
    let ade = Ade::new();
    let asks = format!(
        "{prefix} '{ade}' --home '{home}'",
        ade = executable().display(),
        home = ade.home().display(),
    );
    let root = ade.root().display();
    let script = format!(
        "(sh -c 'echo $PPID' > {root}/command; while [ ! -e {root}/go ]; do sleep 0.05; done; mkdir {root}/asker || exec sleep 300; \
         {asks} ps > {root}/ps 2>&1; echo \\\" code $?\\\" >> {root}/ps; \
         {asks} serve --replace > {root}/serve 2>&1; echo \\\" code $?\\\" >> {root}/serve; \
         touch {root}/asked; exec sleep 300) < /dev/null > /dev/null 2>&1 & \
         exec '{agent}'",
        agent = env!("CARGO_BIN_EXE_fake-agent"),
    );
    let config =
        format!("[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n");
    let mut ade = ade.with_config(&config);
    ade.serve();
    let rpc = ade.rpc();
    (ade, rpc)
}

fn chat(ade: &Ade, rpc: &mut Rpc) -> String {
    let chat = ade.chat(rpc, "scripted", &ade.lane("lane"), json!({}));
    assert_eq!(ended(&ade.turn(&chat, "emit one")), "completed");
    chat
}

/// Lets the command begin, and checks that it started nothing.
fn refused(ade: &Ade) {
    fs::write(ade.root().join("go"), "").unwrap();
    wait_true("both ways are tried", || ade.root().join("asked").exists());
    for (name, code) in [("ps", 5), ("serve", 1)] {
        let said = fs::read_to_string(ade.root().join(name)).unwrap();
        assert!(said.contains("inside a chat of its own"), "{said}");
        assert!(said.contains("terminal of yours"), "{said}");
        assert!(said.ends_with(&format!(" code {code}\n")), "{said}");
    }
    assert!(!ade.has_broker());
}

#[test]
fn no_broker_starts_below_a_worker_whatever_lies_between() {
    for prefix in ["", "env -u ADE_WORKER_MARK setsid"] {
        let (mut ade, mut rpc) = with_commands(prefix);
        let (one, other) = (chat(&ade, &mut rpc), chat(&ade, &mut rpc));
        ade.kill_broker();
        refused(&ade);
        // One that may start takes both over, and outlives either.
        ade.serve();
        ade.expect_code(0, &["chat", "stop", &one]);
        assert_eq!(ended(&ade.turn(&other, "emit two")), "completed");
        ade.stop_broker();
    }
}

#[test]
fn no_broker_starts_in_the_cgroup_of_a_worker_that_is_dead() {
    let (mut ade, mut rpc) = with_commands("env -u ADE_WORKER_MARK setsid");
    let Some(folder) = folder(&mut rpc) else {
        return;
    };
    let chat = chat(&ade, &mut rpc);
    // Its worker moves it there, and a turn may end before that.
    wait_true("the command is in the cgroup", || {
        let said = fs::read_to_string(ade.root().join("command")).unwrap_or_default();
        said.trim().parse().is_ok_and(|pid| is_below(&folder, pid))
    });
    let worker = ade.worker_of(&chat);
    ade.kill_broker();
    signal(worker, Signal::SIGKILL);
    wait_dead(worker);
    refused(&ade);
    ade.serve();
    assert_eq!(ended(&ade.turn(&chat, "emit two")), "completed");
}
