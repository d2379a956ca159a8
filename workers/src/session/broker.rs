//! What the broker says.

use std::path::Path;

use ade_protocol::codec;
use ade_protocol::frame::{
    Abort, Attach, FrameFault, FromWorker, Init, Known, Request, Response, ToWorker, UiResponse,
    code,
};
use bytes::Bytes;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

use super::file::SessionFile;
use super::{Session, Turn};
use crate::host::{Host, StartError};
use crate::ladder::StopStage;
use crate::link::LinkEvent;
use crate::outbox::Weight;
use crate::pending::Kind;

/// `errorCode` of an `attach` by a broker that a newer one has replaced.
const STALE_FENCE: &str = "stale_fence";

/// How long a refused broker has to read why before the connection is closed.
const REFUSED: Duration = Duration::from_millis(200);

impl Session {
    pub(super) fn on_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Opened => {
                self.attach_by =
                    Some(Instant::now() + Duration::from_millis(self.boot.timing.attach_ms));
                let hello = FromWorker::Hello(Box::new(self.hello())).to_line();
                self.link.send_first(&hello);
            }
            LinkEvent::Lost => self.detached(),
            // `init` was answered, if it was due.
            LinkEvent::Settled => self.write_owner(),
            LinkEvent::Line(line) => self.on_broker_line(line),
            LinkEvent::TooLong(length) => {
                let error =
                    format!("a line of {length} bytes was skipped; a frame has at most 16 MiB");
                self.report(
                    "receive",
                    &error,
                    Some(json!({"errorCode": code::FRAME_TOO_LONG})),
                );
            }
        }
    }

    /// The broker is gone, or was never there.
    pub(super) fn detached(&mut self) {
        self.attached = false;
        self.attach_by = None;
        self.detached_since.get_or_insert_with(Instant::now);
    }

    fn on_broker_line(&mut self, line: Bytes) {
        let frame = ToWorker::parse(&codec::text(&line));
        match frame {
            Ok(Known::Frame(frame)) => self.on_broker_frame(frame, line),
            Ok(Known::UnknownType(kind)) => self.unknown_type("broker", &kind),
            Err(fault @ FrameFault::Version { .. }) => {
                self.report(
                    "receive",
                    &fault.to_string(),
                    Some(json!({"errorCode": code::PROTOCOL_ERROR})),
                );
            }
            Err(fault) => {
                let length = line.len();
                self.log(
                    "warn",
                    &format!("a line of {length} bytes from the broker was skipped: {fault}"),
                );
            }
        }
    }

    fn on_broker_frame(&mut self, frame: ToWorker, line: Bytes) {
        match frame {
            ToWorker::Attach(request) => self.attach(request),
            _ if !self.attached => {}
            ToWorker::Ack(ack) => self.link.out.ack(ack.seq),
            ToWorker::UiResponse(answer) => self.on_answer(answer),
            ToWorker::Dispose(request) => {
                self.disposers.push(request.request_id);
                self.asked_to_stop();
            }
            ToWorker::Init(request) => self.on_init(request, line),
            ToWorker::Send(request) => {
                self.masker.learn_from(&request.body.prompt);
                self.on_send(request, line);
            }
            ToWorker::Abort(request) => self.on_abort(request, line),
            ToWorker::Steer(request) => {
                self.masker.learn_from(&request.body.prompt);
                self.pass(request, Kind::Steer, line);
            }
            ToWorker::FollowUp(request) => {
                self.masker.learn_from(&request.body.prompt);
                self.pass(request, Kind::FollowUp, line);
            }
            ToWorker::SetModel(request) => self.pass(request, Kind::SetModel, line),
            ToWorker::SetThinking(request) => self.pass(request, Kind::SetThinking, line),
            ToWorker::Compact(request) => self.pass(request, Kind::Compact, line),
            ToWorker::ContextUsage(request) => self.pass(request, Kind::ContextUsage, line),
            ToWorker::Models(request) => self.pass(request, Kind::Models, line),
            ToWorker::Auth(request) => self.pass(request, Kind::Auth, line),
        }
    }

    fn attach(&mut self, request: Request<Attach>) {
        let Request { request_id, body } = request;
        let refused = if self.attached {
            Some("this connection is attached already".to_owned())
        } else if body.fence < self.fence {
            let (got, seen) = (body.fence, self.fence);
            Some(format!(
                "fence {got} is older than {seen}: a newer broker has taken this worker over"
            ))
        } else {
            None
        };
        if let Some(message) = refused {
            let response = Response::err(request_id, STALE_FENCE, message);
            self.link
                .send_first(&FromWorker::Response(response).to_line());
            self.attach_by = Some(Instant::now() + REFUSED);
            return;
        }
        self.fence = body.fence;
        self.attached = true;
        self.attach_by = None;
        self.detached_since = None;
        self.link.accepted();
        let response = Response::ok(request_id, &self.hello());
        self.link
            .send_first(&FromWorker::Response(response).to_line());
        self.link.out.attach(body.ack);
        for card in self.cards.open().to_vec() {
            self.send(&FromWorker::UiRequest(Box::new(card)), Weight::Now);
        }
        self.attached_while_over();
    }

    fn on_init(&mut self, request: Request<Box<Init>>, line: Bytes) {
        let Request {
            request_id,
            body: init,
        } = request;
        if self.is_stopping() {
            return self.refuse(request_id, code::STOPPING, "this worker is stopping");
        }
        if self.init.is_some() {
            return self.refuse(
                request_id,
                "already_initialised",
                "this worker was initialised before",
            );
        }
        self.masker.learn_env(
            init.env
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str())),
        );
        let file = init
            .session
            .session_file
            .clone()
            .filter(|_| !init.inventory_only);
        self.init = Some(init);
        self.init_id = Some(request_id.clone());
        self.requests.add(request_id, Kind::Init, Instant::now());
        if let Some(file) = file
            && let Err(refused) = self.take_lease(Path::new(&file))
        {
            return self.init_refused(refused);
        }
        let Some(init) = &self.init else { return };
        match Host::start(
            &self.boot.host,
            &self.boot.provider,
            init,
            self.cgroup.as_ref(),
        ) {
            Ok(host) => {
                let mut host = host;
                host.send(line, false);
                self.host = Some(host);
                self.hidden.stir(Instant::now());
            }
            Err(error) => {
                let code = match error {
                    StartError::NoLane(_) => code::LANE_MISSING,
                    StartError::Spawn { .. } | StartError::Gone => code::HOST_NOT_STARTED,
                };
                self.init_failed(code, &error.to_string(), None);
            }
        }
    }

    fn on_send(&mut self, request: Request<ade_protocol::frame::Send>, line: Bytes) {
        if self.turn.is_some() {
            return self.refuse(request.request_id, code::BUSY, "a turn is running");
        }
        let turn_id = request.body.turn_id.clone();
        if self.forward(request, Kind::Send(turn_id.clone()), line) {
            self.link.out.turn_begins();
            self.last_turn = Some(turn_id.clone());
            self.steers_taken.clear();
            self.hidden.stir(Instant::now());
            self.turn = Some(Turn {
                id: turn_id,
                seen: false,
                abort_asked: false,
            });
        }
    }

    fn on_abort(&mut self, request: Request<Abort>, line: Bytes) {
        if request.body.if_silent {
            return self.on_abort_if_silent(request, line);
        }
        let Some(turn) = self
            .turn
            .as_mut()
            .filter(|turn| turn.id == request.body.turn_id)
        else {
            // It is over, or never was: what the broker wants is so.
            return self.respond(Response::ok(request.request_id, &()), Weight::Answers);
        };
        turn.abort_asked = true;
        // In this order: a host that hears the denial first would go on.
        self.pass(request, Kind::Abort, line);
        self.withdraw_cards();
    }

    /// The broker has heard nothing for too long. What the host has said by now
    /// counts: it may be this process that was held up. Otherwise the host is told,
    /// but the turn is not one that the user ended.
    fn on_abort_if_silent(&mut self, request: Request<Abort>, line: Bytes) {
        self.glance();
        let turn = self.turn.as_ref();
        if turn.is_some_and(|turn| turn.id == request.body.turn_id && !turn.seen) {
            self.pass(request, Kind::AbortIfSilent, line);
        } else {
            self.respond(Response::ok(request.request_id, &()), Weight::Answers);
        }
    }

    fn pass<T>(&mut self, request: Request<T>, kind: Kind, line: Bytes) {
        self.forward(request, kind, line);
    }

    /// Passes a request on. False when it was refused.
    fn forward<T>(&mut self, request: Request<T>, kind: Kind, line: Bytes) -> bool {
        let id = request.request_id;
        if self.is_stopping() {
            let (code, message) = self.why_stopping();
            self.refuse(id, code, &message);
            return false;
        }
        // What the agent does in a turn was begun on the right file.
        if self.turn.is_none()
            && kind.writes()
            && let Some(Err(message)) = self.file.as_mut().map(SessionFile::check)
        {
            self.refuse(id, code::SESSION_CHANGED, &message);
            // An agent that is asked to end may still write.
            self.fail(code::SESSION_CHANGED, message, None, StopStage::Kill);
            return false;
        }
        if matches!(kind, Kind::Send(_)) {
            self.write_owner();
        }
        let Some(host) = self.host.as_mut().filter(|_| self.ready.is_some()) else {
            self.refuse(
                id,
                code::NOT_READY,
                "the agent is not ready; `init` comes first",
            );
            return false;
        };
        let urgent = matches!(kind, Kind::Abort | Kind::AbortIfSilent);
        // A host whose input broke is about to be given up, and takes all
        // open requests with it: this one joins them.
        if host.input_is_open() && !host.send(line, urgent) {
            self.refuse(
                id,
                code::BUSY,
                "the agent does not read its input; too much waits for it",
            );
            return false;
        }
        if !self.requests.add(id.clone(), kind, Instant::now()) {
            self.refuse(
                id,
                code::BUSY,
                "too many requests are open, or this one is open already",
            );
            return false;
        }
        true
    }

    fn on_answer(&mut self, answer: UiResponse) {
        match self.cards.answer(answer) {
            None => self.counts.stray += 1,
            Some((answer, secret)) => {
                if let Some(secret) = secret {
                    self.masker.learn(&secret);
                }
                self.tell_host(&ToWorker::UiResponse(answer));
            }
        }
    }

    pub(super) fn tell_host(&mut self, frame: &ToWorker) {
        if let Some(host) = &mut self.host {
            host.send(frame.to_line().into(), false);
        }
    }

    /// Closes every open card: denied to the host, withdrawn from the broker.
    pub(super) fn withdraw_cards(&mut self) {
        for request_id in self.cards.withdraw_all() {
            let denied = UiResponse {
                request_id: request_id.clone(),
                ok: false,
                value: None,
                error: None,
            };
            self.tell_host(&ToWorker::UiResponse(denied));
            let cancel = ade_protocol::frame::UiCancel { request_id };
            self.send(&FromWorker::UiCancel(cancel), Weight::Now);
        }
    }

    /// `init` did not work; the worker has no other purpose and ends.
    pub(super) fn init_failed(
        &mut self,
        code: &str,
        message: &str,
        detail: Option<serde_json::Value>,
    ) {
        if let Some(pending) = self.requests.take_where(|kind| *kind == Kind::Init) {
            let mut response = Response::err(pending.id, code, message);
            response.detail = detail.map(|detail| self.mask_value(detail));
            self.respond(response, Weight::Answers);
        }
        self.stop(StopStage::Dispose);
    }

    pub(super) fn init_refused(&mut self, refused: super::leasing::Refused) {
        self.init_failed(refused.code, &refused.message, refused.holder);
    }

    pub(super) fn unknown_type(&mut self, from: &str, kind: &str) {
        /// Types that are remembered as logged.
        const MOST: usize = 32;
        let kind: String = kind.chars().filter(|c| !c.is_control()).collect();
        if self.counts.unknown_types.len() < MOST && self.counts.unknown_types.insert(kind.clone())
        {
            self.log(
                "warn",
                &format!("frames of the unknown type {kind:?} from the {from} are skipped"),
            );
        }
    }
}
