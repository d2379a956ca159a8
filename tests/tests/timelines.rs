//! The handed timelines of cases F and G on the real broker with the scripted
//! agent. A timeline's clock runs faster here by a factor, and so do the
//! broker's bounds; what a worker does in it becomes the script of the prompt.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use ade_leases::process::Signal;
use ade_tests::ade::{Ade, report, signal};
use ade_tests::rpc::{Rpc, RpcFailure, text_of};
use ade_tests::wait::{PATIENCE, wait_true, wait_within};
use serde_json::{Value, json};

fn timeline(id: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/timelines")
        .join(format!("{id}.timeline.jsonl"));
    let text = std::fs::read_to_string(&path).expect("the timeline");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

fn at(step: &Value) -> u64 {
    step["at_ms"].as_u64().expect("a moment")
}

/// What the first worker does after the prompt, as a script. A worker that does
/// not end the turn hangs.
fn script(timeline: &[Value], factor: u64) -> String {
    let asked = timeline
        .iter()
        .find(|step| step["frame"]["type"] == "prompt");
    let mut now = at(asked.expect("a prompt"));
    let mut lines = Vec::new();
    let mut ended = false;
    for step in timeline {
        let frame = &step["frame"];
        let kind = frame["event"]["kind"].as_str().unwrap_or_default();
        let text = frame["event"]["text"].as_str().unwrap_or("thinking");
        let line = match (frame["type"].as_str().unwrap_or_default(), kind) {
            ("event", "tool_start") => "!emit calls a tool".to_owned(),
            ("event", "tool_end") => "!tool bash done".to_owned(),
            ("event", "text_delta") => format!("!emit {text}"),
            ("event", _) => format!("!reasoning {text}"),
            ("ui_request", _) => "!card Run? | make".to_owned(),
            ("turn_end", _) => String::new(),
            _ if step["append_session_line"] == true => "!file a line".to_owned(),
            _ => continue,
        };
        lines.push(format!("!delay {}", at(step).saturating_sub(now) / factor));
        now = at(step);
        ended |= line.is_empty();
        lines.push(line);
    }
    if !ended && lines.iter().all(|line| !line.starts_with("!card")) {
        lines.push("!hang".into());
    }
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

/// A timeline being played.
struct Play {
    ade: Ade,
    chat: String,
    clients: HashMap<String, Rpc>,
    /// Turns by the timeline's names.
    turns: HashMap<String, String>,
    card: Option<String>,
    answers: Vec<Result<Value, RpcFailure>>,
    took: Duration,
}

fn config(factor: u64) -> String {
    format!(
        "[turns]\nquiet_ms = {}\n[providers.scripted]\nfirst_event_ms = {}\n",
        60_000 / factor,
        90_000 / factor
    )
}

/// Plays a timeline `factor` times as fast as it says.
fn play(id: &str, factor: u64, config: &str) -> Play {
    let steps = timeline(id);
    let script = script(&steps, factor);
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let mut play = Play {
        ade,
        chat,
        clients: HashMap::from([("client:a".to_owned(), rpc)]),
        turns: HashMap::new(),
        card: None,
        answers: Vec::new(),
        took: Duration::ZERO,
    };
    let begin = Instant::now();
    for step in &steps {
        let moment = begin + Duration::from_millis(at(step) / factor);
        let bound = PATIENCE + Duration::from_millis(at(step) / factor);
        wait_within("the timeline's moment", bound, || {
            (Instant::now() >= moment).then_some(())
        });
        play.step(step, &script);
    }
    play.took = begin.elapsed();
    play
}

impl Play {
    fn step(&mut self, step: &Value, script: &str) {
        let who = step["who"].as_str().expect("who").to_owned();
        let frame = &step["frame"];
        if step["disconnect"] == true {
            self.clients.remove(&who);
        } else if step["connect"] == true {
            let mut client = self.ade.rpc();
            client.subscribe(&self.chat, 0);
            self.clients.insert(who, client);
        } else if step["kill"].is_string() {
            let pid = self.ade.session(&self.chat)["workerPid"].as_i64();
            let pid = i32::try_from(pid.expect("a worker")).expect("a pid");
            signal(pid, Signal::SIGKILL);
            wait_true("the turn is over", || self.info()["state"] == "idle");
        } else {
            match frame["type"].as_str().unwrap_or_default() {
                "prompt" => self.prompt(&who, frame, script),
                "abort" => {
                    let (chat, rpc) = (self.chat.clone(), self.client(&who));
                    rpc.call("chat.abort", json!({"sessionId": chat}));
                }
                "ui_request" => {
                    wait_true("the card", || !self.cards().is_empty());
                    self.card = Some(self.cards().remove(0));
                }
                "ui_response" => {
                    let answer = json!({"ok": true, "value": frame["choice"]});
                    let asked = json!({"cardId": self.card, "answer": answer});
                    let answered = self.client(&who).try_call("cards.answer", asked);
                    self.answers.push(answered);
                }
                _ => {}
            }
        }
    }

    fn prompt(&mut self, who: &str, frame: &Value, script: &str) {
        let first = self.turns.is_empty();
        let text = if first {
            script
        } else {
            frame["text"].as_str().expect("a text")
        };
        let asked = json!({"sessionId": self.chat, "prompt": text});
        let sent = self.client(who).call("chat.send", asked);
        let turn = sent["turnId"].as_str().expect("a turn").to_owned();
        let name = frame["turn"].as_str().expect("a name").to_owned();
        self.turns.insert(name, turn);
    }

    fn client(&mut self, who: &str) -> &mut Rpc {
        self.clients.get_mut(who).expect("a connected client")
    }

    fn info(&self) -> Value {
        self.ade.session(&self.chat)
    }

    fn cards(&self) -> Vec<String> {
        let list = self.ade.rpc().call("cards.list", json!({}));
        let all = list["cards"].as_array().expect("cards");
        all.iter()
            .filter_map(|card| card["cardId"].as_str().map(str::to_owned))
            .collect()
    }

    /// The envelopes of a turn, once it has ended.
    fn turn(&self, name: &str) -> Vec<Value> {
        let mut rpc = self.ade.rpc();
        rpc.subscribe(&self.chat, 0);
        let events = rpc.until_done(&self.turns[name]);
        let of_turn = |event: &Value| event["turnId"] == self.turns[name].as_str();
        events.into_iter().filter(of_turn).collect()
    }

    fn generation(&self) -> u64 {
        self.info()["generation"].as_u64().expect("a number")
    }

    /// The next message simply works.
    fn goes_on(&self) {
        assert_eq!(
            text_of(&self.ade.turn(&self.chat, "next")),
            "You said: next"
        );
    }
}

fn of<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let all = events.iter().map(|envelope| &envelope["event"]);
    all.filter(|event| event["type"] == kind).collect()
}

fn status(events: &[Value]) -> &str {
    let done = of(events, "done");
    assert_eq!(done.len(), 1, "exactly one terminal event: {events:?}");
    done[0]["status"].as_str().expect("a status")
}

fn resolution(events: &[Value]) -> &Value {
    let settled = of(events, "card_resolved");
    assert_eq!(settled.len(), 1, "a card is settled once: {events:?}");
    &settled[0]["resolution"]
}

fn kind(answer: &Result<Value, RpcFailure>) -> &str {
    match answer {
        Ok(_) => "ok",
        Err(failure) => &failure.kind,
    }
}

#[test]
fn f01_a_silent_agent_is_replaced_once_and_never_asked_a_third_time() {
    let play = play("F01", 100, &config(100));
    let events = play.turn("t1");
    assert_eq!(status(&events), "failed");
    assert_eq!(
        (of(&events, "notice").len(), of(&events, "error").len()),
        (1, 1)
    );
    assert_eq!(of(&events, "user_message").len(), 1);
    assert_eq!(play.generation(), 2, "one recycle, one resend");
    play.goes_on();
}

#[test]
fn a_wedge_costs_one_deadline_and_the_replacements_start() {
    let (ade, chat, mut rpc) = {
        let mut ade = Ade::new();
        ade.serve();
        let mut rpc = ade.rpc();
        let lane = ade.lane("one");
        let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 1_500}));
        (ade, chat, rpc)
    };
    let deadline = Duration::from_millis(1_500);
    let timed = |prompt: &str| {
        let begin = Instant::now();
        let events = ade.turn(&chat, prompt);
        assert_eq!(status(&events), "completed", "{events:?}");
        begin.elapsed()
    };
    let start = timed("a cold start and a turn");
    let warm = timed("a turn alone");
    let wedged = timed("!hang-once\n!emit done");
    report(&format!(
        "a wedge: {wedged:?} with a deadline of {deadline:?}; a cold turn {start:?}, a warm one {warm:?}"
    ));
    assert!(wedged >= deadline, "{wedged:?}");
    // The old worker's leave and the new one's start are each about as long as a
    // cold turn; three of them are room for a loaded machine.
    assert!(
        wedged < deadline + 5 * start,
        "{wedged:?} {deadline:?} {start:?}"
    );
    rpc.call("chat.stop", json!({"sessionId": chat}));
}

