//! The processes of a command that a lease is held around.

use std::io;
use std::time::Duration;

use ade_leases::process::{
    self, Pid, ProcessEntry, ProcessIdentity, Sent, Signal, Target, descendants,
};
use tokio::process::Child;
use tokio::time::{Instant, sleep};

use super::signals::Signals;

/// How long what was asked to end may take.
const GRACE: Duration = Duration::from_secs(5);

/// How long the kernel may take to end what was killed.
const KILL_GRACE: Duration = Duration::from_secs(3);

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Sends a signal to the command.
pub(super) fn pass_on(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| Pid::new(i64::from(pid)));
    let identity = pid.and_then(|pid| ProcessIdentity::of(pid).ok().flatten());
    if let Some(identity) = identity {
        // It may end at this moment.
        let _ = process::signal(&Target::Process(identity), signal);
    }
}

/// Who is alive below us.
fn below() -> io::Result<Vec<ProcessIdentity>> {
    let table = process::table()?;
    descendants(Pid::own(), &table)
        .iter()
        .filter(|entry| !entry.is_zombie())
        .map(ProcessEntry::identity)
        .collect()
}

/// Ends everything below us: politely, then not; at once after a signal.
/// Returns who survived.
#[expect(clippy::disallowed_methods, reason = "our own child, not reaped yet")]
pub(super) async fn end(child: &mut Child, signals: &mut Signals) -> Vec<Pid> {
    let asked = Instant::now();
    let mut told: Vec<ProcessIdentity> = Vec::new();
    let mut killing_since = None;
    loop {
        // Reaps the command; orphans that came to us are reaped by the kernel
        // when we end.
        let _ = child.try_wait();
        let alive = match below() {
            Ok(alive) => alive,
            // What can't be looked at can't be ended one by one.
            Err(_) => {
                let _ = child.start_kill();
                let _ = child.wait().await;
                return Vec::new();
            }
        };
        if alive.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        if killing_since.is_none() && now - asked >= GRACE {
            killing_since = Some(now);
        }
        match killing_since {
            Some(since) if now - since >= KILL_GRACE => {
                return alive.into_iter().map(|identity| identity.pid).collect();
            }
            Some(_) => alive.iter().for_each(|who| send(who, Signal::SIGKILL)),
            None => {
                for who in alive {
                    if !told.contains(&who) {
                        send(&who, Signal::SIGTERM);
                        // A stopped one hears it only when it goes on.
                        send(&who, Signal::SIGCONT);
                        told.push(who);
                    }
                }
            }
        }
        tokio::select! {
            () = sleep(LOOK) => {}
            _ = signals.next() => killing_since = killing_since.or(Some(Instant::now())),
        }
    }
}

fn send(who: &ProcessIdentity, signal: Signal) {
    // Gone meanwhile is what we want; one that can't be told survives, and is
    // reported.
    let _: Result<Sent, _> = process::signal(&Target::Process(who.clone()), signal);
}
