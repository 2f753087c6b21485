//! `ostler ps`: the sessions that are running, and those with an outcome that this reader has not read. With `-w` it
//! refreshes: in place on a terminal, with a line per change elsewhere.

use std::{collections::BTreeMap, time::Duration};

use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure,
    kernel::sessions::{ListSessions, SessionView},
    limits::PAGE_ITEMS_MAX,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    candidates,
    commands::{
        read::ReaderArgs,
        session_table::{self, row, state_words},
    },
    connection::Connection,
    exit_codes,
    follow::{REFRESHED_LATER, lost_line},
    terminal::{
        output::{self, Format, Output},
        paint::Paint,
        repaint::Repaint,
        times::{Times, now},
    },
};

/// The states of sessions that are listed first if not all fit.
const ACTIVE_STATES: &str = "waiting,running";
const REFRESH: Duration = Duration::from_secs(2);
/// Lines of the terminal that are not rows of the table: its header, the line below it, and the cursor's.
const LINES_FREE: usize = 4;

/// List running sessions, and ended ones that were not read yet
///
/// A session stays in the list until it has been read (`ostler read`) and nothing is running in it. Each reader has their
/// own marks. If there are more than `--limit`, what runs or waits comes first. `--all` lists every session, newest first.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler ps\n  ostler ps -w\n  ostler ps --all --profile scripted -n 50\n  \
    ostler ps -o jsonl | jq -r .sessionId")]
pub(crate) struct PsArgs {
    /// Every session, read or not
    #[arg(short, long)]
    all: bool,
    /// Refresh every two seconds
    #[arg(short, long)]
    watch: bool,
    #[arg(long, help = "Only sessions of this tenant")]
    tenant: Option<String>,
    #[arg(long, help = "Only sessions of this backend profile", add = candidates::profiles())]
    profile: Option<String>,
    #[command(flatten)]
    reader: ReaderArgs,
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..i64::from(PAGE_ITEMS_MAX)))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn ps(connection: &Connection, args: &PsArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    if args.watch {
        return watch(&client, args, connection.is_verbose()).await;
    }
    let found = fetch(&client, args).await?;
    let (sessions, has_more) = (&found.sessions, found.has_more);
    args.output.page(sessions, has_more, nothing(args), || render(sessions, args.times));
    Ok(exit_codes::OK)
}

struct ShownSessions {
    sessions: Vec<SessionView>,
    has_more: bool,
}

async fn fetch(client: &Client, args: &PsArgs) -> Result<ShownSessions, Failure> {
    let query = ListSessions {
        state: args.all.then(|| "all".to_owned()),
        reader_id: args.reader.id(),
        tenant_id: args.tenant.clone(),
        backend_profile: args.profile.clone(),
        limit: Some(args.limit),
        ..ListSessions::default()
    };
    let page = client.list_sessions(&query).await?;
    let has_more = page.next_cursor.is_some();
    let mut found = page.sessions;
    if has_more && !args.all {
        // Newer outcomes that are unread must not hide what runs or waits for an answer.
        let mut first = active(client, &query, args.limit as usize).await?;
        found.retain(|session| first.iter().all(|other| key(other) != key(session)));
        first.extend(found);
        first.truncate(args.limit as usize);
        found = first;
    }
    let sessions = session_table::with_liveness(client, args.reader.id(), found).await;
    Ok(ShownSessions { sessions, has_more })
}

/// The newest sessions that run or wait, at least `wanted` of them if there are so many. A session that never had a run waits as well,
/// and is of no interest here: many of them must not hide the others.
async fn active(client: &Client, query: &ListSessions, wanted: usize) -> Result<Vec<SessionView>, Failure> {
    let (state, limit) = (Some(ACTIVE_STATES.to_owned()), Some(PAGE_ITEMS_MAX));
    let mut query = ListSessions { state, limit, ..query.clone() };
    let mut found = vec![];
    loop {
        let page = client.list_sessions(&query).await?;
        let has_run = |session: &SessionView| session.last_run_id.is_some() || session.active_run_id.is_some();
        found.extend(page.sessions.into_iter().filter(has_run));
        query.cursor = page.next_cursor;
        if found.len() >= wanted || query.cursor.is_none() {
            return Ok(found);
        }
    }
}

fn nothing(args: &PsArgs) -> &'static str {
    match (args.all, args.profile.is_some() || args.tenant.is_some()) {
        (_, true) => "no such sessions\n",
        (true, false) => "no sessions yet; start one: ostler run \"say hello\"\n",
        (false, false) => "nothing is running and nothing is unread; `--all` lists every session\n",
    }
}

