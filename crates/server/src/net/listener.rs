//! The listener: limits the number of connections, and the time that peers may take. A connection whose peer does not finish the
//! head of its request, or stops reading its response, is closed, so that it does not hold a slot or a stream for long.

mod framing;

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use ::http::StatusCode;
use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    extract::ConnectInfo,
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    server::conn::http1::{self, UpgradeableConnection},
    service::{HttpService, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use self::framing::Framing;
use crate::{
    app::App,
    net::{
        self, Peer,
        waiting_connections::{Bounds, Ticket, WaitingConnections},
    },
};

/// How long open requests get to finish once the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until the server stops, then lets open requests finish.
pub async fn serve(app: App, listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let limits = &app.config.limits;
    let connections = Arc::new(Semaphore::new(limits.connections_max));
    let head = Duration::from_millis(limits.head_ms);
    let silent = WaitingConnections::new(Bounds {
        all_max: limits.connections_max,
        per_address_max: limits.silent_per_address_max,
        pressed_wait: head / 4,
    });
    let mut http = http1::Builder::new();
    // The time for a head is measured from its first byte, by the connection itself.
    http.timer(TokioTimer::new()).header_read_timeout(Duration::from_millis(limits.idle_ms.max(limits.head_ms)));
    loop {
        let (stream, address, permit) = tokio::select! {
            accepted = accept(&listener, &connections, &silent) => accepted,
            () = app.stopped() => break,
        };
        let stream =
            Tcp { stream, patience: Duration::from_millis(limits.slow_reader_ms), stalled: None, _permit: permit };
        let connection = Arc::new(Seen::new(address, silent.clone()));
        let (http, app, router, tls) = (http.clone(), app.clone(), router.clone(), tls.clone());
        tokio::spawn(async move {
            let closed = connection.closed.clone();
            let served = tokio::select! {
                served = serve_one(&app, stream, connection, (http, tls, router)) => served,
                () = closed.notified() => Err("crowded-out"),
            };
            if let Err(reason) = served {
                app.metrics.connection_dropped(reason);
            }
        });
    }
    drop(listener);
    // Every connection releases its slot, also one that became a WebSocket.
    let all = u32::try_from(app.config.limits.connections_max).unwrap_or(u32::MAX);
    if tokio::time::timeout(DRAIN, connections.acquire_many(all)).await.is_err() {
        tracing::warn!("requests were still open when the server stopped");
    }
}

type Layers = (http1::Builder, Option<TlsAcceptor>, Router);

/// Serves one connection until it ends. `Err` is the reason for which it was dropped.
async fn serve_one(app: &App, stream: Tcp, seen: Arc<Seen>, (http, tls, router): Layers) -> Result<(), &'static str> {
    let head = Duration::from_millis(app.config.limits.head_ms);
    let service = {
        let (app, seen) = (app.clone(), seen.clone());
        service_fn(move |request: hyper::Request<Incoming>| respond(app.clone(), router.clone(), seen.clone(), request))
    };
    let served = match tls {
        None => {
            let watched = TokioIo::new(Watched::new(stream, seen, head));
            until_stopped(http.serve_connection(watched, service).with_upgrades(), app).await
        }
        Some(tls) => {
            // A handshake has the same time limit as the head of a request.
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
    seen: Arc<Seen>,
    request: hyper::Request<Incoming>,
) -> Result<axum::response::Response, Infallible> {
    let address = seen.address;
    seen.stop_waiting();
    if seen.has_bare_feed.load(Ordering::Relaxed) {
        return Ok(net::bare_feed(&app, request.uri().path(), address.ip()));
    }
    if seen.is_lost.load(Ordering::Relaxed) {
        return Ok(net::unknown_length(&app, request.uri().path(), address.ip()));
    }
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(Peer(address)));
    let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        seen.is_upgraded.store(true, Ordering::Relaxed);
        return Ok(response);
    }
    Ok(response.map(|body| Body::new(ResponseBody { body, seen })))
}

/// When the server stops, lets the open request finish.
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

#[expect(clippy::expect_used, reason = "never closed")]
async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
    waiting: &WaitingConnections,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let _ = stream.set_nodelay(true);
                // Only now, so that the connection that is closed to make room is not the newest one.
                if connections.available_permits() == 0 {
                    waiting.close_one();
                }
                let permit = connections.clone().acquire_owned().await.expect("never closed");
                return (stream, address, permit);
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
    _permit: OwnedSemaphorePermit,
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

/// State of one connection, shared by its stream and its service.
struct Seen {
    address: SocketAddr,
    waiting: Arc<WaitingConnections>,
    /// The connection's entry among the waiting ones: until its first request, and between two requests.
    ticket: Mutex<Option<Ticket>>,
    /// Notified if the connection must make room for another one while it waits.
    closed: Arc<Notify>,
    has_bare_feed: AtomicBool,
    /// The start of the next request is unknown.
    is_lost: AtomicBool,
    /// The connection has become a WebSocket.
    is_upgraded: AtomicBool,
}

impl Seen {
    fn new(address: SocketAddr, waiting: Arc<WaitingConnections>) -> Self {
        let closed = Arc::<Notify>::default();
        let ticket = waiting.enter_with(address.ip(), closed.clone());
        Self {
            address,
            waiting,
            ticket: Mutex::new(Some(ticket)),
            closed,
            has_bare_feed: AtomicBool::default(),
            is_lost: AtomicBool::default(),
            is_upgraded: AtomicBool::default(),
        }
    }

    fn stop_waiting(&self) {
        drop(self.ticket.lock().take());
    }

    /// A response has ended. Connections without any request are closed before this one.
    fn wait_for_next(&self) {
        let ticket = self.waiting.enter_with(self.address.ip(), self.closed.clone());
        ticket.speak();
        *self.ticket.lock() = Some(ticket);
    }
}

/// The body of a response. At its end the connection waits for the next request.
struct ResponseBody {
    body: Body,
    seen: Arc<Seen>,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.seen.wait_for_next();
    }
}

/// A connection's decrypted bytes, with a time limit for the heads of its requests.
struct Watched<S> {
    stream: S,
    seen: Arc<Seen>,
    framing: Framing,
    head: Duration,
    /// Deadline for the end of the current head. A new connection starts with one.
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
