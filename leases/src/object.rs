//! Reading a struct from a JSON object and from nothing else: what is derived
//! for a struct also takes a list, with the fields in the order of the source.
//!
//! What it does not do: look at structs inside the outermost one.

use serde::Deserialize;
use serde::de::Error;

/// Reads a struct from the bytes of a JSON object.
///
/// # Errors
/// It is no object, or not that of a `T`.
pub(crate) fn from_slice<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> serde_json::Result<T> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Error::custom("it is no object"));
    }
    serde_json::from_slice(bytes)
}

/// Reads a struct from the text of a JSON object.
///
/// # Errors
/// As [`from_slice`].
pub(crate) fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<T> {
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Error::custom("it is no object"));
    }
    serde_json::from_str(text)
}
