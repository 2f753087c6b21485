//! `ostler inbox`: everything that waits for a person, over all runs: permission requests, unread outcomes, and automations that the
//! server has paused. With `-w` it refreshes: in place on a terminal, with a line per new item elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, Timestamp,
    ids::{PermissionId, RunId},
    kernel::{
        runs::RunState,
        sessions::{ListSessions, SessionView},
    },
    limits::PAGE_ITEMS_MAX,
    run_input::automations::{Automation, AutomationStatus, DisabledReason, ListAutomationStarts, ListAutomations},
};
use serde::Serialize;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use crate::{
    commands::{
        list::all_pages,
        outcome_text::{OUTCOME_CHARS_MAX, OutcomeText, outcome_text},
        read::ReaderArgs,
        session_table::{is_active, with_liveness},
        waiting_requests::{WaitingRequest, open_requests, with_commands},
    },
    connection::Connection,
    exit_codes,
    follow::{REFRESHED_LATER, lost_line, regained_line},
    terminal::{
        output::{self, Format, Output, line},
        paint::Paint,
        repaint::Repaint,
        table::{Column, state_rows},
        times::{Times, now},
    },
};

const REFRESH: Duration = Duration::from_secs(2);
/// Lines of the terminal that are not rows of the table: its header, the lines below it, and the cursor's.
const LINES_FREE: usize = 4;

/// How many results are requested concurrently.
const CONCURRENT_RESULTS: usize = 8;
/// Characters of a question or an outcome in a table that is not fitted to a terminal: one long text would widen every row.
const WHAT_CHARS_MAX: usize = 100;
/// Characters of a session's title behind an outcome.
const TITLE_CHARS_MAX: usize = 80;

/// What the last turn of a run ended with, by run and version of its session: it changes only when the version rises.
type OutcomeTexts = BTreeMap<(RunId, i64), Option<OutcomeText>>;

