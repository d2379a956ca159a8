//! What a worker that is not in use any more shows of a turn.
//!
//! Its frames have no effect on the turn: nothing of it is shown. But a message
//! that its agent worked on must not be sent to another one, and frames that lay
//! in the link when it was evicted, or that it sent on its way out, tell so. What
//! follows is decided by the machine ([`crate::turn::Input::Worked`]).

use ade_protocol::frame::{FromWorker, Hello};
use ade_protocol::{Seq, TurnId};

use super::requests::ending;
use crate::link::{EventLine, Intake, LinkIn};

/// The turn that its agent worked on, by what it says. `taken`: events up to here
/// were heard before.
pub(super) fn said(said: &LinkIn, taken: Seq) -> Option<TurnId> {
    match said {
        LinkIn::Events(run) => {
            let counts = |event: &EventLine| {
                event.seq > taken && !matches!(event.intake, Intake::Refused(_))
            };
            let is_new = run.events.iter().any(counts);
            run.turn_id.clone().filter(|_| is_new)
        }
        LinkIn::Frame(frame) => match &**frame {
            FromWorker::UiRequest(card) => card.turn_id.clone(),
            // The request that sends a message is named by its turn.
            FromWorker::Response(response) => ending(response)
                .shows_work()
                .then(|| TurnId::from(response.request_id.as_str())),
            _ => None,
        },
        LinkIn::Broken(_) => None,
    }
}

/// The same by how it introduces itself.
pub(super) fn introduced(hello: &Hello) -> Option<TurnId> {
    let state = &hello.state;
    let turn = state.turn_id.as_ref().or(state.last_turn_id.as_ref());
    turn.filter(|_| state.seen_event).cloned()
}

#[cfg(test)]
mod tests {
    use ade_protocol::frame::{Known, Response};
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::link::Run;

    fn frame(body: &serde_json::Value) -> LinkIn {
        let mut frame = json!({"protocolVersion": 2});
        let fields = frame.as_object_mut().expect("an object");
        fields.extend(body.as_object().expect("an object").clone());
        match FromWorker::parse(&frame.to_string()) {
            Ok(Known::Frame(frame)) => LinkIn::Frame(Box::new(frame)),
            other => panic!("{other:?}"),
        }
    }

    fn events(turn: Option<&str>, seq: u64) -> LinkIn {
        let event = EventLine {
            seq: Seq(seq),
            event: Bytes::from_static(b"{\"type\":\"activity\",\"text\":\"x\"}"),
            intake: Intake::Shown,
        };
        LinkIn::Events(Run {
            turn_id: turn.map(TurnId::from),
            events: vec![event],
        })
    }

    /// One that only the broker writes.
    fn refused_event() -> LinkIn {
        match events(Some("a"), 8) {
            LinkIn::Events(mut run) => {
                run.events[0].intake = Intake::Refused("done".into());
                LinkIn::Events(run)
            }
            other => other,
        }
    }

    /// By its state; the last turn whose message it got is `b`.
    #[test]
    fn a_worker_that_comes_tells_what_it_worked_on() {
        let introduced = |turn: Option<&str>, seen: bool| {
            let mut state = json!({"lastTurnId": "b", "seenEvent": seen});
            if let Some(turn) = turn {
                state["turnId"] = turn.into();
            }
            let hello = json!({
                "workerId": "w", "token": "t", "sessionKey": "s", "generation": 1, "pid": 2,
                "identity": {"pid": 2, "startTicks": 1, "bootId": "b", "pidNamespace": 3}, "provider": "scripted",
                "lastSeq": 0, "state": state, "type": "hello",
            });
            match frame(&hello) {
                LinkIn::Frame(frame) => match *frame {
                    FromWorker::Hello(hello) => super::introduced(&hello),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(introduced(Some("a"), true), Some("a".into()));
        assert_eq!(introduced(None, true), Some("b".into()), "it has ended");
        assert_eq!(introduced(Some("a"), false), None);
    }

    fn response(body: &serde_json::Value) -> LinkIn {
        let mut frame = json!({"type": "response", "requestId": "a"});
        let fields = frame.as_object_mut().expect("an object");
        fields.extend(body.as_object().expect("an object").clone());
        self::frame(&frame)
    }

    #[test]
    fn what_shows_that_an_agent_worked_and_what_does_not() {
        let card = json!({"type": "ui_request", "requestId": "c", "turnId": "a",
            "payload": {"origin": "tool", "kind": "text", "message": "?"}});
        let turnless = json!({"type": "ui_request", "requestId": "c",
            "payload": {"origin": "auth", "kind": "text", "message": "?"}});
        let result = |status: &str| response(&json!({"ok": true, "result": {"status": status}}));
        let unknown = "delivered_outcome_unknown";
        let refused = |code: &str| response(&json!({"ok": false, "errorCode": code, "error": "x"}));
        let shows = [
            events(Some("a"), 8),
            frame(&card),
            result("completed"),
            refused(unknown),
        ];
        for said in &shows {
            assert_eq!(self::said(said, Seq(7)), Some("a".into()), "{said:?}");
        }
        let shows_not = [
            events(Some("a"), 7),
            events(None, 8),
            frame(&turnless),
            result("interrupted"),
            result("failed"),
            refused("host_exited"),
            LinkIn::Frame(Box::new(FromWorker::Response(Response::ok(
                "a".into(),
                &(),
            )))),
            refused_event(),
            frame(&json!({"type": "lifecycle", "event": "stopping"})),
            LinkIn::Broken("x".into()),
        ];
        for said in &shows_not {
            assert_eq!(self::said(said, Seq(7)), None, "{said:?}");
        }
    }
}
