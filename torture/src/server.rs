//! The program `ostler` as a child process, killed when its guard is dropped.

use std::process::{Child, Command, ExitStatus};

use ostler_testkit::process;
use ostler_testkit::server::{self, NotReady, Ready};
use rustix::process::Signal;

/// What the program exits with when its port is taken.
const PORT_TAKEN: i32 = 5;

/// Why a server did not start.
#[derive(Debug)]
pub(crate) enum NotStarted {
    PortTaken,
    Ended(String),
}

pub(crate) struct Server {
    child: Child,
    /// `host:port`.
    pub address: String,
    pub token: String,
}

impl Server {
    /// Starts it and waits for its ready line.
    pub(crate) fn start(mut command: Command) -> Result<Self, NotStarted> {
        let ended = |error: String| NotStarted::Ended(error);
        let mut child = command.spawn().map_err(|error| ended(format!("cannot start ostler: {error}")))?;
        match server::wait_until_ready(&mut child) {
            Ok(Ready { address, token }) => Ok(Self { child, address, token }),
            Err(NotReady::Ended(status)) if status.code() == Some(PORT_TAKEN) => Err(NotStarted::PortTaken),
            Err(NotReady::Ended(status)) => Err(ended(format!("the server did not get ready ({status})"))),
            Err(NotReady::Failed(error)) => Err(ended(error)),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        process::pid(self.id()).into_iter().for_each(|pid| process::send(pid, signal));
    }

    /// SIGKILL: no warning, no cleaning up.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and the wait for its end. Fails if it does not end, or not well.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        match server::stop(&mut self.child)? {
            status if status.success() => Ok(()),
            status => Err(format!("the server stopped with {status}")),
        }
    }

    /// How it ended, if it has: nothing here asked it to.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Resident memory.
    pub(crate) fn rss_kib(&self) -> Result<u64, String> {
        let path = format!("/proc/{}/status", self.id());
        let status = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.ok_or_else(|| format!("{path} has no VmRSS"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both do nothing to a process that has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