#[test]
fn f03_a_long_silent_tool_is_no_hang() {
    let play = play("F03", 300, &config(300));
    let events = play.turn("t1");
    assert_eq!(status(&events), "completed");
    assert_eq!((play.generation(), of(&events, "error").len()), (1, 0));
    for notice in of(&events, "notice") {
        let text = notice["message"].as_str().expect("a text");
        assert!(text.starts_with("no output since"), "{text}");
    }
    assert_eq!(
        of(&events, "notice").len(),
        1,
        "told once for the whole silence"
    );
    play.goes_on();
}

#[test]
fn f04_an_event_of_the_turn_counts_and_a_heartbeat_without_a_turn_does_not() {
    let slow = play("F04", 100, &config(100));
    let events = slow.turn("t1");
    assert_eq!(
        (status(&events), text_of(&events).as_str()),
        ("completed", "hi")
    );
    assert_eq!(slow.generation(), 1);
    drop(slow);

    let mut ade = Ade::new().with_config(&config(100));
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let beats = "!turnless\n!delay 100\n".repeat(20);
    let events = ade.turn(&chat, &format!("{beats}!emit late"));
    assert_eq!(status(&events), "failed", "{events:?}");
    assert_eq!(ade.session(&chat)["generation"], 2);
}

#[test]
fn f08_deadlines_do_not_follow_the_wall_clock() {
    let Some((ade, clock)) = with_a_clock_of_its_own() else {
        return;
    };
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    for jump in ["7200", "-7200"] {
        let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 1_000}));
        let begin = Instant::now();
        let (turn, after) = ade.send(&mut rpc, &chat, "!hang-once\n!emit done");
        ade.wait_state(&chat, "awaiting_first_event");
        let before = ade.session(&chat)["lastEventAt"].clone();
        std::fs::write(&clock, jump).expect("the jump");
        let mut watcher = ade.rpc();
        watcher.subscribe(&chat, after);
        let events = watcher.until_done(&turn);
        assert_eq!(status(&events), "completed");
        assert_eq!(of(&events, "notice").len(), 1, "one recycle: {events:?}");
        assert!(begin.elapsed() >= Duration::from_secs(1), "not at once");
        assert!(begin.elapsed() < PATIENCE, "not never");
        assert_ne!(ade.session(&chat)["lastEventAt"], before);
        std::fs::write(&clock, "0").expect("the jump");
    }
}

