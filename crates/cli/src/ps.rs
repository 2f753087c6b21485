//! `ostler ps`: the runs, newest first. Without flags it shows what may still need somebody, and what ended lately.

use ostler_protocol::{
    Failure, Timestamp,
    limits::PAGE_ITEMS_MAX,
    runs::{ListRuns, Run, RunStatus},
};

use crate::{
    connect::Connection,
    exit_codes,
    output::{self, ListFormat, line},
};

/// How long an ended run stays in the default list.
const LATELY_MS: i64 = 3_600_000;
/// How many runs are looked through for those that belong in the list.
const RUNS_EXAMINED_MAX: usize = 5_000;

/// List runs, newest first
///
/// By default: the runs that have not ended, and those that ended in the last hour. A run goes back to `pending` when a
/// turn is over; it ends by being cancelled, by failing, or by being told to.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler ps\n  ostler ps --status failed --limit 5\n  \
    ostler ps --all -o jsonl | jq -r .runId")]
pub struct Args {
    /// Every run, however long ago it ended
    #[arg(short, long)]
    all: bool,
    /// Only runs with this status, however long ago they ended
    #[arg(long, value_parser = ["pending", "claimed", "running", "completed", "failed", "blocked", "cancelled"])]
    status: Option<String>,
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// `jsonl` prints one run per line
    #[arg(short, long, value_enum, default_value = "text")]
    output: ListFormat,
}

pub async fn ps(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let now = output::now();
    let (runs, has_more) = fetch(connection, args, now).await?;
    match args.output {
        ListFormat::Json => output::data(&output::json(&runs)),
        ListFormat::Jsonl => runs.iter().for_each(|run| output::data(&output::json_line(run))),
        ListFormat::Text if runs.is_empty() => {}
        ListFormat::Text => output::data(&table(&runs, now, output::width())),
    }
    if runs.is_empty() {
        output::words(nothing(args));
    } else if has_more {
        output::words(&format!("there are more than these {}; see `--limit`\n", runs.len()));
    }
    Ok(exit_codes::OK)
}

/// Reads pages until the list is full. The flag says whether more would have fitted the question.
async fn fetch(connection: &Connection, args: &Args, now: Timestamp) -> Result<(Vec<Run>, bool), Failure> {
    let client = connection.client()?;
    let wanted = args.limit as usize;
    let shows_any = args.all || args.status.is_some();
    // One more than wanted tells whether there are more.
    let page_size = if shows_any { (args.limit + 1).min(PAGE_ITEMS_MAX) } else { PAGE_ITEMS_MAX };
    let mut query = ListRuns { status: args.status.clone(), limit: Some(page_size), ..ListRuns::default() };
    let (mut runs, mut examined) = (vec![], 0);
    loop {
        let page = client.list_runs(&query).await?;
        examined += page.runs.len();
        runs.extend(page.runs.into_iter().filter(|run| shows_any || matters(run, now)));
        query.cursor = page.next_cursor;
        if runs.len() > wanted || query.cursor.is_none() || examined >= RUNS_EXAMINED_MAX {
            let has_more = runs.len() > wanted || query.cursor.is_some();
            runs.truncate(wanted);
            return Ok((runs, has_more));
        }
    }
}

fn matters(run: &Run, now: Timestamp) -> bool {
    !(run.status.is_terminal() || is_idle(run)) || now.as_millisecond() - run.updated_at.as_millisecond() < LATELY_MS
}

fn nothing(args: &Args) -> &'static str {
    match (&args.status, args.all) {
        (Some(_), _) => "no runs with this status\n",
        (None, true) => "no runs yet; start one: ostler run \"say hello\"\n",
        (None, false) => "no runs that are unfinished or ended in the last hour; `--all` shows older ones\n",
    }
}

pub fn table(runs: &[Run], now: Timestamp, width: Option<usize>) -> String {
    let rows = runs.iter().map(|run| {
        vec![
            run.run_id.to_string(),
            status(run).to_owned(),
            line(&run.backend_profile, 63),
            line(&run.project_id, 200),
            output::age(run.created_at, now),
            format!("#{} {} ago", run.last_seq, output::age(run.updated_at, now)),
        ]
    });
    output::table(&["RUN", "STATUS", "PROFILE", "PROJECT", "AGE", "LAST EVENT"], rows.collect(), &[3, 2], width)
}

/// Everything asked of it has ended and nobody holds it: it costs nothing and waits for another command.
fn is_idle(run: &Run) -> bool {
    run.status == RunStatus::Pending && run.command_count > 0 && run.unfinished_commands == 0
}

fn status(run: &Run) -> &'static str {
    if run.cancel_requested_at.is_some() && !run.status.is_terminal() {
        "cancelling"
    } else if is_idle(run) {
        "idle"
    } else {
        RunStatus::as_str(run.status)
    }
}

#[cfg(test)]
pub mod fixtures {
    use serde_json::{Value, json};

    use super::*;

    pub fn run(change: impl FnOnce(&mut Value)) -> Run {
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
}

#[cfg(test)]
mod tests {
    use super::{fixtures::run, *};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_table_shows_where_each_run_stands() {
        let runs = [run(|_| ()), run(|body| body["cancelRequestedAt"] = "2030-01-01T00:00:30Z".into())];
        let id = runs[0].run_id;
        assert_eq!(
            table(&runs, at("2030-01-01T00:02:03Z"), None),
            format!(
                "RUN                                   STATUS      PROFILE   PROJECT        AGE  LAST EVENT\n\
                 {id}  running     scripted  local/default  2m   #12 1m ago\n\
                 {id}  cancelling  scripted  local/default  2m   #12 1m ago\n"
            )
        );
    }

    #[test]
    fn ids_are_never_cut() {
        let text = table(&[run(|_| ())], at("2030-01-01T00:02:03Z"), Some(40));
        assert!(text.contains(&run(|_| ()).run_id.to_string()), "{text}");
        assert!(text.contains("local/d…"), "{text}");
    }

    #[test]
    fn what_ended_long_ago_is_left_out() {
        let ended = |body: &mut serde_json::Value| body["status"] = "failed".into();
        assert!(matters(&run(ended), at("2030-01-01T01:00:59Z")));
        assert!(!matters(&run(ended), at("2030-01-01T01:01:00Z")));
        assert!(matters(&run(|_| ()), at("2031-01-01T00:00:00Z")));
    }

    #[test]
    fn a_run_with_nothing_left_to_do_is_idle() {
        let idle = run(|body| {
            body["status"] = "pending".into();
            body["unfinishedCommands"] = 0.into();
        });
        assert_eq!(status(&idle), "idle");
        assert!(!matters(&idle, at("2030-01-01T01:01:00Z")));
        assert_eq!(status(&run(|body| body["status"] = "pending".into())), "pending");
    }
}
