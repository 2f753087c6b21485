//! `ostler ps`: the sessions that are running, and those with an outcome that this reader has not read. With `-w` it
//! refreshes: in place on a terminal, with a line per change elsewhere.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, Timestamp,
    ids::RunId,
    kernel::{
        runs::TerminalStatus,
        sessions::{ExecutionState, ListSessions, SessionQuery, SessionView},
    },
    limits::PAGE_ITEMS_MAX,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    candidates,
    commands::{read::ReaderArgs, runs},
    connection::Connection,
    exit_codes,
    follow::lost_line,
    terminal::{
        output::{self, Format, Output, line},
        repaint::Repaint,
        status::phase_words,
        table::table,
        times::{Times, now},
    },
};

const REFRESH: Duration = Duration::from_secs(2);
/// Lines of the terminal that are not rows of the table: its header, the line below it, and the cursor's.
const LINES_FREE: usize = 4;

/// List running sessions, and ended ones that were not read yet
///
/// A session stays in the list until it has been read (`ostler read`) and nothing is running in it. Each reader has their
/// own marks. `--all` lists every session, newest first.
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
    let outcomes = if args.output.is_text() {
        refresh_outcomes(&client, &found.sessions, Outcomes::new()).await
    } else {
        Outcomes::new()
    };
    let (sessions, has_more) = (&found.sessions, found.has_more);
    args.output
        .page(sessions, has_more, nothing(args), || render(sessions, &outcomes, args.times, now(), output::width()));
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
    let with_phase = page.sessions.into_iter().map(|session| with_liveness(client, args, session));
    Ok(ShownSessions { sessions: join_all(with_phase).await, has_more: page.next_cursor.is_some() })
}

/// Adds what a running session waits for, which a list does not contain.
async fn with_liveness(client: &Client, args: &PsArgs, session: SessionView) -> SessionView {
    if session.execution_state != ExecutionState::Running {
        return session;
    }
    let query = SessionQuery { reader_id: args.reader.id(), tenant_id: Some(session.tenant_id.clone()) };
    client.get_session(&session.session_id, &query).await.unwrap_or(session)
}

/// How the last turn of a run ended, by run and version of its session: it changes only when the version rises.
type Outcomes = BTreeMap<(RunId, i64), Option<TerminalStatus>>;

/// Fetches the outcomes of runs that are not cached yet, and drops those that are no longer listed.
async fn refresh_outcomes(client: &Client, sessions: &[SessionView], mut cached: Outcomes) -> Outcomes {
    let is_idle = |session: &&SessionView| session.execution_state != ExecutionState::Running;
    let wanted = || sessions.iter().filter(is_idle).filter_map(|session| Some((session.last_run_id?, session.version)));
    cached.retain(|key, _| wanted().any(|wanted| wanted == *key));
    let new: Vec<_> = wanted().filter(|key| !cached.contains_key(key)).collect();
    let outcomes = runs::last_outcomes(client, new.iter().map(|(run, _)| Some(*run))).await;
    cached.extend(new.into_iter().zip(outcomes));
    cached
}

fn nothing(args: &PsArgs) -> &'static str {
    match (args.all, args.profile.is_some() || args.tenant.is_some()) {
        (_, true) => "no such sessions\n",
        (true, false) => "no sessions yet; start one: ostler run \"say hello\"\n",
        (false, false) => "nothing is running and nothing is unread; `--all` lists every session\n",
    }
}

fn render(sessions: &[SessionView], outcomes: &Outcomes, times: Times, now: Timestamp, width: Option<usize>) -> String {
    let tenants = sessions.iter().any(|session| session.tenant_id != sessions[0].tenant_id);
    let titles = sessions.iter().any(|session| session.title.is_some());
    let rows = sessions.iter().map(|session| {
        let title = titles.then(|| session.title.as_deref().map_or_else(|| "-".into(), |title| line(title, 80)));
        row(session, outcomes, tenants, times, now).into_iter().chain(title).collect()
    });
    let headers = ["SESSION", "STATE", "PROFILE", "RUN", "CHANGED", "EVENTS"];
    let headers = tenants.then_some("TENANT").into_iter().chain(headers).chain(titles.then_some("TITLE"));
    let after = usize::from(tenants);
    let shrink: Vec<_> = titles.then_some(6).into_iter().chain([3, 1, 2, 0]).map(|column| column + after).collect();
    table(&headers.collect::<Vec<_>>(), rows.collect(), &shrink, width)
}

