//! `ostler ps`: the sessions that run, and those in which something ended that this reader has not read. With `-w` it looks
//! again and again: in place on a terminal, a line per change elsewhere.

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
    completions,
    connect::Connection,
    exit_codes,
    live::phase_words,
    output::{self, Format, Output, line},
    repaint::Repaint,
    runs,
    sessions::Reader,
    table::table,
    times::{Times, now},
};

const REFRESH: Duration = Duration::from_secs(2);
/// Lines of the terminal that the table leaves free: its header, the line under it, and the cursor's.
const LINES_FREE: usize = 4;

/// List what runs, and what ended and was not read yet
///
/// A session stays in the list until it has been read (`ostler read`) and nothing runs in it. Each reader has marks of its
/// own. `--all` lists every session, newest first.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler ps\n  ostler ps -w\n  ostler ps --all --profile scripted -n 50\n  \
    ostler ps -o jsonl | jq -r .sessionId")]
pub struct Args {
    /// Every session, read or not
    #[arg(short, long)]
    all: bool,
    /// Look again every two seconds
    #[arg(short, long)]
    watch: bool,
    #[arg(long, help = "Only sessions of this tenant")]
    tenant: Option<String>,
    #[arg(long, help = "Only sessions of this backend profile", add = completions::profiles())]
    profile: Option<String>,
    #[command(flatten)]
    reader: Reader,
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..i64::from(PAGE_ITEMS_MAX)))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

pub async fn ps(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let client = connection.client()?;
    if args.watch {
        return watch(&client, args).await;
    }
    let found = fetch(&client, args).await?;
    let ends = if args.output.is_text() { learn(&client, &found.sessions, Ends::new()).await } else { Ends::new() };
    let (sessions, has_more) = (&found.sessions, found.has_more);
    args.output.page(sessions, has_more, nothing(args), || render(sessions, &ends, args.times, now(), output::width()));
    Ok(exit_codes::OK)
}

struct Found {
    sessions: Vec<SessionView>,
    has_more: bool,
}

async fn fetch(client: &Client, args: &Args) -> Result<Found, Failure> {
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
    Ok(Found { sessions: join_all(with_phase).await, has_more: page.next_cursor.is_some() })
}

/// A list says that something runs; what it waits for is known to the session itself.
async fn with_liveness(client: &Client, args: &Args, session: SessionView) -> SessionView {
    if session.execution_state != ExecutionState::Running {
        return session;
    }
    let query = SessionQuery { reader_id: args.reader.id(), tenant_id: Some(session.tenant_id.clone()) };
    client.get_session(&session.session_id, &query).await.unwrap_or(session)
}

/// How the last turn of a run ended, as of a version of its session: it can only change when that rises.
type Ends = BTreeMap<(RunId, i64), Option<TerminalStatus>>;

/// Asks after the runs that are not known yet, and forgets those that are not listed any more.
async fn learn(client: &Client, sessions: &[SessionView], mut known: Ends) -> Ends {
    let rests = |session: &&SessionView| session.execution_state != ExecutionState::Running;
    let wanted = || sessions.iter().filter(rests).filter_map(|session| Some((session.last_run_id?, session.version)));
    known.retain(|key, _| wanted().any(|wanted| wanted == *key));
    let new: Vec<_> = wanted().filter(|key| !known.contains_key(key)).collect();
    let ends = runs::ends(client, new.iter().map(|(run, _)| Some(*run))).await;
    known.extend(new.into_iter().zip(ends));
    known
}

fn nothing(args: &Args) -> &'static str {
    match (args.all, args.profile.is_some() || args.tenant.is_some()) {
        (_, true) => "no such sessions\n",
        (true, false) => "no sessions yet; start one: ostler run \"say hello\"\n",
        (false, false) => "nothing runs and nothing is unread; `--all` lists every session\n",
    }
}

fn render(sessions: &[SessionView], ends: &Ends, times: Times, now: Timestamp, width: Option<usize>) -> String {
    let tenants = sessions.iter().any(|session| session.tenant_id != sessions[0].tenant_id);
    let titles = sessions.iter().any(|session| session.title.is_some());
    let rows = sessions.iter().map(|session| {
        let title = titles.then(|| session.title.as_deref().map_or_else(|| "-".into(), |title| line(title, 80)));
        row(session, ends, tenants, times, now).into_iter().chain(title).collect()
    });
    let headers = ["SESSION", "STATE", "PROFILE", "RUN", "CHANGED", "EVENTS"];
    let headers = tenants.then_some("TENANT").into_iter().chain(headers).chain(titles.then_some("TITLE"));
    let after = usize::from(tenants);
    let shrink: Vec<_> = titles.then_some(6).into_iter().chain([3, 1, 2, 0]).map(|column| column + after).collect();
    table(&headers.collect::<Vec<_>>(), rows.collect(), &shrink, width)
}

/// Whose session it is matters where there are several tenants: the same name may be there twice.
fn row(session: &SessionView, ends: &Ends, with_tenant: bool, times: Times, now: Timestamp) -> Vec<String> {
    let run = session.active_run_id.or(session.last_run_id);
    let tenant = with_tenant.then(|| line(&session.tenant_id, 80));
    let rest = [
        line(&session.session_id, 200),
        state(session, ends),
        line(&session.backend_profile, 63),
        run.map_or_else(|| "-".into(), |run| run.to_string()),
        times.ago(session.updated_at, now),
        session.last_seq.to_string(),
    ];
    tenant.into_iter().chain(rest).collect()
}

