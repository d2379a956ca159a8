//! How a worker begins: the line on its standard input, and the few things that
//! must be so before anything else happens.

use std::io::{self, BufRead};
use std::os::fd::RawFd;

use ade_leases::process;
use ade_protocol::PROTOCOL_VERSION;
use ade_protocol::boot::WorkerBoot;
use ade_protocol::strict;
use nix::errno::Errno;

/// Longest boot line, in bytes. The largest part of it is a few paths.
const MAX_BOOT_LINE: u64 = 256 * 1024;

/// A worker that could not begin. Nobody but its stderr file hears of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootError {
    /// Standard input could not be read.
    #[error("could not read the boot line from standard input; a worker is started by a broker")]
    Read(#[source] io::Error),
    /// Standard input did not hold one line of what a broker writes. The text
    /// is not quoted: it holds the token.
    #[error("standard input did not hold a boot line ({0}); a worker is started by a broker")]
    Parse(String),
    /// Broker and worker are of two versions.
    #[error("the boot line has protocol version {0}, this worker speaks {PROTOCOL_VERSION}")]
    Version(u32),
    /// One of the system calls of the beginning failed.
    #[error("could not {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> BootError {
    move |source| BootError::System { what, source }
}

/// Reads the boot line and sets up the process.
pub(crate) fn begin() -> Result<WorkerBoot, BootError> {
    let boot = read_boot(io::stdin().lock())?;
    detach_stdin().map_err(system("replace standard input by /dev/null"))?;
    close_strays().map_err(system("close inherited descriptors"))?;
    match nix::unistd::setsid() {
        // A session leader already, or started as the leader of a group.
        Ok(_) | Err(Errno::EPERM) => {}
        Err(errno) => return Err(system("begin a session")(errno.into())),
    }
    process::become_subreaper().map_err(system("become the subreaper of the agent's processes"))?;
    Ok(boot)
}

fn read_boot(input: impl BufRead) -> Result<WorkerBoot, BootError> {
    let mut line = Vec::new();
    input
        .take(MAX_BOOT_LINE)
        .read_until(b'\n', &mut line)
        .map_err(BootError::Read)?;
    let boot: WorkerBoot = strict::from_slice(&line).map_err(|error| {
        BootError::Parse(format!(
            "{:?} error at column {}",
            error.classify(),
            error.column()
        ))
    })?;
    if boot.protocol_version == PROTOCOL_VERSION {
        Ok(boot)
    } else {
        Err(BootError::Version(boot.protocol_version))
    }
}

/// The pipe of the boot line is of no more use, and no child may inherit it.
fn detach_stdin() -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    Ok(nix::unistd::dup2_stdin(&null)?)
}

/// Closes what the parent leaked, so that no pipe of another session can be
/// held open from here. Runs before this process has opened anything itself.
fn close_strays() -> io::Result<()> {
    let listed: Vec<RawFd> = std::fs::read_dir(process::OWN_DESCRIPTORS)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd: &RawFd| *fd > 2)
        .collect();
    for fd in listed {
        // The listing's own descriptor is closed by now: EBADF is expected.
        let _ = nix::unistd::close(fd);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"protocolVersion":2,"workerId":"wrk_1","token":"s3cr3t","sessionId":"ses_1","generation":1,
        "provider":"scripted","socket":"/s","home":"/h","host":{"kind":"scripted"},"timing":{"disposeGraceMs":1,
        "eofGraceMs":1,"termToKillMs":1,"orphanIdleMs":1,"orphanTurnMs":1,"attachMs":1}}"#;

    fn read(text: &str) -> Result<WorkerBoot, BootError> {
        read_boot(text.as_bytes())
    }

    #[test]
    fn a_boot_line_is_read_and_checked() {
        let line = GOOD.replace('\n', " ");
        assert_eq!(read(&line).unwrap().token, "s3cr3t");
        let old = line.replace(r#""protocolVersion":2"#, r#""protocolVersion":1"#);
        assert!(matches!(read(&old), Err(BootError::Version(1))));
    }

    #[test]
    fn an_error_never_quotes_the_line() {
        for text in [
            "",
            "{\"token\":\"s3cr3t\"",
            "{\"token\":\"s3cr3t\"}",
            "s3cr3t",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(!error.contains("s3cr3t"), "{error}");
        }
    }
}
