//! What the lease needs of Linux alone.

use crate::process::Pid;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rustix::fs::{CWD, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, inotify};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Opens a directory if no part of its path is a link: one call that saves the
/// walk for its real path. `None` also where the kernel has no such call.
pub(super) fn open_without_links(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve).ok()
}

/// Calls `f` with every name in the directory. The descriptor is rewound
/// first, so one descriptor serves for the guard and for every look.
pub(super) fn each_name(dir: &OwnedFd, f: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    rustix::fs::seek(dir, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        f(entry?.file_name().to_bytes());
    }
    Ok(())
}

/// Far behind any record: the ranges are names, not bytes.
const QUEUE: i64 = 1 << 40;
const WAITING: i64 = QUEUE + 1;

fn range(kind: i32, start: i64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).expect("the kinds of lock are small numbers"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("it is zero"),
        l_start: start,
        l_len: 1,
        l_pid: 0,
    }
}

/// Filesystems that make an `flock` out of ranges, or ask a server for each:
/// there a waiter could be taken for a holder.
fn offers_ranges(file: &File) -> bool {
    const ELSEWHERE: [i64; 6] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x0102_1997,
        0x6573_5546,
    ];
    rustix::fs::fstatfs(file).is_ok_and(|fs| !ELSEWHERE.contains(&fs.f_type))
}

/// The holder's side: nobody is in the queue of a file that nobody else knows.
pub(super) fn head_queue(file: &File) {
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_WRLCK, QUEUE)));
}

/// Leaves the queue and stops showing that we wait.
pub(super) fn leave_queue(file: &File) -> io::Result<()> {
    let mut both = range(libc::F_UNLCK, QUEUE);
    both.l_len = 2;
    fcntl(file, FcntlArg::F_OFD_SETLK(&both))?;
    Ok(())
}

/// Opens what another process has open, if it is the regular file with this
/// inode. A device is never opened.
pub(super) fn open_of_process(pid: Pid, fd: i32, inode: u64) -> Option<File> {
    use std::os::unix::fs::MetadataExt;
    let path = format!("/proc/{pid}/fd/{fd}");
    let is_it = |meta: std::fs::Metadata| meta.is_file() && meta.ino() == inode;
    if !std::fs::metadata(&path).is_ok_and(is_it) {
        return None;
    }
    let file = File::options().read(true).write(true).open(&path).ok()?;
    file.metadata().is_ok_and(is_it).then_some(file)
}

/// Whether we are at the head.
pub(super) fn try_queue(file: &File) -> io::Result<bool> {
    use nix::errno::Errno;
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_WRLCK, QUEUE))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

pub(super) fn wait_queue(file: &File) -> io::Result<()> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLKW(&range(libc::F_WRLCK, QUEUE))) {
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

pub(super) fn show_waiting(file: &File) -> io::Result<()> {
    if !offers_ranges(file) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, WAITING)))?;
    Ok(())
}

pub(super) fn hide_waiting(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, WAITING)))?;
    Ok(())
}

/// Whether somebody other than this descriptor shows that it waits.
pub(super) fn has_waiters(file: &File) -> bool {
    let mut asked = range(libc::F_WRLCK, WAITING);
    let answer = fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked));
    answer.is_ok() && i32::from(asked.l_type) != libc::F_UNLCK
}

/// Whether nobody other than this descriptor is at the head. One who was woken
/// to be the next has the place only when it runs.
pub(super) fn is_headless(file: &File) -> bool {
    let mut asked = range(libc::F_WRLCK, QUEUE);
    let answer = fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked));
    answer.is_ok() && i32::from(asked.l_type) == libc::F_UNLCK
}

/// A descriptor that becomes readable when a watched file is unlinked or moved.
/// Wakes its owner when something happened to a file, and every so often. The
/// clock is the kernel's own: it takes one wake-up where the timers of a runtime,
/// which sort by distance, take several for a time that is seconds away.
#[derive(Debug)]
pub(super) struct Eye {
    /// Readable when one of the two is.
    either: Epoll,
    clock: TimerFd,
    /// `None`: there are no more watchers to be had.
    file: Option<OwnedFd>,
}

impl Eye {
    /// Watches the file at the path. `floor`: the longest time between two
    /// wake-ups; `blind`: the same when the file can't be watched.
    pub(super) fn new(path: &Path, floor: Duration, blind: Duration) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let file = inotify::init(flags).ok();
        let file = file.filter(|file| watch(file, path).is_ok());
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let clock = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let every = if file.is_some() { floor } else { blind };
        let every = Expiration::Interval(TimeSpec::from_duration(every));
        clock.set(every, TimerSetTimeFlags::empty())?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let told = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        either.add(&clock, told)?;
        if let Some(file) = &file {
            either.add(file, told)?;
        }
        Ok(Self {
            either,
            clock,
            file,
        })
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.either.0
    }

    pub(super) fn sees_file(&self) -> bool {
        self.file.is_some()
    }

    /// Takes what was told, so that the descriptor is quiet again. Whether
    /// something happened to the file.
    pub(super) fn quiet(&self) -> bool {
        // Any number of rounds of the clock are one read.
        let _ = rustix::io::read(self.clock.as_fd(), &mut [0u8; 8]);
        let mut buffer = [0u8; 4096];
        let mut told = false;
        while let Some(file) = &self.file
            && rustix::io::read(file, &mut buffer).is_ok_and(|n| n > 0)
        {
            told = true;
        }
        told
    }

    /// Watches the inode that is at the path now. Once more for the same inode
    /// changes nothing.
    pub(super) fn watch(&self, path: &Path) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| watch(file, path))
    }
}

/// An unlink shows as a change of the link count, because an inode that is open
/// is not deleted.
fn watch(watcher: &OwnedFd, path: &Path) -> io::Result<()> {
    use inotify::WatchFlags;
    let what = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
    inotify::add_watch(watcher, path, what | WatchFlags::DONT_FOLLOW)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn the_clock_tells_again_and_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let every = Duration::from_millis(20);
        // Where no watcher can be had the second one counts.
        let eye = Eye::new(folder.path(), every, every).expect("an eye");
        let told = |within: u16| {
            let mut polled = [PollFd::new(eye.descriptor().as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::from(within)).expect("polled") == 1
        };
        for _ in 0..3 {
            assert!(told(10_000), "nobody was woken");
            assert!(!eye.quiet(), "nothing happened to it");
        }
    }
}