/// What it waits for while it runs; afterwards how that ended, and whether there is something to read.
fn state(session: &SessionView, ends: &Ends) -> String {
    match (&session.liveness, session.execution_state) {
        (Some(liveness), ExecutionState::Running) if liveness.active => return phase_words(liveness.phase).to_owned(),
        (_, ExecutionState::Running) => return "running".into(),
        _ => {}
    }
    let end = session.last_run_id.and_then(|run| *ends.get(&(run, session.version))?);
    let marks = [(session.unread, "unread"), (session.closed_at.is_some(), "closed")];
    let marks = marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark);
    let words: Vec<_> = end.map(TerminalStatus::as_str).into_iter().chain(marks).collect();
    if words.is_empty() { session.execution_state.as_str().into() } else { words.join(", ") }
}

fn key(session: &SessionView) -> (String, String) {
    (session.tenant_id.clone(), session.session_id.clone())
}

/// Until Ctrl-C, through times without a server.
async fn watch(client: &Client, args: &Args) -> Result<u8, Failure> {
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    let repaint = Repaint::stdout().filter(|_| args.output.is_text());
    let mut view = Watch { args, repaint, seen: BTreeMap::new(), ends: Ends::new() };
    loop {
        match fetch(client, args).await {
            Ok(found) => {
                if args.output.is_text() {
                    view.ends = learn(client, &found.sessions, std::mem::take(&mut view.ends)).await;
                }
                view.show(found);
            }
            Err(failure) if is_transient(&failure) => view.lost(&failure),
            Err(failure) => return Err(failure),
        }
        tokio::select! {
            () = tokio::time::sleep(REFRESH) => {}
            _ = interrupts.recv() => return Ok(exit_codes::OK),
        }
    }
}

struct Watch<'a> {
    args: &'a Args,
    repaint: Option<Repaint>,
    /// The rows as they were shown last, by tenant and session.
    seen: BTreeMap<(String, String), (i64, String)>,
    ends: Ends,
}

impl Watch<'_> {
    fn show(&mut self, mut found: Found) {
        if let Some(repaint) = &mut self.repaint {
            let (width, height) = output::size().unwrap_or((80, 24));
            found.sessions.truncate(height.saturating_sub(LINES_FREE).max(1));
            let running = found.sessions.iter().filter(|s| s.execution_state == ExecutionState::Running).count();
            let mut text = render(&found.sessions, &self.ends, self.args.times, now(), Some(width));
            text.push_str(&format!(
                "\n{} · {running} running · Ctrl-C ends\n",
                output::count(found.sessions.len() as i64, "session")
            ));
            return repaint.paint(&text);
        }
        for session in &found.sessions {
            let mark = (session.last_seq, state(session, &self.ends));
            if self.seen.get(&key(session)) != Some(&mark) {
                output::data(&self.changed(session));
                self.seen.insert(key(session), mark);
            }
        }
        // What left the list and comes back is news again.
        self.seen.retain(|known, _| found.sessions.iter().any(|session| key(session) == *known));
    }

    fn changed(&self, session: &SessionView) -> String {
        match self.args.output.format {
            Format::Text => {
                format!("{}\n", row(session, &self.ends, self.args.tenant.is_none(), self.args.times, now()).join("  "))
            }
            Format::Json | Format::Jsonl => output::json_line(session),
        }
    }

    fn lost(&mut self, failure: &Failure) {
        let text = format!("looking again; {}\n", failure.message);
        match &mut self.repaint {
            Some(repaint) => repaint.paint(&text),
            None => output::words(&text),
        }
    }
}

#[cfg(test)]
pub mod fixtures {
    use serde_json::{Value, json};

    use super::*;

    pub fn session(change: impl FnOnce(&mut Value)) -> SessionView {
        let mut body = json!({"sessionId": "review", "tenantId": "local", "backendProfile": "scripted",
            "storageKind": "none", "executionState": "idle", "version": 1, "readVersion": 0, "unread": true, "activeRunId": null,
            "activeCommandId": null, "lastRunId": format!("run_{:032x}", 1), "lastCommandId": null, "lastSeq": 12,
            "threadId": null, "chainHead": {"sessionSeq": 12, "hash": "00"}, "liveness": null, "supervisor": null,
            "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:01:00Z"});
        change(&mut body);
        serde_json::from_str(&body.to_string()).unwrap()
    }

    pub fn running(phase: &str) -> SessionView {
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
        render(sessions, &Ends::new(), times, "2030-01-01T00:02:03Z".parse().unwrap(), width)
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
    fn a_row_is_cut_to_the_terminal_and_never_elsewhere() {
        let sessions = [running("waiting-permission"), session(|body| body["sessionId"] = "x".repeat(60).into())];
        for width in [20, 40, 80] {
            let text = text(&sessions, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(width < 80 || text.contains("EVENTS"), "every column is seen: {text}");
        }
        assert!(text(&sessions, None).contains(&"x".repeat(60)));
    }

    #[test]
    fn a_session_at_rest_shows_how_it_ended_its_title_and_that_it_is_closed() {
        let closed = session(|body| {
            body["title"] = "Tuesday".into();
            body["closedAt"] = "2030-01-01T00:01:00Z".into();
            body["unread"] = false.into();
        });
        let ends = Ends::from([((closed.last_run_id.unwrap(), 1), Some(TerminalStatus::Failed))]);
        let (times, now) = (Times::default(), "2030-01-01T00:02:03Z".parse().unwrap());
        let text = render(&[closed, session(|_| ())], &ends, times, now, None);
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