/// List everything that waits for you: permission requests, unread outcomes and paused automations
///
/// `ostler approve` answers the requests, `ostler read` removes an outcome from the list, and `ostler automations resume` or `pause`
/// an automation.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler inbox\n  ostler inbox -w\n  ostler inbox -o jsonl | jq -r .sessionId")]
pub(crate) struct InboxListArgs {
    /// Refresh every two seconds
    #[arg(short, long)]
    watch: bool,
    #[arg(long, help = "Only runs of this tenant")]
    tenant: Option<String>,
    #[command(flatten)]
    reader: ReaderArgs,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

/// Something that waits for a person.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InboxItem {
    kind: InboxKind,
    /// `None` for an automation that was never started.
    session_id: Option<String>,
    tenant_id: String,
    run_id: Option<RunId>,
    /// `None` if the server returned no outcome.
    state: Option<RunState>,
    /// The question of a request, or the title of a session.
    title: Option<String>,
    /// Why a turn did not complete, or the first line of its reply.
    outcome: Option<String>,
    /// The command with which the outcome ends, if the server has written it.
    #[serde(skip)]
    mending_command: Option<String>,
    /// What a request asks to run.
    command: Option<String>,
    permission_id: Option<PermissionId>,
    /// The automation that the server has paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    automation_id: Option<String>,
    since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum InboxKind {
    Permission,
    Outcome,
    /// An automation that the server has paused.
    Automation,
}

impl InboxItem {
    /// What the item is about: its session, or an automation without one.
    fn id(&self) -> &str {
        self.session_id.as_deref().or(self.automation_id.as_deref()).unwrap_or_default()
    }
}

impl From<WaitingRequest> for InboxItem {
    fn from(waiting: WaitingRequest) -> Self {
        let WaitingRequest { session_id, tenant_id, request } = waiting;
        Self {
            kind: InboxKind::Permission,
            session_id: Some(session_id),
            tenant_id,
            run_id: Some(request.run_id),
            state: Some(RunState::Waiting),
            title: Some(request.title),
            outcome: None,
            mending_command: None,
            command: request.command,
            permission_id: Some(request.permission_id),
            automation_id: None,
            since: request.created_at,
        }
    }
}

pub(crate) async fn inbox(connection: &Connection, args: &InboxListArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let mut outcomes = OutcomeTexts::new();
    let items = fetch(&client, args, &mut outcomes).await?;
    if args.watch {
        return watch(&client, args, outcomes, items, connection.is_verbose()).await;
    }
    args.output.many(&items, || render(&items, args.times, now(), output::width(), Paint::stdout()));
    if items.is_empty() {
        output::message("nothing waits for you\n");
    }
    Ok(exit_codes::OK)
}

/// Fetches the texts of outcomes that are not cached yet, and drops those that are no longer listed.
async fn refresh_texts(client: &Client, sessions: &[SessionView], cached: &mut OutcomeTexts) {
    let wanted = || sessions.iter().filter_map(outcome_key);
    cached.retain(|key, _| wanted().any(|wanted| wanted == *key));
    let new: Vec<_> = wanted().filter(|key| !cached.contains_key(key)).collect();
    let text = |run: RunId| async move { outcome_text(&client.run_result(&run.to_string(), None).await.ok()?) };
    let texts: Vec<_> =
        stream::iter(new.iter().map(|(run, _)| *run)).map(text).buffered(CONCURRENT_RESULTS).collect().await;
    cached.extend(new.into_iter().zip(texts));
}

fn outcome_key(session: &SessionView) -> Option<(RunId, i64)> {
    Some((session.last_run_id?, session.version))
}

/// Why the server has paused an automation. `None` if it has not.
fn pause_reason(automation: &Automation, last_message: Option<&str>) -> Option<String> {
    let reason = match automation.disabled_reason? {
        DisabledReason::Requested => return None,
        DisabledReason::UnknownZone => format!("paused: the time zone {} is not known", automation.timezone),
        DisabledReason::RepeatedFailure => {
            let failed = format!("paused after {}", output::count(automation.failures, "failed run"));
            last_message.map_or_else(|| failed.clone(), |message| format!("{failed}: {message}"))
        }
    };
    Some(line(&reason, OUTCOME_CHARS_MAX))
}

/// The caller's automations that the server has paused, with the reason. None if the server has no automations, or the caller may have
/// none.
async fn paused_automations(client: &Client) -> Result<Vec<InboxItem>, Failure> {
    let status = Some(AutomationStatus::Disabled.as_str().to_owned());
    let query = ListAutomations { status, limit: Some(PAGE_ITEMS_MAX), cursor: None };
    let listed = match client.list_automations(&query).await {
        Ok(page) => page.automations,
        Err(failure) if is_transient(&failure) => return Err(failure),
        Err(_) => vec![],
    };
    let item = |automation: Automation| async move {
        // Most were paused by their owners, and need no second request.
        pause_reason(&automation, None)?;
        let (id, last) = (automation.id.to_string(), ListAutomationStarts { limit: Some(1), cursor: None });
        let started = client.list_automation_starts(&id, &last).await.ok().and_then(|mut page| page.starts.pop());
        let message = started.as_ref().and_then(|start| start.message.as_deref());
        Some(InboxItem {
            kind: InboxKind::Automation,
            outcome: pause_reason(&automation, message),
            mending_command: None,
            session_id: started.map(|start| start.thread_id),
            tenant_id: automation.tenant_id,
            run_id: None,
            state: None,
            title: Some(automation.title),
            command: None,
            permission_id: None,
            automation_id: Some(id),
            since: automation.updated_at,
        })
    };
    let items: Vec<_> = stream::iter(listed).map(item).buffered(CONCURRENT_RESULTS).collect().await;
    Ok(items.into_iter().flatten().collect())
}

/// Permission requests, the oldest first, then paused automations and unread outcomes, the newest first.
async fn fetch(client: &Client, args: &InboxListArgs, texts: &mut OutcomeTexts) -> Result<Vec<InboxItem>, Failure> {
    let requests = open_requests(client, args.tenant.clone()).await?;
    let sessions = all_pages(async |cursor| {
        let (reader_id, tenant_id) = (args.reader.id(), args.tenant.clone());
        let query =
            ListSessions { reader_id, tenant_id, limit: Some(PAGE_ITEMS_MAX), cursor, ..ListSessions::default() };
        let page = client.list_sessions(&query).await?;
        Ok((page.sessions, page.next_cursor))
    });
    let sessions = sessions.await?.into_iter().filter(|session| session.unread).collect();
    let mut unread = with_liveness(client, args.reader.id(), sessions).await;
    unread.retain(|session| !is_active(session));
    refresh_texts(client, &unread, texts).await;
    let ended = unread.into_iter().map(|session| {
        let text = outcome_key(&session).and_then(|key| texts.get(&key)?.clone());
        let (outcome, mending_command) = text.map(|text| (text.text, text.mending_command)).unzip();
        InboxItem {
            kind: InboxKind::Outcome,
            run_id: session.last_run_id,
            state: session.state,
            outcome,
            mending_command: mending_command.flatten(),
            title: session.title,
            command: None,
            permission_id: None,
            automation_id: None,
            since: session.updated_at,
            session_id: Some(session.session_id),
            tenant_id: session.tenant_id,
        }
    });
    let mut ended: Vec<_> = ended.collect();
    // Automations are the caller's own, whatever tenant is asked for.
    if args.tenant.is_none() {
        ended.extend(paused_automations(client).await?);
    }
    ended.sort_by_key(|item| std::cmp::Reverse(item.since));
    Ok(requests.into_iter().map(InboxItem::from).chain(ended).collect())
}

/// On a terminal the command of a request is shown whole below its row, because it is what a person decides about. Elsewhere what
/// waits is shortened, so that one long text does not widen every row; `-o json` has all of it.
fn render(items: &[InboxItem], times: Times, now: Timestamp, width: Option<usize>, paint: Paint) -> String {
    let has_commands = width.is_none() && items.iter().any(|item| item.command.is_some());
    let rows = items.iter().map(|item| {
        let command = has_commands.then(|| text_or_dash(&item.command));
        let mut cells = row(item, times, now);
        if let Some(what) = cells.last_mut().filter(|_| width.is_none()) {
            *what = line(what, WHAT_CHARS_MAX);
        }
        cells.into_iter().chain(command).collect()
    });
    let columns = [
        Column::long_text(1, 12, 4, "SESSION"),
        Column::whole("STATE"),
        Column::spare(3, "SINCE"),
        Column::long_text(2, 14, 5, "WHAT"),
    ];
    let columns = columns.into_iter().chain(has_commands.then_some(Column::whole("COMMAND")));
    let states: Vec<_> = items.iter().map(|item| item.state).collect();
    let rows = state_rows(&columns.collect::<Vec<_>>(), rows.collect(), &states, width, paint);
    let commands: Vec<_> = items.iter().map(|item| item.command.as_deref()).collect();
    let text = with_commands(rows, &commands, width);
    // A command to copy is not cut: it has a line of its own below the table.
    let mending = items.iter().filter_map(|item| item.mending_command.as_deref());
    let cut: BTreeSet<_> = mending.filter(|command| !text.contains(command)).collect();
    let below: String = cut.iter().filter(|_| width.is_some()).map(|command| format!("  {command}\n")).collect();
    text + &below
}

/// Without the command, which only requests have.
fn row(item: &InboxItem, times: Times, now: Timestamp) -> Vec<String> {
    let state = match (item.kind, item.state) {
        (InboxKind::Permission, _) => "waiting for permission".to_owned(),
        (InboxKind::Outcome, state) => format!("{}, unread", state.map_or("ended", RunState::as_str)),
        (InboxKind::Automation, _) => "automation paused".to_owned(),
    };
    vec![line(item.id(), 200), state, times.ago(item.since, now), what(item)]
}

/// The question of a request, or the outcome of a turn with the title of its session.
fn what(item: &InboxItem) -> String {
    match (&item.outcome, &item.title) {
        (Some(outcome), Some(title)) => {
            format!("{} ({})", line(outcome, OUTCOME_CHARS_MAX), line(title, TITLE_CHARS_MAX))
        }
        (Some(outcome), None) => line(outcome, OUTCOME_CHARS_MAX),
        (None, title) => text_or_dash(title),
    }
}

fn text_or_dash(text: &Option<String>) -> String {
    text.as_deref().map_or_else(|| "-".to_owned(), |text| line(text, 400))
}

/// Refreshes until Ctrl-C, also while the server is unreachable.
async fn watch(
    client: &Client,
    args: &InboxListArgs,
    mut outcomes: OutcomeTexts,
    mut items: Vec<InboxItem>,
    is_verbose: bool,
) -> Result<u8, Failure> {
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    let mut repaint = Repaint::stdout().filter(|_| args.output.is_text());
    let mut printed = BTreeSet::new();
    let mut lost_since: Option<Instant> = None;
    loop {
        match &mut repaint {
            Some(repaint) if lost_since.is_none() => {
                let (table, below) = screen(&items, args.times);
                repaint.paint(table, &below);
            }
            Some(_) => {}
            None => {
                let key = |item: &InboxItem| (item.kind, item.id().to_owned(), item.permission_id, item.since);
                let new = items.iter().filter(|item| !printed.contains(&key(item)));
                new.for_each(|item| print_item(item, args));
                // An item that leaves the list and returns is printed again.
                printed = items.iter().map(key).collect();
            }
        }
        tokio::select! {
            () = tokio::time::sleep(REFRESH) => {}
            _ = interrupts.recv() => return Ok(exit_codes::OK),
        }
        match fetch(client, args, &mut outcomes).await {
            Ok(found) => {
                items = found;
                if let Some(since) = lost_since.take().filter(|_| repaint.is_none()) {
                    output::message(&format!("{}\n", regained_line(since.elapsed())));
                }
            }
            Err(failure) if is_transient(&failure) => {
                let text = format!("{}\n", lost_line(&failure, REFRESHED_LATER, is_verbose));
                match &mut repaint {
                    Some(repaint) => repaint.paint_below(&format!("\n{text}")),
                    None if lost_since.is_none() => output::message(&text),
                    None => {}
                }
                lost_since.get_or_insert_with(Instant::now);
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// The table of `-w`, and the line below it.
fn screen(items: &[InboxItem], times: Times) -> (String, String) {
    let (width, height) = output::size().unwrap_or((80, 24));
    let requests = items.iter().filter(|item| item.kind == InboxKind::Permission).count() as i64;
    let paused = items.iter().filter(|item| item.kind == InboxKind::Automation).count() as i64;
    let outcomes = items.len() as i64 - requests - paused;
    let text = if items.is_empty() { String::new() } else { render(items, times, now(), Some(width), Paint::stdout()) };
    let shown: String = text.split_inclusive('\n').take(height.saturating_sub(LINES_FREE).max(1) + 1).collect();
    let (requests, outcomes) = (output::count(requests, "request"), output::count(outcomes, "unread outcome"));
    let paused = if paused > 0 { format!(" · {}", output::count(paused, "paused automation")) } else { String::new() };
    (shown, format!("\n{requests} · {outcomes}{paused} · Ctrl-C quits\n"))
}

fn print_item(item: &InboxItem, args: &InboxListArgs) {
    match args.output.format {
        Format::Text => {
            let command = item.command.as_ref().map(|command| line(command, 400));
            let cells: Vec<_> = row(item, args.times, now()).into_iter().chain(command).collect();
            output::data(&(cells.join("  ") + "\n"));
        }
        Format::Json | Format::Jsonl => args.output.record(item, output::data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_automation_shows_the_reason() {
        let automation = |reason: &str| -> Automation {
            serde_json::from_value(serde_json::json!({
                "id": "aut_00000000000000000000000000000001", "owner_id": "local", "title": "Digest", "bootstrap_key": null,
                "config": {"input_template": "hi", "schedule": {"type": "daily", "run_at": {"hour": 7, "minute": 0}}},
                "timezone": "Mars/Base", "next_run_at": null, "last_run_at": null, "status": "disabled",
                "disabled_reason": reason, "failures": 2, "created_at": "2030-01-01T00:00:00Z",
                "updated_at": "2030-01-01T00:00:00Z"
            }))
            .unwrap()
        };
        let failed = automation("repeated-failure");
        assert_eq!(
            pause_reason(&failed, Some("the model is\nnot reachable")).unwrap(),
            "paused after 2 failed runs: the model is not reachable"
        );
        assert_eq!(pause_reason(&failed, None).unwrap(), "paused after 2 failed runs");
        let unknown = pause_reason(&automation("unknown-zone"), None).unwrap();
        assert_eq!(unknown, "paused: the time zone Mars/Base is not known");
        assert_eq!(pause_reason(&automation("requested"), None), None, "its owner has paused it");
    }

    #[test]
    fn requests_and_outcomes_are_rows() {
        let item = |kind, state, title: Option<&str>, command: Option<&str>| InboxItem {
            kind,
            session_id: Some("disk".into()),
            tenant_id: "local".into(),
            run_id: None,
            state,
            title: title.map(str::to_owned),
            outcome: (kind == InboxKind::Outcome).then(|| "the agent fell over".to_owned()),
            mending_command: None,
            command: command.map(str::to_owned),
            permission_id: None,
            automation_id: None,
            since: "2030-01-01T00:00:00Z".parse().unwrap(),
        };
        let items = [
            item(InboxKind::Permission, Some(RunState::Waiting), Some("Delete old logs?"), Some("rm -r logs")),
            item(InboxKind::Outcome, Some(RunState::Failed), None, None),
        ];
        let now = "2030-01-01T00:02:00Z".parse().unwrap();
        assert_eq!(
            render(&items, Times::default(), now, None, Paint::PLAIN),
            "SESSION  STATE                   SINCE   WHAT                 COMMAND\n\
             disk     waiting for permission  2m ago  Delete old logs?     rm -r logs\n\
             disk     failed, unread          2m ago  the agent fell over  -\n"
        );
        let paused = InboxItem {
            session_id: None,
            automation_id: Some("aut_1".into()),
            ..item(InboxKind::Automation, None, Some("Digest"), None)
        };
        assert_eq!(
            render(std::slice::from_ref(&paused), Times::default(), now, None, Paint::PLAIN),
            "SESSION  STATE              SINCE   WHAT\naut_1    automation paused  2m ago  Digest\n"
        );
        assert_eq!(serde_json::to_value(&paused).unwrap()["sessionId"], serde_json::Value::Null);
        let titled = item(InboxKind::Outcome, Some(RunState::Failed), Some("Tuesday"), None);
        assert_eq!(
            render(&[titled], Times::default(), now, None, Paint::PLAIN),
            "SESSION  STATE           SINCE   WHAT\n\
             disk     failed, unread  2m ago  the agent fell over (Tuesday)\n"
        );
        let long = "Delete every log that is older than a week, and the reports that were made of them?";
        let waits = item(InboxKind::Permission, Some(RunState::Waiting), Some(long), Some("rm -r logs"));
        assert_eq!(
            render(&[waits, items[1].clone()], Times::default(), now, Some(80), Paint::PLAIN),
            "SESSION  STATE                   SINCE   WHAT\n\
             disk     waiting for permission  2m ago  Delete every log that is older than a …\n  command: rm -r logs\n\
             disk     failed, unread          2m ago  the agent fell over\n"
        );
        let reason = "the profile \"model\" is not set up: write base_url and model to FILE: ostler profiles config model --file FILE";
        let unset = InboxItem {
            outcome: Some(reason.into()),
            mending_command: Some("ostler profiles config model --file FILE".into()),
            ..item(InboxKind::Outcome, Some(RunState::Blocked), None, None)
        };
        let shown = render(&[unset.clone(), unset], Times::default(), now, Some(80), Paint::PLAIN);
        let command = "  ostler profiles config model --file FILE\n";
        assert!(shown.ends_with(command) && shown.matches(command).count() == 1, "{shown}");
        let huge = "x".repeat(5_000);
        let huge = item(InboxKind::Permission, Some(RunState::Waiting), Some(huge.as_str()), Some("rm -r logs"));
        let rows = [huge, items[1].clone()];
        for (width, columns_max) in [(None, 160), (Some(80), 80)] {
            let text = render(&rows, Times::default(), now, width, Paint::PLAIN);
            let widest = text.lines().map(|line| line.trim_end().chars().count()).max();
            assert!(widest <= Some(columns_max), "{widest:?}: {text}");
        }
        let narrow = render(&items, Times::default(), now, Some(56), Paint::PLAIN);
        assert!(narrow.contains("waiting for permission") && narrow.contains("Delete old"), "{narrow}");
    }
}
