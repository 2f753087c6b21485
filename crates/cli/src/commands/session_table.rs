//! Sessions as rows of a table, for `ostler ps` and `ostler sessions list`: the name or the id, and the state of the active
//! or latest turn.

use std::collections::BTreeMap;

use futures_util::{StreamExt, future::join_all, stream};
use ostler_client::Client;
use ostler_protocol::{
    Timestamp,
    ids::RunId,
    kernel::{
        liveness::Phase,
        runs::RunState,
        sessions::{ExecutionState, SessionQuery, SessionView},
    },
};

use crate::terminal::{
    output::line,
    paint::Paint,
    status::phase_words,
    table::{Column, table_of_states},
    times::Times,
};

/// How many results are requested concurrently.
const CONCURRENT_RESULTS: usize = 8;

/// How the last turn of a run ended, by run and version of its session: it changes only when the version rises.
pub(crate) type Outcomes = BTreeMap<(RunId, i64), Option<RunState>>;

/// Adds what running sessions wait for, which a list does not contain.
pub(crate) async fn with_liveness(
    client: &Client,
    reader_id: Option<String>,
    sessions: Vec<SessionView>,
) -> Vec<SessionView> {
    let one = |session: SessionView| {
        let query = SessionQuery { reader_id: reader_id.clone(), tenant_id: Some(session.tenant_id.clone()) };
        async move {
            if session.execution_state != ExecutionState::Running {
                return session;
            }
            client.get_session(&session.session_id, &query).await.unwrap_or(session)
        }
    };
    join_all(sessions.into_iter().map(one)).await
}

/// Fetches the outcomes of runs that are not cached yet, and drops those that are no longer listed.
pub(crate) async fn refresh_outcomes(client: &Client, sessions: &[SessionView], mut cached: Outcomes) -> Outcomes {
    let wanted = || {
        let ended = sessions.iter().filter(|session| !is_active(session));
        ended.filter_map(|session| Some((session.last_run_id?, session.version)))
    };
    cached.retain(|key, _| wanted().any(|wanted| wanted == *key));
    let new: Vec<_> = wanted().filter(|key| !cached.contains_key(key)).collect();
    let outcome = |run: RunId| async move { Some(client.run_result(&run.to_string(), None).await.ok()?.state) };
    let outcomes: Vec<_> =
        stream::iter(new.iter().map(|(run, _)| *run)).map(outcome).buffered(CONCURRENT_RESULTS).collect().await;
    cached.extend(new.into_iter().zip(outcomes));
    cached
}

/// Whether a turn waits or runs in it. A backend may be kept for another turn after the last one has ended.
pub(crate) fn is_active(session: &SessionView) -> bool {
    let has_turn = session.liveness.as_ref().is_none_or(|liveness| liveness.active);
    session.execution_state == ExecutionState::Running && has_turn
}

/// The state of the active or latest turn. `None` before the first.
pub(crate) fn state(session: &SessionView, outcomes: &Outcomes) -> Option<RunState> {
    if !is_active(session) {
        return session.last_run_id.and_then(|run| *outcomes.get(&(run, session.version))?);
    }
    match session.liveness.as_ref().map(|liveness| liveness.phase) {
        Some(Phase::WaitingPermission | Phase::WaitingRunner) => Some(RunState::Waiting),
        _ => Some(RunState::Running),
    }
}

/// What the session waits for while it runs; afterwards its outcome, and whether it is unread.
pub(crate) fn state_words(session: &SessionView, outcomes: &Outcomes) -> String {
    if is_active(session) {
        return session.liveness.as_ref().map_or("running", |liveness| phase_words(liveness.phase)).to_owned();
    }
    let end = state(session, outcomes);
    let marks = [(session.unread, "unread"), (session.closed_at.is_some(), "closed")];
    let marks = marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark);
    let words: Vec<_> = end.map(RunState::as_str).into_iter().chain(marks).collect();
    if words.is_empty() { "waiting for a run".into() } else { words.join(", ") }
}

