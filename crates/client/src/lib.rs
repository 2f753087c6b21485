//! Typed client of the manager dialect: one method per operation, one file per noun, every failure a [`Failure`].
//!
//! It speaks HTTP to a server elsewhere, or calls a server in the same process directly; callers cannot tell. It keeps no
//! state about runs, never retries and never reconnects by itself: who calls knows what may be repeated.

mod agents;
mod answer;
mod attachments;
mod backends;
mod capabilities;
mod commands;
mod conversation;
mod events;
mod health;
mod identities;
mod leases;
pub mod mesh;
pub mod outgoing;
mod path;
mod permissions;
mod provider_profiles;
mod raw;
pub mod receiver;
mod relations;
mod runner_jobs;
mod runners;
mod runs;
mod session_storage;
mod sessions;
pub mod sse;
mod tokens;
mod transport;
mod users;
mod webhooks;

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST},
};
use ostler_protocol::{Failure, limits::WAIT_MS_MAX};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Duration, timeout};

pub use answer::{is_transient, is_unreachable, problem};
pub use events::EventStream;
pub use identities::{Certified, public_key};
pub use transport::{Body, InProcess, restricted_web_client, web_client};

use path::Path;
use transport::Transport;

/// A call is given up after this long. Longer than the longest wait a server grants, by time for the answer itself.
const CALL_MS_MAX: u64 = WAIT_MS_MAX + 30_000;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A client of one server, as one caller. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// A client of the server at `base_url`, such as `http://127.0.0.1:4747` or `https://ostler.example.org/prefix`.
    pub fn http(base_url: &str, token: Option<SecretString>) -> Result<Self, Failure> {
        let authorization = token
            .map(|token| {
                bearer(&token).ok_or_else(|| Failure::invalid("token-shape", "the token has unprintable characters"))
            })
            .transpose()?;
        let transport = Transport::http(base_url)?;
        Ok(Self { inner: Arc::new(Inner { transport, authorization }) })
    }

    /// A client of the server in this process.
    pub fn in_process(call: InProcess, token: Option<SecretString>) -> Self {
        // A token that cannot stand in a header is no token of ours; the server says so to whoever comes without one.
        let authorization = token.as_ref().and_then(bearer);
        Self { inner: Arc::new(Inner { transport: Transport::InProcess(call), authorization }) }
    }

    /// The same server, as another caller.
    pub fn with_token(&self, token: Option<SecretString>) -> Self {
        let authorization = token.as_ref().and_then(bearer);
        Self { inner: Arc::new(Inner { transport: self.inner.transport.clone(), authorization }) }
    }

    async fn get<T: DeserializeOwned>(&self, path: Path) -> Result<T, Failure> {
        answer::parse(&self.call(Method::GET, path, Bytes::new()).await?)
    }

    async fn post<T: DeserializeOwned, B: Serialize>(&self, path: Path, body: &B) -> Result<T, Failure> {
        answer::parse(&self.call(Method::POST, path, json(body)?).await?)
    }

    async fn patch<T: DeserializeOwned, B: Serialize>(&self, path: Path, body: &B) -> Result<T, Failure> {
        answer::parse(&self.call(Method::PATCH, path, json(body)?).await?)
    }

    /// One call with a whole, good answer.
    async fn call(&self, method: Method, path: Path, body: Bytes) -> Result<Bytes, Failure> {
        let (status, bytes) = self.exchange(method, path, body).await?;
        answer::good(status, bytes)
    }

    /// One call with a whole answer, good or not.
    async fn exchange(&self, method: Method, path: Path, body: Bytes) -> Result<(StatusCode, Bytes), Failure> {
        let request = self.request(method, path, body, JSON)?;
        let whole = async { answer::collect(self.inner.transport.send(request).await?).await };
        match timeout(Duration::from_millis(CALL_MS_MAX), whole).await {
            Ok(answer) => answer,
            Err(_) => Err(answer::timed_out(CALL_MS_MAX)),
        }
    }

    /// One call whose answer is read as it comes. Only its beginning has a time limit here.
    async fn open(&self, request: Request<Bytes>) -> Result<Response<Body>, Failure> {
        match timeout(Duration::from_millis(CALL_MS_MAX), self.inner.transport.send(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(answer::timed_out(CALL_MS_MAX)),
        }
    }

    fn request(&self, method: Method, path: Path, body: Bytes, accept: HeaderValue) -> Result<Request<Bytes>, Failure> {
        let uri = self.inner.transport.uri(path)?;
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, accept);
        if let Some(value) = &self.inner.authorization {
            headers.insert(AUTHORIZATION, value.clone());
        }
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, JSON);
        }
        if matches!(self.inner.transport, Transport::InProcess(_)) {
            headers.insert(HOST, HeaderValue::from_static("localhost"));
        }
        *request.body_mut() = body;
        Ok(request)
    }
}

fn bearer(token: &SecretString) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn json<B: Serialize>(body: &B) -> Result<Bytes, Failure> {
    serde_json::to_vec(body).map(Bytes::from).map_err(Failure::internal)
}
