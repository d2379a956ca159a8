//! Wrong input: each gets a sentence that names the thing and the remedy, and
//! the documented exit code.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;

use ade_tests::ade::{Ade, executable, report};
use serde_json::{Value, json};

/// A user that owns nothing here.
const NOBODY: u32 = 65_534;

/// Asserts the code, and that the words are on standard error.
#[track_caller]
fn refused(ade: &Ade, code: i32, args: &[&str], words: &[&str]) {
    let (stdout, stderr) = ade.expect_code(code, args);
    assert_eq!(stdout, "", "nothing but errors");
    for word in words {
        assert!(stderr.contains(word), "no {word:?} in: {stderr}");
    }
    assert!(stderr.starts_with("error: "), "{stderr}");
    assert!(stderr.contains("hint: "), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    // The same for programs: one document.
    let mut all = vec!["--json"];
    all.extend_from_slice(args);
    let (stdout, _) = ade.expect_code(code, &all);
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let error = &document["error"];
    assert!(error["kind"].is_string(), "{error}");
    let hints = error["hints"].as_array().unwrap();
    let text = format!("{error}");
    assert!(!hints.is_empty(), "{error}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

/// Asserts that nothing was started for it.
fn nothing_runs(ade: &Ade) {
    assert_eq!(ade.describe(), Vec::<String>::new());
}

#[test]
fn an_unknown_provider_is_named_with_the_known_ones() {
    let ade = Ade::new();
    let run = ["run", "--provider", "gpt9", "hello"];
    refused(&ade, 2, &run, &["gpt9", "pi", "scripted", "ade providers"]);
    let list = ade.json(&["ps"]);
    assert_eq!(list["sessions"], json!([]), "no chat was made");
}

#[test]
fn a_missing_lane_is_named_and_starts_nothing() {
    let ade = Ade::new();
    let run = [
        "run",
        "--provider",
        "scripted",
        "--lane",
        "no/such",
        "hello",
    ];
    refused(&ade, 2, &run, &["no/such", "--lane"]);
    fs::write(ade.root().join("lanes/file"), "").unwrap();
    let run = ["run", "--provider", "scripted", "--lane", "file", "hello"];
    refused(&ade, 2, &run, &["file", "not a directory"]);
    nothing_runs(&ade);
    // The endpoint checks for itself.
    let arguments = json!({"provider": "scripted", "lane": "/no/such"}).to_string();
    let create = ["actions", "run", "chat.create", &arguments];
    refused(&ade, 2, &create, &["/no/such", "git worktree"]);
    let arguments = json!({"provider": "scripted", "lane": "relative"}).to_string();
    let create = ["actions", "run", "chat.create", &arguments];
    let (_, stderr) = ade.expect_code(2, &create);
    assert!(
        stderr.contains("absolute") && stderr.contains("relative"),
        "{stderr}"
    );
}

#[test]
fn a_missing_model_is_named_with_what_there_is() {
    let ade = Ade::new();
    let run = [
        "run",
        "--provider",
        "scripted",
        "--model",
        "scripted/owl",
        "hello",
    ];
    let (stdout, stderr) = ade.expect_code(6, &run);
    assert_eq!(stdout, "");
    for word in ["scripted/owl", "scripted/parrot"] {
        assert!(stderr.contains(word), "{stderr}");
    }
}

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
    refused(&ade, 2, &["ps"], &["config.toml", "move it away"]);
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

#[test]
fn h01_a_socket_path_that_is_too_long_is_named_with_length_and_limit() {
    const LIMIT: usize = 107;
    let ade = Ade::new();
    // The longest home whose sockets fit, and one byte more.
    let short = ade.root().join("h");
    let tail = "/run/workers.sock".len();
    let fill = LIMIT - tail - short.as_os_str().len();
    for (more, fits) in [(fill, true), (fill + 1, false), (fill + 40, false)] {
        let home = format!("{}{}", short.display(), "h".repeat(more));
        let one = Ade::new().with_env("ADE_HOME", &home);
        if fits {
            one.expect_code(0, &["ps"]);
            one.expect_code(0, &["stop"]);
            continue;
        }
        let length = (home.len() + tail).to_string();
        refused(&one, 2, &["ps"], &[&length, "107", "ADE_HOME"]);
        nothing_runs(&one);
        assert!(!Path::new(&home).exists(), "nothing was made");
    }
    // Or the socket alone is moved.
    let socket = ade.root().join("s".repeat(100));
    let path = socket.display().to_string();
    let one = Ade::new().with_env("ADE_RPC_SOCKET_PATH", &path);
    refused(&one, 2, &["ps"], &["ADE_RPC_SOCKET_PATH", "107"]);
}

#[test]
fn a_home_that_is_relative_or_no_folder_is_refused() {
    let relative = Ade::new().with_env("ADE_HOME", "here");
    refused(&relative, 2, &["ps"], &["here", "absolute"]);
    refused(&relative, 2, &["serve"], &["here", "absolute"]);
    assert!(!relative.root().join("lanes/here").exists());

    let ade = Ade::new();
    let file = ade.root().join("file");
    fs::write(&file, "").unwrap();
    let path = file.display().to_string();
    let no_folder = Ade::new().with_env("ADE_HOME", &path);
    refused(&no_folder, 1, &["ps"], &[&path]);

    let gone = ade.root().join("gone");
    symlink(ade.root().join("nowhere"), &gone).unwrap();
    let path = gone.display().to_string();
    let dangling = Ade::new().with_env("ADE_HOME", &path);
    refused(&dangling, 1, &["ps"], &[&path]);
}

#[test]
fn a_home_without_rights_is_named() {
    if !nix::unistd::geteuid().is_root() {
        report("skipped: a home without rights needs root to be made and nobody to meet it");
        return;
    }
    let ade = Ade::new();
    let mine = ade.home().display().to_string();
    let locked = ade.root().join("locked");
    fs::create_dir(&locked).unwrap();
    let below = locked.join("home");
    for (home, words) in [
        (ade.home(), vec![mine.as_str(), "belongs to user 0"]),
        (below.clone(), vec!["locked/home"]),
    ] {
        let one = Ade::new().with_env("ADE_HOME", &home.display().to_string());
        open(ade.root());
        let Some(output) = as_nobody(&one, &["ps"]) else {
            return;
        };
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "no {word:?} in {stderr}");
        }
        assert!(stderr.contains("hint: "), "{stderr}");
        nothing_runs(&one);
    }
    assert!(!below.exists());
}

/// Lets everybody into a folder.
fn open(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a command as a user that owns nothing; `None`, visibly, where that user
/// cannot reach the executable.
fn as_nobody(ade: &Ade, args: &[&str]) -> Option<Output> {
    open(ade.root());
    let mut command = ade.command(args);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            report(&format!(
                "skipped: nobody cannot run {}: {error}",
                executable().display()
            ));
            None
        }
    }
}

