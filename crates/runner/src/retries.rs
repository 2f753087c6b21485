//! Repeating calls to a server that does not respond.

use ostler_client::is_transient;
use ostler_protocol::Failure;
use tokio::time::{Duration, Instant, sleep};

const RETRY_FIRST_MS: u64 = 50;
pub(crate) const RETRY_MS_MAX: u64 = 2_000;

/// Repeats a call until the server replies or `limit` has passed. Only for calls that may be repeated.
pub(crate) async fn retry<T, F: Future<Output = Result<T, Failure>>>(
    limit: Duration,
    mut call: impl FnMut() -> F,
) -> Result<T, Failure> {
    let until = Instant::now() + limit;
    let mut pause = Duration::from_millis(RETRY_FIRST_MS);
    loop {
        match call().await {
            Err(failure) if is_transient(&failure) && Instant::now() + pause < until => {
                tracing::debug!(%failure, "the call failed; retrying");
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(RETRY_MS_MAX));
            }
            result => return result,
        }
    }
}
