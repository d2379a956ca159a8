//! Append-only transcripts of canonical events.
