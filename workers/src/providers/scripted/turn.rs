//! A turn of the scripted host.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ade_leases::process;
use ade_protocol::boot::HOST_ARGV0;
use ade_protocol::card::CardOrigin;
use ade_protocol::event::{Event, NoticeLevel};
use ade_protocol::frame::{
    FromWorker, NoticePayload, Send, SendResult, SendStatus, UiNotice, code,
};
use ade_protocol::{PROTOCOL_VERSION, RequestId};
use nix::sys::signal::{Signal, raise};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::delivery::Delivery;
use super::script::{Step, parse};
use super::{Flow, Host, Running, Stop};

/// First argument that makes an `ade-host` start a sleeping orphan and end.
pub(crate) const ORPHAN_ARG: &str = "--scripted-orphan";

/// What a turn gathers on its way.
#[derive(Default)]
pub(super) struct Spoken {
    pub(super) message: String,
    text: String,
    usage: Option<Value>,
}

/// How the steps of a turn ended.
#[derive(PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    Failed(String),
    Stopped(Stop),
}

impl Host {
    /// Runs one turn and answers its `send`.
    pub(super) fn turn(&mut self, id: RequestId, send: &Send) -> Flow {
        let delivery = self.delivery(send);
        if let Some(message) = delivery.refusal() {
            self.refuse(id, code::DELIVERED_OUTCOME_UNKNOWN, message);
            return Flow::On;
        }
        self.running = Some(Running::default());
        self.answers.clear();
        self.lifecycle("prompt_started");
        let recovery = send.recovery.is_some();
        let replay = send.recovery.as_ref().and_then(|how| how.replay.as_ref());
        if let Some(store) = self.store() {
            if let Some(replay) = replay {
                store.user(replay);
            }
            // One that stands there must not stand twice.
            if replay.is_some() || delivery != Delivery::Unanswered {
                store.user(&send.prompt);
            }
        }
        let mut spoken = Spoken {
            message: new_id("msg"),
            ..Spoken::default()
        };
        let mut ended = self.prompt(&send.prompt, recovery, &mut spoken);
        while matches!(ended, Ended::Done)
            && let Some(prompt) = self.later.pop_front()
        {
            spoken.message = new_id("msg");
            ended = self.prompt(&prompt, false, &mut spoken);
        }
        if ended == Ended::Stopped(Stop::Aborted) {
            // Busy, and then perhaps not done with a run that should have ended.
            let (time, word) = self.slow_abort.clone();
            std::thread::sleep(time);
            if !word.is_empty() {
                self.say(&word);
            }
        }
        let (status, stop_reason, error) = match &ended {
            Ended::Done => (SendStatus::Completed, "stop", None),
            Ended::Failed(error) => (SendStatus::Failed, "error", Some(error.clone())),
            Ended::Stopped(_) => (SendStatus::Interrupted, "aborted", None),
        };
        let silent = matches!(ended, Ended::Stopped(_)) && spoken.text.is_empty();
        // An agent that was stopped before its first word has written none.
        if let Some(store) = self.store()
            && !silent
        {
            store.assistant(&spoken.text, stop_reason);
        }
        let stop_reason = Some(stop_reason.to_owned());
        let unread = self
            .running
            .as_mut()
            .and_then(|running| running.unread.take());
        let undelivered = unread.unwrap_or_default();
        self.lifecycle(if error.is_some() {
            "prompt_failed"
        } else {
            "prompt_finished"
        });
        self.answer(
            id,
            &SendResult {
                status,
                stop_reason,
                usage: spoken.usage,
                error,
                undelivered,
            },
        );
        let running = self.running.take().unwrap_or_default();
        self.took_all(running.late);
        for aborter in running.aborters {
            self.lifecycle("aborted");
            self.answer(aborter, &());
        }
        match ended {
            Ended::Stopped(Stop::Ending) => self.disposed(),
            _ => Flow::On,
        }
    }

