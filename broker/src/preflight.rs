//! What would keep a broker from starting, said before one tries.
//!
//! For `ade doctor`, and for a command whose broker ended and could not say
//! why: on a full disk its last words find no room either. Each look has the
//! error of the step of the start that it stands for.
//!
//! What this module does not do: change anything. The room is measured with a
//! file that has no name, or none any more.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::ServeError;
use crate::home::{Home, HomeError};
use crate::state::State;
use crate::transcript::{self, TranscriptError};
use crate::{lock, socket};

/// What a broker writes until it serves: its lock, an empty database with its
/// log, the first lines of its own log, unpacked hosts.
const ROOM: usize = 1024 * 1024;

/// Everything that would keep a broker of this home from starting; none when
/// one could start. Not while a broker runs, whose database it would open.
#[must_use]
pub fn obstacles(home: &Home) -> Vec<ServeError> {
    // Where there is no folder, nothing in it can be looked at.
    if let Err(error) = home.inspect() {
        return vec![error.into()];
    }
    let mut found: Vec<ServeError> = Vec::new();
    found.extend(room(home).err().map(ServeError::from));
    found.extend(lock::look(home).err().map(ServeError::from));
    found.extend(State::look(&home.state_db()).err().map(ServeError::from));
    for path in [home.workers_socket(), home.control_socket()] {
        let looked = if path.starts_with(home.root()) {
            // Its folder was looked at with the home, and may yet be made.
            socket::is_free(&path)
        } else {
            socket::look(&path)
        };
        found.extend(looked.err().map(ServeError::from));
    }
    found
}

/// Transcripts that can't be read: their chats can't be used.
#[must_use]
pub fn transcripts(home: &Home) -> Vec<TranscriptError> {
    let entries = std::fs::read_dir(home.transcripts_dir());
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .filter_map(|path| {
            let source = transcript::open_if_there(&path).err()?;
            Some(TranscriptError::Read { path, source })
        })
        .collect()
}

/// Whether a broker's files find room in the home, or where it is to be made.
///
/// # Errors
/// [`HomeError::NoRoom`] when they do not, or nothing can be written at all.
pub fn room(home: &Home) -> Result<(), HomeError> {
    let folder = there(home.root());
    measure(&folder).map_err(|source| HomeError::NoRoom {
        path: folder,
        source,
    })
}

/// The folder itself, or the nearest one above it that is there.
fn there(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|above| above.is_dir());
    found.unwrap_or(path).to_owned()
}

fn measure(folder: &Path) -> io::Result<()> {
    let mut file = tempfile::tempfile_in(folder)?;
    let piece = vec![0_u8; ROOM / 16];
    for _ in 0..16 {
        file.write_all(&piece)?;
    }
    // Some file systems only then look for the room.
    file.sync_all()
}
