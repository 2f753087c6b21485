//! Keeps a session at rest while its files are restored: prompts, shell commands, branches and other rewinds are refused. A server
//! that stops in between does not lock the session for long, because what it holds expires.

use std::time::Duration;

use jiff::SignedDuration;
use ostler_protocol::{Failure, FailureKind, ids::SessionId, kernel::sessions::Session};
use ostler_server::app::App;
use ostler_store::{self as store, daemon::restores::Restore};
use tokio::time::Instant;

use super::sessions::RETRY_AFTER_MS;

/// How long a session stays locked if its server stops, and how often a server that works extends it.
const LOCK_TIME: SignedDuration = SignedDuration::from_secs(30);
const EXTEND_EVERY: Duration = Duration::from_secs(5);

/// The lock of a session whose files are restored.
pub(super) struct RestoreLock {
    restore: Restore,
    extended: Instant,
    is_lost: bool,
}

fn busy(session_id: &str) -> Failure {
    let failure = Failure::new(FailureKind::SessionBusy, "files of the session are being restored");
    failure.detail("sessionId", session_id).detail("retryAfterMs", RETRY_AFTER_MS)
}

/// Fails if files of the session are being restored.
pub(super) async fn check_none(app: &App, session: &Session) -> Result<(), Failure> {
    match store::daemon::restores::is_under_way(&app.db, session.session, app.now()).await? {
        true => Err(busy(&session.public_id())),
        false => Ok(()),
    }
}

impl RestoreLock {
    /// Locks the session. Fails if it is locked.
    pub(super) async fn take(app: &App, session: &Session) -> Result<Self, Failure> {
        let restore = Self::row(app, session.session, app.ids.body().to_string());
        if !store::daemon::restores::insert(&app.db, &restore, app.now()).await? {
            return Err(busy(&session.public_id()));
        }
        Ok(Self { restore, extended: Instant::now(), is_lost: false })
    }

    fn row(app: &App, session: SessionId, restore_id: String) -> Restore {
        Restore { session, restore_id, expires_at: app.now() + LOCK_TIME }
    }

    /// Call before each step. False if the lock has expired, or was lost to another request: no further step must be done.
    pub(super) async fn extend(&mut self, app: &App) -> Result<bool, Failure> {
        if self.is_lost {
            return Ok(false);
        }
        if self.extended.elapsed() < EXTEND_EVERY {
            return Ok(true);
        }
        self.extended = Instant::now();
        self.restore = Self::row(app, self.restore.session, self.restore.restore_id.clone());
        self.is_lost = !store::daemon::restores::update_expiry(&app.db, &self.restore, app.now()).await?;
        Ok(!self.is_lost)
    }

    /// Unlocks the session. If the store fails, the lock expires.
    pub(super) async fn release(self, app: &App) {
        if let Err(error) = store::daemon::restores::delete(&app.db, &self.restore).await {
            tracing::warn!(%error, session = %self.restore.session, "a session stays locked for a while after a rewind");
        }
    }
}
