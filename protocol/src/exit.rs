//! Exit codes of the `ade` executable. They are an interface: scripts depend on
//! them, and a number never changes its meaning.

/// The asked state holds.
pub const OK: u8 = 0;
/// It was tried and failed.
pub const FAILED: u8 = 1;
/// The command line was not understood, or an argument names nothing.
pub const USAGE: u8 = 2;
/// It is already running and healthy.
pub const ALREADY_RUNNING: u8 = 3;
/// Another live writer holds the session file.
pub const HELD: u8 = 4;
/// There is no broker, and none could be started.
pub const NO_BROKER: u8 = 5;
/// The provider cannot be used; the message says why and what to do.
pub const PROVIDER_NOT_USABLE: u8 = 6;
/// The broker or a human said no.
pub const DENIED: u8 = 7;
/// A wait ended without the awaited thing.
pub const TIMED_OUT: u8 = 8;
/// The user interrupted (Ctrl-C).
pub const INTERRUPTED: u8 = 130;

/// All codes with one sentence each, in numeric order: the source of the help
/// text.
pub const ALL: &[(u8, &str)] = &[
    (OK, "the asked state holds"),
    (FAILED, "failed"),
    (USAGE, "usage: the command line was not understood"),
    (ALREADY_RUNNING, "already running and healthy"),
    (HELD, "held by another writer"),
    (NO_BROKER, "no broker"),
    (PROVIDER_NOT_USABLE, "provider not usable"),
    (DENIED, "denied"),
    (TIMED_OUT, "timed out"),
    (INTERRUPTED, "interrupted"),
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_list_is_complete_and_ordered() {
        let numbers: Vec<u8> = super::ALL.iter().map(|(code, _)| *code).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]);
    }
}
