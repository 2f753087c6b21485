//! The process of an MCP server, confined like an agent's: with the guard, the limits and the part of the file system that
//! agents get, none of our variables, and a home of its own that is deleted after it.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use ostler_protocol::mcp::config::McpServer;
use ostler_runner::{
    LogTail,
    backend::acp::program,
    guard::{Guarded, Order, Reach},
    guarded_command,
};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, ChildStdin, ChildStdout},
    time::timeout,
};

use super::{problem::McpProblem, values};
use crate::{app::App, directories, launcher};

/// The directory of homes, in the data directory.
const HOMES: &str = "mcp-homes";
/// How long a process may take to end after its standard input was closed.
const CLOSE: Duration = Duration::from_secs(2);
/// How often it is checked whether a process that was dropped has ended, and the pause between two checks.
const CHECKS_MAX: usize = 40;
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// A process that is killed, with all that it started, when this is dropped. [`McpProcess::close`] also waits for its end.
pub(super) struct McpProcess {
    child: Option<Child>,
    group: Pid,
    is_guarded: bool,
    home: PathBuf,
    log: Arc<Mutex<LogTail>>,
}

impl McpProcess {
    /// Starts the process, and returns its standard streams. If this is dropped before it returns, no process and no home are
    /// left: the home is created right before the process is started, without an await between them.
    pub(super) async fn start(app: &App, server: &McpServer) -> Result<(Self, ChildStdout, ChildStdin), McpProblem> {
        let command = server.command.clone().unwrap_or_default();
        let search_path = std::env::var_os("PATH");
        let path =
            program::find(std::slice::from_ref(&command), search_path.as_deref()).map_err(|_| McpProblem::Missing)?;
        let variables = values::resolve(app, &server.env).await?;
        let home = new_home(app)?;
        let workspace = app.config.server.workspace.clone();
        let directory = server.cwd.clone().map(PathBuf::from).or_else(|| workspace.clone());
        let directory = directory.unwrap_or_else(|| home.clone());
        let guarded = guarded(app, &home, workspace).await;
        let arguments: Vec<_> = server.args.iter().map(Into::into).collect();
        let mut command = guarded_command(&path, &arguments, guarded.as_ref());
        command.env("HOME", &home).current_dir(&directory);
        command.envs(variables.iter().map(|(name, value)| (name, value.expose_secret())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(guarded.is_none());
        directories::create(&home).map_err(|_| McpProblem::NotStarted)?;
        let Ok(mut child) = command.spawn() else {
            remove_home(home).await;
            return Err(McpProblem::NotStarted);
        };
        let group = child.id().and_then(|id| Pid::from_raw(id as i32)).ok_or(McpProblem::NotStarted)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(McpProblem::NotStarted) };
        let log = Arc::default();
        // Ends with the pipe.
        tokio::spawn(read_log(stderr, Arc::clone(&log)));
        let process = Self { child: Some(child), group, is_guarded: guarded.is_some(), home, log };
        Ok((process, stdout, stdin))
    }

    /// The last lines that it logged, redacted.
    pub(super) fn log_tail(&self, app: &App) -> String {
        self.log.lock().redacted(&app.redactor)
    }

    /// Waits until the process has ended by itself, for a moment, and kills it and all that it started otherwise. Deletes its
    /// home after that, so that the process cannot write to it again.
    pub(super) async fn close(mut self) {
        let mut has_ended = self.has_ended_in_time().await;
        if !has_ended {
            self.kill();
            has_ended = self.has_ended_in_time().await;
        }
        // An error means that no process is left in the group.
        let _ = kill_process_group(self.group, Signal::KILL);
        if !has_ended {
            self.has_ended_in_time().await;
        }
        self.child = None;
        remove_home(std::mem::take(&mut self.home)).await;
    }

    async fn has_ended_in_time(&mut self) -> bool {
        match &mut self.child {
            Some(child) => timeout(CLOSE, child.wait()).await.is_ok(),
            None => true,
        }
    }

    fn kill(&self) {
        // The guard ends everything below it and then itself.
        let _ = match self.is_guarded {
            true => kill_process(self.group, Signal::TERM),
            false => kill_process_group(self.group, Signal::KILL),
        };
    }
}

impl Drop for McpProcess {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
            let (group, home) = (self.group, std::mem::take(&mut self.home));
            // Not a task: the runtime may be shutting down. If it fails, the next start deletes the home.
            let _ = std::thread::Builder::new().spawn(move || remove_after_end(group, &home));
        }
    }
}

/// Deletes a home when the processes of the group have ended, or after the last check.
fn remove_after_end(group: Pid, home: &Path) {
    for _ in 0..CHECKS_MAX {
        // An error means that no process is left in the group.
        if test_kill_process_group(group).is_err() {
            break;
        }
        std::thread::sleep(CHECK_PAUSE);
    }
    let _ = directories::remove(home);
}

/// Deletes the homes that an earlier process of this server left behind.
pub(super) async fn sweep(app: &App) {
    if let Ok(data) = app.config.data_dir() {
        remove_home(data.join(HOMES)).await;
    }
}

/// The path of a home that is not created yet.
fn new_home(app: &App) -> Result<PathBuf, McpProblem> {
    let data = app.config.data_dir().map_err(|_| McpProblem::NotStarted)?;
    Ok(data.join(HOMES).join(app.ids.body().to_string()))
}

async fn remove_home(home: PathBuf) {
    if home.as_os_str().is_empty() {
        return;
    }
    let removed = tokio::task::spawn_blocking(move || directories::remove(&home)).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(%error, "the home of an MCP server could not be deleted");
    }
}

async fn guarded(app: &App, home: &Path, workspace: Option<PathBuf>) -> Option<Guarded> {
    let guard = launcher::guard(app).await?;
    let order = Order {
        limits: guard.limits,
        reach: Some(reach(app.config.data_dir().ok(), home, workspace)).filter(|_| guard.landlock),
        runner_pid: std::process::id(),
        isolation: guard.isolation,
    };
    Some(Guarded { guard: guard.program, order })
}

/// The part of the file system that the process gets. Everything outside the data directory can be read, so the working
/// directory needs no rule. With one, everything in it could be read, also a data directory below it.
fn reach(data: Option<PathBuf>, home: &Path, workspace: Option<PathBuf>) -> Reach {
    Reach {
        writable: [Some(home.to_owned()), workspace].into_iter().flatten().collect(),
        readable: vec![],
        hidden: data.into_iter().collect(),
        tmp: Some(home.join("tmp")),
    }
}

async fn read_log(mut from: impl AsyncRead + Unpin, log: Arc<Mutex<LogTail>>) {
    let mut buffer = [0; 4 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        log.lock().push(&buffer[..read]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_nothing_of_the_data_directory_but_its_home() {
        let home = Path::new("/srv/ostler/data/mcp-homes/1");
        let reach = reach(Some("/srv/ostler/data".into()), home, Some("/srv/workspace".into()));
        assert_eq!(reach.hidden, [Path::new("/srv/ostler/data")]);
        assert_eq!(reach.readable, Vec::<PathBuf>::new(), "no rule makes a hidden directory readable again");
        assert_eq!(reach.writable, [home, Path::new("/srv/workspace")]);
    }
}
