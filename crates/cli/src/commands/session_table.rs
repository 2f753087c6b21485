//! Sessions as rows of a table, for `ostler ps` and `ostler sessions list`: the name or the id, and the state of the active
//! or latest turn.

use futures_util::future::join_all;
use ostler_client::Client;
use ostler_protocol::{
    Timestamp,
    kernel::{
        runs::RunState,
        sessions::{ExecutionState, SessionQuery, SessionView},
    },
};

use crate::terminal::{
    output::line,
    paint::Paint,
    status::short_words,
    table::{Column, table_of_states},
    times::Times,
};

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

/// Whether a turn waits or runs in it. A backend may be kept for another turn after the last one has ended.
pub(crate) fn is_active(session: &SessionView) -> bool {
    let has_turn = session.liveness.as_ref().is_none_or(|liveness| liveness.active);
    session.execution_state == ExecutionState::Running && has_turn
}

/// Whether its active turn waits, for permission or for a runner. The first word of the state is the same.
pub(crate) fn is_waiting(session: &SessionView) -> bool {
    is_active(session) && state_words(session).starts_with(RunState::Waiting.as_str())
}

/// What the session waits for while it runs; afterwards its outcome, and whether it is unread.
pub(crate) fn state_words(session: &SessionView) -> String {
    if is_active(session) {
        return session.liveness.as_ref().map_or("running", short_words).to_owned();
    }
    let marks = [(session.unread, "unread"), (session.closed_at.is_some(), "closed")];
    let marks = marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark);
    ended_words(session).into_iter().chain(marks).collect::<Vec<_>>().join(", ")
}

/// The state of a session in which no turn is active. `None` if it was closed before its first run.
pub(crate) fn ended_words(session: &SessionView) -> Option<&'static str> {
    match session.last_run_id.or(session.active_run_id) {
        None if session.closed_at.is_some() => None,
        None => Some("waiting for a run"),
        Some(_) => session.state.map(RunState::as_str),
    }
}

pub(crate) fn render(
    sessions: &[SessionView],
    times: Times,
    now: Timestamp,
    width: Option<usize>,
    paint: Paint,
) -> String {
    let tenants = sessions.iter().any(|session| session.tenant_id != sessions[0].tenant_id);
    let titles = sessions.iter().any(|session| session.title.is_some());
    let rows = sessions.iter().map(|session| {
        let title = titles.then(|| session.title.as_deref().map_or_else(|| "-".into(), |title| line(title, 80)));
        row(session, tenants, times, now).into_iter().chain(title).collect()
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
    let states: Vec<_> = sessions.iter().map(|session| session.state).collect();
    table_of_states(&columns.collect::<Vec<_>>(), rows.collect(), &states, width, paint)
}

/// With several tenants the row shows the tenant: the same name may occur twice.
pub(crate) fn row(session: &SessionView, with_tenant: bool, times: Times, now: Timestamp) -> Vec<String> {
    let tenant = with_tenant.then(|| line(&session.tenant_id, 80));
    let rest = [
        line(&session.session_id, 200),
        state_words(session),
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
            "storageKind": "none", "executionState": "idle", "state": "completed", "version": 1, "readVersion": 0, "unread": true, "activeRunId": null,
            "activeCommandId": null, "lastRunId": format!("run_{:032x}", 1), "lastCommandId": null, "lastSeq": 12,
            "threadId": null, "chainHead": {"sessionSeq": 12, "hash": "00"}, "liveness": null, "supervisor": null,
            "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:01:00Z"});
        change(&mut body);
        serde_json::from_str(&body.to_string()).unwrap()
    }

    pub(crate) fn running(phase: &str) -> SessionView {
        session(|body| {
            body["executionState"] = "running".into();
            body["state"] = "running".into();
            body["liveness"] = json!({"phase": phase, "active": true, "lastSeq": 12, "lastEventAgeMs": 3000,
                "lastCommandActivity": null, "lease": null, "openToolCalls": [], "resumeAt": null, "suggestedAction": ""});
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{
        fixtures::{running, session},
        *,
    };

    fn text(sessions: &[SessionView], width: Option<usize>) -> String {
        let now = "2030-01-01T00:02:03Z".parse().unwrap();
        render(sessions, Times::default(), now, width, Paint::PLAIN)
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
    fn a_session_that_waits_for_another_server_shows_it_at_every_width() {
        let mut placed = running("waiting-runner");
        placed.liveness.as_mut().unwrap().other_workspace = Some("/srv/app".into());
        let expected = [
            (
                60,
                "SESSION  STATE                       PROFILE   CHANGED\n\
                  review   waiting for another server  scripted  1m ago\n",
            ),
            (
                80,
                "SESSION  STATE                       PROFILE   CHANGED  EVENTS\n\
                  review   waiting for another server  scripted  1m ago   12\n",
            ),
            (
                120,
                "SESSION  STATE                       PROFILE   CHANGED  EVENTS\n\
                   review   waiting for another server  scripted  1m ago   12\n",
            ),
        ];
        for (width, expected) in expected {
            assert_eq!(text(std::slice::from_ref(&placed), Some(width)), expected, "{width}");
        }
        let here = text(&[running("waiting-runner")], Some(80));
        assert!(here.contains("waiting for a runner "), "{here}");
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
            body["state"] = "failed".into();
            body["closedAt"] = "2030-01-01T00:01:00Z".into();
            body["unread"] = false.into();
        });
        let (times, now) = (Times::default(), "2030-01-01T00:02:03Z".parse().unwrap());
        let failed = session(|body| body["state"] = "failed".into());
        let text = render(&[closed, failed], times, now, None, Paint::PLAIN);
        assert!(
            text.contains("EVENTS  TITLE\nreview   failed, closed  scripted") && text.contains("12      Tuesday"),
            "{text}"
        );
        assert!(text.contains("failed, unread"), "{text}");
    }

    #[test]
    fn a_session_without_a_run_waits_for_one_unless_it_is_closed() {
        let empty = |closed_at: Value| {
            session(|body| {
                body["lastRunId"] = Value::Null;
                body["unread"] = false.into();
                body["state"] = if closed_at.is_null() { "waiting".into() } else { Value::Null };
                body["closedAt"] = closed_at;
            })
        };
        assert_eq!(state_words(&empty(Value::Null)), "waiting for a run");
        assert_eq!(state_words(&empty("2030-01-01T00:01:00Z".into())), "closed");
    }

    #[test]
    fn several_tenants_have_a_column() {
        let text = text(&[session(|_| ()), session(|body| body["tenantId"] = "hwlab".into())], None);
        assert!(text.starts_with("TENANT  SESSION") && text.contains("\nhwlab   review"), "{text}");
    }
}
