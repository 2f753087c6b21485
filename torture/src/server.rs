//! The program `ostler` as a child process, killed when its guard is dropped.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ostler_testkit::process;
use rustix::process::Signal;
use serde_json::Value;

use crate::clock::{now, since};

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(3);
/// What the program exits with when its port is taken.
const PORT_TAKEN: i32 = 5;

/// Why a server did not start.
#[derive(Debug)]
pub enum NotStarted {
    PortTaken,
    Ended(String),
}

pub struct Server {
    child: Child,
    /// `host:port`.
    pub address: String,
    pub token: String,
}

impl Server {
    /// Starts it and waits for its ready line.
    pub fn start(mut command: Command) -> Result<Self, NotStarted> {
        let ended = |error: String| NotStarted::Ended(error);
        let mut child = command.spawn().map_err(|error| ended(format!("cannot start ostler: {error}")))?;
        let line = child.stdout.take().map(first_line);
        let line = line.and_then(|line| line.recv_timeout(READY_TIMEOUT).ok());
        // From here on the guard stops it.
        let mut server = Self { child, address: String::new(), token: String::new() };
        let Some(line) = line else {
            let _ = server.child.kill();
            return Err(match server.child.wait() {
                Ok(status) if status.code() == Some(PORT_TAKEN) => NotStarted::PortTaken,
                Ok(status) => ended(format!("the server did not get ready ({status})")),
                Err(error) => ended(error.to_string()),
            });
        };
        let ready: Value = serde_json::from_str(&line).map_err(|error| ended(format!("{error}: {line}")))?;
        let text = |key: &str| ready[key].as_str().ok_or_else(|| ended(format!("no {key} in the ready line: {line}")));
        server.address = text("address")?.trim_start_matches("http://").to_owned();
        let token = std::fs::read_to_string(text("tokenFile")?).map_err(|error| ended(format!("no token: {error}")))?;
        server.token = token.trim().to_owned();
        Ok(server)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        process::pid(self.id()).into_iter().for_each(|pid| process::send(pid, signal));
    }

    /// SIGKILL: no warning, no cleaning up.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and the wait for its end. Fails if it does not end, or not well.
    pub fn stop(mut self) -> Result<(), String> {
        self.signal(Signal::TERM);
        let started = now();
        while since(started) < STOP_TIMEOUT {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the server stopped with {status}")),
                Ok(None) => thread::sleep(POLL),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("the server did not stop within {STOP_TIMEOUT:?}"))
    }

    /// How it ended, if it has: nothing here asked it to.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Resident memory.
    pub fn rss_kib(&self) -> Result<u64, String> {
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

/// The first line that a process prints. The rest is read too, so that the process never blocks.
fn first_line(output: ChildStdout) -> mpsc::Receiver<String> {
    let (send, line) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        if output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            let _ = send.send(line);
        }
        drop(send);
        let _ = output.read_to_end(&mut vec![]);
    });
    line
}
