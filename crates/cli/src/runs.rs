//! `ostler runs`: runs beyond what `ps` shows. A run goes back to `pending` when a turn is over; it ends by being
//! cancelled, by failing, or by being told to.

use clap::Subcommand;
use futures_util::{StreamExt, stream};
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    ids::RunId,
    kernel::runs::{ListRuns, Run, RunStatus, TerminalStatus},
};

use crate::{
    completions,
    connect::Connection,
    exit_codes,
    output::{self, Output, line},
    table::table,
    times::{Times, now},
};

/// How many runs are asked after at the same time.
const ENDS_AT_ONCE: usize = 8;

/// List runs
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler runs list --status running")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    List(ListArgs),
}

/// List runs, newest first
///
/// The end of a turn does not end its run: it goes idle, ready for another turn, and how the last one ended stands beside.
/// A run is failed itself only when nothing can go on in it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler runs list\n  ostler runs list --status running -n 5\n  \
    ostler runs list --session review -o jsonl | jq -r .runId")]
struct ListArgs {
    /// Only runs with this status; an idle run is pending
    #[arg(long, value_parser = ["pending", "claimed", "running", "completed", "failed", "blocked", "cancelled"])]
    status: Option<String>,
    #[arg(long, value_name = "ID", help = "Only runs of this session")]
    session: Option<String>,
    #[arg(long, help = "Only runs of this tenant")]
    tenant: Option<String>,
    #[arg(long, help = "Only runs of this project")]
    project: Option<String>,
    #[arg(long, help = "Only runs of this backend profile", add = completions::profiles())]
    profile: Option<String>,
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

pub async fn runs(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let Verb::List(args) = &args.verb;
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
    let ends = if args.output.is_text() { ends(&client, page.runs.iter().map(ended_run)).await } else { vec![] };
    let (runs, has_more) = (&page.runs, page.next_cursor.is_some());
    let nothing = "no such runs; start one: ostler run \"say hello\"\n";
    args.output.page(runs, has_more, nothing, || render(runs, &ends, args.times, now(), output::width()));
    Ok(exit_codes::OK)
}

/// The run whose last turn is worth asking after.
fn ended_run(run: &Run) -> Option<RunId> {
    is_idle(run).then_some(run.run_id)
}

/// How the last turn of each run ended, where one is named and has ended. A server that does not say leaves it open.
pub async fn ends(client: &Client, runs: impl Iterator<Item = Option<RunId>>) -> Vec<Option<TerminalStatus>> {
    let end =
        |run: Option<RunId>| async move { client.run_result(&run?.to_string(), None).await.ok()?.terminal_status };
    stream::iter(runs.collect::<Vec<_>>()).map(end).buffered(ENDS_AT_ONCE).collect().await
}

fn render(runs: &[Run], ends: &[Option<TerminalStatus>], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = runs.iter().enumerate().map(|(index, run)| {
        let end = ends.get(index).copied().flatten();
        vec![
            run.run_id.to_string(),
            end.map_or_else(|| status(run).to_owned(), |end| format!("{} ({})", status(run), end.as_str())),
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

/// Everything asked of it has ended and nobody holds it: it costs nothing and waits for another command.
fn is_idle(run: &Run) -> bool {
    run.status == RunStatus::Pending && run.command_count > 0 && run.unfinished_commands == 0
}

pub fn status(run: &Run) -> &'static str {
    if run.cancel_requested_at.is_some() && !run.status.is_terminal() {
        "cancelling"
    } else if is_idle(run) {
        "idle"
    } else {
        RunStatus::as_str(run.status)
    }
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
    fn the_table_shows_where_each_run_stands() {
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
    fn an_idle_run_shows_how_its_last_turn_ended() {
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
    fn a_run_with_nothing_left_to_do_is_idle() {
        let idle = run(|body| {
            body["status"] = "pending".into();
            body["unfinishedCommands"] = 0.into();
        });
        assert_eq!(status(&idle), "idle");
        assert_eq!(status(&run(|body| body["status"] = "pending".into())), "pending");
    }
}
