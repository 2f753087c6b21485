//! Where the servers of one round live: a data directory, the settings they start with, and their log.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::server::{NotStarted, Server};

const START_ATTEMPTS_MAX: usize = 40;
const START_PAUSE: Duration = Duration::from_millis(50);
const LOG_BYTES_SHOWN_MAX: usize = 1_500;

pub(crate) struct ServerHost {
    ostler: PathBuf,
    scratch: TempDir,
    pub data_dir: PathBuf,
    /// Of the servers, in their order: each may have its own way to Postgres. Empty on SQLite.
    pub database_urls: Vec<String>,
    /// For `verify`, past every proxy.
    pub direct_url: Option<String>,
    pub environment: Vec<(String, String)>,
}

impl ServerHost {
    pub(crate) fn new(ostler: &Path) -> Result<Self, String> {
        let scratch = tempfile::Builder::new().prefix("ostler-torture-").tempdir();
        let scratch = scratch.map_err(|error| format!("no scratch directory: {error}"))?;
        let data_dir = scratch.path().join("data");
        let mut host = Self {
            ostler: ostler.to_owned(),
            scratch,
            data_dir,
            database_urls: vec![],
            direct_url: None,
            environment: vec![],
        };
        for (name, value) in [
            ("OSTLER_RUNNER__LEASE_MS", "1500"),
            ("OSTLER_RUNNER__JOB_SILENCE_MS", "3000"),
            ("OSTLER_RUNNER__SWEEP_INTERVAL_MS", "50"),
            ("OSTLER_LIMITS__RECHECK_MS", "200"),
            ("OSTLER_SERVER__DRAIN_MS", "2000"),
            ("OSTLER_MESH__REGISTRATIONS_PER_HOUR_MAX", "1000000"),
            ("OSTLER_MESH__REGISTRATIONS_PER_HOUR_TOTAL_MAX", "1000000"),
        ] {
            host.set(name, value);
        }
        Ok(host)
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.into(), value.into()));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Holds the milliseconds that the wall clock of a server is off.
    pub(crate) fn clock_file(&self, number: usize) -> PathBuf {
        self.path(&format!("clock-{number}"))
    }

    /// Holds the milliseconds that the clock of the database is off, as all servers read it.
    pub(crate) fn database_clock_file(&self) -> PathBuf {
        self.path("database-clock")
    }

    fn log_file(&self) -> PathBuf {
        self.path("server.log")
    }

    /// What all servers of this home wrote to stderr.
    pub(crate) fn log(&self) -> String {
        let bytes = std::fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn log_end(&self) -> String {
        let log = self.log();
        let start = log.len().saturating_sub(LOG_BYTES_SHOWN_MAX);
        log.char_indices().find(|(at, _)| *at >= start).map_or(String::new(), |(at, _)| log[at..].to_owned())
    }

    /// Keeps a copy of the log for people to read.
    pub(crate) fn keep_log(&self, to: &Path) {
        let _ = to.parent().map(std::fs::create_dir_all);
        let _ = std::fs::copy(self.log_file(), to);
    }

    fn command(&self, args: &[&str], database_url: Option<&String>) -> Command {
        let mut command = Command::new(&self.ostler);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.args(args).arg("--data-dir").arg(&self.data_dir).current_dir(self.scratch.path());
        if let Some(url) = database_url {
            command.env("DATABASE_URL", url);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C at the terminal stops the torturer, which stops its servers; they must not see the signal themselves.
        command.process_group(0);
        command
    }

    /// Starts the server with this number at `host:port`, or anywhere with port 0.
    pub(crate) fn serve(&self, number: usize, address: &str) -> Result<Server, String> {
        for _ in 0..START_ATTEMPTS_MAX {
            let log = File::options().create(true).append(true).open(self.log_file());
            let log = log.map_err(|error| format!("no log: {error}"))?;
            let mut command = self.command(&["serve", "--listen", address], self.database_urls.get(number));
            command.stderr(log).env("OSTLER_FAULT_CLOCK_OFFSET_FILE", self.clock_file(number));
            command.env("OSTLER_FAULT_DATABASE_CLOCK_FILE", self.database_clock_file());
            match Server::start(command) {
                Ok(server) => return Ok(server),
                Err(NotStarted::PortTaken) => thread::sleep(START_PAUSE),
                Err(NotStarted::Ended(why)) => return Err(format!("{why}; its log ends with:\n{}", self.log_end())),
            }
        }
        Err(format!("{address} stayed taken"))
    }

    /// `ostler verify`. Fails if a stored chain does not fit.
    pub(crate) fn verify(&self) -> Result<(), String> {
        self.run(&["verify"], self.direct_url.as_ref()).map(drop)
    }

    /// Checks a consent ledger that was exported, without a server.
    pub(crate) fn verify_ledger(&self, ledger: &str) -> Result<(), String> {
        let file = self.path("ledger.jsonl");
        std::fs::write(&file, ledger).map_err(|error| error.to_string())?;
        self.run(&["consent", "verify", &file.to_string_lossy()], None).map(drop)
    }

    fn run(&self, args: &[&str], database_url: Option<&String>) -> Result<String, String> {
        let output = self.command(args, database_url).output().map_err(|error| format!("ostler {args:?}: {error}"))?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if output.status.success() { Ok(said) } else { Err(format!("`ostler {}` failed: {said}", args.join(" "))) }
    }
}
