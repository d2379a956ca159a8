//! What the host says.

use ade_protocol::card::CardOrigin;
use ade_protocol::codec::{self, Line};
use ade_protocol::event::{EventKind, NoticeLevel};
use ade_protocol::frame::{
    FrameFault, FromWorker, Header, Known, NoticePayload, Ready, ReadyFrame, Response, ToWorker,
    UiCancel, UiNotice, UiRequest, code,
};
use ade_protocol::limits::{MAX_LINE, MAX_MALFORMED_IN_A_ROW};
use ade_protocol::strict;
use ade_protocol::{PROTOCOL_VERSION, RequestId};
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

use super::Session;
use super::file::SessionFile;
use crate::cards::Asked;
use crate::host::HostEvent;
use crate::ladder::StopStage;
use crate::outbox::Weight;
use crate::pending::Kind;
use crate::providers::Mapped;

/// How long a host that closed one of its pipes may take to end, before it
/// counts as one that lives on.
const PIPE_CLOSED: Duration = Duration::from_millis(500);

/// Bytes that an `event` frame adds to the event that it carries, at most.
const EVENT_FRAME: usize = 256;

/// What a host reports that this worker tells the broker in its own words: it
/// acts on them.
const OWN_OPERATIONS: &[&str] = &[
    "sweep",
    code::LEASE_LOST,
    code::HOST_EXITED,
    code::PROTOCOL_ERROR,
    code::FRAME_TOO_LONG,
];

/// Lifecycle events that this worker tells in its own words.
const OWN_WORDS: &[&str] = &["worker_started", "ready", "host_exited", "stopping"];

impl Session {
    pub(super) fn on_host(&mut self, event: HostEvent) {
        let patience = Some(Instant::now() + PIPE_CLOSED);
        match event {
            HostEvent::Joined(joined) => self.host_joined(joined),
            HostEvent::Output => {
                self.hidden.stir(Instant::now());
                self.take_lines();
            }
            HostEvent::OutputClosed => self.output_closed = patience,
            HostEvent::InputBroken => self.input_broken = patience,
            HostEvent::Exited(status) => self.host_exited(status),
        }
    }

    /// Takes what the host has said by now. Whoever is about to judge its silence
    /// does so first: it may be this process that was held up.
    pub(super) fn glance(&mut self) {
        if let Some(host) = &mut self.host {
            host.glance();
            self.take_lines();
        }
    }

    /// Takes every whole line that has arrived.
    pub(super) fn take_lines(&mut self) {
        while let Some(line) = self.host.as_mut().and_then(crate::host::Host::line) {
            match line {
                Line::Whole(line) => self.on_host_line(&line),
                Line::Half(half) => {
                    // Half a line may be anything; only what is complete was meant.
                    if serde_json::from_slice::<IgnoredAny>(&half).is_ok() {
                        self.on_host_line(&half);
                    } else {
                        self.counts.noise += 1;
                        self.noise.push(&half);
                    }
                }
                Line::TooLong(_) => self.line_too_long(),
            }
        }
        if self
            .host
            .as_ref()
            .is_some_and(crate::host::Host::line_too_long)
        {
            self.line_too_long();
        }
    }

    fn line_too_long(&mut self) {
        let message = "the agent wrote a line of more than 16 MiB".to_owned();
        self.fail(code::FRAME_TOO_LONG, message, None, StopStage::Dispose);
    }

    fn on_host_line(&mut self, line: &[u8]) {
        let text = codec::text(line);
        let header = match Header::read(&text) {
            Ok(header) => header,
            Err(fault) => return self.fault(fault, line),
        };
        self.frames += 1;
        let kind = header.kind.clone();
        if kind == "sdk_event"
            && let Some(raw) = header.event
        {
            self.counts.malformed_in_a_row = 0;
            if self.is_of_another_turn(&header) {
                self.counts.stray += 1;
            } else {
                self.sdk_event(raw);
            }
            return;
        }
        match FromWorker::parse_body(&kind, &text) {
            Err(fault) => {
                let useless = self.useless_answer(&kind, &text, &fault);
                self.fault(fault, line);
                if let Some(message) = useless {
                    self.fail(code::PROTOCOL_ERROR, message, None, StopStage::Dispose);
                }
                return;
            }
            Ok(Known::UnknownType(kind)) => self.unknown_type("agent", &kind),
            Ok(Known::Frame(frame)) => self.on_host_frame(frame),
        }
        self.counts.malformed_in_a_row = 0;
    }

