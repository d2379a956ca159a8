//! Leases.

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
mod place;
mod publish;
mod reclaim;
mod registry;
mod seam;
mod seen;
mod sides;
mod status;
mod take;

pub use error::{AcquireError, BreakError, Holder, ReleaseError};
pub use held::{Lease, Released, Standing};
pub use place::FileKind;
pub use seam::{Moment, Seam, Step};
pub use status::{Broken, Status, break_by_force, break_dead, is_held, status};
pub use take::{Request, acquire, acquire_with};
