//! `ostler runs`: lists and labels runs. A run returns to `pending` when a turn has ended; the run itself ends when it
//! is cancelled, fails or is completed on request.

use clap::Subcommand;
use futures_util::{StreamExt, stream};
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    ids::RunId,
    kernel::runs::{ListRuns, Run, TerminalStatus, UpdateRun},
};

use crate::{
    candidates,
    commands::labels,
    connection::Connection,
    exit_codes,
    targets::Within,
    terminal::status::{is_idle, run_status},
    terminal::{
        amounts,
        output::{self, Output, line},
        table::table,
        times::{Times, now, parse_ms},
    },
};

/// How many results are requested concurrently.
const CONCURRENT_RESULTS: usize = 8;

/// List and label runs
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler runs list --status running\n  ostler runs label run_01a1 verdict=good")]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    verb: RunsVerb,
}

#[derive(Subcommand, Debug)]
enum RunsVerb {
    List(ListRunsArgs),
    Label(LabelRunArgs),
}

impl RunsArgs {
    pub(crate) fn needs_labels(&self) -> bool {
        match &self.verb {
            RunsVerb::List(args) => !args.label.is_empty() || args.since.is_some() || args.sort.is_some(),
            RunsVerb::Label(_) => true,
        }
    }
}

/// Set or remove labels of a run, also of one that has ended
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler runs label run_01a1 team=search verdict=good\n  ostler runs label run_01a1 verdict-"
)]
struct LabelRunArgs {
    #[arg(value_name = "RUN", add = candidates::targets(), help = "Its id, or the beginning of it")]
    run: String,
    /// KEY=VALUE sets a label, KEY- removes it
    #[arg(required = true, value_name = "KEY=VALUE|KEY-", value_parser = labels::parse_change)]
    changes: Vec<(String, Option<String>)>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

async fn label(connection: &Connection, args: &LabelRunArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let run_id = finder.run(&args.run).await?;
    let update = UpdateRun { labels: Some(labels::patch(&args.changes)) };
    let run = finder.client.update_run(&run_id, &update).await?;
    args.output.one(&run, || labels::sentence(&run.run_id.to_string(), &run.labels));
    Ok(exit_codes::OK)
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
    /// Only runs that were created this long ago at most: 90s, 15m, 12h, 30d
    #[arg(long, value_name = "AGE", value_parser = parse_ms)]
    since: Option<i64>,
    /// Only runs with this label; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = labels::parse)]
    label: Vec<(String, String)>,
    /// The order: created, cost, tokens or duration, the newest or largest first
    #[arg(long, value_name = "ORDER", value_parser = ["created", "cost", "tokens", "duration"], hide_possible_values = true)]
    sort: Option<String>,
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn runs(connection: &Connection, args: &RunsArgs) -> Result<u8, Failure> {
    match &args.verb {
        RunsVerb::List(args) => list(connection, args).await,
        RunsVerb::Label(args) => label(connection, args).await,
    }
}

async fn list(connection: &Connection, args: &ListRunsArgs) -> Result<u8, Failure> {
    let since = args.since.map(|ms| Timestamp::from_millisecond(now().as_millisecond() - ms));
    let query = ListRuns {
        status: args.status.clone(),
        session_id: args.session.clone(),
        tenant_id: args.tenant.clone(),
        project_id: args.project.clone(),
        backend_profile: args.profile.clone(),
        created_after: since.transpose().map_err(Failure::internal)?,
        label: labels::filter(&args.label),
        sort: args.sort.clone(),
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
            amounts::cost(run.usage.cost_usd()),
            amounts::count(run.usage.tokens),
            amounts::duration(run.usage.active_ms),
            line(&run.backend_profile, 63),
            line(&run.session_id, 200),
            times.ago(run.created_at, now),
            times.ago(run.updated_at, now),
            run.last_seq.to_string(),
        ]
    });
    let headers = ["RUN", "STATUS", "COST", "TOKENS", "TIME", "PROFILE", "SESSION", "MADE", "CHANGED", "EVENTS"];
    table(&headers, rows.collect(), &[0, 6, 5, 1], width)
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
            "usage": {"tokens": 1_234, "costUsd": 0.125, "turns": 1, "activeMs": 90_000},
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
                "RUN                                   STATUS      COST     TOKENS  TIME   PROFILE   SESSION  MADE    CHANGED  EVENTS\n\
                 {id}  running     $0.1250  1.2k    1m30s  scripted  s1       2m ago  1m ago   12\n\
                 {id}  cancelling  $0.1250  1.2k    1m30s  scripted  s1       2m ago  1m ago   12\n"
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
