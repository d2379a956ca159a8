//! How a worker ends: asked to, or because something failed; the ladder's
//! effects; and the last frames.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use ade_leases::process::cgroup::Folder;
use ade_leases::process::{self, Signal};
use ade_protocol::boot::MARK_ENV;
use ade_protocol::frame::{Empty, Request, Response, SendResult, SendStatus, ToWorker, code};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Session;
use crate::entry::NOT_FOUND;
use crate::host::Host;
use crate::ladder::{Effect, Input, StopStage};
use crate::outbox::Weight;
use crate::pending::{Kind, Pending};
use crate::platform;
use crate::tree;

/// How long a broker that is there may take to acknowledge the last events.
const LAST_ACKS: Duration = Duration::from_secs(1);

/// How often what survived SIGKILL is looked at; its end is also told by
/// SIGCHLD.
const VIGIL_LOOK: Duration = Duration::from_millis(500);

/// Lines and bytes of the host's stderr that an error shows.
const STDERR_SHOWN: (usize, usize) = (40, 8 * 1024);

/// Lines and bytes of the host's noise that an error shows.
const NOISE_SHOWN: (usize, usize) = (10, 2 * 1024);

/// Why a worker ends without being asked to.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    code: &'static str,
    message: String,
    detail: Option<Value>,
}

impl Session {
    /// A dispose or a signal: the ladder, or one stage ahead on it.
    pub(super) fn asked_to_stop(&mut self) {
        self.asked_to_end = true;
        self.stop(StopStage::Dispose);
    }

    /// Something makes this worker useless: whoever waits is told why, and it
    /// stops, from `stage` on. The first reason stays the reason.
    pub(super) fn fail(
        &mut self,
        code: &'static str,
        message: String,
        detail: Option<Value>,
        stage: StopStage,
    ) {
        if self.failed.is_none() {
            let told = json!({"errorCode": code, "detail": detail});
            self.report(code, &message, Some(told));
            self.failed = Some(Failure {
                code,
                message,
                detail,
            });
            self.fail_requests();
        }
        if self.ladder.stage() < Some(stage) {
            self.stop(stage);
        }
    }

    /// What a request is refused with that came too late. One that had waited
    /// behind a refused message is told as much as that one.
    pub(super) fn why_stopping(&self) -> (&'static str, String) {
        match &self.failed {
            Some(failure) if failure.code == code::SESSION_CHANGED => {
                (failure.code, failure.message.clone())
            }
            _ => (code::STOPPING, "this worker is stopping".to_owned()),
        }
    }

    /// Begins the ladder at `stage`, or climbs it.
    pub(super) fn stop(&mut self, stage: StopStage) {
        let now = Instant::now();
        if self.host.is_none() {
            self.ladder.on(Input::HostGone, now);
        }
        let effect = self.ladder.on(Input::Stop(stage), now);
        self.climb(effect);
    }

    /// Does what the ladder says.
    pub(super) fn climb(&mut self, mut effect: Option<Effect>) {
        while let Some(now) = effect.take() {
            match now {
                Effect::Enter(stage) => {
                    self.lifecycle("stopping", Some(json!({"stage": stage.name()})));
                    effect = self.enter(stage);
                }
                Effect::Round => effect = self.sweep(),
                Effect::Finished { clean } => self.ladder_is_over(clean),
            }
        }
    }

    fn enter(&mut self, stage: StopStage) -> Option<Effect> {
        match stage {
            StopStage::Dispose => {
                let request = Request::new(Empty {});
                self.host_dispose = Some(request.request_id.clone());
                // In this order: a host that hears the denial first would go on.
                self.tell_host(&ToWorker::Dispose(request));
                self.withdraw_cards();
            }
            StopStage::Eof => {
                if let Some(host) = &mut self.host {
                    host.close_stdin();
                }
            }
            StopStage::Term | StopStage::Kill => {
                self.withdraw_cards();
                if let Some(host) = &self.host {
                    if stage == StopStage::Kill {
                        host.signal(Signal::SIGKILL);
                    } else {
                        host.signal(Signal::SIGTERM);
                        // A stopped process would not see it before it goes on.
                        host.signal(Signal::SIGCONT);
                    }
                }
            }
            StopStage::Sweep => return self.sweep(),
        }
        None
    }

    fn sweep(&mut self) -> Option<Effect> {
        let mark = self.mark.as_deref().map(|mark| (MARK_ENV, mark));
        let host = self.host.as_ref().map(Host::pid);
        let cgroup = self.cgroup.as_ref();
        let left = match tree::kill_below(host, mark, cgroup, &self.survivors) {
            Ok(alive) => {
                let left = alive.len();
                self.survivors = alive;
                left
            }
            Err(error) => {
                self.log(
                    "error",
                    &format!("what is left of the agent can't be seen: {error}"),
                );
                // Not known is not none.
                1
            }
        };
        self.ladder.on(Input::Swept { left }, Instant::now())
    }

