//! Pi's tree of session files: where it is, what is in it, and which of it may
//! be touched.
//!
//! The root authorises: nothing outside of it is ever opened for a session,
//! also not through a symlink. Inside of it the header's `cwd` decides whose
//! lane a session is; the folder it lies in says nothing, because Pi's folder
//! names collide.
//!
//! What this module does not do: it never writes, and it never reads a whole
//! session file (that is [`crate::session_file`]).

mod classify;
mod find;
mod head;
mod list;
mod paths;
mod select;

pub use classify::{Class, Rejection, classify};
pub use find::{Found, Lane, find_by_id, find_file};
pub use head::{Header, Tail, read_header, read_tail};
pub(crate) use head::{header_from, open};
pub use list::{Listed, Listing, Scope, list};
pub use paths::{
    PathKey, Source, Store, checkout_override, creation_target, locate, path_key, same_lane,
};
pub use select::{Candidate, Selection, Terminal, select_candidate};