pub(crate) fn render(
    sessions: &[SessionView],
    outcomes: &Outcomes,
    times: Times,
    now: Timestamp,
    width: Option<usize>,
    paint: Paint,
) -> String {
    let tenants = sessions.iter().any(|session| session.tenant_id != sessions[0].tenant_id);
    let titles = sessions.iter().any(|session| session.title.is_some());
    let rows = sessions.iter().map(|session| {
        let title = titles.then(|| session.title.as_deref().map_or_else(|| "-".into(), |title| line(title, 80)));
        row(session, outcomes, tenants, times, now).into_iter().chain(title).collect()
    });
    let columns = [
        Column::text(6, "SESSION"),
        Column::whole("STATE"),
        Column::spare(3, "PROFILE"),
        Column::spare(4, "CHANGED"),
        Column::spare(1, "EVENTS"),
    ];
    let tenant = tenants.then_some(Column::text(5, "TENANT"));
    let columns = tenant.into_iter().chain(columns).chain(titles.then_some(Column::text(7, "TITLE")));
    let states: Vec<_> = sessions.iter().map(|session| state(session, outcomes)).collect();
    table_of_states(&columns.collect::<Vec<_>>(), rows.collect(), &states, width, paint)
}

/// With several tenants the row shows the tenant: the same name may occur twice.
pub(crate) fn row(
    session: &SessionView,
    outcomes: &Outcomes,
    with_tenant: bool,
    times: Times,
    now: Timestamp,
) -> Vec<String> {
    let tenant = with_tenant.then(|| line(&session.tenant_id, 80));
    let rest = [
        line(&session.session_id, 200),
        state_words(session, outcomes),
        line(&session.backend_profile, 63),
        times.ago(session.updated_at, now),
        session.last_seq.to_string(),
    ];
    tenant.into_iter().chain(rest).collect()
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
        let end = |session: &SessionView| Some(((session.last_run_id?, session.version), Some(RunState::Completed)));
        let outcomes = sessions.iter().filter_map(end).collect();
        let now = "2030-01-01T00:02:03Z".parse().unwrap();
        render(sessions, &outcomes, Times::default(), now, width, Paint::PLAIN)
    }

    #[test]
    fn the_table_shows_what_each_session_waits_for() {
        let read = session(|body| body["unread"] = false.into());
        assert_eq!(
            text(&[running("waiting-tool"), session(|_| ()), read], None),
            "SESSION  STATE              PROFILE   CHANGED  EVENTS\n\
             review   running a tool     scripted  1m ago   12\n\
             review   completed, unread  scripted  1m ago   12\n\
             review   completed          scripted  1m ago   12\n"
        );
    }

    #[test]
    fn the_state_is_never_shortened() {
        let sessions = [running("waiting-permission"), session(|body| body["sessionId"] = "x".repeat(60).into())];
        for width in [40, 60, 80, 120, 200] {
            let text = text(&sessions, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(text.contains("waiting for permission") && text.contains("completed, unread"), "{text}");
        }
        assert!(text(&sessions, None).contains(&"x".repeat(60)));
    }

    #[test]
    fn a_title_is_shortened_last() {
        let titled = session(|body| {
            body["sessionId"] = "a-rather-long-name-of-a-session".into();
            body["title"] = "Review of Tuesday".into();
        });
        let text = text(&[titled], Some(60));
        assert!(!text.contains("of-a-session") && text.contains("Review of Tuesday"), "{text}");
    }

    #[test]
    fn an_ended_session_shows_its_outcome_its_title_and_that_it_is_closed() {
        let closed = session(|body| {
            body["title"] = "Tuesday".into();
            body["closedAt"] = "2030-01-01T00:01:00Z".into();
            body["unread"] = false.into();
        });
        let outcomes = Outcomes::from([((closed.last_run_id.unwrap(), 1), Some(RunState::Failed))]);
        let (times, now) = (Times::default(), "2030-01-01T00:02:03Z".parse().unwrap());
        let text = render(&[closed, session(|_| ())], &outcomes, times, now, None, Paint::PLAIN);
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