    /// The host was reaped, and everything that it wrote was taken in.
    pub(super) fn host_exited(&mut self, status: ExitStatus) {
        self.take_lines();
        let Some(host) = self.host.take() else { return };
        let never_ran = self.frames == 0 && status.code() == Some(i32::from(NOT_FOUND));
        let exit = describe(status);
        let (lines, bytes) = STDERR_SHOWN;
        let stderr = self
            .masker
            .mask(&host.stderr().last_lines(lines, bytes))
            .into_owned();
        let stderr_bytes = host.stderr().seen();
        drop(host);
        tree::reap_strangers(None);
        self.input_broken = None;
        self.output_closed = None;
        let detail = self.exit_detail(&exit, &stderr, stderr_bytes);
        self.lifecycle("host_exited", Some(detail.clone()));
        if self.failed.is_none() && !self.asked_to_end {
            let (code, message) = if never_ran {
                let why = stderr.lines().last().unwrap_or_default();
                let message = format!("the agent could not be started: {why}");
                (code::HOST_NOT_STARTED, message)
            } else {
                let message = format!("the agent's process ended with {exit}");
                (code::HOST_EXITED, message)
            };
            self.failed = Some(Failure {
                code,
                message,
                detail: Some(detail),
            });
        }
        // Whoever aborted has what they wanted now.
        self.end_aborted_turn();
        self.fail_requests();
        self.withdraw_cards();
        let now = Instant::now();
        let effect = self.ladder.on(Input::HostGone, now);
        self.climb(effect);
        if !self.is_stopping() {
            self.stop(StopStage::Sweep);
        }
    }

    fn exit_detail(&self, exit: &str, stderr: &str, stderr_bytes: u64) -> Value {
        let mut detail = json!({"exit": exit, "stderr": stderr});
        let counts = &self.counts;
        let (lines, bytes) = NOISE_SHOWN;
        let noise = self.noise.last_lines(lines, bytes);
        for (name, count) in [
            ("stderrBytes", stderr_bytes),
            ("noiseLines", counts.noise),
            ("malformedFrames", counts.malformed),
            ("strayFrames", counts.stray),
            ("refusedEvents", counts.refused),
        ] {
            if count > 0 {
                detail[name] = count.into();
            }
        }
        if !noise.is_empty() {
            detail["noise"] = self.masker.mask(&noise).into();
        }
        detail
    }

    /// Answers every open request with why there will be no other answer. A
    /// turn that is being aborted waits for the host's end: only then nothing
    /// of it can happen any more.
    fn fail_requests(&mut self) {
        let aborting =
            self.host.is_some() && self.turn.as_ref().is_some_and(|turn| turn.abort_asked);
        for pending in self.requests.drain() {
            if aborting && matches!(pending.kind, Kind::Send(_)) {
                self.requests.put_back(pending);
                continue;
            }
            let response = self.failure_of(&pending);
            match pending.kind {
                Kind::Send(_) => self.turn_ends(response),
                _ => self.respond(response, Weight::Answers),
            }
        }
    }

    fn failure_of(&self, pending: &Pending) -> Response {
        let id = pending.id.clone();
        let Some(failure) = &self.failed else {
            return Response::err(
                id,
                code::STOPPING,
                "the worker was stopped before the agent had answered",
            );
        };
        let before = match pending.kind {
            _ if failure.code != code::HOST_EXITED => "",
            Kind::Send(_) => " before the turn did",
            Kind::Init => " before it was ready",
            _ => " before it had answered",
        };
        let message = format!("{}{before}", failure.message);
        let response = Response::err(id, failure.code, message);
        match &failure.detail {
            Some(detail) => response.with_detail(self.mask_value(detail.clone())),
            None => response,
        }
    }

    fn end_aborted_turn(&mut self) {
        if !self.turn.as_ref().is_some_and(|turn| turn.abort_asked) {
            return;
        }
        if let Some(pending) = self
            .requests
            .take_where(|kind| matches!(kind, Kind::Send(_)))
        {
            let result = SendResult {
                status: SendStatus::Interrupted,
                stop_reason: Some("aborted".into()),
                usage: None,
                error: None,
                // What the agent had read by then nobody knows.
                undelivered: Vec::new(),
            };
            self.turn_ends(Response::ok(pending.id, &result));
        }
        for asked in self.requests.turn_ended() {
            self.respond(Response::ok(asked.id, &()), Weight::Answers);
        }
    }