    /// What is known of an earlier delivery of the message.
    fn delivery(&mut self, send: &Send) -> Delivery {
        let again = send.recovery.as_ref();
        let again = again.filter(|how| how.force_expire_active_run);
        match (again, self.store()) {
            (Some(how), Some(store)) => store.delivery(&send.prompt, how.session_mark.as_ref()),
            _ => Delivery::Missing,
        }
    }

    fn store(&mut self) -> Option<&mut super::Store> {
        self.opened.as_mut()?.store.as_mut()
    }

    fn prompt(&mut self, prompt: &str, recovery: bool, spoken: &mut Spoken) -> Ended {
        let steps = match parse(prompt, recovery) {
            Some(Ok(steps)) => steps,
            Some(Err(error)) => return Ended::Failed(error),
            None => return self.stream(&format!("You said: {prompt}"), spoken),
        };
        for step in steps {
            match self.step(step, spoken) {
                Ended::Done => {}
                other => return other,
            }
        }
        Ended::Done
    }

    fn step(&mut self, step: Step, spoken: &mut Spoken) -> Ended {
        match step {
            Step::Emit(text) => self.tell(&text, spoken),
            Step::Words(count, gap) => return self.words(count, gap, spoken),
            Step::Clock(count, gap) => return self.clock(count, gap, spoken),
            Step::Delay(time) => return self.rest(Some(time)),
            Step::Card {
                title,
                message,
                tool,
            } => return self.card(title, message, &tool, spoken),
            Step::Ask(question, options) => return self.ask(question, &options, spoken),
            Step::Secret(question) => return self.secret(question, spoken),
            Step::Hang => return self.rest(None),
            Step::Tool(name, text) => self.tool(&name, &text),
            Step::LongTool(time) => return self.long_tool(time),
            Step::Events(count, size) => return self.flood(count, size, spoken),
            Step::Error(text) => return Ended::Failed(text),
            Step::StaleToken => return Ended::Failed(stale_token()),
            Step::SlowAbort(time, word) => self.slow_abort = (time, word),
            Step::Steers {
                unread,
                silent,
                late,
            } => {
                if let Some(running) = &mut self.running {
                    running.silent = silent;
                    running.unread = unread.then(Vec::new);
                    running.late = late.then(Vec::new);
                }
            }
            Step::Answer => {
                let late = self.running.as_mut().map(|running| running.late.take());
                self.took_all(late.flatten());
            }
            Step::Forget => {
                if let Some(store) = self.store() {
                    store.forget();
                }
            }
            Step::Env(name) => {
                let value = std::env::var(&name).unwrap_or_else(|_| "unset".into());
                self.tell(&value, spoken);
            }
            Step::Reasoning(text) => {
                let message_id = spoken.message.clone();
                self.event(&Event::Reasoning { message_id, text });
            }
            Step::Usage => {
                spoken.usage = Some(json!({"input": 100, "output": 10, "totalTokens": 110}));
                self.event(&Event::ContextUsage {
                    tokens: Some(110),
                    context_window: 200_000,
                });
            }
            Step::Turnless => self.notice(),
            Step::Recall => {
                let said = self.store().map(|store| store.said_before().join(" | "));
                return self.stream(&said.unwrap_or_default(), spoken);
            }
            Step::File(text) => {
                if let Some(store) = self.store() {
                    store.assistant(&text, "toolUse");
                }
            }
            Step::Child(seconds) => self.child(seconds, spoken),
            Step::Grandchild(seconds) => self.grandchild(seconds, spoken),
            Step::Skipped => {}
            other => self.misbehave(other),
        }
        self.poll().map_or(Ended::Done, Ended::Stopped)
    }

