//! `<session file>.ade-lease`: who is writing a session file right now.
//!
//! Goal: at any moment at most one live process tree writes a session file; a
//! live lease is never taken; a dead one is always recoverable without a human.
//! And this beside other programs that write the same files by simpler rules,
//! under `kill -9` between any two instructions, after pid reuse and reboots,
//! and on filesystems that offer little.
//!
//! # The protocol, and why each step is there
//!
//! Each system call below is a [`Step`]; a test may stand between any two.
//!
//! - **One name.** The session's directory is resolved first, and all steps go
//!   by a descriptor of it: one session has one lease file, however it is
//!   spelled. Within one process a table keeps two threads apart, which the
//!   files can't.
//! - **Look first.** A refusal is the common case and costs one read; nothing
//!   is staged, and no guard is taken.
//! - **Verdict.** See [`crate::verdict`]: alive, dead, or unknown, with what it
//!   rests on. Only *dead* permits a reclaim. *No record seen* permits nothing:
//!   try again. (The public app reclaims then, and that is how it gets two
//!   holders: a link fails, the holder releases, the contender reads nothing
//!   and moves away the live lease of a third.)
//! - **Kernel lock.** The holder keeps an `flock` on the lease's inode. It ends
//!   with the process whatever happens, is visible from other pid namespaces,
//!   and can't be mistaken for a successor's. Lookers try it with a *shared*
//!   lock, so that they don't hinder each other.
//! - **Guard.** Our own processes publish, reclaim and release one after the
//!   other, under an `flock` of the directory, which leaves no file behind. It
//!   is waited for 5 s at the most: its holder needs 0.1 ms, so a longer one is
//!   stopped, and that is said.
//! - **Publish.** The record is written and locked under `.new-<uuid>`, then
//!   moved to the lease's name by a rename that doesn't replace, which is atomic
//!   and never clobbers. No such rename: a hard link, which is as good and costs
//!   one call more. Neither: an exclusive create. Only `EEXIST` means
//!   contention. When the system says that it failed, we look: our own inode at
//!   the name means that it worked.
//! - **Look again.** A foreign program may have had a live lease moved aside
//!   while we published. So the claims are listed once more afterwards, and we
//!   withdraw if one lives. Without this two of our own could hold.
//! - **Look at our own.** Then once more at the lease itself: a foreign release
//!   that moves it away and stops there has taken it from us, and nothing else
//!   would tell before somebody else has it. Whoever leaves without the lease
//!   removes what carries his token, wherever it was moved to: a record with a
//!   living pid would block everybody for as long as we live.
//! - **Reclaim.** The record is judged again in the guard; our own, staged as a
//!   claim, is *exchanged* with it, so the path is never empty and nobody can
//!   slip in; what came out is looked at, and goes back if it lives. Where names
//!   can't be exchanged, the shared rule: rename aside, look, put back.
//! - **Sweep.** In the guard nothing of ours is at work, so our own staging
//!   names (a uuid of version 8) and whatever else lies beside the lease and
//!   belongs to somebody dead is litter, and goes.
//! - **Release.** By inode, then by token: only what is ours is removed; a
//!   successor's file is left byte for byte, and the caller learns that the
//!   lease had been lost. When the file that we hold has no name left after
//!   that, nothing of ours lies anywhere; else claims that carry our token go
//!   as well.
//! - **Watch.** The holder looks at its lease when its inode is unlinked or
//!   moved, and every 5 s at the least: see [`Watch`]. A foreign program that
//!   moved it aside and back has made a new file with our token; that is ours,
//!   and is locked anew.
//! - **Wait.** In the kernel, in order of arrival, at a range lock of the
//!   holder's file; not at the `flock` itself, since a waiter that is stopped
//!   while it has a dead holder's `flock` would look alive for ever.
//!
//! # What it costs
//!
//! A refused try is 9 system calls. A lease that is taken and given back is 30:
//! 12 find the place and look (two of them list it), 7 are locks, 7 make, write,
//! move and remove the file. With fewer it is not this protocol: without the
//! listings and the guard two of ours hold, without the locks a holder in a
//! container is robbed, and a bare hard link has none of this. The
//! listings read the whole directory, since claims have random names: about
//! 1 µs for each file in it, twice.
//!
//! # What was given up
//!
//! - Durability. Nothing is synced: after a crash of the machine the boot id
//!   tells that the holder is dead, and an empty file is nobody's after 2 s.
//! - A release by rename. Looking and unlinking are two calls. Our own
//!   processes are kept out by the guard; a rename aside would be a third state
//!   that a crash can leave behind.
//! - The guard on filesystems without directory locks (NFS). Publishing is
//!   atomic there too; a reclaim is as safe as the shared rule.
//! - Fairness between newcomers and the queue. Who already held the lease queues
//!   behind those that wait; a process that comes for the first time may win a
//!   race against one that must still be woken.
//!
//! # Known hazards with a foreign writer
//!
//! They need the foreign program in the middle of its own steps, which we can't
//! serialise. Each is named so that it is not found as a surprise.
//!
//! - It reclaims blindly when it reads no record, and may move our live lease
//!   aside. Until it puts it back, or after it could not, it may hold as well.
//!   Our holder's watch ends that.
//! - It judges by the pid alone (we write no `processStartedAt`, on purpose). A
//!   holder of ours in another pid namespace looks dead to it.
//! - Its `.release-*` file may hold somebody's live lease for an instant. It
//!   blocks us while its kernel lock is taken: then it is one of ours. By its pid
//!   alone it must not, because a release of the foreign program's own lease
//!   looks the same.
//! - It may put a lease of ours back from memory after we have left. Such a
//!   ghost carries a living pid and blocks everybody until our process ends, or
//!   until a human breaks it.
//! - Between our look and our unlink at a release it may replace our file with
//!   another's; that one's is then removed, and its owner's watch must tell.
//! - Its records name no namespace: seen from another pid namespace a live
//!   foreign holder has no process. Don't share a store between containers with
//!   the foreign program.
//! - Its records name no start tick, so a reused pid is told by birth times. A
//!   wall clock that is set forward after the record was written makes its
//!   living writer look born later.
//!
//! # What it does not do
//!
//! It does not keep anybody from writing the session file: it is an agreement.
//! It starts no thread but for a wait, and logs nothing; the caller does.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
use macos as platform;

mod error;
mod guard;
mod held;
mod mine;
mod place;
mod publish;
mod queue;
mod reclaim;
mod registry;
mod seam;
mod seen;
mod sides;
mod status;
mod take;
mod watch;

pub use error::{AcquireError, BreakError, Holder, ReleaseError};
pub use held::{Lease, Released, Replaced, Standing};
pub use place::FileKind;
pub use seam::{Moment, Seam, Step};
pub use status::{Broken, Status, break_by_force, break_dead, is_held, status};
pub use take::{Request, acquire, acquire_with};
pub use watch::Watch;
