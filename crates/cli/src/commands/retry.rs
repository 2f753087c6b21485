//! `ostler retry`: submits the input of a run again, as a new run that names the one it repeats.

use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, RawJson,
    ids::SessionId,
    kernel::{
        commands::{Command, CommandType, CreateCommand},
        runs::{CreateRun, CreatedRun, Run, SessionRef},
        whole_payloads::WholePayload,
    },
};

use crate::{
    candidates,
    commands::run::{
        detached, no_command,
        turn::{Submitted, follow_turn},
    },
    connection::Connection,
    errors, exit_codes,
    targets::Within,
    terminal::output::{self, Output, line},
};

/// How often a busy session is tried, and the pause in between.
const BUSY_ATTEMPTS_MAX: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// How much of the repeated prompt is shown.
const PROMPT_CHARS_MAX: usize = 60;

/// Submit the input of a run again, as a new run
///
/// The prompt, the profile, the workspace, the policy and the budgets are those of the run's latest turn. A session that was
/// given a name is continued; otherwise the new run has a session of its own. `ostler result` and `ostler runs list` show
/// which run it repeats.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler retry\n  ostler retry 01a1dd6b\n  ostler retry RUN --session second-try")]
pub(crate) struct RetryArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its active or latest one [default: the latest run]")]
    run: Option<String>,
    /// Run it in this session instead
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Submit, print the run's id, and exit
    #[arg(long)]
    detach: bool,
    /// Show the request that would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn retry(connection: &Connection, args: &RetryArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let client = &finder.client;
    let word = finder.run_or_latest(args.run.as_deref()).await?;
    let run = client.get_run(&word).await?.run;
    let result = client.run_result(&word, None).await?;
    let Some(command_id) = result.command_id else {
        let message = "the run has no turn that could be repeated";
        return Err(errors::hinted(FailureKind::NotFound, message, "start one: ostler run \"say hello\""));
    };
    let mut turn = client.get_command(&word, &command_id.to_string()).await?;
    // Never a part of a prompt: a whole that is too large for a run is refused by the server.
    if WholePayload::of(&turn.payload).is_some() {
        turn.payload = client.command_payload(&word, &command_id.to_string()).await?.payload;
    }
    // Retention leaves an empty object in place of the input.
    if let Some(at) = result.payloads_removed_at.filter(|_| turn.payload.as_str() == "{}") {
        return Err(CreateRun::input_removed(run.run_id, at));
    }
    let request = request(&run, &turn, args.session.as_deref());
    if args.dry_run {
        args.output.document(&request);
        output::message("dry run; nothing was sent\n");
        return Ok(exit_codes::OK);
    }
    let prompt = line(turn.payload.to_value()["prompt"].as_str().unwrap_or_default(), PROMPT_CHARS_MAX);
    output::message(&format!("repeating {word}: {prompt}\n"));
    let created = submit(client, &request).await.map_err(|failure| busy(failure, &run))?;
    if args.detach {
        return Ok(detached(connection, &args.output, &created));
    }
    let command = created.command.as_ref().ok_or_else(no_command)?;
    let submitted = Submitted { run: &created.run, command_id: command.command_id, after_seq: 0 };
    follow_turn(connection, client, submitted, &args.output).await
}

/// Creates the run. A runner that has just ended the last turn of the session still holds it for a moment.
async fn submit(client: &Client, request: &CreateRun) -> Result<CreatedRun, Failure> {
    let mut attempt = 1;
    loop {
        match client.create_run(request).await {
            Err(failure) if failure.kind == FailureKind::SessionBusy && attempt < BUSY_ATTEMPTS_MAX => {
                attempt += 1;
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            created => return created,
        }
    }
}

/// A backend may be kept for another turn of the session.
fn busy(failure: Failure, run: &Run) -> Failure {
    if failure.kind != FailureKind::SessionBusy {
        return failure;
    }
    let hint = format!("end its run with `ostler cancel {}`, or name another session with `--session`", run.run_id);
    errors::with_hint(failure, hint)
}

fn request(run: &Run, turn: &Command, session: Option<&str>) -> CreateRun {
    let is_named = run.session_id.parse::<SessionId>().is_err();
    let session = session.or(Some(run.session_id.as_str()).filter(|_| is_named));
    CreateRun {
        tenant_id: Some(run.tenant_id.clone()),
        project_id: Some(run.project_id.clone()),
        workspace_ref: Some(run.workspace_ref.clone()),
        resource_bundle_ref: run.resource_bundle_ref.clone(),
        provider_id: Some(run.provider_id.clone()),
        backend_profile: Some(run.backend_profile.clone()),
        agent_id: run.agent_id,
        execution_policy: Some(RawJson::of(&run.execution_policy)),
        trace_sink: Some(run.trace_sink.clone()),
        session_ref: session.map(|id| SessionRef { session_id: id.to_owned() }),
        retry_of: Some(run.run_id),
        labels: (!run.labels.is_empty()).then(|| run.labels.clone()),
        command: Some(CreateCommand {
            command_type: CommandType::Turn,
            payload: turn.payload.clone(),
            idempotency_key: None,
        }),
        ..CreateRun::default()
    }
}