/// A broker whose wall clock is set by a file, where a C compiler is there to
/// make that possible.
fn with_a_clock_of_its_own() -> Option<(Ade, std::path::PathBuf)> {
    const SHIM: &str = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <time.h>
        int clock_gettime(clockid_t id, struct timespec *out) {
            static int (*real)(clockid_t, struct timespec *);
            if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
            int result = real(id, out);
            const char *path = getenv("CLOCK_OFFSET_FILE");
            if (id == CLOCK_REALTIME && path) {
                FILE *file = fopen(path, "r");
                long offset = 0;
                if (file) { if (fscanf(file, "%ld", &offset) != 1) offset = 0; fclose(file); }
                out->tv_sec += offset;
            }
            return result;
        }"#;
    let ade = Ade::new();
    let clock = ade.root().join("offset");
    std::fs::write(&clock, "0").expect("the offset");
    let shim = ade_tests::shim::compiled(ade.root(), SHIM)?;
    let mut ade = ade
        .with_env("LD_PRELOAD", &shim.display().to_string())
        .with_env("CLOCK_OFFSET_FILE", &clock.display().to_string());
    ade.serve();
    Some((ade, clock))
}

/// A host that is the scripted agent at each start but the second one, at which
/// it does something else. At the first start it does something before.
fn breaking(first: &str, second: &str) -> (Ade, String) {
    use std::os::unix::fs::PermissionsExt;
    let ade = Ade::new();
    let host = ade.root().join("host.sh");
    let text = format!(
        "#!/bin/bash\n\
         n=$(cat \"$0.n\" 2>/dev/null || echo 0)\n\
         echo $((n + 1)) > \"$0.n\"\n\
         [ \"$n\" != 1 ] || {{ {second}; }}\n\
         [ \"$n\" != 0 ] || {{ {first}; }}\n\
         export ADE_HOST_PARENT=$PPID\n\
         exec -a ade-host {} --scripted\n",
        ade_tests::ade::executable().display()
    );
    std::fs::write(&host, text).expect("the host");
    std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o755)).expect("the mode");
    let config = format!(
        "[providers.scripted]\nhost = {:?}\n",
        host.display().to_string()
    );
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"firstEventMs": 500}));
    (ade, chat)
}

