//! What an agent may not do through the chats that it makes.

use std::fs;
use std::path::PathBuf;

use ade_tests::ade::{Ade, executable};
use ade_tests::turns::{ended, of_type};
use ade_tests::wait::wait_until;
use serde_json::{Value, json};

/// A broker whose hosts have a shell beside them that runs what it finds in
/// their lane, as a tool of the agent would.
fn obedient() -> Ade {
    let ade = Ade::new();
    let host = ade.root().join("ade-host");
    std::os::unix::fs::symlink(executable(), &host).unwrap();
    let script = format!(
        "(while :; do sleep 0.02; [ -e ask ] || continue; mv ask asked; sh asked > out 2>&1; \
         echo $? > code.new; mv code.new code; done) & \
         ADE_HOST_PARENT=$PPID exec {} --scripted",
        host.display()
    );
    let config =
        format!("[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n");
    let mut ade = ade.with_config(&config);
    ade.serve();
    ade
}

/// A chat whose agent does what it is told.
struct Agent<'a> {
    ade: &'a Ade,
    chat: String,
    lane: PathBuf,
}

impl<'a> Agent<'a> {
    fn new(ade: &'a Ade, mode: &str) -> Self {
        let lane = ade.lane(mode);
        let mut rpc = ade.rpc();
        let chat = ade.chat(&mut rpc, "scripted", &lane, json!({"permission": mode}));
        assert_eq!(ended(&ade.turn(&chat, "hello")), "completed");
        Self { ade, chat, lane }
    }

    /// Lets it run a command of ade; its exit code and what it said.
    fn runs(&self, before: &str, args: &str) -> (i32, String) {
        let code = self.lane.join("code");
        let line = format!(
            "{before} {} --home {} --json {args}",
            executable().display(),
            self.ade.home().display()
        );
        fs::write(self.lane.join("ask.new"), line).unwrap();
        fs::rename(self.lane.join("ask.new"), self.lane.join("ask")).unwrap();
        let ended = wait_until(&format!("the agent's call {args}"), || {
            fs::read_to_string(&code).ok()
        });
        fs::remove_file(code).unwrap();
        let said = fs::read_to_string(self.lane.join("out")).unwrap();
        (ended.trim().parse().unwrap(), said)
    }

    fn creates(&self, before: &str, mode: &str) -> (i32, String) {
        let lane = self.lane.display();
        let args = format!("chat create -p scripted --lane {lane} --permission {mode}");
        self.runs(before, &args)
    }
}

fn chats(ade: &Ade) -> usize {
    let listed = ade.rpc().call("sessions.list", json!({}));
    listed["sessions"].as_array().unwrap().len()
}

#[test]
fn i05_an_agent_makes_no_chat_that_does_more_without_asking_than_its_own() {
    let ade = obedient();
    let table = [
        (
            "plan",
            ["plan", "default"].as_slice(),
            ["edit", "full-auto"].as_slice(),
        ),
        ("default", &["plan", "default"], &["edit", "full-auto"]),
        ("edit", &["plan", "default", "edit"], &["full-auto"]),
        ("full-auto", &["plan", "default", "edit", "full-auto"], &[]),
    ];
    for (own, allowed, refused) in table {
        let agent = Agent::new(&ade, own);
        for mode in allowed {
            let (code, said) = agent.creates("", mode);
            assert_eq!(code, 0, "{mode} of {own}: {said}");
        }
        let before = chats(&ade);
        for mode in refused {
            let (code, said) = agent.creates("", mode);
            assert_eq!(code, 7, "{mode} of {own}: {said}");
            assert!(said.contains("denied"), "{said}");
            let named = format!("a chat with the permission {own}");
            assert!(said.contains(&named), "{said}");
            assert!(said.contains("leave the permission out"), "{said}");
            // Nor by the way around its environment.
            let (code, said) = agent.creates("env -i", mode);
            assert_eq!(code, 7, "{mode} of {own}: {said}");
        }
        assert_eq!(chats(&ade), before, "nothing was made");
    }
}

