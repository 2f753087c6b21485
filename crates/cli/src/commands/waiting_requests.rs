//! The permission requests of all runs that wait for an answer, for `ostler approve`, `ostler deny` and `ostler inbox`.

use futures_util::{StreamExt, stream};
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    kernel::{
        permissions::{PermissionRequest, PermissionStatus},
        run_views::RunView,
        runs::{ListRuns, RunState},
    },
    limits::PAGE_ITEMS_MAX,
};
use serde::Serialize;

use crate::{
    commands::list::all_pages,
    terminal::{
        output::line,
        paint::Paint,
        permissions::command_text,
        table::{Column, state_rows},
        times::Times,
    },
};

/// How many runs are asked for their requests concurrently.
const CONCURRENT_RUNS: usize = 8;

/// A permission request, and the session that it belongs to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaitingRequest {
    pub session_id: String,
    pub tenant_id: String,
    #[serde(flatten)]
    pub request: PermissionRequest,
}

/// Every request that waits, the oldest first.
pub(crate) async fn open_requests(client: &Client, tenant_id: Option<String>) -> Result<Vec<WaitingRequest>, Failure> {
    let runs = all_pages(async |cursor| {
        let state = Some(RunState::Waiting.as_str().to_owned());
        let (tenant_id, limit) = (tenant_id.clone(), Some(PAGE_ITEMS_MAX));
        let page = client.list_runs(&ListRuns { state, tenant_id, limit, cursor, ..ListRuns::default() }).await?;
        Ok((page.runs, page.next_cursor))
    });
    let asking = runs.await?.into_iter().filter(|run| run.standing.open_permissions > 0);
    let requests = |run: RunView| async move {
        let all = client.list_permissions(&run.run.run_id.to_string()).await?.permissions;
        let open = all.into_iter().filter(|request| request.status == PermissionStatus::Pending);
        let (session_id, tenant_id) = (run.run.session_id, run.run.tenant_id);
        let one = |request| WaitingRequest { session_id: session_id.clone(), tenant_id: tenant_id.clone(), request };
        Ok::<_, Failure>(open.map(one).collect::<Vec<_>>())
    };
    let found: Vec<_> = stream::iter(asking).map(requests).buffered(CONCURRENT_RUNS).collect().await;
    let mut all = vec![];
    for requests in found {
        all.extend(requests?);
    }
    all.sort_by_key(|waiting: &WaitingRequest| waiting.request.created_at);
    Ok(all)
}

/// On a terminal each command is shown whole below its question, because it is what a person decides about.
pub(crate) fn render(waiting: &[WaitingRequest], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let command = |request: &PermissionRequest| request.command.clone().unwrap_or_else(|| "-".to_owned());
    let rows = waiting.iter().map(|WaitingRequest { session_id, request, .. }| {
        let mut row = vec![
            request.run_id.to_string(),
            if session_id.starts_with("ses_") { "-".to_owned() } else { line(session_id, 200) },
            times.ago(request.created_at, now),
            line(&request.title, 400),
        ];
        row.extend(width.is_none().then(|| line(&command(request), 400)));
        row
    });
    let columns =
        [Column::whole("RUN"), Column::text(2, "SESSION"), Column::spare(1, "ASKED"), Column::text(4, "QUESTION")];
    let columns = columns.into_iter().chain(width.is_none().then_some(Column::whole("COMMAND")));
    let rows = state_rows(&columns.collect::<Vec<_>>(), rows.collect(), &[], width, Paint::stdout());
    let commands: Vec<_> = waiting.iter().map(|waiting| waiting.request.command.as_deref()).collect();
    with_commands(rows, &commands, width)
}

/// A table, on a terminal with the whole command of each row below it. Elsewhere the command is a column of the row.
pub(crate) fn with_commands(rows: Vec<String>, commands: &[Option<&str>], width: Option<usize>) -> String {
    let header = std::iter::once(None);
    let commands = header.chain(commands.iter().map(|command| command.filter(|_| width.is_some())));
    let lines = rows.into_iter().zip(commands);
    lines
        .map(|(row, command)| row + &command.map_or_else(String::new, |command| command_text(command, width)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_shows_each_command_whole_below_its_row() {
        let rows = || vec!["RUN\n".to_owned(), "run_1\n".to_owned(), "run_2\n".to_owned()];
        let command = "rsync -a --delete build/ /srv/www/";
        let commands = [Some(command), None];
        assert_eq!(with_commands(rows(), &commands, None), "RUN\nrun_1\nrun_2\n");
        let wide = format!("RUN\nrun_1\n  command: {command}\nrun_2\n");
        assert_eq!(with_commands(rows(), &commands, Some(80)), wide);
        let narrow = "RUN\nrun_1\n  command: rsync -a --delete \n             build/ /srv/www/\nrun_2\n";
        assert_eq!(with_commands(rows(), &commands, Some(30)), narrow);
    }
}
