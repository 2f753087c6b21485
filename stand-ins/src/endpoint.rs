//! A socket on loopback with one handler, in its own thread, so that tests without a runtime can use it. It records the
//! requests it receives.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, Request, StatusCode, header},
    response::Response,
};
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

const BREAK_PAUSE: Duration = Duration::from_millis(50);
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A request that was received.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub path: String,
    pub authorization: Option<String>,
    pub body: Value,
}

/// The reply to a request.
pub(crate) enum Reply {
    Status(u16, Value),
    /// Server-sent events, each with the pause before it. A string is sent unchanged.
    Stream {
        events: Vec<(Duration, Value)>,
        then: Then,
    },
}

/// What happens after the last event.
pub(crate) enum Then {
    End,
    /// Nothing, until the client disconnects.
    Hold,
    /// The connection breaks.
    Break,
}

type Handler = dyn Fn(&RecordedRequest, &[RecordedRequest]) -> Reply + Send + Sync;

struct EndpointState {
    seen: Mutex<Vec<RecordedRequest>>,
    handler: Box<Handler>,
}

/// A socket that listens until it is dropped.
pub(crate) struct Socket {
    pub(crate) address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Socket {
    #[expect(clippy::expect_used, reason = "a test without a socket cannot continue")]
    pub(crate) fn serve(router: Router) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port on loopback");
        let address = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("a socket can be non-blocking");
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listening socket");
                tokio::select! {
                    _ = axum::serve(listener, router) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, _stop: stop }
    }
}

/// A provider's endpoint, which listens until it is dropped.
pub struct Endpoint {
    state: Arc<EndpointState>,
    socket: Socket,
}

impl Endpoint {
    /// Starts an endpoint. `handler` receives the request and all earlier ones.
    pub(crate) fn start(
        handler: impl Fn(&RecordedRequest, &[RecordedRequest]) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(EndpointState { seen: Mutex::default(), handler: Box::new(handler) });
        let socket = Socket::serve(Router::new().fallback(handle).with_state(state.clone()));
        Self { state, socket }
    }

    /// The provider's `base_url`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.socket.address)
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<RecordedRequest> {
        self.state.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[expect(clippy::expect_used, reason = "the status and headers are valid")]
async fn handle(State(state): State<Arc<EndpointState>>, request: Request<Body>) -> Response {
    let path = request.uri().path().to_owned();
    let authorization = header_text(request.headers(), header::AUTHORIZATION.as_str());
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let request = RecordedRequest { path, authorization, body };
    let reply = {
        let mut before = state.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = (state.handler)(&request, &before);
        before.push(request);
        reply
    };
    match reply {
        Reply::Status(status, body) => Response::builder()
            .status(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .expect("a plain response"),
        Reply::Stream { events, then } => Response::builder()
            .header(header::CONTENT_TYPE, "text/event-stream")
            .body(Body::from_stream(stream(events, then)))
            .expect("a plain response"),
    }
}

fn header_text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// The events one by one. Sending ends when the client disconnects.
fn stream(events: Vec<(Duration, Value)>, then: Then) -> EventBytes {
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(async move {
        for (pause, event) in events {
            tokio::time::sleep(pause).await;
            let name = event["type"].as_str().map(|name| format!("event: {name}\n")).unwrap_or_default();
            let data = event.as_str().map_or_else(|| event.to_string(), str::to_owned);
            if send.send(Ok(format!("{name}data: {data}\n\n").into())).await.is_err() {
                return;
            }
        }
        match then {
            Then::End => {}
            Then::Hold => send.closed().await,
            Then::Break => {
                // The earlier events must have been sent, or the break would drop them.
                tokio::time::sleep(BREAK_PAUSE).await;
                let _ = send.send(Err(std::io::Error::other("broken on purpose"))).await;
            }
        }
    });
    EventBytes(receive)
}

struct EventBytes(mpsc::Receiver<std::io::Result<Bytes>>);

impl futures_util::Stream for EventBytes {
    type Item = std::io::Result<Bytes>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