/// With several tenants the row shows the tenant: the same name may occur twice.
fn row(session: &SessionView, outcomes: &Outcomes, with_tenant: bool, times: Times, now: Timestamp) -> Vec<String> {
    let run = session.active_run_id.or(session.last_run_id);
    let tenant = with_tenant.then(|| line(&session.tenant_id, 80));
    let rest = [
        line(&session.session_id, 200),
        state(session, outcomes),
        line(&session.backend_profile, 63),
        run.map_or_else(|| "-".into(), |run| run.to_string()),
        times.ago(session.updated_at, now),
        session.last_seq.to_string(),
    ];
    tenant.into_iter().chain(rest).collect()
}

/// What the session waits for while it runs; afterwards its outcome, and whether it is unread.
fn state(session: &SessionView, outcomes: &Outcomes) -> String {
    match (&session.liveness, session.execution_state) {
        (Some(liveness), ExecutionState::Running) if liveness.active => return phase_words(liveness.phase).to_owned(),
        (_, ExecutionState::Running) => return "running".into(),
        _ => {}
    }
    let end = session.last_run_id.and_then(|run| *outcomes.get(&(run, session.version))?);
    let marks = [(session.unread, "unread"), (session.closed_at.is_some(), "closed")];
    let marks = marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark);
    let words: Vec<_> = end.map(TerminalStatus::as_str).into_iter().chain(marks).collect();
    if words.is_empty() { session.execution_state.as_str().into() } else { words.join(", ") }
}

fn key(session: &SessionView) -> (String, String) {
    (session.tenant_id.clone(), session.session_id.clone())
}