    /// The end of the ladder: nothing below is alive, or what is survives even
    /// SIGKILL. That waits in the kernel; what it was writing may still be
    /// written, so the lease is kept until it is gone.
    fn ladder_is_over(&mut self, clean: bool) {
        if clean {
            return self.tree_is_dead();
        }
        let rows = process::rows_of(&self.survivors).unwrap_or_default();
        let processes: Vec<Value> = rows
            .iter()
            .filter(|row| !row.is_zombie())
            .map(|row| json!({"pid": row.pid.get(), "name": row.name, "state": row.state}))
            .collect();
        let pids: Vec<i32> = (self.survivors.iter())
            .map(|identity| identity.pid.get())
            .collect();
        let held = match &self.lease {
            Some(_) => "; the session's lease is kept until they end",
            None => "",
        };
        let error = format!("processes of this session survive SIGKILL: {pids:?}{held}");
        let detail = json!({"pids": pids, "processes": processes});
        self.report("sweep", &error, Some(detail));
        self.lifecycle("stopping", Some(json!({"stage": "stuck"})));
        self.fail_requests();
        for id in std::mem::take(&mut self.disposers) {
            self.respond(
                Response::err(id, "survivors", error.clone()),
                Weight::Answers,
            );
        }
        self.vigil = Some(Instant::now() + VIGIL_LOOK);
    }

    /// Somebody below has ended. The last one's end is the end of the sweep: its
    /// pause is only for those who don't tell.
    pub(super) fn child_ended(&mut self) {
        let sweeps = self.ladder.stage() == Some(StopStage::Sweep) && !self.ladder.is_finished();
        if sweeps && platform::is_childless() == Some(true) {
            let effect = self.ladder.on(Input::Childless, Instant::now());
            self.climb(effect);
        }
    }

    /// Whether it only waits for the end of what survives SIGKILL, and no
    /// broker listens: then it looks for none, for it has nothing to tell.
    pub(super) fn keeps_to_itself(&self) -> bool {
        self.vigil.is_some() && self.detached_since.is_some()
    }

    /// Looks whether what survived SIGKILL has ended. There is no bound: as
    /// long as the kernel keeps it, somebody has to hold the lease.
    pub(super) fn look_at_survivors(&mut self, child_ended: bool) {
        if self.vigil.is_none() {
            return;
        }
        let mark = self.mark.as_deref().map(|mark| (MARK_ENV, mark));
        let host = self.host.as_ref().map(Host::pid);
        let left = tree::kill_below(host, mark, self.cgroup.as_ref(), &self.survivors);
        if left.is_ok_and(|left| left.is_empty()) {
            self.vigil = None;
            return self.tree_is_dead();
        }
        // Many deaths in a row cost one look each, and the clock is not moved.
        if !child_ended {
            self.vigil = Some(Instant::now() + VIGIL_LOOK);
        }
    }

    fn tree_is_dead(&mut self) {
        self.fail_requests();
        self.release_lease();
        self.hidden.forget();
        if let Some(cgroup) = self.cgroup.take() {
            // Where this is too early, whoever removes the journal does it.
            if cgroup.remove().is_ok()
                && let Some(folder) = Folder::of(&cgroup)
            {
                folder.remove();
            }
        }
        for id in std::mem::take(&mut self.disposers) {
            self.respond(Response::ok(id, &()), Weight::Answers);
        }
        let now = Instant::now();
        let patience = Duration::from_millis(self.boot.timing.orphan_idle_ms);
        self.finish_by = Some(match self.detached_since {
            None => now + LAST_ACKS,
            // Nobody asked for this end, so somebody will want to know of it.
            Some(since) if !self.asked_to_end => (since + patience).max(now),
            Some(_) => now,
        });
    }

    /// A broker came back to a worker that is over: it gets the rest.
    pub(super) fn attached_while_over(&mut self) {
        if let Some(by) = &mut self.finish_by {
            *by = Instant::now() + LAST_ACKS;
        }
    }

    /// Leaves the main loop once the tree is dead and the broker has all.
    pub(super) fn maybe_over(&mut self) {
        if !self.ladder.is_finished() || self.vigil.is_some() {
            return;
        }
        for id in std::mem::take(&mut self.disposers) {
            self.respond(Response::ok(id, &()), Weight::Answers);
        }
        self.over |= self.attached && self.link.out.is_settled();
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => match Signal::try_from(signal) {
            Ok(name) => format!("signal {name}"),
            Err(_) => format!("signal {signal}"),
        },
        (None, None) => "an unknown status".to_owned(),
    }
}
