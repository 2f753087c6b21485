//! Any call at all, with the caller's token applied: for `ostler api`, and for operations this client has no method for.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response};
use ostler_protocol::Failure;

use crate::{Body, Client, path::Path};

impl Client {
    /// The answer as it comes, whatever it says. `path` begins with a slash and is sent as it is.
    pub async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Response<Body>, Failure> {
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| Failure::invalid("method", format!("{method:?} is no HTTP method")))?;
        let mut request = self.request(method, Path::raw(path)?, body, HeaderValue::from_static("*/*"))?;
        for (name, value) in headers {
            request.headers_mut().insert(name, value.clone());
        }
        self.open(request).await
    }
}
