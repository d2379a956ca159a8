//! An agent's host that plays what it is told, for tests of processes.
//!
//! Each argument, and each line of a message, is a step. Arguments are played
//! before `ready`, lines when the message comes; a message whose steps are over
//! is answered as completed.
//!
//! | step | does |
//! |---|---|
//! | `emit TEXT` | one text event |
//! | `tick MS` | text events for ever |
//! | `delay MS`, `hang` | waits, for ever |
//! | `exit N` | ends at once |
//! | `half` | half a frame, then ends with 0 |
//! | `stderr TEXT` | a line on standard error |
//! | `child SECS` | a child that holds our pipes; emits `child PID` |
//! | `orphan SECS` | a grandchild in a session of its own that holds them too |
//! | `hidden SECS` | the same with an empty environment, twice a session of its own; emits `hidden PID` |
//! | `hidden-tree SECS` | the same with two children; emits `hidden PID` |
//! | `late SECS` | a child that after SECS leaves such a process, and ends |
//! | `bare SECS` | the same as `hidden` in our session; emits `hidden PID` |
//! | `orphans N` | so many orphans that end at once |
//! | `join-group` | leaves its process group for that of its parent |
//! | `ignore-term` | ignores SIGTERM, `dispose` and the end of its input |
//! | `clean-up MS FILE` | the same, but on SIGTERM writes FILE after MS and ends |
//! | `close-stdin` | closes its input and lives on |
//! | `report FILE` | writes arguments, environment and descriptors as JSON |

