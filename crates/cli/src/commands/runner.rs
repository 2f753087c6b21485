//! `ostler runner`: claims one run over HTTP, drives its backend and exits. A server with the process launcher starts it with
//! its order and its token on stdin, which stays open while that server lives. People start it with a run's id, and pods by
//! their environment; SIGTERM or SIGINT makes such a runner hand back its run, and a second one makes it exit at once.

use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader, Read, Write, sink, stdin},
    path::Path,
    pin::pin,
    time::Duration,
};

use ostler_client::Client;
use ostler_protocol::{Failure, kernel::provider_profiles::AgentConfig, text::clip};
use ostler_runner::{BackendEnvironment, LAUNCH_BYTES_MAX, Launch, RunnerOrder, RunnerOutcome, RunnerStatus};
use ostler_server::{clock::fill, config::LogFormat};
use rustix::{
    process::{Signal, getpgrp, getpid, kill_process_group},
    system::uname,
};
use tokio::{
    signal::unix::{self, SignalKind},
    sync::oneshot,
};

use crate::{
    candidates, connection::Connection, environment, errors, exit_codes, log, preflight,
    runner_variables::RunnerVariables, targets::Within, terminal::output,
};

/// Bytes of the longest report. Nodes of a cluster cut longer ones, and a part of a JSON text is none.
const REPORT_BYTES_MAX: usize = 4_096;

/// Claim a run and drive its backend
///
/// Exits when no work is left, and prints the outcome as one JSON object. Logs go to stderr. The token is OSTLER_TOKEN, of
/// a service with the role `runner`, or the operator's. Without RUN, the run is that of OSTLER_RUNNER_RUN_ID. SIGTERM stops
/// the backend and releases the lease, so that another runner continues at once. A second signal ends the runner at once, and
/// its lease expires by itself.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler runner run_0198…\n  OSTLER_TOKEN=… ostler --server https://ostler.example.org runner run_0198…"
)]
pub(crate) struct RunnerArgs {
    #[arg(value_name = "RUN", add = candidates::targets(),
        help = "The run to claim, or a session for its active or latest one [env: OSTLER_RUNNER_RUN_ID]")]
    run: Option<String>,
    /// The runner's name, which no other runner may have at the same time: a runner can resume a lease of its own name
    /// [env: OSTLER_RUNNER_ID] [default: the host's name, the process id and random digits]
    #[arg(long, value_name = "NAME")]
    runner_id: Option<String>,
    #[command(flatten)]
    within: Within,
    /// Read the order from stdin and exit when stdin closes; for the process launcher
    #[arg(long, conflicts_with_all = ["run", "runner_id"])]
    launched: bool,
}

pub(crate) async fn runner(connection: &Connection, args: &RunnerArgs) -> Result<u8, Failure> {
    log::init(LogFormat::Text)?;
    let outcome = match args.launched {
        true => {
            let (order, client) = launched().await?;
            Some(ostler_runner::run(order, client).await)
        }
        false => by_hand(connection, args).await?,
    };
    let Some(outcome) = outcome else {
        output::message("the runner was stopped by a second signal; its lease expires by itself\n");
        return Ok(exit_codes::LEFT);
    };
    let summary = log::redacted_json(outcome.summary().as_str());
    output::data(&format!("{summary}\n"));
    if let Some(file) = RunnerVariables::new(environment::current()).report_file()
        && let Err(error) = write_report(&file, &bounded(summary))
    {
        tracing::warn!(%error, file = %file.display(), "the outcome could not be written");
    }
    Ok(match &outcome.failure {
        _ if outcome.succeeded() => exit_codes::OK,
        _ if outcome.status == RunnerStatus::Stopped => exit_codes::LEFT,
        Some(failure) => failure.kind.row().exit_code,
        None => exit_codes::FAILED,
    })
}

/// The summary with a message that is short enough for a report.
fn bounded(summary: String) -> String {
    let (mut text, mut chars_max) = (summary, REPORT_BYTES_MAX);
    // A character may take several bytes, and more when it is escaped.
    while text.len() > REPORT_BYTES_MAX && chars_max > 0 {
        let Ok(mut fields) = serde_json::from_str::<serde_json::Value>(&text) else { return text };
        chars_max /= 2;
        let message = clip(fields["message"].as_str().unwrap_or_default(), chars_max);
        fields["message"] = message.into();
        text = fields.to_string();
    }
    text
}

/// Writes the outcome into a file that exists, as a cluster gives it to each container.
fn write_report(file: &Path, summary: &str) -> std::io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(file)?.write_all(summary.as_bytes())
}

