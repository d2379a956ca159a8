//! Everything dies, stops and comes back at random; afterwards every turn has
//! one end, every transcript is whole, and nothing is left.
//!
//! `ADE_CHAOS_SECS` makes it longer (20 s by default), `ADE_CHAOS_SEED` repeats
//! what was tried; the moments are those of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ade_leases::process::{self, ProcessIdentity, Signal, Target};
use ade_tests::ade::{Ade, command_line, report};
use ade_tests::chaos::{Chance, call, number};
use ade_tests::turns::dones;
use ade_tests::wait::{wait_true, wait_within};
use serde_json::{Value, json};

const CHATS: usize = 30;

const CONFIG: &str = "[worker]\norphan_idle_ms = 4000\norphan_turn_ms = 15000\neof_grace_ms = 200\n\
    [providers.scripted]\ndispose_grace_ms = 300\nterm_to_kill_ms = 300\n";

/// What chats are told to do. Each gets a word of its own in front.
const SCRIPTS: &[&str] = &[
    "!words 20 5",
    "!words 200 5",
    "!words 1000 5",
    "!events 3000 200",
    "!card Run it? | ls\n!emit on",
    "!ask Which? | a,b\n!emit on",
    "!child 300\n!grandchild 300\n!words 100 10",
    "!child 300\n!grandchild 300\n!emit left",
    "!ignore-term\n!words 300 5",
    "!crash 3",
    "!kill",
    "!half",
    "!hang",
    "!long-tool 3000",
];

/// Scripts before which nothing is said: silence and deaths that are recovered.
const SILENT: &[&str] = &["!hang-once", "!crash-once 3", "!kill-once", "!delay 200"];

struct Run {
    ade: Ade,
    chance: Chance,
    chats: Vec<String>,
    /// Turns whose messages were taken, with the words that mark them.
    turns: Vec<(String, String, String)>,
    brokers: Vec<Child>,
    clients: Vec<Child>,
    /// What was stopped, until when.
    stopped: Vec<(ProcessIdentity, Instant)>,
    done: BTreeMap<&'static str, u64>,
    next: u64,
}

impl Run {
    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.ade.command(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("ade")
    }

    fn call(&self, action: &str, arguments: &Value) -> Option<Value> {
        call(&self.ade.socket(), action, arguments)
    }

    fn answers(&self) -> bool {
        self.call("broker.status", &json!({})).is_some()
    }

    /// Processes whose command line contains a word, `sleep` and all.
    fn of(&self, word: &str) -> Vec<ProcessIdentity> {
        let all = self.ade.processes().into_iter();
        all.filter(|identity| command_line(identity.pid.get()).contains(word))
            .collect()
    }

    fn signal(&mut self, word: &str, signal: Signal) {
        let all = self.of(word);
        if let Some(one) = self.chance.one_of(&all) {
            // Gone by now is what may happen here.
            let _ = process::signal(&Target::Process(one.clone()), signal);
        }
    }

    fn stop_for_a_while(&mut self, word: &str) {
        let all = self.of(word);
        if let Some(one) = self.chance.one_of(&all).cloned() {
            let _ = process::signal(&Target::Process(one.clone()), Signal::SIGSTOP);
            let while_ms = 20 + self.chance.below(1_500);
            self.stopped
                .push((one, Instant::now() + Duration::from_millis(while_ms)));
        }
    }

    fn wake(&mut self, all: bool) {
        let now = Instant::now();
        self.stopped.retain(|(one, until)| {
            let due = all || now >= *until;
            if due {
                let _ = process::signal(&Target::Process(one.clone()), Signal::SIGCONT);
            }
            !due
        });
    }

    fn reap(&mut self) {
        for all in [&mut self.brokers, &mut self.clients] {
            all.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        }
    }

    fn prompt(&mut self) -> (String, String) {
        self.next += 1;
        let word = format!("tag{}x", self.next);
        let script = *self.chance.one_of(SCRIPTS).expect("a script");
        let silent = *self.chance.one_of(SILENT).expect("a script");
        let prompt = if self.chance.below(3) == 0 {
            format!("{silent}\n!emit {word}\n{script}")
        } else {
            format!("!emit {word}\n{script}")
        };
        (word, prompt)
    }

    fn chat(&mut self) -> String {
        self.chance.one_of(&self.chats).expect("a chat").clone()
    }

