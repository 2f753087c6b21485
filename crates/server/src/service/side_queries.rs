//! Side queries: a question about a session's conversation to the backend of a profile. It is no turn: it uses no tool, leaves no
//! event and never changes the session. It counts against no budget, only against a bound of questions at once.

use std::time::Duration;

use ostler_protocol::{Failure, FailureKind};
pub use ostler_runner::SideQuery;
use ostler_runner::{SideQueryLimits, answers_side_queries, side_query};
use ostler_store::failures::is_of_store;
use tokio::time::{Instant, timeout};

use super::provider_profiles;
use crate::{app::App, auth::Principal, launcher::standalone, metrics::SideQueryEnd};

/// The whole time that a backend gets for an answer.
const DEADLINE: Duration = Duration::from_secs(60);
const ANSWER_CHARS_MAX: usize = 32 * 1024;
/// How many questions a server has answered at once, and how many of them for one caller.
const AT_ONCE_MAX: usize = 8;
const AT_ONCE_PER_CALLER_MAX: usize = 4;

/// The backend that a question is for.
pub struct QueriedBackend<'a> {
    pub tenant_id: &'a str,
    pub profile: &'a str,
}

/// How a question ended.
#[derive(Debug)]
pub enum SideAnswer {
    /// `None` if the backend has no answer, or cannot be asked without its tools.
    Answered(Option<String>),
    /// The backend or its provider failed.
    Failed(Failure),
}

/// Asks a question. Fails if too many are asked at once, or if the store does not respond. Dropping the future ends the request. The
/// caller of this function authorises.
pub async fn ask(
    app: &App,
    caller: &Principal,
    backend: QueriedBackend<'_>,
    query: &SideQuery,
) -> Result<SideAnswer, Failure> {
    let _permit = app.side_queries.admit(caller, AT_ONCE_MAX, AT_ONCE_PER_CALLER_MAX)?;
    let mut counted = Counted { app, end: SideQueryEnd::Dropped };
    let answer = answer(app, backend, query).await?;
    counted.end = match &answer {
        SideAnswer::Answered(Some(_)) => SideQueryEnd::Answered,
        SideAnswer::Answered(None) => SideQueryEnd::Empty,
        SideAnswer::Failed(_) => SideQueryEnd::Failed,
    };
    Ok(answer)
}

/// Whether the backend has a model that can be asked without tools. Fails if the store does not respond. Nothing is started.
pub async fn can_answer(app: &App, backend: QueriedBackend<'_>) -> Result<bool, Failure> {
    let QueriedBackend { tenant_id, profile } = backend;
    if provider_profiles::is_external(app, profile) {
        return Ok(false);
    }
    match standalone::describe(app, tenant_id, profile).await {
        Ok((environment, files)) => Ok(answers_side_queries(&environment, &files)),
        Err(failure) if is_of_store(&failure) => Err(failure),
        Err(_) => Ok(false),
    }
}

async fn answer(app: &App, backend: QueriedBackend<'_>, query: &SideQuery) -> Result<SideAnswer, Failure> {
    let QueriedBackend { tenant_id, profile } = backend;
    // Its program and its credential are elsewhere.
    if provider_profiles::is_external(app, profile) {
        return Ok(SideAnswer::Answered(None));
    }
    let began = Instant::now();
    let late = |_| Failure::new(FailureKind::BackendTimeout, "the backend's profile could not be read in time");
    let described = timeout(DEADLINE, standalone::describe(app, tenant_id, profile)).await;
    let (environment, files) = match described.map_err(late).flatten() {
        Ok(described) => described,
        Err(failure) if is_of_store(&failure) => return Err(failure),
        Err(failure) => return Ok(SideAnswer::Failed(failure)),
    };
    let deadline = DEADLINE.saturating_sub(began.elapsed());
    let limits = SideQueryLimits { deadline, answer_chars_max: ANSWER_CHARS_MAX };
    Ok(match side_query(&environment, &files, query, limits).await {
        Ok(answer) => SideAnswer::Answered(answer.map(|answer| app.redactor.redact(&answer).into_owned())),
        Err(end) => {
            let kind = end.failure_kind.unwrap_or(FailureKind::BackendFailed);
            let message = end.message.unwrap_or_else(|| "the backend failed".to_owned());
            tracing::info!(%kind, reason = %app.redactor.redact(&message), "a side query failed");
            SideAnswer::Failed(Failure::new(kind, message))
        }
    })
}

/// Counts how a question ended, also if its caller has left.
struct Counted<'a> {
    app: &'a App,
    end: SideQueryEnd,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.app.metrics.side_query_ended(self.end);
    }
}
