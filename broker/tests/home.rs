//! The home, its lock and its sockets.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use ade_broker::home::{Home, HomeError};
use ade_broker::lock::{self, BrokerLock, LockError};
use ade_broker::socket;
use tempfile::TempDir;

fn home_in(folder: &TempDir) -> Home {
    Home::at(folder.path().join("home"), None).unwrap()
}

fn lookup<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
    move |name| {
        pairs
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| OsString::from(value))
    }
}

#[test]
fn the_environment_names_the_home() {
    let of = |pairs: &[(&str, &str)]| Home::resolve(lookup(pairs));
    assert_eq!(
        of(&[("ADE_HOME", "/nowhere/x")]).unwrap().root(),
        Path::new("/nowhere/x")
    );
    assert_eq!(
        of(&[("HOME", "/nowhere")]).unwrap().root(),
        Path::new("/nowhere/.ade")
    );
    assert_eq!(
        of(&[("HOME", "/nowhere"), ("ADE_HOME", "")])
            .unwrap()
            .root(),
        Path::new("/nowhere/.ade")
    );
    let moved = of(&[("HOME", "/nowhere"), ("ADE_RPC_SOCKET_PATH", "/nowhere/s")]).unwrap();
    assert_eq!(moved.control_socket(), PathBuf::from("/nowhere/s"));
    assert_eq!(
        moved.workers_socket(),
        PathBuf::from("/nowhere/.ade/run/workers.sock")
    );
    for bad in [
        &[("ADE_HOME", "x")][..],
        &[("HOME", "x")],
        &[],
        &[("ADE_RPC_SOCKET_PATH", "s"), ("HOME", "/h")],
    ] {
        let error = of(bad).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        assert_eq!(error.hints().len(), 1);
    }
}

#[test]
fn h01_a_socket_path_that_does_not_fit_is_named_with_its_length_and_limit() {
    let root_for = |length: usize, socket: &str| {
        let tail = socket.len();
        PathBuf::from(format!("/{}", "x".repeat(length - tail - 1)))
    };
    for (length, fits) in [
        (103, true),
        (104, true),
        (107, true),
        (108, false),
        (120, false),
    ] {
        let made = Home::at(root_for(length, "/run/workers.sock"), None);
        assert_eq!(made.is_ok(), fits, "{length}");
        if let Err(error) = made {
            let text = error.to_string();
            assert!(
                text.contains(&length.to_string()) && text.contains("107"),
                "{text}"
            );
            assert!(error.hints()[0].contains("ADE_HOME"), "{:?}", error.hints());
            assert_eq!(error.exit_code(), 2);
        }
        let elsewhere = PathBuf::from(format!("/{}", "s".repeat(length - 1)));
        let made = Home::at(PathBuf::from("/home"), Some(elsewhere));
        assert_eq!(made.is_ok(), fits, "{length}");
        if let Err(error) = made {
            assert!(
                error.hints()[0].contains("ADE_RPC_SOCKET_PATH"),
                "{:?}",
                error.hints()
            );
        }
    }
}

#[tokio::test]
async fn h01_the_longest_path_that_fits_can_be_bound() {
    let folder = TempDir::new().unwrap();
    let room = 107 - folder.path().as_os_str().len() - 1;
    let path = folder.path().join("s".repeat(room));
    let bound = socket::bind(&path).unwrap();
    let client = tokio::net::UnixStream::connect(&path).await.unwrap();
    let (_, peer) = bound.accept().await.unwrap();
    assert_eq!(peer.pid, Some(nix::unistd::getpid().as_raw()));
    assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
    assert_eq!(socket::peer(&client).unwrap().uid, peer.uid);
}

#[test]
fn a_symlinked_home_is_known_by_its_real_path() {
    let folder = TempDir::new().unwrap();
    let real = fs::canonicalize(folder.path()).unwrap().join("real");
    fs::create_dir(&real).unwrap();
    symlink(&real, folder.path().join("home")).unwrap();
    assert_eq!(home_in(&folder).prepare().unwrap().root(), real);
}

