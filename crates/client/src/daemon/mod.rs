//! The daemon dialect: a client attaches to a session, prompts it, follows its frames and votes on its permission requests.

mod events;
mod mcp;
mod permissions;
mod sessions;

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use ostler_protocol::{Failure, daemon::clients::CLIENT_HEADER};
use serde::{Serialize, de::DeserializeOwned};

pub use self::events::{FrameStream, ReceivedFrame};
use crate::{
    client::{Client, JSON, json},
    path::Path,
    response,
};

/// One session of a server, as one client of it. Cheap to clone.
#[derive(Clone)]
pub struct SessionClient {
    client: Client,
    session_id: String,
    /// `None` for an anonymous client. The server gives every client that attaches an id.
    client_id: Option<String>,
}

impl SessionClient {
    pub fn new(client: Client, session_id: String, client_id: Option<String>) -> Self {
        Self { client, session_id, client_id }
    }

    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    pub fn client_id(&self) -> Option<&str> {
        self.client_id.as_deref()
    }

    /// The client without a session.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A path below this session.
    fn path(&self, segments: &[&str]) -> Path {
        let session = ["session", self.session_id.as_str()];
        Path::of(&[&session[..], segments].concat())
    }

    /// A request in the name of this client.
    fn request(&self, method: Method, path: Path, body: Bytes, accept: HeaderValue) -> Result<Request<Bytes>, Failure> {
        let mut request = self.client.request(method, path, body, accept)?;
        // The server made the id, so it is a valid header value.
        if let Some(id) = self.client_id.as_ref().and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert(CLIENT_HEADER, id);
        }
        Ok(request)
    }

    /// Makes a call in the name of this client and returns the body of a successful response.
    async fn call<B: Serialize>(&self, method: Method, path: Path, body: Option<&B>) -> Result<Bytes, Failure> {
        let body = body.map(json).transpose()?.unwrap_or_default();
        let request = self.request(method, path, body, JSON)?;
        let (status, bytes) = self.client.exchange_request(request).await?;
        response::success(status, bytes)
    }

    async fn send<T: DeserializeOwned, B: Serialize>(
        &self,
        method: Method,
        path: Path,
        body: Option<&B>,
    ) -> Result<T, Failure> {
        response::parse(&self.call(method, path, body).await?)
    }
}