    /// The steps that a good host never takes.
    #[expect(
        clippy::disallowed_methods,
        reason = "a script may end its host as badly as it likes"
    )]
    fn misbehave(&mut self, step: Step) {
        match step {
            Step::Crash(code) => std::process::exit(code),
            Step::Kill => {
                let _ = raise(Signal::SIGKILL);
            }
            Step::Noise(text) => self.raw(text.as_bytes()),
            Step::Half => {
                let half = format!(
                    r#"{{"protocolVersion":{PROTOCOL_VERSION},"type":"sdk_event","event":{{"ty"#
                );
                let _ = self.out.write_all(half.as_bytes());
                self.flush();
                std::process::exit(0);
            }
            Step::BadUtf8 => {
                let event =
                    br#""type":"sdk_event","event":{"type":"text","messageId":"bad","text":"caf"#;
                let mut line = format!(r#"{{"protocolVersion":{PROTOCOL_VERSION},"#).into_bytes();
                line.extend_from_slice(event);
                line.extend_from_slice(b"\xe9\"}}");
                self.raw(&line);
            }
            Step::Malformed(count) => {
                let line = format!(
                    r#"{{"protocolVersion":{PROTOCOL_VERSION},"type":"response","oops":1}}"#
                );
                for _ in 0..count {
                    self.put_line(line.as_bytes());
                }
                self.flush();
            }
            Step::IgnoreTerm => self.switches.ignore_stop.store(true, Ordering::Relaxed),
            Step::StopReading => self.switches.stop_reading.store(true, Ordering::Relaxed),
            Step::Stderr(bytes) => {
                let _ = io::copy(&mut Noise.take(bytes), &mut io::stderr().lock());
            }
            _ => {}
        }
    }

    fn raw(&mut self, line: &[u8]) {
        self.put_line(line);
        self.flush();
    }

    fn rest(&mut self, time: Option<Duration>) -> Ended {
        self.pause(time).map_or(Ended::Done, Ended::Stopped)
    }

    /// Emits one fragment of text.
    pub(super) fn tell(&mut self, text: &str, spoken: &mut Spoken) {
        spoken.text.push_str(text);
        let message_id = spoken.message.clone();
        self.event(&Event::Text {
            message_id,
            text: text.to_owned(),
        });
    }

    /// Emits text as a message of its own, outside of what the turn gathers.
    pub(super) fn say(&mut self, text: &str) {
        let message_id = new_id("msg");
        self.event(&Event::Text {
            message_id,
            text: text.to_owned(),
        });
    }

    /// Emits text word by word.
    fn stream(&mut self, text: &str, spoken: &mut Spoken) -> Ended {
        for word in text.split_inclusive(' ') {
            self.tell(word, spoken);
            if let Some(stop) = self.poll() {
                return Ended::Stopped(stop);
            }
        }
        Ended::Done
    }

    fn words(&mut self, count: u64, gap: Duration, spoken: &mut Spoken) -> Ended {
        for index in 1..=count {
            self.tell(&format!("word{index} "), spoken);
            if let Some(stop) = self.pause(Some(gap)) {
                return Ended::Stopped(stop);
            }
        }
        Ended::Done
    }

    /// Tells what the machine's monotonic clock shows, in nanoseconds: whoever
    /// reads it knows how long it was on its way.
    fn clock(&mut self, count: u64, gap: Duration, spoken: &mut Spoken) -> Ended {
        for _ in 0..count {
            if let Some(stop) = self.pause(Some(gap)) {
                return Ended::Stopped(stop);
            }
            let clock = ClockId::CLOCK_MONOTONIC;
            let now = clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
            self.tell(&now.as_nanos().to_string(), spoken);
        }
        Ended::Done
    }

    fn flood(&mut self, count: u64, size: usize, spoken: &mut Spoken) -> Ended {
        let text = "x".repeat(size);
        let event = Event::Text {
            message_id: spoken.message.clone(),
            text,
        };
        let event = serde_json::to_string(&event).unwrap_or_default();
        let line = format!(
            r#"{{"protocolVersion":{PROTOCOL_VERSION},"type":"sdk_event","event":{event}}}"#
        );
        for index in 0..count {
            self.put_line(line.as_bytes());
            if index % 64 == 63
                && let Some(stop) = self.poll()
            {
                self.flush();
                return Ended::Stopped(stop);
            }
        }
        self.flush();
        Ended::Done
    }

    fn tool(&mut self, name: &str, text: &str) {
        let call_id = new_id("call");
        self.call(&call_id, name, json!({"text": text}));
        self.result(call_id, name, true, text);
    }

    fn long_tool(&mut self, time: Duration) -> Ended {
        let call_id = new_id("call");
        self.call(&call_id, "bash", json!({"command": "sleep"}));
        let stop = self.pause(Some(time));
        self.result(
            call_id,
            "bash",
            stop.is_none(),
            if stop.is_some() {
                "interrupted"
            } else {
                "done"
            },
        );
        stop.map_or(Ended::Done, Ended::Stopped)
    }

    pub(super) fn call(&mut self, call_id: &str, name: &str, input: Value) {
        self.event(&Event::ToolCall {
            call_id: call_id.into(),
            name: name.into(),
            input,
        });
    }

    pub(super) fn result(&mut self, call_id: String, name: &str, ok: bool, text: &str) {
        self.event(&Event::ToolResult {
            call_id,
            name: name.into(),
            ok,
            text: text.into(),
        });
    }

    fn notice(&mut self) {
        self.put(&FromWorker::UiNotice(UiNotice {
            turn_id: None,
            payload: NoticePayload {
                origin: CardOrigin::Tool,
                level: NoticeLevel::Info,
                message: "a notice without a turn".into(),
                source_id: None,
                detail: None,
            },
        }));
    }

    fn child(&mut self, seconds: u64, spoken: &mut Spoken) {
        let said = match Command::new("sleep")
            .arg(seconds.to_string())
            .stdin(Stdio::null())
            .spawn()
        {
            Ok(child) => format!("child {}\n", child.id()),
            Err(error) => format!("no child: {error}\n"),
        };
        self.tell(&said, spoken);
    }

    fn grandchild(&mut self, seconds: u64, spoken: &mut Spoken) {
        let said = match start_orphan(seconds) {
            Ok(pid) => format!("grandchild {pid}\n"),
            Err(error) => format!("no grandchild: {error}\n"),
        };
        self.tell(&said, spoken);
    }
}

