//! A webhook's receiver on a real socket, which behaves as badly as it is configured to.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use super::eventually;

/// What it does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    /// Answers with this status and these header lines.
    Answer(u16, String),
    /// Answers with this status once it is let go on.
    Held(u16),
    /// Takes the request and does not respond, for as long as the sender waits.
    Silence,
    /// Answers 200, promises a body, and drops the connection.
    Drop,
    /// Answers with this status and a body that never ends.
    Endless(u16),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Shared {
    behaviours: Mutex<VecDeque<Behaviour>>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    go_on: Notify,
    endless_bytes: AtomicUsize,
}

#[derive(Clone)]
pub(crate) struct HookReceiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl HookReceiver {
    /// One that behaves like this, request by request, and afterwards well.
    pub(crate) async fn start(behaviours: impl IntoIterator<Item = Behaviour>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared { behaviours: Mutex::new(behaviours.into_iter().collect()), ..Shared::default() });
        let (address, serving) = (listener.local_addr().unwrap(), shared.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, serving.clone()));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Lets one that is held answer.
    pub(crate) fn go_on(&self) {
        self.shared.go_on.notify_one();
    }

    /// What was written of bodies without an end.
    pub(crate) fn endless_bytes(&self) -> usize {
        self.shared.endless_bytes.load(Ordering::SeqCst)
    }

    /// Waits for so many requests, and answers with them.
    pub(crate) async fn received(&self, count: usize) -> Vec<Request> {
        eventually("the receiver is told", async || {
            let requests = self.requests();
            (requests.len() >= count).then_some(requests)
        })
        .await
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let Some(request) = read(&mut stream).await else { return };
    let behaviour = shared.behaviours.lock().unwrap().pop_front();
    shared.requests.lock().unwrap().push(request);
    let status = |status: u16, lines: &str| format!("HTTP/1.1 {status} -\r\n{lines}\r\n");
    match behaviour.unwrap_or(Behaviour::Answer(200, String::new())) {
        Behaviour::Answer(code, lines) => {
            let head = status(code, &format!("content-length: 0\r\n{lines}"));
            let _ = stream.write_all(head.as_bytes()).await;
        }
        Behaviour::Held(code) => {
            shared.go_on.notified().await;
            let _ = stream.write_all(status(code, "content-length: 0\r\n").as_bytes()).await;
        }
        // Until the other side gives up.
        Behaviour::Silence => drop(stream.read(&mut [0]).await),
        Behaviour::Drop => drop(stream.write_all(status(200, "content-length: 1000\r\n").as_bytes()).await),
        Behaviour::Endless(code) => {
            let mut sent = stream.write_all(status(code, "").as_bytes()).await;
            while sent.is_ok() {
                sent = stream.write_all(&[b'x'; 65_536]).await;
                shared.endless_bytes.fetch_add(65_536, Ordering::SeqCst);
            }
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = vec![];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers: HeaderMap = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap()))
        .collect();
    let length: usize = headers.get("content-length")?.to_str().ok()?.parse().ok()?;
    let mut body = bytes[end + 4..].to_vec();
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Request { path, headers, body })
}
