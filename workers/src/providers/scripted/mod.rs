//! The scripted host: an agent without a model, embedded in the executable. It
//! answers by rote, and a prompt can make it do everything that a real host may
//! do wrong. Plain synchronous code: one thread reads the input, the main
//! thread acts, so that an abort ends any step at once.
//!
//! A prompt whose lines all begin with `!` is a script (see [`script`] for the
//! steps); `!recall` alone streams what the session file knows; any other
//! prompt is answered with "You said: …".
//!
//! Its session file has the shape of Pi's and is written from the first user
//! message on. It holds no lease: the worker above it does.

mod cards;
mod delivery;
mod opening;
mod script;
mod store;
mod turn;

use std::collections::VecDeque;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use ade_protocol::RequestId;
use ade_protocol::frame::{
    Empty, FromWorker, Init, Known, Lifecycle, Ready, ReadyFrame, Request, Response, SdkEvent,
    SteerOutcome, SteerResult, ToWorker, UiResponse, code,
};
use nix::sys::signal::{SigSet, Signal};
use serde_json::value::to_raw_value;

use ade_protocol::event::Event;
use opening::{models, no_such_model, open};
use store::Store;

pub(crate) use turn::{ORPHAN_ARG, be_orphan};

/// What this host calls itself.
pub(crate) const PROVIDER: &str = "scripted";

/// Stack of the threads beside the main one; they only wait and parse.
const STACK: usize = 256 * 1024;

/// What the reading thread passes on.
enum Input {
    Frame(Box<ToWorker>),
    End,
}

/// Switches that other threads see.
#[derive(Default)]
struct Switches {
    ignore_stop: AtomicBool,
    stop_reading: AtomicBool,
}

/// The host's state; the main thread owns it.
struct Host {
    input: Receiver<Input>,
    out: io::BufWriter<io::Stdout>,
    switches: Arc<Switches>,
    opened: Option<Opened>,
    running: Option<Running>,
    answers: Vec<UiResponse>,
    later: VecDeque<String>,
    disposer: Option<RequestId>,
    /// How much later an abort is answered, and behind which word.
    slow_abort: (Duration, String),
}

/// What `init` opened.
struct Opened {
    ready: Ready,
    store: Option<Store>,
}

/// The turn that runs.
#[derive(Default)]
struct Running {
    stop: Option<Stop>,
    aborters: Vec<RequestId>,
    /// Messages for it are taken and not read: these. As many as a test sends.
    unread: Option<Vec<String>>,
    /// Nothing is said of that.
    silent: bool,
    /// Messages for it are answered behind its end: these.
    late: Option<Vec<RequestId>>,
}

/// Why a step ends early.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// By `abort`.
    Aborted,
    /// The host ends.
    Ending,
}

/// Whether the host goes on.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    End,
}

/// Runs until the input ends or `dispose`.
pub(crate) fn run() -> ExitCode {
    let switches = Arc::new(Switches::default());
    let input = match start_threads(&switches) {
        Ok(input) => input,
        Err(error) => {
            // Losing it would only lose the reason.
            let _ = writeln!(io::stderr(), "ade-host: could not start a thread: {error}");
            return ExitCode::from(71);
        }
    };
    let mut host = Host {
        input,
        out: io::BufWriter::with_capacity(32 * 1024, io::stdout()),
        switches,
        opened: None,
        running: None,
        answers: Vec::new(),
        later: VecDeque::new(),
        disposer: None,
        slow_abort: (Duration::ZERO, String::new()),
    };
    loop {
        let frame = match host.input.recv() {
            Ok(Input::Frame(frame)) => *frame,
            Ok(Input::End) | Err(_) if host.ignores_stop() => host.wait_for_ever(),
            Ok(Input::End) | Err(_) => return ExitCode::SUCCESS,
        };
        if host.on(frame) == Flow::End {
            return ExitCode::SUCCESS;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a host that SIGTERM ends leaves nothing behind"
)]
fn start_threads(switches: &Arc<Switches>) -> io::Result<Receiver<Input>> {
    // Blocked in every thread, so that only the waiting one is ever told.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGHUP);
    signals.thread_block()?;
    let told = Arc::clone(switches);
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || {
            loop {
                if let Ok(signal) = signals.wait()
                    && !told.ignore_stop.load(Ordering::Relaxed)
                {
                    std::process::exit(128 + signal as i32);
                }
            }
        })?;
    let (sender, receiver) = channel();
    let seen = Arc::clone(switches);
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || read_frames(&seen, &sender))?;
    Ok(receiver)
}

