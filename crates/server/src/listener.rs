//! The listener: bounded in connections, and impatient with peers. One that does not finish its request's head or stops
//! reading its answer is dropped, so that neither holds a place, or a stream and what feeds it, for long.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

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

use crate::{app::App, http::Peer};

/// How long open requests get to finish once the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until the server stops, then lets open requests finish.
pub async fn serve(app: App, listener: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let limits = &app.config.limits;
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let patience = Duration::from_millis(limits.slow_reader_ms);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(Duration::from_millis(limits.head_ms));
    loop {
        let (stream, address, place) = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = app.stopped() => break,
        };
        let connection = Connection { stream, patience, stalled: None, _place: place };
        let (router, tls) = (router.clone(), tls.clone());
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(Peer(address)));
            let answer = router.clone().oneshot(request);
            async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
        });
        let (http, app) = (http.clone(), app.clone());
        tokio::spawn(async move {
            let served = match tls {
                None => {
                    until_stopped(http.serve_connection(TokioIo::new(connection), service).with_upgrades(), &app).await
                }
                Some(tls) => {
                    // A peer that does not get on with its handshake is as slow as one whose head does not come.
                    let patience = Duration::from_millis(app.config.limits.head_ms);
                    let Ok(Ok(stream)) = tokio::time::timeout(patience, tls.accept(connection)).await else {
                        return app.metrics.connection_dropped("slow-head");
                    };
                    until_stopped(http.serve_connection(TokioIo::new(stream), service).with_upgrades(), &app).await
                }
            };
            if let Err(error) = served {
                app.metrics.connection_dropped(reason(&error));
                tracing::debug!(%error, "a connection ended early");
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

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    loop {
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

/// Which of our patience it was that ran out, if it was ours.
fn reason(error: &hyper::Error) -> &'static str {
    let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match io {
        Some(io) if io.kind() == io::ErrorKind::TimedOut => "slow-reader",
        _ if error.is_timeout() => "slow-head",
        _ => "other",
    }
}

/// A connection that gives up on a reader who takes nothing.
struct Connection {
    stream: TcpStream,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader takes nothing")))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
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
