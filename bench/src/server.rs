//! A server as a child process on a free port. It is stopped by its id, also when a measurement fails.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;
use crate::engine::Place;
use crate::machine::{now, since};

const READY_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_POLL: Duration = Duration::from_millis(5);
/// The end of its log that an error shows.
const LOG_BYTES_SHOWN_MAX: usize = 2_000;

pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub token: String,
    /// From the start of the process to its ready line.
    pub ready_after: Duration,
}

impl Server {
    pub fn start(ostler: &Path, place: &Place, settings: &[(&str, &str)]) -> Outcome<Self> {
        std::fs::create_dir_all(&place.data_dir)?;
        let log = place.data_dir.with_extension("log");
        let mut command = Command::new(ostler);
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("OSTLER_") || name == "DATABASE_URL" || name == "RUST_LOG")
            {
                command.env_remove(name);
            }
        }
        command.envs(settings.iter().copied());
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&place.data_dir);
        if let Some(url) = &place.database_url {
            command.args(["--database-url", url]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let started = now();
        let mut child = command.spawn()?;
        let ready = child.stdout.take().ok_or("the server has no stdout").map(first_line)?;
        let Ok(line) = ready.recv_timeout(READY_TIMEOUT) else {
            let _ = child.kill();
            let status = child.wait()?;
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let end = log.len().saturating_sub(LOG_BYTES_SHOWN_MAX);
            return Err(format!("the server did not get ready ({status}):\n{}", log.get(end..).unwrap_or(&log)).into());
        };
        let ready_after = since(started);
        // From here on the guard stops it.
        let mut server =
            Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), token: String::new(), ready_after };
        let ready: serde_json::Value = serde_json::from_str(&line)?;
        let text = |key: &str| ready[key].as_str().ok_or_else(|| format!("the ready line has no {key}"));
        server.address = text("address")?.trim_start_matches("http://").parse()?;
        server.token = std::fs::read_to_string(text("tokenFile")?)?.trim().to_owned();
        Ok(server)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(mut self) -> Outcome<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or("a process without an id")?;
        kill_process(pid, Signal::TERM)?;
        let asked = now();
        while since(asked) < STOP_TIMEOUT {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            thread::sleep(STOP_POLL);
        }
        Err(format!("the server did not stop within {STOP_TIMEOUT:?}").into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both do nothing to a process that has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first line of what a process prints; the rest is read too, so that it never blocks.
fn first_line(output: ChildStdout) -> mpsc::Receiver<String> {
    let (send, line) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        if output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            let _ = send.send(line);
        }
        let _ = output.read_to_end(&mut vec![]);
    });
    line
}