/// Passes frames on until the input ends. What is no frame is skipped.
fn read_frames(switches: &Switches, sender: &Sender<Input>) {
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    loop {
        let got = input.fill_buf();
        // One read may have begun before the switch was set; nothing of it counts.
        while switches.stop_reading.load(Ordering::Relaxed) {
            std::thread::park();
        }
        let chunk = match got {
            Ok(chunk) if !chunk.is_empty() => chunk,
            _ => break,
        };
        let end = chunk.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&chunk[..end.unwrap_or(chunk.len())]);
        let used = end.map_or(chunk.len(), |end| end + 1);
        input.consume(used);
        if end.is_none() {
            continue;
        }
        let frame = ToWorker::parse(&String::from_utf8_lossy(&line));
        line.clear();
        if let Ok(Known::Frame(frame)) = frame
            && sender.send(Input::Frame(Box::new(frame))).is_err()
        {
            return;
        }
    }
    // Nobody listens any more when this fails.
    let _ = sender.send(Input::End);
}

impl Host {
    fn ignores_stop(&self) -> bool {
        self.switches.ignore_stop.load(Ordering::Relaxed)
    }

    fn wait_for_ever(&self) -> ! {
        loop {
            std::thread::park();
        }
    }

    /// Takes a frame, between turns and inside of one.
    fn on(&mut self, frame: ToWorker) -> Flow {
        match frame {
            ToWorker::Init(request) => self.init(request),
            ToWorker::Send(request) => {
                let Request { request_id, body } = request;
                if self
                    .opened
                    .as_ref()
                    .is_none_or(|opened| opened.store.is_none())
                {
                    self.refuse(request_id, code::NOT_READY, "no session is open");
                } else if self.running.is_some() {
                    self.refuse(request_id, code::BUSY, "a turn is running");
                } else {
                    return self.turn(request_id, &body);
                }
            }
            ToWorker::Steer(request) => self.steer(request.request_id, &request.body.prompt),
            ToWorker::FollowUp(request) => {
                self.later.push_back(request.body.prompt);
                self.answer(request.request_id, &());
            }
            ToWorker::Abort(request) => {
                self.later.clear();
                match &mut self.running {
                    // Answered behind the `send` that it ends.
                    Some(running) => {
                        running.stop = running.stop.or(Some(Stop::Aborted));
                        running.aborters.push(request.request_id);
                    }
                    None => self.answer(request.request_id, &()),
                }
            }
            ToWorker::Dispose(request) => return self.dispose(request),
            ToWorker::SetModel(request) => {
                self.set_model(request.request_id, &request.body.model_ref);
            }
            ToWorker::SetThinking(request) => {
                if let Some(opened) = &mut self.opened {
                    opened.ready.thinking_level = request.body.thinking_level;
                }
                self.answer_ready(request.request_id);
            }
            ToWorker::Compact(request) => self.compact(request.request_id),
            ToWorker::ContextUsage(request) => {
                let usage =
                    serde_json::json!({"tokens": 1234, "contextWindow": 200_000, "percent": 0.6});
                self.answer(request.request_id, &usage);
            }
            ToWorker::Models(request) => self.answer(request.request_id, &models()),
            ToWorker::Auth(request) => self.answer(request.request_id, &[(); 0]),
            ToWorker::UiResponse(answer) => self.answers.push(answer),
            ToWorker::Attach(_) | ToWorker::Ack(_) => {}
        }
        Flow::On
    }

    fn init(&mut self, request: Request<Box<Init>>) {
        let Request {
            request_id,
            body: init,
        } = request;
        self.lifecycle("initializing");
        match open(&init) {
            Err((code, message)) => self.refuse(request_id, code, &message),
            Ok(opened) => {
                let ready = ReadyFrame {
                    ready: opened.ready.clone(),
                };
                self.opened = Some(opened);
                self.put(&FromWorker::Ready(Box::new(ready)));
                self.lifecycle("ready");
                self.answer_ready(request_id);
            }
        }
    }

    fn steer(&mut self, id: RequestId, prompt: &str) {
        let Some(running) = &mut self.running else {
            self.refuse(
                id,
                "no_turn",
                "no turn is running; send the message as a turn of its own",
            );
            return;
        };
        let (unread, silent) = (running.unread.as_mut(), running.silent);
        let is_unread = unread
            .map(|unread| unread.push(prompt.to_owned()))
            .is_some();
        if let Some(late) = &mut running.late {
            late.push(id);
        } else {
            // First: what it does then is an answer to a message that is known.
            self.took(id);
        }
        if is_unread {
            if !silent {
                self.say("kept");
            }
            return;
        }
        if let Some(store) = self
            .opened
            .as_mut()
            .and_then(|opened| opened.store.as_mut())
        {
            store.user(prompt);
        }
        let text = format!("steered: {prompt}");
        self.say(&text);
    }

    fn took_all(&mut self, late: Option<Vec<RequestId>>) {
        for steer in late.unwrap_or_default() {
            self.took(steer);
        }
    }