/// The replacement can't be had: that was the one recycle. `mend` makes the host
/// work again where it does not by itself.
fn not_replaced(first: &str, second: &str, reason: &str, mend: impl Fn(&Path)) {
    let (ade, chat) = breaking(first, second);
    let events = ade.turn(&chat, "!hang");
    assert_eq!(status(&events), "failed");
    let errors = of(&events, "error");
    assert_eq!(errors.len(), 1, "{events:?}");
    let message = errors[0]["message"].as_str().expect("a text");
    assert!(message.contains("sent nothing for 0.5 s"), "{message}");
    assert!(message.contains(reason), "{message}");
    assert!(ade.births(&chat) <= 2, "no loop: {}", ade.births(&chat));
    assert_eq!(of(&events, "notice").len(), 0, "nothing was sent again");
    mend(&ade.root().join("host.sh"));
    let events = ade.turn(&chat, "next");
    assert_eq!(text_of(&events), "You said: next", "the next message works");
}

#[test]
fn f10_a_replacement_that_ends_at_its_start_is_the_end() {
    not_replaced(":", "echo broken >&2; exit 1", "exit code 1", |_| {});
}

#[test]
fn f10_a_replacement_whose_program_is_not_there_is_the_end() {
    // The file is there and what would run it is not: the spawn says ENOENT.
    let gone = "sed -i '1s|.*|#!/no/such/shell|' \"$0\"";
    not_replaced(gone, ":", "No such file", |host| {
        let text = std::fs::read_to_string(host).expect("the host");
        let mended = text.replacen("#!/no/such/shell", "#!/bin/bash", 1);
        std::fs::write(host, mended).expect("the host");
        std::fs::write(host.with_extension("sh.n"), "2").expect("the count");
    });
}

#[test]
fn f10_a_replacement_that_cannot_be_executed_is_the_end() {
    use std::os::unix::fs::PermissionsExt;
    not_replaced("chmod -x \"$0\"", ":", "cannot be executed", |host| {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(host, mode).expect("the mode");
        std::fs::write(host.with_extension("sh.n"), "2").expect("the count");
    });
}

#[test]
fn f10_a_replacement_of_another_protocol_version_is_the_end() {
    let frame = r#"{"protocolVersion":3,"type":"lifecycle","event":"initializing"}"#;
    let other = format!("echo '{frame}'; exec sleep 60");
    not_replaced(":", &other, "version 3", |_| {});
}

