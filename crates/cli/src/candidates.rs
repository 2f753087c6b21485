//! What a shell is offered for an argument: ids and names from the server. If the server does not respond at once, the shell
//! is offered nothing.

use std::{ffi::OsStr, time::Duration};

use clap_complete::{ArgValueCompleter, CompletionCandidate};
use ostler_client::Client;
use ostler_protocol::{
    Failure,
    callers::CallerAction,
    kernel::{
        backends::Backend,
        run_views::RunView,
        runs::{ListRuns, RunState},
        sessions::{ListSessions, SessionView},
    },
    limits::PAGE_ITEMS_MAX,
    tokens::{ListTokens, ServiceToken},
    users::{ListUsers, User},
};

use crate::{
    connection::Connection,
    terminal::{
        status::run_words,
        times::{age, now},
    },
};

/// A person is waiting at a prompt.
const DEADLINE: Duration = Duration::from_millis(800);
/// How many are read if nothing was typed yet: more could not be read at a glance.
const CANDIDATES_MAX: u32 = 50;

/// Runs and sessions, for an argument that takes either.
pub(crate) fn targets() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        // Among more of them once the beginning of one was typed.
        let limit = if word.is_empty() { CANDIDATES_MAX } else { PAGE_ITEMS_MAX };
        query_server(word, async |client: &Client| fetch_targets(client, None, limit).await)
    })
}

/// Runs that wait for an answer, and their sessions.
pub(crate) fn waiting() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let state = Some(RunState::Waiting.as_str());
        query_server(word, async |client: &Client| fetch_targets(client, state, PAGE_ITEMS_MAX).await)
    })
}

/// Whether the candidate begins with what was typed.
fn fits(candidate: &CompletionCandidate, word: &OsStr) -> bool {
    let begun = word.to_str().unwrap_or_default();
    candidate.get_value().to_str().is_some_and(|value| value.starts_with(begun))
}

fn query_server(
    word: &OsStr,
    fetch: impl AsyncFnOnce(&Client) -> Result<Vec<CompletionCandidate>, Failure>,
) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return vec![] };
    let found = runtime.block_on(async {
        let client = Connection::default().client()?;
        tokio::time::timeout(DEADLINE, fetch(&client)).await.map_err(Failure::internal)?
    });
    found.unwrap_or_default().into_iter().filter(|candidate| fits(candidate, word)).collect()
}

/// Service tokens.
pub(crate) fn tokens() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        query_server(word, async |client: &Client| {
            let query = ListTokens { limit: Some(CANDIDATES_MAX), cursor: None };
            let one = |token: ServiceToken| {
                CompletionCandidate::new(token.token_id.to_string()).help(Some(token.name.into()))
            };
            Ok(client.list_tokens(&query).await?.tokens.into_iter().map(one).collect())
        })
    })
}

/// Actions that depend on the caller.
pub(crate) fn actions() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        query_server(word, async |client: &Client| {
            let one =
                |action: CallerAction| CompletionCandidate::new(action.action).help(Some(action.description.into()));
            Ok(client.caller().await?.actions.into_iter().map(one).collect())
        })
    })
}

/// Names of users.
pub(crate) fn users() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        query_server(word, async |client: &Client| {
            let query = ListUsers { limit: Some(CANDIDATES_MAX), cursor: None };
            let one = |user: User| CompletionCandidate::new(user.name).help(Some(user.tenants.join(", ").into()));
            Ok(client.list_users(&query).await?.users.into_iter().map(one).collect())
        })
    })
}

/// Backend profiles.
pub(crate) fn profiles() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        query_server(word, async |client: &Client| {
            let one =
                |backend: Backend| CompletionCandidate::new(backend.profile).help(Some(backend.backend_kind.into()));
            Ok(client.list_backends().await?.backends.into_iter().map(one).collect())
        })
    })
}

/// Runs, of a state or all, and their sessions, or all if no state is given.
async fn fetch_targets(client: &Client, state: Option<&str>, limit: u32) -> Result<Vec<CompletionCandidate>, Failure> {
    let runs = ListRuns { state: state.map(str::to_owned), limit: Some(limit), ..ListRuns::default() };
    let sessions = ListSessions { state: Some("all".into()), limit: Some(limit), ..ListSessions::default() };
    let (runs, sessions) = tokio::try_join!(client.list_runs(&runs), client.list_sessions(&sessions))?;
    let is_offered =
        |session: &SessionView| state.is_none() || runs.runs.iter().any(|run| run.run.session_id == session.session_id);
    let session = |session: SessionView| {
        let help = format!("session, {} ago", age(session.updated_at, now()));
        CompletionCandidate::new(session.session_id).help(Some(help.into()))
    };
    let sessions: Vec<_> = sessions.sessions.into_iter().filter(is_offered).map(session).collect();
    let run = |run: RunView| {
        let help = format!("run, {}, {} ago", run_words(&run), age(run.run.updated_at, now()));
        CompletionCandidate::new(run.run.run_id.to_string()).help(Some(help.into()))
    };
    Ok(runs.runs.into_iter().map(run).chain(sessions).collect())
}
