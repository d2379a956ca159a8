//! Agents that are slow and not dead: what is heard of a turn after its deadline.
//! Each host notes in a file how often it carried the message out.

use std::path::Path;
use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, signal};
use ade_tests::cards::{resolution, yes};
use ade_tests::hosts::shell;
use ade_tests::rpc::{Rpc, text_of};
use ade_tests::turns::{ended, of_turn, of_type};
use ade_tests::wait::{PATIENCE, wait_true, wait_within};
use serde_json::{Value, json};

/// The watchdog's time.
const FIRST_EVENT: u64 = 1_200;

/// Carries out each message as `how` says, and nothing else that it is told.
fn host(how: &str) -> String {
    format!(
        "start; while hear; do [ \"$kind\" = send ] || continue
         id=$heard; echo ran >> ran; {how}; done"
    )
}

/// A chat with such a host.
struct Late {
    ade: Ade,
    rpc: Rpc,
    chat: String,
}

impl Late {
    fn with(how: &str, config: &str) -> Self {
        let ade = Ade::new();
        let host = shell(ade.root(), &host(how));
        let mut ade = ade.with_config(&format!("{host}{config}"));
        ade.serve();
        let mut rpc = ade.rpc();
        let chat = ade.scripted_chat(&mut rpc, FIRST_EVENT);
        Self { ade, rpc, chat }
    }

    fn new(how: &str) -> Self {
        Self::with(how, "")
    }

    /// Sends the message; gives its turn once the host has it, and a client that
    /// listens.
    fn send(&mut self) -> (String, Rpc) {
        let before = self.runs();
        let (turn, after) = self.ade.send(&mut self.rpc, &self.chat, "do it");
        let mut watch = self.ade.rpc();
        watch.subscribe(&self.chat, after);
        wait_true("the host has it", || self.runs() > before);
        (turn, watch)
    }

    /// How often a message was carried out.
    fn runs(&self) -> usize {
        let file = self.ade.lane("lane").join("ran");
        std::fs::read_to_string(file).map_or(0, |text| text.lines().count())
    }

    fn turn(&mut self) -> Vec<Value> {
        let (turn, mut watch) = self.send();
        let events = watch.until_done(&turn);
        of_turn(&events, &turn)
    }

    /// The message was carried out once, by the first worker, which is kept and
    /// of which nothing is held against the next start or send.
    fn was_once(&self) {
        assert_eq!(self.runs(), 1);
        assert_eq!(self.ade.session(&self.chat)["generation"], 1);
        assert_eq!(flags(&self.ade.home()), (false, false));
    }
}

fn flags(home: &Path) -> (bool, bool) {
    let db = rusqlite::Connection::open(home.join("state.db")).expect("state.db");
    let query = "SELECT rotate, force_expire FROM sessions";
    let flags = db.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)));
    flags.expect("the session")
}

fn error(events: &[Value]) -> String {
    let errors = of_type(events, "error");
    assert_eq!(errors.len(), 1, "{events:?}");
    errors[0]["message"]
        .as_str()
        .expect("a sentence")
        .to_owned()
}

fn pass(time: Duration) {
    let begin = Instant::now();
    let bound = PATIENCE + time;
    wait_within("the moment", bound, || {
        (begin.elapsed() >= time).then_some(())
    });
}

const REPLAY: &str = "recovery = \"replay\"\n";

#[test]
fn an_agent_that_answers_after_the_deadline_is_not_asked_twice() {
    // With a kind of agent for which more is put on disk, too.
    for config in ["", REPLAY] {
        let how = "sleep 1.4; text late; sleep 0.2; done_as completed";
        let mut late = Late::with(how, config);
        let events = late.turn();
        assert_eq!(ended(&events), "completed", "{events:?}");
        assert_eq!(text_of(&events), "late");
        assert_eq!(of_type(&events, "notice").len(), 0, "{events:?}");
        late.was_once();
    }
}

#[test]
fn a_late_completion_without_a_word_is_one() {
    let mut late = Late::with("sleep 1.4; done_as completed", REPLAY);
    let events = late.turn();
    assert_eq!(ended(&events), "completed", "{events:?}");
    late.was_once();
}

