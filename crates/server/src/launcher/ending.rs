//! How a runner has ended, and reporting it until the store has it.

use std::time::Duration;

use ostler_protocol::{Failure, FailureKind, RawJson, kernel::runner_jobs::JobEnd};
use ostler_store::failures::is_of_store;
use serde_json::json;

use crate::app::App;

/// How a runner ended.
pub(super) enum Ending {
    /// The launcher has to report the end, with this summary.
    Report(JobEnd, RawJson),
    /// The runner has ended its job itself.
    Reported(JobEnd),
    /// It continues without this server.
    Continues,
}

impl From<(JobEnd, RawJson)> for Ending {
    fn from((end, summary): (JobEnd, RawJson)) -> Self {
        Self::Report(end, summary)
    }
}

/// Repeats `call` while the store does not respond, so that an outage does not fail the start of a job. `None` if the server
/// stops first.
pub(super) async fn once_stored<T, F>(app: &App, mut call: impl FnMut() -> F) -> Option<Result<T, Failure>>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut pause = STORE_PAUSE.0;
    loop {
        match call().await {
            Err(failure) if is_of_store(&failure) => {
                tracing::warn!(
                    cause = failure.cause.as_deref(),
                    "the store does not respond; a runner waits to be started"
                );
            }
            outcome => return Some(outcome),
        }
        tokio::select! {
            () = tokio::time::sleep(longer(&mut pause)) => {}
            () = app.stopped() => return None,
        }
    }
}

pub(super) fn failed(status: &str, message: &str) -> (JobEnd, RawJson) {
    failed_with(FailureKind::InfraFailed, status, message)
}

fn failed_with(kind: FailureKind, status: &str, message: &str) -> (JobEnd, RawJson) {
    let message = ostler_protocol::text::clip(message, MESSAGE_CHARS_MAX);
    (JobEnd::Failed, RawJson::of(&json!({"status": status, "failureKind": kind, "message": message})))
}

pub(super) fn not_started(failure: &Failure) -> (JobEnd, RawJson) {
    tracing::warn!(%failure, cause = failure.cause.as_deref(), "a runner could not be started");
    // Of all causes, only storage that is gone cannot be mended by another start.
    let kind = match failure.kind {
        FailureKind::SessionStoreEvicted => failure.kind,
        _ => FailureKind::InfraFailed,
    };
    failed_with(kind, "not-started", &failure.message)
}

/// The result of a job whose server stops before its runner has finished.
pub(super) fn returned() -> (JobEnd, RawJson) {
    (JobEnd::Returned, RawJson::of(&json!({"status": "returned", "message": "its server stopped"})))
}

/// Pause between two attempts while the store does not respond: the first, and the longest.
pub(crate) const STORE_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
const MESSAGE_CHARS_MAX: usize = 300;

/// The pause before this attempt. Doubles `pause` for the next one.
pub(crate) fn longer(pause: &mut Duration) -> Duration {
    std::mem::replace(pause, (*pause * 2).min(STORE_PAUSE.1))
}
