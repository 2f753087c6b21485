//! The program `ostler serve` as a child process: from its start to its ready line, and its end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{pid, send};

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(40);
const STOP_POLL: Duration = Duration::from_millis(3);

/// What a server reports of itself when it is ready.
pub struct Ready {
    /// `host:port`.
    pub address: String,
    /// The operator's.
    pub token: String,
}

/// Why a server did not get ready. Its process has ended in both cases.
#[derive(Debug)]
pub enum NotReady {
    /// It ended by itself, or was killed because it took too long.
    Ended(ExitStatus),
    Failed(String),
}

/// Waits for the ready line of a server whose stdout is piped.
pub fn wait_until_ready(child: &mut Child) -> Result<Ready, NotReady> {
    let ready = ready_line(child).and_then(|line| match line {
        Some(line) => read_ready(&line).map(Ok),
        None => {
            let _ = child.kill();
            child.wait().map(Err).map_err(|error| error.to_string())
        }
    });
    match ready {
        Ok(Ok(ready)) => Ok(ready),
        Ok(Err(status)) => Err(NotReady::Ended(status)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(NotReady::Failed(error))
        }
    }
}

/// `None` if the server ended first or took too long.
fn ready_line(child: &mut Child) -> Result<Option<String>, String> {
    let stdout = child.stdout.take().ok_or("the server's stdout is not piped")?;
    Ok(first_line(stdout).recv_timeout(READY_TIMEOUT).ok())
}

fn read_ready(line: &str) -> Result<Ready, String> {
    let ready: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
    let text = |key: &str| ready[key].as_str().ok_or_else(|| format!("the ready line has no {key}: {line}"));
    let address = text("address")?.trim_start_matches("http://").to_owned();
    let token = std::fs::read_to_string(text("tokenFile")?).map_err(|error| format!("no token: {error}"))?;
    Ok(Ready { address, token: token.trim().to_owned() })
}

/// Sends SIGTERM and waits until the process has ended.
pub fn stop(child: &mut Child) -> Result<ExitStatus, String> {
    pid(child.id()).into_iter().for_each(|pid| send(pid, Signal::TERM));
    let started = now();
    while now() - started < STOP_TIMEOUT {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status);
        }
        thread::sleep(STOP_POLL);
    }
    Err(format!("the server did not stop within {STOP_TIMEOUT:?}"))
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

#[expect(clippy::disallowed_methods, reason = "how long a real process takes to end; there is no clock to inject")]
fn now() -> Instant {
    Instant::now()
}