/// SIGINT and SIGTERM.
struct StopSignals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl StopSignals {
    fn register() -> Result<Self, Failure> {
        let register = |kind| unix::signal(kind).map_err(Failure::internal);
        Ok(Self { interrupt: register(SignalKind::interrupt())?, terminate: register(SignalKind::terminate())? })
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs the run that the arguments or the environment name, until nothing is left to do or a signal arrives. `None` if a
/// second signal arrived before the run was handed back.
async fn by_hand(connection: &Connection, args: &RunnerArgs) -> Result<Option<RunnerOutcome>, Failure> {
    // Registered before anything else, so that no signal is missed.
    let mut signals = StopSignals::register()?;
    let connection = connection.for_runner();
    let prepared = tokio::select! {
        prepared = prepare(&connection, args) => prepared.map_err(|failure| connection.explain(failure))?,
        () = signals.next() => {
            let outcome = RunnerOutcome { status: RunnerStatus::Stopped, turns: 0, failure: None, last_end: None, is_job_ended: false };
            return Ok(Some(outcome));
        }
    };
    let (order, client, grace) = prepared;
    let (stop, stop_requested) = oneshot::channel::<()>();
    let stopped = async move {
        let _ = stop_requested.await;
    };
    // Dropping it kills the backend.
    let mut running = pin!(ostler_runner::run_until(order, client, stopped, grace));
    tokio::select! {
        outcome = &mut running => return Ok(Some(outcome)),
        () = signals.next() => {}
    }
    let _ = stop.send(());
    Ok(tokio::select! {
        outcome = &mut running => Some(outcome),
        () = signals.next() => None,
    })
}

/// The order for the run, a client of its server, and the time to hand the run back after a signal.
async fn prepare(connection: &Connection, args: &RunnerArgs) -> Result<(RunnerOrder, Client, Duration), Failure> {
    let variables = RunnerVariables::new(environment::current());
    let run = args.run.clone().or_else(|| variables.run_id());
    let run = run.ok_or_else(|| errors::usage("there is no run to claim", "name it, or set OSTLER_RUNNER_RUN_ID"))?;
    let finder = args.within.finder(connection)?;
    preflight::preflight(&finder.client, &["ostler_runners"]).await?;
    let run = finder.client.get_run(&finder.run(&run).await?).await?.run;
    let name = args.runner_id.clone().or_else(|| variables.runner_id()).unwrap_or_else(unique_name);
    let environment = match (variables.backend()?, AgentConfig::of_profile(&run.backend_profile)) {
        (Some(prepared), _) => prepared,
        (None, Some(agent)) => BackendEnvironment::bare(agent),
        (None, None) => {
            let message = format!("the backend of the profile {:?} is unknown here", run.backend_profile);
            return Err(errors::usage(message, "let the server start the runner: it has the profile's config"));
        }
    };
    environment.redactor().into_iter().for_each(log::redact_with);
    variables.fill_home()?;
    variables.make_workspace()?;
    let order = RunnerOrder::host_process(run.run_id, name, run.backend_profile, environment);
    Ok((variables.apply(order)?, finder.client, variables.grace()?))
}

/// A name that no other runner has. The process id alone does not suffice: in a container it is often 1, and a runner resumes a
/// live lease of its own name.
fn unique_name() -> String {
    let mut random = [0; 4];
    fill(&mut random);
    let system = uname();
    format!("{}-{}-{:08x}", system.nodename().to_string_lossy(), std::process::id(), u32::from_ne_bytes(random))
}

async fn launched() -> Result<(RunnerOrder, Client), Failure> {
    let (sender, read) = oneshot::channel();
    // In its own thread, so that a runner that hangs also ends with its server.
    std::thread::spawn(|| read_order(sender));
    let launch = read.await.map_err(Failure::internal)??;
    let Launch { order, server, token, certificate, .. } = launch;
    order.environment.redactor().into_iter().for_each(log::redact_with);
    let client = match certificate {
        Some(certificate) => Client::pinned_http(&server, Some(token), &certificate)?,
        None => Client::http(&server, Some(token))?,
    };
    Ok((order, client))
}

/// Reads the order, then waits for the pipe to close.
fn read_order(order: oneshot::Sender<Result<Launch, Failure>>) {
    let mut pipe = BufReader::new(stdin());
    let mut line = String::new();
    let read = pipe.by_ref().take(LAUNCH_BYTES_MAX).read_line(&mut line);
    let launch = read.ok().and_then(|_| serde_json::from_str::<Launch>(&line).ok());
    let Some(launch) = launch else {
        let _ =
            order.send(Err(errors::usage("there is no order on stdin", "`--launched` is for the process launcher")));
        return;
    };
    let outlives = launch.outlive_server;
    if order.send(Ok(launch)).is_ok() && !outlives {
        let _ = std::io::copy(&mut pipe, &mut sink());
        end_with_server();
    }
}

/// Ends this process and every process it has started, because the server is gone.
fn end_with_server() {
    output::message("the server is gone; the runner ends with it\n");
    if getpgrp() == getpid() {
        let _ = kill_process_group(getpid(), Signal::KILL);
    }
    std::process::exit(exit_codes::LEFT.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_stays_json_however_long_its_message_is() {
        for message in ["m".repeat(9_000), "\u{1}".repeat(9_000), "語".repeat(9_000), "short".to_owned()] {
            let summary = serde_json::json!({"status": "failed", "message": message, "turns": 2}).to_string();
            let report = bounded(summary.clone());
            assert!(report.len() <= REPORT_BYTES_MAX, "{} bytes", report.len());
            let fields: serde_json::Value = serde_json::from_str(&report).unwrap();
            assert!(fields["status"] == "failed" && fields["turns"] == 2, "{fields}");
            assert_eq!(report == summary, message == "short");
        }
    }

    #[test]
    fn runners_with_the_same_process_id_have_different_names() {
        let (one, other) = (unique_name(), unique_name());
        assert_ne!(one, other);
        assert!(one.contains(&format!("-{}-", std::process::id())), "{one}");
    }
}
