//! Questions on a real terminal: where they stand among the rest, and what a
//! Ctrl-C at one of them shows.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use ade_tests::ade::Ade;
use ade_tests::commands::within;
use ade_tests::wait::{wait_true, wait_until};

/// A command as the foreground job of a terminal, and what stands there.
struct Terminal {
    ours: File,
    shown: Arc<Mutex<String>>,
    child: Child,
}

impl Terminal {
    fn run(command: &Command) -> Self {
        let pty = nix::pty::openpty(None, None).expect("a terminal");
        let mut leader = Command::new("setsid");
        leader.arg("--ctty");
        let mut leader = within(leader, command);
        let slave = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a descriptor"));
        leader.stdin(slave(&pty.slave));
        leader.stdout(slave(&pty.slave));
        leader.stderr(slave(&pty.slave));
        let child = leader.spawn().expect("the command");
        drop((leader, pty.slave));
        let ours = File::from(pty.master);
        let shown = Arc::new(Mutex::new(String::new()));
        let (into, mut from) = (Arc::clone(&shown), ours.try_clone().expect("a descriptor"));
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut piece) {
                let text = String::from_utf8_lossy(&piece[..length]);
                into.lock().expect("no panic under it").push_str(&text);
            }
        });
        Self { ours, shown, child }
    }

    fn shown(&self) -> String {
        self.shown.lock().expect("no panic under it").clone()
    }

    fn see(&self, text: &str) {
        wait_true(&format!("{text:?} is shown"), || {
            self.shown().contains(text)
        });
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("typed");
    }

    fn end(&mut self) -> Option<i32> {
        let status = wait_until("the command ends", || self.child.try_wait().expect("it"));
        status.code()
    }
}

fn run(ade: &Ade, prompt: &str) -> Terminal {
    let lane = ade.lane("lane").display().to_string();
    let args = ["run", "--provider", "scripted", "--lane", &lane, prompt];
    let mut command = ade.command(&args);
    command.env("NO_COLOR", "1").env("TERM", "xterm");
    Terminal::run(&command)
}

const ASK: &str = "  [y] allow  [a] allow for this session  [n] deny: ";

/// Where a text stands in what a terminal has shown.
#[track_caller]
fn place(shown: &str, text: &str) -> usize {
    shown
        .find(text)
        .unwrap_or_else(|| panic!("{text}: {shown}"))
}

#[test]
fn a_question_stands_behind_what_was_said_before_it() {
    let mut ade = Ade::new();
    ade.serve();
    for _ in 0..5 {
        let mut terminal = run(
            &ade,
            "!emit first\n!card Run it? | rm -rf x | bash\n!emit then",
        );
        terminal.see(ASK);
        let shown = terminal.shown();
        assert!(place(&shown, "first") < place(&shown, "→ bash"), "{shown}");
        assert!(
            place(&shown, "→ bash") < place(&shown, "? Run it?"),
            "{shown}"
        );
        assert!(shown.ends_with(ASK), "{shown:?}");
        terminal.press("y\n");
        assert_eq!(terminal.end(), Some(0));
        assert_eq!(terminal.shown().matches("? Run it?").count(), 1);
    }
}

#[test]
fn ctrl_c_at_a_question_ends_the_turn_and_says_so_once() {
    let mut ade = Ade::new();
    ade.serve();
    for _ in 0..5 {
        let mut terminal = run(&ade, "!card Run it? | rm -rf x | bash\n!emit then");
        terminal.see(ASK);
        terminal.press("\u{3}");
        assert_eq!(terminal.end(), Some(130));
        let shown = terminal.shown();
        assert_eq!(shown.matches("? Run it?").count(), 1, "{shown}");
        assert_eq!(shown.matches("[n] deny").count(), 1, "{shown}");
        assert_eq!(shown.matches("withdrawn").count(), 1, "{shown}");
    }
}

/// Whoever comes late is told of the open card at once, and of the rest after.
#[test]
fn a_question_that_was_open_before_stands_behind_it_too() {
    let mut ade = Ade::new();
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(
        &mut rpc,
        "scripted",
        &ade.lane("one"),
        serde_json::json!({}),
    );
    ade.send(&mut rpc, &chat, "!card Run it? | rm -rf x | bash");
    ade.wait_state(&chat, "awaiting_card");
    let mut command = ade.command(&["attach", &chat]);
    command.env("NO_COLOR", "1").env("TERM", "xterm");
    let mut terminal = Terminal::run(&command);
    terminal.see(ASK);
    let shown = terminal.shown();
    assert!(
        place(&shown, "→ bash") < place(&shown, "? Run it?"),
        "{shown}"
    );
    terminal.press("n\n");
    terminal.press("\u{4}");
    terminal.end();
}
