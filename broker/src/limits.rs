//! Limits of this process: open descriptors.
//!
//! A broker keeps a few descriptors per worker and per client. Running out of
//! them makes every later failure obscure, so the limit is raised at the start
//! and room is checked before something takes any.
//!
//! What may be refused leaves more of them free than what matters more: a worker
//! is not started with the last ones that clients could have, no client stays
//! with the last ones that a visit could have, and no visit takes those of the
//! files that it is answered from. So whoever fills a broker, with chats or with
//! clients, can still look at it and stop things.
//!
//! What this module does not do: lower the limit again for children. They
//! inherit the raised one.

use std::io;

use ade_leases::process::OWN_DESCRIPTORS;
use ade_protocol::exit;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that stay free when a worker gets its place: for clients, and for
/// the files of chats that are at work.
const BESIDE_WORKERS: u64 = 32;

/// Descriptors that stay free of clients that stay, and that a worker which has
/// its place does not take either: for visits, and for what these are answered
/// from.
const BESIDE_CLIENTS: u64 = 16;

/// Descriptors that stay free of connections: for the log, the database, a
/// transcript, the table of processes, the end of a worker.
const BESIDE_VISITS: u64 = 8;

/// Descriptors that a broker at rest has open, and a few more: with less it could
/// not even say what is wrong.
const AT_REST: usize = 24;

/// Descriptors that a library may open for one thing: a database, its log, the
/// index of that, and the folder.
const AT_ONCE: usize = 4;

/// Why something new is not begun.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// There are too few descriptors left.
    #[error("{open} of {limit} file descriptors are in use, and {wanted} more are needed")]
    NoRoom {
        /// Open now.
        open: u64,
        /// The most.
        limit: u64,
        /// How many are needed, those included that stay free.
        wanted: u64,
    },
}

impl LimitError {
    /// The exit code that this error means to a script.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        exit::FAILED
    }

    /// What can be done about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        vec![
            "stop some sessions, or raise the limit (`ulimit -Hn`) and start the broker again"
                .into(),
        ]
    }
}

/// Raises the soft limit of open descriptors to the hard one. Gives the old and
/// the new soft limit.
///
/// # Errors
/// The kernel refused; the limit is as it was.
pub fn raise_nofile() -> io::Result<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok((soft, hard))
}

/// What a connection that was just accepted may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// A client that stays as long as it likes.
    Stay,
    /// A client that looks or stops something, and goes.
    Visit,
    /// One that has to go at once.
    None,
}

/// Open descriptors and the limit.
///
/// # Errors
/// The list of descriptors cannot be read.
pub fn fd_usage() -> io::Result<(u64, u64)> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    match std::fs::read_dir(OWN_DESCRIPTORS) {
        // One of them is the listing's own.
        Ok(listing) => Ok((listing.count().saturating_sub(1) as u64, soft)),
        Err(error) if hint_for(&error).is_some() => Ok((soft, soft)),
        Err(error) => Err(error),
    }
}

/// Whether a worker that has its place finds the `wanted` descriptors that it
/// takes. When the usage cannot be read the answer is yes: the open itself will
/// tell.
///
/// # Errors
/// [`LimitError::NoRoom`].
pub fn check_room(wanted: u64) -> Result<(), LimitError> {
    match fd_usage() {
        Ok((open, limit)) => room(open, limit, wanted),
        Err(_) => Ok(()),
    }
}

/// What a connection that was just accepted may be, where `promised` more
/// descriptors are somebody else's already.
#[must_use]
pub fn room_of_client(promised: u64) -> Room {
    fd_usage().map_or(Room::Stay, |(open, limit)| {
        of_client(limit.saturating_sub(open), promised)
    })
}

fn of_client(free: u64, promised: u64) -> Room {
    if free >= BESIDE_CLIENTS.saturating_add(promised) {
        Room::Stay
    } else if free >= BESIDE_VISITS {
        Room::Visit
    } else {
        Room::None
    }
}

/// Raises the limit, and makes sure that a broker can begin at all.
///
/// # Errors
/// What the system says when there are too few descriptors; [`hint_for`] knows
/// what to do.
pub fn check_start() -> io::Result<()> {
    raise_nofile()?;
    open_some(AT_REST)
}

/// Why files can't be opened just now, when that is so: for errors of libraries
/// that do not pass on what the system said.
#[must_use]
pub fn starved() -> Option<io::Error> {
    let error = open_some(AT_ONCE).err()?;
    hint_for(&error).is_some().then_some(error)
}

