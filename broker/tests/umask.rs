//! Modes under every umask. The umask belongs to the whole process, so this
//! has a test program of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ade_broker::home::Home;
use ade_broker::lock::BrokerLock;
use ade_broker::socket;
use nix::sys::stat::{Mode, umask};
use tempfile::TempDir;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn home_in(folder: &TempDir) -> Home {
    Home::at(folder.path().join("above/home"), None).unwrap()
}

#[tokio::test]
async fn h07_folders_and_sockets_are_private_whatever_the_umask() {
    for mask in [0o000, 0o022, 0o077, 0o277, 0o777] {
        let folder = TempDir::new().unwrap();
        let old = umask(Mode::from_bits(mask).unwrap());
        let home = home_in(&folder).prepare();
        let bound = home.as_ref().ok().map(|home| {
            let lock = BrokerLock::take(home, "1").unwrap();
            (socket::bind(&home.control_socket()).unwrap(), lock)
        });
        umask(old);
        let home = home.unwrap();
        let bound = bound.unwrap();
        for path in [
            // Made because it was missing, and by nobody else.
            "..",
            "",
            "sock",
            "run",
            "run/workers",
            "run/hosts",
            "transcripts",
            "transcripts/chat",
            "logs",
        ] {
            assert_eq!(
                mode(&home.root().join(path)),
                0o700,
                "{path} under {mask:o}"
            );
        }
        assert_eq!(mode(&home.control_socket()), 0o600, "{mask:o}");
        assert_eq!(mode(&home.broker_lock()), 0o600, "{mask:o}");
        drop(bound);
        assert!(!home.control_socket().exists());
    }
    // A folder that was open before is closed.
    let folder = TempDir::new().unwrap();
    let open = folder.path().join("above/home");
    fs::create_dir_all(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(mode(home_in(&folder).prepare().unwrap().root()), 0o700);
}
