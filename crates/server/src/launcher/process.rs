//! The process launcher: a child `ostler runner` for each job, in its own process group, with a token that is valid for its
//! run only and only while its job runs. The order and the token go through its standard input, which stays open while the
//! server runs: when it closes, the child knows that its server is gone, and exits.

use std::{
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    kernel::runner_jobs::{JobEnd, RunnerJob},
};
use ostler_runner::{ENVIRONMENT, Launch, LogTail, RunnerOrder};
use ostler_store as store;
use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, Command},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    ending::{self, Ending},
    environment,
};
use crate::{app::App, auth, config::Config};

/// Variables of our environment that a child gets in addition to those that every program of a runner gets.
const ENVIRONMENT_TOO: &[&str] = &["HOME", "RUST_BACKTRACE", "RUST_LOG", "OSTLER_LOG"];
/// Time between SIGTERM and SIGKILL.
const TERMINATE: Duration = Duration::from_secs(2);
/// Time for a runner to exit after it has lost its lease.
const LEAVE: Duration = Duration::from_secs(10);
/// Maximum time between two checks of a process.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time to read the rest of the log after a process has ended: a process that left our group may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub(super) async fn run(app: &App, owner: &str, job: &RunnerJob) -> Ending {
    match ending::once_stored(app, || launch(app, owner, job)).await {
        Some(Ok(runner)) => runner.wait_for_end(app, job).await,
        Some(Err(failure)) => ending::not_started(&failure).into(),
        None => ending::returned().into(),
    }
}

/// A runner in its own process.
struct RunnerProcess {
    child: Child,
    group: Pid,
    /// Held open, not used: its end signals to the child that the server is gone.
    _stdin: ChildStdin,
    output: JoinHandle<LogTail>,
    log: JoinHandle<LogTail>,
    /// How long the runner may be without a lease before it counts as stuck.
    patience: Duration,
}

async fn launch(app: &App, owner: &str, job: &RunnerJob) -> Result<RunnerProcess, Failure> {
    let run = app.run_ref(job.run_id).await?;
    let token = auth::mint(auth::RUN);
    let token_hash = auth::token_hash(token.expose_secret());
    let ours = store::kernel::runner_jobs::update_token(&app.db, job.runner_job_id, owner, &token_hash).await;
    if !ours? {
        return Err(Failure::new(FailureKind::StateConflict, "another launcher has the job"));
    }
    let environment = environment::make(app, &run, job).await?;
    let order =
        RunnerOrder::host_process(job.run_id, job.runner_id.clone(), run.backend_profile.to_string(), environment);
    let section = &app.config.runner;
    let order = RunnerOrder { lease_ms: section.lease_ms, idle_timeout_ms: section.idle_ms, ..order };
    let patience = Duration::from_millis(order.claim_wait_ms + order.lease_ms.unsigned_abs());
    let server = reachable(app.config.scheme(), &app.config.server.listen);
    let (certificate, outlive_server) = (app.tls_certificate.clone(), app.config.runner.keep_on_stop);
    let launch = Launch { order, server, token, certificate, outlive_server };
    let mut child = command(&app.config).spawn().map_err(spawn_failed)?;
    let group = child.id().and_then(|id| Pid::from_raw(id as i32)).ok_or_else(|| Failure::internal("no process id"))?;
    let (mut stdin, stdout, stderr) = match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
        (Some(stdin), Some(stdout), Some(stderr)) => (stdin, stdout, stderr),
        _ => return Err(Failure::internal("the child process has no pipes")),
    };
    let line = serde_json::to_string(&launch).map_err(Failure::internal)? + "\n";
    if let Err(error) = stdin.write_all(line.as_bytes()).await {
        // The child has exited already; its exit status has the reason.
        tracing::debug!(%error, job = %job.runner_job_id, "the runner process exited before it read its order");
    }
    let (output, log) = (tokio::spawn(LogTail::read(stdout)), tokio::spawn(LogTail::read(stderr)));
    tracing::debug!(job = %job.runner_job_id, pid = group.as_raw_nonzero(), "a runner process was started");
    Ok(RunnerProcess { child, group, _stdin: stdin, output, log, patience })
}

/// This program in the running version, even if another version has been installed over it.
fn command(config: &Config) -> Command {
    let program = match std::env::current_exe() {
        Ok(path) if !cfg!(target_os = "linux") => path,
        _ => "/proc/self/exe".into(),
    };
    let mut command = Command::new(program);
    let passed = ENVIRONMENT
        .iter()
        .chain(ENVIRONMENT_TOO)
        .copied()
        .chain(config.runner.pass_environment.iter().map(String::as_str));
    let set = passed.filter_map(|name| Some((name, config.environment.get(name)?)));
    command.arg0("ostler").args(["runner", "--launched"]).env_clear().envs(set).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn spawn_failed(error: std::io::Error) -> Failure {
    Failure::rule(Rule::RunnerSpawn, format!("the runner process did not start: {error}"))
}

/// The URL of this server for processes of this machine.
fn reachable(scheme: &str, listen: &str) -> String {
    match listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() && address.is_ipv6() => {
            format!("{scheme}://[::1]:{}", address.port())
        }
        Ok(address) if address.ip().is_unspecified() => format!("{scheme}://127.0.0.1:{}", address.port()),
        _ => format!("{scheme}://{listen}"),
    }
}

