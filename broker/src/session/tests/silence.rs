//! When a silence is judged, and what is read before.

use ade_protocol::TurnId;
use tokio::io::AsyncWriteExt;

use super::*;
use crate::clock;
use crate::turn::{Input, Machine, Recovery, Rules, State as Turn, Timing};

const FIRST_EVENT: Duration = Duration::from_millis(30);

/// A turn whose message a worker has.
struct Waiting {
    rig: Rig,
    _stand: Stand,
    theirs: BufReader<UnixStream>,
}

impl Waiting {
    async fn new() -> Self {
        let mut rig = Rig::new().await;
        let stand = Stand::run("exec sleep 600");
        let rules = Rules {
            timing: Timing::new(FIRST_EVENT),
            recovery: Recovery::default(),
        };
        rig.actor.machine = Machine::new(rules);
        let (started, theirs) = rig.started(&stand, None);
        rig.starting();
        rig.actor.started(rig.actor.epoch, Ok(started)).await;
        let turn = TurnId::from("t1");
        let prompt = "hello".to_owned();
        rig.actor.input(Input::Send { turn, prompt }).await;
        let mut theirs = BufReader::new(theirs);
        let sent = frame(&mut theirs, BOUND).await.expect("the message");
        assert_eq!(sent["type"], "send");
        Self {
            rig,
            _stand: stand,
            theirs,
        }
    }

    fn state(&self) -> Turn {
        self.rig.actor.machine.state()
    }

    /// Lets time pass until the silence is judged, and `more`.
    async fn due(&self, more: Duration) {
        let begin = Instant::now();
        while !self.rig.actor.judges() {
            assert!(begin.elapsed() < BOUND, "it is never judged");
            tokio::task::yield_now().await;
        }
        let due = clock::now();
        while due.elapsed() < more {
            tokio::task::yield_now().await;
        }
    }

    /// What the actor's loop does at a deadline.
    async fn judged(&mut self) {
        self.rig.actor.publish_view();
        self.rig.actor.deadline().await;
    }

    /// The same until the silence was judged: a test may be late, too.
    async fn decided(&mut self) {
        while self.state() == Turn::AwaitingFirstEvent {
            self.due(Duration::ZERO).await;
            self.judged().await;
        }
    }

    async fn says(&mut self, line: &str) {
        let line = format!("{{\"protocolVersion\":2,{line}}}\n");
        let said = self.theirs.get_mut().write_all(line.as_bytes());
        said.await.expect("said");
    }

    /// Whether the worker was told to end the run.
    async fn is_told_to_end(&mut self) -> bool {
        while let Some(frame) = frame(&mut self.theirs, Duration::from_millis(50)).await {
            if frame["type"] == "abort" {
                assert_eq!(frame["ifSilent"], true);
                return true;
            }
        }
        false
    }
}

#[tokio::test]
async fn what_lies_in_the_link_is_read_before_its_silence_is_judged() {
    let event = r#""type":"event","seq":1,"turnId":"t1","event":{"type":"text","messageId":"m","text":"x"}"#;
    let card = r#""type":"ui_request","requestId":"c","turnId":"t1","payload":{"origin":"tool","kind":"text","message":"?"}"#;
    let done = r#""type":"response","requestId":"t1","ok":true,"result":{"status":"completed"}"#;
    let log = r#""type":"log","level":"info","message":"busy""#;
    for (said, expected, told) in [
        (event, Turn::Streaming, false),
        (card, Turn::AwaitingCard, false),
        (done, Turn::Idle, false),
        (log, Turn::Cancelling, true),
    ] {
        let mut waiting = Waiting::new().await;
        waiting.due(Duration::ZERO).await;
        waiting.says(said).await;
        waiting.decided().await;
        assert_eq!(waiting.state(), expected, "{said}");
        assert_eq!(waiting.is_told_to_end().await, told, "{said}");
    }
}

#[tokio::test]
async fn a_deadline_that_is_seen_late_is_excused_once() {
    let mut waiting = Waiting::new().await;
    waiting.due(clock::LATE + Duration::from_millis(50)).await;
    waiting.judged().await;
    assert_eq!(waiting.state(), Turn::AwaitingFirstEvent);
    assert!(!waiting.rig.actor.judges(), "not before the moment is over");
    waiting.due(clock::LATE + Duration::from_millis(50)).await;
    waiting.judged().await;
    assert_eq!(waiting.state(), Turn::Cancelling, "every wait has an end");
}

#[tokio::test]
async fn what_an_evicted_worker_said_in_the_same_piece_still_counts() {
    let mut waiting = Waiting::new().await;
    waiting.decided().await;
    let told = loop {
        let told = frame(&mut waiting.theirs, BOUND).await.expect("an abort");
        if told["type"] == "abort" {
            break told;
        }
    };
    let id = told["requestId"].as_str().expect("an id");
    let answer = format!(r#""type":"response","requestId":"{id}","ok":true"#);
    waiting.says(&answer).await;
    let done = r#""type":"response","requestId":"t1","ok":true,"result":{"status":"completed"}"#;
    waiting.says(done).await;
    let mut batch = Vec::new();
    let link = &mut waiting.rig.actor.worker.as_mut().expect("it").link;
    let count = link.incoming.recv_many(&mut batch).await;
    assert_eq!(count, 2, "in one piece");
    waiting.rig.actor.frames(&mut batch, count).await;
    assert_eq!(waiting.state(), Turn::Idle);
    assert!(waiting.rig.written().contains("delivered, outcome unknown"));
}
