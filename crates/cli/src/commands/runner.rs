//! `ostler runner`: claims one run over HTTP, drives its backend and exits. A server with the process launcher starts it with
//! its order and its token on stdin, which stays open while that server lives. People start it with a run's id, and pods by
//! their environment; SIGTERM or SIGINT makes such a runner hand back its run.

use std::io::{BufRead, BufReader, Read, sink, stdin};

use ostler_client::Client;
use ostler_protocol::{Failure, kernel::provider_profiles::AgentConfig};
use ostler_runner::{BackendEnvironment, LAUNCH_BYTES_MAX, Launch, RunnerOrder, RunnerOutcome, RunnerStatus};
use ostler_server::config::LogFormat;
use rustix::process::{Signal, getpgrp, getpid, kill_process_group};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

use crate::{
    candidates, connection::Connection, environment, errors, exit_codes, log, runner_variables::RunnerVariables,
    targets::Within, terminal::output,
};

/// Claim a run and drive its backend
///
/// Exits when no work is left, and prints the outcome as one JSON object. Logs go to stderr. The token is OSTLER_TOKEN, of
/// a service with the role `runner`, or the operator's. Without RUN, the run is that of OSTLER_RUNNER_RUN_ID. SIGTERM stops
/// the backend and releases the lease, so that another runner continues at once.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler runner run_0198…\n  OSTLER_TOKEN=… ostler --server https://ostler.example.org runner run_0198…"
)]
pub(crate) struct RunnerArgs {
    #[arg(value_name = "RUN", add = candidates::targets(),
        help = "The run to claim, or a session for its active or latest one [env: OSTLER_RUNNER_RUN_ID]")]
    run: Option<String>,
    /// The runner's name; a runner of the same name can resume its lease [env: OSTLER_RUNNER_ID]
    #[arg(long, value_name = "NAME")]
    runner_id: Option<String>,
    #[command(flatten)]
    within: Within,
    /// Read the order from stdin and exit when stdin closes; for the process launcher
    #[arg(long, conflicts_with_all = ["run", "runner_id"])]
    launched: bool,
}

impl RunnerArgs {
    pub(crate) fn is_launched(&self) -> bool {
        self.launched
    }
}

pub(crate) async fn runner(connection: &Connection, args: &RunnerArgs) -> Result<u8, Failure> {
    log::init(LogFormat::Text)?;
    let outcome = match args.launched {
        true => {
            let (order, client) = launched().await?;
            ostler_runner::run(order, client).await
        }
        false => by_hand(connection, args).await?,
    };
    output::data(&format!("{}\n", outcome.summary().as_str()));
    Ok(match &outcome.failure {
        _ if outcome.succeeded() => exit_codes::OK,
        _ if outcome.status == RunnerStatus::Stopped => exit_codes::LEFT,
        Some(failure) => failure.kind.row().exit_code,
        None => exit_codes::FAILED,
    })
}

/// Runs the run that the arguments or the environment name, until nothing is left to do or a signal arrives.
async fn by_hand(connection: &Connection, args: &RunnerArgs) -> Result<RunnerOutcome, Failure> {
    // Registered before the run is claimed, so that no signal is missed.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::internal)?;
    let stopped = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let variables = RunnerVariables::new(environment::current());
    let run = args.run.clone().or_else(|| variables.run_id());
    let run = run.ok_or_else(|| errors::usage("there is no run to claim", "name it, or set OSTLER_RUNNER_RUN_ID"))?;
    let finder = args.within.finder(connection)?;
    let run = finder.client.get_run(&finder.run(&run).await?).await?.run;
    let name = args.runner_id.clone().or_else(|| variables.runner_id());
    let name = name.unwrap_or_else(|| format!("runner-{}", std::process::id()));
    let agent = AgentConfig::of_profile(&run.backend_profile).ok_or_else(|| {
        let message = format!("the backend of the profile {:?} is unknown here", run.backend_profile);
        errors::usage(message, "let the server start the runner: it has the profile's config")
    })?;
    let environment = BackendEnvironment::bare(agent);
    let order = RunnerOrder::host_process(run.run_id, name, run.backend_profile, environment);
    let (order, grace) = (variables.apply(order)?, variables.grace()?);
    Ok(ostler_runner::run_until(order, finder.client, stopped, grace).await)
}

async fn launched() -> Result<(RunnerOrder, Client), Failure> {
    let (sender, read) = oneshot::channel();
    // In its own thread, so that a runner that hangs also ends with its server.
    std::thread::spawn(|| read_order(sender));
    let launch = read.await.map_err(Failure::internal)??;
    let Launch { order, server, token, certificate, .. } = launch;
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
