//! Trees of processes: whatever of them dies, and in whatever order, nothing is
//! left and nothing is ended twice.

use std::path::PathBuf;

use ade_leases::process::{self, Pid};
use ade_tests::ade::{Ade, is_alive};
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{GONE, ended, of_turn};
use ade_tests::wait::wait_within;

mod deaths;
mod first_process;
mod given;
mod hidden;
mod listed;
mod stops;

/// Configuration that makes the fake agent the host: by itself, or below a shell
/// as `npm exec` and its like leave one.
fn agent(wrapped: bool, at_start: &str, more: &str) -> String {
    let exe = env!("CARGO_BIN_EXE_fake-agent");
    let (host, args) = if wrapped {
        let script = format!("'{exe}' {at_start}; exit $?");
        ("/bin/sh", format!("\"-c\", \"{script}\""))
    } else {
        let args: Vec<String> = at_start
            .split_terminator(',')
            .map(|step| format!("\"{step}\""))
            .collect();
        (exe, args.join(", "))
    };
    format!("[providers.scripted]\nhost = \"{host}\"\nargs = [{args}]\n{more}")
}

/// A running turn with processes below it.
#[derive(Debug)]
struct Grown {
    chat: String,
    turn: String,
    worker: i32,
    host: i32,
    all: Vec<i32>,
    file: PathBuf,
}

impl Grown {
    fn alive(&self) -> Vec<i32> {
        self.all
            .iter()
            .copied()
            .filter(|pid| is_alive(*pid))
            .collect()
    }

    #[track_caller]
    fn wait_gone(&self) {
        wait_within(&format!("nothing of {self:?} is left"), GONE, || {
            self.alive().is_empty().then_some(())
        });
    }
}

/// What the agent said of the processes that it started: a name and a pid.
fn pids_in(said: &str) -> Vec<i32> {
    let pids = said.lines().map(|line| line.split_once(' '));
    pids.filter_map(|pair| pair?.1.trim().parse().ok())
        .collect()
}

/// Three children and two grandchildren in sessions of their own, all of which
/// hold the agent's standard output; then text for ever.
fn grow(ade: &Ade, rpc: &mut Rpc, chat: &str, before: &str) -> Grown {
    let script =
        format!("{before}child 300\nchild 300\nchild 300\norphan 300\norphan 300\ntick 20");
    let (turn, _) = ade.send(rpc, chat, &script);
    let lines = ade.wait_transcript(chat, "a stream", |lines| text_of(lines).contains("tick"));
    let said = text_of(&of_turn(&lines, &turn));
    let (worker, host) = (ade.worker_of(chat), ade.host_of(chat));
    let mut all = pids_in(&said);
    assert_eq!(all.len(), 5, "{said}");
    let table = process::table().expect("the process table");
    let root = Pid::new(i64::from(worker)).expect("a pid");
    let below = process::descendants(root, &table);
    all.extend(below.iter().map(|entry| entry.pid.get()));
    all.push(worker);
    all.sort_unstable();
    all.dedup();
    let grown = Grown {
        chat: chat.to_owned(),
        turn,
        worker,
        host,
        all,
        file: ade.session_file(chat),
    };
    assert_eq!(grown.alive(), grown.all);
    grown
}

fn goes_on(ade: &Ade, chat: &str) {
    let events = ade.turn(chat, "emit back");
    assert_eq!(ended(&events), "completed");
    assert_eq!(text_of(&events), "back");
    let _ = ade.checked_transcript(chat);
}