/// Also behind a new broker, and by the mode that the chat has now.
#[test]
fn i05_what_an_agent_may_make_follows_the_mode_of_its_chat() {
    let mut ade = obedient();
    let chat = Agent::new(&ade, "full-auto").chat;
    ade.kill_broker();
    ade.serve();
    let agent = Agent {
        ade: &ade,
        lane: ade.lane("full-auto"),
        chat,
    };
    let (code, said) = agent.creates("", "full-auto");
    assert_eq!(code, 0, "{said}");
    // In the middle of a turn the worker stays until the turn's end.
    let mut rpc = ade.rpc();
    let (turn, after) = ade.send(&mut rpc, &agent.chat, "!emit x\n!hang");
    rpc.subscribe(&agent.chat, after);
    rpc.event("the turn streams", |e| e["event"]["type"] == "text");
    rpc.call(
        "chat.permission",
        json!({"sessionId": agent.chat, "permission": "plan"}),
    );
    let (code, said) = agent.creates("", "full-auto");
    assert_eq!(code, 7, "{said}");
    rpc.call("chat.abort", json!({"sessionId": agent.chat}));
    rpc.until_done(&turn);
}

#[test]
fn i05_what_only_carries_a_mark_makes_chats_that_ask() {
    let ade = obedient();
    let lane = ade.lane("lane").display().to_string();
    for (mode, expected) in [("full-auto", 7), ("edit", 7), ("default", 0), ("plan", 0)] {
        let create = [
            "--json",
            "chat",
            "create",
            "-p",
            "scripted",
            "--lane",
            &lane,
            "--permission",
            mode,
        ];
        let mut command = ade.command(&create);
        let ran = command
            .env("ADE_WORKER_MARK", "some-mark")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(ran.status.code(), Some(expected), "{mode}: {said}");
    }
}

/// It is not the human of its chats either, and gives them no other mode.
#[test]
fn i05_an_agent_answers_no_card_of_a_chat_that_it_made() {
    let ade = obedient();
    let agent = Agent::new(&ade, "full-auto");
    let (code, said) = agent.creates("", "default");
    assert_eq!(code, 0, "{said}");
    let made: Value = serde_json::from_str(said.trim()).unwrap();
    let made = made["sessionId"].as_str().unwrap();
    let mut rpc = ade.rpc();
    rpc.subscribe(made, 0);
    let (code, said) = agent.runs("", &format!("chat send {made} '!card Run it? | rm | bash'"));
    assert_eq!(code, 0, "{said}");
    let sent: Value = serde_json::from_str(said.trim()).unwrap();
    let card = rpc.card();
    let attempts = [
        format!("answer {card} allow"),
        format!("answer {card} allow_session"),
        format!("chat permission {made} full-auto"),
    ];
    for attempt in attempts {
        let (code, said) = agent.runs("", &attempt);
        assert_eq!(code, 7, "{attempt}: {said}");
    }
    rpc.answer(&card, &ade_tests::cards::no()).unwrap();
    let events = rpc.until_done(sent["turnId"].as_str().unwrap());
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], false);
}

/// What it may not do it cannot have done by a chat that may.
#[test]
fn i05_an_agent_tells_nothing_to_a_chat_that_does_more_without_asking() {
    let ade = obedient();
    let (looser, agent) = (Agent::new(&ade, "full-auto"), Agent::new(&ade, "default"));
    let before = ade.session(&looser.chat)["lastSequence"].clone();
    for (asked, prompt) in [
        ("send", " x"),
        ("steer", " x"),
        ("interrupt", " --replace x"),
        ("queue recover", ""),
    ] {
        let args = format!("chat {asked} {}{prompt}", looser.chat);
        let (code, said) = agent.runs("", &args);
        assert_eq!(code, 7, "{args}: {said}");
        assert!(said.contains("permission full-auto"), "{said}");
    }
    assert_eq!(ade.session(&looser.chat)["lastSequence"], before);
    for (from, to) in [(&agent, &agent), (&looser, &looser), (&looser, &agent)] {
        let (code, said) = from.runs("", &format!("chat send --wait {} x", to.chat));
        assert_eq!(code, 0, "{said}");
    }
}