use std::io::{BufRead, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

/// What SIGTERM and requests to end do.
#[derive(Clone)]
enum Manners {
    Polite,
    Deaf,
    CleanUp(Duration, String),
}

#[derive(Clone)]
struct Agent {
    manners: Arc<Mutex<Manners>>,
}

fn main() {
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    // Before any thread is there; children start with an empty mask.
    term.thread_block().expect("a signal mask");
    let agent = Agent {
        manners: Arc::new(Mutex::new(Manners::Polite)),
    };
    let waiting = agent.clone();
    std::thread::spawn(move || {
        while term.wait().is_ok() {
            waiting.terminated();
        }
    });
    for step in std::env::args().skip(1) {
        agent.play(&step, "");
    }
    agent.serve();
}

fn put(frame: &Value) {
    let mut out = std::io::stdout().lock();
    // Whoever does not read any more needs nothing.
    let _ = writeln!(out, "{frame}").and_then(|()| out.flush());
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn say(turn: &str, text: &str) {
    let event = json!({"type": "text", "messageId": "msg_1", "text": text});
    let frame = json!({"protocolVersion": 2, "type": "sdk_event", "turnId": turn, "event": event});
    put(&frame);
}

fn answer(id: &Value, result: &Value) {
    put(
        &json!({"protocolVersion": 2, "type": "response", "requestId": id, "ok": true,
        "result": result}),
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "an agent ends as its script says"
)]
fn end(code: i32) -> ! {
    std::process::exit(code)
}

impl Agent {
    fn manners(&self) -> Manners {
        self.manners.lock().expect("no panic under it").clone()
    }

    fn behave(&self, manners: Manners) {
        *self.manners.lock().expect("no panic under it") = manners;
    }

    fn terminated(&self) {
        match self.manners() {
            Manners::Polite => end(143),
            Manners::Deaf => {}
            Manners::CleanUp(time, file) => {
                std::thread::sleep(time);
                let _ = std::fs::write(file, "cleaned up");
                end(0);
            }
        }
    }

    fn serve(&self) {
        let mut file = String::new();
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let frame: Value = serde_json::from_str(&line).unwrap_or_default();
            let id = frame["requestId"].clone();
            match frame["type"].as_str().unwrap_or_default() {
                "init" => {
                    file = session_file(&frame);
                    let ready = json!({"protocolVersion": 2, "provider": "scripted",
                        "version": "1", "sessionFile": file, "sessionId": "fake"});
                    put(&json!({"protocolVersion": 2, "type": "ready", "ready": ready}));
                }
                "send" => {
                    if !std::path::Path::new(&file).exists() {
                        let header = json!({"type": "session", "version": 3, "id": "fake"});
                        let _ = std::fs::write(&file, format!("{header}\n"));
                    }
                    let agent = self.clone();
                    std::thread::spawn(move || {
                        let turn = frame["turnId"].as_str().unwrap_or_default();
                        for step in frame["prompt"].as_str().unwrap_or_default().lines() {
                            agent.play(step, turn);
                        }
                        answer(&id, &json!({"status": "completed"}));
                    });
                }
                "dispose" if matches!(self.manners(), Manners::Polite) => {
                    answer(&id, &Value::Null);
                    end(0);
                }
                "dispose" => {}
                _ => answer(&id, &Value::Null),
            }
        }
        while !matches!(self.manners(), Manners::Polite) {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn play(&self, step: &str, turn: &str) {
        let (name, rest) = step.split_once(' ').unwrap_or((step, ""));
        let number = || rest.split(' ').next().and_then(|word| word.parse().ok());
        let number = number().unwrap_or(0_u64);
        match name {
            "emit" => say(turn, rest),
            "tick" => loop {
                say(turn, "tick ");
                std::thread::sleep(Duration::from_millis(number));
            },
            "delay" => std::thread::sleep(Duration::from_millis(number)),
            "hang" => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            "exit" => end(i32::try_from(number).unwrap_or(1)),
            "half" => {
                let mut out = std::io::stdout().lock();
                let _ = write!(out, "{{\"protocolVersion\":2,\"type\":\"sdk_ev");
                let _ = out.flush();
                end(0);
            }
            "stderr" => complain(rest),
            "child" => {
                let child = Command::new("sleep").arg(rest).stdin(Stdio::null()).spawn();
                say(turn, &format!("child {}\n", child.expect("a child").id()));
            }
            "orphan" => {
                let script = format!("setsid sleep {number} & echo $!");
                let pid = shell(&script);
                say(turn, &format!("orphan {pid}\n"));
            }
            "hidden" | "hidden-tree" | "bare" => {
                let sleep = format!("exec sleep {number}");
                let tree = format!("sleep {number} & setsid sleep {number} & wait");
                let pid = match name {
                    "hidden" => hidden("setsid setsid", &sleep),
                    "bare" => hidden("", &sleep),
                    _ => hidden("setsid setsid", &tree),
                };
                say(turn, &format!("hidden {pid}\n"));
            }
            "late" => {
                // Nobody whose end the worker would hear of dies.
                let script = format!("sleep {number}; env -i setsid sleep 300 &");
                let mut child = Command::new("sh");
                child.args(["-c", &script]).stdin(Stdio::null());
                child.stdout(Stdio::null()).stderr(Stdio::null());
                std::thread::spawn(move || child.status().expect("a child"));
            }
            "orphans" => {
                let script = format!("for i in $(seq {number}); do setsid sleep 0.2 & done; echo");
                shell(&script);
            }
            "join-group" => {
                let parent = nix::unistd::getppid();
                let group = nix::unistd::getpgid(Some(parent)).expect("the parent's group");
                nix::unistd::setpgid(nix::unistd::Pid::from_raw(0), group).expect("its group");
            }
            "ignore-term" => self.behave(Manners::Deaf),
            "clean-up" => {
                let file = rest.split_once(' ').map_or("", |(_, file)| file).to_owned();
                self.behave(Manners::CleanUp(Duration::from_millis(number), file));
            }
            "close-stdin" => {
                let null = std::fs::File::open("/dev/null").expect("/dev/null");
                nix::unistd::dup2_stdin(&null).expect("another standard input");
            }
            "report" => {
                let env: Vec<_> = std::env::vars().collect();
                let args: Vec<_> = std::env::args().collect();
                let report = json!({"args": args, "env": env, "pid": std::process::id()});
                let _ = std::fs::write(rest, report.to_string());
            }
            other => complain(&format!("there is no step {other}")),
        }
    }
}

/// Starts a process that nothing but a cgroup connects with us; its pid.
fn hidden(sessions: &str, then: &str) -> String {
    let said = std::env::temp_dir().join(format!("fake-agent-{}.hidden", std::process::id()));
    let inner = format!("echo $$ >{}; {then}", said.display());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("env -i {sessions} sh -c '{inner}' &")]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().expect("a shell");
    loop {
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        if text.ends_with('\n') {
            let _ = std::fs::remove_file(&said);
            return text.trim().to_owned();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a script whose background processes get our pipes; what it said.
fn shell(script: &str) -> String {
    let said = std::env::temp_dir().join(format!("fake-agent-{}", std::process::id()));
    let script = script.replace("echo", &format!("echo >{}", said.display()));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::null());
    command.status().expect("a shell");
    let text = std::fs::read_to_string(&said).unwrap_or_default();
    let _ = std::fs::remove_file(said);
    text.trim().to_owned()
}

/// The session file that is opened; it is there from the first message on.
fn session_file(init: &Value) -> String {
    if let Some(file) = init["session"]["sessionFile"].as_str() {
        return file.to_owned();
    }
    let root = init["store"]["sessionRoot"]
        .as_str()
        .unwrap_or("/nonexistent");
    format!(
        "{root}/{}.jsonl",
        init["sessionKey"].as_str().unwrap_or("chat")
    )
}