fn render(sessions: &[SessionView], times: Times) -> String {
    session_table::render(sessions, times, now(), output::width(), Paint::stdout())
}

/// The line below the table of `-w`. What waits for permission or for a runner is not counted as running.
fn footer(sessions: &[SessionView], has_more: bool) -> String {
    let more = if has_more { ", and more that are not shown" } else { "" };
    let active = sessions.iter().filter(|session| session_table::is_active(session));
    let (waiting, running): (Vec<_>, Vec<_>) = active.partition(|session| session_table::is_waiting(session));
    let waiting = if waiting.is_empty() { String::new() } else { format!(" · {} waiting", waiting.len()) };
    let shown = output::count(sessions.len() as i64, "session");
    format!("\n{shown}{more} · {} running{waiting} · Ctrl-C quits\n", running.len())
}

fn key(session: &SessionView) -> (String, String) {
    (session.tenant_id.clone(), session.session_id.clone())
}

/// Refreshes until Ctrl-C, also while the server is unreachable.
async fn watch(client: &Client, args: &PsArgs, is_verbose: bool) -> Result<u8, Failure> {
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    let repaint = Repaint::stdout().filter(|_| args.output.is_text());
    let mut view = WatchView { args, repaint, seen: BTreeMap::new(), is_lost: false };
    let mut has_connected = false;
    loop {
        match fetch(client, args).await {
            Ok(found) => {
                has_connected = true;
                view.regained();
                view.show(found);
            }
            // A server that never answered is not waited for.
            Err(failure) if has_connected && is_transient(&failure) => view.lost(&failure, is_verbose),
            Err(failure) => return Err(failure),
        }
        tokio::select! {
            () = tokio::time::sleep(REFRESH) => {}
            _ = interrupts.recv() => return Ok(exit_codes::OK),
        }
    }
}

struct WatchView<'a> {
    args: &'a PsArgs,
    repaint: Option<Repaint>,
    /// The rows as they were last printed, by tenant and session.
    seen: BTreeMap<(String, String), (i64, String)>,
    /// Whether the last attempt failed, and it was reported.
    is_lost: bool,
}

impl WatchView<'_> {
    fn show(&mut self, mut found: ShownSessions) {
        if let Some(repaint) = &mut self.repaint {
            let (_, height) = output::size().unwrap_or((80, 24));
            let rows = height.saturating_sub(LINES_FREE).max(1);
            if found.sessions.len() > rows {
                found.sessions.sort_by_key(|session| !session_table::is_active(session));
                found.sessions.truncate(rows);
                found.has_more = true;
            }
            let table = render(&found.sessions, self.args.times);
            return repaint.paint(table, &footer(&found.sessions, found.has_more));
        }
        for session in &found.sessions {
            let mark = (session.last_seq, state_words(session));
            if self.seen.get(&key(session)) != Some(&mark) {
                self.print_changed(session);
                self.seen.insert(key(session), mark);
            }
        }
        // A session that leaves the list and returns is printed again.
        self.seen.retain(|cached, _| found.sessions.iter().any(|session| key(session) == *cached));
    }

    fn print_changed(&self, session: &SessionView) {
        match self.args.output.format {
            Format::Text => {
                let cells = row(session, self.args.tenant.is_none(), self.args.times, now());
                output::data(&format!("{}\n", cells.join("  ")));
            }
            Format::Json | Format::Jsonl => self.args.output.record(session, output::data),
        }
    }

    /// Reported once for each loss. On a terminal the last table stays.
    fn lost(&mut self, failure: &Failure, is_verbose: bool) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        let text = format!("{}\n", lost_line(failure, REFRESHED_LATER, is_verbose));
        match &mut self.repaint {
            Some(repaint) => repaint.paint_below(&format!("\n{text}")),
            None => output::message(&text),
        }
    }

    fn regained(&mut self) {
        if std::mem::take(&mut self.is_lost) && self.repaint.is_none() {
            output::message("connected again\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::session_table::fixtures::{running, session};

    #[test]
    fn the_line_below_the_table_counts_what_runs_and_what_waits() {
        let ended = session(|_| ());
        assert_eq!(footer(std::slice::from_ref(&ended), false), "\n1 session · 0 running · Ctrl-C quits\n");
        let active = ["waiting-tool", "waiting-model", "waiting-permission", "waiting-runner"].map(running);
        assert_eq!(
            footer(&[&active[..], &[ended]].concat(), true),
            "\n5 sessions, and more that are not shown · 2 running · 2 waiting · Ctrl-C quits\n"
        );
    }
}
