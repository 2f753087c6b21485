//! A private Postgres cluster: its own scratch directory and its own free port on loopback, removed when the guard is
//! dropped. Durability stays on, because what the tests prove depends on it. It never touches a cluster that was
//! running before.

mod binaries;
mod owner;
mod standby;

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

pub use binaries::find_binaries;
use binaries::find_on_path;
use owner::Owner;

use crate::process::{children_of, freeze, is_running, pid, send, stands_still};

const CONNECTIONS_MAX: u32 = 300;
/// Another process can take the port between the moment a free one is chosen and the moment the server binds it.
const START_ATTEMPTS_MAX: u32 = 5;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const START_POLL: Duration = Duration::from_millis(20);
/// The lines from the end of the server's log that an error shows.
const LOG_LINES_SHOWN_MAX: usize = 20;

/// A cluster. Dropping it stops the server and deletes its directory.
pub struct Cluster {
    /// `None` while the server is stopped.
    server: Option<Child>,
    owner: Owner,
    binaries: PathBuf,
    port: u16,
    // Dropped last: the server is stopped before its directory disappears.
    scratch: TempDir,
}

impl Cluster {
    /// Creates and starts a cluster with the binaries in this directory (see [`find_binaries`]).
    ///
    /// Call this on a thread that outlives the cluster: the kernel stops the server when that thread ends.
    pub fn start(binaries: &Path) -> Result<Self, String> {
        Self::start_in(binaries, &std::env::temp_dir())
    }

    /// [`Cluster::start`], with the cluster's scratch directory inside this one: on a file system of the test's own.
    pub fn start_in(binaries: &Path, directory: &Path) -> Result<Self, String> {
        for _ in 0..START_ATTEMPTS_MAX {
            if let Some(cluster) = Self::start_on(binaries, directory, free_port()?)? {
                return Ok(cluster);
            }
        }
        Err(format!("Postgres found no free port in {START_ATTEMPTS_MAX} attempts"))
    }

    /// `None` if the port was taken.
    fn start_on(binaries: &Path, directory: &Path, port: u16) -> Result<Option<Self>, String> {
        let owner = Owner::choose()?;
        let scratch = new_scratch(owner, directory)?;
        initialise(binaries, owner, scratch.path())?;
        let mut cluster = Self { server: None, owner, binaries: binaries.to_owned(), port, scratch };
        Ok(cluster.serve()?.then_some(cluster))
    }

    /// The address of a superuser. It stays the same across restarts.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// A program that was installed with the server. `None` if this installation lacks it.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        Some(self.binaries.join(name)).filter(|program| program.is_file())
    }

    /// Starts the server again on the same port after [`Cluster::stop`] or [`Cluster::kill`].
    pub fn start_again(&mut self) -> Result<(), String> {
        if self.server.is_some() {
            return Err("Postgres is running".to_owned());
        }
        if self.serve()? { Ok(()) } else { Err(format!("another process took port {}", self.port)) }
    }

    /// Stops the server as an administrator would: sessions are disconnected, committed data is flushed.
    pub fn stop(&mut self) -> Result<(), String> {
        self.control("fast")
    }

    /// Stops and starts the server.
    pub fn restart(&mut self) -> Result<(), String> {
        self.stop()?;
        self.start_again()
    }

    /// Kills every process of the server with SIGKILL.
    pub fn kill(&mut self) -> Result<(), String> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let processes = children_of(server.id());
        // The postmaster first, or it would start replacements for the processes that are killed before it.
        let _ = server.kill();
        processes.iter().for_each(|pid| send(*pid, Signal::KILL));
        server.wait().map_err(|e| format!("cannot wait for Postgres: {e}"))?;
        // A process that still dies could write to files that the next start already recovers.
        let started = now();
        while processes.iter().any(|pid| is_running(*pid)) {
            if now() - started > START_TIMEOUT {
                return Err(format!("killed processes of Postgres were still there after {START_TIMEOUT:?}"));
            }
            thread::sleep(START_POLL);
        }
        Ok(())
    }

    /// Whether the server has ended by itself, as it does when it cannot write its log.
    pub fn has_ended(&mut self) -> bool {
        self.server.as_mut().is_some_and(|server| matches!(server.try_wait(), Ok(Some(_))))
    }

    /// Suspends every process of the server and waits until all of them stand still: connections stay open, no query is
    /// answered. Fails if a process does not stop.
    pub fn pause(&self) -> Result<(), String> {
        let Some(server) = &self.server else { return Ok(()) };
        // The postmaster first: when it has stopped it starts no process that the list of its children would lack.
        let mut are_stopped = freeze(server.id());
        let children = children_of(server.id());
        children.iter().for_each(|pid| send(*pid, Signal::STOP));
        are_stopped &= children.iter().all(|pid| stands_still(*pid));
        if are_stopped { Ok(()) } else { Err("a process of Postgres did not stop".to_owned()) }
    }

    /// Ends [`Cluster::pause`].
    pub fn resume(&self) {
        let Some(server) = &self.server else { return };
        pid(server.id()).into_iter().chain(children_of(server.id())).for_each(|pid| send(pid, Signal::CONT));
    }

    /// Stops the server in one of `pg_ctl`'s modes.
    fn control(&mut self, mode: &str) -> Result<(), String> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let mut stop = self.owner.command(&self.binaries.join("pg_ctl"), self.scratch.path());
        stop.args(["stop", "-m", mode, "-s", "-D"]).arg(data_dir(self.scratch.path()));
        let stopped = stop.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !stopped {
            // It may have ended by itself; in both cases `wait` collects it.
            let _ = server.kill();
        }
        server.wait().map(drop).map_err(|e| format!("cannot wait for Postgres: {e}"))
    }

    /// `false` if the port was taken.
    fn serve(&mut self) -> Result<bool, String> {
        // After a crash the old file would claim that the server is ready.
        let _ = fs::remove_file(pid_file(self.scratch.path()));
        let mut server = serve(&self.binaries, self.owner, self.scratch.path(), self.port)?;
        let ready = wait_until_ready(&mut server, self.scratch.path())?;
        self.server = ready.then_some(server);
        Ok(ready)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A paused server would not react to the stop.
        self.resume();
        // Immediate: the data is not needed, and clients that are still connected must not delay the stop.
        let _ = self.control("immediate");
    }
}

