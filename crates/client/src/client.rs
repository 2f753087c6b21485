//! The client: one server, one caller, one request at a time. The methods for each noun are in the folders of the dialects.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST},
};
use ostler_protocol::{Failure, Rule, limits::WAIT_MS_MAX};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Duration, timeout};

use crate::{
    failures,
    path::Path,
    response,
    transport::{InProcess, ReplyBody, Transport, Trust},
};

/// Time limit of a call: the longest wait that a server grants, and time for the response itself.
const CALL_MS_MAX: u64 = WAIT_MS_MAX + 30_000;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A client of one server, as one caller. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

struct ClientInner {
    transport: Transport,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// A client of the server at `base_url`, such as `http://127.0.0.1:4747` or `https://ostler.example.org/prefix`.
    pub fn http(base_url: &str, token: Option<SecretString>) -> Result<Self, Failure> {
        Self::over_http(base_url, token, Trust::System)
    }

    /// As [`Client::http`], for a server whose certificate may also be of one of these authorities, in PEM.
    pub fn http_with_authorities(
        base_url: &str,
        token: Option<SecretString>,
        authorities: &[u8],
    ) -> Result<Self, Failure> {
        Self::over_http(base_url, token, Trust::Also(authorities))
    }

    /// As [`Client::http`], for a server that must have exactly this certificate, in DER, whatever it is issued for. The
    /// certificate has no meaning for plain HTTP.
    pub fn pinned_http(base_url: &str, token: Option<SecretString>, certificate: &[u8]) -> Result<Self, Failure> {
        Self::over_http(base_url, token, Trust::Pinned(certificate))
    }

    fn over_http(base_url: &str, token: Option<SecretString>, trust: Trust<'_>) -> Result<Self, Failure> {
        let authorization = token
            .map(|token| {
                bearer(&token).ok_or_else(|| Failure::invalid(Rule::TokenShape, "the token has unprintable characters"))
            })
            .transpose()?;
        let transport = Transport::http(base_url, trust)?;
        Ok(Self { inner: Arc::new(ClientInner { transport, authorization }) })
    }

    /// A client of the server in this process.
    pub fn in_process(call: InProcess, token: Option<SecretString>) -> Self {
        // A token that is not a valid header value is never one of ours. The server rejects the call without a token.
        let authorization = token.as_ref().and_then(bearer);
        Self { inner: Arc::new(ClientInner { transport: Transport::InProcess(call), authorization }) }
    }

    /// A client of the same server, as another caller.
    pub fn with_token(&self, token: Option<SecretString>) -> Self {
        let authorization = token.as_ref().and_then(bearer);
        Self { inner: Arc::new(ClientInner { transport: self.inner.transport.clone(), authorization }) }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: Path) -> Result<T, Failure> {
        response::parse(&self.call(Method::GET, path, Bytes::new()).await?)
    }

    pub(crate) async fn post<T: DeserializeOwned, B: Serialize>(&self, path: Path, body: &B) -> Result<T, Failure> {
        response::parse(&self.call(Method::POST, path, json(body)?).await?)
    }

    pub(crate) async fn patch<T: DeserializeOwned, B: Serialize>(&self, path: Path, body: &B) -> Result<T, Failure> {
        response::parse(&self.call(Method::PATCH, path, json(body)?).await?)
    }

    /// Makes a call and returns the whole body of a successful response.
    pub(crate) async fn call(&self, method: Method, path: Path, body: Bytes) -> Result<Bytes, Failure> {
        let (status, bytes) = self.exchange(method, path, body).await?;
        response::success(status, bytes)
    }

    /// Makes a call and returns the whole response, successful or not.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        path: Path,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Failure> {
        self.exchange_request(self.request(method, path, body, JSON)?).await
    }

    /// Sends a request and returns the whole response, successful or not.
    pub(crate) async fn exchange_request(&self, request: Request<Bytes>) -> Result<(StatusCode, Bytes), Failure> {
        self.exchange_within(request, CALL_MS_MAX).await
    }

    async fn exchange_within(&self, request: Request<Bytes>, ms_max: u64) -> Result<(StatusCode, Bytes), Failure> {
        let whole = async { response::collect(self.inner.transport.send(request).await?).await };
        match timeout(Duration::from_millis(ms_max), whole).await {
            Ok(response) => response,
            Err(_) => Err(failures::timed_out(ms_max)),
        }
    }

    /// As [`Client::post`], for work that the server itself bounds to `ms_max`.
    pub(crate) async fn post_work<T: DeserializeOwned, B: Serialize>(
        &self,
        path: Path,
        body: &B,
        ms_max: u64,
    ) -> Result<T, Failure> {
        let request = self.request(Method::POST, path, json(body)?, JSON)?;
        let (status, bytes) = self.exchange_within(request, ms_max.saturating_add(CALL_MS_MAX)).await?;
        response::parse(&response::success(status, bytes)?)
    }

    /// Makes a call whose response is streamed. Only the beginning of the response has a time limit here.
    pub(crate) async fn open(&self, request: Request<Bytes>) -> Result<Response<ReplyBody>, Failure> {
        match timeout(Duration::from_millis(CALL_MS_MAX), self.inner.transport.send(request)).await {
            Ok(response) => response,
            Err(_) => Err(failures::timed_out(CALL_MS_MAX)),
        }
    }

    pub(crate) fn request(
        &self,
        method: Method,
        path: Path,
        body: Bytes,
        accept: HeaderValue,
    ) -> Result<Request<Bytes>, Failure> {
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

pub(crate) fn json<B: Serialize>(body: &B) -> Result<Bytes, Failure> {
    serde_json::to_vec(body).map(Bytes::from).map_err(Failure::internal)
}