#[test]
fn f11_a_turn_that_fell_silent_is_shown_and_can_be_ended() {
    let mut play = play("F11", 400, &config(400));
    let events = play.turn("t1");
    assert_eq!(
        (status(&events), text_of(&events).as_str()),
        ("interrupted", "a")
    );
    assert_eq!(play.generation(), 1, "never sent again");
    let notices = of(&events, "notice");
    assert_eq!(notices.len(), 1, "{events:?}");
    let text = notices[0]["message"].as_str().expect("a text");
    assert!(text.starts_with("no output since"), "{text}");
    play.goes_on();
    // And while it is silent, `ps` shows it.
    let asked = json!({"sessionId": play.chat, "prompt": "!emit a\n!hang"});
    play.client("client:a").call("chat.send", asked);
    wait_true("it is shown", || play.info()["quietSince"].is_string());
    let (table, _) = play.ade.expect_code(0, &["ps"]);
    assert!(table.contains("(quiet)"), "{table}");
}

#[test]
fn f12_a_turn_is_over_when_it_says_so_and_the_lease_when_the_process_is() {
    let mut ade = Ade::new();
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let events = ade.turn(&chat, "!ignore-term\n!emit done");
    assert_eq!(status(&events), "completed");
    let info = ade.session(&chat);
    assert_eq!(
        (&info["state"], &info["leaseHeld"]),
        (&json!("idle"), &json!(true))
    );
    let lease = ade.session_file(&chat).with_extension("jsonl.ade-lease");
    assert!(lease.exists());
    let stopping = {
        let (mut rpc, chat) = (ade.rpc(), chat);
        std::thread::spawn(move || rpc.call("chat.stop", json!({"sessionId": chat})))
    };
    let worker = i32::try_from(info["workerPid"].as_i64().expect("a pid")).expect("a pid");
    wait_true("the lease is free", || !lease.exists());
    let host = i32::try_from(info["hostPid"].as_i64().expect("a pid")).expect("a pid");
    assert!(
        !ade_tests::ade::is_alive(host),
        "not before the host is dead"
    );
    stopping.join().expect("the stop");
    assert!(!ade_tests::ade::is_alive(worker));
}

#[test]
fn f14_an_agent_without_progress_has_a_limit_of_its_own() {
    let silent = "[providers.scripted]\nprogress = \"none\"\n";
    let play = play("F14", 100, silent);
    let events = play.turn("t1");
    assert_eq!(
        (status(&events), text_of(&events).as_str()),
        ("completed", "all of it")
    );
    assert_eq!(play.generation(), 1);
    let lane = play.ade.lane("two").display().to_string();
    let asked = json!({"provider": "scripted", "lane": lane, "firstEventMs": 900});
    let refused = play.ade.rpc().try_call("chat.create", asked);
    assert_eq!(
        refused
            .expect_err("it would be replaced while healthy")
            .kind,
        "invalid"
    );
    drop(play);
    // Both rules at once are refused by name.
    let ade = Ade::new().with_config(&format!("{silent}first_event_ms = 900\n"));
    let (_, said) = ade.expect_code(2, &["serve"]);
    assert!(
        said.contains("first_event_ms") && said.contains("progress"),
        "{said}"
    );
}

#[test]
fn g01_a_late_allow_after_an_abort_is_refused() {
    let play = play("G01", 1, &config(1));
    let events = play.turn("t1");
    assert_eq!(status(&events), "interrupted");
    assert_eq!(
        resolution(&events),
        &json!({"outcome": "withdrawn", "why": "aborted"})
    );
    assert_eq!(kind(&play.answers[0]), "card_gone");
    assert!(
        of(&events, "tool_result")
            .iter()
            .all(|result| result["ok"] == false)
    );
    play.goes_on();
}

#[test]
fn g02_a_double_click_counts_once() {
    let play = play("G02", 2, &config(1));
    let events = play.turn("t1");
    assert_eq!(status(&events), "completed");
    let kinds: Vec<&str> = play.answers.iter().map(kind).collect();
    assert_eq!(kinds, ["ok", "already_answered", "already_answered"]);
    assert_eq!(resolution(&events)["outcome"], "answered");
    assert_eq!(of(&events, "tool_result").len(), 1);
    play.goes_on();
}

