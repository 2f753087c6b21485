//! The socket of the API server. It runs in a thread of its own, so that tests without a runtime can use it and a test
//! that pauses its clock does not pause the cluster's.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::controllers;
use super::http::handle;
use super::shared::KubeShared;

/// A listening API server. Dropping it closes the port and every connection.
pub(super) struct ApiListener {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ApiListener {
    /// Listens on this address; port 0 picks a free one. Returns the address that it has.
    pub(super) fn start(shared: Arc<KubeShared>, address: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("kube-api".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(shared.clone(), listener) => {}
                    () = controllers::run(shared) => {}
                    _ = stopped => {}
                }
            });
            // Connections are tasks of the runtime and end with it.
            runtime.shutdown_background();
        })?;
        Ok((Self { stop: Some(stop), thread: Some(thread) }, address))
    }
}

impl Drop for ApiListener {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(shared: Arc<KubeShared>, listener: TcpListener) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        // Without a network the client sees no answer to its connection; on loopback it sees it closed.
        if !shared.is_cut_off.load(Ordering::SeqCst) {
            tokio::spawn(serve_connection(shared.clone(), stream));
        }
    }
}

async fn serve_connection(shared: Arc<KubeShared>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut cuts = shared.cuts.subscribe();
    let service = service_fn(move |request| handle(shared.clone(), request));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    tokio::select! {
        _ = http.serve_connection(TokioIo::new(stream), service) => {}
        _ = cuts.changed() => {}
    }
}
