//! The port of the kubelet from which the API server reads logs: `/containerLogs/{namespace}/{pod}/{container}`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::local::KubeletShared;

const FOLLOW_POLL: Duration = Duration::from_millis(20);

pub(super) async fn serve(shared: Arc<KubeletShared>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (shared, tls) = (shared.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => serve_connection(shared, stream).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve_connection(shared, stream).await;
                    }
                }
            }
        });
    }
}

async fn serve_connection(shared: Arc<KubeletShared>, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service = service_fn(move |request| {
        let response = read_log(&shared, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

fn read_log(shared: &Arc<KubeletShared>, request: &hyper::Request<Incoming>) -> Response {
    let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    let query: BTreeMap<&str, &str> =
        request.uri().query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')).collect();
    let number = |name: &str| query.get(name).and_then(|value| value.parse::<usize>().ok());
    let log = match parts.as_slice() {
        ["containerLogs", namespace, name, _] => find_log(shared, namespace, name),
        _ => None,
    };
    let Some((uid, log)) = log else { return not_found() };
    let stored = std::fs::read(&log).unwrap_or_default();
    let stored_bytes = stored.len();
    let content = if query.get("timestamps") == Some(&"true") { with_times(&stored) } else { stored };
    let start = number("tailLines").map_or(0, |lines| start_of_tail(&content, lines));
    let limit = number("limitBytes").unwrap_or(usize::MAX);
    let end = content.len().min(start.saturating_add(limit));
    let first = Bytes::copy_from_slice(&content[start..end]);
    if query.get("follow").is_none_or(|follow| *follow != "true") {
        return Response::new(Body::from(first));
    }
    let state = LogFollower { shared: shared.clone(), uid, log, offset: stored_bytes, first: Some(first) };
    let chunks = stream::unfold(state, |mut state| async move {
        state.next().await.map(|chunk| (Ok::<_, Infallible>(chunk), state))
    });
    Response::new(Body::from_stream(chunks))
}

fn find_log(shared: &KubeletShared, namespace: &str, name: &str) -> Option<(String, PathBuf)> {
    let pods = shared.pods();
    let (uid, local) = pods.iter().find(|(_, local)| local.namespace == namespace && local.name == name)?;
    Some((uid.clone(), local.log.clone()))
}

fn not_found() -> Response {
    let mut response = Response::new(Body::from("the pod is not on this node"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// The whole lines of a log, each with its time. Files have no times of their lines, so they are a nanosecond apart.
fn with_times(content: &[u8]) -> Vec<u8> {
    let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let lines = content[..whole].split_inclusive(|byte| *byte == b'\n').enumerate();
    lines.flat_map(|(number, line)| [format!("2030-01-01T00:00:00.{number:09}Z ").as_bytes(), line].concat()).collect()
}

/// Where the last lines begin.
fn start_of_tail(content: &[u8], lines: usize) -> usize {
    let body = content.strip_suffix(b"\n").unwrap_or(content);
    let mut breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    if lines == 0 { content.len() } else { breaks.nth(lines - 1).unwrap_or(0) }
}

struct LogFollower {
    shared: Arc<KubeletShared>,
    uid: String,
    log: PathBuf,
    offset: usize,
    first: Option<Bytes>,
}

impl LogFollower {
    /// The next part of the log. `None` after the end of the container.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Some(first);
        }
        loop {
            // Read before the log, so that the last lines are not missed.
            let has_ended = self.shared.pods().get(&self.uid).is_none_or(|local| local.has_ended);
            let content = std::fs::read(&self.log).unwrap_or_default();
            if content.len() > self.offset {
                let chunk = Bytes::copy_from_slice(&content[self.offset..]);
                self.offset = content.len();
                return Some(chunk);
            }
            if has_ended {
                return None;
            }
            tokio::time::sleep(FOLLOW_POLL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_begins_at_a_line() {
        for (content, lines, expected) in
            [("a\nb\nc\n", 2, "b\nc\n"), ("a\nb\nc", 1, "c"), ("a\n", 5, "a\n"), ("a\n", 0, ""), ("", 3, "")]
        {
            assert_eq!(&content[start_of_tail(content.as_bytes(), lines)..], expected);
        }
    }

    #[test]
    fn whole_lines_get_times() {
        let expected = "2030-01-01T00:00:00.000000000Z a\n2030-01-01T00:00:00.000000001Z \n";
        assert_eq!(with_times(b"a\n\nhalf"), expected.as_bytes());
    }
}
