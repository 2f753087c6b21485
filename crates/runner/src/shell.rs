//! One shell command in a workspace, for a person and not for a backend. It is confined as the programs are that a backend starts.

use std::{
    io,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
};

use ostler_protocol::{
    kernel::{policy::Sandbox, provider_profiles::AgentConfig},
    rpc::Version,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Child,
    task::JoinHandle,
    time::{Duration, sleep, timeout},
};

use crate::{
    backend::process::Program,
    environment::BackendEnvironment,
    guard::{Guard, Guarded},
};

/// What a guard adds to the number of the signal that killed its program.
const GUARDED_SIGNAL: i32 = 128;
const SHELL: &str = "/bin/sh";
/// How long a guard may take to end the processes of a command.
const KILL_MS: u64 = 3_000;
/// How long the output of a command that has ended is read. A process that outlived it may keep the pipe open.
const DRAIN_MS: u64 = 1_000;

/// A command and its bounds.
#[derive(Clone, Debug)]
pub struct ShellOrder {
    pub command: String,
    pub workspace: PathBuf,
    pub sandbox: Sandbox,
    /// `None` if programs run unguarded on this system.
    pub guard: Option<Guard>,
    /// What the command must not read.
    pub hidden: Vec<PathBuf>,
    pub time_max: Duration,
    pub output_bytes_max: usize,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ShellOutcome {
    /// `None` if it was killed.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// What it printed, or the beginning of it.
    pub output: Vec<u8>,
    /// It was killed: its time was over, or it was no longer wanted.
    pub is_aborted: bool,
}

/// Runs the command until it ends, its time is over, or `unwanted` resolves. None of its processes is left.
pub async fn run_shell(order: ShellOrder, unwanted: impl Future<Output = ()>) -> io::Result<ShellOutcome> {
    let bare = BackendEnvironment::bare(AgentConfig::Scripted);
    let workspace = Some(order.workspace.clone());
    let environment = BackendEnvironment { workspace, guard: order.guard, hidden: order.hidden, ..bare };
    let guarded = environment.guarded(order.sandbox);
    let mut running = RunningShell::start(&order.command, order.workspace, guarded)?;
    let output = Arc::new(Mutex::new(vec![]));
    let readers = running.read_output(&output, order.output_bytes_max);
    let status = tokio::select! {
        status = running.child.wait() => Some(status?),
        () = sleep(order.time_max) => None,
        () = unwanted => None,
    };
    running.kill().await;
    for mut reader in readers {
        if timeout(Duration::from_millis(DRAIN_MS), &mut reader).await.is_err() {
            reader.abort();
        }
    }
    let output = std::mem::take(&mut *output.lock().unwrap_or_else(PoisonError::into_inner));
    use std::os::unix::process::ExitStatusExt;
    let (exit_code, signal) = (status.and_then(|status| status.code()), status.and_then(|status| status.signal()));
    // A guard ends as a shell does: with 128 and the number of the signal.
    let (exit_code, signal) = match exit_code {
        Some(code @ 129..=192) if running.is_guarded => (None, Some(code - GUARDED_SIGNAL)),
        _ => (exit_code, signal),
    };
    Ok(ShellOutcome { exit_code, signal, output, is_aborted: status.is_none() })
}

/// A shell whose processes are killed when this is dropped.
struct RunningShell {
    child: Child,
    group: Pid,
    is_guarded: bool,
}

impl RunningShell {
    fn start(command: &str, directory: PathBuf, guarded: Option<Guarded>) -> io::Result<Self> {
        let is_guarded = guarded.is_some();
        let program = Program {
            path: SHELL.into(),
            arguments: vec!["-c".into(), command.into()],
            environment: vec![("HOME".into(), directory.clone().into())],
            directory: Some(directory),
            version: Version::Two,
            guarded,
        };
        let mut command = program.command();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id as i32));
        let group = group.ok_or_else(|| io::Error::other("the shell has already ended"))?;
        Ok(Self { child, group, is_guarded })
    }

    fn read_output(&mut self, output: &Arc<Mutex<Vec<u8>>>, bytes_max: usize) -> [JoinHandle<()>; 2] {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        [
            tokio::spawn(store_output(stdout, output.clone(), bytes_max)),
            tokio::spawn(store_output(stderr, output.clone(), bytes_max)),
        ]
    }

    /// Ends every process of the command. A guard does it by itself, and is killed only if that takes too long.
    async fn kill(&mut self) {
        if self.is_guarded && matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(self.group, Signal::TERM);
            let _ = timeout(Duration::from_millis(KILL_MS), self.child.wait()).await;
        }
        // An error means that no process is left in the group.
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait().await;
    }
}

impl Drop for RunningShell {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let signal = if self.is_guarded { Signal::TERM } else { Signal::KILL };
            let _ = kill_process_group(self.group, signal);
        }
    }
}

/// Reads everything, so that the command never waits, and stores the beginning.
async fn store_output(from: Option<impl AsyncRead + Unpin>, output: Arc<Mutex<Vec<u8>>>, bytes_max: usize) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 8 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let room = bytes_max.saturating_sub(output.len()).min(read);
        output.extend_from_slice(&buffer[..room]);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn order(command: &str, workspace: PathBuf) -> ShellOrder {
        ShellOrder {
            command: command.to_owned(),
            workspace,
            sandbox: Sandbox::WorkspaceWrite,
            guard: None,
            hidden: vec![],
            time_max: Duration::from_secs(20),
            output_bytes_max: 1_000,
        }
    }

    #[tokio::test]
    async fn a_command_runs_in_the_workspace_and_reports_its_end() {
        let place = tempfile::tempdir().unwrap();
        let run = |command: &str| run_shell(order(command, place.path().to_owned()), pending());
        let outcome = run("echo out; echo err >&2; touch made; exit 3").await.unwrap();
        assert_eq!((outcome.exit_code, outcome.signal, outcome.is_aborted), (Some(3), None, false));
        let output = String::from_utf8(outcome.output).unwrap();
        assert!(output.contains("out\n") && output.contains("err\n") && place.path().join("made").exists(), "{output}");
        assert_eq!(run("kill -9 $$").await.unwrap().signal, Some(9));
        assert_eq!(run("head -c 100000 /dev/zero").await.unwrap().output.len(), 1_000);
        let environment = String::from_utf8(run("env").await.unwrap().output).unwrap();
        assert!(!environment.contains("CARGO"), "{environment}");
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_or_is_unwanted_leaves_no_process() {
        let place = tempfile::tempdir().unwrap();
        let mark = place.path().join("mark");
        let slow = "echo begun; (sleep 0.3; touch mark) & sleep 60";
        let late = ShellOrder { time_max: Duration::from_millis(100), ..order(slow, place.path().to_owned()) };
        let outcome = run_shell(late, pending()).await.unwrap();
        assert_eq!((outcome.exit_code, outcome.is_aborted, &outcome.output[..]), (None, true, &b"begun\n"[..]));
        let unwanted = sleep(Duration::from_millis(100));
        assert!(run_shell(order(slow, place.path().to_owned()), unwanted).await.unwrap().is_aborted);
        sleep(Duration::from_millis(350)).await;
        assert!(!mark.exists(), "a process of the command was left");
    }
}
