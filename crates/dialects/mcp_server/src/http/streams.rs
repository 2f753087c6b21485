//! The stream of a call that waits: notifications of its progress, each under an id by which the stream can be resumed, and then the
//! response. A client that disconnects ends the stream and nothing else.

use std::{convert::Infallible, time::Duration};

use axum::{body::Body as AxumBody, response::Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::HeaderMap;
use ostler_protocol::{
    mcp_server::{
        event_ids::{ENDED, WaitPoint},
        messages::progress,
    },
    rpc::{RpcFrame, Version},
};
use ostler_server::net::sse::{KEEP_ALIVE, as_events, next_within, streamed};
use tokio::sync::mpsc::{self, Sender};

use super::messages::{failed, finish};
use crate::service::{
    calls::{self, RegisteredCall},
    context::RequestContext,
    waits::{WaitStep, Waiter},
};

/// Frames that wait for a slow client. Then the wait itself pauses.
const FRAMES_QUEUED_MAX: usize = 16;
/// After how long a client reconnects, in milliseconds.
const RECONNECT_MS: u32 = 500;

/// A stream with one message.
pub(super) fn single(message: &RpcFrame) -> Response {
    as_events(AxumBody::from(frame(None, message)))
}

/// Streams a call until its wait is over.
pub(super) fn respond(context: RequestContext, headers: &HeaderMap, point: WaitPoint, waiter: Waiter) -> Response {
    let (sender, receiver) = mpsc::channel(FRAMES_QUEUED_MAX);
    let (app, caller) = (context.app.clone(), context.caller.clone());
    let heartbeat = Duration::from_millis(app.config.limits.heartbeat_ms);
    tokio::spawn(run(context, point, waiter, sender));
    let frames = stream::unfold(receiver, |mut receiver| async move {
        let frame: Bytes = receiver.recv().await?;
        Some((frame, receiver))
    });
    let with_keep_alives = stream::unfold(Box::pin(frames), move |mut frames| async move {
        let next = next_within(&mut frames, heartbeat).await.unwrap_or(Some(KEEP_ALIVE));
        next.map(|frame| (frame, frames))
    });
    // Send the first bytes at once, so that the client knows that its call was accepted.
    let open = stream::iter([Bytes::from_static(b": open\n\n")]);
    streamed(&app, caller, headers, open.chain(with_keep_alives).map(Ok::<_, Infallible>))
}

async fn run(context: RequestContext, mut point: WaitPoint, mut waiter: Waiter, sender: Sender<Bytes>) {
    let registered = RegisteredCall::new(&context, &point.request_id);
    if context.revision.primes_streams()
        && let Some(id) = point.encode()
    {
        let _ = sender.send(Bytes::from(format!("id: {id}\nretry: {RECONNECT_MS}\ndata:\n\n"))).await;
    }
    let end = tokio::select! {
        // The client has disconnected.
        () = sender.closed() => return,
        () = calls::cancelled(registered.as_ref()) => None,
        end = notify_until_over(&context, &mut point, &mut waiter, &sender) => Some(end),
    };
    let last = match end {
        // A cancelled call gets no response. Its last id lets a client that resumes it recognise this.
        None if context.revision.primes_streams() => Bytes::from(format!("id: {ENDED}\ndata:\n\n")),
        Some(Some(response)) => frame(None, &response),
        None | Some(None) => return,
    };
    let _ = sender.send(last).await;
}

/// Notifies the client of each event of the run. Returns the response, or `None` if the server stops: the client then resumes the
/// stream at another server.
async fn notify_until_over(
    context: &RequestContext,
    point: &mut WaitPoint,
    waiter: &mut Waiter,
    sender: &Sender<Bytes>,
) -> Option<RpcFrame> {
    loop {
        match waiter.next().await {
            Ok(WaitStep::Progress { seq, event_type }) => {
                point.notified_seq = seq;
                if let Some(token) = &point.progress_token {
                    let notification = progress(token, seq, event_type.as_str());
                    // A client that has disconnected is noticed by the caller.
                    let _ = sender.send(frame(point.encode().as_deref(), &notification)).await;
                }
            }
            Ok(WaitStep::Over) => return Some(finish(context, point).await),
            Ok(WaitStep::Cut) => return None,
            Err(failure) => return Some(failed(context, point, failure)),
        }
    }
}

fn frame(id: Option<&str>, message: &RpcFrame) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    // JSON text has line breaks only between tokens, where a space does as well.
    let text = message.write(Version::Two).replace(['\n', '\r'], " ");
    Bytes::from(format!("{id}event: message\ndata: {text}\n\n"))
}
