//! Sizes that both ends of a wire must agree on. What happens at each limit is
//! written here, beside it.

/// Longest line of a frame hop or of the control endpoint, in bytes without the
/// line end. A longer one is skipped with bounded memory and reported as
/// `frame_too_long`.
pub const MAX_LINE: usize = 16 * 1024 * 1024;

/// Deepest nesting of JSON values in one line. Deeper is a malformed frame,
/// never a stack overflow.
pub const MAX_DEPTH: usize = 64;

/// So many malformed frames in a row end a worker with `protocol_error`.
pub const MAX_MALFORMED_IN_A_ROW: u32 = 20;

/// Bytes of a host's stderr that are kept; older ones are forgotten.
pub const STDERR_TAIL: usize = 64 * 1024;

/// Bytes of a host's stdout noise that are kept; older ones are forgotten.
pub const NOISE_LOG: usize = 16 * 1024;

/// Bytes of events that a worker keeps until they are acknowledged. When they
/// are reached it stops reading its host: nothing is dropped.
pub const UNACKED_EVENTS: usize = 32 * 1024 * 1024;

/// Bytes queued for one subscriber of events. Past it the subscription gets one
/// `gap` and continues from the transcript when it reads again.
pub const SUBSCRIBER_QUEUE: usize = 4 * 1024 * 1024;
