//! Telling of events that a transcript does not hold any more.

use ade_protocol::event::{Event, NoticeLevel};

use crate::clock;
use crate::transcript::{Missing, Transcript, TranscriptError};

/// Writes one notice of what is missing from the transcript, if anything is: it
/// stands where the numbers go on.
///
/// # Errors
/// [`TranscriptError`]: it is not written, and whoever opens the transcript next
/// tells it.
pub(crate) fn tell_missing(transcript: &mut Transcript) -> Result<(), TranscriptError> {
    let Some(missing) = transcript.missing() else {
        return Ok(());
    };
    let message = words(transcript, missing);
    tracing::warn!(session = %transcript.session(), "{message}");
    let level = NoticeLevel::Warn;
    let notice = serde_json::value::to_raw_value(&Event::Notice { level, message });
    if let Ok(raw) = notice {
        transcript.stage(&clock::timestamp(), None, None, raw.get().as_bytes());
    }
    transcript.commit()
}

fn words(transcript: &Transcript, Missing { held, known }: Missing) -> String {
    format!(
        "events {} to {known}, and perhaps later ones, are missing from {}: the file was removed, \
         replaced or cut while no broker looked after it. Look for a copy of it, in a backup or \
         where it was moved to; the agent's own session file may hold what was said. New events \
         are numbered from {}",
        held.next(),
        transcript.path().display(),
        known.next(),
    )
}
