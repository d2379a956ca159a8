//! A cgroup for each worker's tree, where the system lets us: one more net.
//!
//! The broker makes it and writes it into the journal before the worker
//! exists; the worker moves its host into it beside the host's start, and then
//! whatever the host had started before. The worker itself stays outside, so that it lives through its net's use. A
//! path alone proves nothing: a cgroup of a journal is only touched when it
//! still is the very one that was made (its inode), when its name is the
//! worker's, and after the worker and all that carries its mark were looked at.
//!
//! All cgroups of a home are in one folder whose name is made from the home's
//! path; the holder of the broker lock is the only one who makes and removes
//! folders in it.
//!
//! What this module does not do: anything that must work. Each failure is said
//! once and costs nothing but the net.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ade_leases::process::cgroup::{Cgroup, Folder};
use ade_protocol::WorkerId;
use sha2::{Digest, Sha256};

use crate::home::Home;
use crate::journal::{self, Entry};

/// What the name of every folder of ours begins with.
const PREFIX: &str = "ade-";

/// How long a cgroup whose last process has just died may say that it is in use.
const RELEASE: Duration = Duration::from_millis(200);

/// Pause between two tries to remove one.
const POLL: Duration = Duration::from_millis(2);

/// Where cgroups of this home's workers are made, if anywhere.
#[derive(Clone, Debug)]
pub struct Cgroups {
    folder: Option<Folder>,
    about: Arc<str>,
    /// Whether a failure was logged already.
    told: Arc<AtomicBool>,
}

impl Cgroups {
    /// Looks for a place. `wanted`: whether the configuration has it so. That
    /// there is none is logged and no error.
    #[must_use]
    pub fn prepare(home: &Home, wanted: bool) -> Self {
        if !wanted {
            return Self::unused("not used: the configuration says so (worker.cgroup)");
        }
        match Folder::prepare(&folder_name(home)) {
            Ok(folder) => {
                // It is there only as long as something is in it: a broker that
                // is killed leaves none.
                folder.remove();
                let about = format!("each agent is kept in {}", folder.path().display());
                tracing::info!(folder = %folder.path().display(), "cgroup v2 is used");
                Self {
                    about: about.into(),
                    folder: Some(folder),
                    told: Arc::default(),
                }
            }
            Err(error) => {
                let cause = std::error::Error::source(&error);
                let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
                tracing::info!(reason = %error, cause, "cgroup v2 is not used");
                Self::unused(&format!("not used: {error}{cause}"))
            }
        }
    }

    /// No place, and none is looked for.
    #[must_use]
    pub fn unused(why: &str) -> Self {
        Self {
            folder: None,
            about: why.into(),
            told: Arc::default(),
        }
    }

    /// A sentence for people.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Makes the cgroup of a worker; `None` where there is no place, or it
    /// can't be made.
    pub(crate) fn make(&self, worker: &WorkerId) -> Option<Cgroup> {
        let folder = self.folder.as_ref()?;
        match folder.make(worker.as_str()) {
            Ok(cgroup) => Some(cgroup),
            Err(error) => {
                if !self.told.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, folder = %folder.path().display(),
                        "the cgroup of a worker could not be made; workers start without");
                }
                None
            }
        }
    }

    /// Removes what workers left that have no journal any more, and the folder
    /// when that was all. Only empty ones can be removed. The caller holds the broker lock.
    pub fn tidy(&self, home: &Home) {
        let Some(folder) = &self.folder else { return };
        for name in folder.names() {
            if !home.journal(&WorkerId::from(name.as_str())).exists()
                && let Ok(cgroup) = Cgroup::open(&folder.path().join(&name))
            {
                remove(Some(&cgroup));
            }
        }
        folder.remove();
    }
}

/// The name of the folder of a home's cgroups.
fn folder_name(home: &Home) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hash = Sha256::digest(home.root().as_os_str().as_bytes());
    let hash: String = hash[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{hash}")
}

/// The cgroup that a journal names, when it is that of its worker and still the
/// very one that was made.
pub(crate) fn of(entry: &Entry) -> Option<Cgroup> {
    let cgroup = entry.cgroup.as_ref()?;
    proved(cgroup, &entry.worker_id).then(|| cgroup.clone())
}

fn proved(cgroup: &Cgroup, worker: &WorkerId) -> bool {
    let folder = cgroup.path.parent().and_then(|folder| folder.file_name());
    let ours = folder.is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    ours && cgroup.name() == worker.as_str() && cgroup.is_there()
}

/// Removes a cgroup whose tree is dead, and its folder after the last one. A
/// failure is logged: the next broker tries again. Blocks for a moment.
pub(crate) fn remove(cgroup: Option<&Cgroup>) {
    let Some(cgroup) = cgroup else { return };
    let deadline = Instant::now() + RELEASE;
    loop {
        match cgroup.remove() {
            Ok(()) => {
                if let Some(folder) = Folder::of(cgroup) {
                    folder.remove();
                }
                return;
            }
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
            Err(error) => {
                tracing::info!(%error, %cgroup, "a cgroup was left for the next broker");
                return;
            }
        }
    }
}

/// Forgets a worker whose tree is dead: its journal, its standard error and its
/// cgroup.
pub(crate) fn forget(home: &Home, worker: &WorkerId, cgroup: Option<&Cgroup>) {
    remove(cgroup);
    journal::remove(home, worker);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_named_by_the_home() {
        let name = |path: &str| folder_name(&Home::at(path.into(), None).unwrap());
        assert_eq!(name("/nonexistent/a"), name("/nonexistent/a"));
        assert_ne!(name("/nonexistent/a"), name("/nonexistent/b"));
        assert_eq!(name("/nonexistent/a").len(), PREFIX.len() + 12);
    }

    #[test]
    fn a_path_is_no_proof() {
        let worker = WorkerId::from("wrk_1");
        for path in ["/", "/tmp/ade-1/wrk_1", "/tmp/x/wrk_1", "/tmp/ade-1/wrk_2"] {
            let cgroup = Cgroup {
                path: path.into(),
                inode: 1,
            };
            assert!(!proved(&cgroup, &worker), "{path}");
        }
    }
}