    /// What is wrong with a malformed frame that was to answer a request in flight:
    /// nothing else will, so there is no use in waiting until the time for it is up.
    fn useless_answer(&self, kind: &str, text: &str, fault: &FrameFault) -> Option<String> {
        match kind {
            "ready" if self.requests.awaits_ready() => {
                let field = ReadyFrame::wrong_field(text);
                let field = field.map_or_else(String::new, |field| format!(" (field `{field}`)"));
                Some(format!("the agent's `ready` is not valid{field}: {fault}"))
            }
            "response" => {
                let id = Response::names(text)?;
                let name = self.requests.kind_of(&id)?.name();
                Some(format!(
                    "the agent's answer to `{name}` is not valid: {fault}"
                ))
            }
            _ => None,
        }
    }

    fn is_of_another_turn(&self, header: &Header<'_>) -> bool {
        let running = self.turn.as_ref().map(|turn| turn.id.as_str());
        header.turn_id.is_some() && header.turn_id.as_deref() != running
    }

    /// Counts what is not a frame; never tells what stood in it.
    fn fault(&mut self, fault: FrameFault, line: &[u8]) {
        match fault {
            FrameFault::Noise => {
                self.counts.noise += 1;
                self.noise.push(line);
                self.noise.push(b"\n");
            }
            FrameFault::Version { ref got } if self.ready.is_none() && got != "none" => {
                self.fail(
                    code::PROTOCOL_ERROR,
                    fault.to_string(),
                    None,
                    StopStage::Dispose,
                );
            }
            fault => {
                self.counts.malformed += 1;
                self.counts.malformed_in_a_row += 1;
                if self.counts.malformed.is_power_of_two() {
                    let (count, length) = (self.counts.malformed, line.len());
                    let message = format!(
                        "malformed line no. {count} from the agent, {length} bytes: {fault}"
                    );
                    self.log("warn", &message);
                }
                if self.counts.malformed_in_a_row == MAX_MALFORMED_IN_A_ROW {
                    let message = format!(
                        "the agent wrote {MAX_MALFORMED_IN_A_ROW} malformed frames in a row"
                    );
                    self.fail(code::PROTOCOL_ERROR, message, None, StopStage::Dispose);
                }
            }
        }
    }

    fn sdk_event(&mut self, raw: &RawValue) {
        if self.failed.is_some() {
            return;
        }
        let out = &mut self.link.out;
        let turn = self.turn.as_ref().map(|turn| &turn.id);
        let (mut made, mut stray, mut too_long, mut tool) = (false, 0, 0, false);
        let (mut notice, mut refused) = (None, None);
        let mapped = self.mapper.map(raw, |said| match said {
            Mapped::Event(kind, event) => {
                tool |= matches!(kind, EventKind::ToolCall | EventKind::ToolResult);
                if event.len() > MAX_LINE - EVENT_FRAME {
                    too_long += 1;
                } else if turn.is_none() && !is_turnless(kind) {
                    stray += 1;
                } else {
                    out.event(turn, event);
                    made = true;
                }
            }
            Mapped::Notice(level, message) => notice = Some((level, message)),
            Mapped::Refused(name) => refused = Some(name),
        });
        self.counts.stray += stray;
        if tool {
            self.hidden.stir_soon(Instant::now());
        }
        if let Some(turn) = &mut self.turn {
            turn.seen |= made;
        }
        if let Some((level, message)) = notice {
            self.notice(level, &message);
        }
        if let Some(name) = refused {
            self.refuse_event(&name);
        }
        if too_long > 0 {
            self.log("warn", "an event of more than 16 MiB was left out");
        }
        if let Err(error) = mapped {
            self.counts.unmapped += 1;
            if self.counts.unmapped.is_power_of_two() {
                self.log("warn", &error.to_string());
            }
        }
    }

    /// A notice in the running turn, if there is one.
    fn notice(&mut self, level: NoticeLevel, message: &str) {
        let payload = NoticePayload {
            origin: CardOrigin::Extension,
            level,
            message: self.masker.mask(message).into_owned(),
            source_id: None,
            detail: None,
        };
        let turn_id = self.turn.as_ref().map(|turn| turn.id.clone());
        let notice = UiNotice { turn_id, payload };
        self.send(&FromWorker::UiNotice(notice), Weight::Informs);
    }