/// What an agent says whose login token has expired: two fragments that a broker
/// knows, broken over lines, with the id of a request behind them.
fn stale_token() -> String {
    format!(
        "[unauthenticated] Authentication error\nIf you are logged in, try logging out and back in. \
         (request id: {})",
        new_id("req")
    )
}

pub(super) fn new_id(kind: &str) -> String {
    format!(
        "{kind}_{}",
        &uuid::Uuid::new_v4().simple().to_string()[..12]
    )
}

/// Starts a process that starts the sleeper in a session of its own and ends.
/// The sleeper keeps the frames' pipe open: the starter gets it as its standard
/// input, since its standard output tells the sleeper's pid.
fn start_orphan(seconds: u64) -> io::Result<String> {
    use std::os::unix::process::CommandExt;
    let frames = io::stdout().as_fd().try_clone_to_owned()?;
    let output = Command::new(process::own_program()?)
        .arg0(HOST_ARGV0)
        .args([ORPHAN_ARG, &seconds.to_string()])
        .stdin(Stdio::from(frames))
        .stderr(Stdio::inherit())
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The starter's half of [`start_orphan`].
pub(crate) fn be_orphan(seconds: &str) -> io::Result<()> {
    nix::unistd::setsid()?;
    let frames = io::stdin().as_fd().try_clone_to_owned()?;
    let child = Command::new("sleep")
        .arg(seconds)
        .stdin(Stdio::null())
        .stdout(Stdio::from(frames))
        .stderr(Stdio::null())
        .spawn()?;
    io::stdout().write_all(child.id().to_string().as_bytes())
}

/// Lines of log-like text without end.
struct Noise;

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        const LINE: &[u8] = b"[scripted] a line of noise on standard error, sixty-four bytes..\n";
        let length = buffer.len().min(LINE.len());
        buffer[..length].copy_from_slice(&LINE[..length]);
        Ok(length)
    }
}