#[test]
fn a_late_card_is_a_card() {
    let how = "sleep 1.4; card q1; hear; while [ \"$kind\" != ui_response ]; do hear; done
        text answered; done_as completed";
    let mut late = Late::new(how);
    let (turn, mut watch) = late.send();
    let card = watch.card();
    // Longer than the abort may take.
    pass(Duration::from_millis(3_500));
    late.rpc.answer(&card, &yes("x")).expect("it counts");
    let events = watch.until_done(&turn);
    assert_eq!(
        (ended(&events), text_of(&events).as_str()),
        ("completed", "answered")
    );
    assert_eq!(resolution(&events)["outcome"], "answered", "{events:?}");
    late.was_once();
}

#[test]
fn an_agent_that_goes_on_longer_than_an_abort_may_take_goes_on() {
    // The worker itself ends a host that does not answer the user's abort in 10 s.
    let how = "sleep 1.4; text late; sleep 11; text on; done_as completed";
    let mut late = Late::new(how);
    let events = late.turn();
    assert_eq!(
        (ended(&events), text_of(&events).as_str()),
        ("completed", "lateon")
    );
    late.was_once();
}

#[test]
fn an_agent_that_obeys_after_it_was_heard_fails_once_and_says_why() {
    let how = "sleep 1.4; text late; hear; fine $heard; done_as interrupted";
    let mut late = Late::new(how);
    let events = late.turn();
    assert_eq!(ended(&events), "failed", "{events:?}");
    let told = error(&events);
    assert!(
        told.contains("only after 1.2 s, when it had been told to stop"),
        "{told}"
    );
    assert!(told.contains("not sent again"), "{told}");
    assert_eq!(text_of(&events), "late");
    late.was_once();
}

#[test]
fn a_user_can_end_a_turn_that_is_late() {
    // Hears the broker's own abort and ignores it; obeys the user's.
    let how = "sleep 1.6; text late; hear
        case $line in *ifSilent*) hear;; esac
        fine $heard; done_as interrupted";
    for before in [true, false] {
        let mut late = Late::new(how);
        let (turn, mut watch) = late.send();
        if before {
            late.ade.wait_state(&late.chat, "recovering");
        } else {
            watch.event("a word", |event| event["event"]["type"] == "text");
        }
        late.rpc.call("chat.abort", json!({"sessionId": late.chat}));
        let events = late.ade.wait_done(&late.chat, &turn);
        let events = of_turn(&events, &turn);
        assert_eq!(ended(&events), "interrupted", "{before}: {events:?}");
        assert_eq!(text_of(&events), "late");
        late.was_once();
    }
}

#[test]
fn what_an_evicted_worker_says_is_not_shown_and_forbids_the_second_send() {
    // Right behind its answer, and on its way out.
    for pause in ["", "sleep 0.5; "] {
        let how = format!("hear; fine $heard; {pause}text late; done_as completed");
        let mut late = Late::new(&how);
        let events = late.turn();
        assert_eq!(ended(&events), "failed", "{events:?}");
        let told = error(&events);
        assert!(told.starts_with("delivered, outcome unknown"), "{told}");
        assert_eq!((text_of(&events).as_str(), late.runs()), ("", 1));
        // The next message works, with a new worker.
        late.send();
        wait_true("it is carried out", || late.runs() == 2);
        assert_eq!(late.ade.session(&late.chat)["generation"], 2);
    }
}

/// How one broker follows another.
type Follows = fn(&mut Ade);
const FOLLOWS: [(&str, Follows); 2] = [
    ("killed", |ade| {
        ade.kill_broker();
        ade.serve();
    }),
    ("replaced", |ade| {
        ade.replace();
    }),
];

#[test]
fn the_next_broker_hears_a_run_that_is_to_end() {
    let hows = [
        "text late; sleep 0.2; done_as completed",
        "done_as completed",
    ];
    for (how, text) in hows.into_iter().zip(["late", ""]) {
        for (name, follow) in FOLLOWS {
            let mut late = Late::with(&format!("sleep 3; {how}"), REPLAY);
            let (turn, watch) = late.send();
            late.ade.wait_state(&late.chat, "recovering");
            drop(watch);
            follow(&mut late.ade);
            let events = late.ade.wait_done(&late.chat, &turn);
            let events = of_turn(&events, &turn);
            assert_eq!(ended(&events), "completed", "{name}: {events:?}");
            assert_eq!(text_of(&events), text, "{name}");
            assert_eq!(of_type(&events, "notice").len(), 0, "{name}: {events:?}");
            late.was_once();
        }
    }
}

