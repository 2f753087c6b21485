//! `ostler runs`: lists runs with the state of their latest turn, and labels them.

use std::collections::BTreeMap;

use clap::Subcommand;
use futures_util::{StreamExt, stream};
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    ids::{RunId, SessionId},
    kernel::{
        liveness::Phase,
        run_views::RunView,
        runs::{ListRuns, RunSort, RunState, UpdateRun},
        usage::RunUsage,
    },
};

use crate::{
    candidates,
    commands::labels,
    connection::Connection,
    errors, exit_codes,
    targets::Within,
    terminal::{
        amounts,
        list_output::ListOutput,
        output::{self, Output, line},
        paint::Paint,
        status::words_with_phase,
        table::{Column, table_of_states},
        times::{Since, Times, now, parse_since},
    },
};

/// How many results are requested for a list, and how many of them concurrently. Each one is a request of its own.
const RESULTS_MAX: usize = 20;
const CONCURRENT_RESULTS: usize = 8;

/// The phases of active turns.
type Phases = BTreeMap<RunId, Phase>;

/// List and label runs
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler runs list --status failed\n  ostler runs label run_01a1 verdict=good")]
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
    #[command(flatten)]
    labels: labels::LabelChanges,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

async fn label(connection: &Connection, args: &LabelRunArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let run_id = finder.run(&args.run).await?;
    let update = UpdateRun { labels: Some(args.labels.patch()) };
    let run = finder.client.update_run(&run_id, &update).await?;
    args.output.one(&run, || labels::sentence(&run.run_id.to_string(), &run.labels));
    Ok(exit_codes::OK)
}

/// List runs, newest first
///
/// The state is that of the run's latest turn: waiting, running, completed, failed, blocked or cancelled. A run that completed
/// or failed can take another turn.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler runs list\n  ostler runs list --status failed -n 5\n  \
    ostler runs list --status failed,blocked --since 2026-11-01\n  \
    ostler runs list --session review -o jsonl | jq -r .runId")]
struct ListRunsArgs {
    /// Only runs in this state: waiting, running, completed, failed, blocked or cancelled; several between commas
    // `pending` and `claimed` are the run's own status. Former versions had no other filter.
    #[arg(long, aliases = ["state", "outcome"], value_name = "STATE", hide_possible_values = true, value_delimiter = ',',
        value_parser = ["waiting", "running", "completed", "failed", "blocked", "cancelled", "pending", "claimed"])]
    status: Vec<String>,
    #[arg(long, value_name = "ID", help = "Only runs of this session")]
    session: Option<String>,
    #[arg(long, help = "Only runs of this tenant")]
    tenant: Option<String>,
    #[arg(long, help = "Only runs of this project")]
    project: Option<String>,
    #[arg(long, help = "Only runs of this backend profile", add = candidates::profiles())]
    profile: Option<String>,
    /// Only runs that were created since: a date or time in UTC (2026-11-01, 2026-11-01T08:00:00Z), or how long ago (90s, 15m, 12h, 30d)
    #[arg(long, value_name = "TIME|AGE", value_parser = parse_since)]
    since: Option<Since>,
    /// Only runs with this label; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = labels::parse)]
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
    output: ListOutput,
}

pub(crate) async fn runs(connection: &Connection, args: &RunsArgs) -> Result<u8, Failure> {
    match &args.verb {
        RunsVerb::List(args) => list(connection, args).await,
        RunsVerb::Label(args) => label(connection, args).await,
    }
}

impl ListRunsArgs {
    fn has_filters(&self) -> bool {
        let texts = [&self.session, &self.tenant, &self.project, &self.profile];
        !self.status.is_empty()
            || !self.label.is_empty()
            || self.since.is_some()
            || texts.into_iter().any(Option::is_some)
    }
}

async fn list(connection: &Connection, args: &ListRunsArgs) -> Result<u8, Failure> {
    let (state, status) = filters(&args.status)?;
    let query = ListRuns {
        state,
        status,
        session_id: args.session.clone(),
        tenant_id: args.tenant.clone(),
        project_id: args.project.clone(),
        backend_profile: args.profile.clone(),
        created_after: args.since.map(|since| since.time(now())),
        label: labels::filter(&args.label),
        sort: args.sort.clone(),
        limit: Some(args.limit),
        ..ListRuns::default()
    };
    let client = connection.client()?;
    let page = client.list_runs(&query).await?;
    let (runs, has_more) = (&page.runs, page.next_cursor.is_some());
    let nothing = match args.has_filters() {
        true => "no run matches these filters\n",
        false => "no runs yet; start one: ostler run \"say hello\"\n",
    };
    let sort = args.sort.as_deref();
    let phases = if args.output.is_table() { phases(&client, runs).await } else { Phases::new() };
    let table = || render(runs, &phases, sort, args.times, now(), output::width(), Paint::stdout());
    args.output.page(runs, has_more, nothing, table);
    Ok(exit_codes::OK)
}

