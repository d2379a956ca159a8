//! Starting workers: what is on disk before one exists.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_broker::cgroups::Cgroups;
use ade_broker::home::Home;
use ade_broker::providers::{LaunchSpec, tool_policy};
use ade_broker::spawn::{SpawnError, Spawner, WorkerSpec};
use ade_protocol::action::PermissionMode;
use ade_protocol::boot::{HostCommand, WorkerBoot, WorkerTiming};
use ade_protocol::{Generation, PROTOCOL_VERSION, WorkerId};
use tempfile::TempDir;

/// As its first act it notes which journals there are; then it waits for its
/// first line.
const LOOKS: &str =
    "#!/bin/sh\ncat run/workers/*.json > \"$SEEN.new\"\nmv \"$SEEN.new\" \"$SEEN\"\nread -r line\n";

struct Place {
    _folder: TempDir,
    home: Home,
    spawner: Spawner,
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let home = Home::at(folder.path().join("home"), None).unwrap();
        let home = home.prepare().unwrap();
        let program = folder.path().join("looks");
        fs::write(&program, LOOKS).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let spawner = Spawner::start(&home, Some(program), Cgroups::unused("a test")).unwrap();
        Self {
            _folder: folder,
            home,
            spawner,
        }
    }

    fn spec(&self, worker: &WorkerId, seen: &Path) -> WorkerSpec {
        let text = |path: PathBuf| path.display().to_string();
        let path = std::env::var_os("PATH").unwrap();
        let seen = OsString::from(seen);
        WorkerSpec {
            boot: WorkerBoot {
                protocol_version: PROTOCOL_VERSION,
                worker_id: worker.clone(),
                token: "token".into(),
                session_id: "ses_1".into(),
                generation: Generation(1),
                provider: "scripted".into(),
                socket: text(self.home.workers_socket()),
                home: text(self.home.root().to_owned()),
                host: HostCommand::Scripted,
                cgroup: None,
                hidden: None,
                timing: WorkerTiming::default(),
            },
            env: BTreeMap::from([("PATH".into(), path), ("SEEN".into(), seen)]),
            mark: "mark".into(),
            fixed: LaunchSpec {
                policy: tool_policy(PermissionMode::Plan),
                changes: 0,
                agent_dir: None,
            },
        }
    }
}

#[tokio::test]
async fn a_worker_never_exists_unrecorded() {
    let place = Place::new();
    let root = place.home.root();
    // Its journal cannot be written: a folder stands there.
    let refused = WorkerId::generate();
    let journal = place.home.journal(&refused);
    fs::create_dir(&journal).unwrap();
    let never = root.join("never");
    let spawned = place.spawner.spawn(place.spec(&refused, &never)).await;
    let error = spawned.expect_err("nothing can be recorded");
    assert!(
        matches!(&error, SpawnError::Record { path, .. } if *path == journal),
        "{error}"
    );
    fs::remove_dir(&journal).unwrap();
    assert_eq!(
        fs::read_dir(place.home.journal_dir()).unwrap().count(),
        0,
        "no litter"
    );
    // The next one is: it finds its own journal. Had there been one before it,
    // that would have had its time too.
    let worker = WorkerId::generate();
    let seen = root.join("seen");
    let spawned = place
        .spawner
        .spawn(place.spec(&worker, &seen))
        .await
        .unwrap();
    let mut exit = spawned.exit;
    let ended = exit.wait_for(Option::is_some);
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
    assert!(ended.unwrap().unwrap().unwrap().is_success());
    let found = fs::read_to_string(&seen).unwrap();
    assert!(found.contains(worker.as_str()), "{found}");
    assert!(!never.exists() && !never.with_extension("new").exists());
}
