//! What differs between the systems. `linux.rs` and `macos.rs` have the same
//! functions; nothing else in this crate asks which system it runs on.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
pub(crate) use macos::*;
