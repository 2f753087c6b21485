//! A private Postgres cluster for tests: its own scratch directory, its own free port on loopback, gone when the
//! guard is dropped. Durability stays on, because what the tests prove depends on it. It never looks at, stops or
//! configures a cluster that was there before.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::debian::{self, we_are_root};
use crate::process::{find_on_path, in_workspace, interrupted, now, run};

pub const URL_VARIABLE: &str = "OSTLER_TEST_POSTGRES_URL";

const CONNECTIONS_MAX: u32 = 300;
/// Somebody else can take the port between our asking for a free one and the server's binding it.
const START_ATTEMPTS_MAX: u32 = 5;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const START_POLL: Duration = Duration::from_millis(20);
/// The end of the server's log that an error shows.
const LOG_LINES_SHOWN_MAX: usize = 20;

/// A running cluster; dropping it stops the server and deletes its directory.
pub struct Cluster {
    server: Child,
    owner: Owner,
    binaries: PathBuf,
    port: u16,
    // Dropped last: the server is stopped before its directory disappears.
    scratch: TempDir,
}

/// Who runs the server. It refuses to run as root, so root lends it to somebody without rights.
#[derive(Clone, Copy)]
enum Owner {
    Ourselves,
    Other { uid: u32, gid: u32 },
}

/// `cargo xtask postgres -- CMD…`
pub fn run_with_cluster(arguments: &[String]) -> Result<(), String> {
    let (program, rest) = arguments.split_first().ok_or("what shall run? `cargo xtask postgres -- CMD…`")?;
    let cluster = Cluster::start()?;
    eprintln!("==> {URL_VARIABLE}={}", cluster.url());
    run(in_workspace(program)?.args(rest).env(URL_VARIABLE, cluster.url()).current_dir(current_dir()?))
}

fn current_dir() -> Result<PathBuf, String> {
    std::env::current_dir().map_err(|e| format!("the current directory is not there: {e}"))
}

impl Cluster {
    /// Call this on the main thread: the server is told to die with the thread that started it.
    pub fn start() -> Result<Cluster, String> {
        let binaries = find_or_install_binaries()?;
        for _ in 0..START_ATTEMPTS_MAX {
            if let Some(cluster) = Cluster::start_on(&binaries, free_port()?)? {
                return Ok(cluster);
            }
        }
        Err(format!("Postgres found no free port in {START_ATTEMPTS_MAX} attempts"))
    }

    /// `None`: the port was taken.
    fn start_on(binaries: &Path, port: u16) -> Result<Option<Cluster>, String> {
        let owner = Owner::choose()?;
        let scratch = tempfile::Builder::new().prefix("ostler-postgres-").tempdir();
        let scratch = scratch.map_err(|e| format!("no scratch directory for Postgres: {e}"))?;
        if let Owner::Other { uid, gid } = owner {
            chown(scratch.path(), Some(uid), Some(gid))
                .map_err(|e| format!("cannot hand over the scratch dir: {e}"))?;
        }
        initialise(binaries, owner, scratch.path())?;
        let server = serve(binaries, owner, scratch.path(), port)?;
        let mut cluster = Cluster { server, owner, binaries: binaries.to_owned(), port, scratch };
        let ready = wait_until_ready(&mut cluster.server, cluster.scratch.path())?;
        Ok(ready.then_some(cluster))
    }

    /// A superuser's address; tests create databases of their own.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// A program that was installed with the server. `None`: this installation lacks it.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        Some(self.binaries.join(name)).filter(|program| program.is_file())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut stop = self.owner.command(&self.binaries.join("pg_ctl"), self.scratch.path());
        // Immediate: nobody needs the data, and clients that were left behind must not hold us up.
        stop.args(["stop", "-m", "immediate", "-s", "-D"]).arg(data_dir(self.scratch.path()));
        let stopped = stop.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !stopped {
            // It may have ended by itself; either way `wait` collects it.
            let _ = self.server.kill();
        }
        let _ = self.server.wait();
    }
}

