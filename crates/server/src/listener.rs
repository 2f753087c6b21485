//! The listener: bounded in connections, and impatient with peers. A connection whose peer does not finish the head of its
//! request, or stops reading its response, is closed, so that neither holds a place, or a stream and what feeds it, for long.

mod framing;

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use ::http::StatusCode;
use axum::{Router, body::Body, extract::ConnectInfo};
use hyper::{
    body::Incoming,
    server::conn::http1::{self, UpgradeableConnection},
    service::{HttpService, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use self::framing::Framing;
use crate::{
    app::App,
    http::{self, Peer},
    waiting::{Bounds, Ticket, Waiting},
};

/// How long open requests get to finish once the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until the server stops, then lets open requests finish.
pub async fn serve(app: App, listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let limits = &app.config.limits;
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let head = Duration::from_millis(limits.head_ms);
    let silent = Waiting::new(Bounds {
        all_max: limits.connections_max,
        per_address_max: limits.silent_per_address_max,
        pressed_wait: head / 4,
    });
    let mut http = http1::Builder::new();
    // The time for a head is measured from its first byte, by the connection itself.
    http.timer(TokioTimer::new()).header_read_timeout(Duration::from_millis(limits.idle_ms.max(limits.head_ms)));
    loop {
        let (stream, address, place) = tokio::select! {
            accepted = accept(&listener, &places, &silent) => accepted,
            () = app.stopped() => break,
        };
        let stream =
            Tcp { stream, patience: Duration::from_millis(limits.slow_reader_ms), stalled: None, _place: place };
        let ticket = silent.enter(address.ip());
        let (http, app, router, tls) = (http.clone(), app.clone(), router.clone(), tls.clone());
        tokio::spawn(async move {
            let closed = ticket.closed();
            let served = tokio::select! {
                served = serve_one(&app, stream, address, ticket, (http, tls, router)) => served,
                () = closed.notified() => Err("crowded-out"),
            };
            if let Err(reason) = served {
                app.metrics.connection_dropped(reason);
            }
        });
    }
    drop(listener);
    // Every connection gives its place back, also one that became a WebSocket.
    let all = u32::try_from(app.config.limits.connections_max).unwrap_or(u32::MAX);
    if tokio::time::timeout(DRAIN, places.acquire_many(all)).await.is_err() {
        tracing::warn!("requests were still open when the server stopped");
    }
}

type Layers = (http1::Builder, Option<TlsAcceptor>, Router);

/// Serves one connection until it ends. Errors say why it was dropped.
async fn serve_one(
    app: &App,
    stream: Tcp,
    address: SocketAddr,
    ticket: Ticket,
    (http, tls, router): Layers,
) -> Result<(), &'static str> {
    let seen = Arc::new(Seen { ticket: Mutex::new(Some(ticket)), ..Seen::default() });
    let head = Duration::from_millis(app.config.limits.head_ms);
    let service = {
        let (app, seen) = (app.clone(), seen.clone());
        service_fn(move |request: hyper::Request<Incoming>| {
            respond(app.clone(), router.clone(), address, seen.clone(), request)
        })
    };
    let served = match tls {
        None => {
            let watched = TokioIo::new(Watched::new(stream, seen, head));
            until_stopped(http.serve_connection(watched, service).with_upgrades(), app).await
        }
        Some(tls) => {
            // A peer that does not get on with its handshake is as slow as one whose head does not come.
            let Ok(Ok(stream)) = tokio::time::timeout(head, tls.accept(stream)).await else { return Err("slow-head") };
            let watched = TokioIo::new(Watched::new(stream, seen, head));
            until_stopped(http.serve_connection(watched, service).with_upgrades(), app).await
        }
    };
    served.map_err(|error| {
        tracing::debug!(%error, "a connection ended early");
        reason(&error)
    })
}

async fn respond(
    app: App,
    router: Router,
    address: SocketAddr,
    seen: Arc<Seen>,
    request: hyper::Request<Incoming>,
) -> Result<axum::response::Response, Infallible> {
    // It is silent no more.
    drop(seen.ticket.lock().expect("never poisoned").take());
    if seen.has_bare_feed.load(Ordering::Relaxed) {
        return Ok(http::bare_feed(&app, request.uri().path(), address.ip()));
    }
    if seen.is_lost.load(Ordering::Relaxed) {
        return Ok(http::unknown_length(&app, request.uri().path(), address.ip()));
    }
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(Peer(address)));
    let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        seen.is_upgraded.store(true, Ordering::Relaxed);
    }
    Ok(response)
}