/// Refreshes until Ctrl-C, also if the server becomes unreachable meanwhile.
async fn watch(client: &Client, args: &PsArgs, is_verbose: bool) -> Result<u8, Failure> {
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    let repaint = Repaint::stdout().filter(|_| args.output.is_text());
    let mut view = WatchView { args, repaint, seen: BTreeMap::new(), outcomes: Outcomes::new(), is_lost: false };
    let mut has_connected = false;
    loop {
        match fetch(client, args).await {
            Ok(found) => {
                has_connected = true;
                view.regained();
                if args.output.is_text() {
                    view.outcomes = refresh_outcomes(client, &found.sessions, std::mem::take(&mut view.outcomes)).await;
                }
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
    outcomes: Outcomes,
    /// Whether the last attempt failed, and it was reported.
    is_lost: bool,
}

impl WatchView<'_> {
    fn show(&mut self, mut found: ShownSessions) {
        if let Some(repaint) = &mut self.repaint {
            let (width, height) = output::size().unwrap_or((80, 24));
            found.sessions.truncate(height.saturating_sub(LINES_FREE).max(1));
            let running = found.sessions.iter().filter(|s| s.execution_state == ExecutionState::Running).count();
            let mut text = render(&found.sessions, &self.outcomes, self.args.times, now(), Some(width));
            text.push_str(&format!(
                "\n{} · {running} running · Ctrl-C quits\n",
                output::count(found.sessions.len() as i64, "session")
            ));
            return repaint.paint(&text);
        }
        for session in &found.sessions {
            let mark = (session.last_seq, state(session, &self.outcomes));
            if self.seen.get(&key(session)) != Some(&mark) {
                output::data(&self.changed(session));
                self.seen.insert(key(session), mark);
            }
        }
        // A session that leaves the list and returns is printed again.
        self.seen.retain(|cached, _| found.sessions.iter().any(|session| key(session) == *cached));
    }

    fn changed(&self, session: &SessionView) -> String {
        match self.args.output.format {
            Format::Text => {
                format!(
                    "{}\n",
                    row(session, &self.outcomes, self.args.tenant.is_none(), self.args.times, now()).join("  ")
                )
            }
            Format::Json | Format::Jsonl => output::json_line(session),
        }
    }

    /// Reported once for each loss.
    fn lost(&mut self, failure: &Failure, is_verbose: bool) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        let text = format!("{}\n", lost_line(failure, "the list is refreshed when it is back", is_verbose));
        match &mut self.repaint {
            Some(repaint) => repaint.paint(&text),
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
pub(crate) mod fixtures {
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn session(change: impl FnOnce(&mut Value)) -> SessionView {
        let mut body = json!({"sessionId": "review", "tenantId": "local", "backendProfile": "scripted",
            "storageKind": "none", "executionState": "idle", "version": 1, "readVersion": 0, "unread": true, "activeRunId": null,
            "activeCommandId": null, "lastRunId": format!("run_{:032x}", 1), "lastCommandId": null, "lastSeq": 12,
            "threadId": null, "chainHead": {"sessionSeq": 12, "hash": "00"}, "liveness": null, "supervisor": null,
            "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:01:00Z"});
        change(&mut body);
        serde_json::from_str(&body.to_string()).unwrap()
    }

    pub(crate) fn running(phase: &str) -> SessionView {
        session(|body| {
            body["executionState"] = "running".into();
            body["liveness"] = json!({"phase": phase, "active": true, "lastSeq": 12, "lastEventAgeMs": 3000,
                "lastCommandActivity": null, "lease": null, "openToolCalls": [], "resumeAt": null, "suggestedAction": ""});
        })
    }
}

#[cfg(test)]
mod tests {

    use super::{
        fixtures::{running, session},
        *,
    };

    fn text(sessions: &[SessionView], width: Option<usize>) -> String {
        let times = Times::default();
        render(sessions, &Outcomes::new(), times, "2030-01-01T00:02:03Z".parse().unwrap(), width)
    }

    #[test]
    fn the_table_shows_what_each_session_waits_for() {
        let read = session(|body| body["unread"] = false.into());
        let id = format!("run_{:032x}", 1);
        assert_eq!(
            text(&[running("waiting-tool"), session(|_| ()), read], None),
            format!(
                "SESSION  STATE           PROFILE   RUN                                   CHANGED  EVENTS\n\
                 review   running a tool  scripted  {id}  1m ago   12\n\
                 review   unread          scripted  {id}  1m ago   12\n\
                 review   idle            scripted  {id}  1m ago   12\n"
            )
        );
    }

    #[test]
    fn a_row_is_shortened_only_on_a_terminal() {
        let sessions = [running("waiting-permission"), session(|body| body["sessionId"] = "x".repeat(60).into())];
        for width in [20, 40, 80] {
            let text = text(&sessions, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(width < 80 || text.contains("EVENTS"), "every column is visible: {text}");
        }
        assert!(text(&sessions, None).contains(&"x".repeat(60)));
    }

    #[test]
    fn an_ended_session_shows_its_outcome_its_title_and_that_it_is_closed() {
        let closed = session(|body| {
            body["title"] = "Tuesday".into();
            body["closedAt"] = "2030-01-01T00:01:00Z".into();
            body["unread"] = false.into();
        });
        let outcomes = Outcomes::from([((closed.last_run_id.unwrap(), 1), Some(TerminalStatus::Failed))]);
        let (times, now) = (Times::default(), "2030-01-01T00:02:03Z".parse().unwrap());
        let text = render(&[closed, session(|_| ())], &outcomes, times, now, None);
        assert!(
            text.contains("EVENTS  TITLE\nreview   failed, closed  scripted") && text.contains("12      Tuesday"),
            "{text}"
        );
        assert!(text.contains("failed, unread"), "{text}");
    }

    #[test]
    fn several_tenants_have_a_column() {
        let text = text(&[session(|_| ()), session(|body| body["tenantId"] = "hwlab".into())], None);
        assert!(text.starts_with("TENANT  SESSION") && text.contains("\nhwlab   review"), "{text}");
    }
}
