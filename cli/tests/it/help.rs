//! The whole surface is a snapshot.

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
