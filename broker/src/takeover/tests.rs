//! `state.db` as a broker without room left it, beside what it had told.

use ade_protocol::event::{Event, TurnStatus, Via};
use tempfile::TempDir;

use super::*;
use crate::leftovers;
use crate::state::{SessionRow, TurnRow};
use crate::transcript::{Transcript, read_after};

const SESSION: &str = "ses_1";

fn session() -> SessionRow {
    let create = serde_json::from_str(r#"{"provider":"scripted","lane":"/lane"}"#).unwrap();
    SessionRow::new(SESSION.into(), &create, "/lane".into(), "t".into())
}

fn queued(turn: &str, after: u64) -> QueuedRow {
    QueuedRow {
        session_id: SESSION.into(),
        turn_id: turn.into(),
        prompt: format!("prompt of {turn}"),
        steers: None,
        queued_at: "t".into(),
        after: Seq(after),
    }
}

fn running(turn: &str) -> TurnRow {
    TurnRow {
        session_id: SESSION.into(),
        turn_id: turn.into(),
        prompt: "run".into(),
        started_at: "t".into(),
        generation: Generation(1),
        sends: 1,
        state: "sent".into(),
        armed_at_ms: 0,
        cause: None,
        after: Seq(0),
    }
}

fn said() -> Event {
    Event::UserMessage {
        text: "x".into(),
        via: Via::Send,
    }
}

fn done() -> Event {
    Event::Done {
        status: TurnStatus::Failed,
        stop_reason: None,
        usage: None,
    }
}

fn tell(home: &Home, events: &[(&str, Event)]) {
    let mut transcript =
        Transcript::open(&home.transcript(&SESSION.into()), SESSION.into(), Seq(0));
    let transcript = transcript.as_mut().unwrap();
    for (turn, event) in events {
        let event = serde_json::to_vec(event).unwrap();
        transcript.stage("t", Some(&TurnId::from(*turn)), None, &event);
    }
    transcript.commit().unwrap();
}

/// Which events the transcript holds of a turn.
fn told(home: &Home, turn: &str) -> Vec<String> {
    let page = read_after(&home.transcript(&SESSION.into()), Seq(0), usize::MAX).unwrap();
    let lines = page.events.iter();
    let lines = lines.map(|(_, line)| serde_json::from_slice::<serde_json::Value>(line).unwrap());
    let of_it = lines.filter(|line| line["turnId"] == turn);
    of_it
        .map(|line| line["event"]["type"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn what_is_over_by_the_transcript_is_over() {
    let folder = TempDir::new().unwrap();
    let home = Home::at(folder.path().join("home"), None)
        .unwrap()
        .prepare()
        .unwrap();
    let state = State::open(&home.state_db()).unwrap();
    state.insert_session(&session()).unwrap();
    state.begin_turn(&running("r")).unwrap();
    for row in [
        queued("ended", 1),
        queued("waits", 1),
        queued("half", 1),
        queued("long ago", 1),
        queued("cleared", 1),
    ] {
        state.enqueue(&row).unwrap();
    }
    assert!(
        state
            .clear_queued(&SESSION.into(), &"cleared".into())
            .unwrap()
    );
    let state = StateHandle::start(state);
    tell(&home, &[("r", said()), ("long ago", done())]);
    tell(&home, &[("x", said()), ("x", done())]);
    // All at once, when the disk was full; the running one is not the last.
    tell(
        &home,
        &[
            ("r", done()),
            ("half", said()),
            ("y", done()),
            ("cleared", done()),
            ("ended", done()),
        ],
    );
    let takeover = find(&home, &state).await.unwrap();
    assert!(takeover.unbegun.is_empty() && takeover.legacies.is_empty());
    let closed = leftovers::close(&home, &state, &takeover).await.unwrap();
    assert_eq!((closed.turns, closed.owed.len()), (0, 0));
    assert_eq!(told(&home, "r"), ["user_message", "done"]);
    assert_eq!(told(&home, "ended"), ["done"]);
    assert_eq!(told(&home, "long ago"), ["done"]);
    assert_eq!(
        told(&home, "half"),
        ["user_message", "error", "status", "done"]
    );
    assert_eq!(state.run(State::running_turns).await.unwrap(), []);
    let left = state.run(State::queues).await.unwrap();
    assert_eq!(left, [queued("waits", 1)]);
    // A broker that comes once more finds nothing to mend.
    let takeover = find(&home, &state).await.unwrap();
    leftovers::close(&home, &state, &takeover).await.unwrap();
    assert_eq!(told(&home, "half").len(), 4);
    assert_eq!(told(&home, "waits"), [""; 0]);
}
