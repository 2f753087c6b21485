//! `ostler runs`: lists runs. A run returns to `pending` when a turn has ended; the run itself ends when it
//! is cancelled, fails or is completed on request.

use clap::Subcommand;
use futures_util::{StreamExt, stream};
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    ids::RunId,
    kernel::runs::{ListRuns, Run, TerminalStatus},
};

use crate::{
    candidates,
    connection::Connection,
    exit_codes,
    terminal::status::{is_idle, run_status},
    terminal::{
        output::{self, Output, line},
        table::table,
        times::{Times, now},
    },
};

/// How many results are requested concurrently.
const CONCURRENT_RESULTS: usize = 8;

/// List runs
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler runs list --status running")]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    verb: RunsVerb,
}

#[derive(Subcommand, Debug)]
enum RunsVerb {
    List(ListRunsArgs),
}

/// List runs, newest first
///
/// The end of a turn does not end its run: the run becomes idle, ready for another turn, and the outcome of the last turn is
/// shown beside it. A run itself fails only if it cannot continue.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler runs list\n  ostler runs list --status running -n 5\n  \
    ostler runs list --session review -o jsonl | jq -r .runId")]
struct ListRunsArgs {
    /// Only runs with this status; an idle run is pending
    #[arg(long, value_parser = ["pending", "claimed", "running", "completed", "failed", "blocked", "cancelled"])]
    status: Option<String>,
    #[arg(long, value_name = "ID", help = "Only runs of this session")]
    session: Option<String>,
    #[arg(long, help = "Only runs of this tenant")]
    tenant: Option<String>,
    #[arg(long, help = "Only runs of this project")]
    project: Option<String>,
    #[arg(long, help = "Only runs of this backend profile", add = candidates::profiles())]
    profile: Option<String>,
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn runs(connection: &Connection, args: &RunsArgs) -> Result<u8, Failure> {
    let RunsVerb::List(args) = &args.verb;
    let query = ListRuns {
        status: args.status.clone(),
        session_id: args.session.clone(),
        tenant_id: args.tenant.clone(),
        project_id: args.project.clone(),
        backend_profile: args.profile.clone(),
        limit: Some(args.limit),
        ..ListRuns::default()
    };
    let client = connection.client()?;
    let page = client.list_runs(&query).await?;
    let outcomes =
        if args.output.is_text() { last_outcomes(&client, page.runs.iter().map(idle_run)).await } else { vec![] };
    let (runs, has_more) = (&page.runs, page.next_cursor.is_some());
    let nothing = "no such runs; start one: ostler run \"say hello\"\n";
    args.output.page(runs, has_more, nothing, || render(runs, &outcomes, args.times, now(), output::width()));
    Ok(exit_codes::OK)
}

/// The run, if the outcome of its last turn should be requested.
fn idle_run(run: &Run) -> Option<RunId> {
    is_idle(run).then_some(run.run_id)
}

/// The outcome of the last turn of each run. `None` for no run, or if the server returned no outcome.
pub(crate) async fn last_outcomes(
    client: &Client,
    runs: impl Iterator<Item = Option<RunId>>,
) -> Vec<Option<TerminalStatus>> {
    let end =
        |run: Option<RunId>| async move { client.run_result(&run?.to_string(), None).await.ok()?.terminal_status };
    stream::iter(runs.collect::<Vec<_>>()).map(end).buffered(CONCURRENT_RESULTS).collect().await
}

fn render(
    runs: &[Run],
    outcomes: &[Option<TerminalStatus>],
    times: Times,
    now: Timestamp,
    width: Option<usize>,
) -> String {
    let rows = runs.iter().enumerate().map(|(index, run)| {
        let end = outcomes.get(index).copied().flatten();
        vec![
            run.run_id.to_string(),
            end.map_or_else(|| run_status(run).to_owned(), |end| format!("{} ({})", run_status(run), end.as_str())),
            line(&run.backend_profile, 63),
            line(&run.session_id, 200),
            times.ago(run.created_at, now),
            times.ago(run.updated_at, now),
            run.last_seq.to_string(),
        ]
    });
    let headers = ["RUN", "STATUS", "PROFILE", "SESSION", "MADE", "CHANGED", "EVENTS"];
    table(&headers, rows.collect(), &[0, 3, 2, 1], width)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn run(change: impl FnOnce(&mut Value)) -> Run {
        let mut body = json!({"runId": format!("run_{:032x}", 1), "sessionId": "s1", "tenantId": "local",
            "projectId": "local/default", "workspaceRef": {"kind": "none"}, "providerId": "local",
            "backendProfile": "scripted", "traceSink": null, "status": "running", "terminal": null,
            "executionPolicy": {"sandbox": "read-only", "approval": "never", "timeoutMs": 1, "network": "disabled",
                "secretScope": {}},
            "cancelRequestedAt": null, "lastSeq": 12, "commandCount": 1, "unfinishedCommands": 1, "leaseEpoch": 1, "attemptId": null,
            "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:01:00Z"});
        change(&mut body);
        serde_json::from_str(&body.to_string()).unwrap()
    }

    #[test]
    fn the_table_shows_the_status_of_each_run() {
        let runs = [run(|_| ()), run(|body| body["cancelRequestedAt"] = "2030-01-01T00:00:30Z".into())];
        let (id, times) = (runs[0].run_id, Times::default());
        assert_eq!(
            render(&runs, &[None, None], times, "2030-01-01T00:02:03Z".parse().unwrap(), None),
            format!(
                "RUN                                   STATUS      PROFILE   SESSION  MADE    CHANGED  EVENTS\n\
                 {id}  running     scripted  s1       2m ago  1m ago   12\n\
                 {id}  cancelling  scripted  s1       2m ago  1m ago   12\n"
            )
        );
    }

    #[test]
    fn an_idle_run_shows_the_outcome_of_its_last_turn() {
        let idle = run(|body| {
            body["status"] = "pending".into();
            body["unfinishedCommands"] = 0.into();
        });
        let times = Times::default();
        let text =
            render(&[idle], &[Some(TerminalStatus::Failed)], times, "2030-01-01T00:02:03Z".parse().unwrap(), None);
        assert!(text.contains("  idle (failed)  "), "{text}");
    }

    #[test]
    fn a_run_without_unfinished_commands_is_idle() {
        let idle = run(|body| {
            body["status"] = "pending".into();
            body["unfinishedCommands"] = 0.into();
        });
        assert_eq!(run_status(&idle), "idle");
        assert_eq!(run_status(&run(|body| body["status"] = "pending".into())), "pending");
    }
}