/// What runs that have an active turn do now, which a list does not contain. Only the first [`RESULTS_MAX`] of them are looked
/// up; the others, and those whose result cannot be read, have their plain state.
async fn phases(client: &Client, runs: &[RunView]) -> Phases {
    let fetch = |run: RunId| async move { (run, client.run_result(&run.to_string(), None).await) };
    let fetched: Vec<_> = stream::iter(looked_up(runs)).map(fetch).buffered(CONCURRENT_RESULTS).collect().await;
    let (mut phases, mut failures) = (Phases::new(), vec![]);
    for (run, result) in fetched {
        match result {
            Ok(result) => phases.extend(result.liveness.active.then_some((run, result.liveness.phase))),
            Err(failure) => failures.push(failure),
        }
    }
    if let Some(failure) = failures.first() {
        let runs = output::count(failures.len() as i64, "run");
        output::message(&format!("the activity of {runs} could not be read: {}\n", line(&failure.message, 300)));
    }
    phases
}

/// The runs whose activity is looked up.
fn looked_up(runs: &[RunView]) -> Vec<RunId> {
    let running = runs.iter().filter(|run| run.standing.state == RunState::Running);
    running.map(|run| run.run.run_id).take(RESULTS_MAX).collect()
}

/// The filters by state, and by the run's own status, of which there can be only one.
fn filters(words: &[String]) -> Result<(Option<String>, Option<String>), Failure> {
    let (states, own): (Vec<&str>, Vec<_>) =
        words.iter().map(String::as_str).partition(|word| RunState::parse(word).is_some());
    match (states.as_slice(), own.as_slice()) {
        ([], []) => Ok((None, None)),
        (_, []) => Ok((Some(states.join(",")), None)),
        ([], [only]) => Ok((None, Some((*only).to_owned()))),
        (_, [own, ..]) => {
            let message = format!("--status {own} cannot be combined with another one");
            Err(errors::usage(message, "use waiting, running, completed, failed, blocked and cancelled"))
        }
    }
}

/// A longer name of a session is shortened to this before other columns are left out.
const SESSION_CHARS_LEAST: usize = 16;

const COLUMNS: [Column; 10] = [
    Column::whole("RUN"),
    Column::whole("STATE"),
    Column::spare(7, "COST"),
    Column::spare(3, "TOKENS"),
    Column::spare(4, "TIME"),
    Column::spare(5, "PROFILE"),
    Column::long_text(3, SESSION_CHARS_LEAST, 8, "SESSION"),
    Column::spare(2, "MADE"),
    Column::spare(6, "CHANGED"),
    Column::spare(1, "EVENTS"),
];

/// How long the turns of a run took. Only turns that have ended are counted, so there is no time before the first one ends.
fn time_of_turns(usage: &RunUsage) -> String {
    if usage.turns == 0 { "-".to_owned() } else { amounts::duration(usage.active_ms) }
}

/// The name that was given to a session. A generated id adds nothing to the run's own.
fn session_name(session_id: &str) -> String {
    if session_id.parse::<SessionId>().is_ok() { "-".to_owned() } else { line(session_id, 200) }
}

/// The column that shows the order of the list. It is never left out.
fn sorted_column(sort: Option<&str>) -> Option<&'static str> {
    match sort.map(RunSort::parse)?? {
        RunSort::Created => Some("MADE"),
        RunSort::Cost => Some("COST"),
        RunSort::Tokens => Some("TOKENS"),
        RunSort::Duration => Some("TIME"),
    }
}

