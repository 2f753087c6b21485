//! What the daemon adds to the server's health: counts, and nothing about any session.

use ostler_protocol::Failure;
use ostler_server::app::App;
use ostler_store::{self as store, daemon::sessions::OpenCounts};
use serde::Serialize;
use tokio::time::{Duration, Instant};
use utoipa::ToSchema;

use crate::state::DaemonState;

/// Counts are reused for this long, so that many callers cost the store no more than one.
const COUNTS_FRESH: Duration = Duration::from_millis(500);

/// The members of `GET /health?deep=1`.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionCounts {
    /// Sessions that are open for clients of the daemon.
    sessions: i64,
    /// Permission requests of these sessions that wait for an answer.
    pending_permissions: i64,
}

pub(crate) async fn counts(app: &App) -> Result<SessionCounts, Failure> {
    // Held while the store counts: concurrent callers share one count.
    let mut last = DaemonState::of(app).last_counts.lock().await;
    let OpenCounts { sessions, pending_permissions } = match *last {
        Some((at, counts)) if at.elapsed() < COUNTS_FRESH => counts,
        _ => {
            let counts = store::daemon::sessions::count_pending(&app.db).await?;
            *last = Some((Instant::now(), counts));
            counts
        }
    };
    Ok(SessionCounts { sessions, pending_permissions })
}