    fn send(&mut self) {
        let chat = self.chat();
        let (word, prompt) = self.prompt();
        let message = json!({"sessionId": chat, "prompt": prompt, "retry": true});
        if let Some(sent) = self.call("chat.send", &message) {
            let turn = sent["turnId"].as_str().expect("a turn").to_owned();
            self.turns.push((chat, turn, word));
        }
    }

    fn answer(&mut self) {
        let open = self.call("cards.list", &json!({})).unwrap_or_default();
        let cards = open["cards"].as_array().cloned().unwrap_or_default();
        let Some(card) = self.chance.one_of(&cards) else {
            return;
        };
        let value = if card["payload"]["kind"] == "select" {
            "a"
        } else {
            "allow"
        };
        let answer = json!({"ok": true, "value": value});
        let _ = self.call(
            "cards.answer",
            &json!({"cardId": card["cardId"], "answer": answer}),
        );
    }

    fn client(&mut self) {
        let chat = self.chat();
        let (_, prompt) = self.prompt();
        let lane = self.ade.lane("run").display().to_string();
        let child = match self.chance.below(3) {
            0 => self.spawn(&["attach", &chat]),
            1 => self.spawn(&["chat", "send", &chat, &prompt]),
            _ => self.spawn(&["run", "--provider", "scripted", "--lane", &lane, &prompt]),
        };
        self.clients.push(child);
    }

    fn broker(&mut self, args: &[&str]) {
        let broker = self.spawn(args);
        self.brokers.push(broker);
    }

    fn step(&mut self) {
        let (what, weight): (&'static str, u64) = match self.chance.below(100) {
            0..35 => ("send", 0),
            35..45 => ("abort", 0),
            45..48 => ("stop", 0),
            48..58 => ("answer", 0),
            58..66 => ("kill worker", 0),
            66..72 => ("kill host", 0),
            72..75 => ("kill child", 0),
            75..79 => ("term", 0),
            79..88 => ("pause", 0),
            88..92 => ("client", 0),
            92..94 => ("kill client", 0),
            94..97 => ("kill broker", 1),
            97 => ("term broker", 1),
            98 => ("pause broker", 1),
            _ => ("replace", 1),
        };
        *self.done.entry(what).or_default() += 1;
        match what {
            "send" => self.send(),
            "abort" | "stop" => {
                let action = format!("chat.{what}");
                let chat = self.chat();
                let _ = self.call(&action, &json!({"sessionId": chat}));
            }
            "answer" => self.answer(),
            "kill worker" => self.signal("ade-worker", Signal::SIGKILL),
            "kill host" => self.signal("ade-host", Signal::SIGKILL),
            "kill child" => self.signal("sleep", Signal::SIGKILL),
            "term" => {
                let word = if self.chance.below(2) == 0 {
                    "ade-worker"
                } else {
                    "ade-host"
                };
                self.signal(word, Signal::SIGTERM);
            }
            "pause" => {
                let word = if self.chance.below(2) == 0 {
                    "ade-worker"
                } else {
                    "ade-host"
                };
                self.stop_for_a_while(word);
            }
            "client" => self.client(),
            "kill client" => {
                if let Some(mut client) = self.clients.pop() {
                    let _ = client.kill();
                    let _ = client.wait();
                }
            }
            "kill broker" => self.signal(" serve", Signal::SIGKILL),
            "term broker" => self.signal(" serve", Signal::SIGTERM),
            "pause broker" => self.stop_for_a_while(" serve"),
            "replace" => self.broker(&["serve", "--replace"]),
            other => unreachable!("{other}"),
        }
        // A new broker comes soon, not at once, and sometimes one too many.
        if weight > 0 || self.chance.below(40) == 0 {
            self.broker(&["serve"]);
        }
        self.wake(false);
        self.reap();
    }

    /// Lets everything come to rest and ends it in order.
    fn calm(&mut self) {
        self.wake(true);
        for mut client in std::mem::take(&mut self.clients) {
            let _ = client.kill();
            let _ = client.wait();
        }
        // One that was told to end answers nobody any more.
        wait_within("one broker answers", Duration::from_secs(90), || {
            self.reap();
            let brokers = self.of(" serve").len();
            if brokers == 0 {
                self.broker(&["serve"]);
            }
            (brokers == 1 && self.answers()).then_some(())
        });
        let list = self.ade.rpc().call("sessions.list", json!({}));
        let all: BTreeSet<String> = (list["sessions"].as_array().expect("chats").iter())
            .filter_map(|info| Some(info["sessionId"].as_str()?.to_owned()))
            .collect();
        self.chats = all.into_iter().collect();
        // A long run makes more chats than a broker serves clients.
        for some in self.chats.chunks(64) {
            std::thread::scope(|scope| {
                for chat in some {
                    let ade = &self.ade;
                    scope.spawn(move || ade.rpc().call("chat.stop", json!({"sessionId": chat})));
                }
            });
        }
    }
}

