//! Where a session file ends before a message is sent for the first time.
//!
//! A message that is sent again must not be carried out again, and only the
//! session file can say whether it was delivered. What stands there is of this
//! turn when it stands behind the mark; the same text before it is an earlier
//! message. The mark is on disk before the message is sent, so that it outlives
//! every process that may have taken part in the turn.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use ade_protocol::TurnId;
use ade_protocol::frame::SessionMark;
use sha2::{Digest, Sha256};

use super::actor::Actor;
use crate::turn::Again;

impl Actor {
    /// The mark of a message that is about to be sent. `None`: there is none, and
    /// a message that may have been delivered is then not sent again.
    pub(super) async fn mark(&self, turn: &TurnId, again: Option<Again>) -> Option<SessionMark> {
        match again {
            // That message was not sent before, also when the turn's own was.
            None | Some(Again::Continue) => {
                let file = self.row.session_file.clone()?;
                let taken = tokio::task::spawn_blocking(move || take(&file)).await;
                match taken.ok()? {
                    Ok(mark) => Some(mark),
                    Err(error) => {
                        tracing::warn!(session = %self.row.session_id, %error, "the session file was not marked");
                        None
                    }
                }
            }
            Some(Again::Resend | Again::Reconnect) => {
                let (session, turn) = (self.row.session_id.clone(), turn.clone());
                let noted = self
                    .shared
                    .state
                    .run(move |state| state.turn_mark(&session, &turn));
                read(&noted.await.ok()??)
            }
        }
    }
}

/// A mark as it is kept.
pub(super) fn note(mark: &SessionMark) -> Option<String> {
    serde_json::to_string(mark).ok()
}

fn read(note: &str) -> Option<SessionMark> {
    ade_protocol::strict::from_str(note).ok()
}

/// The end of a session file. One that is not there ends where it begins.
fn take(path: &str) -> io::Result<SessionMark> {
    let mut before = Vec::new();
    let bytes = match File::open(Path::new(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
        Ok(mut file) => {
            let bytes = file.metadata()?.len();
            let tail = bytes.min(SessionMark::TAIL);
            file.seek(SeekFrom::Start(bytes - tail))?;
            // Not what somebody appends meanwhile.
            file.take(tail).read_to_end(&mut before)?;
            bytes
        }
    };
    Ok(SessionMark {
        session_file: path.to_owned(),
        bytes,
        tail: hash(&before),
    })
}

fn hash(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let digest = Sha256::digest(bytes);
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_mark_is_the_end_of_the_file() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let file = folder.path().join("session.jsonl");
        let path = file.to_str().expect("a text");
        let nothing = take(path).expect("a mark");
        assert_eq!((nothing.bytes, nothing.session_file.as_str()), (0, path));
        let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(nothing.tail, of_nothing);
        fs::write(&file, "").expect("a file");
        assert_eq!(take(path).expect("a mark"), nothing, "empty, or not there");

        fs::write(&file, "one\n").expect("a file");
        let short = take(path).expect("a mark");
        assert_eq!(short.bytes, 4);
        assert_eq!(short.tail, hash(b"one\n"));
        assert_eq!(read(&note(&short).expect("a text")), Some(short));

        let long = format!("{}{}", "x".repeat(10_000), "y".repeat(4096));
        fs::write(&file, &long).expect("a file");
        let mark = take(path).expect("a mark");
        assert_eq!(mark.bytes, 14_096);
        assert_eq!(mark.tail, hash("y".repeat(4096).as_bytes()));
    }

    #[test]
    fn what_cannot_be_read_has_no_mark() {
        let folder = tempfile::TempDir::new().expect("a folder");
        take(folder.path().to_str().expect("a text")).expect_err("a folder is no file");
        assert_eq!(read("nothing of ours"), None);
    }
}
