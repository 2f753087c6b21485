//! Server-sent events: the parts that the streams of all dialects share.

use std::time::Duration;

use axum::{
    BoxError,
    body::{Body as AxumBody, Bytes},
    response::Response,
};
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, header};
use ostler_protocol::FailureKind;
use secrecy::{ExposeSecret, SecretString};

use super::gate::bearer;
use crate::{app::App, auth::Principal};

pub fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept
        .split(',')
        .any(|range| range.split(';').next().is_some_and(|t| t.trim().eq_ignore_ascii_case("text/event-stream")))
}

/// A response that streams frames, for as long as the caller is still admitted.
pub fn streamed<E: Into<BoxError> + Send + 'static>(
    app: &App,
    caller: Principal,
    headers: &HeaderMap,
    frames: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> Response {
    as_events(AxumBody::from_stream(frames.take_until(turned_away(app, caller, headers))))
}

/// The next frame of a stream, or `None` after this long without one. The work that the stream waits for continues: a slow
/// read of the store is not started again with every keep-alive.
pub async fn next_within<S: Stream + Unpin>(frames: &mut S, wait: Duration) -> Option<Option<S::Item>> {
    tokio::time::timeout(wait, frames.next()).await.ok()
}

pub const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

pub fn as_events(frames: AxumBody) -> Response {
    let mut response = Response::new(frames);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Resolves once the caller is no longer admitted: the token was revoked, has expired, or belongs to another caller.
pub fn turned_away(app: &App, caller: Principal, headers: &HeaderMap) -> impl Future<Output = ()> + Send + use<> {
    let token = bearer(headers).ok().flatten().map(SecretString::from);
    until_turned_away(app.clone(), caller, token)
}

async fn until_turned_away(app: App, caller: Principal, token: Option<SecretString>) {
    // A caller that was admitted without a token has none that could expire.
    let Some(token) = token else { return std::future::pending().await };
    loop {
        tokio::time::sleep(Duration::from_millis(app.config.limits.readmit_ms.max(1))).await;
        // Boxed, because thousands of streams carry this future, and few of them authenticate at the same time.
        match Box::pin(app.auth.authenticate(&app.db, token.expose_secret(), app.wall())).await {
            Ok(principal) if principal == caller => {}
            // A store that does not respond proves nothing about the caller.
            Err(failure) if failure.kind == FailureKind::InfraFailed => {}
            _ => {
                tracing::info!(caller = caller.name(), "an event stream ended: its caller is no longer admitted");
                return;
            }
        }
    }
}
