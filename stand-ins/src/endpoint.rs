//! A socket on loopback with one handler behind it, in a thread of its own, so that tests without a runtime can have one.
//! It remembers what it was asked.

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
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub authorization: Option<String>,
    pub body: Value,
}

/// What is answered.
pub enum Answer {
    Status(u16, Value),
    /// Server-sent events, each with the pause before it; a string is sent as it is.
    Stream {
        events: Vec<(Duration, Value)>,
        then: Then,
    },
}

/// What comes after the last event.
pub enum Then {
    End,
    /// Nothing, until the caller goes away.
    Hold,
    /// The connection breaks.
    Break,
}

pub type Handler = dyn Fn(&Seen, &[Seen]) -> Answer + Send + Sync;

struct Desk {
    seen: Mutex<Vec<Seen>>,
    handler: Box<Handler>,
}

/// Listens until it is dropped.
pub struct Socket {
    pub address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Socket {
    pub fn serve(router: Router) -> Self {
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

/// Listens until it is dropped.
pub struct Endpoint {
    desk: Arc<Desk>,
    socket: Socket,
}

impl Endpoint {
    /// `handler` gets the request and those before it.
    pub fn start(handler: impl Fn(&Seen, &[Seen]) -> Answer + Send + Sync + 'static) -> Self {
        let desk = Arc::new(Desk { seen: Mutex::default(), handler: Box::new(handler) });
        let socket = Socket::serve(Router::new().fallback(handle).with_state(desk.clone()));
        Self { desk, socket }
    }

    /// What a provider's `base_url` would be.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.socket.address)
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.desk.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn handle(State(desk): State<Arc<Desk>>, request: Request<Body>) -> Response {
    let path = request.uri().path().to_owned();
    let authorization = header_text(request.headers(), header::AUTHORIZATION.as_str());
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let seen = Seen { path, authorization, body };
    let answer = {
        let mut before = desk.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = (desk.handler)(&seen, &before);
        before.push(seen);
        answer
    };
    match answer {
        Answer::Status(status, body) => Response::builder()
            .status(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .expect("a plain response"),
        Answer::Stream { events, then } => Response::builder()
            .header(header::CONTENT_TYPE, "text/event-stream")
            .body(Body::from_stream(stream(events, then)))
            .expect("a plain response"),
    }
}

fn header_text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// The events one by one; the sender ends when the caller goes away.
fn stream(events: Vec<(Duration, Value)>, then: Then) -> Pieces {
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
                // What was written before must have left, or the break would swallow it.
                tokio::time::sleep(BREAK_PAUSE).await;
                let _ = send.send(Err(std::io::Error::other("broken on purpose"))).await;
            }
        }
    });
    Pieces(receive)
}

struct Pieces(mpsc::Receiver<std::io::Result<Bytes>>);

impl futures_util::Stream for Pieces {
    type Item = std::io::Result<Bytes>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