#[test]
fn unknown_and_ambiguous_sessions_are_said_so() {
    let ade = Ade::new();
    refused(
        &ade,
        2,
        &["chat", "show", "ses_nobody"],
        &["ses_nobody", "ade ps"],
    );
    let lane = ade.lane("lane").display().to_string();
    let ids: Vec<String> = (0..2)
        .map(|_| {
            let create = ["chat", "create", "--provider", "scripted", "--lane", &lane];
            let (stdout, _) = ade.expect_code(0, &create);
            stdout.trim().to_owned()
        })
        .collect();
    refused(
        &ade,
        2,
        &["chat", "show", "ses_"],
        &["ses_", &ids[0], &ids[1]],
    );
    refused(&ade, 2, &["chat", "send", "", "hello"], &["ade ps"]);
    // The end of an id is enough where it is unique.
    let end = &ids[1][ids[1].len() - 12..];
    let shown = ade.json(&["chat", "show", end]);
    assert_eq!(shown["session"]["sessionId"], ids[1].as_str());
}

#[test]
fn commands_that_need_a_running_broker_say_that_none_runs() {
    let ade = Ade::new();
    refused(&ade, 5, &["status"], &["no broker", "ade serve"]);
    nothing_runs(&ade);
    // To stop what does not run is done already.
    ade.expect_code(0, &["stop"]);
}

#[test]
fn empty_messages_and_nonsense_arguments_are_usage_errors() {
    let ade = Ade::new();
    for args in [
        &["run", "--provider", "scripted", "  "][..],
        &["run"],
        &["fly"],
        &["run", "--permission", "yolo", "x"],
        &["chat", "show", "x", "--limit", "0"],
        &["actions", "run", "sessions.list", "{"],
        &["completions", "tcsh"],
    ] {
        let (_, stderr) = ade.expect_code(2, args);
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert!(stderr.contains("error"), "{args:?}: {stderr}");
    }
    nothing_runs(&ade);
}