fn render(
    runs: &[RunView],
    phases: &Phases,
    sort: Option<&str>,
    times: Times,
    now: Timestamp,
    width: Option<usize>,
    paint: Paint,
) -> String {
    let has_retries = runs.iter().any(|view| view.run.retry_of.is_some());
    let rows = runs.iter().map(|view| {
        let run = &view.run;
        let retry = run.retry_of.map_or_else(|| "-".to_owned(), |repeated| repeated.to_string());
        let cells = [
            run.run_id.to_string(),
            words_with_phase(view, phases.get(&run.run_id).copied()),
            amounts::cost(run.usage.cost_usd()),
            amounts::count(run.usage.tokens),
            time_of_turns(&run.usage),
            line(&run.backend_profile, 63),
            session_name(&run.session_id),
            times.ago(run.created_at, now),
            times.ago(run.updated_at, now),
            run.last_seq.to_string(),
        ];
        cells.into_iter().chain(has_retries.then_some(retry)).collect()
    });
    let states: Vec<_> = runs.iter().map(|view| Some(view.standing.state)).collect();
    let keep_sorted =
        |column: Column| if sorted_column(sort) == Some(column.header()) { column.never_left_out() } else { column };
    let columns = COLUMNS.into_iter().map(keep_sorted).chain(has_retries.then_some(Column::spare(4, "RETRY OF")));
    table_of_states(&columns.collect::<Vec<_>>(), rows.collect(), &states, width, paint)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn run(change: impl FnOnce(&mut Value)) -> RunView {
        let mut body = json!({"runId": format!("run_{:032x}", 1), "sessionId": "s1", "tenantId": "local",
            "projectId": "local/default", "workspaceRef": {"kind": "none"}, "providerId": "local",
            "backendProfile": "scripted", "traceSink": null, "status": "running", "terminal": null, "state": "running", "openPermissions": 0, "retryOf": null,
            "executionPolicy": {"sandbox": "read-only", "approval": "never", "timeoutMs": 1, "network": "disabled",
                "secretScope": {}},
            "cancelRequestedAt": null, "lastSeq": 12, "commandCount": 1, "unfinishedCommands": 1, "leaseEpoch": 1, "attemptId": null,
            "usage": {"tokens": 1_234, "costUsd": 0.125, "turns": 1, "activeMs": 90_000},
            "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:01:00Z"});
        change(&mut body);
        serde_json::from_str(&body.to_string()).unwrap()
    }

    #[test]
    fn the_table_shows_the_state_of_each_run() {
        let runs = [
            run(|_| ()),
            run(|body| body["cancelRequestedAt"] = "2030-01-01T00:00:30Z".into()),
            run(|body| {
                body["status"] = "claimed".into();
                body["state"] = "failed".into();
            }),
        ];
        let (id, times) = (runs[0].run.run_id, Times::default());
        assert_eq!(
            render(&runs, &Phases::new(), None, times, "2030-01-01T00:02:03Z".parse().unwrap(), None, Paint::PLAIN),
            format!(
                "RUN                                   STATE                COST     TOKENS  TIME   PROFILE   SESSION  MADE    CHANGED  EVENTS\n\
                 {id}  running              $0.1250  1.2k    1m30s  scripted  s1       2m ago  1m ago   12\n\
                 {id}  running, cancelling  $0.1250  1.2k    1m30s  scripted  s1       2m ago  1m ago   12\n\
                 {id}  failed               $0.1250  1.2k    1m30s  scripted  s1       2m ago  1m ago   12\n"
            )
        );
    }

    #[test]
    fn a_running_turn_has_the_words_of_ps() {
        let runs = [run(|_| ())];
        let phases = Phases::from([(runs[0].run.run_id, Phase::WaitingProvider)]);
        let now = "2030-01-01T00:02:03Z".parse().unwrap();
        let text = render(&runs, &phases, None, Times::default(), now, Some(80), Paint::PLAIN);
        assert!(text.contains("  running, provider busy  "), "{text}");
    }

    #[test]
    fn a_run_has_no_time_before_its_first_turn_has_ended() {
        let time = |turns: i64, active_ms: i64| time_of_turns(&RunUsage { turns, active_ms, ..RunUsage::default() });
        assert_eq!([time(0, 0), time(1, 0), time(2, 90_000)], ["-", "0s", "1m30s"]);
    }

    #[test]
    fn a_long_list_looks_up_a_few_running_turns_only() {
        let ended = run(|body| body["state"] = "completed".into());
        let numbered = |number: usize| run(|body| body["runId"] = format!("run_{number:032x}").into());
        let runs: Vec<_> = std::iter::once(ended).chain((2..100).map(numbered)).collect();
        let expected: Vec<_> = runs[1..=RESULTS_MAX].iter().map(|run| run.run.run_id).collect();
        assert_eq!(looked_up(&runs), expected);
    }

    #[test]
    fn the_sorted_column_is_always_shown() {
        let runs = [run(|body| body["openPermissions"] = 1.into())];
        for sort in RunSort::ALL.map(RunSort::as_str) {
            let header = sorted_column(Some(sort)).unwrap();
            for width in 60..120 {
                let now = "2030-01-01T00:02:03Z".parse().unwrap();
                let times = Times::default();
                let text = render(&runs, &Phases::new(), Some(sort), times, now, Some(width), Paint::PLAIN);
                assert!(text.lines().next().unwrap().contains(header), "{width}: {text}");
            }
        }
    }

    #[test]
    fn a_long_name_of_a_session_hides_no_other_column() {
        let runs = [run(|body| body["sessionId"] = "the-review-of-everything-that-we-did-in-may".into())];
        let now = "2030-01-01T00:02:03Z".parse().unwrap();
        assert_eq!(
            render(&runs, &Phases::new(), None, Times::default(), now, Some(80), Paint::PLAIN),
            "RUN               STATE    COST     TIME   PROFILE   SESSION             CHANGED\n\
             run_000000000000  running  $0.1250  1m30s  scripted  the-review-of-eve…  1m ago\n"
        );
    }

    #[test]
    fn a_waiting_run_shows_what_it_waits_for() {
        let waiting = |change: fn(&mut Value)| {
            crate::terminal::status::run_words(&run(|body| {
                body["status"] = "pending".into();
                body["state"] = "waiting".into();
                change(body);
            }))
        };
        assert_eq!(waiting(|_| ()), "waiting for a runner");
        assert_eq!(waiting(|body| body["openPermissions"] = 1.into()), "waiting for permission");
        assert_eq!(waiting(|body| body["commandCount"] = 0.into()), "waiting for a command");
    }
}
