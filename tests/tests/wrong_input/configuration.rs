//! What a configuration says that cannot be.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ade_tests::ade::{Ade, report};

use super::{NOBODY, as_nobody, nothing_runs, refused};

#[test]
fn a_wrong_configuration_is_named_by_file_line_and_key() {
    for (text, line, words) in [
        (
            "[pool]\nmax_workers = \"many\"\n",
            2,
            ["pool.max_workers", "whole number"],
        ),
        (
            "\n\n[pool]\nmax_worker = 3\n",
            4,
            ["pool.max_worker", "max_workers"],
        ),
        ("[pool\n", 1, ["config.toml", "]"]),
        (
            "[providers.pi]\nnode = \"bin/node\"\n",
            2,
            ["providers.pi.node", "absolute"],
        ),
        ("[providers.gpt9]\nnode = 1\n", 1, ["gpt9", "config.toml"]),
    ] {
        let ade = Ade::new().with_config(text);
        let place = format!("{}:{line}", ade.home().join("config.toml").display());
        let (_, stderr) = ade.expect_code(2, &["serve"]);
        for word in words.iter().chain([&place.as_str()]) {
            assert!(stderr.contains(word), "no {word:?} in: {stderr}");
        }
        // A command that would start the broker says the same.
        refused(&ade, 2, &["ps"], &[words[0], &place]);
        nothing_runs(&ade);
    }
    // No file, but a folder.
    let ade = Ade::new();
    fs::create_dir(ade.home().join("config.toml")).unwrap();
    refused(&ade, 2, &["ps"], &["config.toml", "move the folder"]);
}

#[test]
fn an_unreadable_configuration_is_named() {
    if !nix::unistd::geteuid().is_root() {
        report("skipped: an unreadable configuration needs root to be made and nobody to meet it");
        return;
    }
    let ade = Ade::new().with_config("");
    let config = ade.home().join("config.toml");
    nix::unistd::chown(&ade.home(), Some(NOBODY.into()), Some(NOBODY.into())).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let Some(output) = as_nobody(&ade, &["serve"]) else {
        return;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(&config.display().to_string()), "{stderr}");
    assert!(stderr.contains("readable"), "{stderr}");
}

#[test]
fn pi_that_is_not_there_is_said_with_what_to_do() {
    let ade = Ade::new();
    let nothing = ade.root().join("empty");
    fs::create_dir(&nothing).unwrap();
    let nothing = nothing.display().to_string();
    let ade = ade
        .with_env("PATH", &nothing)
        .with_env("SHELL", "/bin/false");
    let lane = ade.lane("lane").display().to_string();
    let run = ["run", "--provider", "pi", "--lane", &lane, "hello"];
    let (stdout, stderr) = ade.expect_code(6, &run);
    assert_eq!(stdout, "");
    assert!(stderr.contains("Pi is not installed"), "{stderr}");
    assert!(
        stderr.contains("hint: ") && stderr.contains("npm install"),
        "{stderr}"
    );
    let providers = ade.json(&["providers"]);
    let all = providers["providers"].as_array().unwrap();
    let pi = all.iter().find(|one| one["provider"] == "pi").unwrap();
    assert_eq!(pi["usable"], false);
    let blocker = pi["blocker"].as_str().unwrap();
    assert!(!blocker.is_empty(), "{pi}");
    let scripted = all
        .iter()
        .find(|one| one["provider"] == "scripted")
        .unwrap();
    assert_eq!(scripted["usable"], true);
    let (text, _) = ade.expect_code(0, &["providers"]);
    assert!(text.contains("pi") && text.contains("no"), "{text}");
}

#[test]
fn a_package_root_without_pi_is_named() {
    let ade = Ade::new();
    let wrong = ade.root().join("wrong");
    fs::create_dir(&wrong).unwrap();
    let wrong = wrong.display().to_string();
    let node = ade_tests::agents::pi().node.display().to_string();
    let ade = ade
        .with_env("ADE_PI_PACKAGE_ROOT", &wrong)
        .with_env("ADE_NODE", &node);
    let (_, stderr) = ade.expect_code(6, &["run", "--provider", "pi", "hello"]);
    assert!(stderr.contains(&wrong), "{stderr}");
    assert!(stderr.contains("hint: "), "{stderr}");
}
