//! `ostler ps`: the sessions that run, and those in which something ended that this reader has not read. With `-w` it looks
//! again and again: in place on a terminal, a line per change elsewhere.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use ostler_client::{Client, is_transient};
use ostler_protocol::{
    Failure, Timestamp,
    limits::PAGE_ITEMS_MAX,
    sessions::{ExecutionState, ListSessions, SessionQuery, SessionView},
};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    connect::Connection,
    exit_codes,
    live::phase_words,
    output::{self, Format, Output, line},
    repaint::Repaint,
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
    #[arg(long, help = "Only sessions of this backend profile")]
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
    args.output.many(&found.sessions, || render(&found.sessions, args.times, now(), output::width()));
    if found.sessions.is_empty() {
        output::words(nothing(args));
    } else if found.has_more {
        output::words(&format!("there are more than these {}; see `--limit`\n", found.sessions.len()));
    }
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

fn nothing(args: &Args) -> &'static str {
    match (args.all, args.profile.is_some() || args.tenant.is_some()) {
        (_, true) => "no such sessions\n",
        (true, false) => "no sessions yet; start one: ostler run \"say hello\"\n",
        (false, false) => "nothing runs and nothing is unread; `--all` lists every session\n",
    }
}

pub fn render(sessions: &[SessionView], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = sessions.iter().map(|session| row(session, times, now)).collect();
    table(&["SESSION", "STATE", "PROFILE", "RUN", "CHANGED", "EVENTS"], rows, &[1, 2], width)
}

fn row(session: &SessionView, times: Times, now: Timestamp) -> Vec<String> {
    let run = session.active_run_id.or(session.last_run_id);
    vec![
        line(&session.session_id, 200),
        state(session),
        line(&session.backend_profile, 63),
        run.map_or_else(|| "-".into(), |run| run.to_string()),
        times.ago(session.updated_at, now),
        session.last_seq.to_string(),
    ]
}

/// What it waits for while it runs; afterwards whether there is something to read.
fn state(session: &SessionView) -> String {
    match (&session.liveness, session.execution_state) {
        (Some(liveness), ExecutionState::Running) if liveness.active => phase_words(liveness.phase).to_owned(),
        (_, ExecutionState::Running) => "running".into(),
        _ if session.unread => "unread".into(),
        (_, state) => state.as_str().into(),
    }
}

/// Until Ctrl-C, through times without a server.
async fn watch(client: &Client, args: &Args) -> Result<u8, Failure> {
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    let mut view = Watch { args, repaint: Repaint::stdout().filter(|_| args.output.is_text()), seen: BTreeMap::new() };
    loop {
        match fetch(client, args).await {
            Ok(found) => view.show(found),
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
    /// The rows as they were shown last, by session.
    seen: BTreeMap<String, (i64, String)>,
}

impl Watch<'_> {
    fn show(&mut self, mut found: Found) {
        if let Some(repaint) = &mut self.repaint {
            let (width, height) = output::size().unwrap_or((80, 24));
            found.sessions.truncate(height.saturating_sub(LINES_FREE).max(1));
            let running = found.sessions.iter().filter(|s| s.execution_state == ExecutionState::Running).count();
            let mut text = render(&found.sessions, self.args.times, now(), Some(width));
            text.push_str(&format!(
                "\n{} · {running} running · Ctrl-C ends\n",
                output::count(found.sessions.len() as i64, "session")
            ));
            return repaint.paint(&text);
        }
        for session in &found.sessions {
            let mark = (session.last_seq, state(session));
            if self.seen.get(&session.session_id) != Some(&mark) {
                output::data(&self.changed(session));
                self.seen.insert(session.session_id.clone(), mark);
            }
        }
        // What left the list and comes back is news again.
        self.seen.retain(|id, _| found.sessions.iter().any(|session| session.session_id == *id));
    }

    fn changed(&self, session: &SessionView) -> String {
        match self.args.output.format {
            Format::Text => format!("{}\n", row(session, self.args.times, now()).join("  ")),
            Format::Json | Format::Jsonl => output::json_line(session),
        }
    }

    fn lost(&mut self, failure: &Failure) {
        let text = format!("{}; looking again\n", failure.message);
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
            "executionState": "idle", "version": 1, "readVersion": 0, "unread": true, "activeRunId": null,
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
    use clap::Parser;

    use super::{
        fixtures::{running, session},
        *,
    };

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        times: Times,
    }

    fn text(sessions: &[SessionView], width: Option<usize>) -> String {
        let times = Line::parse_from(["ps"]).times;
        render(sessions, times, "2030-01-01T00:02:03Z".parse().unwrap(), width)
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
    fn ids_are_never_cut() {
        let text = text(&[session(|_| ())], Some(40));
        assert!(text.contains(&format!("run_{:032x}", 1)) && text.contains("review"), "{text}");
    }
}