/// A directory that the owner of the server can write to.
fn new_scratch(owner: Owner, directory: &Path) -> Result<TempDir, String> {
    let scratch = tempfile::Builder::new().prefix("ostler-postgres-").tempdir_in(directory);
    let scratch = scratch.map_err(|e| format!("no scratch directory for Postgres: {e}"))?;
    if let Owner::Other { uid, gid } = owner {
        chown(scratch.path(), Some(uid), Some(gid))
            .map_err(|e| format!("cannot hand over the scratch directory: {e}"))?;
    }
    Ok(scratch)
}

fn data_dir(scratch: &Path) -> PathBuf {
    scratch.join("data")
}

fn pid_file(scratch: &Path) -> PathBuf {
    data_dir(scratch).join("postmaster.pid")
}

fn log_file(scratch: &Path) -> PathBuf {
    scratch.join("server.log")
}

fn initialise(binaries: &Path, owner: Owner, scratch: &Path) -> Result<(), String> {
    let mut initdb = owner.command(&binaries.join("initdb"), scratch);
    initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-instructions"]);
    // Only the files of the empty cluster are left unsynced, not what the running server writes.
    initdb.args(["--no-sync", "-D"]).arg(data_dir(scratch));
    let output = initdb.output().map_err(|e| format!("cannot start initdb: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("initdb failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|e| format!("no free port on loopback: {e}"))
}

fn serve(binaries: &Path, owner: Owner, scratch: &Path, port: u16) -> Result<Child, String> {
    let server = binaries.join("postgres");
    // If this process is killed no guard runs; the kernel then stops the server, where `setpriv` is installed.
    let mut command = match find_on_path("setpriv") {
        Some(setpriv) => {
            let mut command = owner.command(&setpriv, scratch);
            command.args(["--pdeathsig", "QUIT", "--"]).arg(server);
            command
        }
        None => owner.command(&server, scratch),
    };
    command.arg("-D").arg(data_dir(scratch)).arg("-p").arg(port.to_string());
    for setting in [
        "listen_addresses=127.0.0.1".to_owned(),
        // A socket file could collide with another cluster's, and a deep scratch path is too long for one.
        "unix_socket_directories=".to_owned(),
        format!("max_connections={CONNECTIONS_MAX}"),
        "fsync=on".to_owned(),
        "synchronous_commit=on".to_owned(),
        "full_page_writes=on".to_owned(),
        // Recovery after a crash syncs the whole file system at once instead of every file.
        "recovery_init_sync_method=syncfs".to_owned(),
    ] {
        command.arg("-c").arg(setting);
    }
    let log = File::create(log_file(scratch)).map_err(|e| format!("cannot write Postgres' log: {e}"))?;
    let log_too = log.try_clone().map_err(|e| format!("cannot write Postgres' log: {e}"))?;
    // Its own group, so that Ctrl-C ends the tests first and the server after them.
    command.stdout(log).stderr(log_too).process_group(0);
    command.spawn().map_err(|e| format!("cannot start Postgres: {e}"))
}

/// `false` if the port was taken. The server writes its state as the last line of its pid file, which `pg_ctl` reads too.
fn wait_until_ready(server: &mut Child, scratch: &Path) -> Result<bool, String> {
    let started = now();
    loop {
        let state = fs::read_to_string(pid_file(scratch)).unwrap_or_default();
        if state.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
            return Ok(true);
        }
        let log = || fs::read_to_string(log_file(scratch)).unwrap_or_default();
        if let Some(status) = server.try_wait().map_err(|e| format!("cannot wait for Postgres: {e}"))? {
            if log().contains("Address already in use") {
                return Ok(false);
            }
            return Err(format!("Postgres ended at once ({status}):\n{}", last_lines(&log())));
        }
        if now() - started > START_TIMEOUT {
            let _ = server.kill();
            let _ = server.wait();
            return Err(format!("Postgres was not ready after {START_TIMEOUT:?}:\n{}", last_lines(&log())));
        }
        thread::sleep(START_POLL);
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN_MAX)..].join("\n")
}

#[expect(clippy::disallowed_methods, reason = "how long a real server takes to start; there is no clock to inject")]
fn now() -> Instant {
    Instant::now()
}
