//! The broker of one ade: its starts and its ends.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use ade_leases::process::Signal;

use super::{Ade, signal, wait_dead};
use crate::commands::within;
use crate::wait::{PATIENCE, wait_until, wait_within};

impl Ade {
    /// Starts the broker as a child of the test and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn serve(&mut self) -> u32 {
        self.serve_with(|command| command)
    }

    /// The same below another command, which runs its last arguments: see
    /// [`within`].
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn serve_within(&mut self, outer: Command) -> u32 {
        let errors = self.errors();
        self.serve_with(|serve| {
            let mut command = within(outer, &serve);
            command.stdout(Stdio::null()).stderr(errors);
            command
        })
    }

    /// The same with a command that was changed, or another one in its place.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn serve_with(&mut self, change: impl FnOnce(Command) -> Command) -> u32 {
        let mut command = self.command(&["serve"]);
        command.stdout(Stdio::null()).stderr(self.errors());
        let mut child = change(command).spawn().expect("starting the broker");
        let pid = child.id();
        wait_until("the broker answers", || {
            if let Ok(Some(status)) = child.try_wait() {
                let said = fs::read_to_string(self.errors_file()).unwrap_or_default();
                panic!("the broker ended with {status}: {said}");
            }
            let moved = self
                .env
                .iter()
                .find(|(name, _)| name == "ADE_RPC_SOCKET_PATH");
            let socket = moved.map_or_else(|| self.socket(), |(_, path)| path.into());
            std::os::unix::net::UnixStream::connect(socket).ok()
        });
        self.broker = Some(child);
        pid
    }

    /// Where the broker's standard errors are kept.
    fn errors_file(&self) -> PathBuf {
        self.root.path().join("serve.err")
    }

    fn errors(&self) -> fs::File {
        let file = fs::File::options()
            .create(true)
            .append(true)
            .open(self.errors_file());
        file.expect("serve.err")
    }

    /// Pid of the broker that [`Ade::serve`] started.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn broker_pid(&self) -> i32 {
        let id = self.broker.as_ref().expect("a broker").id();
        i32::try_from(id).expect("a pid")
    }

    /// Starts a broker that takes the running one's place, and waits for both:
    /// for the old one's end and for the new one's answer. Returns its pid.
    ///
    /// # Panics
    /// When one of them does not come.
    #[track_caller]
    pub fn replace(&mut self) -> u32 {
        let mut old = self.broker.take().expect("a broker");
        let mut new = self
            .command(&["serve", "--replace"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starting the successor");
        let status = wait_until("the old broker ends", || old.try_wait().ok().flatten());
        assert!(status.success(), "{status}");
        wait_until("the successor answers", || {
            assert_eq!(new.try_wait().expect("its status"), None);
            std::os::unix::net::UnixStream::connect(self.socket()).ok()
        });
        let pid = new.id();
        self.broker = Some(new);
        pid
    }

    /// Whether [`Ade::serve`] started a broker that was not ended.
    #[must_use]
    pub fn has_broker(&self) -> bool {
        self.broker.is_some()
    }

    /// Waits for the end of a broker that somebody else has told to stop.
    ///
    /// # Panics
    /// When it does not end, or with another code.
    #[track_caller]
    pub fn expect_broker_ended(&mut self, code: i32) {
        let mut child = self.broker.take().expect("a broker");
        let status = wait_until("the broker ends", || child.try_wait().ok().flatten());
        assert_eq!(status.code(), Some(code), "{status}");
    }

    /// Kills the broker with SIGKILL and reaps it.
    ///
    /// # Panics
    /// When there is none.
    pub fn kill_broker(&mut self) {
        let mut child = self.broker.take().expect("a broker");
        child.kill().expect("SIGKILL");
        child.wait().expect("reaping the broker");
    }

    /// Kills the broker with SIGKILL, and then all that it had started.
    ///
    /// # Panics
    /// When there is none, or something survives.
    #[track_caller]
    pub fn kill_all_with_broker(&mut self) {
        self.kill_broker();
        for process in self.processes() {
            signal(process.pid.get(), Signal::SIGKILL);
            wait_dead(process.pid.get());
        }
    }

    /// Ends the broker with SIGTERM and returns its exit code.
    ///
    /// # Panics
    /// When it does not end.
    #[track_caller]
    pub fn stop_broker(&mut self) -> Option<i32> {
        let mut child = self.broker.take()?;
        signal(i32::try_from(child.id()).expect("a pid"), Signal::SIGTERM);
        let bound = PATIENCE + Duration::from_secs(15);
        let status = wait_within("the broker ends", bound, || child.try_wait().ok().flatten());
        status.code()
    }
}