impl RunnerProcess {
    async fn wait_for_end(mut self, app: &App, job: &RunnerJob) -> Ending {
        tokio::select! {
            _ = self.child.wait() => {}
            () = stuck(app, job, self.patience) => self.signal(Signal::KILL),
            () = app.stopped() => {
                if app.config.runner.keep_on_stop {
                    return Ending::Continues;
                }
                self.end().await;
                return ending::returned().into();
            }
        }
        let status = self.child.wait().await;
        // Kill whatever processes the agent has started.
        self.signal(Signal::KILL);
        let log = last_words(self.log).await.redacted(&app.redactor);
        let output = last_words(self.output).await.redacted(&app.redactor);
        ending(status.ok(), &output, log).into()
    }

    async fn end(&mut self) {
        self.signal(Signal::TERM);
        let _ = timeout(TERMINATE, self.child.wait()).await;
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
    }

    /// Signals the whole group. An error is ignored: it means that the group has no processes left.
    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }
}

async fn last_words(reading: JoinHandle<LogTail>) -> LogTail {
    let abort = reading.abort_handle();
    let read = timeout(LAST_WORDS, reading).await;
    abort.abort();
    read.ok().and_then(Result::ok).unwrap_or_default()
}

/// Resolves when the process has been without its lease for too long: it runs, but does no work.
async fn stuck(app: &App, job: &RunnerJob, patience: Duration) {
    let (mut last_seen, mut patience) = (Instant::now(), patience);
    while last_seen.elapsed() < patience {
        tokio::time::sleep((patience / 4).min(LOOK_EVERY)).await;
        let lease = store::kernel::leases::get(&app.db, job.run_id).await;
        // A store that does not respond proves nothing about the runner.
        if lease.map_or(true, |lease| lease.is_some_and(|lease| !lease.ended && lease.runner_id == job.runner_id)) {
            last_seen = Instant::now();
            // A runner that loses a lease it once held knows that it has to exit.
            patience = patience.min(LEAVE);
        }
    }
    tracing::warn!(job = %job.runner_job_id, "a runner process without a lease is killed");
}

/// The summary of an ended process: the one that it printed as its last line, if any, and its exit status.
fn ending(status: Option<ExitStatus>, output: &str, log_tail: String) -> (JobEnd, RawJson) {
    let (code, signal) = (status.and_then(|status| status.code()), status.and_then(|status| status.signal()));
    let printed = output.lines().next_back().and_then(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    let mut summary = printed.unwrap_or_else(|| {
        let message = match (code, signal) {
            (Some(code), _) => format!("the runner process ended with code {code}"),
            (_, Some(signal)) => format!("the runner process was killed by signal {signal}"),
            _ => "the runner process is gone".into(),
        };
        let fields = [("status", json!("exited")), ("failureKind", json!("infra-failed")), ("message", json!(message))];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    });
    summary.insert("exitCode".into(), json!(code));
    summary.insert("signal".into(), json!(signal));
    summary.insert("logTail".into(), log_tail.into());
    let end = if code == Some(0) { JobEnd::Succeeded } else { JobEnd::Failed };
    (end, RawJson::of(&summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_reaches_a_server_that_listens_everywhere_on_loopback() {
        assert_eq!(reachable("http", "0.0.0.0:47"), "http://127.0.0.1:47");
        assert_eq!(reachable("http", "[::]:47"), "http://[::1]:47");
        assert_eq!(reachable("https", "10.0.0.1:47"), "https://10.0.0.1:47");
    }

    #[test]
    fn a_process_without_output_is_described_by_its_exit_status() {
        let killed = ending(Some(ExitStatus::from_raw(9)), "", "last line".into());
        let fields: Value = serde_json::from_str(killed.1.as_str()).unwrap();
        assert_eq!((killed.0, &fields["signal"], &fields["exitCode"]), (JobEnd::Failed, &json!(9), &Value::Null));
        assert_eq!((&fields["status"], &fields["logTail"]), (&json!("exited"), &json!("last line")));
    }

    #[test]
    fn a_process_that_prints_a_summary_is_described_by_it() {
        let idle = ending(Some(ExitStatus::from_raw(0)), "noise\n{\"status\":\"idle\",\"turns\":2}", String::new());
        let fields: Value = serde_json::from_str(idle.1.as_str()).unwrap();
        assert_eq!((idle.0, &fields["status"], &fields["turns"]), (JobEnd::Succeeded, &json!("idle"), &json!(2)));
    }
}