    fn took(&mut self, id: RequestId) {
        let outcome = SteerOutcome::Delivered;
        self.answer(id, &SteerResult { outcome });
    }

    /// Ends the host, a running turn with its own response first.
    fn dispose(&mut self, request: Request<Empty>) -> Flow {
        if self.ignores_stop() {
            return Flow::On;
        }
        self.disposer = Some(request.request_id);
        if let Some(running) = &mut self.running {
            running.stop = Some(Stop::Ending);
            return Flow::On;
        }
        self.disposed()
    }

    fn disposed(&mut self) -> Flow {
        self.lifecycle("disposed");
        if let Some(id) = self.disposer.take() {
            self.answer(id, &());
        }
        Flow::End
    }

    fn set_model(&mut self, id: RequestId, reference: &str) {
        match models()
            .into_iter()
            .find(|model| model.reference() == reference)
        {
            Some(model) => {
                if let Some(opened) = &mut self.opened {
                    opened.ready.current_model = Some(model);
                }
                self.answer_ready(id);
            }
            None => self.refuse(id, code::MODEL_NOT_FOUND, &no_such_model(reference)),
        }
    }

    fn compact(&mut self, id: RequestId) {
        for phase in ["started", "completed"] {
            self.event(&Event::ContextCompact {
                phase: phase.into(),
                message: None,
            });
        }
        self.answer(id, &());
    }

    /// Waits `time` (`None`: for ever) and handles what arrives. `Some`: the
    /// running turn is to end.
    fn pause(&mut self, time: Option<Duration>) -> Option<Stop> {
        let until = time.map(|time| Instant::now() + time);
        loop {
            if let Some(stop) = self.running.as_ref().and_then(|running| running.stop) {
                return Some(stop);
            }
            let got = match until {
                None => self
                    .input
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return self.poll();
                    }
                    self.input.recv_timeout(left)
                }
            };
            match got {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Input::Frame(frame)) => {
                    self.on(*frame);
                }
                Ok(Input::End) | Err(RecvTimeoutError::Disconnected) => self.input_ended(until),
            }
        }
    }

    /// Waits for one thing to arrive and handles it. `Some`: the running turn is
    /// to end.
    fn arrival(&mut self) -> Option<Stop> {
        let stop = self.running.as_ref().and_then(|running| running.stop);
        if stop.is_some() {
            return stop;
        }
        match self.input.recv() {
            Ok(Input::Frame(frame)) => {
                self.on(*frame);
            }
            Ok(Input::End) | Err(_) => self.input_ended(None),
        }
        self.running.as_ref().and_then(|running| running.stop)
    }

    /// Handles what is there already.
    fn poll(&mut self) -> Option<Stop> {
        loop {
            match self.input.try_recv() {
                Ok(Input::Frame(frame)) => {
                    self.on(*frame);
                }
                Ok(Input::End) => self.input_ended(Some(Instant::now())),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    return self.running.as_ref().and_then(|running| running.stop);
                }
            }
        }
    }

    /// The end of input ends the turn as well, unless that is to be ignored.
    fn input_ended(&mut self, until: Option<Instant>) {
        if self.ignores_stop() {
            match until {
                None => self.wait_for_ever(),
                Some(until) => std::thread::sleep(until.saturating_duration_since(Instant::now())),
            }
        } else if let Some(running) = &mut self.running {
            running.stop = Some(Stop::Ending);
        }
    }

    fn put(&mut self, frame: &FromWorker) {
        self.put_line(frame.to_line().as_bytes());
        self.flush();
    }

    fn put_line(&mut self, line: &[u8]) {
        // A reader that is gone ends this process by the end of its input.
        let _ = self
            .out
            .write_all(line)
            .and_then(|()| self.out.write_all(b"\n"));
    }

    fn flush(&mut self) {
        let _ = self.out.flush();
    }

    fn event(&mut self, event: &Event) {
        if let Ok(event) = to_raw_value(event) {
            self.put(&FromWorker::SdkEvent(SdkEvent { event }));
        }
    }

    fn lifecycle(&mut self, event: &str) {
        self.put(&FromWorker::Lifecycle(Lifecycle {
            event: event.into(),
            request_id: None,
            detail: None,
        }));
    }

    fn answer<T: serde::Serialize>(&mut self, id: RequestId, result: &T) {
        self.put(&FromWorker::Response(Response::ok(id, result)));
    }

    fn answer_ready(&mut self, id: RequestId) {
        match self.opened.as_ref().map(|opened| opened.ready.clone()) {
            Some(ready) => self.answer(id, &ready),
            None => self.refuse(id, code::NOT_READY, "no session is open"),
        }
    }

    fn refuse(&mut self, id: RequestId, code: &str, message: &str) {
        self.put(&FromWorker::Response(Response::err(id, code, message)));
    }
}
