//! Messages for a turn whose worker answers late, or not to it.

use ade_protocol::TurnId;
use ade_protocol::frame::Response;
use serde_json::json;
use tokio::sync::oneshot;

use super::*;
use crate::session::requests::send_id;
use crate::session::steers::{Lifted, Steer};
use crate::session::worker::Pending;
use crate::turn::Input;

const TURN: &str = "t1";

/// A worker that has the message of `t1`.
async fn streaming() -> (Rig, Stand, UnixStream) {
    let mut rig = Rig::new().await;
    let stand = Stand::run("exec sleep 600");
    let (started, theirs) = rig.started(&stand, None);
    rig.starting();
    rig.actor.started(rig.actor.epoch, Ok(started)).await;
    let (turn, prompt) = (TurnId::from(TURN), "hello".to_owned());
    rig.actor.input(Input::Send { turn, prompt }).await;
    (rig, stand, theirs)
}

fn steer(turn: &str) -> (Steer, oneshot::Receiver<Answer>) {
    let (reply, answer) = oneshot::channel();
    let steer = Steer {
        turn: turn.into(),
        prompt: "go left".into(),
        reply,
        overdue: false,
    };
    (steer, answer)
}

type Answer = Result<ade_protocol::action::Steered, ade_protocol::rpc::RpcError>;

#[tokio::test]
async fn what_a_run_had_not_read_is_told_at_its_own_end_only() {
    let (mut rig, _stand, _theirs) = streaming().await;
    let generation = Generation(1);
    let end = Response::ok(
        send_id(&TURN.into()),
        &json!({"status": "completed", "undelivered": ["go left"]}),
    );
    for (of, turn) in [(Generation(0), TURN), (generation, "t0")] {
        rig.actor.note_unread(of, &turn.into(), &end).await;
        assert_eq!(rig.actor.unread, None, "{of} {turn}");
    }
    rig.actor.note_unread(generation, &TURN.into(), &end).await;
    assert_eq!(rig.actor.unread_at_end(&"t2".into()).len(), 0);
    assert_eq!(rig.actor.unread_at_end(&TURN.into()).len(), 1);
    assert_eq!(rig.actor.unread_at_end(&TURN.into()).len(), 0, "once");
}

/// Nobody lifts it into a turn that goes on, or into another one.
#[tokio::test]
async fn a_steer_whose_worker_went_away_waits_only_for_its_own_recovery() {
    let (mut rig, _stand, _theirs) = streaming().await;
    for turn in [TURN, "t0"] {
        let (steer, answer) = steer(turn);
        let id = "r".into();
        rig.actor.lifted.push(Lifted { id, steer, pid: 1 });
        rig.actor.settle_lifted().await;
        let refused = answer.await.expect("an answer").expect_err("it is refused");
        assert_eq!(
            refused.data.map(|data| data.kind).as_deref(),
            Some("worker_gone")
        );
        assert_eq!(rig.actor.machine.queued(), 0);
    }
}

#[tokio::test]
async fn only_an_answer_that_is_still_missing_is_overdue_and_of_this_worker() {
    let (mut rig, _stand, _theirs) = streaming().await;
    let (waits, _answer) = steer(TURN);
    let (answered, _other) = steer(TURN);
    let pending = &mut rig.actor.worker.as_mut().expect("it").pending;
    pending.insert("waits".into(), Pending::Steer(waits));
    let response = Box::new(Response::ok("answered".into(), &()));
    pending.insert("answered".into(), Pending::Answered(response, answered));
    for (generation, request) in [(0, "waits"), (1, "answered"), (1, "unknown")] {
        let generation = Generation(generation);
        rig.actor.overdue(generation, &request.into()).await;
        assert!(rig.actor.worker.is_some(), "{generation} {request}");
    }
    rig.actor.overdue(Generation(1), &"waits".into()).await;
    assert!(rig.actor.worker.is_none(), "it can't be trusted any more");
}