#[test]
fn a_session_file_outside_of_the_store_or_relative_is_refused() {
    let ade = Ade::new();
    let elsewhere = ade.root().join("elsewhere.jsonl");
    fs::write(&elsewhere, "").unwrap();
    let path = elsewhere.display().to_string();
    let run = [
        "run",
        "--provider",
        "scripted",
        "--session-file",
        &path,
        "hello",
    ];
    let (_, stderr) = ade.expect_code(1, &run);
    assert!(stderr.contains(&path), "{stderr}");
    let arguments = json!({"provider": "scripted", "lane": ade.lane("lane"), "sessionFile": "x"});
    let create = ["actions", "run", "chat.create", &arguments.to_string()];
    let (_, stderr) = ade.expect_code(2, &create);
    assert!(stderr.contains("absolute"), "{stderr}");
}

/// A folder whose file system takes no sockets: `bind` says so for every path in
/// it, and for the names below it that the broker binds under.
#[test]
fn h15_a_file_system_without_sockets_is_named_with_what_to_do() {
    const SHIM: &str = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <errno.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/socket.h>
        #include <sys/un.h>
        int bind(int fd, const struct sockaddr *address, socklen_t length) {
            static int (*real)(int, const struct sockaddr *, socklen_t);
            const char *below = getenv("NO_SOCKETS_BELOW"), *number = getenv("NO_SOCKETS_ERRNO");
            const struct sockaddr_un *local = (const struct sockaddr_un *)address;
            if (!real) real = dlsym(RTLD_NEXT, "bind");
            if (below && number && address->sa_family == AF_UNIX
                && strncmp(local->sun_path, below, strlen(below)) == 0) {
                errno = atoi(number);
                return -1;
            }
            return real(fd, address, length);
        }"#;
    let ade = Ade::new();
    let Some(shim) = ade_tests::shim::compiled(ade.root(), SHIM) else {
        return;
    };
    let home = std::fs::canonicalize(ade.home()).expect("the home");
    let home = home.display().to_string();
    let shim = shim.display().to_string();
    let mut ade = ade
        .with_env("LD_PRELOAD", &shim)
        .with_env("NO_SOCKETS_BELOW", &home);
    let mount = std::process::Command::new("stat")
        .args(["-c", "%m", &home])
        .output()
        .expect("stat");
    let mount = String::from_utf8_lossy(&mount.stdout).trim().to_owned();
    for errno in [
        nix::errno::Errno::EOPNOTSUPP,
        nix::errno::Errno::EPERM,
        nix::errno::Errno::EIO,
    ] {
        ade = ade.with_env("NO_SOCKETS_ERRNO", &(errno as i32).to_string());
        for args in [
            &["serve"][..],
            &["chat", "create", "--provider", "scripted"],
        ] {
            let ran = ade.run(args);
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(!ran.status.success(), "{args:?}: {said}");
            assert!(
                said.contains(&format!(
                    "the file system mounted at {mount} takes no sockets"
                )),
                "{args:?}: {said}"
            );
            assert!(said.contains(&home), "{args:?}: {said}");
            assert!(
                said.contains("set ADE_HOME to a folder on a local file system"),
                "{said}"
            );
        }
    }
    nothing_runs(&ade);
    let left: Vec<String> = ["sock", "run"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(ade.home().join(folder)).expect("a folder"))
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.ends_with(".sock") || name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    // With sockets again nothing is in the way.
    let mut ade = ade.with_env("NO_SOCKETS_BELOW", "/nowhere");
    ade.serve();
    assert_eq!(ade.stop_broker(), Some(0));
}

#[test]
fn what_a_chat_is_asked_with_is_looked_at_before_one_is_made() {
    let ade = Ade::new();
    let at = |name: &str| ade.root().join(name).display().to_string();
    let (missing, folder, typo) = (at("none.jsonl"), at("lanes"), at("agent/typo"));
    fs::write(ade.root().join("file"), "").unwrap();
    let file = at("file");
    for (flag, value, words) in [
        ("--model", "nosuch", ["`nosuch`", "provider/id"]),
        ("--model", "a/", ["`a/`", "provider/id"]),
        ("--session-file", &missing, [&missing, "ade store list"]),
        ("--session-file", &folder, [&folder, "not a file"]),
        ("--agent-dir", &typo, [&typo, "is not there"]),
        ("--agent-dir", &file, [&file, "is not a folder"]),
    ] {
        for command in [&["run"][..], &["chat", "create"]] {
            let mut args = command.to_vec();
            args.extend(["--provider", "scripted", flag, value]);
            if command == ["run"] {
                args.push("hello");
            }
            refused(&ade, 2, &args, &words);
        }
    }
    assert!(!Path::new(&typo).exists(), "a misspelt folder is not made");
    assert_eq!(ade.json(&["ps"])["sessions"], json!([]), "no chat was made");

    let (made, _) = ade.expect_code(0, &["chat", "create", "--provider", "scripted"]);
    refused(
        &ade,
        2,
        &["chat", "model", made.trim(), "nosuch"],
        &["`nosuch`", "provider/id"],
    );
}