/// The user's messages of a session file that hold a word.
fn said(text: &str, word: &str) -> usize {
    text.lines()
        .filter(|line| line.contains("\"role\":\"user\"") && line.contains(word))
        .count()
}

/// Cards that were opened and never settled.
fn unsettled(lines: &[Value]) -> BTreeSet<String> {
    let mut open = BTreeSet::new();
    for line in lines {
        let event = &line["event"];
        let id = |card: &Value| card.as_str().unwrap_or_default().to_owned();
        match event["type"].as_str() {
            Some("card_opened") => drop(open.insert(id(&event["card"]["cardId"]))),
            Some("card_resolved") => drop(open.remove(&id(&event["cardId"]))),
            _ => {}
        }
    }
    open
}

#[test]
fn everything_dies_at_random_and_nothing_is_lost_or_left() {
    let clock = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(1, |now| u64::from(now.subsec_nanos()));
    let seed = number("ADE_CHAOS_SEED").unwrap_or(clock);
    let time = Duration::from_secs(number("ADE_CHAOS_SECS").unwrap_or(20));
    report(&format!(
        "ADE_CHAOS_SEED={seed} ADE_CHAOS_SECS={}",
        time.as_secs()
    ));
    let mut run = Run {
        ade: Ade::new().with_config(CONFIG),
        chance: Chance::new(seed),
        chats: Vec::new(),
        turns: Vec::new(),
        brokers: Vec::new(),
        clients: Vec::new(),
        stopped: Vec::new(),
        done: BTreeMap::new(),
        next: 0,
    };
    run.broker(&["serve"]);
    wait_true("the first broker answers", || run.answers());
    for index in 0..CHATS {
        let lane = run.ade.lane(&format!("lane{}", index % 3));
        let mut rpc = run.ade.rpc();
        let chat = run
            .ade
            .chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 1_500}));
        run.chats.push(chat);
    }
    let until = Instant::now() + time;
    while Instant::now() < until {
        run.step();
    }
    run.calm();
    let infos: Vec<Value> = run.chats.iter().map(|chat| run.ade.session(chat)).collect();
    run.ade.expect_code(0, &["stop"]);
    report(&format!("{} turns taken; {:?}", run.turns.len(), run.done));
    run.ade.wait_empty(Duration::from_secs(10));
    run.brokers
        .iter_mut()
        .for_each(|broker| drop(broker.wait()));
    // Each chat's ends, and what its agent wrote down.
    let mut chats = BTreeMap::new();
    let mut torn = 0;
    for info in &infos {
        let chat = info["sessionId"].as_str().expect("a chat");
        if info["lastSequence"] == 0 {
            // Made by a client that died before it said anything.
            continue;
        }
        let lines = run.ade.checked_transcript(chat);
        torn += run.ade.transcript_and_torn(chat).1;
        assert_eq!(unsettled(&lines), BTreeSet::new(), "open cards of {chat}");
        let mut text = String::new();
        if let Some(file) = info["sessionFile"].as_str() {
            assert!(run.ade.is_free(&PathBuf::from(file)), "{file}");
            // A chat that was never answered has none.
            text = std::fs::read_to_string(file).unwrap_or_default();
        }
        chats.insert(chat.to_owned(), (dones(&lines), text));
    }
    // Nothing but SIGKILL leaves a line half, and the broker writes with two
    // threads.
    let kills = run.done.get("kill broker").copied().unwrap_or_default();
    assert!(
        u64::try_from(torn).is_ok_and(|torn| torn <= 2 * kills),
        "{torn} torn lines, {kills} kills"
    );
    for (chat, turn, word) in &run.turns {
        let (ends, text) = &chats[chat];
        let ends = ends.iter().filter(|(of, _)| of == turn).count();
        assert_eq!(ends, 1, "ends of {turn} of {chat}");
        let times = said(text, word);
        assert!(times <= 2, "{turn} was sent {times} times");
    }
    assert_eq!(run.ade.litter(), Vec::<PathBuf>::new());
}
