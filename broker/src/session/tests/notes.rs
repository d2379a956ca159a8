//! What stands on disk of a turn, for the broker that comes next.

use ade_protocol::TurnId;
use ade_protocol::event::TurnStatus;

use super::*;
use crate::state::{QueuedRow, TurnRow};
use crate::turn::{Again, SENT};

const TURN: &str = "t1";

/// A session with a worker, and what that is told.
struct Sending {
    rig: Rig,
    _stand: Stand,
    theirs: BufReader<UnixStream>,
}

impl Sending {
    /// `t1` runs, as far as the disk knows.
    async fn new() -> Self {
        let mut rig = Rig::new().await;
        let stand = Stand::run("exec sleep 600");
        let (started, theirs) = rig.started(&stand, None);
        rig.starting();
        rig.actor.started(rig.actor.epoch, Ok(started)).await;
        let said = Event::UserMessage {
            text: "hello".into(),
            via: ade_protocol::event::Via::Send,
        };
        assert!(rig.actor.turn_began(&TURN.into(), &said).await);
        let mut sending = Self {
            rig,
            _stand: stand,
            theirs: BufReader::new(theirs),
        };
        while sending.told(Duration::from_millis(100)).await.is_some() {}
        sending
    }

    async fn told(&mut self, within: Duration) -> Option<serde_json::Value> {
        frame(&mut self.theirs, within).await
    }

    async fn writes(&mut self, again: Option<Again>) {
        let turn = TurnId::from(TURN);
        self.rig.actor.write_message(&turn, "hello", again).await;
    }

    async fn row(&self) -> TurnRow {
        let rows = self.rig.shared.state.run(State::running_turns).await;
        rows.expect("read").pop().expect("a turn")
    }
}

#[tokio::test]
async fn what_was_sent_is_noted_with_all_that_another_broker_must_know() {
    let mut sending = Sending::new().await;
    sending.rig.actor.arm(false, Some(Again::Resend)).await;
    assert!(sending.rig.flags_on_disk().await.force_expire);
    sending.writes(None).await;
    let row = sending.row().await;
    assert_eq!((row.sends, row.state.as_str()), (1, SENT));
    assert_eq!(row.generation, Generation(1));
    assert!(row.armed_at_ms > 0, "the watchdog's time began");
    let sent = sending.told(BOUND).await.expect("the message");
    assert_eq!(sent["turnId"], TURN);
    assert_eq!(sent["recovery"]["forceExpireActiveRun"], true);
    // That is done once.
    assert_eq!(sending.rig.flags_on_disk().await, Flags::default());
    sending.writes(None).await;
    let sent = sending.told(BOUND).await.expect("the message");
    assert!(sent["recovery"].is_null(), "{sent}");
    for again in [Again::Resend, Again::Reconnect, Again::Continue] {
        sending.writes(Some(again)).await;
        let row = sending.row().await;
        assert_eq!((row.sends, row.state.as_str()), (2, again.written()));
        let sent = sending.told(BOUND).await.expect("the message");
        assert_eq!(sent["recovery"]["forceExpireActiveRun"], true);
    }
}

#[tokio::test]
async fn what_cannot_be_written_down_is_not_sent() {
    // No transcript takes it.
    let mut sending = Sending::new().await;
    let folder = sending.rig.shared.home.transcripts_dir();
    std::fs::rename(&folder, folder.with_extension("away")).expect("moved");
    sending.rig.say("lost");
    sending.writes(None).await;
    assert_eq!(sending.told(Duration::from_millis(100)).await, None);
    assert!(sending.rig.actor.broken.is_some());
    // Nor does `state.db`.
    let mut sending = Sending::new().await;
    let path = sending.rig.shared.home.state_db();
    let other = rusqlite::Connection::open(path).expect("the database");
    other.execute_batch("DROP TABLE turns").expect("dropped");
    sending.writes(None).await;
    assert_eq!(sending.told(Duration::from_millis(100)).await, None);
    assert!(sending.rig.actor.broken.is_some());
}

#[tokio::test]
async fn a_recovery_that_is_taken_back_leaves_nothing() {
    let mut sending = Sending::new().await;
    sending.writes(None).await;
    let turn = TurnId::from(TURN);
    let session = SessionId::from(SESSION);
    sending.rig.actor.arm(true, Some(Again::Resend)).await;
    let (id, own) = (session.clone(), turn.clone());
    let planned = sending
        .rig
        .shared
        .state
        .run(move |state| state.plan_turn(&id, &own, Again::Resend.planned(), Some("why")));
    planned.await.expect("planned");
    sending.rig.actor.disarm(turn.clone()).await;
    assert_eq!(sending.rig.flags_on_disk().await, Flags::default());
    assert_eq!(sending.rig.actor.row.flags, Flags::default());
    assert_eq!(sending.row().await.state, SENT);
    // That the user has ended it stays.
    sending.rig.actor.note_end(turn.clone()).await;
    assert_eq!(sending.row().await.state, crate::turn::ENDED_BY_USER);
    sending.rig.actor.disarm(turn).await;
    assert_eq!(sending.row().await.state, crate::turn::ENDED_BY_USER);
}

#[tokio::test]
async fn a_message_is_on_disk_once_when_its_turn_begins() {
    let mut rig = Rig::new().await;
    let queued = QueuedRow {
        session_id: SESSION.into(),
        turn_id: TURN.into(),
        prompt: "hello".into(),
        steers: None,
        queued_at: "t".into(),
        after: Seq(0),
    };
    let queue = rig.shared.state.run(move |state| state.enqueue(&queued));
    queue.await.expect("queued");
    let said = Event::UserMessage {
        text: "hello".into(),
        via: ade_protocol::event::Via::Send,
    };
    assert!(rig.actor.turn_began(&TURN.into(), &said).await);
    let queue = rig.shared.state.run(State::queues).await;
    assert_eq!(queue.expect("read"), []);
}

#[tokio::test]
async fn a_turn_of_which_a_part_is_lost_has_not_completed_and_is_told_once() {
    let mut sending = Sending::new().await;
    let turn = TurnId::from(TURN);
    let folder = sending.rig.shared.home.transcripts_dir();
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away).expect("moved");
    sending.rig.say("lost");
    let actor = &mut sending.rig.actor;
    actor
        .finish(&turn, TurnStatus::Completed, None, None, None)
        .await;
    // Its row stays until the transcript holds its end, and says how it ended.
    assert_eq!(sending.row().await.state, "over_failed");
    std::fs::rename(&away, &folder).expect("moved back");
    for _ in 0..2 {
        assert!(sending.rig.actor.settle_owed().await);
    }
    let rows = sending.rig.shared.state.run(State::running_turns).await;
    assert_eq!(rows.expect("read"), []);
    let written = sending.rig.written();
    assert_eq!(written.matches("\"type\":\"done\"").count(), 1, "{written}");
    assert!(!written.contains("completed"), "{written}");
}