#[test]
fn a_card_between_two_brokers_is_a_card() {
    let how = "sleep 2; card q1; echo > asked; hear
        while [ \"$kind\" != ui_response ]; do hear; done; text answered; done_as completed";
    let mut late = Late::new(how);
    let (turn, watch) = late.send();
    late.ade.wait_state(&late.chat, "recovering");
    drop(watch);
    late.ade.kill_broker();
    let asked = late.ade.lane("lane").join("asked");
    wait_true("the card is said", || asked.exists());
    late.ade.serve();
    let mut rpc = late.ade.rpc();
    rpc.subscribe(&late.chat, 0);
    let card = rpc.card();
    // Longer than the abort may take.
    pass(Duration::from_millis(3_500));
    rpc.answer(&card, &yes("x")).expect("it counts");
    let events = late.ade.wait_done(&late.chat, &turn);
    let events = of_turn(&events, &turn);
    assert_eq!(
        (ended(&events), text_of(&events).as_str()),
        ("completed", "answered")
    );
    late.was_once();
}

#[test]
fn the_next_broker_gives_a_run_that_is_to_end_the_rest_of_its_time() {
    let how = "[ $(wc -l < ran) = 2 ] || while :; do hear; done; text again; done_as completed";
    for (name, follow) in FOLLOWS {
        let mut late = Late::new(how);
        let begin = Instant::now();
        let (turn, watch) = late.send();
        late.ade.wait_state(&late.chat, "recovering");
        drop(watch);
        pass(Duration::from_millis(200));
        follow(&mut late.ade);
        wait_true("it is sent again", || late.runs() == 2);
        let passed = begin.elapsed();
        let bound = Duration::from_millis(FIRST_EVENT + 3_000);
        assert!(passed >= bound, "{name}: cut short: {passed:?}");
        let events = late.ade.wait_done(&late.chat, &turn);
        let events = of_turn(&events, &turn);
        assert_eq!(ended(&events), "completed", "{name}: {events:?}");
        assert_eq!(text_of(&events), "again", "{name}");
        assert_eq!(flags(&late.ade.home()), (false, false));
    }
}

/// Processes that stand still over the deadline.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stopped {
    Broker,
    Worker,
    Both,
}

#[test]
fn who_was_stopped_over_the_deadline_hears_first_and_judges_then() {
    for stopped in [Stopped::Broker, Stopped::Worker, Stopped::Both] {
        let mut late = Late::new("sleep 0.6; text said; sleep 0.1; done_as completed");
        let (turn, _) = late.send();
        pass(Duration::from_millis(200));
        let worker = late.ade.worker_of(&late.chat);
        let pids = match stopped {
            Stopped::Broker => vec![late.ade.broker_pid()],
            Stopped::Worker => vec![worker],
            Stopped::Both => vec![worker, late.ade.broker_pid()],
        };
        for pid in &pids {
            signal(*pid, Signal::SIGSTOP);
        }
        pass(Duration::from_millis(2_500));
        for pid in pids.iter().rev() {
            signal(*pid, Signal::SIGCONT);
        }
        let events = late.ade.wait_done(&late.chat, &turn);
        let events = of_turn(&events, &turn);
        assert_eq!(ended(&events), "completed", "{stopped:?}: {events:?}");
        assert_eq!(text_of(&events), "said", "{stopped:?}");
        late.was_once();
    }
}

#[test]
fn a_worker_that_wakes_only_when_it_is_disposed_of_shows_what_was_done() {
    let timing = "dispose_grace_ms = 200\n[worker]\neof_grace_ms = 200\n";
    let mut late = Late::with("sleep 0.6; text said; sleep 0.1; done_as completed", timing);
    let (turn, _) = late.send();
    signal(late.ade.worker_of(&late.chat), Signal::SIGSTOP);
    let events = late.ade.wait_done(&late.chat, &turn);
    let events = of_turn(&events, &turn);
    assert_eq!(ended(&events), "failed", "{events:?}");
    assert!(
        error(&events).starts_with("delivered, outcome unknown"),
        "{events:?}"
    );
    assert_eq!(late.runs(), 1);
}
