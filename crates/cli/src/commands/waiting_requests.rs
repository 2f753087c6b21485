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
        table::{Column, table},
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

pub(crate) fn render(waiting: &[WaitingRequest], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = waiting.iter().map(|WaitingRequest { session_id, request, .. }| {
        vec![
            request.run_id.to_string(),
            if session_id.starts_with("ses_") { "-".to_owned() } else { line(session_id, 200) },
            times.ago(request.created_at, now),
            line(&request.title, 400),
            line(request.command.as_deref().unwrap_or("-"), 400),
        ]
    });
    let columns = [
        Column::whole("RUN"),
        Column::text(2, "SESSION"),
        Column::spare(1, "ASKED"),
        Column::text(4, "QUESTION"),
        Column::text(3, "COMMAND"),
    ];
    table(&columns, rows.collect(), width)
}
