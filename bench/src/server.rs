//! A server as a child process on a free port. It is stopped by its id, also when a measurement fails.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ostler_testkit::server::{self, NotReady, Ready};

use crate::engine::Place;
use crate::machine::{now, since};
use crate::outcome::Outcome;

/// The end of its log that an error shows.
const LOG_BYTES_SHOWN_MAX: usize = 2_000;

pub(crate) struct Server {
    child: Child,
    pub address: SocketAddr,
    pub token: String,
    /// From the start of the process to its ready line.
    pub ready_after: Duration,
}

impl Server {
    pub(crate) fn start(ostler: &Path, place: &Place, settings: &[(&str, &str)]) -> Outcome<Self> {
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
        Self::spawn(command, place)
    }

    /// Starts a server by a command that lacks the server's own arguments.
    pub(crate) fn spawn(mut command: Command, place: &Place) -> Outcome<Self> {
        std::fs::create_dir_all(&place.data_dir)?;
        let log = place.data_dir.with_extension("log");
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&place.data_dir);
        if let Some(url) = &place.database_url {
            command.args(["--database-url", url]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let started = now();
        let mut child = command.spawn()?;
        let ready = server::wait_until_ready(&mut child);
        let ready_after = since(started);
        match ready {
            Ok(Ready { address, token }) => Ok(Self { child, address: address.parse()?, token, ready_after }),
            Err(NotReady::Ended(status)) => {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                let end = log.len().saturating_sub(LOG_BYTES_SHOWN_MAX);
                let log = log.get(end..).unwrap_or(&log);
                Err(format!("the server did not get ready ({status}):\n{log}").into())
            }
            Err(NotReady::Failed(error)) => Err(error.into()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn stop(mut self) -> Outcome<()> {
        server::stop(&mut self.child)?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both do nothing to a process that has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