#[test]
fn the_file_of_a_lease_means_the_session_beside_it() {
    let ade = Ade::new();
    ade.expect_code(0, &["run", "--provider", "scripted", "hello"]);
    let list = ade.json(&["ps"]);
    let file = list["sessions"][0]["sessionFile"].as_str().unwrap();
    let chat = list["sessions"][0]["sessionId"].as_str().unwrap();
    for ending in ["", ".ade-lease", ".ade-owner"] {
        let given = format!("{file}{ending}");
        let told = ade.json(&["lease", "status", &given]);
        assert_eq!(told["state"], "held", "{told}");
        assert_eq!(told["file"], file, "{told}");
        assert_eq!(told["exists"], true, "{told}");
        assert_eq!(told["remedy"], format!("ade chat stop {chat}"), "{told}");
        let owner = ade.json(&["owner", "show", &given]);
        assert_eq!(owner["ownerSessionId"], chat, "{owner}");
        let hold = ["lease", "hold", &given, "--", "true"];
        let (_, stderr) = ade.expect_code(4, &hold);
        assert!(stderr.contains(chat), "{stderr}");
    }
    let folder = ade.root().display().to_string();
    let nowhere = ade.root().join("no/where.jsonl").display().to_string();
    for (path, words) in [(&folder, "is a folder"), (&nowhere, "is not there")] {
        for command in [
            &["lease", "status"][..],
            &["lease", "break"],
            &["lease", "hold"],
            &["owner", "show"],
        ] {
            let mut args = command.to_vec();
            args.push(path);
            refused(&ade, 2, &args, &[words]);
        }
    }
    // In a folder that is there, a session may yet begin.
    let new = ade.root().join("new.jsonl").display().to_string();
    let (stdout, _) = ade.expect_code(0, &["lease", "status", &new]);
    assert!(
        stdout.contains("free") && stdout.contains("no such file yet"),
        "{stdout}"
    );
}

#[test]
fn an_empty_home_is_none_and_a_relative_flag_is_where_it_was_given() {
    let ade = Ade::new();
    let run = |change: &dyn Fn(&mut std::process::Command), args: &[&str]| {
        let mut command = ade.command(args);
        change(&mut command);
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let empty = run(
        &|command| {
            command.env("ADE_HOME", "");
        },
        &["status"],
    );
    assert_eq!(empty.0, Some(5), "{empty:?}");
    let home = format!("{}/.ade", ade.user_home().display());
    assert!(empty.1.contains(&home), "{empty:?}");

    // Commands start in `lanes`.
    let flag = ["--home", "../home", "status"];
    let relative = run(
        &|command| {
            command.env("ADE_HOME", "x");
        },
        &flag,
    );
    assert_eq!(relative.0, Some(5), "{relative:?}");
    assert!(
        relative.1.contains(&ade.socket().display().to_string()),
        "{relative:?}"
    );
    let variable = run(
        &|command| {
            command.env("ADE_HOME", "x");
        },
        &["status"],
    );
    assert_eq!(variable.0, Some(2), "{variable:?}");

    let (_, stderr) = ade.expect_code(2, &["answer"]);
    assert!(
        stderr.contains("Usage: ade answer <CARD> <VALUE>"),
        "{stderr}"
    );
}

#[test]
fn arguments_of_an_action_are_one_object() {
    let ade = Ade::new();
    for arguments in ["[]", "\"x\"", "7", "true"] {
        let run = ["actions", "run", "chat.show", arguments];
        refused(&ade, 2, &run, &["one JSON object", "ade actions list"]);
    }
}

#[test]
fn a_held_command_that_cannot_be_run_is_told_as_it_was_asked() {
    let ade = Ade::new();
    let file = ade.root().join("x.jsonl").display().to_string();
    let hold = ["lease", "hold", &file, "--", "/no/such/program"];
    let (stdout, stderr) = ade.expect_code(127, &hold);
    assert_eq!(stdout, "");
    assert!(
        stderr.contains("/no/such/program could not be run"),
        "{stderr}"
    );
    let mut all = vec!["--json"];
    all.extend(hold);
    let (stdout, stderr) = ade.expect_code(127, &all);
    assert_eq!(stderr, "");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["error"]["kind"], "not_runnable", "{document}");
    // The output of one that runs is its own.
    let hold = ["--json", "lease", "hold", &file, "--", "echo", "hello"];
    let (stdout, _) = ade.expect_code(0, &hold);
    assert_eq!(stdout, "hello\n");
}