#[test]
fn what_is_no_folder_of_ours_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("home"), "x").unwrap();
    let error = home_in(&folder).prepare().unwrap_err();
    assert!(matches!(error, HomeError::NotAFolder { .. }), "{error}");
    assert!(error.to_string().contains("home") && error.exit_code() == 1);

    let folder = TempDir::new().unwrap();
    symlink("/nowhere/at/all", folder.path().join("home")).unwrap();
    let error = home_in(&folder).prepare().unwrap_err();
    let mut said = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        said = format!("{said}: {next}");
        cause = next.source();
    }
    let link = folder.path().join("home").display().to_string();
    assert!(said.contains(&link), "{said}");
    assert!(said.contains("a link to nowhere"), "{said}");

    if nix::unistd::geteuid().is_root() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        std::os::unix::fs::chown(folder.path().join("home"), Some(12345), None).unwrap();
        let error = home_in(&folder).prepare().unwrap_err();
        assert!(
            matches!(error, HomeError::NotOurs { owner: 12345, .. }),
            "{error}"
        );
    }
}

#[test]
fn ids_never_lead_out_of_their_folder() {
    let home = Home::at(PathBuf::from("/nowhere"), None).unwrap();
    let path = home.transcript(&"../../etc/passwd".into());
    assert_eq!(path.parent(), Some(Path::new("/nowhere/transcripts/chat")));
    let usual = home.transcript(&"ses_0190-ab".into());
    assert_eq!(
        usual,
        Path::new("/nowhere/transcripts/chat/ses_0190-ab.jsonl")
    );
}

#[test]
fn h04_of_many_starts_at_once_exactly_one_wins_and_the_others_learn_who() {
    const STARTS: usize = 40;
    // Nothing there, a leftover of a killed broker, rubbish.
    let dead = r#"{"pid":999999,"identity":{"pid":999999,"startTicks":1,"bootId":"x","pidNamespace":1},"socket":"/s","startedAt":"t","version":"0"}"#;
    for leftover in [None, Some(dead), Some("\0\0half a li")] {
        let folder = TempDir::new().unwrap();
        let home = home_in(&folder).prepare().unwrap();
        if let Some(leftover) = leftover {
            fs::write(home.broker_lock(), leftover).unwrap();
        }
        let barrier = Barrier::new(STARTS);
        let results: Vec<Result<BrokerLock, LockError>> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..STARTS)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        BrokerLock::take(&home, "1.2.3")
                    })
                })
                .collect();
            starts
                .into_iter()
                .map(|start| start.join().unwrap())
                .collect()
        });
        let own = nix::unistd::getpid().as_raw();
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            let LockError::AlreadyRunning(Some(holder)) = error else {
                panic!("{error}")
            };
            assert_eq!((holder.pid, holder.version.as_str()), (own, "1.2.3"));
            assert_eq!(holder.socket, home.control_socket());
            assert_eq!(error.exit_code(), 3);
        }
        assert_eq!(
            lock::holder(&home).unwrap().map(|holder| holder.pid),
            Some(own)
        );
        drop(results);
        assert_eq!(lock::holder(&home).unwrap(), None);
        BrokerLock::take_within(&home, "2", Duration::ZERO).unwrap();
    }
}

#[tokio::test]
async fn h02_an_old_broker_leaves_its_successors_socket_alone() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("ade.sock");
    let old = socket::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let new = socket::bind(&path).unwrap();
    drop(old);
    tokio::net::UnixStream::connect(&path).await.unwrap();
    // The same without a removal between: the successor takes the name over.
    let newer = socket::bind(&path).unwrap();
    assert!(!new.is_reachable());
    drop(new);
    tokio::net::UnixStream::connect(&path).await.unwrap();
    newer.accept().await.unwrap();
    drop(newer);
    assert!(!path.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no litter");
}

#[tokio::test]
async fn h05_a_leftover_socket_is_replaced_and_nothing_else_is() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("ade.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    drop(socket::bind(&path).unwrap());

    fs::write(&path, "precious").unwrap();
    let error = socket::bind(&path).unwrap_err();
    assert!(error.to_string().contains("not a socket"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");

    let error = socket::bind(&folder.path().join("none/ade.sock")).unwrap_err();
    assert!(error.to_string().contains("none/ade.sock"), "{error}");
    assert!(error.hints()[0].contains("none"), "{:?}", error.hints());
}
