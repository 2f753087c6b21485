//! Erases the sessions of users who were removed: conversations, clients, notes and files. Digests of the events stay.

use ostler_protocol::{
    Failure, FailureKind, Rule,
    ids::SessionId,
    kernel::{
        operations::{ChangeSessionOp, SessionChange},
        sessions::Session,
    },
};
use ostler_server::{app::App, service::session_storage};
use ostler_store as store;

/// The author of these erasures.
const AUTHOR: &str = "daemon";
/// Sessions that are erased at once.
const ERASED_AT_ONCE: u32 = 100;

/// Erases the sessions of removed users, and finishes erasures that a stopped server had begun. Sessions under a hold are left until
/// it is released. A failure with one session does not stop the others.
pub(crate) async fn erase_orphaned(app: &App) -> Result<(), Failure> {
    for session in store::daemon::sessions::list_orphaned(&app.db, ERASED_AT_ONCE).await? {
        if let Err(failure) = erase(app, session).await {
            log_failure(session, &failure);
        }
    }
    for session in store::daemon::sessions::list_half_erased(&app.db, ERASED_AT_ONCE).await? {
        if let Err(failure) = finish(app, &session).await {
            log_failure(session.session, &failure);
        }
    }
    Ok(())
}

fn log_failure(session: SessionId, failure: &Failure) {
    tracing::warn!(%failure, cause = failure.cause.as_deref(), %session, "erasing a session failed; the next sweep tries again");
}

async fn erase(app: &App, id: SessionId) -> Result<(), Failure> {
    let mut attempts =
        app.db.attempts(|| Failure::new(FailureKind::Overloaded, "the session still has running work; try again"));
    loop {
        attempts.start_next()?;
        let Some(session) = store::kernel::sessions::get(&app.db, id).await? else { return Ok(()) };
        let op = ChangeSessionOp { change: SessionChange::Erase, by: AUTHOR.to_owned() };
        match app.try_submit(id, session.active_run_id, op).await {
            Err(failure) if failure.broken_rule() == Some(Rule::SessionMovedOn) => {}
            outcome => {
                let erased = outcome?.ok_or_else(|| Failure::internal("a key clashed where none is written"))?;
                return finish(app, &erased).await;
            }
        }
    }
}

async fn finish(app: &App, session: &Session) -> Result<(), Failure> {
    app.forget_session(session.session);
    session_storage::finish_erasure(app, session).await
}
