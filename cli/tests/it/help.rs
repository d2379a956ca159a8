//! The whole surface is a snapshot, and nobody speaks of what is not in it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{bare, ran};

const COMMANDS: &[&str] = &[
    "",
    "demo",
    "run",
    "chat",
    "chat create",
    "chat send",
    "chat steer",
    "chat interrupt",
    "chat queue",
    "chat queue list",
    "chat queue edit",
    "chat queue cancel",
    "chat queue recover",
    "chat abort",
    "chat stop",
    "chat reset",
    "chat delete",
    "chat model",
    "chat thinking",
    "chat permission",
    "chat context",
    "chat compact",
    "chat show",
    "attach",
    "ps",
    "cards",
    "answer",
    "lease",
    "lease status",
    "lease hold",
    "lease break",
    "owner",
    "owner show",
    "owner claim",
    "store",
    "store list",
    "store check",
    "providers",
    "doctor",
    "actions",
    "actions list",
    "actions run",
    "serve",
    "status",
    "stop",
    "completions",
    "man",
];

fn help(command: &str) -> String {
    let mut arguments: Vec<&str> = command.split_whitespace().collect();
    arguments.push("--help");
    let ran = ran(bare(&arguments));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{command}");
    ran.out
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_help_of_every_command_is_known() {
    for command in COMMANDS {
        let name = format!("help-{}", if command.is_empty() { "ade" } else { command });
        insta::assert_snapshot!(name.replace(' ', "-"), help(command));
    }
}

/// Whoever adds a command adds its help here.
#[test]
fn no_command_is_left_out() {
    for parent in [
        "",
        "chat",
        "chat queue",
        "lease",
        "owner",
        "store",
        "actions",
    ] {
        let text = help(parent);
        let list = text
            .split("Commands:\n")
            .nth(1)
            .expect("a list of commands");
        let listed = list
            .lines()
            .take_while(|line| !line.is_empty())
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next());
        for name in listed {
            let command = format!("{parent} {name}");
            assert!(
                COMMANDS.contains(&command.trim()),
                "{command} has no snapshot"
            );
        }
    }
}

#[test]
fn every_command_has_a_manual_page_and_every_shell_completions() {
    for command in COMMANDS {
        let mut arguments = vec!["man"];
        arguments.extend(command.split_whitespace());
        let page = ran(bare(&arguments));
        assert_eq!(page.code, Some(0), "{command}: {}", page.err);
        assert!(page.out.contains(".SH SYNOPSIS"), "{command}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ran(bare(&["completions", shell]));
        assert_eq!(script.code, Some(0), "{shell}: {}", script.err);
        assert!(script.out.contains("ade"), "{shell}");
    }
}

/// Commands that only ade itself starts.
const HIDDEN: [&str; 3] = ["demo-guard", "demo-lease", "held-program"];

/// What ade itself says to a broker that it starts.
const HIDDEN_FLAG: &str = "--detached";

/// What is wrong with a command as a text names it, such as `ade chat stop ID`;
/// `None`: it is there.
fn wrong(named: &str) -> Option<String> {
    let mut words = named.split_whitespace().skip(1).peekable();
    let mut command = String::new();
    while let Some(word) = words.peek() {
        let longer = format!("{command} {word}").trim().to_owned();
        if !COMMANDS.contains(&longer.as_str()) && !HIDDEN.contains(&longer.as_str()) {
            break;
        }
        command = longer;
        words.next();
    }
    let names_one = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let parent = |command: &str| {
        let below = format!("{command} ");
        command.is_empty() || COMMANDS.iter().any(|name| name.starts_with(&below))
    };
    match words.peek() {
        Some(word) if parent(&command) && names_one(word) && !word.starts_with('-') => {
            return Some(format!("there is no `ade {command} {word}`"));
        }
        _ => {}
    }
    let text = help(&command);
    let unknown =
        words.find(|word| word.starts_with("--") && !text.contains(word) && *word != HIDDEN_FLAG);
    unknown.map(|flag| format!("`ade {command}` has no {flag}"))
}

/// The commands that a text names in backticks.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|span| span.starts_with("ade ") && !span.contains('\n'))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path
            .extension()
            .is_some_and(|ending| ending == "rs" || ending == "mjs")
        {
            found.push(path);
        }
    }
}

#[test]
fn every_hint_names_a_command_and_flags_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a root");
    let mut files = vec![root.join("README.md")];
    for part in [
        "broker/src",
        "cli/src",
        "leases/src",
        "protocol/src",
        "workers/src",
        "workers/hosts",
    ] {
        sources(&root.join(part), &mut files);
    }
    let mut looked_at = 0;
    let mut problems = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).expect("a source");
        // A line at a time: a backtick that is no quote spoils only its own.
        for (number, line) in text.lines().enumerate() {
            for command in named(line) {
                looked_at += 1;
                let place = format!("{}:{}", path.display(), number + 1);
                problems.extend(wrong(command).map(|what| format!("{place}: {what}")));
            }
        }
    }
    assert!(looked_at > 50, "only {looked_at} were found");
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn a_command_or_flag_that_is_not_there_is_found() {
    for good in [
        "ade ps",
        "ade chat stop {id}",
        "ade answer CARD -",
        "ade lease break --force",
        "ade --version",
    ] {
        assert_eq!(wrong(good), None, "{good}");
    }
    for bad in [
        "ade pss",
        "ade lease free",
        "ade lease break --hard",
        "ade login pi",
        "ade chat fork {id}",
    ] {
        assert!(wrong(bad).is_some(), "{bad}");
    }
}
