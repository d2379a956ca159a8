//! The lease of the session file, from this worker's side.

use std::future::pending;
use std::os::fd::OwnedFd;
use std::path::Path;

use ade_leases::lease::{self, AcquireError, Lease, Standing, Watch};
use ade_leases::owner::{self, Claim, Replace};
use ade_leases::record::OwnerKind;
use ade_protocol::frame::code;
use serde_json::Value;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::Session;
use crate::ladder::StopStage;

/// Tells when the own lease has to be looked at.
pub(super) struct Watcher {
    watch: Watch,
    /// A second descriptor of the watch, for the event loop. Without it the
    /// deadline alone tells.
    changed: Option<AsyncFd<OwnedFd>>,
}

impl Watcher {
    #[expect(
        deprecated,
        reason = "its replacement is an unsafe function; an OwnedFd keeps the promise that it asks for"
    )]
    fn new(lease: &Lease) -> Self {
        let watch = Watch::new(lease);
        let descriptor = watch.descriptor().and_then(|fd| fd.try_clone().ok());
        let changed = descriptor.and_then(|fd| AsyncFd::with_interest(fd, Interest::READABLE).ok());
        Self { watch, changed }
    }
}

/// Waits until something happened to the lease. Dropping the future loses nothing.
pub(super) async fn changed(watcher: Option<&Watcher>) {
    let readable = match watcher.and_then(|watcher| watcher.changed.as_ref()) {
        Some(descriptor) => descriptor.readable().await,
        None => pending().await,
    };
    match readable {
        Ok(mut ready) => ready.clear_ready(),
        Err(_) => pending().await,
    }
}

/// A lease that was not given: what the broker is told.
pub(super) struct Refused {
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) holder: Option<Value>,
}

impl Session {
    /// Takes the lease of a session file, unless it is held already.
    pub(super) fn take_lease(&mut self, file: &Path) -> Result<(), Refused> {
        let canonical = canonical(file);
        if self
            .lease
            .as_ref()
            .is_some_and(|lease| lease.session_file() == canonical)
        {
            return Ok(());
        }
        let request = lease::Request {
            owner: OwnerKind::Sdk,
            owner_id: self.boot.session_id.to_string(),
            wait: None,
        };
        let taken = lease::acquire(file, &request).map_err(|error| refusal(&error))?;
        if let Some(dead) = taken.replaced() {
            // It tells of a crash, and of nothing that anybody has to do.
            self.log(
                "warn",
                &format!("the lease of {} {dead}", canonical.display()),
            );
        }
        // A host that opened another file than the one it was told to is held
        // to the one it opened.
        if let Some(old) = self.lease.replace(taken) {
            let _ = old.release();
        }
        self.watcher = self.lease.as_ref().map(Watcher::new);
        // What happened before the watch began is not reported by it.
        self.lease_check = Some(Instant::now());
        self.owner_due = Some(file.to_owned());
        Ok(())
    }

    /// Writes whose session it is, once. Not while the broker waits for `init`:
    /// an owner is on the disk before this returns, and disks are slow.
    pub(super) fn write_owner(&mut self) {
        let Some(file) = self.owner_due.take_if(|_| self.ready.is_some()) else {
            return;
        };
        let claim = Claim {
            kind: OwnerKind::Sdk,
            id: self.boot.session_id.to_string(),
        };
        if let Err(error) = owner::claim(&file, &claim, Replace::Owned) {
            let file = file.display();
            self.log(
                "warn",
                &format!("the owner of {file} could not be written: {error}"),
            );
        }
    }

    /// Looks at the own lease. Lost: nothing below may write any more.
    pub(super) fn look_at_lease(&mut self, now: Instant) {
        self.hidden.glance(now);
        let (Some(lease), Some(watcher)) = (&self.lease, &self.watcher) else {
            return;
        };
        // The descriptor tells when the time has come.
        let blind = watcher.changed.is_none();
        self.lease_check = blind.then(|| now + Watch::BLIND);
        let path = lease.path();
        let by = match watcher.watch.check(lease) {
            Ok(Standing::Ours) => return,
            Ok(Standing::Gone) => "it was removed".to_owned(),
            Ok(Standing::Foreign(Some(record))) => format!("it belongs to {record} now"),
            Ok(Standing::Foreign(None)) => "something else stands there now".to_owned(),
            Err(error) => {
                // Not seeing it is not losing it.
                self.log(
                    "warn",
                    &format!("the lease {} can't be looked at: {error}", path.display()),
                );
                return;
            }
        };
        self.watcher = None;
        self.lease_check = None;
        let message = format!(
            "the lease {} was lost: {by}; nothing is written to this session any more",
            path.display()
        );
        self.fail(code::LEASE_LOST, message, None, StopStage::Kill);
    }

    /// Gives the lease back. Only when nothing below is alive any more.
    pub(super) fn release_lease(&mut self) {
        if self.lease.is_some() {
            self.write_owner();
        }
        self.watcher = None;
        self.lease_check = None;
        if let Some(lease) = self.lease.take()
            && let Err(error) = lease.release()
        {
            self.log("warn", &format!("{error}: {}", error.source));
        }
    }
}

fn canonical(file: &Path) -> std::path::PathBuf {
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    let resolved = file.canonicalize().ok();
    resolved
        .or_else(|| Some(folder?.join(file.file_name()?)))
        .unwrap_or_else(|| file.to_owned())
}

fn refusal(error: &AcquireError) -> Refused {
    let held = error.is_contention() || matches!(error, AcquireError::Unknown { .. });
    let holder = error.holder().and_then(|holder| holder.record.as_ref());
    let holder = holder.and_then(|record| serde_json::to_value(record).ok());
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    Refused {
        code: if held { code::HELD } else { "lease_failed" },
        message,
        holder,
    }
}
