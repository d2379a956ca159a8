//! Homes and sockets that cannot be used.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ade_tests::ade::{Ade, report};

use super::{as_nobody, nothing_runs, open, refused};

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
