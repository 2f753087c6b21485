//! A second cluster that streams from the first one, and what happens when it takes over.

use std::process::{Command, Stdio};
use std::thread;

use super::{Cluster, START_ATTEMPTS_MAX, START_POLL, START_TIMEOUT, data_dir, free_port, new_scratch, now};

impl Cluster {
    /// Creates and starts a standby of this cluster, which answers reads and receives every write some time after it was made.
    /// It is a cluster of its own: dropping one does not stop the other. The rule for threads is that of [`Cluster::start`].
    pub fn standby(&self) -> Result<Self, String> {
        for _ in 0..START_ATTEMPTS_MAX {
            let scratch = new_scratch(self.owner, &std::env::temp_dir())?;
            let mut copy = self.owner.command(&self.binaries.join("pg_basebackup"), scratch.path());
            // `-R` has the copy start as a standby; the first checkpoint is not spread over minutes.
            copy.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-h", "127.0.0.1", "-U", "postgres", "-p"]);
            copy.arg(self.port.to_string()).arg("-D").arg(data_dir(scratch.path()));
            output_of(&mut copy, "pg_basebackup")?;
            let (owner, binaries) = (self.owner, self.binaries.clone());
            let mut standby = Self { server: None, owner, binaries, port: free_port()?, scratch };
            if standby.serve()? {
                return Ok(standby);
            }
        }
        Err(format!("a standby found no free port in {START_ATTEMPTS_MAX} attempts"))
    }

    /// From now on no commit is acknowledged before a standby has it on its disk. Waits until one is connected.
    pub fn commit_to_standby(&self) -> Result<(), String> {
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")?;
        self.execute("SELECT pg_reload_conf()")?;
        let started = now();
        while self.execute("SELECT COUNT(*) FROM pg_stat_replication WHERE sync_state = 'sync'")? != "1" {
            if now() - started > START_TIMEOUT {
                return Err(format!("no standby was connected within {START_TIMEOUT:?}"));
            }
            thread::sleep(START_POLL);
        }
        Ok(())
    }

    /// Makes a standby a primary and waits until it takes writes.
    pub fn promote(&self) -> Result<(), String> {
        let mut promote = self.owner.command(&self.binaries.join("pg_ctl"), self.scratch.path());
        promote.args(["promote", "-w", "-s", "-D"]).arg(data_dir(self.scratch.path()));
        output_of(&mut promote, "pg_ctl promote").map(drop)
    }

    /// Executes one statement as the superuser. Returns its rows as text, a line each.
    pub fn execute(&self, sql: &str) -> Result<String, String> {
        let mut psql = Command::new(self.binaries.join("psql"));
        psql.args(["--no-psqlrc", "-tA", "-c", sql, &self.url()]).env("PGCONNECT_TIMEOUT", "5");
        output_of(&mut psql, sql)
    }
}

/// What a program printed.
fn output_of(command: &mut Command, what: &str) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("cannot start {what}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{what} failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
