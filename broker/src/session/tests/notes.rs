//! What stands on disk of a turn, for the broker that comes next.

use ade_protocol::TurnId;
use ade_protocol::event::TurnStatus;

use super::*;
use crate::state::{QueuedRow, TurnRow};
use crate::turn::{Again, ENDED_BY_USER, Input, Legacy, Machine, Recovery, Rules, SENT, Timing};

const TURN: &str = "t1";

/// A message waits.
async fn wait(rig: &Rig, turn: &str) {
    let queued = QueuedRow {
        session_id: SESSION.into(),
        turn_id: turn.into(),
        prompt: "hello".into(),
        steers: None,
        queued_at: "t".into(),
        after: Seq(0),
    };
    let queue = rig.shared.state.run(move |state| state.enqueue(&queued));
    queue.await.expect("queued");
}

/// Nothing can be written of turns any more.
fn lose_turns(rig: &Rig) {
    let other = rusqlite::Connection::open(rig.shared.home.state_db()).expect("the database");
    other.execute_batch("DROP TABLE turns").expect("dropped");
}

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
    lose_turns(&sending.rig);
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
    assert_eq!(sending.row().await.state, ENDED_BY_USER);
    sending.rig.actor.disarm(turn).await;
    assert_eq!(sending.row().await.state, ENDED_BY_USER);
}

#[tokio::test]
async fn a_message_is_on_disk_once_when_its_turn_begins() {
    let mut rig = Rig::new().await;
    wait(&rig, TURN).await;
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
    wait(&sending.rig, "t2").await;
    sending.rig.say("lost");
    let actor = &mut sending.rig.actor;
    actor
        .finish(&turn, TurnStatus::Completed, None, None, None)
        .await;
    sending.rig.say("lost");
    let waiting = TurnId::from("t2");
    let actor = &mut sending.rig.actor;
    actor
        .finish(&waiting, TurnStatus::Interrupted, None, None, None)
        .await;
    // One that only waited does so no more.
    let state = &sending.rig.shared.state;
    let queue = state.run(|state| state.queue(&SESSION.into())).await;
    assert_eq!(queue.expect("read"), []);
    let cleared = state.run(|state| state.cleared(&SESSION.into())).await;
    assert_eq!(cleared.expect("read").len(), 1);
    // Its row stays until the transcript holds its end, and says how it ended.
    assert_eq!(sending.row().await.state, "over_failed");
    std::fs::rename(&away, &folder).expect("moved back");
    for _ in 0..2 {
        assert!(sending.rig.actor.settle_owed().await);
    }
    let rows = sending.rig.shared.state.run(State::running_turns).await;
    assert_eq!(rows.expect("read"), []);
    let written = sending.rig.written();
    assert_eq!(written.matches("\"type\":\"done\"").count(), 2, "{written}");
    assert!(!written.contains("completed"), "{written}");
}

#[tokio::test]
async fn an_end_that_state_db_does_not_take_is_told_once() {
    let mut sending = Sending::new().await;
    lose_turns(&sending.rig);
    let actor = &mut sending.rig.actor;
    actor
        .finish(&TURN.into(), TurnStatus::Completed, None, None, None)
        .await;
    for _ in 0..2 {
        assert!(!actor.settle_owed().await, "it is owed still");
    }
    let written = sending.rig.written();
    let ends = written.matches("\"type\":\"done\"").count();
    assert_eq!(ends, 1, "{written}");
}

/// The next worker is to do something once; the turn of the user's goes on with none.
#[tokio::test]
async fn a_recovery_leaves_the_users_end_of_a_turn_on_disk() {
    let mut sending = Sending::new().await;
    let rules = Rules {
        timing: Timing::new(BOUND),
        recovery: Recovery::default(),
    };
    let legacy = Legacy {
        sends: 1,
        noted: false,
        resumable: false,
        evicted: false,
        again: None,
        left: BOUND,
        cancel: BOUND,
    };
    let message = (TurnId::from(TURN), "hello".to_owned());
    let actor = &mut sending.rig.actor;
    actor.machine = Machine::attaching(rules, message, legacy);
    actor.machine.ended_by_user();
    actor.note_end(TURN.into()).await;
    actor.arm(true, Some(Again::Resend)).await;
    assert!(sending.rig.flags_on_disk().await.rotate);
    assert_eq!(sending.row().await.state, ENDED_BY_USER);
}

/// A message that was refused was never taken, and has no end in the transcript.
#[tokio::test]
async fn a_message_that_was_refused_has_no_end() {
    for by_state in [false, true] {
        let mut rig = Rig::new().await;
        let rules = Rules {
            timing: Timing::new(BOUND),
            recovery: Recovery::default(),
        };
        rig.actor.machine = Machine::new(rules);
        // One before it was taken and written.
        rig.actor.said = Some(("t0".into(), Seq(0)));
        if by_state {
            lose_turns(&rig);
        } else {
            let folder = rig.shared.home.transcripts_dir();
            std::fs::rename(&folder, folder.with_extension("away")).expect("moved");
        }
        let (turn, prompt) = (TurnId::from(TURN), "hello".to_owned());
        rig.actor.input(Input::Send { turn, prompt }).await;
        if !by_state {
            assert!(rig.actor.broken.is_none(), "not yet");
            let failure = crate::turn::Failure::new(
                "transcript",
                ade_protocol::event::ErrorCategory::Unknown,
                "no room",
            );
            rig.actor.broken = Some(failure);
        }
        let failure = rig.actor.broken.take().expect("what could not be written");
        drop(rig.actor.refuse_turn(&TURN.into(), failure).await);
        let owed = &rig.actor.owed;
        assert!(owed.iter().all(|owed| owed.events.is_empty()), "{owed:?}");
        let written = rig.written();
        assert!(!written.contains(TURN), "{by_state}: {written}");
    }
}