    /// An agent may not speak for the broker: the event is left out and the turn
    /// goes on. Told once a turn.
    fn refuse_event(&mut self, name: &str) {
        self.counts.refused += 1;
        let turn = self.turn.as_ref().map(|turn| turn.id.clone());
        let told = self.refused_in.replace(turn.clone());
        if told == Some(turn) {
            return;
        }
        let host = crate::host::describe(&self.boot.host);
        let instead = match name {
            "notice" => "; it can send a `ui_notice` frame",
            "card_opened" => "; it can send a `ui_request` frame",
            "status" | "done" => "; a turn ends with the response to its `send`",
            _ => "",
        };
        let message = format!(
            "The agent's host ({host}) sent an event `{name}`, which is not a host's to \
             send{instead}. It was left out."
        );
        self.notice(NoticeLevel::Warn, &message);
    }

    fn on_host_frame(&mut self, frame: FromWorker) {
        match frame {
            FromWorker::Ready(frame) => {
                match self.requests.take_where(|kind| *kind == Kind::Init) {
                    Some(pending) => self.on_ready(pending.id, frame.ready),
                    None => {
                        let message = "the agent sent a `ready` that nobody asked for".to_owned();
                        self.fail(code::PROTOCOL_ERROR, message, None, StopStage::Dispose);
                    }
                }
            }
            FromWorker::Response(response) => self.on_response(response),
            FromWorker::UiRequest(card) => self.on_card(*card),
            FromWorker::UiCancel(cancel) => self.on_cancel(cancel),
            FromWorker::UiNotice(mut notice) => {
                let running = self.turn.as_ref().map(|turn| &turn.id);
                if notice.turn_id.as_ref() != running {
                    // For no other turn: that one is over, or never was.
                    notice.turn_id = None;
                }
                notice.payload.message = self.masker.mask(&notice.payload.message).into_owned();
                self.send(&FromWorker::UiNotice(notice), Weight::Informs);
            }
            FromWorker::Lifecycle(mut lifecycle) => {
                if !OWN_WORDS.contains(&lifecycle.event.as_str()) {
                    lifecycle.detail = lifecycle.detail.map(|detail| self.mask_value(detail));
                    self.send(&FromWorker::Lifecycle(lifecycle), Weight::Informs);
                }
            }
            FromWorker::Error(mut error) => {
                error.error = self.masker.mask(&error.error).into_owned();
                error.detail = error.detail.map(|detail| self.mask_value(detail));
                if OWN_OPERATIONS.contains(&error.operation.as_str()) {
                    error.operation = format!("agent:{}", error.operation);
                }
                self.send(&FromWorker::Error(error), Weight::Informs);
            }
            FromWorker::Log(mut log) => {
                log.message = self.masker.mask(&log.message).into_owned();
                log.detail = log.detail.map(|detail| self.mask_value(detail));
                self.send(&FromWorker::Log(log), Weight::Informs);
            }
            // A host has none of these; without its event an `sdk_event` says nothing.
            FromWorker::Hello(_) | FromWorker::Event(_) | FromWorker::SdkEvent(_) => {
                self.counts.stray += 1;
            }
        }
    }

    fn on_ready(&mut self, id: RequestId, ready: Ready) {
        if ready.protocol_version != PROTOCOL_VERSION {
            let got = ready.protocol_version;
            let message = format!(
                "the agent's host speaks protocol version {got}, this worker {PROTOCOL_VERSION}"
            );
            self.refuse(id, code::PROTOCOL_ERROR, &message);
            return self.fail(code::PROTOCOL_ERROR, message, None, StopStage::Dispose);
        }
        self.requests.add(id, Kind::Init, Instant::now());
        if let Some(file) = ready.session_file.as_ref().map(PathBuf::from)
            && let Err(refused) = self.take_lease(&file)
        {
            return self.init_refused(refused);
        }
        let Some(pending) = self.requests.take_where(|kind| *kind == Kind::Init) else {
            return;
        };
        let root = self.init.as_ref().map(|init| &init.store.session_root);
        self.file = (ready.session_file.as_ref().zip(root))
            .map(|(file, root)| SessionFile::opened(file.into(), root.into()));
        let host = self.host.as_ref().map(crate::host::Host::pid);
        let detail = json!({"hostPid": host, "leaseHeld": self.lease.is_some()});
        self.lifecycle("ready", Some(detail));
        self.respond(Response::ok(pending.id, &ready), Weight::Answers);
        self.ready = Some(ready);
        self.idle_since = Instant::now();
    }