#[test]
fn g05_silence_is_never_a_yes_and_no_no_of_a_user_either() {
    let mut play = play("G05", 3_600, &config(1));
    assert_eq!(play.cards().len(), 1, "it waits: nobody said no");
    assert_eq!(play.info()["state"], "awaiting_card");
    play.ade.stop_broker();
    let lines = play.ade.transcript(&play.chat);
    assert_eq!(
        resolution(&lines),
        &json!({"outcome": "withdrawn", "why": "shutting_down"})
    );
    assert!(
        of(&lines, "tool_result")
            .iter()
            .all(|result| result["ok"] == false)
    );
    assert_eq!(status(&lines), "interrupted");
}

#[test]
fn g07_who_comes_back_and_who_comes_late_can_answer() {
    let mut play = play("G07", 1, &config(1));
    let events = play.turn("t1");
    assert_eq!(status(&events), "completed");
    assert_eq!(kind(&play.answers[0]), "ok");
    for who in ["client:a", "client:b"] {
        let shown = play.client(who).card();
        assert_eq!(Some(&shown), play.card.as_ref(), "{who} was shown it");
    }
    play.goes_on();
}

#[test]
fn g08_a_message_while_a_card_is_open_waits_and_the_card_stays() {
    let play = play("G08", 1, &config(1));
    assert_eq!(kind(&play.answers[0]), "ok");
    assert_eq!(status(&play.turn("t1")), "completed");
    assert_eq!(status(&play.turn("t2")), "completed");
    assert_eq!(play.generation(), 1);
}

#[test]
fn g09_a_card_of_a_dead_worker_is_withdrawn_and_the_chat_goes_on() {
    let play = play("G09", 1, &config(1));
    let events = play.turn("t1");
    assert_eq!(status(&events), "failed");
    assert_eq!(
        resolution(&events),
        &json!({"outcome": "withdrawn", "why": "worker_gone"})
    );
    assert_eq!(kind(&play.answers[0]), "card_gone");
    assert_eq!(status(&play.turn("t2")), "completed");
}

/// Two clients answer each card of a turn in the same moment.
#[test]
fn of_two_answers_in_the_same_moment_exactly_one_counts() {
    const ROUNDS: usize = 40;
    let mut ade = Ade::new();
    ade.serve();
    let mut rpc = ade.rpc();
    let lane = ade.lane("one");
    let chat = ade.chat(&mut rpc, "scripted", &lane, json!({}));
    let (turn, after) = ade.send(&mut rpc, &chat, &"!card Run? | make\n".repeat(ROUNDS));
    let both = std::sync::Arc::new(std::sync::Barrier::new(2));
    let clients: Vec<_> = ["allow", "deny"]
        .into_iter()
        .map(|word| {
            let (mut rpc, both, chat) = (ade.rpc(), std::sync::Arc::clone(&both), chat.clone());
            std::thread::spawn(move || {
                rpc.subscribe(&chat, after);
                let mut kinds = Vec::new();
                for _ in 0..ROUNDS {
                    let card = rpc.card();
                    both.wait();
                    let answered = rpc.answer(&card, &json!({"ok": true, "value": word}));
                    kinds.push(kind(&answered).to_owned());
                }
                kinds
            })
        })
        .collect();
    let mut kinds = clients
        .into_iter()
        .map(|client| client.join().expect("a client"));
    let (allows, denies) = (kinds.next().expect("one"), kinds.next().expect("two"));
    rpc.subscribe(&chat, after);
    let events = rpc.until_done(&turn);
    let ran: Vec<bool> = of(&events, "tool_result")
        .iter()
        .map(|result| result["ok"] == true)
        .collect();
    assert_eq!((status(&events), ran.len()), ("completed", ROUNDS));
    for ((allow, deny), ran) in allows.iter().zip(&denies).zip(ran) {
        let mut both = [allow.as_str(), deny.as_str()];
        both.sort_unstable();
        assert_eq!(both, ["already_answered", "ok"]);
        assert_eq!(ran, allow == "ok", "the worker got the one that counted");
    }
}
