//! Cards of a worker that goes.

use ade_protocol::frame::{FromWorker, Known};

use super::*;

/// A sign-in is asked for outside of turns too, and nobody can answer a worker that
/// is gone.
#[tokio::test]
async fn a_card_of_no_turn_ends_with_its_worker() {
    let mut rig = Rig::new().await;
    let stand = Stand::run("exec sleep 600");
    let (started, _theirs) = rig.started(&stand, None);
    rig.starting();
    rig.actor.started(rig.actor.epoch, Ok(started)).await;
    let card = r#"{"protocolVersion":2,"type":"ui_request","requestId":"c",
        "payload":{"origin":"auth","kind":"text","message":"the code?"}}"#;
    let Ok(Known::Frame(card)) = FromWorker::parse(card) else {
        panic!("no frame");
    };
    rig.actor.frame(card).await;
    assert!(rig.actor.cards.is_open(&"c".into()));
    rig.actor.lost("it was killed").await;
    rig.actor.flush();
    assert!(!rig.actor.cards.is_open(&"c".into()));
    assert!(rig.written().contains("worker_gone"), "{}", rig.written());
}