    fn on_response(&mut self, response: Response) {
        if self.host_dispose.as_ref() == Some(&response.request_id) {
            return;
        }
        let Some(pending) = self.requests.take(&response.request_id) else {
            // `init` was answered by `ready` already; anything else is a second
            // answer, or one to nothing.
            self.counts.stray += u64::from(self.init_id.as_ref() != Some(&response.request_id));
            return;
        };
        if response.ok && !pending.kind.accepts(response.result.as_deref()) {
            let name = pending.kind.name();
            self.requests.put_back(pending);
            let message =
                format!("the agent answered `{name}` with something that is no result of it");
            return self.fail(code::PROTOCOL_ERROR, message, None, StopStage::Dispose);
        }
        match &pending.kind {
            Kind::Init if response.ok => {
                let text = response.result.as_deref().map_or("null", RawValue::get);
                if let Ok(ready) = strict::from_str(text) {
                    self.on_ready(pending.id, ready);
                }
            }
            Kind::Init => {
                self.requests.put_back(pending);
                let code = response.error_code.as_deref().unwrap_or("provider_error");
                let message = response
                    .error
                    .as_deref()
                    .unwrap_or("the agent could not be opened");
                self.init_failed(code, message, response.detail.clone());
            }
            Kind::Send(_) => self.turn_ends(response),
            Kind::Steer | Kind::LateSteer if response.ok => {
                if self.steers_taken.len() == ade_protocol::frame::WorkerState::MAX_STEERS {
                    self.steers_taken.pop_front();
                }
                self.steers_taken.push_back(response.request_id.clone());
                self.respond(response, Weight::Answers);
            }
            Kind::SetModel | Kind::SetThinking if response.ok => {
                let text = response.result.as_deref().map_or("null", RawValue::get);
                self.ready = strict::from_str(text).ok().or(self.ready.take());
                self.respond(response, Weight::Answers);
            }
            _ => self.respond(response, Weight::Answers),
        }
    }

    /// Forwards the end of the turn, behind all of its events.
    pub(super) fn turn_ends(&mut self, mut response: Response) {
        self.withdraw_cards();
        self.idle_since = Instant::now();
        self.hidden.stir_soon(self.idle_since);
        // Its first turn makes the file.
        if let Some(file) = &mut self.file {
            file.remember();
        }
        if let Some(turn) = self.turn.take() {
            self.last_seen = turn.seen;
            // A broker that was not there when the turn began knows the turn
            // and not the request.
            let detail = response.detail.take();
            let mut detail = match detail {
                Some(serde_json::Value::Object(fields)) => fields,
                _ => serde_json::Map::new(),
            };
            detail.insert("turnId".into(), json!(turn.id));
            response.detail = Some(detail.into());
        }
        self.respond(response, Weight::EndsTurn);
        // A host that never answers an abort would else be ended for it in the
        // middle of the next turn.
        for asked in self.requests.turn_ended() {
            self.respond(Response::ok(asked.id, &()), Weight::Answers);
        }
    }

    fn on_card(&mut self, mut card: UiRequest) {
        let turn = self.turn.as_ref().map(|turn| turn.id.clone());
        let is_turns = card.turn_id.is_none() || card.turn_id == turn;
        if !is_turns
            || self.is_stopping()
            || (turn.is_none() && card.payload.origin != CardOrigin::Auth)
        {
            self.counts.stray += 1;
            let denied = ade_protocol::frame::UiResponse {
                request_id: card.request_id,
                ok: false,
                value: None,
                error: Some("no turn is running that could ask".into()),
            };
            return self.tell_host(&ToWorker::UiResponse(denied));
        }
        card.turn_id = turn;
        match self.cards.ask(&card) {
            Asked::Settled(answer) => self.tell_host(&ToWorker::UiResponse(answer)),
            Asked::Open => {
                if let Some(turn) = &mut self.turn {
                    turn.seen = true;
                }
                self.send(&FromWorker::UiRequest(Box::new(card)), Weight::Now);
            }
        }
    }

    fn on_cancel(&mut self, cancel: UiCancel) {
        if self.cards.withdraw(&cancel.request_id) {
            self.send(&FromWorker::UiCancel(cancel), Weight::Now);
        } else {
            self.counts.stray += 1;
        }
    }
}

/// Whether an event means something outside of a turn as well.
fn is_turnless(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::ContextUsage | EventKind::ContextCompact | EventKind::Activity
    )
}