/// Opens so many at once, and closes them again.
fn open_some(count: usize) -> io::Result<()> {
    let open = || std::fs::File::open("/dev/null");
    let opened: io::Result<Vec<_>> = (0..count).map(|_| open()).collect();
    opened.map(drop)
}

/// How many more workers may get a place that take `each` descriptors, where
/// `promised` are somebody else's already. When the usage cannot be read there is
/// no end of them: the open itself will tell.
#[must_use]
pub fn room_for(each: u64, promised: u64) -> usize {
    fd_usage().map_or(usize::MAX, |(open, limit)| {
        so_many(open.saturating_add(promised), limit, each)
    })
}

fn so_many(open: u64, limit: u64, each: u64) -> usize {
    let free = limit.saturating_sub(open).saturating_sub(BESIDE_WORKERS);
    usize::try_from(free / each.max(1)).unwrap_or(usize::MAX)
}

/// What can be done about an error that says that no file can be opened any
/// more. `None`: it says something else.
#[must_use]
pub fn hint_for(error: &io::Error) -> Option<String> {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => {
            let limit = match getrlimit(Resource::RLIMIT_NOFILE) {
                Ok((soft, _)) => format!("all {soft} files that the broker may have open are"),
                Err(_) => "all files that the broker may have open are".to_owned(),
            };
            Some(format!(
                "{limit} in use: stop some sessions or clients, or raise the limit \
                 (`ulimit -Hn`) and start the broker again"
            ))
        }
        Some(Errno::ENFILE) => Some(
            "all files that this machine may have open are in use: end some programs, or raise \
             the machine's limit (`fs.file-max` on Linux, `kern.maxfiles` on macOS)"
                .to_owned(),
        ),
        _ => None,
    }
}

fn room(open: u64, limit: u64, wanted: u64) -> Result<(), LimitError> {
    let wanted = wanted.saturating_add(BESIDE_CLIENTS);
    if open.saturating_add(wanted) > limit {
        return Err(LimitError::NoRoom {
            open,
            limit,
            wanted,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_too_many_open_files_names_the_limit_and_the_remedy() {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
        let error = |errno: Errno| io::Error::from_raw_os_error(errno as i32);
        let own = hint_for(&error(Errno::EMFILE)).expect("a hint");
        assert!(
            own.contains(&soft.to_string()) && own.contains("ulimit"),
            "{own}"
        );
        let all = hint_for(&error(Errno::ENFILE)).expect("a hint");
        assert!(all.contains("this machine"), "{all}");
        assert_eq!(hint_for(&error(Errno::EACCES)), None);
        assert_eq!(hint_for(&io::Error::other("EMFILE")), None);
    }

    #[test]
    fn room_is_refused_before_the_kernel_would() {
        assert!(room(100, 1024, 10).is_ok());
        assert!(room(1024 - BESIDE_CLIENTS - 10, 1024, 10).is_ok());
        assert!(room(1024 - BESIDE_CLIENTS - 9, 1024, 10).is_err());
        assert!(room(0, 1024, u64::MAX).is_err());
        for (free, expected) in [(924, 111), (BESIDE_WORKERS + 8, 1), (BESIDE_WORKERS + 7, 0)] {
            assert_eq!(so_many(1024 - free, 1024, 8), expected, "{free}");
        }
        assert_eq!(so_many(2000, 1024, 8), 0);
    }

    #[test]
    fn what_fills_a_broker_leaves_room_for_what_matters_more() {
        // No worker gets its place any more: clients stay.
        let free = BESIDE_WORKERS + 7;
        assert_eq!(so_many(1024 - free, 1024, 8), 0);
        assert_eq!(of_client(free, 0), Room::Stay);
        // No client stays any more: one that has its place starts, others visit.
        for starting in 0..9 {
            let promised = starting * 8;
            let mut free = 1024;
            while of_client(free - 1, promised) == Room::Stay {
                free -= 1;
            }
            assert!(room(1024 - free, 1024, promised).is_ok(), "{starting}");
            assert_eq!(of_client(free - 1, promised), Room::Visit, "{starting}");
        }
        assert_eq!(of_client(BESIDE_VISITS, 0), Room::Visit);
        assert_eq!(of_client(BESIDE_VISITS - 1, 0), Room::None);
        assert_eq!(of_client(0, 0), Room::None);
    }

    #[test]
    fn an_opened_file_is_counted() {
        let (before, limit) = fd_usage().unwrap();
        let held: Vec<_> = (0..64)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        let (after, _) = fd_usage().unwrap();
        // Other tests of this process open and close files at the same time.
        assert!(after >= before + 32, "{before} {after} {limit}");
        drop(held);
    }
}