/// Once the server stops, lets the request finish that is open.
async fn until_stopped<I, S>(served: UpgradeableConnection<TokioIo<I>, S>, app: &App) -> Result<(), hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: HttpService<Incoming, ResBody = Body, Error = Infallible>,
{
    let mut served = pin!(served);
    tokio::select! {
        ended = served.as_mut() => return ended,
        () = app.stopped() => served.as_mut().graceful_shutdown(),
    }
    served.await
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    silent: &Waiting,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    loop {
        if places.available_permits() == 0 {
            silent.close_one();
        }
        let place = places.clone().acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, address)) => {
                let _ = stream.set_nodelay(true);
                return (stream, address, place);
            }
            Err(error) => {
                // Out of file descriptors, most likely: give others time to close theirs.
                tracing::warn!(%error, "accepting a connection failed");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Why the connection was dropped, as the metrics name it.
fn reason(error: &hyper::Error) -> &'static str {
    let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    let slow = io.and_then(io::Error::get_ref).and_then(|inner| inner.downcast_ref::<Slow>());
    match slow {
        Some(Slow::Reader) => "slow-reader",
        Some(Slow::Head) => "slow-head",
        None if error.is_timeout() => "slow-head",
        None => "other",
    }
}

/// What the peer was too slow with.
#[derive(Clone, Copy, Debug)]
enum Slow {
    Reader,
    Head,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reader => "the peer does not read its response",
            Self::Head => "the head of a request did not arrive in time",
        })
    }
}

impl std::error::Error for Slow {}

fn timed_out<T>(slow: Slow) -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, slow)))
}

/// A connection that gives up on a peer that reads nothing.
struct Tcp {
    stream: TcpStream,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Tcp {
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        timed_out(Slow::Reader)
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What the stream and the service of one connection tell each other.
#[derive(Default)]
struct Seen {
    /// The connection's place among the silent ones, until its first request.
    ticket: Mutex<Option<Ticket>>,
    has_bare_feed: AtomicBool,
    /// It is unknown where a request of it begins.
    is_lost: AtomicBool,
    /// It is a WebSocket now.
    is_upgraded: AtomicBool,
}

/// A connection's bytes in clear, with an eye on the heads of its requests.
struct Watched<S> {
    stream: S,
    seen: Arc<Seen>,
    framing: Framing,
    head: Duration,
    /// When the head that has begun must have ended. A new connection begins with one.
    late: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    fn new(stream: S, seen: Arc<Seen>, head: Duration) -> Self {
        Self { stream, seen, framing: Framing::default(), head, late: Some(Box::pin(sleep(head))) }
    }

    fn watch(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.seen.is_upgraded.load(Ordering::Relaxed) {
            self.late = None;
            return;
        }
        self.framing.read(bytes);
        if self.framing.has_bare_feed() {
            self.seen.has_bare_feed.store(true, Ordering::Relaxed);
        }
        if self.framing.is_lost() {
            self.seen.is_lost.store(true, Ordering::Relaxed);
        }
        match self.framing.is_in_head() {
            false => self.late = None,
            true if self.late.is_none() => self.late = Some(Box::pin(sleep(self.head))),
            true => {}
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.watch(&buffer.filled()[before..]);
            return read;
        }
        match &mut self.late {
            Some(late) => {
                ready!(late.as_mut().poll(context));
                timed_out(Slow::Head)
            }
            None => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