impl Owner {
    fn choose() -> Result<Owner, String> {
        if !we_are_root() {
            return Ok(Owner::Ourselves);
        }
        let accounts = fs::read_to_string("/etc/passwd").map_err(|e| format!("cannot read the accounts: {e}"))?;
        let find = |name: &str| {
            let fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
            let account = fields.into_iter().find(|fields| fields.first() == Some(&name))?;
            Some(Owner::Other { uid: account.get(2)?.parse().ok()?, gid: account.get(3)?.parse().ok()? })
        };
        find("postgres")
            .or_else(|| find("nobody"))
            .ok_or_else(|| "Postgres does not run as root, and there is no other account to run it as".to_owned())
    }

    /// A command run as this owner, in a directory that the owner can enter.
    fn command(self, program: &Path, directory: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(directory).stdin(Stdio::null());
        if let Owner::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
        command
    }
}

fn data_dir(scratch: &Path) -> PathBuf {
    scratch.join("data")
}

fn log_file(scratch: &Path) -> PathBuf {
    scratch.join("server.log")
}

fn initialise(binaries: &Path, owner: Owner, scratch: &Path) -> Result<(), String> {
    let mut initdb = owner.command(&binaries.join("initdb"), scratch);
    initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-instructions"]);
    // Only the empty cluster's own files are left unsynced, not what the running server writes.
    initdb.args(["--no-sync", "-D"]).arg(data_dir(scratch));
    let output = initdb.output().map_err(|e| format!("cannot start initdb: {e}"))?;
    interrupted()?;
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
    // Should we be killed the hard way, no guard runs: the kernel then stops the server for us, where it can.
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
    ] {
        command.arg("-c").arg(setting);
    }
    let log = File::create(log_file(scratch)).map_err(|e| format!("cannot write Postgres' log: {e}"))?;
    let log_too = log.try_clone().map_err(|e| format!("cannot write Postgres' log: {e}"))?;
    // Its own group, so that Ctrl-C ends the tests first and the server after them.
    command.stdout(log).stderr(log_too).process_group(0);
    command.spawn().map_err(|e| format!("cannot start Postgres: {e}"))
}

/// `false`: the port was taken. The server writes its state as the last line of its pid file, as `pg_ctl` knows it.
fn wait_until_ready(server: &mut Child, scratch: &Path) -> Result<bool, String> {
    let pid_file = data_dir(scratch).join("postmaster.pid");
    let started = now();
    loop {
        interrupted()?;
        let state = fs::read_to_string(&pid_file).unwrap_or_default();
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
            return Err(format!("Postgres was not ready after {START_TIMEOUT:?}:\n{}", last_lines(&log())));
        }
        thread::sleep(START_POLL);
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN_MAX)..].join("\n")
}

fn find_or_install_binaries() -> Result<PathBuf, String> {
    if let Some(binaries) = find_binaries() {
        return Ok(binaries);
    }
    debian::install("postgresql", INSTALL_SCRIPT).map_err(|reason| {
        format!(
            "the tests need a Postgres server, and none can be had: {reason}\n\
             hint: install one (on Debian: `apt-get install postgresql`), or put its `bin` directory on PATH"
        )
    })?;
    find_binaries().ok_or_else(|| "Debian's postgresql is installed, but its server is not where it should be".into())
}

/// The directory of the server's binaries: the one on `PATH`, else the newest that Debian's packages left.
fn find_binaries() -> Option<PathBuf> {
    let complete =
        |directory: &Path| ["postgres", "initdb", "pg_ctl"].iter().all(|name| directory.join(name).is_file());
    // Where the link on `PATH` points to, because only there are all the others.
    let on_path = find_on_path("postgres").and_then(|server| fs::canonicalize(server).ok());
    let on_path = on_path.and_then(|server| server.parent().map(Path::to_owned));
    if let Some(directory) = on_path.filter(|directory| complete(directory)) {
        return Some(directory);
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let numbered = versions.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let mut directories: Vec<_> = numbered.map(|(version, path)| (version, path.join("bin"))).collect();
    directories.sort();
    directories.into_iter().map(|(_, path)| path).rfind(|path| complete(path))
}

/// Debian would create a cluster and start it; this drop-in, there only while we install, asks it not to.
const INSTALL_SCRIPT: &str = "\
set -eu
drop_in=/etc/postgresql-common/createcluster.d/ostler-no-cluster.conf
mkdir -p \"$(dirname \"$drop_in\")\"
trap 'rm -f \"$drop_in\"' EXIT
echo 'create_main_cluster = false' > \"$drop_in\"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends postgresql
";
